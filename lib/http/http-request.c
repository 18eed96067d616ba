/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* See http-request.h. These functions only change the request and its connection's queues; what follows from that is
 * done by connection_advance(). All header lines that we send are built in http_response_start(). */

#include <strings.h>
#include <systemd/sd-id128.h>

#include "basic/string-util.h"
#include "basic/text.h"
#include "http/http-internal.h"
#include "http/http-status.h"
#include "http/problem.h"

int request_id_new(char ret[static 33]) {
        sd_id128_t id;

        int r = sd_id128_randomize(&id);
        if (r >= 0)
                sd_id128_to_string(id, ret);
        return r;
}

int request_new(HttpConnection *c, HttpRequest **ret) {
        HttpRequest *req = calloc(1, sizeof(HttpRequest));
        if (!req)
                return -ENOMEM;

        int r = request_id_new(req->id);
        if (r < 0) {
                free(req);
                return r;
        }

        req->connection = c;
        req->length = HTTP_LENGTH_UNKNOWN;
        (void) sd_event_now(c->listener->server->event, CLOCK_MONOTONIC, &req->started_usec);
        *ret = req;
        return 0;
}

void request_free(HttpRequest *req) {
        http_buffer_done(&req->collected);
        free(req);
}

const HttpHead *http_request_head(const HttpRequest *req) {
        return http_parser_head(req->connection->parser);
}

const char *http_request_id(const HttpRequest *req) {
        return req->id;
}

void http_request_set_context(HttpRequest *req, void *context) {
        req->context = context;
}

void *http_request_context(const HttpRequest *req) {
        return req->context;
}

HttpListener *http_request_listener(const HttpRequest *req) {
        return req->connection->listener;
}

void http_request_set_ops(HttpRequest *req, const HttpRequestOps *ops, void *userdata) {
        req->ops = ops;
        req->userdata = userdata;
}

void http_request_accept_body(HttpRequest *req, uint64_t max) {
        HttpConnection *c = req->connection;

        req->body_max = max;
        if (req->accepted || c->failed)
                return;
        req->accepted = true;
        req->readable_pending = true;
        connection_touch(c);

        if (http_request_head(req)->expect_continue && !req->started && c->in.size == 0) {
                static const char text[] = "HTTP/1.1 100 Continue\r\n\r\n";

                if (http_buffer_append(&c->out, text, strlen(text)) < 0)
                        connection_fail(c, HTTP_OUTCOME_ABORTED, true);
        }
        connection_kick(c);
}

ssize_t http_request_read(HttpRequest *req, void *buf, size_t size) {
        HttpConnection *c = req->connection;

        if (c->failed)
                return -ECONNRESET;
        if (!req->accepted)
                return -EAGAIN;
        if (req->body_over || req->body_received > req->body_max) {
                req->body_over = true;
                return -EFBIG;
        }
        if (c->body.size == 0)
                return http_parser_complete(c->parser) ? 0 : -EAGAIN;

        size_t n = MIN(size, c->body.size);
        memcpy(buf, http_buffer_data(&c->body), n);
        http_buffer_consume(&c->body, n);
        connection_touch(c);
        connection_kick(c); /* there is room again */
        return (ssize_t) n;
}

void http_request_call_again(HttpRequest *req) {
        req->again = true;
}

static void refuse_held(HttpRequest *req) {
        http_problem(req, 503, "too-much-at-once",
                     "Too many large requests and answers are under way; try again later.",
                     &(HttpField){ "Retry-After", "1" }, 1);
}

static void collect_readable(HttpRequest *req, void *userdata) {
        for (;;) {
                char buf[HTTP_READ_SIZE];
                ssize_t n = http_request_read(req, buf, sizeof(buf));

                if (n == -EAGAIN)
                        return;
                if (n > 0 && (size_t) n <= req->collect_max - req->collected.size) {
                        bool room = req->collected.size + (size_t) n <= HTTP_BODY_WINDOW ||
                                    listener_has_room(req->connection->listener, (size_t) n);
                        int r = room ? http_buffer_append(&req->collected, buf, (size_t) n) : -ENOBUFS;
                        if (r >= 0)
                                continue;
                        n = r;
                } else if (n > 0)
                        n = -EFBIG;

                req->ops = NULL;
                http_collect_done_t done = TAKE_PTR(req->collect_done);
                if (n == 0)
                        done(req, http_buffer_data(&req->collected), req->collected.size, req->collect_userdata);
                else {
                        if (n == -EFBIG)
                                http_problem(req, 413, "body-too-large", "The request's body is larger than allowed.",
                                             NULL, 0);
                        else if (n == -ENOBUFS) {
                                http_buffer_done(&req->collected);
                                refuse_held(req);
                        } else
                                http_request_abort(req);
                        done(req, NULL, 0, req->collect_userdata);
                }
                return;
        }
}

