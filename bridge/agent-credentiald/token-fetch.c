/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include "basic/string-util.h"
#include "material.h"
#include "token-fetch.h"

#define FETCH_TIMEOUT_USEC (20 * USEC_PER_SEC)

typedef struct TokenFetch {
        HttpFetch *http;
        token_fetched_t fetched;
        void *userdata;
} TokenFetch;

/* RFC 6749 §2.3.1: both halves are form-encoded first, so that a colon in them is no separator. */
static int basic_value(const char *id, const char *secret, char **ret) {
        _cleanup_(secret_string_freep) char *pair = NULL, *encoded = NULL;
        const char *eq;
        int r;

        r = http_fetch_form_append(&pair, id, secret); /* "id=secret", encoded; neither half holds a bare '=' */
        if (r < 0)
                return r;
        eq = strchr(pair, '=');
        assert(eq);
        pair[eq - pair] = ':';

        encoded = base64_encode(pair, strlen(pair));
        if (!encoded)
                return -ENOMEM;
        *ret = strprintf("Basic %s", encoded);
        return *ret ? 0 : -ENOMEM;
}

int token_fetch_build(const ServiceAuth *a, SealForm form, const Secret *credential, char **ret_form,
                      char **ret_authorization) {
        _cleanup_(secret_string_freep) char *text = NULL, *authorization = NULL;
        _cleanup_(secret_freep) Secret *client_secret = NULL;
        int r;

        r = credential_member(form, credential, "client_secret", true, &client_secret);
        if (r < 0)
                return r;

        r = http_fetch_form_append(&text, "grant_type", "client_credentials");
        if (r >= 0 && a->scope)
                r = http_fetch_form_append(&text, "scope", a->scope);
        if (r >= 0 && a->audience)
                r = http_fetch_form_append(&text, "audience", a->audience);
        if (r >= 0) {
                if (a->client_auth_post) {
                        r = http_fetch_form_append(&text, "client_id", a->client_id);
                        if (r >= 0)
                                r = http_fetch_form_append(&text, "client_secret", secret_data(client_secret));
                } else
                        r = basic_value(a->client_id, secret_data(client_secret), &authorization);
        }
        if (r < 0)
                return r;

        *ret_form = TAKE_PTR(text);
        *ret_authorization = TAKE_PTR(authorization);
        return 0;
}

static void on_done(const HttpFetchResult *result, void *userdata) {
        TokenFetch *f = userdata;
        token_fetched_t fetched = f->fetched;
        void *u = f->userdata;
        TokenCode error = TOKEN_OK;
        const char *detail = NULL;

        if (result->code != CURLE_OK) {
                /* One of several addresses may have been refused and another one have been dialled. */
                if (result->refused && result->code == CURLE_COULDNT_CONNECT)
                        error = TOKEN_NOT_ALLOWED;
                else if (result->code == CURLE_FILESIZE_EXCEEDED)
                        error = TOKEN_BAD_ANSWER;
                else
                        error = TOKEN_UNAVAILABLE;
                detail = curl_easy_strerror(result->code);
        }

        fetched(result->status, result->body, result->size, error, detail, u);

        http_fetch_free(f->http);
        free(f);
}

static int fetch_start(void *context, const TokenKey *key, token_fetched_t fetched, void *userdata, void **ret) {
        TokenFetchContext *c = context;
        _cleanup_(secret_string_freep) char *form = NULL, *authorization = NULL;
        _cleanup_(secret_freep) Secret *credential = NULL;
        TokenFetch *f;
        SealInfo info;
        int r;

        r = credential_store_load(c->store, key->user, key->service->name, &info, &credential);
        if (r < 0)
                return r;
        if (info.version != key->version) /* replaced since: the next request asks with the new one */
                return -EAGAIN;

        r = token_fetch_build(&key->service->auth, info.form, credential, &form, &authorization);
        if (r < 0)
                return r;

        f = calloc(1, sizeof(*f));
        if (!f)
                return -ENOMEM;
        f->fetched = fetched;
        f->userdata = userdata;

        r = http_fetch_start(c->curl,
                             &(HttpFetchRequest) {
                                     .url = key->service->auth.token_url.text,
                                     .form = form,
                                     .authorization = authorization,
                                     .timeout_usec = FETCH_TIMEOUT_USEC,
                             },
                             on_done, f, &f->http);
        if (r < 0) {
                free(f);
                return r;
        }

        *ret = f;
        return 0;
}

static void fetch_cancel(void *handle) {
        TokenFetch *f = handle;

        http_fetch_free(f->http);
        free(f);
}

TokenFetcher token_fetch_fetcher(TokenFetchContext *context) {
        return (TokenFetcher) {
                .start = fetch_start,
                .cancel = fetch_cancel,
                .context = context,
        };
}
