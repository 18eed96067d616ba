/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* See curl-glue.h. libcurl tells which sockets to watch and when to wake it; both are kept as event sources here.
 * A socket's source goes before curl closes the socket (CLOSESOCKETFUNCTION), so that a number that is used again
 * is never mistaken for the old one. */

#include <fcntl.h>
#include <openssl/ssl.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "basic/event-hub.h"
#include "basic/string-util.h"
#include "curl/curl-glue.h"

#define CA_PATH "/etc/ssl/certs"
/* Connections that are made at once, and how long those that wait are patient with a server that does not answer. */
#define CONNECTING_MAX 16U
#define PATIENCE_USEC (20 * USEC_PER_MSEC)

typedef struct CurlSocket {
        CurlGlue *glue;
        HubWatch watch;
        bool own; /* made by open_socket(), closed through close_socket(): not one of libcurl's own inner ones */
} CurlSocket;

struct CurlGlue {
        sd_event *event;
        EventHub *hub;
        CURLM *multi;
        sd_event_source *timer;
        uint64_t timer_wanted, timer_armed; /* USEC_INFINITY: off; one that fires too early just looks again */
        HubTask timeout, finished, start;
        CurlTransfer *waiting, *last_waiting; /* for their turn to make a connection */
        sd_event_source *patience;
        unsigned n_own,
                n_running; /* connections to servers that are open, or being made; transfers in libcurl's hands */
        unsigned n_connecting;     /* of the present round */
        unsigned round;
        CurlSocket **sockets; /* by their numbers */
        size_t n_sockets;
        const AddressGuard *guard;
        char *ca_file;
        X509_STORE *trust; /* for all connections: what was looked up stays there, what nobody asks for is never read */
        struct timespec ca_file_mtime, ca_path_mtime;
        bool allow_http;
        unsigned n_transfers;
        unsigned depth; /* inside libcurl: nothing may be freed */
};

struct CurlTransfer {
        CurlGlue *glue;
        CURL *easy;
        struct curl_slist *headers;
        HubTask unpause;
        CurlTransfer *next_waiting;
        bool waiting, connecting;
        unsigned round;
        curl_done_t done;
        void *userdata;
        bool running, refused, connect_only;
        int socket; /* of connect_only, when that has succeeded */
        char error[CURL_ERROR_SIZE];
};

static void on_io(uint32_t revents, void *userdata);

/* Where the socket is closed already, taking it out of the epoll set fails, which means nothing. */
static void glue_drop_socket(CurlGlue *g, curl_socket_t fd) {
        CurlSocket *s = (size_t) fd < g->n_sockets ? TAKE_PTR(g->sockets[fd]) : NULL;

        if (!s)
                return;
        hub_watch_remove(&s->watch);
        g->n_own -= s->own;
        free(s);
}

