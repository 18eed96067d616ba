/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * The upstream half of a call, see service-call.h: builds the request from checked parts, and takes the answer apart.
 * libcurl's callbacks may not free the transfer; they note what is wrong in the call and return an error, and
 * on_transfer_done() decides.
 */

#include <strings.h>

#include "basic/log.h"
#include "basic/string-util.h"
#include "basic/text.h"
#include "forward-headers.h"
#include "http/problem.h"
#include "links.h"
#include "service-call.h"

static uint64_t call_now(ServiceCall *c) {
        uint64_t t = 0;

        (void) sd_event_now(c->bridge->event, CLOCK_MONOTONIC, &t);
        return t;
}

void call_upstream_drop(ServiceCall *c) {
        c->transfer = curl_transfer_free(c->transfer);
        call_clock_remove(c->bridge->clock, c);
        http_field_list_done(&c->fields);
        c->hop_by_hop = mfree(c->hop_by_hop);
        c->head_size = 0;
        c->status = 0;
        c->length = 0;
        c->length_known = c->head_complete = c->head_bad = false;
        c->upload_paused = c->download_paused = false;
        c->body_sent = 0;
}

/* ---- the request's body ---- */

static size_t on_read(char *buf, size_t size, size_t n, void *userdata) {
        ServiceCall *c = userdata;

        n *= size;
        if (c->keep_body) {
                n = MIN(n, c->body.size - c->body_sent);
                memcpy(buf, http_buffer_data(&c->body) + c->body_sent, n);
                c->body_sent += n;
                c->request_bytes = MAX(c->request_bytes, c->body_sent);
                c->progress_usec = call_now(c);
                return n;
        }

        ssize_t k = http_request_read(c->http, buf, n);
        if (k == -EAGAIN) {
                c->upload_paused = true;
                return CURL_READFUNC_PAUSE;
        }
        if (k < 0) {
                c->body_too_large = k == -EFBIG;
                return CURL_READFUNC_ABORT;
        }
        c->request_bytes += (uint64_t) k;
        c->progress_usec = call_now(c);
        return (size_t) k;
}

/* libcurl sends again from the start where a kept connection turns out to be dead before any byte of an answer. */
static int on_seek(void *userdata, curl_off_t offset, int origin) {
        ServiceCall *c = userdata;

        if (origin != SEEK_SET || offset != 0 || c->head_complete)
                return CURL_SEEKFUNC_FAIL;
        if (c->keep_body && c->body_sent > 0 && (streq(c->method, "POST") || streq(c->method, "PATCH")))
                return CURL_SEEKFUNC_FAIL; /* it may have been heard: twice is worse than not at all */
        if (c->keep_body)
                c->body_sent = 0;
        else if (c->request_bytes > 0)
                return CURL_SEEKFUNC_FAIL;
        return CURL_SEEKFUNC_OK;
}

/* ---- the answer ---- */

static bool parse_length(const char *s, uint64_t *ret) {
        return parse_uint64(s, ret) >= 0 && *ret <= INT64_MAX;
}

/* Location, Content-Location, Link and Set-Cookie as they are to be read at the bridge. 0: to be dropped. */
static int answer_link(ServiceCall *c, HttpField *f) {
        bool location = strcasecmp(f->name, "location") == 0 || strcasecmp(f->name, "content-location") == 0,
             cookie = strcasecmp(f->name, "set-cookie") == 0;
        char *rewritten = NULL;

        if (!location && !cookie && strcasecmp(f->name, "link") != 0)
                return 1;

        LinkBase base = {
                .service = c->service,
                .path = c->path,
                .authority = http_head_get(http_request_head(c->http), "host"),
                .port = http_listener_port(http_request_listener(c->http)),
        };
        int r = location ? rewrite_location(&base, f->value, &rewritten) :
                cookie   ? rewrite_cookie(&base, f->value, &rewritten) :
                           rewrite_link(&base, f->value, &rewritten);
        if (r < 0)
                return r == -EPERM ? 0 : r;
        if (rewritten) {
                free((char *) f->value);
                f->value = rewritten;
        }
        return 1;
}

/* The answer may be a stream of hours, one of thousands: what only led to it goes. Now nothing is sent again. */
static void answer_forget(ServiceCall *c) {
        http_field_list_done(&c->fields);
        c->hop_by_hop = mfree(c->hop_by_hop);
        material_done(&c->material);
        if (c->keep_body && c->body_sent == c->body.size) {
                http_buffer_done(&c->body);
                c->body_sent = 0;
        }
}