static void collect_ended(HttpRequest *req, HttpOutcome outcome, void *userdata) {
        http_collect_done_t done = TAKE_PTR(req->collect_done);

        if (done)
                done(req, NULL, 0, req->collect_userdata);
}

int http_request_collect(HttpRequest *req, size_t max, http_collect_done_t done, void *userdata) {
        static const HttpRequestOps ops = { .readable = collect_readable, .done = collect_ended };
        uint64_t length = http_request_head(req)->length;

        if (length != HTTP_LENGTH_UNKNOWN && length > max) {
                http_problem(req, 413, "body-too-large", "The request's body is larger than allowed.", NULL, 0);
                return -EFBIG;
        }

        req->collect_max = max;
        req->collect_done = done;
        req->collect_userdata = userdata;
        http_request_set_ops(req, &ops, NULL);
        http_request_accept_body(req, max);
        return 0;
}

static bool field_is_ours(const char *name) {
        static const char *const ours[] = { "connection", "content-length", "transfer-encoding", "keep-alive",
                                            "trailer", "te",
                                            "proxy-connection", "agent-request-id" };

        for (size_t i = 0; i < ELEMENTSOF(ours); i++)
                if (http_field_name_folds_to(name, ours[i]))
                        return true;
        return false;
}

int http_response_start(HttpRequest *req, unsigned status, const HttpField *fields, size_t n_fields, uint64_t length) {
        HttpConnection *c = req->connection;
        const HttpHead *h = http_request_head(req);

        if (c->failed)
                return -ECONNRESET;
        if (req->started)
                return -EALREADY;
        if (status < 200 || status > 999)
                return -EINVAL;
        size_t size = 256; /* of all lines but the fields' */
        for (size_t i = 0; i < n_fields; i++) {
                if (!http_field_name_is_valid(fields[i].name) || !http_field_value_is_valid(fields[i].value) ||
                    field_is_ours(fields[i].name))
                        return -EINVAL;
                size += strlen(fields[i].name) + strlen(fields[i].value) + strlen(": \r\n");
        }

        bool no_body = status == 204 || status == 304;
        bool close_after = req->close_after || !h->keep_alive || c->listener->server->draining;
        bool chunked = length == HTTP_LENGTH_UNKNOWN && h->minor == 1 && !no_body;
        if (length == HTTP_LENGTH_UNKNOWN && h->minor == 0)
                close_after = true;
        /* What is left of the body would be read as the next request. */
        if (!http_parser_complete(c->parser) && !req->accepted)
                close_after = true;

        if (c->out.size == 0)
                connection_touch(c);
        char *p;
        int r = http_buffer_reserve(&c->out, size, &p);
        if (r < 0)
                return r;

        Text t = text_in(p, size);
        text_add(&t, "HTTP/1.1 ");
        text_add_u64(&t, status);
        text_add(&t, " ");
        text_add(&t, http_status_reason(status));
        text_add(&t, "\r\n" HTTP_REQUEST_ID_HEADER ": ");
        text_add(&t, req->id);
        text_add(&t, "\r\n");
        for (size_t i = 0; i < n_fields; i++) {
                text_add(&t, fields[i].name);
                text_add(&t, ": ");
                text_add(&t, fields[i].value);
                text_add(&t, "\r\n");
        }
        if (length != HTTP_LENGTH_UNKNOWN && status != 204) {
                text_add(&t, "Content-Length: ");
                text_add_u64(&t, length);
                text_add(&t, "\r\n");
        } else if (chunked)
                text_add(&t, "Transfer-Encoding: chunked\r\n");
        text_add(&t, close_after ? "Connection: close\r\n\r\n" : "\r\n");
        assert(!t.cut);
        http_buffer_add(&c->out, text_size(&t));

        req->started = true;
        req->status = status;
        req->without_body = no_body || streq(h->method, "HEAD");
        req->chunked = chunked && !req->without_body;
        req->length = length;
        req->close_after = close_after;
        connection_kick(c);
        return 0;
}

