/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * One accepted connection. Event handlers read, write and note what happened; connection_advance() then goes through
 * the states until nothing more can be done without waiting, and sets what to wait for. Bytes of a second request
 * stay unread, in the kernel or in "in", until the first is answered.
 */

#include <sys/epoll.h>
#include <sys/socket.h>

#include "basic/string-util.h"
#include "http/http-internal.h"
#include "http/http-status.h"
#include "http/problem.h"

static void connection_advance(HttpConnection *c);

static uint64_t connection_now(HttpConnection *c) {
        uint64_t t = 0;

        (void) sd_event_now(c->listener->server->event, CLOCK_MONOTONIC, &t);
        return t;
}

void connection_touch(HttpConnection *c) {
        c->progress_usec = connection_now(c);
}

void connection_kick(HttpConnection *c) {
        if (!c->busy)
                hub_task_queue(c->listener->server->hub, &c->kick);
}

void connection_fail(HttpConnection *c, HttpOutcome outcome, bool reset) {
        if (!c->failed) {
                c->failed = true;
                c->outcome = outcome;
                c->reset = reset;
        }
        connection_kick(c);
}

bool connection_is_idle(const HttpConnection *c) {
        return c->state == CONNECTION_HEAD && !http_parser_in_head(c->parser) && c->in.size == 0;
}

/* Sooner or later. */
static bool wants_rest_of_body(const HttpConnection *c) {
        return c->state == CONNECTION_EXCHANGE && c->request->accepted && !c->request->ended &&
               !http_parser_complete(c->parser);
}

static bool wants_body(const HttpConnection *c) {
        return wants_rest_of_body(c) && c->body.size < HTTP_BODY_WINDOW;
}

static bool is_tunnel(const HttpConnection *c) {
        return c->state == CONNECTION_EXCHANGE && c->request->tunnel;
}

static bool wants_input(const HttpConnection *c) {
        if (c->in.size >= HTTP_READ_SIZE || c->peer_eof)
                return false;
        return c->state == CONNECTION_HEAD || c->state == CONNECTION_LINGER || wants_body(c);
}

/* USEC_INFINITY where only our own side can be waited for. */
static uint64_t connection_deadline(const HttpConnection *c) {
        const HttpServerOptions *o = &c->listener->server->options;

        switch (c->state) {
        case CONNECTION_HEAD:
                if (!c->served || http_parser_in_head(c->parser))
                        return c->progress_usec + o->head_usec;
                return c->progress_usec + o->keep_alive_usec;
        case CONNECTION_EXCHANGE:
                if (c->out.size > 0)
                        return c->progress_usec + o->write_usec;
                if (is_tunnel(c))
                        return c->progress_usec + o->tunnel_usec;
                return wants_body(c) ? c->progress_usec + o->body_usec : USEC_INFINITY;
        case CONNECTION_CLOSING:
                return c->progress_usec + o->write_usec;
        case CONNECTION_LINGER:
                return c->progress_usec + o->linger_usec;
        }
        return USEC_INFINITY;
}

static void connection_update(HttpConnection *c) {
        uint32_t events = 0;
        int r;

        if (wants_input(c))
                events |= EPOLLIN;
        if (c->out.size > 0)
                events |= EPOLLOUT;
        /* In a tunnel a client that has sent all may still be reading; its end is read like everything else. So is that
         * of a body, of which there may be more in the kernel than we have room for. */
        if (!c->peer_eof && !is_tunnel(c) && !wants_rest_of_body(c))
                events |= EPOLLRDHUP;
        /* After the end of a client that has nothing more to take, not even its hang-up is waited for: it would be
         * reported again and again with nothing to do about it. */
        if (!c->peer_eof)
                events |= EPOLLERR;
        r = hub_watch_set(&c->io, events);

        /* A timer that fires too early just looks again; so it is only moved to an earlier time. */
        uint64_t deadline = connection_deadline(c);
        if (r >= 0 && deadline != USEC_INFINITY && deadline < c->timer_armed) {
                r = sd_event_source_set_time(c->timer, deadline);
                if (r >= 0)
                        r = sd_event_source_set_enabled(c->timer, SD_EVENT_ONESHOT);
                c->timer_armed = deadline;
        }

        if (r < 0)
                connection_fail(c, HTTP_OUTCOME_ABORTED, true);
}

/* Tells the handler that it is over. The request is gone afterwards. */
static void request_finish(HttpConnection *c, HttpOutcome outcome) {
        HttpRequest *req = TAKE_PTR(c->request);
        HttpListener *l = c->listener;
        HttpServer *s = l->server;
        uint64_t now = connection_now(c);

        c->request = req; /* its functions still work during the call */
        s->n_calls++;
        if (req->ops && req->ops->done)
                req->ops->done(req, outcome, req->userdata);
        if (l->observer)
                l->observer(l,
                            &(HttpRecord) {
                                    .request = req,
                                    .id = req->id,
                                    .status = req->status,
                                    .request_bytes = req->body_received,
                                    .response_bytes = req->written,
                                    .duration_usec = now - MIN(req->started_usec, now),
                                    .outcome = outcome,
                            },
                            l->userdata);
        s->n_calls--;
        c->request = NULL;
        request_free(req);
        http_buffer_done(&c->body);
}

