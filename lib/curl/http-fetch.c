/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* See http-fetch.h. */

#include "basic/string-util.h"
#include "curl/http-fetch.h"

struct HttpFetch {
        CurlTransfer *transfer;
        char *form;
        char *body; /* HTTP_FETCH_BODY_MAX and a NUL */
        size_t size;
        bool too_large;
        http_fetch_done_t done;
        void *userdata;
};

static size_t on_write(char *data, size_t size, size_t n, void *userdata) {
        HttpFetch *f = userdata;

        n *= size;
        if (n > HTTP_FETCH_BODY_MAX - f->size) {
                f->too_large = true;
                return CURL_WRITEFUNC_ERROR;
        }
        memcpy(f->body + f->size, data, n);
        f->size += n;
        return n;
}

static void on_done(CurlTransfer *t, CURLcode code, void *userdata) {
        HttpFetch *f = userdata;
        CURL *e = curl_transfer_handle(t);
        HttpFetchResult result = { .code = f->too_large ? CURLE_FILESIZE_EXCEEDED : code,
                                   .refused = curl_transfer_refused(t) };
        _cleanup_free_ char *type = NULL, *body = TAKE_PTR(f->body);
        size_t size = f->size;
        long status = 0;
        char *s = NULL;

        (void) curl_easy_getinfo(e, CURLINFO_RESPONSE_CODE, &status);
        (void) curl_easy_getinfo(e, CURLINFO_CONTENT_TYPE, &s);
        if (s)
                type = strdup(s);
        body[size] = 0;
        result.status = (unsigned) status;
        result.content_type = type;
        result.body = body;
        result.size = size;

        f->done(&result, f->userdata); /* f may be gone now */
        explicit_bzero(body, size);
}

int http_fetch_start(CurlGlue *g, const HttpFetchRequest *request, http_fetch_done_t done, void *userdata,
                     HttpFetch **ret) {
        _cleanup_(http_fetch_freep) HttpFetch *f = calloc(1, sizeof(HttpFetch));
        if (!f)
                return -ENOMEM;
        f->done = done;
        f->userdata = userdata;
        f->form = strdup(request->form);
        f->body = malloc(HTTP_FETCH_BODY_MAX + 1);
        if (!f->form || !f->body)
                return -ENOMEM;

        int r = curl_transfer_new(g, request->url, &f->transfer);
        if (r < 0)
                return r;

        CURL *e = curl_transfer_handle(f->transfer);
        if (curl_easy_setopt(e, CURLOPT_POST, 1L) != CURLE_OK ||
            curl_easy_setopt(e, CURLOPT_POSTFIELDS, f->form) != CURLE_OK ||
            curl_easy_setopt(e, CURLOPT_POSTFIELDSIZE, (long) strlen(f->form)) != CURLE_OK ||
            curl_easy_setopt(e, CURLOPT_WRITEFUNCTION, on_write) != CURLE_OK ||
            curl_easy_setopt(e, CURLOPT_WRITEDATA, f) != CURLE_OK ||
            curl_easy_setopt(e, CURLOPT_TIMEOUT_MS,
                             (long) ((request->timeout_usec ?: 30 * USEC_PER_SEC) / USEC_PER_MSEC)) != CURLE_OK)
                return -ENOMEM;

        r = curl_transfer_add_header(f->transfer, "Content-Type", "application/x-www-form-urlencoded");
        if (r < 0)
                return r;
        r = curl_transfer_add_header(f->transfer, "Accept", "application/json");
        if (r < 0)
                return r;
        if (request->authorization) {
                r = curl_transfer_add_header(f->transfer, "Authorization", request->authorization);
                if (r < 0)
                        return r;
        }

        r = curl_transfer_start(f->transfer, on_done, f);
        if (r < 0)
                return r;
        *ret = TAKE_PTR(f);
        return 0;
}

HttpFetch *http_fetch_free(HttpFetch *f) {
        if (!f)
                return NULL;

        curl_transfer_free(f->transfer);
        if (f->form)
                explicit_bzero(f->form, strlen(f->form));
        if (f->body)
                explicit_bzero(f->body, f->size);
        free(f->form);
        free(f->body);
        return mfree(f);
}

static void form_escape(char **p, const char *s) {
        static const char digits[] = "0123456789ABCDEF";

        for (; *s; s++) {
                unsigned char c = (unsigned char) *s;

                if ((c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || strchr("-._~", c))
                        *(*p)++ = (char) c;
                else {
                        *(*p)++ = '%';
                        *(*p)++ = digits[c >> 4];
                        *(*p)++ = digits[c & 15];
                }
        }
}

int http_fetch_form_append(char **form, const char *name, const char *value) {
        size_t l = *form ? strlen(*form) : 0;

        char *n = malloc(l + 3 + 3 * (strlen(name) + strlen(value)));
        if (!n)
                return -ENOMEM;

        char *p = n;
        if (l > 0) {
                memcpy(p, *form, l);
                p += l;
                *p++ = '&';
        }
        form_escape(&p, name);
        *p++ = '=';
        form_escape(&p, value);
        *p = 0;

        if (*form) {
                explicit_bzero(*form, l);
                free(*form);
        }
        *form = n;
        return 0;
}
