/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * One small request whose answer fits in memory: POST a form, get at most 64 KB. For token endpoints. The form, the
 * Authorization value and the answer are secrets: they are wiped when they are no longer needed.
 */

#include "curl/curl-glue.h"

#define HTTP_FETCH_BODY_MAX ((size_t) 64 * 1024)

typedef struct HttpFetch HttpFetch;

typedef struct HttpFetchRequest {
        const char *url;
        const char *form;          /* application/x-www-form-urlencoded text, see http_fetch_form_append() */
        const char *authorization; /* value of the Authorization header, or NULL */
        uint64_t timeout_usec;     /* for all of it; 0: 30 s */
} HttpFetchRequest;

typedef struct HttpFetchResult {
        CURLcode code;            /* CURLE_OK where there was an answer, whatever its status */
        bool refused;             /* the guard did not let us dial */
        unsigned status;
        const char *content_type; /* or NULL */
        const char *body;         /* size bytes and a NUL; wiped and freed after the callback */
        size_t size;
} HttpFetchResult;

/* Called once, from the event loop, never from within http_fetch_start(). May free the fetch. */
typedef void (*http_fetch_done_t)(const HttpFetchResult *result, void *userdata);

int http_fetch_start(CurlGlue *g, const HttpFetchRequest *request, http_fetch_done_t done, void *userdata,
                     HttpFetch **ret);
/* Cancels without a call to done where it is still running. */
HttpFetch *http_fetch_free(HttpFetch *f);
DEFINE_CLEANUP(HttpFetch *, http_fetch_free);

/* Appends "name=value" with both percent-encoded, and "&" before it where *form is not empty. The old text is wiped. */
int http_fetch_form_append(char **form, const char *name, const char *value);
