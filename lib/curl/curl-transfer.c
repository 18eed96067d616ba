/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* See curl-glue.h. One transfer: the options that all have, its headers. */

#include <sys/socket.h>

#include "basic/string-util.h"
#include "basic/text.h"
#include "curl/curl-internal.h"

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

static int on_connected(void *userdata, char *remote, char *local, int remote_port, int local_port) {
        glue_connected(userdata);
        return CURL_PREREQFUNC_OK;
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
        SET(CURLOPT_SSL_CTX_FUNCTION, glue_set_up_tls);
        SET(CURLOPT_SSL_CTX_DATA, g);
        SET(CURLOPT_CAINFO, NULL); /* glue_set_up_tls() knows */
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
        t->easy = g->n_handles > 0 ? g->handles[--g->n_handles] : curl_easy_init();
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
        glue_forget(t);
        if (t->easy) {
                g->depth++;
                if (t->running) {
                        (void) curl_multi_remove_handle(g->multi, t->easy);
                        g->n_running--;
                }
                if (g->n_handles < HANDLES_MAX && !t->connect_only) {
                        curl_easy_reset(t->easy); /* forgets all that it was told */
                        g->handles[g->n_handles++] = t->easy;
                } else
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

        char buf[1024];
        size_t size = strlen(name) + strlen(value) + sizeof(": ");
        char *line = size <= sizeof(buf) ? buf : malloc(size);
        if (!line)
                return -ENOMEM;

        /* "Name;" is how libcurl spells a header without a value; "Name:" would remove it. */
        Text text = text_in(line, size);
        text_add(&text, name);
        text_add(&text, *value ? ": " : ";");
        text_add(&text, value);
        struct curl_slist *l = curl_slist_append(t->headers, text_end(&text));
        explicit_bzero(line, size);
        if (line != buf)
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
        assert(!t->running);
        t->done = done;
        t->userdata = userdata;
        if (curl_easy_setopt(t->easy, CURLOPT_HTTPHEADER, t->headers) != CURLE_OK)
                return -ENOMEM;

        return glue_start(t);
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
