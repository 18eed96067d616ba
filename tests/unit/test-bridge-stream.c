/* SPDX-License-Identifier: LGPL-2.1-or-later */
#undef NDEBUG

/* Proves streaming: each event reaches the sandbox when it reaches the bridge, many streams at once stay apart, whoever
 * does not read stops only himself and costs bounded memory, bodies are byte-exact in either direction whatever their
 * framing, silence is allowed, and half an answer never looks whole. No clock is asserted, only order and counts. */

#include <sys/resource.h>

#include "bridge-harness.h"

/* An upstream whose answers the test writes piece by piece. */
static HttpServer *piece_server;
static struct sockaddr_in piece_address;
static HttpRequest *pieces[1100];
static size_t n_pieces;
static char piece_headers[4096];

static void piece_gone(HttpRequest *req, HttpOutcome outcome, void *userdata) {
        for (size_t i = 0; i < n_pieces; i++)
                if (pieces[i] == req)
                        pieces[i] = NULL;
}

static void piece_handler(HttpRequest *req, void *userdata) {
        static const HttpRequestOps ops = { .done = piece_gone };

        assert(n_pieces < ELEMENTSOF(pieces));
        http_request_set_ops(req, &ops, NULL);
        pieces[n_pieces++] = req;
}

static LiveRun *live_s;
static struct sockaddr_in address_s;
#define RUN_S "dddddddddddddddddddddddddddddddd"

static void add_service_s(const char *name, const char *timeouts) {
        _cleanup_free_ char *text = strprintf("{\"name\":\"%s\",\"base_url\":\"http://127.0.0.1:%u\",\"auth\":"
                                              "{\"kind\":\"none\"},\"allow\":[{\"methods\":[\"GET\"],\"paths\":"
                                              "[\"/*\"]}],\"timeouts\":%s}",
                                              name, ntohs(piece_address.sin_port), timeouts);
        _cleanup_(service_unrefp) Service *s = NULL;

        assert(service_parse(text, strlen(text), SERVICE_ALLOW_HTTP, &s, NULL) == 0);
        assert(live_run_add_service(live_s, s) == 0);
}

static void make_run_s(void) {
        _cleanup_(service_unrefp) Service *open = NULL, *sealed = NULL;
        HttpServerOptions options = HTTP_SERVER_OPTIONS_DEFAULT;
        _cleanup_free_ char *text = NULL, *text2 = NULL;
        HttpListener *l;

        options.connections_max = 2000;
        assert(http_server_new(bridge->event, &options, &piece_server) == 0);
        assert(http_listener_new(piece_server, listen_tcp(&piece_address), piece_handler, NULL, &l) == 0);
        text = strprintf("{\"name\":\"s\",\"base_url\":\"http://127.0.0.1:%u\",\"auth\":{\"kind\":\"none\"},\"allow\":["
                         "{\"methods\":[\"GET\",\"HEAD\",\"POST\"],\"paths\":[\"/*\"]}]}",
                         ntohs(piece_address.sin_port));
        text2 = strprintf(
                "{\"name\":\"k\",\"base_url\":\"http://127.0.0.1:%u\",\"auth\":{\"kind\":\"bearer\"},\"allow\":["
                "{\"methods\":[\"GET\"],\"paths\":[\"/*\"]}]}",
                ntohs(piece_address.sin_port));
        assert(service_parse(text, strlen(text), SERVICE_ALLOW_HTTP, &open, NULL) == 0);
        assert(service_parse(text2, strlen(text2), SERVICE_ALLOW_HTTP, &sealed, NULL) == 0);
        assert(live_run_new(&live_s) == 0);
        strcpy(live_s->run, RUN_S);
        strcpy(live_s->jti, "44444444444444444444444444444444");
        live_s->user = strdup("alice");
        live_s->uid = 1000;
        live_s->agent = strdup("analyst");
        live_s->deadline_usec = ((uint64_t) time(NULL) + 600) * USEC_PER_SEC;
        assert(live_run_add_service(live_s, open) == 0 && live_run_add_service(live_s, sealed) == 0);
        add_service_s("hasty", "{\"first_byte\":\"50ms\"}");
        add_service_s("halting", "{\"first_byte\":\"1h\",\"idle\":\"50ms\"}");
        assert(live_run_write(live_dir, live_s, (gid_t) -1) == 0);
        free(token_a);
        token_a = mint(key, live_s, live_s->jti);
        assert(register_run(RUN_S, listen_tcp(&address_s), -EBADF, -EBADF) == 0);
        address_a = address_s;
}

