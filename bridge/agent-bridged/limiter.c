/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* See limiter.h. */

#include "limiter.h"

/* How many limiters there may be that say nothing before they are looked for. */
#define SWEEP_AT 1024U

struct Limiter {
        LimitTable *table;
        char *key;
        Limit limit;
        uint64_t level_usec; /* of the bucket: so much time's worth of tokens is there */
        uint64_t at_usec;    /* when that was so */
        uint64_t active;
};

struct LimitTable {
        StrMap *limiters;
        size_t sweep_at;
};

LimitTable *limit_table_new(void) {
        LimitTable *t = calloc(1, sizeof(LimitTable));

        if (t && !(t->limiters = strmap_new()))
                t = mfree(t);
        if (t)
                t->sweep_at = SWEEP_AT;
        return t;
}

static void limiter_free(Limiter *l) {
        (void) strmap_remove(l->table->limiters, l->key);
        free(l->key);
        free(l);
}

LimitTable *limit_table_free(LimitTable *t) {
        Limiter *l;

        if (!t)
                return NULL;
        while ((l = strmap_first(t->limiters))) {
                assert(l->active == 0);
                limiter_free(l);
        }
        strmap_free(t->limiters);
        return mfree(t);
}

size_t limit_table_size(const LimitTable *t) {
        return strmap_size(t->limiters);
}

static uint64_t bucket_usec(const Limit *limit) {
        uint64_t burst = limit->burst ?: limit->rate;

        return limit->rate == 0 ? 0 : MAX(burst, UINT64_C(1)) * USEC_PER_SEC / limit->rate;
}

static void limiter_fill(Limiter *l, uint64_t now) {
        if (now > l->at_usec)
                l->level_usec = MIN(l->level_usec + (now - l->at_usec), bucket_usec(&l->limit));
        l->at_usec = MAX(now, l->at_usec);
}

/* Those that say nothing go, all at once and only when there are many: each costs a look at all. */
static void sweep(LimitTable *t, uint64_t now) {
        _cleanup_free_ Limiter **idle = calloc(strmap_size(t->limiters) + 1, sizeof(Limiter *));
        size_t n = 0, i = 0;

        if (!idle)
                return;
        for (Limiter *l; (l = strmap_next(t->limiters, &i));) {
                limiter_fill(l, now);
                if (l->active == 0 && l->level_usec >= bucket_usec(&l->limit))
                        idle[n++] = l;
        }
        while (n > 0)
                limiter_free(idle[--n]);
        t->sweep_at = MAX(strmap_size(t->limiters) * 2, (size_t) SWEEP_AT);
}

static int limiter_get(LimitTable *t, const char *key, const Limit *limit, uint64_t now, Limiter **ret) {
        Limiter *l = strmap_get(t->limiters, key);

        if (!l) {
                if (strmap_size(t->limiters) >= t->sweep_at)
                        sweep(t, now);
                l = calloc(1, sizeof(Limiter));
                if (!l)
                        return -ENOMEM;
                *l = (Limiter) { .table = t, .limit = *limit, .level_usec = bucket_usec(limit), .at_usec = now };
                l->key = strdup(key);
                if (!l->key || strmap_put(t->limiters, l->key, l) < 0) {
                        free(l->key);
                        free(l);
                        return -ENOMEM;
                }
        }
        l->limit = *limit; /* a definition may have changed */
        limiter_fill(l, now);
        *ret = l;
        return 0;
}

int limit_take(LimitTable *t, const char *key, const Limit *limit, uint64_t now_usec, Lease *lease, size_t slot,
               uint64_t *ret_retry_usec) {
        Limiter *l;

        assert(slot < ELEMENTSOF(lease->limiters) && !lease->limiters[slot]);

        if (limit->rate == 0 && limit->concurrent == 0)
                return 0;

        int r = limiter_get(t, key, limit, now_usec, &l);
        if (r < 0)
                return r;
        if (limit->concurrent > 0 && l->active >= limit->concurrent)
                return -EBUSY;
        if (limit->rate > 0) {
                uint64_t cost = MAX(USEC_PER_SEC / limit->rate, UINT64_C(1));

                if (l->level_usec < cost) {
                        *ret_retry_usec = cost - l->level_usec;
                        return -EAGAIN;
                }
                l->level_usec -= cost;
        }
        l->active++;
        lease->limiters[slot] = l;
        return 0;
}

void lease_release(Lease *lease) {
        for (size_t i = 0; i < ELEMENTSOF(lease->limiters); i++) {
                if (lease->limiters[i]) {
                        assert(lease->limiters[i]->active > 0);
                        lease->limiters[i]->active--;
                }
                lease->limiters[i] = NULL;
        }
}