static void set_state(HttpConnection *c, ConnectionState state) {
        c->state = state;
        c->progress_usec = connection_now(c);
}

/* An answer of our own to something that never becomes a request, or whose REQUEST_ID has just ended. */
static void answer_malformed(HttpConnection *c, unsigned status, const char *request_id) {
        _cleanup_free_ char *body = NULL, *text = NULL;
        char id[33] = "";

        if (status == 408)
                c->listener->statistics.timeouts++;
        else
                c->listener->statistics.malformed++;
        if (!request_id) {
                HttpListener *l = c->listener;

                (void) request_id_new(id);
                l->server->n_calls++;
                if (l->observer)
                        l->observer(l, &(HttpRecord) { .id = id, .status = status, .outcome = HTTP_OUTCOME_MALFORMED },
                                    l->userdata);
                l->server->n_calls--;
                request_id = id;
        }
        if (problem_format(PROBLEM_STYLE_PROBLEM, status, status == 408 ? "timeout" : "malformed-request", NULL,
                           request_id, &body) < 0 ||
            !(text = strprintf("HTTP/1.1 %u %s\r\n" HTTP_REQUEST_ID_HEADER ": %s\r\n"
                               "Content-Type: application/problem+json\r\nContent-Length: %zu\r\n"
                               "Connection: close\r\n\r\n%s", status, http_status_reason(status), request_id,
                               strlen(body), body)) ||
            http_buffer_append(&c->out, text, strlen(text)) < 0) {
                c->dead = true;
                return;
        }
        set_state(c, CONNECTION_CLOSING);
}

/* The same for a request that was there, but whose body was not what it should be. */
static void request_finish_refused(HttpConnection *c, HttpOutcome outcome, unsigned status) {
        char id[33];

        c->request->status = status;
        memcpy(id, c->request->id, sizeof(id));
        request_finish(c, outcome);
        answer_malformed(c, status, id);
}

static void request_dispatch(HttpConnection *c) {
        HttpListener *l = c->listener;

        l->statistics.requests++;
        if (http_request_head(c->request)->upgrade_websocket) {
                static const HttpField fields[] = { { "Upgrade", "HTTP/1.1" } };

                http_problem(c->request, 426, "websocket-unsupported",
                             "WebSocket is not supported here; use plain HTTP.", fields,
                             ELEMENTSOF(fields));
                return;
        }

        l->server->n_calls++;
        l->handler(c->request, l->userdata);
        l->server->n_calls--;
}

static int step_head(HttpConnection *c) {
        size_t consumed = 0;
        unsigned status = 0;

        if (c->in.size == 0) {
                c->dead = c->peer_eof;
                return 0;
        }
        /* The time for a head begins with its first byte; for the first one, with the accept. */
        if (!http_parser_in_head(c->parser) && c->served)
                c->progress_usec = connection_now(c);

        int r = http_parser_feed_head(c->parser, http_buffer_data(&c->in), c->in.size, &consumed, &status);
        if (r == -EPROTO) {
                c->listener->statistics.http2_prefaces++;
                c->dead = true;
                return 0;
        }
        if (r < 0) {
                http_buffer_done(&c->in);
                answer_malformed(c, status, NULL);
                return 1;
        }
        http_buffer_consume(&c->in, consumed);
        if (r == 0) {
                c->dead = c->peer_eof;
                return 0;
        }

        c->served = true;
        if (request_new(c, &c->request) < 0) {
                c->dead = true;
                return 0;
        }
        set_state(c, CONNECTION_EXCHANGE);
        request_dispatch(c);
        return 1;
}

static int step_body(HttpConnection *c) {
        HttpRequest *req = c->request;
        bool got = false;

        if (req->again)
                return 0;
        while (wants_body(c) && c->in.size > 0) {
                size_t consumed = 0, before = c->body.size;
                size_t n = MIN(c->in.size, HTTP_BODY_WINDOW - before);
                int r = http_parser_feed_body(c->parser, http_buffer_data(&c->in), n, &consumed, &c->body);
                if (r < 0) {
                        c->listener->statistics.malformed++;
                        if (req->started) {
                                connection_fail(c, HTTP_OUTCOME_BAD_BODY, true);
                                return 1;
                        }
                        request_finish_refused(c, HTTP_OUTCOME_BAD_BODY, 400);
                        http_buffer_done(&c->in);
                        return 1;
                }
                http_buffer_consume(&c->in, consumed);
                req->body_received += c->body.size - before;
                c->progress_usec = connection_now(c);
                got = true;
        }

        if (!got && !req->readable_pending)
                return 0;
        req->readable_pending = false;
        if (req->ended || !req->ops || !req->ops->readable)
                return 0;
        if (c->body.size == 0 && !http_parser_complete(c->parser))
                return 0;

        c->listener->server->n_calls++;
        req->ops->readable(req, req->userdata);
        c->listener->server->n_calls--;
        if (req->again) {
                hub_task_queue(c->listener->server->hub, &c->kick);
                return 0;
        }
        return 1;
}