static int begin(const char *service) {
        _cleanup_free_ char *head = strprintf("GET /v1/services/%s/e HTTP/1.1\r\nHost: x\r\nx-api-key: %s\r\n\r\n",
                                              service, token_a);
        int fd = dial(&address_a);

        assert(send(fd, head, strlen(head), MSG_NOSIGNAL) > 0);
        return fd;
}

static void start_stream(HttpRequest *req) {
        static const HttpField type = { "Content-Type", "text/event-stream" };

        assert(http_response_start(req, 200, &type, 1, HTTP_LENGTH_UNKNOWN) == 0);
}

/* Case 96: ten events, none of which waits for the next. With a credential that is searched for, too. */
static void test_at_once(const char *service) {
        char buf[4096];

        n_pieces = 0;
        int fd = begin(service);
        pump();
        assert(n_pieces == 1);
        start_stream(pieces[0]);
        pump();
        ssize_t n = recv(fd, buf, sizeof(buf) - 1, MSG_DONTWAIT);
        assert(n > 0);
        buf[n] = 0;
        EXPECT(buf, 200); /* the head does not wait for the first event */
        for (unsigned i = 0; i < 10; i++) {
                char event[64], want[96];

                snprintf(event, sizeof(event), "data: {\"n\":%u}\n\n", i);
                snprintf(want, sizeof(want), "%zx\r\n%s\r\n", strlen(event), event);
                assert(http_response_write(pieces[0], event, strlen(event)) == 0);
                pump();
                n = recv(fd, buf, sizeof(buf) - 1, MSG_DONTWAIT);
                assert(n > 0);
                buf[n] = 0;
                assert(streq(buf, want));
        }
        http_response_end(pieces[0]);
        pump();
        n = recv(fd, buf, sizeof(buf), MSG_DONTWAIT);
        assert(n == 5 && memcmp(buf, "0\r\n\r\n", 5) == 0);
        safe_close(fd);
        pump();
}

/* Of calls that wait at the same time only those fail whose upstream has been silent for longer than their own service
 * allows, be it that it never began or that it stopped. */
static void test_silence(void) {
        char buf[4096];

        n_pieces = 0;
        int patient = begin("s"), hasty = begin("hasty"), second = begin("hasty"), halting = begin("halting");
        while (n_pieces < 4)
                assert(sd_event_run(bridge->event, UINT64_MAX) >= 0);
        for (unsigned i = 0; i < 2; i++) {
                int fd = i == 0 ? hasty : second;
                ssize_t n;

                while ((n = recv(fd, buf, sizeof(buf) - 1, MSG_DONTWAIT)) < 0)
                        assert(sd_event_run(bridge->event, UINT64_MAX) >= 0);
                buf[n] = 0;
                EXPECT(buf, 504);
                assert(strstr(buf, "upstream-silent"));
                safe_close(fd);
        }
        pump();
        assert(recv(patient, buf, sizeof(buf), MSG_DONTWAIT) < 0 && recv(halting, buf, sizeof(buf), MSG_DONTWAIT) < 0);

        for (size_t i = 0; i < n_pieces; i++)
                if (pieces[i])
                        start_stream(pieces[i]);
        for (bool gone = false; !gone;) {
                ssize_t n = recv(halting, buf, sizeof(buf), MSG_DONTWAIT);

                gone = n == 0 || (n < 0 && errno != EAGAIN);
                if (n < 0 && errno == EAGAIN)
                        assert(sd_event_run(bridge->event, UINT64_MAX) >= 0);
        }
        safe_close(halting);
        pump();
        ssize_t n = recv(patient, buf, sizeof(buf) - 1, MSG_DONTWAIT);
        assert(n > 0);
        buf[n] = 0;
        EXPECT(buf, 200);
        assert(recv(patient, buf, sizeof(buf), MSG_DONTWAIT) < 0 && errno == EAGAIN); /* and goes on */
        safe_close(patient);
        pump();
}

