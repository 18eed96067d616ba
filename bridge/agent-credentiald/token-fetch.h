/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * Fetches access tokens over HTTPS: opens the credential, builds the form of the grant, sends it to the
 * service's token_url, and wipes what it built. Nothing of the answer but status and body leaves it.
 */

#include "credential-store.h"
#include "curl/http-fetch.h"
#include "token-cache.h"

typedef struct TokenFetchContext {
        CredentialStore *store;
        CurlGlue *curl;
} TokenFetchContext;

/* The context must outlive the fetcher. */
TokenFetcher token_fetch_fetcher(TokenFetchContext *context);

/* Exposed for tests: form and, for client_secret_basic, the value of the Authorization header. To be freed by
 * secret_string_free(). -EINVAL where the credential does not have the shape that is needed. */
int token_fetch_build(const ServiceAuth *a, SealForm form, const Secret *credential, char **ret_form,
                      char **ret_authorization);