static int step_exchange(HttpConnection *c) {
        HttpRequest *req = c->request;

        if (c->out.size > 0) {
                int r = connection_flush(c);
                if (r < 0) {
                        connection_fail(c, HTTP_OUTCOME_CLIENT_CLOSED, false);
                        return 1;
                }
        }

        if (req->ended && c->out.size == 0) {
                bool keep = !req->close_after && http_parser_complete(c->parser) &&
                            !c->listener->server->draining && !c->peer_eof;

                request_finish(c, HTTP_OUTCOME_COMPLETE);
                if (keep) {
                        http_parser_reset(c->parser);
                        set_state(c, CONNECTION_HEAD);
                } else
                        set_state(c, CONNECTION_CLOSING);
                return 1;
        }

        if (req->want_writable && c->out.size <= HTTP_OUTPUT_LOW) {
                req->want_writable = false;
                if (!req->ended && req->ops && req->ops->writable) {
                        c->listener->server->n_calls++;
                        req->ops->writable(req, req->userdata);
                        c->listener->server->n_calls--;
                        return 1;
                }
        }

        int r = step_body(c);
        if (r > 0 || req->again) /* after 1, the request may be gone */
                return r;
        if (req->tunnel && c->peer_eof && c->in.size == 0 && !http_parser_complete(c->parser)) {
                http_parser_end_tunnel(c->parser);
                req->readable_pending = true;
                return 1;
        }
        if (c->peer_eof && !req->ended && !req->tunnel) {
                connection_fail(c, HTTP_OUTCOME_CLIENT_CLOSED, false);
                return 1;
        }
        return 0;
}

/* A client that has all that was announced may go; that the handler has not said the last word yet is nothing to it. */
static HttpOutcome outcome_of_failure(const HttpConnection *c) {
        const HttpRequest *req = c->request;
        bool whole = req->started && c->out.size == 0 && req->length != HTTP_LENGTH_UNKNOWN &&
                     (req->without_body || req->written == req->length);

        return whole && c->outcome == HTTP_OUTCOME_CLIENT_CLOSED ? HTTP_OUTCOME_COMPLETE : c->outcome;
}

/* 1: look again. 0: wait. */
static int connection_step(HttpConnection *c) {
        if (c->failed) {
                if (c->request)
                        request_finish(c, outcome_of_failure(c));
                c->dead = true;
                return 0;
        }

        switch (c->state) {
        case CONNECTION_HEAD:
                return step_head(c);

        case CONNECTION_EXCHANGE:
                return step_exchange(c);

        case CONNECTION_CLOSING:
                if (connection_flush(c) < 0)
                        c->dead = true;
                else if (c->out.size == 0) {
                        /* Closing with unread input would reset the connection and take our answer with it. */
                        if (c->peer_eof || shutdown(c->fd, SHUT_WR) < 0)
                                c->dead = true;
                        else
                                set_state(c, CONNECTION_LINGER);
                        http_buffer_done(&c->in);
                }
                return 0;

        case CONNECTION_LINGER:
                http_buffer_done(&c->in);
                c->dead = c->dead || c->peer_eof;
                return 0;
        }
        return 0;
}

static void connection_advance(HttpConnection *c) {
        assert(!c->busy);

        c->busy = true;
        while (!c->dead && connection_step(c) > 0)
                ;
        c->busy = false;

        if (c->dead)
                connection_free(c);
        else
                connection_update(c);
}

static void on_kick(void *userdata) {
        HttpConnection *c = userdata;

        if (c->request && c->request->again) {
                c->request->again = false;
                c->request->readable_pending = true;
        }
        connection_advance(c);
}

static void connection_read(HttpConnection *c) {
        char buf[HTTP_READ_SIZE];

        ssize_t n = recv(c->fd, buf, sizeof(buf) - MIN(c->in.size, sizeof(buf) - 1), MSG_DONTWAIT);
        if (n > 0) {
                if (c->state != CONNECTION_LINGER && http_buffer_append(&c->in, buf, (size_t) n) < 0)
                        connection_fail(c, HTTP_OUTCOME_ABORTED, true);
        } else if (n == 0) {
                c->peer_eof = true;
        } else if (errno != EAGAIN && errno != EINTR)
                connection_fail(c, HTTP_OUTCOME_CLIENT_CLOSED, false);
}