/* What is to be asked at the same time is asked together, and each call has its own answer. */
static void test_together(void) {
        enum { N = 12 };
        unsigned asked = n_get, packets = n_packets;
        int fds[N];

        n_pieces = 0;
        for (unsigned i = 0; i < N; i++)
                fds[i] = begin("k");
        while (n_pieces < N)
                assert(sd_event_run(bridge->event, UINT64_MAX) >= 0);
        assert(n_get == asked + N);
        assert(n_packets < packets + N);
        for (unsigned i = 0; i < N; i++) {
                assert(streq(http_head_get(http_request_head(pieces[i]), "authorization"), "Bearer " SECRET));
                safe_close(fds[i]);
        }
        pump();
}

static size_t resident(void) {
        unsigned long size, pages;
        FILE *f = fopen("/proc/self/statm", "re");

        assert(f && fscanf(f, "%lu %lu", &size, &pages) == 2);
        fclose(f);
        return pages * (size_t) sysconf(_SC_PAGESIZE);
}

/* Many streams of many events: order and bytes are each one's own. */
static void test_many(unsigned n, unsigned events) {
        int *fds = calloc(n, sizeof(int));
        char **got = calloc(n, sizeof(char *));
        size_t *sizes = calloc(n, sizeof(size_t)), before = resident();
        uint64_t calls = 0;

        assert(fds && got && sizes);
        bridge->config.run_limit = (Limit) {};
        n_pieces = 0;
        for (unsigned i = 0; i < n; i++) {
                fds[i] = begin("s");
                while (n_pieces <= i)
                        assert(sd_event_run(bridge->event, 100 * USEC_PER_MSEC) >= 0);
                start_stream(pieces[i]);
                got[i] = calloc(1, events * 64 + 4096);
        }
        pump();
        printf("%u streams: %zu KiB more\n", n, (resident() - before) / 1024);
        for (unsigned e = 0; e <= events; e++) {
                for (unsigned i = 0; i < n; i++) {
                        char event[64];

                        snprintf(event, sizeof(event), "data: %u.%u\n\n", i, e);
                        if (e < events)
                                assert(http_response_write(pieces[i], event, strlen(event)) == 0);
                        else
                                http_response_end(pieces[i]);
                }
                for (unsigned quiet = 0; quiet < 2;)
                        quiet = sd_event_run(bridge->event, 0) > 0 ? 0 : quiet + 1;
                for (unsigned i = 0; i < n; i++) {
                        ssize_t k = recv(fds[i], got[i] + sizes[i], events * 64 + 4095 - sizes[i], MSG_DONTWAIT);
                        if (k > 0) {
                                sizes[i] += (size_t) k;
                                calls++;
                        }
                }
        }
        pump();
        for (unsigned i = 0; i < n; i++) {
                for (ssize_t k; (k = recv(fds[i], got[i] + sizes[i], events * 64 + 4095 - sizes[i], MSG_DONTWAIT)) > 0;)
                        sizes[i] += (size_t) k;
                char *p = strstr(got[i], "\r\n\r\n");
                assert(p);
                p += 4;
                for (unsigned e = 0; e < events; e++) {
                        char event[64], want[96];

                        snprintf(event, sizeof(event), "data: %u.%u\n\n", i, e);
                        snprintf(want, sizeof(want), "%zx\r\n%s\r\n", strlen(event), event);
                        assert(startswith(p, want));
                        p += strlen(want);
                }
                assert(streq(p, "0\r\n\r\n"));
                safe_close(fds[i]);
                free(got[i]);
        }
        pump();
        assert(calls > (uint64_t) n * events / 2);
        free(fds);
        free(got);
        free(sizes);
}

/* A reader that stops reading stops its own upstream, and nobody else's. */
static void test_stuck(void) {
        char block[16384];
        size_t written = 0;

        n_pieces = 0;
        int fd = begin("s");
        pump();
        start_stream(pieces[0]);
        memset(block, 'x', sizeof(block));
        size_t before _unused_ = resident();
        for (unsigned stuck = 0; stuck < 40;) {
                if (http_response_writable(pieces[0])) {
                        assert(http_response_write(pieces[0], block, sizeof(block)) == 0);
                        written += sizeof(block);
                        stuck = 0;
                } else
                        stuck++;
                assert(sd_event_run(bridge->event, USEC_PER_MSEC) >= 0);
        }
        assert(written < 64 << 20);                    /* sockets' buffers, not ours */
#ifndef __SANITIZE_ADDRESS__ /* which keeps what was freed */
        assert(resident() < before + (4 << 20));
#endif
        test_at_once("s"); /* others go on (and count from a fresh list of requests) */
        safe_close(fd);
        pump();
}

