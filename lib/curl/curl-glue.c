/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* See curl-glue.h. libcurl tells which sockets to watch and when to wake it; both are kept as event sources here.
 * A socket's source goes before curl closes the socket (CLOSESOCKETFUNCTION), so that a number that is used again
 * is never mistaken for the old one. */

#include <fcntl.h>
#include <sys/epoll.h>

#include "curl/curl-internal.h"

/* Connections that are made at once, and how long those that wait are patient with a server that does not answer. */
#define CONNECTING_MAX 16U
#define PATIENCE_USEC (20 * USEC_PER_MSEC)
/* A client whose answer is through may have its next request there already: its call had better be over. */
#define FINISHED_AT_ONCE 16U

struct CurlSocket {
        CurlGlue *glue;
        HubWatch watch;
        bool own; /* made by open_socket(), closed through close_socket(): not one of libcurl's own inner ones */
};

static void on_io(uint32_t revents, void *userdata);

void glue_drop_socket(CurlGlue *g, curl_socket_t fd) {
        CurlSocket *s = (size_t) fd < g->n_sockets ? TAKE_PTR(g->sockets[fd]) : NULL;

        if (!s)
                return;
        hub_watch_remove(&s->watch);
        g->n_own -= s->own;
        free(s);
}

int glue_new_socket(CurlGlue *g, curl_socket_t fd, bool own, CurlSocket **ret) {
        glue_drop_socket(g, fd);
        if ((size_t) fd >= g->n_sockets) {
                size_t n = MAX((size_t) fd + 1, MAX(g->n_sockets * 2, (size_t) 64));
                CurlSocket **sockets = reallocarray(g->sockets, n, sizeof(CurlSocket *));

                if (!sockets)
                        return -ENOMEM;
                memset(sockets + g->n_sockets, 0, (n - g->n_sockets) * sizeof(CurlSocket *));
                g->sockets = sockets;
                g->n_sockets = n;
        }

        CurlSocket *s = calloc(1, sizeof(CurlSocket));
        if (!s)
                return -ENOMEM;
        *s = (CurlSocket) { .glue = g, .own = own };
        g->sockets[fd] = s;
        g->n_own += own;
        if (ret)
                *ret = s;
        return 0;
}

void glue_action(CurlGlue *g, curl_socket_t fd, int what) {
        int running;

        g->depth++;
        (void) curl_multi_socket_action(g->multi, fd, what, &running);
        g->depth--;
        hub_task_queue(g->hub, &g->finished);
}

static void on_io(uint32_t revents, void *userdata) {
        CurlSocket *s = userdata;
        int what = 0;

        if (revents & (EPOLLIN | EPOLLHUP))
                what |= CURL_CSELECT_IN;
        if (revents & EPOLLOUT)
                what |= CURL_CSELECT_OUT;
        if (revents & EPOLLERR)
                what |= CURL_CSELECT_ERR;
        glue_action(s->glue, s->watch.fd, what);
}

static void on_timeout(void *userdata) {
        glue_action(userdata, CURL_SOCKET_TIMEOUT, 0);
}

static int socket_callback(CURL *easy, curl_socket_t fd, int action, void *userdata, void *socketp) {
        CurlGlue *g = userdata;
        CurlSocket *s = (size_t) fd < g->n_sockets ? g->sockets[fd] : NULL;
        uint32_t events = 0;

        if (action == CURL_POLL_IN || action == CURL_POLL_INOUT)
                events |= EPOLLIN;
        if (action == CURL_POLL_OUT || action == CURL_POLL_INOUT)
                events |= EPOLLOUT;
        if (action == CURL_POLL_REMOVE && s && !s->own) {
                glue_drop_socket(g, fd);
                return 0;
        }
        /* One of a connection that is kept for the next request stays as it is, until it is closed. */
        if (s && s->watch.hub)
                return hub_watch_set(&s->watch, events) < 0 ? -1 : 0;
        if (events == 0)
                return 0;
        if (!s && glue_new_socket(g, fd, false, &s) < 0)
                return -1;
        return hub_watch_add(g->hub, &s->watch, fd, events, on_io, s) < 0 ? -1 : 0;
}

static int timer_set(CurlGlue *g, uint64_t at) {
        g->timer_wanted = at;
        if (at >= g->timer_armed)
                return 0;
        if (sd_event_source_set_time(g->timer, at) < 0 || sd_event_source_set_enabled(g->timer, SD_EVENT_ONESHOT) < 0)
                return -1;
        g->timer_armed = at;
        return 0;
}