static void on_io(uint32_t revents, void *userdata) {
        HttpConnection *c = userdata;

        if ((revents & EPOLLIN) && wants_input(c))
                connection_read(c);
        /* A half-closed client that waits for a long answer looks like one that has gone, and is taken for one:
         * else nobody would notice a client that gave up while the upstream thinks. What is answered at once still
         * reaches it. */
        if ((revents & EPOLLRDHUP) && c->state != CONNECTION_HEAD && !wants_input(c) && !is_tunnel(c) &&
            !wants_rest_of_body(c))
                c->peer_eof = true;
        if (revents & (EPOLLERR | EPOLLHUP)) {
                c->peer_eof = true;
                if (revents & EPOLLERR || c->out.size == 0)
                        connection_fail(c, HTTP_OUTCOME_CLIENT_CLOSED, false);
        }

        connection_advance(c);
}

static int on_timer(sd_event_source *source, uint64_t usec, void *userdata) {
        HttpConnection *c = userdata;
        uint64_t deadline = connection_deadline(c);

        c->timer_armed = USEC_INFINITY;
        if (deadline > connection_now(c)) {
                connection_update(c);
                return 0;
        }

        switch (c->state) {
        case CONNECTION_HEAD:
                if (http_parser_in_head(c->parser))
                        answer_malformed(c, 408, NULL);
                else
                        c->dead = true;
                break;

        case CONNECTION_EXCHANGE:
                if (c->out.size == 0 && !c->request->started) {
                        request_finish_refused(c, HTTP_OUTCOME_TIMEOUT, 408);
                } else {
                        c->listener->statistics.timeouts++;
                        connection_fail(c, HTTP_OUTCOME_TIMEOUT, true);
                }
                break;

        case CONNECTION_CLOSING:
        case CONNECTION_LINGER:
                c->dead = true;
                c->reset = true;
                break;
        }

        connection_advance(c);
        return 0;
}

int connection_new(HttpListener *l, int fd) {
        HttpServer *s = l->server;
        int r;

        HttpConnection *c = calloc(1, sizeof(HttpConnection));
        if (!c)
                return -ENOMEM;
        *c = (HttpConnection) {
                .fd = -EBADF,
                .timer_armed = USEC_INFINITY,
                .kick = { .callback = on_kick, .userdata = c },
        };

        HttpParserLimits limits = s->options.parser;
        limits.proxy = l->proxy;
        r = http_parser_new(&limits, &c->parser);
        if (r >= 0)
                r = hub_watch_add(s->hub, &c->io, fd, EPOLLIN | EPOLLRDHUP, on_io, c);
        if (r >= 0)
                r = sd_event_add_time(s->event, &c->timer, CLOCK_MONOTONIC, USEC_INFINITY, 100 * USEC_PER_MSEC,
                                      on_timer, c);
        if (r < 0) {
                connection_free(c);
                return r;
        }

        c->fd = fd;
        c->listener = l;
        c->next = l->connections;
        if (c->next)
                c->next->previous = c;
        l->connections = c;
        l->statistics.connections++;
        l->statistics.accepted++;
        s->n_connections++;

        set_state(c, CONNECTION_HEAD);
        connection_update(c);
        return 0;
}

HttpConnection *connection_free(HttpConnection *c) {
        if (!c)
                return NULL;

        HttpListener *l = c->listener;

        assert(!c->busy);
        if (c->request)
                request_finish(c, c->failed ? c->outcome : HTTP_OUTCOME_SHUTDOWN);

        /* The watch before the fd. */
        hub_watch_remove(&c->io);
        if (l)
                hub_task_cancel(l->server->hub, &c->kick);
        sd_event_source_disable_unref(c->timer);
        if (c->fd >= 0 && c->reset)
                (void) setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &(struct linger) { .l_onoff = 1 },
                                  sizeof(struct linger));
        safe_close(c->fd);
        http_parser_free(c->parser);
        http_buffer_done(&c->in);
        http_buffer_done(&c->body);
        http_buffer_done(&c->out);

        if (l) {
                if (c->previous)
                        c->previous->next = c->next;
                else
                        l->connections = c->next;
                if (c->next)
                        c->next->previous = c->previous;
                l->statistics.connections--;
                l->server->n_connections--;
                listener_connection_gone(l);
                server_connection_gone(l->server);
        }
        return mfree(c);
}

void connection_drain(HttpConnection *c) {
        char b;

        /* A request that is already in our kernel's buffer is one that had begun. */
        if (connection_is_idle(c) && recv(c->fd, &b, 1, MSG_PEEK | MSG_DONTWAIT) <= 0)
                c->dead = true;
        connection_kick(c);
}
