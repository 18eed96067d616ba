/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* See tunnel.h. libcurl makes the connection (names, both address families, the guard, the time-out); then the socket
 * is ours. The client's side is a request whose body and answer have no end of their own. */

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>

#include "basic/log.h"
#include "basic/string-util.h"
#include "call-record.h"
#include "exchange.h"
#include "http/problem.h"
#include "tunnel.h"

#define WINDOW ((size_t) 64 * 1024)
#define CONNECT_USEC (10 * USEC_PER_SEC)

typedef struct Tunnel {
        Bridge *bridge;
        HttpRequest *http;
        LiveRun *live;
        char *target; /* host:port */
        CurlTransfer *transfer; /* until it is connected */
        int fd;
        sd_event_source *io;
        HttpBuffer out; /* to the host, not taken by it yet */
        bool client_done, paused;
        uint64_t sent, received, started_usec, started_monotonic_usec;
        unsigned status;
        const char *outcome;
        CallReport *report; /* noted, not sent yet */
} Tunnel;

static uint64_t now_usec(clockid_t clock) {
        struct timespec ts;

        assert(clock_gettime(clock, &ts) == 0);
        return (uint64_t) ts.tv_sec * USEC_PER_SEC + (uint64_t) ts.tv_nsec / NSEC_PER_USEC;
}

static Tunnel *tunnel_free(Tunnel *t) {
        report_cancel_call(t->report);
        curl_transfer_free(t->transfer);
        sd_event_source_disable_unref(t->io);
        safe_close(t->fd);
        http_buffer_done(&t->out);
        live_run_unref(t->live);
        free(t->target);
        return mfree(t);
}

static CallRecord tunnel_record(const Tunnel *t, const char *outcome) {
        return (CallRecord) {
                .id = http_request_id(t->http),
                .service = "proxy",
                .method = "CONNECT",
                .path = t->target,
                .status = t->status,
                .request_bytes = t->sent,
                .response_bytes = t->received,
                .started_usec = t->started_usec,
                .duration_usec = now_usec(CLOCK_MONOTONIC) - t->started_monotonic_usec,
                .outcome = outcome,
        };
}

static void on_done(HttpRequest *req, HttpOutcome outcome, void *userdata) {
        Tunnel *t = userdata;
        const char *text = t->outcome ?: outcome == HTTP_OUTCOME_COMPLETE ? "complete" :
                           outcome == HTTP_OUTCOME_SHUTDOWN ? "interrupted" : "client_closed";

        exchange_of(req)->outcome = text;
        CallRecord record = tunnel_record(t, text);
        call_record_close(t->bridge, t->live, &record, TAKE_PTR(t->report));
        tunnel_free(t);
}

static void tunnel_fail(Tunnel *t, unsigned status, const char *code, const char *detail) {
        t->io = sd_event_source_disable_unref(t->io);
        t->outcome = "upstream_error";
        t->bridge->counters.upstream_errors++;
        if (t->status == 0)
                t->status = status;
        http_problem(t->http, status, code, detail, NULL, 0);
}

/* Client to host. */
static void push(Tunnel *t) {
        for (;;) {
                char buf[16384];
                ssize_t n;

                while (t->out.size > 0) {
                        n = send(t->fd, http_buffer_data(&t->out), t->out.size, MSG_NOSIGNAL | MSG_DONTWAIT);
                        if (n < 0 && errno == EINTR)
                                continue;
                        if (n < 0 && errno == EAGAIN)
                                return;
                        if (n < 0) {
                                tunnel_fail(t, 502, "upstream-failed", NULL);
                                return;
                        }
                        t->sent += (uint64_t) n;
                        http_buffer_consume(&t->out, (size_t) n);
                }
                if (t->client_done)
                        return;

                n = http_request_read(t->http, buf, sizeof(buf));
                if (n < 0)
                        return; /* -EAGAIN: more comes; else done follows */
                if (n == 0) {
                        t->client_done = true;
                        (void) shutdown(t->fd, SHUT_WR);
                        return;
                }
                if (http_buffer_append(&t->out, buf, (size_t) n) < 0) {
                        tunnel_fail(t, 503, "out-of-memory", NULL);
                        return;
                }
        }
}

/* Host to client. */
static void pull(Tunnel *t) {
        char buf[16384];

        while (http_response_writable(t->http)) {
                ssize_t n = recv(t->fd, buf, sizeof(buf), MSG_DONTWAIT);

                if (n < 0 && errno == EINTR)
                        continue;
                if (n < 0 && errno == EAGAIN)
                        return;
                if (n < 0) {
                        tunnel_fail(t, 502, "upstream-failed", NULL);
                        return;
                }
                if (n == 0) {
                        t->io = sd_event_source_disable_unref(t->io);
                        http_response_end(t->http);
                        return;
                }
                t->received += (uint64_t) n;
                if (http_response_write(t->http, buf, (size_t) n) < 0)
                        return; /* done follows */
        }
        t->paused = true;
}