/* The head is complete: tell the client. False: give the transfer up. */
static bool answer_begin(ServiceCall *c) {
        HttpField fields[CALL_FIELDS_MAX];
        size_t n = 0;

        if (c->status == 401 && c->service->auth.kind == SERVICE_AUTH_OAUTH2_CLIENT_CREDENTIALS && !c->retried &&
            c->body_kept) {
                c->retry = true;
                return false;
        }

        for (size_t i = 0; i < c->fields.n; i++) {
                HttpField *f = c->fields.fields + i;

                int r = c->mode == CALL_BY_NAME ? answer_link(c, f) : 1;
                if (r < 0)
                        return false;
                if (r == 0 || (c->hop_by_hop && http_value_has_token(c->hop_by_hop, f->name)))
                        continue;
                if (c->redactor)
                        redactor_apply(c->redactor, (char *) f->value, strlen(f->value));
                fields[n++] = *f;
        }

        int r = http_response_start(c->http, c->status, fields, n, c->length_known ? c->length : HTTP_LENGTH_UNKNOWN);
        if (r < 0) {
                c->head_bad = r == -EINVAL;
                return false;
        }
        c->reported_status = c->status;
        answer_forget(c);
        return call_clock_add(c->bridge->clock, c) >= 0;
}

/* One line of the head, without its end. */
static bool answer_line(ServiceCall *c, char *line) {
        char *colon, *value;
        unsigned status;

        if (startswith(line, "HTTP/")) {
                http_field_list_done(&c->fields);
                c->hop_by_hop = mfree(c->hop_by_hop);
                c->length_known = false;
                c->status = sscanf(line, "HTTP/%*[0-9.] %3u", &status) == 1 ? status : 0;
                return c->status >= 100 && !strchr(line, '\r');
        }
        if (*line == 0) {
                if (c->status < 200)
                        /* interim answers are ours to give; nobody asked to switch protocols */
                        return c->status != 101;
                c->head_complete = true;
                return answer_begin(c);
        }

        colon = strchr(line, ':');
        if (!colon)
                return false;
        *colon = 0;
        value = colon + 1 + strspn(colon + 1, " \t");
        for (size_t l = strlen(value); l > 0 && (value[l - 1] == ' ' || value[l - 1] == '\t'); l--)
                value[l - 1] = 0;
        if (!http_field_name_is_valid(line) || !http_field_value_is_valid(value))
                return false;

        if (strcasecmp(line, "content-length") == 0) {
                if (c->length_known || !parse_length(value, &c->length))
                        return false;
                c->length_known = true;
                return true;
        }
        if (strcasecmp(line, "connection") == 0) {
                char *all = strprintf("%s,%s", strempty(c->hop_by_hop), value);

                free(c->hop_by_hop);
                return (c->hop_by_hop = all);
        }
        if (!(c->mode == CALL_PROXY ? proxy_header(line, NULL) :
                                      forward_response_header(line) ||
                                              (c->service->cookies && strcasecmp(line, "set-cookie") == 0)) ||
            strcasecmp(line, HTTP_REQUEST_ID_HEADER) == 0)
                return true;
        return c->fields.n < CALL_FIELDS_MAX && http_field_list_add(&c->fields, line, value) >= 0;
}

static size_t on_header(char *data, size_t size, size_t n, void *userdata) {
        ServiceCall *c = userdata;

        n *= size;
        if (c->head_complete)
                return n; /* trailers end here */

        c->progress_usec = call_now(c);
        c->head_size += n;
        if (c->head_size > CALL_HEAD_MAX || memchr(data, 0, n)) {
                c->head_bad = true;
                return 0;
        }

        size_t l = n;
        while (l > 0 && (data[l - 1] == '\n' || data[l - 1] == '\r'))
                l--;
        _cleanup_free_ char *line = strndup(data, l);
        if (!line)
                return 0;
        if (!answer_line(c, line)) {
                if (!c->head_complete)
                        c->head_bad = true;
                return 0;
        }
        return n;
}

static bool answer_write(ServiceCall *c, const char *data, size_t size, bool last) {
        HttpBuffer out = {};
        int r = 0;

        if (c->redactor) {
                if (size > 0)
                        r = redactor_feed(c->redactor, data, size, &out);
                if (r >= 0 && last)
                        r = redactor_flush(c->redactor, &out);
                if (r >= 0 && out.size > 0)
                        r = http_response_write(c->http, http_buffer_data(&out), out.size);
                http_buffer_done(&out);
        } else if (size > 0)
                r = http_response_write(c->http, data, size);
        return r >= 0;
}

static size_t on_write(char *data, size_t size, size_t n, void *userdata) {
        ServiceCall *c = userdata;

        n *= size;
        if (!c->head_complete)
                return CURL_WRITEFUNC_ERROR;
        if (!http_response_writable(c->http)) {
                c->download_paused = true;
                return CURL_WRITEFUNC_PAUSE;
        }
        c->progress_usec = call_now(c);
        c->response_bytes += n;
        return answer_write(c, data, n, false) ? n : CURL_WRITEFUNC_ERROR;
}

