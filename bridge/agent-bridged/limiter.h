/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * How often, and how many at once: for a run, for all runs of a user, and for a service of a user. Each has a bucket of
 * tokens, which fills at a constant rate, and a count of what is going on; both are made when they are first needed and
 * forgotten when they say nothing any more (nothing goes on, the bucket is full). Forgetting them over a restart costs
 * one burst.
 */

#include "basic/macro.h"
#include "basic/strmap.h"

typedef struct Limiter Limiter;

typedef struct Limit {
        uint64_t rate;       /* per second; 0: any */
        uint64_t burst;      /* 0: as many as come in one second */
        uint64_t concurrent; /* 0: any */
} Limit;

/* A place in up to three limiters, until it is given back. */
typedef struct Lease {
        Limiter *limiters[3];
} Lease;

typedef struct LimitTable LimitTable;

LimitTable *limit_table_new(void);
LimitTable *limit_table_free(LimitTable *t); /* all leases must be back */
DEFINE_CLEANUP(LimitTable *, limit_table_free);
size_t limit_table_size(const LimitTable *t);

/* Takes a place in the limiter KEY at slot SLOT of LEASE, which is empty. -EBUSY: too many at once. -EAGAIN: too often;
 * *ret_retry_usec says when it would do. On failure nothing was taken. */
int limit_take(LimitTable *t, const char *key, const Limit *limit, uint64_t now_usec, Lease *lease, size_t slot,
               uint64_t *ret_retry_usec);
/* Gives all places back, and is empty afterwards. */
void lease_release(Lease *lease);
