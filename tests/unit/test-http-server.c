/* SPDX-License-Identifier: LGPL-2.1-or-later */
#undef NDEBUG

/* Proves the server's behaviour on a connection, byte by byte, over a socket pair and over loopback: one request
 * at a time, 100-continue, early answers, deadlines, bounded memory in both directions, drain, cut on close. */

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include "http/http-server.h"
#include "http/problem.h"

typedef struct Test {
        sd_event *event;
        HttpServer *server;
        HttpListener *listener;
        int client;

        unsigned n_requests, n_done;
        HttpOutcome outcome;
        HttpRequest *held;
        char paths[256];
        size_t body_read, body_written;
        bool drained;
        bool bad_field_refused;
        unsigned n_ids, n_turns;
} Test;

static void on_done(HttpRequest *req, HttpOutcome outcome, void *userdata) {
        Test *t = userdata;

        t->n_done++;
        t->outcome = outcome;
        if (t->held == req)
                t->held = NULL;
}

static void stream_more(HttpRequest *req, void *userdata) {
        static char block[8192];
        Test *t = userdata;

        while (http_response_writable(req)) {
                if (http_response_write(req, block, sizeof(block)) < 0)
                        return;
                t->body_written += sizeof(block);
        }
}

static void count_body(HttpRequest *req, void *userdata) {
        Test *t = userdata;
        char buf[4096];

        for (;;) {
                ssize_t n = http_request_read(req, buf, sizeof(buf));
                if (n == -EAGAIN)
                        return;
                if (n == -EFBIG) {
                        http_problem(req, 413, "too-large", NULL, NULL, 0);
                        return;
                }
                assert(n >= 0);
                if (n == 0)
                        break;
                t->body_read += (size_t) n;
        }
        if (!http_response_started(req))
                assert(http_response_send(req, 200, NULL, 0, "read", 4) == 0);
}

/* Each byte is work for a turn. */
static void take_one(HttpRequest *req, void *userdata) {
        Test *t = userdata;
        char c;
        ssize_t n = http_request_read(req, &c, 1);

        t->n_turns++;
        if (n > 0) {
                t->body_read++;
                http_request_call_again(req);
        } else if (n == 0)
                assert(http_response_send(req, 200, NULL, 0, "read", 4) == 0);
}

static void collected(HttpRequest *req, const char *data, size_t size, void *userdata) {
        static const HttpRequestOps ops = { .done = on_done };
        Test *t = userdata;

        http_request_set_ops(req, &ops, t);
        if (!data) {
                t->outcome = HTTP_OUTCOME_ABORTED;
                return;
        }
        assert(http_response_send(req, 200, NULL, 0, data, size) == 0);
}

