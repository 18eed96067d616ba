/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* See auth.h. */

#include <strings.h>
#include <time.h>

#include "auth.h"
#include "basic/string-util.h"
#include "token/run-token.h"

const char *const auth_slots[] = { "authorization", "x-api-key", "x-goog-api-key", "api-key", "x-amz-security-token",
                                   NULL };

#define HEADER_VALUE_MAX (RUN_TOKEN_SIZE_MAX * 2) /* base64 of a token with a user name before it */

static int add_token(char ***l, const char *s, size_t len) {
        if (len == 0 || len > RUN_TOKEN_SIZE_MAX || strv_length(*l) >= 8)
                return 0;

        _cleanup_free_ char *t = strndup(s, len);
        return t ? strv_extend(l, t) : -ENOMEM;
}

static int add_basic(char ***l, const char *s) {
        _cleanup_free_ void *data = NULL;
        size_t size, l64 = strlen(s);
        _cleanup_free_ char *padded = NULL;

        if (l64 > HEADER_VALUE_MAX)
                return 0;
        /* Some clients leave the padding off. */
        padded = strprintf("%s%s", s, l64 % 4 == 2 ? "==" : l64 % 4 == 3 ? "=" : "");
        if (!padded)
                return -ENOMEM;
        if (base64_decode(padded, strlen(padded), &data, &size) < 0)
                return 0;

        const char *colon = memchr(data, ':', size);
        if (!colon)
                return 0;

        /* npm, git and pip let the user choose which half holds the token. */
        size_t user = (size_t) (colon - (const char *) data);
        int r = add_token(l, colon + 1, size - user - 1);
        if (r < 0)
                return r;
        return size - user - 1 > 0 ? 0 : add_token(l, data, user);
}

static int add_authorization(char ***l, const char *value) {
        size_t scheme = strcspn(value, " \t");
        const char *rest = value + scheme + strspn(value + scheme, " \t");

        if ((scheme == 6 && strncasecmp(value, "bearer", 6) == 0) ||
            (scheme == 5 && strncasecmp(value, "token", 5) == 0))
                return add_token(l, rest, strlen(rest));
        if (scheme == 5 && strncasecmp(value, "basic", 5) == 0)
                return add_basic(l, rest);
        return 0;
}

int auth_extract_tokens(const HttpHead *head, bool proxy, char ***ret) {
        _cleanup_strv_free_ char **l = NULL;

        for (size_t i = 0; i < head->n_fields; i++) {
                const HttpField *f = head->fields + i;
                int r = 0;

                /* What stands in the usual slots of a request to a proxy is the destination's. */
                if (strcasecmp(f->name, proxy ? "proxy-authorization" : "authorization") == 0)
                        r = add_authorization(&l, f->value);
                else if (!proxy)
                        for (size_t k = 1; auth_slots[k]; k++)
                                if (strcasecmp(f->name, auth_slots[k]) == 0)
                                        r = add_token(&l, f->value, strlen(f->value));
                if (r < 0)
                        return r;
        }

        *ret = TAKE_PTR(l);
        return 0;
}

/* Whether RUN is a session in an edit that is open now. That it is says its live file, which agentd takes away at its
 * end; it may be open for longer than any token is good for. */
static bool is_open_session(BridgeRun *run) {
        _cleanup_(live_run_unrefp) LiveRun *live = NULL;

        return live_cache_get(run->bridge->live, run->id, &live) >= 0 && live->holder;
}

/* 0: TOKEN is this run's. -EACCES and a reason: not. */
static int verify_one(BridgeRun *run, const char *token, bool proxy, LiveRun **ret_live, const char **ret_reason) {
        _cleanup_run_claims_ RunClaims claims = {};
        _cleanup_(live_run_unrefp) LiveRun *live = NULL;
        struct timespec now;

        if (clock_gettime(CLOCK_REALTIME, &now) < 0)
                return -errno;
        int r = run_token_verify(run->bridge->keys, token, strlen(token), (uint64_t) now.tv_sec, &claims);
        if (r == -EKEYEXPIRED && proxy && run != run->bridge->remote && is_open_session(run))
                r = run_token_verify_lasting(run->bridge->keys, token, strlen(token), (uint64_t) now.tv_sec, &claims);
        if (r == -EBADMSG || r == -ENOKEY || r == -EKEYREJECTED || r == -EKEYEXPIRED) {
                *ret_reason = r == -EBADMSG ? "malformed token" : r == -ENOKEY ? "unknown key" :
                              r == -EKEYREJECTED ? "wrong signature" : "expired token";
                return -EACCES;
        }
        if (r < 0)
                return r;

        /* From here on the claims are agentd's own words. Sandboxes elsewhere share one listener. */
        if (run == run->bridge->remote ? !strmap_get(run->bridge->runs, claims.run) : !streq(claims.run, run->id)) {
                *ret_reason = "token of another run";
                return -EACCES;
        }
        r = live_cache_get(run->bridge->live, claims.run, &live);
        if (r == -ENOENT || r == -EINVAL) {
                *ret_reason = r == -ENOENT ? "run is over" : "live file is broken";
                return -EACCES;
        }
        if (r < 0)
                return r;
        if (!streq(claims.jti, live->jti)) {
                *ret_reason = "token of another attempt";
                return -EACCES;
        }
        if (!streq(claims.user, live->user) || !streq(claims.agent, live->agent) ||
            !streq(strempty(claims.session), strempty(live->session))) {
                *ret_reason = "claims do not match the live file";
                return -EACCES;
        }

        if (live->holder && !proxy) {
                *ret_reason = "token of an edit session";
                return -EACCES;
        }

        *ret_live = TAKE_PTR(live);
        return 0;
}

int auth_verify(BridgeRun *run, const HttpHead *head, bool proxy, LiveRun **ret_live, char **ret_token,
                const char **ret_reason) {
        _cleanup_strv_free_ char **tokens = NULL;

        int r = auth_extract_tokens(head, proxy, &tokens);
        if (r < 0)
                return r;

        *ret_reason = "no token";
        r = -EACCES;
        for (char **t = tokens; t && *t; t++) {
                r = verify_one(run, *t, proxy, ret_live, ret_reason);
                if (r >= 0) {
                        *ret_token = strdup(*t);
                        if (!*ret_token) {
                                *ret_live = live_run_unref(*ret_live);
                                r = -ENOMEM;
                        }
                }
                if (r != -EACCES)
                        break;
        }

        for (char **t = tokens; t && *t; t++)
                explicit_bzero(*t, strlen(*t));
        return r;
}
