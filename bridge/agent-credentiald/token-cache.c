/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include <sys/random.h>
#include <time.h>

#include "basic/digest.h"
#include "basic/log.h"
#include "basic/string-util.h"
#include "token-cache.h"

#define ENTRIES_MAX 4096U
#define WAITERS_MAX 1024U /* of one entry */

#define REFRESH_PERCENT 80U
#define MARGIN_USEC_MAX (30 * USEC_PER_SEC)
#define INVALIDATE_USEC_MIN (10 * USEC_PER_SEC)
#define PAUSE_USEC_MIN (1 * USEC_PER_SEC)
#define PAUSE_USEC_MAX (60 * USEC_PER_SEC)

typedef struct TokenEntry TokenEntry;

struct TokenWaiter {
        TokenEntry *entry;
        TokenWaiter *next;
        token_ready_t ready;
        void *userdata;
};

struct TokenEntry {
        TokenCache *cache;
        TokenEntry *next;

        char *user;
        Service *service;
        uint64_t version;
        char digest[DIGEST_LEN + 1]; /* of the service's auth */

        Secret *token;
        uint64_t generation;
        uint64_t fetched_at, refresh_at, stale_at, expires_at;
        bool invalid; /* an upstream did not accept it */
        uint64_t invalidated_at;

        void *fetch;
        TokenWaiter *waiters;   /* in reverse order of their arrival */
        TokenWaiter *answering; /* those of them whose turn it is */
        bool busy;              /* being answered: not to be freed */
        size_t n_waiters;

        TokenCode failure; /* of the last fetch */
        uint64_t pause_until, pause;
        uint64_t used_at;
};

struct TokenCache {
        TokenFetcher fetcher;
        TokenEntry *entries;
        size_t n_entries;
        uint64_t generation;
};

static uint64_t clock_now(void) {
        struct timespec ts;

        clock_gettime(CLOCK_BOOTTIME, &ts);
        return (uint64_t) ts.tv_sec * USEC_PER_SEC + (uint64_t) ts.tv_nsec / NSEC_PER_USEC;
}

int token_cache_new(const TokenFetcher *fetcher, TokenCache **ret) {
        TokenCache *c = calloc(1, sizeof(*c));

        if (!c)
                return -ENOMEM;

        c->fetcher = *fetcher;
        if (!c->fetcher.now)
                c->fetcher.now = clock_now;
        *ret = c;
        return 0;
}

static TokenEntry *entry_free(TokenEntry *e) {
        if (!e)
                return NULL;

        if (e->cache) {
                for (TokenEntry **p = &e->cache->entries; *p; p = &(*p)->next)
                        if (*p == e) {
                                *p = e->next;
                                e->cache->n_entries--;
                                break;
                        }
                if (e->fetch)
                        e->cache->fetcher.cancel(e->fetch);
        }

        while (e->waiters) {
                TokenWaiter *w = e->waiters;

                e->waiters = w->next;
                w->entry = NULL;
                free(w);
        }
        secret_free(e->token);
        service_unref(e->service);
        free(e->user);
        return mfree(e);
}

TokenCache *token_cache_free(TokenCache *c) {
        if (!c)
                return NULL;

        while (c->entries)
                entry_free(c->entries);
        return mfree(c);
}

static bool waiter_unlink(TokenWaiter **list, TokenWaiter *w) {
        for (TokenWaiter **p = list; *p; p = &(*p)->next)
                if (*p == w) {
                        *p = w->next;
                        return true;
                }
        return false;
}

TokenWaiter *token_waiter_free(TokenWaiter *w) {
        if (!w)
                return NULL;

        if (w->entry) {
                if (!waiter_unlink(&w->entry->waiters, w))
                        (void) waiter_unlink(&w->entry->answering, w);
                w->entry->n_waiters--;
        }
        return mfree(w);
}

/* Another endpoint, client or scope is another token, even where the credential stayed. */
static int auth_digest(const Service *s, char ret[static DIGEST_LEN + 1]) {
        const ServiceAuth *a = &s->auth;
        _cleanup_free_ char *text = NULL;

        /* None of these holds a newline, service_parse() saw to it. */
        text = strprintf("%d\n%s\n%s\n%s\n%s\n%d", (int) a->kind, strempty(a->token_url.text), strempty(a->client_id),
                         strempty(a->scope), strempty(a->audience), (int) a->client_auth_post);
        if (!text)
                return -ENOMEM;

        return digest_bytes(text, strlen(text), ret);
}