static int on_timer(sd_event_source *source, uint64_t usec, void *userdata) {
        CurlGlue *g = userdata;
        uint64_t now = 0;

        g->timer_armed = USEC_INFINITY;
        (void) sd_event_now(g->event, CLOCK_MONOTONIC, &now);
        if (now < g->timer_wanted)
                return g->timer_wanted == USEC_INFINITY ? 0 : timer_set(g, g->timer_wanted);
        g->timer_wanted = USEC_INFINITY;
        glue_action(g, CURL_SOCKET_TIMEOUT, 0);
        return 0;
}

static int timer_callback(CURLM *multi, long timeout_ms, void *userdata) {
        CurlGlue *g = userdata;
        uint64_t now = 0;

        if (timeout_ms < 0) {
                hub_task_cancel(g->hub, &g->timeout);
                return timer_set(g, USEC_INFINITY);
        }
        if (timeout_ms == 0) {
                hub_task_queue(g->hub, &g->timeout);
                return timer_set(g, USEC_INFINITY);
        }
        (void) sd_event_now(g->event, CLOCK_MONOTONIC, &now);
        return timer_set(g, now + (uint64_t) timeout_ms * USEC_PER_MSEC);
}

void glue_connected(CurlTransfer *t) {
        CurlGlue *g = t->glue;

        if (!t->connecting)
                return;
        t->connecting = false;
        if (t->round == g->round)
                g->n_connecting--;
        if (g->waiting)
                hub_task_queue(g->hub, &g->start);
}

/* False: there is none. */
static bool finish_one(CurlGlue *g) {
        CurlTransfer *t = NULL;
        int left;

        CURLMsg *m = curl_multi_info_read(g->multi, &left);
        if (!m)
                return false;
        if (m->msg != CURLMSG_DONE)
                return true;

        CURLcode code = m->data.result; /* the message is gone with the handle */
        if (curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, (char **) &t) != CURLE_OK || !t)
                return true;

        /* The connection goes with the next line, but not its copy. */
        curl_socket_t fd;
        if (t->connect_only && code == CURLE_OK &&
            curl_easy_getinfo(t->easy, CURLINFO_ACTIVESOCKET, &fd) == CURLE_OK && fd != CURL_SOCKET_BAD)
                t->socket = fcntl(fd, F_DUPFD_CLOEXEC, 3);

        g->depth++;
        (void) curl_multi_remove_handle(g->multi, t->easy);
        g->depth--;
        t->running = false;
        g->n_running--;
        glue_connected(t);
        t->done(t, code, t->userdata);
        return true;
}

static void on_finished(void *userdata) {
        CurlGlue *g = userdata;
        unsigned i = 0;

        g->finishing = true; /* it is not idle, also where this was the last transfer */
        while (i < FINISHED_AT_ONCE && finish_one(g))
                i++;
        g->finishing = false;
        if (i == FINISHED_AT_ONCE)
                hub_task_queue(g->hub, &g->finished);
}

static CurlTransfer *take_waiting(CurlGlue *g) {
        CurlTransfer *t = g->waiting;

        if (t) {
                g->waiting = t->next_waiting;
                if (!g->waiting)
                        g->last_waiting = NULL;
                t->next_waiting = NULL;
                t->waiting = false;
        }
        return t;
}

static void stop_waiting(CurlTransfer *t) {
        CurlGlue *g = t->glue;
        CurlTransfer *previous = NULL;

        if (!t->waiting)
                return;
        for (CurlTransfer **p = &g->waiting; *p; previous = *p, p = &(*p)->next_waiting)
                if (*p == t) {
                        *p = t->next_waiting;
                        if (g->last_waiting == t)
                                g->last_waiting = previous;
                        break;
                }
        t->next_waiting = NULL;
        t->waiting = false;
}

static int transfer_begin(CurlTransfer *t) {
        CurlGlue *g = t->glue;

        g->depth++;
        CURLMcode m = curl_multi_add_handle(g->multi, t->easy);
        g->depth--;
        if (m != CURLM_OK)
                return -EIO;
        t->running = true;
        g->n_running++;
        return 0;
}

/* Those that the server lets wait so long do not count any more. */
static int on_patience(sd_event_source *source, uint64_t usec, void *userdata) {
        CurlGlue *g = userdata;

        g->round++;
        g->n_connecting = 0;
        if (g->waiting)
                hub_task_queue(g->hub, &g->start);
        return 0;
}

static int patience_arm(CurlGlue *g) {
        int enabled, r;

        if (!g->patience)
                return sd_event_add_time_relative(g->event, &g->patience, CLOCK_MONOTONIC, PATIENCE_USEC, 1,
                                                  on_patience, g);
        r = sd_event_source_get_enabled(g->patience, &enabled);
        if (r < 0 || enabled != SD_EVENT_OFF)
                return r;
        r = sd_event_source_set_time_relative(g->patience, PATIENCE_USEC);
        return r < 0 ? r : sd_event_source_set_enabled(g->patience, SD_EVENT_ONESHOT);
}