static int glue_new_socket(CurlGlue *g, curl_socket_t fd, bool own, CurlSocket **ret) {
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

static void glue_action(CurlGlue *g, curl_socket_t fd, int what) {
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

/* Idempotent. */
static void connecting_end(CurlTransfer *t) {
        CurlGlue *g = t->glue;

        if (!t->connecting)
                return;
        t->connecting = false;
        if (t->round == g->round)
                g->n_connecting--;
        if (g->waiting)
                hub_task_queue(g->hub, &g->start);
}

static int on_connected(void *userdata, char *remote, char *local, int remote_port, int local_port) {
        connecting_end(userdata);
        return CURL_PREREQFUNC_OK;
}

static void on_finished(void *userdata) {
        CurlGlue *g = userdata;
        CurlTransfer *t = NULL;
        int left;

        CURLMsg *m = curl_multi_info_read(g->multi, &left);
        if (!m)
                return;
        if (left > 0)
                hub_task_queue(g->hub, &g->finished);
        if (m->msg != CURLMSG_DONE)
                return;

        CURLcode code = m->data.result; /* the message is gone with the handle */
        if (curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, (char **) &t) != CURLE_OK || !t)
                return;

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
        connecting_end(t);
        t->done(t, code, t->userdata);
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
                return; /* on_patience(), or connecting_end() */

        CurlTransfer *t = take_waiting(g);
        if (!t)
                return;
        if (g->waiting)
                hub_task_queue(g->hub, &g->start);
        t->connecting = true;
        t->round = g->round;
        g->n_connecting++;
        if (transfer_begin(t) < 0) {
                connecting_end(t);
                t->done(t, CURLE_FAILED_INIT, t->userdata);
        }
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
        r = event_hub_new(event, &g->hub);
        if (r < 0)
                return r;
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
        if (g->multi)
                (void) curl_multi_cleanup(g->multi);
        for (size_t i = 0; i < g->n_sockets; i++)
                glue_drop_socket(g, (curl_socket_t) i);
        free(g->sockets);
        event_hub_free(g->hub);
        sd_event_source_disable_unref(g->timer);
        sd_event_source_disable_unref(g->patience);
        sd_event_unref(g->event);
        X509_STORE_free(g->trust);
        free(g->ca_file);
        return mfree(g);
}

bool curl_glue_is_idle(const CurlGlue *g) {
        return g->n_transfers == 0 && g->depth == 0;
}

static curl_socket_t open_socket(void *userdata, curlsocktype purpose, struct curl_sockaddr *address) {
        CurlTransfer *t = userdata;

        if (!address_guard_permits(t->glue->guard, &address->addr, address->addrlen)) {
                t->refused = true;
                return CURL_SOCKET_BAD;
        }

        _cleanup_close_ int fd = socket(address->family, address->socktype | SOCK_CLOEXEC, address->protocol);
        if (fd < 0 || glue_new_socket(t->glue, fd, true, NULL) < 0)
                return CURL_SOCKET_BAD;
        return TAKE_FD(fd);
}

static int close_socket(void *userdata, curl_socket_t fd) {
        glue_drop_socket(userdata, fd);
        safe_close(fd);
        return 0;
}

/* Where a transfer's user sets no function, nothing may end up on our stdout. */
static size_t write_nothing(char *data, size_t size, size_t n, void *userdata) {
        return size * n;
}

static size_t read_nothing(char *data, size_t size, size_t n, void *userdata) {
        return 0;
}

static struct timespec mtime_of(const char *path) {
        struct stat st;

        return path && stat(path, &st) >= 0 ? st.st_mtim : (struct timespec) {};
}

static bool same_time(struct timespec a, struct timespec b) {
        return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec;
}

/* libcurl would parse the system's whole bundle for each connection, and keep it as long. The folder has each authority
 * in a file of its own, found by a hash of its name. Read anew when the administrator has changed something. */
static X509_STORE *glue_trust(CurlGlue *g) {
        struct timespec file = mtime_of(g->ca_file), path = mtime_of(CA_PATH);

        if (g->trust && same_time(file, g->ca_file_mtime) && same_time(path, g->ca_path_mtime))
                return g->trust;

        X509_STORE *store = X509_STORE_new();
        if (!store)
                return NULL;
        /* As libcurl has it: the first path that ends in what is trusted counts. */
        if (X509_STORE_set_flags(store, X509_V_FLAG_TRUSTED_FIRST | X509_V_FLAG_PARTIAL_CHAIN) != 1 ||
            X509_STORE_load_path(store, CA_PATH) != 1 ||
            (g->ca_file && X509_STORE_load_file(store, g->ca_file) != 1)) {
                X509_STORE_free(store);
                return NULL;
        }
        X509_STORE_free(g->trust);
        g->trust = store;
        g->ca_file_mtime = file;
        g->ca_path_mtime = path;
        return store;
}

static CURLcode set_up_tls(CURL *easy, void *context, void *userdata) {
        X509_STORE *store = glue_trust(userdata);

        if (!store)
                return CURLE_SSL_CACERT_BADFILE;
        SSL_CTX_set1_cert_store(context, store);
        /* Connections that wait between two events keep no buffers: 34 KiB each, which thousands of streams would feel.
         */
        SSL_CTX_set_mode(context, SSL_MODE_RELEASE_BUFFERS);
        return CURLE_OK;
}

static bool transfer_set_options(CurlTransfer *t, const char *url) {
        CURL *e = t->easy;
        CurlGlue *g = t->glue;
        const char *protocols = g->allow_http ? "https,http" : "https";
        bool ok = true;

#define SET(option, value) ok = ok && curl_easy_setopt(e, option, value) == CURLE_OK
        SET(CURLOPT_URL, url);
        SET(CURLOPT_PRIVATE, t);
        SET(CURLOPT_ERRORBUFFER, t->error);
        SET(CURLOPT_VERBOSE, 0L);
        SET(CURLOPT_NOSIGNAL, 1L);
        SET(CURLOPT_NOPROGRESS, 1L);

        /* Where to: only there. */
        SET(CURLOPT_PROTOCOLS_STR, protocols);
        SET(CURLOPT_REDIR_PROTOCOLS_STR, protocols);
        SET(CURLOPT_FOLLOWLOCATION, 0L);
        SET(CURLOPT_MAXREDIRS, 0L);
        SET(CURLOPT_PROXY, "");
        SET(CURLOPT_NOPROXY, "*");
        SET(CURLOPT_NETRC, (long) CURL_NETRC_IGNORED);
        SET(CURLOPT_UNRESTRICTED_AUTH, 0L);
        SET(CURLOPT_DISALLOW_USERNAME_IN_URL, 1L);
        SET(CURLOPT_OPENSOCKETFUNCTION, open_socket);
        SET(CURLOPT_OPENSOCKETDATA, t);
        SET(CURLOPT_CLOSESOCKETFUNCTION, close_socket);
        SET(CURLOPT_CLOSESOCKETDATA, g);
        SET(CURLOPT_PREREQFUNCTION, on_connected);
        SET(CURLOPT_PREREQDATA, t);

        /* TLS. */
        SET(CURLOPT_SSLVERSION, (long) CURL_SSLVERSION_TLSv1_2);
        SET(CURLOPT_SSL_CTX_FUNCTION, set_up_tls);
        SET(CURLOPT_SSL_CTX_DATA, g);
        SET(CURLOPT_CAINFO, NULL); /* set_up_tls() knows */
        SET(CURLOPT_CAPATH, NULL);
        SET(CURLOPT_SSL_VERIFYPEER, 1L);
        SET(CURLOPT_SSL_VERIFYHOST, 2L);

        /* HTTP: bytes as they are. 1.1, because a paused stream of HTTP/2 is buffered by libcurl. */
        SET(CURLOPT_HTTP_VERSION, (long) CURL_HTTP_VERSION_1_1);
        SET(CURLOPT_HTTP09_ALLOWED, 0L);
        SET(CURLOPT_PATH_AS_IS, 1L);
        SET(CURLOPT_HTTP_TRANSFER_DECODING, 1L);
        SET(CURLOPT_HTTP_CONTENT_DECODING, 0L);
        SET(CURLOPT_BUFFERSIZE, (long) 16384);
        SET(CURLOPT_UPLOAD_BUFFERSIZE, (long) 16384);
        SET(CURLOPT_TCP_NODELAY, 1L);
        SET(CURLOPT_TCP_KEEPALIVE, 1L);
        SET(CURLOPT_TCP_KEEPIDLE, 60L);
        SET(CURLOPT_TCP_KEEPINTVL, 15L);
        SET(CURLOPT_CONNECTTIMEOUT_MS, 10000L);
        SET(CURLOPT_WRITEFUNCTION, write_nothing);
        SET(CURLOPT_READFUNCTION, read_nothing);
#undef SET
        return ok;
}

static void on_unpause(void *userdata);

int curl_transfer_new(CurlGlue *g, const char *url, CurlTransfer **ret) {
        CurlTransfer *t = calloc(1, sizeof(CurlTransfer));
        if (!t)
                return -ENOMEM;

        t->glue = g;
        t->socket = -EBADF;
        t->unpause = (HubTask) { .callback = on_unpause, .userdata = t };
        g->n_transfers++;
        t->easy = curl_easy_init();
        t->headers = curl_slist_append(NULL, "Expect:"); /* libcurl adds none of its own */
        if (!t->easy || !t->headers || !transfer_set_options(t, url)) {
                curl_transfer_free(t);
                return -ENOMEM;
        }
        *ret = t;
        return 0;
}

CurlTransfer *curl_transfer_free(CurlTransfer *t) {
        if (!t)
                return NULL;

        CurlGlue *g = t->glue;

        assert(g->depth == 0);
        hub_task_cancel(g->hub, &t->unpause);
        stop_waiting(t);
        connecting_end(t);
        if (t->easy) {
                g->depth++;
                if (t->running) {
                        (void) curl_multi_remove_handle(g->multi, t->easy);
                        g->n_running--;
                }
                curl_easy_cleanup(t->easy);
                g->depth--;
        }
        for (struct curl_slist *l = t->headers; l; l = l->next)
                explicit_bzero(l->data, strlen(l->data));
        curl_slist_free_all(t->headers);
        safe_close(t->socket);
        g->n_transfers--;
        return mfree(t);
}

int curl_transfer_allow_http(CurlTransfer *t) {
        return curl_easy_setopt(t->easy, CURLOPT_PROTOCOLS_STR, "https,http") == CURLE_OK ? 0 : -ENOMEM;
}

int curl_transfer_connect_only(CurlTransfer *t) {
        t->connect_only = true;
        return curl_easy_setopt(t->easy, CURLOPT_CONNECT_ONLY, 1L) == CURLE_OK &&
               curl_easy_setopt(t->easy, CURLOPT_FRESH_CONNECT, 1L) == CURLE_OK ? 0 : -ENOMEM;
}

int curl_transfer_take_socket(CurlTransfer *t) {
        return t->socket < 0 ? -ENOTCONN : TAKE_FD(t->socket);
}

CURL *curl_transfer_handle(CurlTransfer *t) {
        return t->easy;
}

int curl_transfer_add_header(CurlTransfer *t, const char *name, const char *value) {
        for (const char *p = name; *p; p++)
                if (*p <= 0x20 || *p >= 0x7f || strchr("()<>@,;:\\\"/[]?={}", *p))
                        return -EINVAL;
        if (*name == 0 || string_has_cc(value))
                return -EINVAL;

        /* "Name;" is how libcurl spells a header without a value; "Name:" would remove it. */
        char *line = *value ? strprintf("%s: %s", name, value) : strprintf("%s;", name);
        if (!line)
                return -ENOMEM;

        struct curl_slist *l = curl_slist_append(t->headers, line);
        explicit_bzero(line, strlen(line));
        free(line);
        if (!l)
                return -ENOMEM;
        t->headers = l;
        return 0;
}

int curl_transfer_suppress_header(CurlTransfer *t, const char *name) {
        _cleanup_free_ char *line = strprintf("%s:", name);
        if (!line)
                return -ENOMEM;

        struct curl_slist *l = curl_slist_append(t->headers, line);
        if (!l)
                return -ENOMEM;
        t->headers = l;
        return 0;
}

int curl_transfer_start(CurlTransfer *t, curl_done_t done, void *userdata) {
        CurlGlue *g = t->glue;

        assert(!t->running);
        t->done = done;
        t->userdata = userdata;
        if (curl_easy_setopt(t->easy, CURLOPT_HTTPHEADER, t->headers) != CURLE_OK)
                return -ENOMEM;

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

static void on_unpause(void *userdata) {
        CurlTransfer *t = userdata;
        CurlGlue *g = t->glue;

        if (!t->running)
                return;
        g->depth++;
        (void) curl_easy_pause(t->easy, CURLPAUSE_CONT);
        g->depth--;
        /* Data that libcurl held back may have been the last. */
        glue_action(g, CURL_SOCKET_TIMEOUT, 0);
}

void curl_transfer_unpause(CurlTransfer *t) {
        if (t->running)
                hub_task_queue(t->glue->hub, &t->unpause);
}

bool curl_transfer_refused(const CurlTransfer *t) {
        return t->refused;
}

bool curl_transfer_connected(const CurlTransfer *t) {
        long size = 0;

        return curl_easy_getinfo(t->easy, CURLINFO_REQUEST_SIZE, &size) == CURLE_OK && size > 0;
}