static int entry_find(TokenCache *c, const TokenKey *key, TokenEntry **ret, char digest[static DIGEST_LEN + 1]) {
        int r;

        r = auth_digest(key->service, digest);
        if (r < 0)
                return r;

        for (TokenEntry *e = c->entries; e; e = e->next)
                if (e->version == key->version && streq(e->user, key->user) &&
                    streq(e->service->name, key->service->name) && streq(e->digest, digest)) {
                        *ret = e;
                        return 1;
                }

        return 0;
}

static int make_room(TokenCache *c) {
        TokenEntry *oldest = NULL;

        if (c->n_entries < ENTRIES_MAX)
                return 0;

        for (TokenEntry *e = c->entries; e; e = e->next)
                if (!e->fetch && !e->busy && e->n_waiters == 0 && (!oldest || e->used_at < oldest->used_at))
                        oldest = e;
        if (!oldest)
                return -EBUSY;

        entry_free(oldest);
        return 0;
}

static int entry_new(TokenCache *c, const TokenKey *key, const char *digest, TokenEntry **ret) {
        TokenEntry *e;
        int r;

        /* An older version of the same credential will not be asked for again. */
        for (TokenEntry *i = c->entries, *next; i; i = next) {
                next = i->next;
                if (!i->fetch && !i->busy && i->n_waiters == 0 && i->version < key->version &&
                    streq(i->user, key->user) && streq(i->service->name, key->service->name))
                        entry_free(i);
        }

        r = make_room(c);
        if (r < 0)
                return r;

        e = calloc(1, sizeof(*e));
        if (!e)
                return -ENOMEM;
        e->user = strdup(key->user);
        if (!e->user) {
                free(e);
                return -ENOMEM;
        }
        e->service = service_ref(key->service);
        e->version = key->version;
        memcpy(e->digest, digest, sizeof(e->digest));
        e->cache = c;
        e->next = c->entries;
        c->entries = e;
        c->n_entries++;

        *ret = e;
        return 0;
}

/* Up to a twentieth, so that many hosts that started together do not come back together. */
static uint64_t jitter(uint64_t span) {
        uint32_t x = 0;

        if (getrandom(&x, sizeof(x), GRND_NONBLOCK) != (ssize_t) sizeof(x) || span < 20)
                return 0;
        return x % (span / 20);
}

static void entry_grant(const TokenEntry *e, uint64_t now, TokenGrant *ret) {
        if (e->token && !e->invalid && now < e->expires_at)
                *ret = (TokenGrant) {
                        .code = TOKEN_OK,
                        .token = e->token,
                        .remaining_usec = e->expires_at - now,
                        .generation = e->generation,
                };
        else
                *ret = (TokenGrant) {
                        .code = e->failure == TOKEN_OK ? TOKEN_UNAVAILABLE : e->failure,
                };
}

/* A callback may ask again, for this very entry too, and may free other waiters: the list is moved aside first. */
static void entry_answer(TokenEntry *e, uint64_t now) {
        assert(!e->answering);

        while (e->waiters) { /* oldest first */
                TokenWaiter *w = e->waiters;

                e->waiters = w->next;
                w->next = e->answering;
                e->answering = w;
        }

        e->busy = true;
        while (e->answering) {
                TokenWaiter *w = e->answering;
                TokenGrant grant;

                e->answering = w->next;
                e->n_waiters--;
                w->entry = NULL;
                entry_grant(e, now, &grant);
                w->ready(&grant, w->userdata);
                free(w);
        }
        e->busy = false;
}

static void entry_store(TokenEntry *e, Secret *token, uint64_t life_sec, uint64_t now) {
        uint64_t life = life_sec * USEC_PER_SEC, margin = MIN(MARGIN_USEC_MAX, life / 10);

        secret_free(e->token);
        e->token = token;
        e->generation = ++e->cache->generation;
        e->invalid = false;
        e->fetched_at = now;
        e->expires_at = now + life;
        e->stale_at = e->expires_at - margin;
        e->refresh_at = now + life * REFRESH_PERCENT / 100 - jitter(life);
        e->failure = TOKEN_OK;
        e->pause = e->pause_until = 0;
}