int http_response_start_tunnel(HttpRequest *req) {
        static const char text[] = "HTTP/1.1 200 Connection Established\r\n\r\n";
        HttpConnection *c = req->connection;

        if (c->failed)
                return -ECONNRESET;
        if (req->started)
                return -EALREADY;
        assert(http_request_head(req)->tunnel);

        int r = http_buffer_append(&c->out, text, strlen(text));
        if (r < 0)
                return r;
        req->started = req->close_after = req->tunnel = true;
        req->status = 200;
        http_request_accept_body(req, UINT64_MAX);
        connection_kick(c);
        return 0;
}

int http_response_write(HttpRequest *req, const void *data, size_t size) {
        HttpConnection *c = req->connection;

        if (c->failed)
                return -ECONNRESET;
        assert(req->started);
        assert(!req->ended);
        if (size == 0 || req->without_body)
                return 0;
        if (c->out.size + size > HTTP_OUTPUT_MAX)
                return -ENOBUFS;
        if (req->length != HTTP_LENGTH_UNKNOWN && size > req->length - req->written)
                return -EMSGSIZE;

        /* At once: an event must not wait for the next one. Errors are seen by the loop. */
        char head[32] = "";
        struct iovec pieces[] = { { .iov_base = head }, { .iov_base = (void *) data, .iov_len = size },
                                  { .iov_base = (char *) "\r\n" } };
        if (req->chunked) {
                pieces[0].iov_len = (size_t) snprintf(head, sizeof(head), "%zx\r\n", size);
                pieces[2].iov_len = 2;
        }
        int r = connection_write(c, pieces, ELEMENTSOF(pieces));
        if (r == -ENOMEM) {
                connection_fail(c, HTTP_OUTCOME_ABORTED, true);
                return r;
        }
        req->written += size;
        if (r < 0)
                connection_fail(c, HTTP_OUTCOME_CLIENT_CLOSED, false);
        else
                connection_kick(c);
        return 0;
}

bool http_response_writable(HttpRequest *req) {
        HttpConnection *c = req->connection;

        if (c->failed)
                return true; /* a write will say so */
        if (c->out.size < HTTP_OUTPUT_HIGH)
                return true;
        req->want_writable = true;
        return false;
}

void http_response_end(HttpRequest *req) {
        HttpConnection *c = req->connection;

        if (c->failed || req->ended)
                return;
        assert(req->started);

        if (!req->without_body && req->length != HTTP_LENGTH_UNKNOWN && req->written != req->length) {
                http_request_abort(req);
                return;
        }
        if (req->chunked && http_buffer_append(&c->out, "0\r\n\r\n", 5) < 0) {
                http_request_abort(req);
                return;
        }
        req->ended = true;
        connection_kick(c);
}

int http_response_send(HttpRequest *req, unsigned status, const HttpField *fields, size_t n_fields, const void *data,
                       size_t size) {
        if (size > HTTP_OUTPUT_MAX && !listener_has_room(req->connection->listener, size)) {
                refuse_held(req); /* is an answer, too */
                return 0;
        }

        int r = http_response_start(req, status, fields, n_fields, size);
        if (r < 0)
                return r;

        for (size_t done = 0; done < size;) {
                size_t n = MIN(size - done, HTTP_OUTPUT_MAX / 2);

                /* A document larger than the output's bound is still one that we hold in memory anyway. */
                HttpConnection *c = req->connection;
                if (!req->without_body && http_buffer_append(&c->out, (const char *) data + done, n) < 0) {
                        http_request_abort(req);
                        return -ENOMEM;
                }
                req->written += n;
                done += n;
        }
        http_response_end(req);
        return 0;
}

bool http_response_started(const HttpRequest *req) {
        return req->started;
}

void http_request_abort(HttpRequest *req) {
        connection_fail(req->connection, HTTP_OUTCOME_ABORTED, true);
}
