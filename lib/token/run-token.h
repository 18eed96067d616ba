/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * The run token: an ES256 JWT that says "I am this attempt of this run". It is minted by agentd and
 * verified by the bridge and by the strong room, each on its own.
 *
 * Nothing in a token decides how it is verified: the algorithm is one constant that is compared
 * before any key is touched, key ids are looked up in a loaded set. Every claim must be there, with
 * its exact type, and nothing else may be. Verification has no side effects besides reading the key
 * directory again, so a forged token burns nothing. What is *not* decided here: whether the run is
 * still alive and whether the token came through its own run's listener (see service/live-run.h).
 */

#include "basic/macro.h"
#include "basic/name-util.h"
#include "token/key-set.h"
#include "token/signing-key.h"

#define RUN_TOKEN_ISSUER "agentd"
#define RUN_TOKEN_AUDIENCE "agent-bridge"
#define RUN_TOKEN_SCOPE "run"

#define RUN_TOKEN_SIZE_MAX 8192
#define RUN_TOKEN_GRACE_SEC 60                               /* exp = the run's deadline + this */
#define RUN_TOKEN_TTL_MAX_SEC (UINT64_C(31) * 24 * 3600 + 60) /* longest life that is believed */
#define RUN_TOKEN_LEEWAY_SEC 5                               /* for iat and nbf; exp has none */

struct RunClaims {
        char *user;    /* sub: name of the owner */
        char *agent;   /* app */
        char *session; /* session, "" where there is none */
        char run[RUN_ID_LEN + 1];
        char jti[RUN_ID_LEN + 1]; /* 32 lower-case hex digits, new for each attempt */
        uint64_t iat, nbf, exp;   /* seconds, CLOCK_REALTIME */
};

void run_claims_done(RunClaims *c);
/* For those of the heap. */
RunClaims *run_claims_free(RunClaims *c);
static inline void run_claims_donep(RunClaims *c) {
        run_claims_done(c);
}
#define _cleanup_run_claims_ _cleanup_(run_claims_donep)

/* A fresh random jti. */
int run_token_new_jti(char ret[static RUN_ID_LEN + 1]);

/* -EINVAL for claims that would not verify. session may be NULL for "". */
int run_token_mint(const SigningKey *key, const RunClaims *claims, char **ret);

/*
 * NOW in seconds of CLOCK_REALTIME. On success 0 and *ret is filled (run_claims_done() it). Errors:
 *   -EBADMSG      not a token of ours in form (any reason)
 *   -ENOKEY       key id unknown
 *   -EKEYREJECTED signature wrong
 *   -EKEYEXPIRED  expired; also not yet valid
 *   -ENOMEM …     our own fault
 * All of the first four are to be answered alike; the difference is for the log.
 */
int run_token_verify(KeySet *keys, const char *text, size_t len, uint64_t now, RunClaims *ret);
/*
 * The same where it is no error that its time is over. For a verifier who knows from elsewhere that what the token was
 * made for goes on: a session in an edit, whose token is in its programs' environments and cannot be replaced there.
 */
int run_token_verify_lasting(KeySet *keys, const char *text, size_t len, uint64_t now, RunClaims *ret);