/* ---- the end ---- */

static void fail_with_code(ServiceCall *c, CURLcode code) {
        if (c->body_too_large)
                call_fail(c, 413, "body-too-large", "The request's body is larger than the service allows.", "denied");
        else if (c->head_bad)
                call_fail(c, 502, "bad-upstream-answer", "The service's answer has a head that is malformed or too "
                                                         "large.", "upstream_error");
        else if (curl_transfer_refused(c->transfer)) {
                log_warning_limited("Run %s: service %s leads to an address that must not be dialled (see "
                                    "AllowAddresses= in bridge.conf).", c->live->run, c->service->name);
                call_fail(c, 502, "upstream-address-refused", "The service's name leads to an address that the "
                                                              "bridge does not dial.",
                          "upstream_error");
        } else if (code == CURLE_OPERATION_TIMEDOUT)
                call_fail(c, 504, "upstream-timeout", "The service could not be reached in time.", "upstream_error");
        else if (code == CURLE_PEER_FAILED_VERIFICATION || code == CURLE_SSL_CACERT_BADFILE ||
                 code == CURLE_SSL_CONNECT_ERROR) {
                log_warning_limited("Run %s: TLS with service %s failed: %s.", c->live->run, c->service->name,
                                    curl_easy_strerror(code));
                call_fail(c, 502, "upstream-tls-failed", "No trusted TLS connection to the service could be made.",
                          "upstream_error");
        } else if (code == CURLE_COULDNT_RESOLVE_HOST)
                call_fail(c, 502, "upstream-name-unknown", "The service's host name could not be resolved.",
                          "upstream_error");
        else if (code == CURLE_COULDNT_CONNECT)
                call_fail(c, 502, "upstream-unreachable", "The service does not accept connections.", "upstream_error");
        else
                call_fail(c, 502, "upstream-failed", "The connection to the service broke before its answer was "
                                                     "complete.", "upstream_error");
}

static void on_transfer_done(CurlTransfer *t, CURLcode code, void *userdata) {
        ServiceCall *c = userdata;

        if (c->retry) {
                call_retry(c);
                return;
        }

        /* An upstream that refuses an upload early may break off the rest of it; its answer is whole nevertheless. */
        bool whole = c->head_complete && http_response_started(c->http) &&
                     (code == CURLE_OK || (c->length_known && c->response_bytes == c->length &&
                                           code != CURLE_WRITE_ERROR));
        if (!whole) {
                fail_with_code(c, code);
                return;
        }
        if (!answer_write(c, NULL, 0, true)) {
                call_fail(c, 502, "upstream-failed", NULL, NULL); /* cuts the connection */
                return;
        }
        call_upstream_drop(c);
        http_response_end(c->http);
}

/* ---- the request ---- */

static char *call_url(const ServiceCall *c) {
        const ServiceUrl *u = &c->service->base_url;
        const HttpHead *head = http_request_head(c->http);
        bool ipv6 = strchr(u->host, ':');
        size_t size = strlen(u->host) + strlen(u->path) + strlen(c->path) + strlen(strempty(head->query)) + 32;
        char *url = malloc(size);
        if (!url)
                return NULL;

        Text t = text_in(url, size);
        text_add(&t, u->tls ? "https://" : "http://");
        text_add(&t, ipv6 ? "[" : "");
        text_add(&t, u->host);
        text_add(&t, ipv6 ? "]" : "");
        if (u->port != (u->tls ? 443 : 80)) {
                text_add(&t, ":");
                text_add_u64(&t, u->port);
        }
        text_add(&t, u->path);
        text_add(&t, *u->path || *c->path ? c->path : "/");
        text_add(&t, head->query ? "?" : "");
        text_add(&t, strempty(head->query));
        return text_end(&t);
}

static bool is_material_header(const ServiceCall *c, const char *name) {
        for (size_t i = 0; i < c->material.headers.n; i++)
                if (http_field_name_folds_to(name, c->material.headers.fields[i].name))
                        return true;
        return false;
}

static bool call_forwards(const ServiceCall *c, const char *name, const char *connection) {
        if (c->mode == CALL_PROXY)
                return proxy_header(name, connection);
        if (c->service->cookies && strcasecmp(name, "cookie") == 0)
                return !connection || !http_value_has_token(connection, name);
        return forward_request_header(name, connection);
}

