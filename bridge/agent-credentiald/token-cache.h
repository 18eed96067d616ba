/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * Access tokens, in memory only, and the one place where they are fetched. For one key (user, service, version of the
 * credential, digest of the service's auth) at most one fetch is in flight, however many ask; it goes on
 * when those who asked have gone. A token is refreshed when it is asked for after 80 % of its life, in the
 * background; shortly before its end those who ask wait. While the endpoint fails, the old token is given until its
 * real end, and the endpoint is asked again only after a growing pause. A token that an upstream did not accept is
 * replaced, once for all who say so, and not faster than every ten seconds.
 */

#include <systemd/sd-event.h>

#include "service/service.h"
#include "token-response.h"

typedef struct TokenCache TokenCache;
typedef struct TokenWaiter TokenWaiter;

/* Which token is meant. The strings live as long as the call. */
typedef struct TokenKey {
        const char *user;
        Service *service;
        uint64_t version; /* of the credential */
} TokenKey;

typedef struct TokenGrant {
        TokenCode code;        /* the rest is for TOKEN_OK */
        const Secret *token;   /* lives as long as the call */
        uint64_t remaining_usec;
        uint64_t generation;   /* which token it is; never 0 */
} TokenGrant;

typedef void (*token_ready_t)(const TokenGrant *grant, void *userdata);

/* How tokens are fetched: token-fetch.h in the daemon, a fake in tests. */
typedef void (*token_fetched_t)(unsigned status, const char *body, size_t size, TokenCode error, const char *detail,
                                void *userdata);
typedef struct TokenFetcher {
        /* Starts; calls FETCHED once, later, from the event loop: with ERROR TOKEN_OK where there was an answer,
         * else with a static DETAIL for the log. */
        int (*start)(void *context, const TokenKey *key, token_fetched_t fetched, void *userdata, void **ret);
        void (*cancel)(void *handle);
        void *context;
        uint64_t (*now)(void); /* µs, monotonic also over suspend; NULL: CLOCK_BOOTTIME */
} TokenFetcher;

int token_cache_new(const TokenFetcher *fetcher, TokenCache **ret);
/* Waiters are dropped without a call. */
TokenCache *token_cache_free(TokenCache *c);
DEFINE_CLEANUP(TokenCache *, token_cache_free);

/*
 * 1: *ret_grant is the answer, now (also where it is a failure). 0: READY will be called later, once, unless
 * token_waiter_free() is called before. Negative: too many wait (-EBUSY), out of memory.
 */
int token_cache_get(TokenCache *c, const TokenKey *key, TokenGrant *ret_grant, token_ready_t ready, void *userdata,
                    TokenWaiter **ret);
/* Not from within its own READY, and not after it. */
TokenWaiter *token_waiter_free(TokenWaiter *w);

/* The upstream did not accept this one. GENERATION 0: the one that is current. */
void token_cache_invalidate(TokenCache *c, const TokenKey *key, uint64_t generation);
/* Forgets all tokens of a credential. */
void token_cache_forget(TokenCache *c, const char *user, const char *service);