static void on_start(void *userdata) {
        CurlGlue *g = userdata;

        if (g->waiting && g->n_connecting >= CONNECTING_MAX && patience_arm(g) >= 0)
                return; /* on_patience(), or glue_connected() */

        CurlTransfer *t = take_waiting(g);
        if (!t)
                return;
        if (g->waiting)
                hub_task_queue(g->hub, &g->start);
        t->connecting = true;
        t->round = g->round;
        g->n_connecting++;
        if (transfer_begin(t) < 0) {
                glue_connected(t);
                t->done(t, CURLE_FAILED_INIT, t->userdata);
        }
}

int glue_start(CurlTransfer *t) {
        CurlGlue *g = t->glue;

        /* A connection is there for it. */
        if (!g->waiting && g->n_own > g->n_running)
                return transfer_begin(t);

        /* To make one, with a handshake of TLS, is work for a hundred events of those that are there, here and at the
         * server: a thousand new ones at once would hold all of them up. */
        if (g->last_waiting)
                g->last_waiting->next_waiting = t;
        else
                g->waiting = t;
        g->last_waiting = t;
        t->waiting = true;
        hub_task_queue(g->hub, &g->start);
        return 0;
}

void glue_forget(CurlTransfer *t) {
        stop_waiting(t);
        glue_connected(t);
}

int curl_glue_new(sd_event *event, const CurlGlueOptions *options, CurlGlue **ret) {
        static bool initialized = false;
        int r;

        if (!initialized) {
                unsetenv("SSLKEYLOGFILE"); /* the one variable that libcurl and OpenSSL would still look at */
                if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
                        return -EIO;
                initialized = true;
        }

        _cleanup_(curl_glue_freep) CurlGlue *g = calloc(1, sizeof(CurlGlue));
        if (!g)
                return -ENOMEM;
        g->event = sd_event_ref(event);
        g->guard = options->guard;
        g->allow_http = options->allow_http;
        if (options->ca_file && !(g->ca_file = strdup(options->ca_file)))
                return -ENOMEM;

        g->timer_wanted = g->timer_armed = USEC_INFINITY;
        g->timeout = (HubTask) { .callback = on_timeout, .userdata = g };
        g->start = (HubTask) { .callback = on_start, .userdata = g };
        g->finished = (HubTask) { .callback = on_finished, .userdata = g };
        r = options->hub ? 0 : event_hub_new(event, &g->own_hub);
        if (r < 0)
                return r;
        g->hub = options->hub ?: g->own_hub;
        r = sd_event_add_time(event, &g->timer, CLOCK_MONOTONIC, USEC_INFINITY, 1, on_timer, g);
        if (r < 0)
                return r;
        r = sd_event_source_set_enabled(g->timer, SD_EVENT_OFF);
        if (r < 0)
                return r;

        g->multi = curl_multi_init();
        if (!g->multi)
                return -ENOMEM;
        if (curl_multi_setopt(g->multi, CURLMOPT_SOCKETFUNCTION, socket_callback) != CURLM_OK ||
            curl_multi_setopt(g->multi, CURLMOPT_SOCKETDATA, g) != CURLM_OK ||
            curl_multi_setopt(g->multi, CURLMOPT_TIMERFUNCTION, timer_callback) != CURLM_OK ||
            curl_multi_setopt(g->multi, CURLMOPT_TIMERDATA, g) != CURLM_OK ||
            curl_multi_setopt(g->multi, CURLMOPT_MAXCONNECTS, (long) (options->max_connections ?: 64)) != CURLM_OK)
                return -EIO;

        *ret = TAKE_PTR(g);
        return 0;
}

CurlGlue *curl_glue_free(CurlGlue *g) {
        if (!g)
                return NULL;

        assert(g->n_transfers == 0);
        while (g->n_handles > 0)
                curl_easy_cleanup(g->handles[--g->n_handles]);
        if (g->multi)
                (void) curl_multi_cleanup(g->multi);
        for (size_t i = 0; i < g->n_sockets; i++)
                glue_drop_socket(g, (curl_socket_t) i);
        free(g->sockets);
        hub_task_cancel(g->hub, &g->timeout);
        hub_task_cancel(g->hub, &g->finished);
        hub_task_cancel(g->hub, &g->start);
        event_hub_free(g->own_hub);
        sd_event_source_disable_unref(g->timer);
        sd_event_source_disable_unref(g->patience);
        sd_event_unref(g->event);
        X509_STORE_free(g->trust);
        free(g->ca_file);
        return mfree(g);
}

bool curl_glue_is_idle(const CurlGlue *g) {
        return g->n_transfers == 0 && g->depth == 0 && !g->finishing;
}