static void watch(Tunnel *t) {
        if (!t->io)
                return;
        if (sd_event_source_set_io_events(t->io, (t->paused ? 0U : EPOLLIN) | (t->out.size > 0 ? EPOLLOUT : 0U)) < 0)
                tunnel_fail(t, 503, "out-of-memory", NULL);
}

static int on_io(sd_event_source *source, int fd, uint32_t revents, void *userdata) {
        Tunnel *t = userdata;

        /* An error shows in what is tried next; while the client does not read there is nothing to try, and epoll
         * would say the same again and again. */
        if ((revents & (EPOLLERR | EPOLLHUP)) && t->paused) {
                t->io = sd_event_source_disable_unref(t->io);
                return 0;
        }
        if (revents & EPOLLOUT)
                push(t);
        if (t->io && (revents & (EPOLLIN | EPOLLERR | EPOLLHUP)))
                pull(t);
        watch(t);
        return 0;
}

static void on_readable(HttpRequest *req, void *userdata) {
        Tunnel *t = userdata;

        if (!t->io)
                return;
        push(t);
        watch(t);
}

static void on_writable(HttpRequest *req, void *userdata) {
        Tunnel *t = userdata;

        if (!t->paused || t->fd < 0)
                return;
        t->paused = false;
        if (!t->io && sd_event_add_io(t->bridge->event, &t->io, t->fd, EPOLLIN, on_io, t) < 0) {
                tunnel_fail(t, 503, "out-of-memory", NULL);
                return;
        }
        pull(t);
        watch(t);
}

static void on_connected(CurlTransfer *transfer, CURLcode code, void *userdata) {
        Tunnel *t = userdata;
        bool refused = curl_transfer_refused(transfer);
        int r = -ENOTCONN;

        if (code == CURLE_OK) {
                t->fd = curl_transfer_take_socket(transfer);
                r = t->fd < 0 ? t->fd : 0;
        }
        t->transfer = curl_transfer_free(transfer);
        if (r >= 0)
                r = sd_event_add_io(t->bridge->event, &t->io, t->fd, EPOLLIN, on_io, t);
        if (r >= 0) {
                t->status = 200;
                r = http_response_start_tunnel(t->http);
        }
        if (r >= 0) {
                pull(t);
                watch(t);
                return;
        }

        t->status = 0;
        if (refused)
                tunnel_fail(t, 502, "upstream-address-refused", "The host's name leads to an address that the bridge "
                                                                "does not dial.");
        else if (code == CURLE_OPERATION_TIMEDOUT)
                tunnel_fail(t, 504, "upstream-timeout", "The host could not be reached in time.");
        else if (code == CURLE_COULDNT_RESOLVE_HOST)
                tunnel_fail(t, 502, "upstream-name-unknown", "The host's name could not be resolved.");
        else
                tunnel_fail(t, 502, "upstream-unreachable", "The host does not accept connections.");
}

void tunnel_begin(const RouteRequest *r, const char *host, uint16_t port) {
        static const HttpRequestOps ops = { .readable = on_readable, .writable = on_writable, .done = on_done };
        _cleanup_free_ char *url = strprintf("http://%s:%u/", host, port);

        Tunnel *t = calloc(1, sizeof(Tunnel));
        if (t)
                *t = (Tunnel) {
                        .bridge = r->run->bridge, .http = r->http, .live = live_run_ref(r->live), .fd = -EBADF,
                        .target = strprintf("%s:%u", host, port), .started_usec = now_usec(CLOCK_REALTIME),
                        .started_monotonic_usec = now_usec(CLOCK_MONOTONIC),
                };
        if (!url || !t || !t->target) {
                if (t)
                        tunnel_free(t);
                http_problem(r->http, 503, "out-of-memory", NULL, NULL, 0);
                return;
        }

        exchange_set_target(r->http, "proxy", t->target);
        http_request_set_ops(r->http, &ops, t);

        CallRecord record = tunnel_record(t, "interrupted");
        int k = call_record_open(t->bridge, t->live, &record, &t->report);
        CurlGlue *glue;
        if (k >= 0)
                k = upstream_pool_get(t->bridge->upstreams, t->live->user, "proxy", &glue);
        if (k >= 0)
                k = curl_transfer_new(glue, url, &t->transfer);
        if (k >= 0)
                k = curl_transfer_allow_http(t->transfer);
        if (k >= 0)
                k = curl_transfer_connect_only(t->transfer);
        if (k >= 0)
                k = curl_easy_setopt(curl_transfer_handle(t->transfer), CURLOPT_CONNECTTIMEOUT_MS,
                                     (long) (CONNECT_USEC / USEC_PER_MSEC)) == CURLE_OK ? 0 : -ENOMEM;
        if (k >= 0)
                k = curl_transfer_start(t->transfer, on_connected, t);
        if (k < 0)
                tunnel_fail(t, 503, "call-not-possible", NULL);
}
