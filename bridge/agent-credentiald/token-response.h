/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * Judges what a token endpoint answered (RFC 6749 §5). Only an access token and its life ever come out;
 * whatever else the answer holds goes nowhere, whatever its status was.
 */

#include "secret.h"

/* How asking for an access token can end. The words are stable: they reach the sandbox as "code". */
typedef enum TokenCode {
        TOKEN_OK,
        TOKEN_UNAVAILABLE, /* no answer, 5xx, 429: worth another try */
        TOKEN_REFUSED,     /* the endpoint says no: client, secret or scope are wrong */
        TOKEN_BAD_ANSWER,  /* an answer that is no answer */
        TOKEN_NOT_ALLOWED, /* the endpoint's address may not be dialled */
        TOKEN_CREDENTIAL,  /* our credential cannot be used */
        _TOKEN_CODE_MAX,
} TokenCode;

const char *token_code_to_string(TokenCode c);

/* Where an answer does not say how long the token lives; and the longest that is believed. */
#define TOKEN_LIFE_DEFAULT_SEC UINT64_C(300)
#define TOKEN_LIFE_MAX_SEC UINT64_C(86400)
#define TOKEN_SIZE_MAX ((size_t) 16 * 1024)

/*
 * TOKEN_OK with *ret (to be freed) and *ret_life_sec, or what was wrong. *ret_detail is a static sentence
 * or the endpoint's own error word if it is one of those that the RFC knows; fit for a log.
 */
TokenCode token_response_parse(unsigned status, const char *body, size_t size, Secret **ret, uint64_t *ret_life_sec,
                               const char **ret_detail);
