/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* See http-server.h. This file: listeners, accepting and draining. */

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "http/http-internal.h"

/* How many connections one turn of the loop takes from a backlog, so that one listener does not hold up the rest. */
#define ACCEPT_BURST 16
#define SOCKET_BUFFER (64 * 1024)
/* A connection without a request counts as idle after this. */
#define IDLE_GRACE_USEC (1 * USEC_PER_SEC)
/* What a listener may always have, however many there are. */
#define SHARE_MIN 2U

static int on_drained(sd_event_source *source, void *userdata) {
        HttpServer *s = userdata;

        if (s->draining && s->n_connections == 0 && s->drain_done) {
                void (*done)(void *) = s->drain_done;

                s->drain_done = NULL;
                done(s->drain_userdata);
        }
        return 0;
}

int http_server_new(sd_event *event, const HttpServerOptions *options, HttpServer **ret) {
        _cleanup_(http_server_freep) HttpServer *s = calloc(1, sizeof(HttpServer));
        if (!s)
                return -ENOMEM;

        s->event = sd_event_ref(event);
        s->options = *options;

        int r = options->hub ? 0 : event_hub_new(event, &s->own_hub);
        if (r < 0)
                return r;
        s->hub = options->hub ?: s->own_hub;
        r = sd_event_add_defer(event, &s->drain, on_drained, s);
        if (r < 0)
                return r;
        r = sd_event_source_set_enabled(s->drain, SD_EVENT_OFF);
        if (r < 0)
                return r;

        *ret = TAKE_PTR(s);
        return 0;
}

HttpServer *http_server_free(HttpServer *s) {
        if (!s)
                return NULL;

        while (s->listeners)
                http_listener_free(s->listeners);
        event_hub_free(s->own_hub);
        sd_event_source_disable_unref(s->retry);
        sd_event_source_disable_unref(s->drain);
        sd_event_unref(s->event);
        return mfree(s);
}

unsigned http_server_connections(const HttpServer *s) {
        return s->n_connections;
}

void server_connection_gone(HttpServer *s) {
        if (s->draining && s->n_connections == 0)
                (void) sd_event_source_set_enabled(s->drain, SD_EVENT_ONESHOT);
}

int http_server_drain(HttpServer *s, void (*done)(void *userdata), void *userdata) {
        s->draining = true;
        s->drain_done = done;
        s->drain_userdata = userdata;

        for (HttpListener *l = s->listeners; l; l = l->next) {
                listener_update(l);
                for (HttpConnection *c = l->connections; c; c = c->next)
                        connection_drain(c);
        }
        return sd_event_source_set_enabled(s->drain, SD_EVENT_ONESHOT);
}

/* The connection that has been idle for longest. One that was made just now is not idle: its request is on the way. */
static HttpConnection *listener_find_idle(HttpListener *l) {
        HttpConnection *oldest = NULL;
        uint64_t now = 0;

        (void) sd_event_now(l->server->event, CLOCK_MONOTONIC, &now);
        for (HttpConnection *c = l->connections; c; c = c->next)
                if (connection_is_idle(c) && !c->busy && (c->served || now > c->progress_usec + IDLE_GRACE_USEC) &&
                    (!oldest || c->progress_usec < oldest->progress_usec))
                        oldest = c;
        return oldest;
}

/* May one more connection be had here? The first three quarters are for who comes first. */
static bool listener_may_accept(const HttpListener *l) {
        const HttpServer *s = l->server;
        unsigned total = s->options.total_max, n = l->statistics.connections;

        if (n >= s->options.connections_max)
                return false;
        if (total == 0 || s->n_connections < total / 4 * 3)
                return true;
        return n < MAX(total / 4 / s->n_listeners, SHARE_MIN) && s->n_connections < total;
}

/* Somebody's idle connection that has to go before one more is made here: our own, or that of the listener that has
 * the most, if that has more than we would have. */
static HttpConnection *find_room(HttpListener *l) {
        HttpListener *most = l;

        if (l->statistics.connections >= l->server->options.connections_max)
                return listener_find_idle(l);
        for (HttpListener *i = l->server->listeners; i; i = i->next)
                if (i->statistics.connections > most->statistics.connections)
                        most = i;
        bool fair = most == l || most->statistics.connections > l->statistics.connections + 1;
        return fair ? listener_find_idle(most) : NULL;
}

void listener_update(HttpListener *l) {
        bool accept = !l->server->draining && !l->backing_off;

        if (l->io)
                (void) sd_event_source_set_enabled(l->io, accept ? SD_EVENT_ON : SD_EVENT_OFF);
}

bool listener_has_room(const HttpListener *l, size_t more) {
        size_t held = more;

        for (const HttpConnection *c = l->connections; c && held <= HTTP_HELD_MAX; c = c->next)
                held += c->out.size + (c->request ? c->request->collected.size : 0);
        return held <= HTTP_HELD_MAX;
}