static void entry_fail(TokenEntry *e, TokenCode code, const char *detail, uint64_t now) {
        e->failure = code;
        e->pause = e->pause == 0 ? PAUSE_USEC_MIN : MIN(e->pause * 2, PAUSE_USEC_MAX);
        e->pause_until = now + e->pause;

        log_warning("No access token for service %s of user %s: %s (%s).", e->service->name, e->user,
                    token_code_to_string(code), strempty(detail));
}

static void entry_fetched(unsigned status, const char *body, size_t size, TokenCode error, const char *detail,
                          void *userdata) {
        TokenEntry *e = userdata;
        uint64_t now = e->cache->fetcher.now(), life;
        Secret *token = NULL;

        e->fetch = NULL;

        if (error == TOKEN_OK)
                error = token_response_parse(status, body, size, &token, &life, &detail);
        if (error == TOKEN_OK)
                entry_store(e, token, life, now);
        else
                entry_fail(e, error, detail, now);

        entry_answer(e, now);
}

static int entry_fetch(TokenEntry *e) {
        TokenKey key = {
                .user = e->user,
                .service = e->service,
                .version = e->version,
        };

        if (e->fetch)
                return 0;
        return e->cache->fetcher.start(e->cache->fetcher.context, &key, entry_fetched, e, &e->fetch);
}

int token_cache_get(TokenCache *c, const TokenKey *key, TokenGrant *ret_grant, token_ready_t ready, void *userdata,
                    TokenWaiter **ret) {
        char digest[DIGEST_LEN + 1];
        uint64_t now = c->fetcher.now();
        TokenEntry *e = NULL;
        TokenWaiter *w;
        int r;

        r = entry_find(c, key, &e, digest);
        if (r < 0)
                return r;
        if (r == 0) {
                r = entry_new(c, key, digest, &e);
                if (r < 0)
                        return r;
        }
        e->used_at = now;

        if (e->token && !e->invalid && now < e->stale_at) {
                if (now >= e->refresh_at && now >= e->pause_until) {
                        r = entry_fetch(e);
                        if (r < 0)
                                entry_fail(e, TOKEN_UNAVAILABLE, "cannot be asked for", now);
                }
                entry_grant(e, now, ret_grant);
                return 1;
        }

        if (!e->fetch) {
                if (now < e->pause_until) {
                        entry_grant(e, now, ret_grant);
                        return 1;
                }
                r = entry_fetch(e);
                if (r < 0) {
                        entry_fail(e,
                                   r == -ENOENT || r == -EBADMSG || r == -EINVAL ? TOKEN_CREDENTIAL : TOKEN_UNAVAILABLE,
                                   "cannot be asked for", now);
                        entry_grant(e, now, ret_grant);
                        return 1;
                }
        }

        if (e->n_waiters >= WAITERS_MAX)
                return -EBUSY;
        w = calloc(1, sizeof(*w));
        if (!w)
                return -ENOMEM;
        *w = (TokenWaiter) {
                .entry = e,
                .next = e->waiters,
                .ready = ready,
                .userdata = userdata,
        };
        e->waiters = w;
        e->n_waiters++;

        *ret = w;
        return 0;
}

void token_cache_invalidate(TokenCache *c, const TokenKey *key, uint64_t generation) {
        char digest[DIGEST_LEN + 1];
        uint64_t now = c->fetcher.now();
        TokenEntry *e = NULL;

        if (entry_find(c, key, &e, digest) <= 0 || !e->token || e->invalid)
                return;

        /* The complaint is about one that is not given out any more. */
        if (generation != 0 && generation != e->generation)
                return;
        /* A new token that is not accepted either will not become better by asking more often. */
        if (e->invalidated_at != 0 && now < e->invalidated_at + INVALIDATE_USEC_MIN)
                return;
        /* Without a number: those who were refused together complain one after the other, also after the first of
         * them has caused a fresh one. */
        if (generation == 0 && now < e->fetched_at + INVALIDATE_USEC_MIN && e->invalidated_at != 0)
                return;

        e->invalid = true;
        e->invalidated_at = now;
}

void token_cache_forget(TokenCache *c, const char *user, const char *service) {
        for (TokenEntry *e = c->entries; e; e = e->next) {
                if (!streq(e->user, user) || !streq(e->service->name, service))
                        continue;
                /* The entry stays for those who wait; its token is never given out again, because a new credential
                 * has a new version and a removed one has none. */
                e->token = secret_free(e->token);
        }
}