static int add_headers(ServiceCall *c) {
        const HttpHead *head = http_request_head(c->http);
        bool scan = c->redactor && c->material.redact;
        int r;

        for (size_t i = 0; i < head->n_fields; i++) {
                const HttpField *f = head->fields + i;
                bool pass = !is_material_header(c, f->name) && !strstr(f->value, c->token);

                if (!call_forwards(c, f->name, NULL) || (scan && strcasecmp(f->name, "accept-encoding") == 0))
                        continue;
                for (size_t k = 0; pass && k < head->n_fields; k++)
                        if (strcasecmp(head->fields[k].name, "connection") == 0)
                                pass = call_forwards(c, f->name, head->fields[k].value);
                if (!pass)
                        continue;
                r = curl_transfer_add_header(c->transfer, f->name, f->value);
                if (r < 0)
                        return r;
        }

        for (size_t i = 0; i < c->material.headers.n; i++) {
                r = curl_transfer_add_header(c->transfer, c->material.headers.fields[i].name,
                                             c->material.headers.fields[i].value);
                if (r < 0)
                        return r;
        }

        /* What is compressed cannot be searched for an echo of the credential. */
        if (scan) {
                r = curl_transfer_add_header(c->transfer, "Accept-Encoding", "identity");
                if (r < 0)
                        return r;
        }
        return http_head_get(head, "accept") ? 0 : curl_transfer_suppress_header(c->transfer, "Accept");
}

static bool set_options(ServiceCall *c) {
        CURL *e = curl_transfer_handle(c->transfer);
        const HttpHead *head = http_request_head(c->http);
        bool upload = head->length != 0 || streq(c->method, "POST") || streq(c->method, "PUT") ||
                      streq(c->method, "PATCH");
        curl_off_t size = head->length == HTTP_LENGTH_UNKNOWN ? -1 : (curl_off_t) head->length;
        bool ok = true;

#define SET(option, value) ok = ok && curl_easy_setopt(e, option, value) == CURLE_OK
        if (streq(c->method, "HEAD"))
                SET(CURLOPT_NOBODY, 1L);
        else if (upload) {
                SET(CURLOPT_UPLOAD, 1L);
                SET(CURLOPT_INFILESIZE_LARGE, size);
                SET(CURLOPT_READFUNCTION, on_read);
                SET(CURLOPT_READDATA, c);
                SET(CURLOPT_SEEKFUNCTION, on_seek);
                SET(CURLOPT_SEEKDATA, c);
                /* Where a body is not expected, or has no length that servers of old know, some do not read it, and
                 * take it for the next request: there must be none. */
                if (size < 0 || (size > 0 && !streq(c->method, "POST") && !streq(c->method, "PUT") &&
                                 !streq(c->method, "PATCH")))
                        SET(CURLOPT_FORBID_REUSE, 1L);
                /* A body that cannot be sent twice goes through a connection that is surely alive. */
                if (!c->keep_body)
                        SET(CURLOPT_FRESH_CONNECT, 1L);
        }
        SET(CURLOPT_CUSTOMREQUEST, c->method);
        SET(CURLOPT_HEADERFUNCTION, on_header);
        SET(CURLOPT_HEADERDATA, c);
        SET(CURLOPT_WRITEFUNCTION, on_write);
        SET(CURLOPT_WRITEDATA, c);
        SET(CURLOPT_CONNECTTIMEOUT_MS, (long) MAX(c->service->connect_usec / USEC_PER_MSEC, UINT64_C(1)));
#undef SET
        return ok;
}

int call_upstream_prepare(ServiceCall *c) {
        _cleanup_free_ char *url = NULL;
        CurlGlue *glue;

        if (c->transfer)
                return 0;
        url = call_url(c);
        int r = url ? upstream_pool_get(c->bridge->upstreams, c->live->user, c->service->name, &glue) : -ENOMEM;
        if (r >= 0)
                r = curl_transfer_new(glue, url, &c->transfer);
        if (r >= 0 && c->mode == CALL_PROXY)
                r = curl_transfer_allow_http(c->transfer);
        if (r >= 0)
                r = set_options(c) ? 0 : -ENOMEM;
        if (r < 0)
                c->transfer = curl_transfer_free(c->transfer);
        return r;
}

void call_upstream_start(ServiceCall *c) {
        int r = call_upstream_prepare(c);
        if (r >= 0)
                r = call_note(c);
        if (r >= 0)
                r = add_headers(c);
        c->progress_usec = call_now(c);
        if (r >= 0)
                r = call_clock_add(c->bridge->clock, c);
        if (r >= 0)
                r = curl_transfer_start(c->transfer, on_transfer_done, c);
        if (r < 0) {
                log_warning_limited_errno(r, "Run %s: failed to begin a call of %s: %m", c->live->run,
                                          c->service->name);
                call_fail(c, r == -EINVAL ? 502 : 503, "call-not-possible", "The request could not be built.",
                          "upstream_error");
        }
}