static int on_retry(sd_event_source *source, uint64_t usec, void *userdata) {
        HttpServer *s = userdata;

        for (HttpListener *l = s->listeners; l; l = l->next) {
                l->backing_off = false;
                listener_update(l);
        }
        return 0;
}

/* Out of descriptors, memory or connections: to try again at once would be no use, so look the other way for a
 * moment. The backlog is the queue meanwhile. */
static void listener_back_off(HttpListener *l) {
        HttpServer *s = l->server;
        int r;

        if (!s->retry)
                r = sd_event_add_time_relative(s->event, &s->retry, CLOCK_MONOTONIC, 250 * USEC_PER_MSEC, 0, on_retry,
                                               s);
        else {
                r = sd_event_source_set_time_relative(s->retry, 250 * USEC_PER_MSEC);
                if (r >= 0)
                        r = sd_event_source_set_enabled(s->retry, SD_EVENT_ONESHOT);
        }
        l->backing_off = r >= 0;
        listener_update(l);
}

/* Somebody went: no need to wait for the timer. */
void listener_connection_gone(HttpListener *l) {
        l->backing_off = false;
        listener_update(l);
}

int http_listener_adopt(HttpListener *l, int fd) {
        /* Each write is an event of its own for the reader. Fails on AF_UNIX, where nothing is held back anyway. */
        (void) setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int) { 1 }, sizeof(int));
        /* The kernel's share of what a client does not take is our memory, too; by itself it would grow to megabytes.
         * */
        (void) setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &(int) { SOCKET_BUFFER }, sizeof(int));
        return connection_new(l, fd);
}

static int on_accept(sd_event_source *source, int listener_fd, uint32_t revents, void *userdata) {
        HttpListener *l = userdata;

        for (unsigned i = 0; i < ACCEPT_BURST; i++) {
                HttpConnection *idle = NULL;

                if (!listener_may_accept(l)) {
                        idle = find_room(l);
                        if (!idle) {
                                listener_back_off(l);
                                return 0;
                        }
                }

                _cleanup_close_ int fd = accept4(l->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
                if (fd < 0) {
                        if (errno == EINTR || errno == ECONNABORTED)
                                continue;
                        if (errno != EAGAIN)
                                listener_back_off(l);
                        return 0;
                }

                connection_free(idle); /* makes room, now that somebody needs it */
                if (http_listener_adopt(l, fd) < 0) {
                        listener_back_off(l);
                        return 0;
                }
                TAKE_FD(fd);
        }
        return 0;
}

int http_listener_new(HttpServer *s, int fd, http_handler_t handler, void *userdata, HttpListener **ret) {
        int flags = fcntl(fd, F_GETFL);
        if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0)
                return -errno;

        HttpListener *l = calloc(1, sizeof(HttpListener));
        if (!l)
                return -ENOMEM;
        *l = (HttpListener) {
                .server = s,
                .fd = -EBADF,
                .handler = handler,
                .userdata = userdata,
        };

        int r = sd_event_add_io(s->event, &l->io, fd, EPOLLIN, on_accept, l);
        if (r < 0) {
                free(l);
                return r;
        }

        l->fd = fd;
        l->next = s->listeners;
        if (l->next)
                l->next->previous = l;
        s->listeners = l;
        s->n_listeners++;
        listener_update(l);
        *ret = l;
        return 0;
}

HttpListener *http_listener_free(HttpListener *l) {
        if (!l)
                return NULL;

        assert(l->server->n_calls == 0);

        /* Not to be turned on again by the connections that go. */
        l->io = sd_event_source_disable_unref(l->io);
        while (l->connections) {
                l->connections->reset = true; /* streams of an ended run are cut, not ended */
                connection_free(l->connections);
        }

        safe_close(l->fd);
        if (l->previous)
                l->previous->next = l->next;
        else
                l->server->listeners = l->next;
        if (l->next)
                l->next->previous = l->previous;
        l->server->n_listeners--;
        return mfree(l);
}

void http_listener_cut(HttpListener *l, bool (*match)(HttpRequest *req, void *userdata), void *userdata) {
        assert(l->server->n_calls == 0);

        for (HttpConnection *c = l->connections, *next; c; c = next) {
                next = c->next;
                if (!c->request || !match(c->request, userdata))
                        continue;
                c->reset = true;
                connection_free(c);
        }
}

void http_listener_set_proxy(HttpListener *l) {
        l->proxy = true;
}

void http_listener_set_observer(HttpListener *l, http_observer_t observer) {
        l->observer = observer;
}

uint16_t http_listener_port(const HttpListener *l) {
        struct sockaddr_in6 sa = {}; /* ports of both families are at the same place */
        socklen_t len = sizeof(sa);

        if (getsockname(l->fd, (struct sockaddr *) &sa, &len) < 0 ||
            (sa.sin6_family != AF_INET && sa.sin6_family != AF_INET6))
                return 0;
        return ntohs(sa.sin6_port);
}

const HttpListenerStatistics *http_listener_statistics(const HttpListener *l) {
        return &l->statistics;
}