static void handler(HttpRequest *req, void *userdata) {
        static const HttpRequestOps plain = { .done = on_done };
        static const HttpRequestOps streaming = { .writable = stream_more, .done = on_done };
        static const HttpRequestOps laborious = { .readable = take_one, .done = on_done };
        static const HttpRequestOps counting = { .readable = count_body, .done = on_done };
        Test *t = userdata;
        const char *path = http_request_head(req)->path;

        t->n_requests++;
        strncat(t->paths, path, sizeof(t->paths) - strlen(t->paths) - 1);
        http_request_set_ops(req, &plain, t);

        if (streq(path, "/hold") || streq(path, "/hold-body"))
                t->held = req;
        else if (streq(path, "/stream")) {
                http_request_set_ops(req, &streaming, t);
                assert(http_response_start(req, 200, NULL, 0, HTTP_LENGTH_UNKNOWN) == 0);
                stream_more(req, t);
        } else if (streq(path, "/count")) {
                http_request_set_ops(req, &counting, t);
                http_request_accept_body(req, 1 << 20);
        } else if (streq(path, "/labour")) {
                http_request_set_ops(req, &laborious, t);
                http_request_accept_body(req, 1 << 20);
        } else if (streq(path, "/collect")) {
                (void) http_request_collect(req, 100, collected, t);
        } else if (streq(path, "/early"))
                http_problem(req, 403, "no", NULL, NULL, 0);
        else if (streq(path, "/chunks")) {
                static const HttpField f[] = { { "X-Kind", "chunks" } };

                assert(http_response_start(req, 200, f, 1, HTTP_LENGTH_UNKNOWN) == 0);
                assert(http_response_start(req, 200, f, 1, HTTP_LENGTH_UNKNOWN) == -EALREADY);
                assert(http_response_write(req, "hello", 5) == 0);
                assert(http_response_write(req, "", 0) == 0);
                assert(http_response_write(req, "0123456789abcdef", 16) == 0);
                http_response_end(req);
        } else if (streq(path, "/short")) {
                assert(http_response_start(req, 200, NULL, 0, 10) == 0);
                assert(http_response_write(req, "hello", 5) == 0);
                assert(http_response_write(req, "too much", 8) == -EMSGSIZE);
                http_response_end(req);
        } else if (streq(path, "/empty"))
                assert(http_response_send(req, 204, NULL, 0, NULL, 0) == 0);
        else if (streq(path, "/fields")) {
                static const HttpField bad[][1] = {
                        { { "X", "a\r\nY: b" } }, { { "X\r\nY", "a" } }, { { "X ", "a" } }, { { "", "a" } },
                        { { "X", "a\n" } },
                        { { "Content-Length", "3" } }, { { "transfer-encoding", "chunked" } },
                        { { "Connection", "close" } },
                };
                for (size_t i = 0; i < ELEMENTSOF(bad); i++)
                        assert(http_response_start(req, 200, bad[i], 1, 0) == -EINVAL);
                assert(!http_response_started(req));
                http_problem(req, 502, "bad-field", NULL, NULL, 0);
        } else
                assert(http_response_send(req, 200, NULL, 0, path, strlen(path)) == 0);
}

static int listen_tcp(struct sockaddr_in *ret) {
        struct sockaddr_in sa = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
        socklen_t len = sizeof(sa);

        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        assert(fd >= 0);
        assert(bind(fd, (struct sockaddr *) &sa, sizeof(sa)) == 0);
        assert(listen(fd, 64) == 0);
        assert(getsockname(fd, (struct sockaddr *) &sa, &len) == 0);
        *ret = sa;
        return fd;
}

static struct sockaddr_in address;

static void pair(Test *t) {
        int fds[2];

        assert(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds) == 0);
        assert(http_listener_adopt(t->listener, fds[0]) == 0);
        t->client = fds[1];
}

static void setup(Test *t, const HttpServerOptions *options) {
        *t = (Test) { .client = -EBADF };
        assert(sd_event_new(&t->event) == 0);
        assert(http_server_new(t->event, options, &t->server) == 0);
        assert(http_listener_new(t->server, listen_tcp(&address), handler, t, &t->listener) == 0);
        pair(t);
}

static void teardown(Test *t) {
        safe_close(t->client);
        http_server_free(t->server);
        sd_event_unref(t->event);
}

/* Runs the loop until nothing is left to do at once. */
static void pump(Test *t) {
        for (unsigned quiet = 0; quiet < 3;)
                quiet = sd_event_run(t->event, 0) > 0 ? 0 : quiet + 1;
}

static void pump_for(Test *t, unsigned msec) {
        uint64_t now, end;

        assert(sd_event_now(t->event, CLOCK_MONOTONIC, &now) >= 0);
        end = now + msec * USEC_PER_MSEC;
        while (now < end) {
                assert(sd_event_run(t->event, 5 * USEC_PER_MSEC) >= 0);
                struct timespec ts;
                clock_gettime(CLOCK_MONOTONIC, &ts);
                now = (uint64_t) ts.tv_sec * USEC_PER_SEC + (uint64_t) ts.tv_nsec / NSEC_PER_USEC;
        }
}

static void send_text(Test *t, const char *s) {
        assert(send(t->client, s, strlen(s), MSG_NOSIGNAL) == (ssize_t) strlen(s));
        pump(t);
}