/* Byte-exact answers of any size and framing, and bodies of any size upwards. */
static void download(size_t size, bool chunked) {
        static char block[16384], buf[65536];
        size_t written = 0, got = 0;
        bool in_body = false, eof = false;
        _cleanup_free_ char *head = strprintf("GET /v1/services/s/e HTTP/1.0\r\nx-api-key: %s\r\n\r\n", token_a);

        n_pieces = 0;
        int fd = dial(&address_a);
        assert(send(fd, head, strlen(head), MSG_NOSIGNAL) > 0);
        while (n_pieces == 0)
                assert(sd_event_run(bridge->event, 100 * USEC_PER_MSEC) >= 0);
        assert(http_response_start(pieces[0], 200, NULL, 0, chunked ? HTTP_LENGTH_UNKNOWN : size) == 0);
        while (!eof) {
                while (pieces[0] && written < size && http_response_writable(pieces[0])) {
                        size_t n = MIN(sizeof(block), size - written);
                        for (size_t i = 0; i < n; i++)
                                block[i] = (char) ((written + i) * 13 + ((written + i) >> 11));
                        assert(http_response_write(pieces[0], block, n) == 0);
                        written += n;
                }
                if (pieces[0] && written == size)
                        http_response_end(pieces[0]);
                ssize_t k = recv(fd, buf, sizeof(buf) - 1, MSG_DONTWAIT);
                char *p = buf;
                if (k > 0 && !in_body) {
                        buf[k] = 0;
                        p = memmem(buf, (size_t) k, "\r\n\r\n", 4);
                        assert(p);
                        p += 4;
                        k -= p - buf;
                        in_body = true;
                }
                for (ssize_t i = 0; i < k; i++)
                        assert(p[i] == (char) ((got + (size_t) i) * 13 + ((got + (size_t) i) >> 11)));
                got += k > 0 ? (size_t) k : 0;
                eof = k == 0 && (in_body && got == size);
                assert(sd_event_run(bridge->event, 0) >= 0);
                if (k == 0 && !eof) {
                        fprintf(stderr, "%zu of %zu\n", got, size);
                        assert(size == 0 || got == size);
                        eof = true;
                }
        }
        assert(got == size);
        safe_close(fd);
        pump();
}

static void test_sizes(void) {
        static const size_t sizes[] = { 0, 1, 16383, 16384, 16385, 65536, 262144, 262145, 5000000 };

        for (size_t i = 0; i < ELEMENTSOF(sizes); i++)
                for (unsigned chunked = 0; chunked < 2; chunked++)
                        download(sizes[i], chunked);
}

static void test_framing(void) {
        /* Answers without a body keep their length; interim and odd answers are not passed on. */
        static const struct {
                const char *method;
                unsigned status;
                uint64_t length;
        } cases[] = { { "HEAD", 200, 12345 }, { "GET", 204, HTTP_LENGTH_UNKNOWN }, { "GET", 304, HTTP_LENGTH_UNKNOWN },
                      { "HEAD", 200, HTTP_LENGTH_UNKNOWN } };

        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                _cleanup_free_ char *head = strprintf(
                        "%s /v1/services/s/e HTTP/1.1\r\nHost: x\r\nx-api-key: %s\r\n\r\n", cases[i].method, token_a);
                n_pieces = 0;
                int fd = dial(&address_a);
                /* Twice on one connection: nothing of the first may be left over. */
                for (unsigned k = 0; k < 2; k++) {
                        assert(send(fd, head, strlen(head), MSG_NOSIGNAL) > 0);
                        pump();
                        assert(n_pieces == k + 1);
                        assert(http_response_start(pieces[k], cases[i].status, NULL, 0, cases[i].length) == 0);
                        http_response_end(pieces[k]);
                        pump();
                        char *s = receive(fd);
                        EXPECT(s, cases[i].status);
                        assert(endswith(s, "\r\n\r\n") && strstr(s, "\r\n\r\n") == s + strlen(s) - 4);
                        if (cases[i].length == 12345)
                                assert(strstr(s, "Content-Length: 12345\r\n"));
                }
                safe_close(fd);
                pump();
        }

        /* Encoded bytes pass as they are. */
        static const HttpField gzip = { "Content-Encoding", "gzip" };
        n_pieces = 0;
        int fd = begin("s");
        pump();
        assert(http_response_start(pieces[0], 200, &gzip, 1, 4) == 0);
        assert(http_response_write(pieces[0], "\x1f\x8b\x08\x00", 4) == 0);
        http_response_end(pieces[0]);
        pump();
        char buf[1024];
        ssize_t n = recv(fd, buf, sizeof(buf), MSG_DONTWAIT);
        assert(n > 4 && memcmp(buf + n - 4, "\x1f\x8b\x08\x00", 4) == 0 &&
               memmem(buf, (size_t) n, "Content-Encoding: gzip", 22));
        safe_close(fd);
        pump();
}