/* All that has arrived; *ret_eof where the server closed. */
static char *receive(Test *t, bool *ret_eof) {
        static char buf[1 << 20];
        size_t n = 0;

        if (ret_eof)
                *ret_eof = false;
        while (n < sizeof(buf) - 1) {
                ssize_t k = recv(t->client, buf + n, sizeof(buf) - 1 - n, MSG_DONTWAIT);
                if (k <= 0) {
                        if (ret_eof)
                                *ret_eof = k == 0 || errno == ECONNRESET;
                        break;
                }
                n += (size_t) k;
                pump(t);
        }
        buf[n] = 0;

        /* Each answer has an id of its own; what follows compares whole answers. */
        for (char *id; (id = strstr(buf, HTTP_REQUEST_ID_HEADER ": "));) {
                char *end = strstr(id, "\r\n") + 2;

                assert(end - id == (ptrdiff_t) strlen(HTTP_REQUEST_ID_HEADER ": \r\n") + 32);
                memmove(id, end, strlen(end) + 1);
                t->n_ids++;
        }
        return buf;
}

/* The same without the loop. */
static char *receive_now(Test *t) {
        static char buf[4096];
        ssize_t n = recv(t->client, buf, sizeof(buf) - 1, MSG_DONTWAIT);

        buf[MAX(n, (ssize_t) 0)] = 0;
        return buf;
}

static void again(Test *t) {
        safe_close(t->client);
        pump(t);
        pair(t);
}