/* Case 12: a revocation in the middle of a stream cuts it, and it does not look whole. */
static void test_revoked(void) {
        n_pieces = 0;
        int fd = begin("s");
        pump();
        start_stream(pieces[0]);
        assert(http_response_write(pieces[0], "data: 1\n\n", 9) == 0);
        pump();
        assert(live_run_remove(live_dir, RUN_S) == 0);
        assert(bridge_run_unregister(bridge, RUN_S) == 0);
        pump();
        assert(!pieces[0]); /* the upstream's connection is gone as well */
        char buf[1024];
        ssize_t n = recv(fd, buf, sizeof(buf), MSG_DONTWAIT);
        assert(n < 0 || !memmem(buf, (size_t) n, "0\r\n\r\n", 5));
        safe_close(fd);
}

/* The same for a sandbox elsewhere, whose connections come through a listener that stays. */
static void test_revoked_elsewhere(void) {
        struct sockaddr_in own = address_a, remote;
        _cleanup_free_ char *head = strprintf("POST /v1/logs HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n"
                                              "x-api-key: %s\r\n\r\n6\r\nline1\n\r\n", token_a);
        char buf[1024];

        assert(bridge_remote_start(bridge, listen_tcp(&remote)) == 0);
        address_a = remote;
        n_pieces = 0;
        int stream = begin("s"), logs = dial(&remote), idle = dial(&remote);
        assert(send(logs, head, strlen(head), MSG_NOSIGNAL) > 0);
        pump();
        assert(n_pieces == 1);
        start_stream(pieces[0]);
        assert(http_response_write(pieces[0], "data: 1\n\n", 9) == 0);
        pump();
        assert(recv(stream, buf, sizeof(buf), MSG_DONTWAIT) > 0);

        assert(live_run_remove(live_dir, RUN_S) == 0);
        assert(bridge_run_unregister(bridge, RUN_S) == 0);
        pump();
        assert(!pieces[0]);
        ssize_t n = recv(stream, buf, sizeof(buf), MSG_DONTWAIT);
        assert(n == 0 || (n < 0 && errno == ECONNRESET));
        (void) send(logs, "6\r\nline2\n\r\n0\r\n\r\n", 18, MSG_NOSIGNAL);
        pump();
        n = recv(logs, buf, sizeof(buf), MSG_DONTWAIT);
        assert(n == 0 || (n < 0 && errno == ECONNRESET));
        /* The listener is others' as well. */
        assert(recv(idle, buf, sizeof(buf), MSG_DONTWAIT) < 0 && errno == EAGAIN);
        safe_close(stream);
        safe_close(logs);
        safe_close(idle);
        EXPECT(authorized("GET", "/v1/run", "", NULL), 401);

        bridge_run_free(bridge->remote);
        assert(live_run_write(live_dir, live_s, (gid_t) -1) == 0);
        assert(register_run(RUN_S, listen_tcp(&own), -EBADF, -EBADF) == 0);
        address_a = own;
}

int main(void) {
        struct rlimit files = { 8192, 8192 };

        bool many = setrlimit(RLIMIT_NOFILE, &files) == 0;
        harness_start();
        bridge->config.connections_max = 2000;
        make_run_s();
        test_at_once("s");
        test_at_once("k");
        test_silence();
        test_together();
        test_framing();
        test_sizes();
        test_stuck();
        test_many(200, 100);
        (void) many;
        test_revoked_elsewhere();
        test_revoked();
        http_server_free(piece_server);
        live_run_unref(live_s);
        return harness_end();
}