static void test_plain(Test *t) {
        char *s;
        bool eof;

        send_text(t, "GET /a HTTP/1.1\r\nHost: x\r\n\r\n");
        s = receive(t, &eof);
        assert(streq(s, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n/a"));
        assert(!eof && t->n_done == 1 && t->outcome == HTTP_OUTCOME_COMPLETE);

        /* The connection is kept. Also the forms of an answer. */
        send_text(t, "GET /chunks HTTP/1.1\r\nHost: x\r\n\r\n");
        s = receive(t, &eof);
        assert(streq(s, "HTTP/1.1 200 OK\r\nX-Kind: chunks\r\nTransfer-Encoding: "
                        "chunked\r\n\r\n5\r\nhello\r\n10\r\n0123456789abcdef\r\n0\r\n\r\n"));
        send_text(t, "HEAD /chunks HTTP/1.1\r\nHost: x\r\n\r\n");
        assert(streq(receive(t, &eof), "HTTP/1.1 200 OK\r\nX-Kind: chunks\r\nTransfer-Encoding: chunked\r\n\r\n"));
        send_text(t, "GET /empty HTTP/1.1\r\nHost: x\r\n\r\n");
        assert(streq(receive(t, &eof), "HTTP/1.1 204 No Content\r\n\r\n"));
        send_text(t, "GET /fields HTTP/1.1\r\nHost: x\r\n\r\n");
        s = receive(t, &eof);
        assert(startswith(s, "HTTP/1.1 502 Bad Gateway\r\nContent-Type: application/problem+json\r\n"));
        assert(strstr(s, "\"urn:agentd:problem:bad-field\"") && !strstr(s, "Y: b") && !eof);

        send_text(t, "GET /chunks HTTP/1.0\r\n\r\n");
        s = receive(t, &eof);
        assert(streq(s, "HTTP/1.1 200 OK\r\nX-Kind: chunks\r\nConnection: close\r\n\r\nhello0123456789abcdef"));
        assert(eof);

        again(t);
        send_text(t, "GET /a HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        s = receive(t, &eof);
        assert(streq(s, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n/a") && eof);

        /* Half-closed clients get what can be answered at once. */
        again(t);
        assert(send(t->client, "GET /a HTTP/1.1\r\nHost: x\r\n\r\n", 28, MSG_NOSIGNAL) == 28);
        assert(shutdown(t->client, SHUT_WR) == 0);
        pump(t);
        assert(endswith(receive(t, &eof), "/a") && eof);

        /* Less than announced cannot be taken for the whole. */
        again(t);
        t->n_done = 0;
        send_text(t, "GET /short HTTP/1.1\r\nHost: x\r\n\r\n");
        (void) receive(t, &eof);
        assert(eof && t->n_done == 1 && t->outcome == HTTP_OUTCOME_ABORTED);
        again(t);
}

/* The client has all that was announced, and goes before the handler has said so. */
static void test_gone_with_all(Test *t) {
        static const struct {
                const char *method;
                uint64_t length;
                HttpOutcome outcome;
        } cases[] = {
                { "GET", 3, HTTP_OUTCOME_COMPLETE },
                { "HEAD", 100, HTTP_OUTCOME_COMPLETE },
                { "GET", 4, HTTP_OUTCOME_CLIENT_CLOSED },
                { "GET", HTTP_LENGTH_UNKNOWN, HTTP_OUTCOME_CLIENT_CLOSED },
        };

        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                char text[64];

                again(t);
                snprintf(text, sizeof(text), "%s /hold HTTP/1.1\r\nHost: x\r\n\r\n", cases[i].method);
                send_text(t, text);
                pump(t);
                assert(t->held);
                t->n_done = 0;
                assert(http_response_start(t->held, 200, NULL, 0, cases[i].length) == 0);
                assert(http_response_write(t->held, "end", 3) == 0);
                pump(t);
                t->client = safe_close(t->client);
                pump(t);
                assert(t->n_done == 1 && t->outcome == cases[i].outcome);
        }
        again(t);
}

static void test_serial(Test *t) {
        bool eof;

        t->paths[0] = 0;
        t->n_requests = 0;
        send_text(t, "GET /hold HTTP/1.1\r\nHost: x\r\n\r\nGET /b HTTP/1.1\r\nHost: x\r\n\r\nGET /c "
                     "HTTP/1.1\r\nHost: x\r\nAuthorization: other\r\n\r\n");
        assert(t->n_requests == 1 && t->held);
        assert(*receive(t, NULL) == 0);

        assert(http_response_send(t->held, 200, NULL, 0, "first", 5) == 0);
        assert(t->n_requests == 1); /* nothing happens inside a call of ours */
        pump(t);
        char *s = receive(t, &eof);
        assert(t->n_requests == 3 && streq(t->paths, "/hold/b/c") && !eof);
        char *a = strstr(s, "first"), *b = strstr(s, "/b"), *c = strstr(s, "/c");
        assert(a && b && c && a < b && b < c);

        /* What follows a body is not part of it. */
        send_text(t, "POST /collect HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhelloGET /d HTTP/1.1\r\nHost: "
                     "x\r\n\r\n");
        s = receive(t, &eof);
        assert(strstr(s, "\r\n\r\nhelloHTTP/1.1 200 OK\r\n") && endswith(s, "/d"));

        /* Nor is what follows a body that is refused ever looked at. */
        t->n_requests = 0;
        send_text(t, "POST /early HTTP/1.1\r\nHost: x\r\nContent-Length: 500\r\n\r\nGET /d HTTP/1.1\r\nHost: "
                     "x\r\n\r\n");
        s = receive(t, &eof);
        assert(startswith(s, "HTTP/1.1 403 Forbidden\r\n") && strstr(s, "Connection: close\r\n") && eof &&
               t->n_requests == 1);
        again(t);

        /* The client goes while the handler thinks. */
        t->n_done = 0;
        send_text(t, "GET /hold HTTP/1.1\r\nHost: x\r\n\r\n");
        assert(t->held);
        again(t);
        assert(!t->held && t->n_done == 1 && t->outcome == HTTP_OUTCOME_CLIENT_CLOSED);
}

static void test_body(Test *t) {
        bool eof;
        char *s;

        /* 100 only when the handler takes the body. */
        send_text(t, "POST /hold-body HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n");
        assert(*receive(t, NULL) == 0 && t->held);
        assert(http_request_collect(t->held, 100, collected, t) == 0);
        pump(t);
        assert(streq(receive(t, NULL), "HTTP/1.1 100 Continue\r\n\r\n"));
        send_text(t, "hello");
        assert(streq(receive(t, &eof), "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello") && !eof);

        /* Refused instead. */
        send_text(t, "POST /early HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n");
        s = receive(t, &eof);
        assert(startswith(s, "HTTP/1.1 403 ") && !strstr(s, "100 Continue") && eof);
        again(t);
        send_text(t, "POST /collect HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 101\r\n\r\n");
        s = receive(t, &eof);
        assert(startswith(s, "HTTP/1.1 413 ") && eof);
        again(t);
        send_text(t, "POST /collect HTTP/1.1\r\nHost: x\r\nExpect: other\r\nContent-Length: 1\r\n\r\n");
        assert(startswith(receive(t, &eof), "HTTP/1.1 417 ") && eof);
        again(t);

        /* Body sent at once in spite of Expect: no 100 needed. */
        send_text(t, "POST /collect HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\nhello");
        assert(streq(receive(t, &eof), "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"));
        send_text(t, "GET /a HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n\r\n");
        assert(startswith(receive(t, &eof), "HTTP/1.1 200 OK\r\n"));

        /* Chunked, in pieces, with trailers. */
        send_text(t, "POST /collect HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r");
        send_text(t, "\n2\r\nlo\r\n0\r\nAuthorization: x\r\n\r\n");
        assert(streq(receive(t, &eof), "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello") && !eof);

        /* Longer than allowed without saying so. */
        send_text(t, "POST /collect HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n50\r\n");
        for (unsigned i = 0; i < 8; i++)
                send_text(t, "0123456789");
        send_text(t, "\r\n30\r\n012345678901234567890123456789012345678901234567\r\n0\r\n\r\n");
        assert(startswith(receive(t, &eof), "HTTP/1.1 413 "));
        again(t);

        /* Malformed in the middle. */
        t->n_done = 0;
        send_text(t, "POST /count HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\nxx");
        assert(startswith(receive(t, &eof), "HTTP/1.1 400 ") && eof);
        assert(t->n_done == 1 && t->outcome == HTTP_OUTCOME_BAD_BODY);
        again(t);

        /* Client gone in the middle. */
        t->n_done = 0;
        send_text(t, "POST /count HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\n3");
        again(t);
        assert(t->n_done == 1 && t->outcome == HTTP_OUTCOME_CLIENT_CLOSED);
}

/* A body that is much work does not hold up others, and its client need not wait for the end of it. */
static void test_labour(Test *t) {
        static char body[100000];
        bool eof;

        for (unsigned half_closed = 0; half_closed < 2; half_closed++) {
                again(t);
                t->body_read = t->n_turns = 0;
                static const char head[] = "POST /labour HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n";
                assert(send(t->client, head, strlen(head), MSG_NOSIGNAL) > 0);
                size_t sent = 0;
                while (sent < sizeof(body)) {
                        ssize_t n = send(t->client, body + sent, sizeof(body) - sent, MSG_NOSIGNAL);
                        if (n > 0)
                                sent += (size_t) n;
                        else
                                assert(errno == EAGAIN && sd_event_run(t->event, 0) >= 0);
                }
                if (half_closed)
                        assert(shutdown(t->client, SHUT_WR) == 0);
                while (t->body_read == 0)
                        assert(sd_event_run(t->event, USEC_PER_SEC) >= 0);

                int first = t->client;
                pair(t);
                assert(send(t->client, "GET /a HTTP/1.1\r\nHost: x\r\n\r\n", 28, MSG_NOSIGNAL) == 28);
                char *s = NULL;
                for (unsigned i = 0; i < 100 && !(s = strstr(receive_now(t), "/a")); i++)
                        assert(sd_event_run(t->event, USEC_PER_SEC) >= 0);
                assert(s && t->body_read < sizeof(body));
                safe_close(t->client);
                t->client = first;
                while (t->body_read < sizeof(body))
                        assert(sd_event_run(t->event, USEC_PER_SEC) > 0);
                pump(t);
                assert(endswith(receive(t, &eof), "read") && t->n_turns == sizeof(body) + 1);
                assert(t->outcome == HTTP_OUTCOME_COMPLETE);
        }
        again(t);
}

static void test_refusals(Test *t) {
        bool eof;
        char *s;

        send_text(t, "GET /a HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n");
        s = receive(t, &eof);
        assert(startswith(s, "HTTP/1.1 426 Upgrade Required\r\n"));
        again(t);

        send_text(t, "GET /a HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: "
                     "h2c\r\nHTTP2-Settings: AA\r\n\r\n");
        assert(startswith(receive(t, &eof), "HTTP/1.1 200 OK\r\n") && !eof);

        send_text(t, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
        assert(*receive(t, &eof) == 0 && eof);
        assert(http_listener_statistics(t->listener)->http2_prefaces == 1);
        again(t);

        t->n_requests = 0;
        static const char *const bad[] = {
                "POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET "
                "/evil HTTP/1.1\r\nHost: x\r\n\r\n",
                "POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
                "GET /a HTTP/1.1\r\nHost: x\r\nX: a\r\n b\r\n\r\n",
                "GET /a HTTP/1.1\nHost: x\n\n",
                "GET http://x/a HTTP/1.1\r\nHost: x\r\n\r\n",
                "CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n",
        };
        for (size_t i = 0; i < ELEMENTSOF(bad); i++) {
                send_text(t, bad[i]);
                s = receive(t, &eof);
                assert(startswith(s, "HTTP/1.1 400 Bad Request\r\n") && eof && !strstr(s, "evil"));
                again(t);
        }
        assert(t->n_requests == 0);
}

static void test_memory(Test *t) {
        static char block[65536];
        bool eof;

        /* A reader that does not read: what is written for it ends at once, and goes on when it reads. */
        t->body_written = 0;
        send_text(t, "GET /stream HTTP/1.1\r\nHost: x\r\n\r\n");
        size_t first = t->body_written;
        assert(first < HTTP_OUTPUT_MAX + 512 * 1024); /* what the kernel takes, and our queue */
        pump(t);
        assert(t->body_written == first);
        (void) receive(t, &eof);
        assert(t->body_written > first && !eof);
        t->n_done = 0;
        again(t);
        assert(t->n_done == 1 && t->outcome == HTTP_OUTCOME_CLIENT_CLOSED);

        /* A handler that does not read: the client is stopped. */
        send_text(t, "POST /hold-body HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000\r\n\r\n");
        size_t sent = 0;
        for (unsigned idle = 0; idle < 5;) {
                ssize_t n = send(t->client, block, sizeof(block), MSG_NOSIGNAL | MSG_DONTWAIT);
                if (n > 0)
                        sent += (size_t) n, idle = 0;
                else
                        idle++;
                pump(t);
        }
        size_t before = sent;
        assert(before < 1 << 20);
        http_request_accept_body(t->held, UINT64_MAX);
        for (unsigned idle = 0; idle < 5;) {
                ssize_t n = send(t->client, block, sizeof(block), MSG_NOSIGNAL | MSG_DONTWAIT);
                if (n > 0)
                        sent += (size_t) n, idle = 0;
                else
                        idle++;
                pump(t);
        }
        assert(sent - before <= HTTP_BODY_WINDOW * 3);
        again(t);
        assert(!t->held);
}

/* A server of which only the deadlines that are named are short: however slowly this goes, no other one comes first. */
static void setup_deadlines(Test *t, bool head, bool body, bool rest) {
        const uint64_t soon = 50 * USEC_PER_MSEC, never = 24 * 3600 * USEC_PER_SEC;

        setup(t, &(HttpServerOptions) {
                         .parser = HTTP_PARSER_LIMITS_DEFAULT,
                         .head_usec = head ? soon : never,
                         .body_usec = body ? soon : never,
                         .keep_alive_usec = rest ? soon : never,
                         .write_usec = rest ? soon : never,
                         .linger_usec = soon,
                         .connections_max = 4,
                 });
}

/* What comes until the server closes. */
static char *receive_to_end(Test *t) {
        static char all[65536];
        size_t n = 0;

        for (bool eof = false;;) {
                char *s = receive(t, &eof);

                n += (size_t) snprintf(all + n, sizeof(all) - n, "%s", s);
                assert(n < sizeof(all));
                if (eof)
                        return all;
                assert(sd_event_run(t->event, UINT64_MAX) > 0);
        }
}

static void test_deadlines(void) {
        Test t;
        bool eof;

        /* Nothing at all, then part of a head. */
        setup_deadlines(&t, true, false, false);
        assert(*receive_to_end(&t) == 0);
        again(&t);
        send_text(&t, "GET /a HT");
        assert(startswith(receive_to_end(&t), "HTTP/1.1 408 "));
        again(&t);
        /* One byte now and then does not help. */
        do {
                (void) send(t.client, "G", 1, MSG_NOSIGNAL);
                assert(sd_event_run(t.event, 10 * USEC_PER_MSEC) >= 0);
                (void) receive(&t, &eof);
        } while (!eof);
        teardown(&t);

        /* Idle between requests. */
        setup_deadlines(&t, false, false, true);
        send_text(&t, "GET /a HTTP/1.1\r\nHost: x\r\n\r\n");
        char *s = receive_to_end(&t);
        assert(startswith(s, "HTTP/1.1 200 ") && endswith(s, "/a") && !strstr(s, "Connection: close"));
        again(&t);

        /* A reader that takes nothing is cut off. */
        t.n_done = 0;
        send_text(&t, "GET /stream HTTP/1.1\r\nHost: x\r\n\r\n");
        while (t.n_done == 0)
                assert(sd_event_run(t.event, UINT64_MAX) > 0);
        assert(t.n_done == 1 && t.outcome == HTTP_OUTCOME_TIMEOUT);
        teardown(&t);

        /* A body that does not come. */
        setup_deadlines(&t, false, true, false);
        t.n_done = 0;
        send_text(&t, "POST /count HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\n3");
        assert(startswith(receive_to_end(&t), "HTTP/1.1 408 "));
        assert(t.n_done == 1 && t.outcome == HTTP_OUTCOME_TIMEOUT);
        teardown(&t);

        /* A handler may think as long as it likes. */
        setup_deadlines(&t, false, true, true);
        send_text(&t, "GET /hold HTTP/1.1\r\nHost: x\r\n\r\n");
        pump_for(&t, 300);
        assert(t.held);
        assert(http_response_send(t.held, 200, NULL, 0, "late", 4) == 0);
        assert(endswith(receive_to_end(&t), "late"));
        teardown(&t);
}

static int dial(void) {
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        assert(fd >= 0);
        assert(connect(fd, (struct sockaddr *) &address, sizeof(address)) == 0);
        return fd;
}

static void on_drained(void *userdata) {
        ((Test *) userdata)->drained = true;
}

static void test_listener(void) {
        HttpServerOptions options = HTTP_SERVER_OPTIONS_DEFAULT;
        Test t;
        bool eof;
        int fds[8];

        options.connections_max = 4;
        setup(&t, &options);

        /* Idle connections make room for new ones; the limit holds. */
        for (size_t i = 0; i < ELEMENTSOF(fds); i++) {
                fds[i] = dial();
                assert(send(fds[i], "GET /a HTTP/1.1\r\nHost: x\r\n\r\n", 28, MSG_NOSIGNAL) == 28);
                pump(&t);
                assert(http_listener_statistics(t.listener)->connections <= 4);
        }
        assert(http_listener_statistics(t.listener)->accepted == 9); /* and the pair */
        char buf[256];
        for (size_t i = 0; i < ELEMENTSOF(fds); i++)
                assert(recv(fds[i], buf, sizeof(buf), MSG_DONTWAIT) > 0);
        for (size_t i = 0; i < ELEMENTSOF(fds); i++)
                safe_close(fds[i]);
        pump(&t);

        /* Busy ones do not: the fifth waits until one has gone. */
        again(&t);
        for (size_t i = 0; i < 4; i++) {
                fds[i] = dial();
                assert(send(fds[i], "GET /hold HTTP/1.1\r\nHost: x\r\n\r\n", 31, MSG_NOSIGNAL) == 31);
                pump(&t);
        }
        t.n_requests = 0;
        fds[4] = dial();
        assert(send(fds[4], "GET /a HTTP/1.1\r\nHost: x\r\n\r\n", 28, MSG_NOSIGNAL) == 28);
        pump(&t);
        assert(t.n_requests == 0);
        safe_close(fds[0]);
        pump(&t);
        assert(t.n_requests == 1);
        for (size_t i = 1; i < 5; i++)
                safe_close(fds[i]);
        pump(&t);

        /* Drain: what runs ends, what is idle goes, what comes waits in the backlog. */
        again(&t);
        t.n_requests = 0;
        send_text(&t, "GET /hold HTTP/1.1\r\nHost: x\r\n\r\n");
        fds[0] = dial();
        pump(&t);
        assert(http_server_drain(t.server, on_drained, &t) >= 0);
        pump(&t);
        assert(!t.drained && recv(fds[0], buf, sizeof(buf), MSG_DONTWAIT) == 0);
        fds[1] = dial();
        assert(send(fds[1], "GET /a HTTP/1.1\r\nHost: x\r\n\r\n", 28, MSG_NOSIGNAL) == 28);
        pump(&t);
        assert(t.n_requests == 1);
        assert(http_response_send(t.held, 200, NULL, 0, "end", 3) == 0);
        pump(&t);
        assert(endswith(receive(&t, &eof), "Connection: close\r\n\r\nend") && eof);
        t.client = safe_close(t.client);
        pump(&t);
        assert(t.drained);
        safe_close(fds[0]);
        safe_close(fds[1]);

        /* Closing a listener cuts its streams. */
        pair(&t);
        t.n_done = 0;
        send_text(&t, "GET /stream HTTP/1.1\r\nHost: x\r\n\r\n");
        t.listener = http_listener_free(t.listener);
        assert(t.n_done == 1 && t.outcome == HTTP_OUTCOME_SHUTDOWN);
        pump(&t);
        teardown(&t);
}

static unsigned answered(int *fds, unsigned n) {
        char buf[512];
        unsigned k = 0;

        for (unsigned i = 0; i < n; i++)
                k += recv(fds[i], buf, sizeof(buf), MSG_DONTWAIT) > 0;
        return k;
}

/* Many on one listener, whether they are idle or busy, leave room for others. */
static void test_shares(void) {
        HttpServerOptions options = HTTP_SERVER_OPTIONS_DEFAULT;
        HttpListener *other;
        struct sockaddr_in first;
        int fds[40], few[8];
        Test t;

        options.total_max = 32;
        setup(&t, &options);
        first = address;
        int fd = listen_tcp(&address);
        assert(http_listener_new(t.server, fd, handler, &t, &other) == 0);

        /* Busy: three quarters, and a share of the rest that it had already. */
        struct sockaddr_in second = address;
        address = first;
        for (unsigned i = 0; i < ELEMENTSOF(fds); i++) {
                fds[i] = dial();
                assert(send(fds[i], "GET /hold HTTP/1.1\r\nHost: x\r\n\r\n", 31, MSG_NOSIGNAL) == 31);
                pump(&t);
        }
        assert(http_listener_statistics(t.listener)->connections == 24);
        address = second;
        for (unsigned i = 0; i < ELEMENTSOF(few); i++) {
                few[i] = dial();
                assert(send(few[i], "GET /a HTTP/1.1\r\nHost: x\r\n\r\n", 28, MSG_NOSIGNAL) == 28);
        }
        pump(&t);
        assert(answered(few, ELEMENTSOF(few)) == 4); /* the others wait */
        assert(http_server_connections(t.server) == 28);
        for (unsigned i = 0; i < 4; i++)
                safe_close(few[i]);
        pump(&t);
        assert(answered(few + 4, 4) == 4);
        for (unsigned i = 4; i < 8; i++)
                safe_close(few[i]);
        for (unsigned i = 0; i < ELEMENTSOF(fds); i++)
                safe_close(fds[i]);
        pump(&t);
        pump_for(&t, 300);

        /* Idle: they go when somebody needs the room. */
        address = first;
        for (unsigned i = 0; i < ELEMENTSOF(fds); i++) {
                fds[i] = dial();
                assert(send(fds[i], "GET /a HTTP/1.1\r\nHost: x\r\n\r\n", 28, MSG_NOSIGNAL) == 28);
                pump(&t);
        }
        assert(http_listener_statistics(t.listener)->connections <= 24);
        address = second;
        for (unsigned i = 0; i < ELEMENTSOF(few); i++) {
                few[i] = dial();
                assert(send(few[i], "GET /hold HTTP/1.1\r\nHost: x\r\n\r\n", 31, MSG_NOSIGNAL) == 31);
                pump(&t);
        }
        assert(http_listener_statistics(other)->connections == ELEMENTSOF(few) &&
               http_server_connections(t.server) <= 32);
        for (unsigned i = 0; i < ELEMENTSOF(fds); i++)
                safe_close(fds[i]);
        for (unsigned i = 0; i < ELEMENTSOF(few); i++)
                safe_close(few[i]);
        pump(&t);
        teardown(&t);
}

int main(void) {
        HttpServerOptions options = HTTP_SERVER_OPTIONS_DEFAULT;
        Test t;

        setup(&t, &options);
        test_plain(&t);
        test_gone_with_all(&t);
        test_serial(&t);
        test_body(&t);
        test_labour(&t);
        test_refusals(&t);
        test_memory(&t);
        teardown(&t);

        test_deadlines();
        test_listener();
        test_shares();
        return 0;
}
