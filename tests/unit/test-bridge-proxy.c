/* SPDX-License-Identifier: LGPL-2.1-or-later */
#undef NDEBUG

/* Proves the forward proxy: only to listed hosts, only with the run's token as the proxy's password, with no credential
 * of ours, byte-exact both ways and with bounded memory; and that the routes' listener is no proxy. */

#include "bridge-harness.h"
#include "exchange.h"

static struct sockaddr_in address_p, echo_address;
static int echo_listener;

/* A host that is not HTTP: the test accepts and speaks itself. */
static int accept_one(void) {
        for (unsigned i = 0; i < 200; i++) {
                int fd = accept4(echo_listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
                if (fd >= 0)
                        return fd;
                pump();
        }
        return -EBADF;
}

static int open_tunnel(const char *target, const char *token, const char *after) {
        _cleanup_free_ char *user = strprintf("run:%s", token), *basic = base64_encode(user, strlen(user)),
                            *text = strprintf(
                                    "CONNECT %s HTTP/1.1\r\nHost: %s\r\nProxy-Authorization: Basic %s\r\n\r\n%s",
                                    target, target, basic, after);
        int fd = dial(&address_p);

        assert(send(fd, text, strlen(text), MSG_NOSIGNAL) == (ssize_t) strlen(text));
        pump();
        return fd;
}

static void proxy_of(const char *a, const char *b) {
        strv_free(live_a->proxy);
        live_a->proxy = NULL;
        if (a)
                assert(strv_extend(&live_a->proxy, a) >= 0);
        if (b)
                assert(strv_extend(&live_a->proxy, b) >= 0);
        assert(live_run_write(live_dir, live_a, (gid_t) -1) == 0);
}

static char *through(const char *request, const char *headers) {
        _cleanup_free_ char *text = strprintf("%s HTTP/1.1\r\nHost: other.example\r\nConnection: close\r\n%s\r\n",
                                              request, headers);

        return ask_at(&address_p, text);
}

static void test_refusals(const char *origin, const char *target) {
        _cleanup_free_ char *h = strprintf("Proxy-Authorization: Bearer %s\r\n", token_a),
                            *wrong_slot = strprintf("Authorization: Bearer %s\r\n", token_a),
                            *other = strprintf("Proxy-Authorization: Bearer %s\r\n", token_b),
                            *get = strprintf("GET %s/base/x", origin), *connect = strprintf("CONNECT %s", target);

        /* Nothing is listed: nothing goes. */
        n_upstream = 0;
        proxy_of(NULL, NULL);
        char *told = through(get, h);
        EXPECT(told, 403);
        assert(strstr(told, "The agent's definition"));
        EXPECT(through(connect, h), 403);
        proxy_of("localhost:1", "*.localhost:443");
        EXPECT(through(get, h), 403);
        EXPECT(through(connect, h), 403);
        proxy_of(target, NULL);

        char *s = through(connect, "");
        EXPECT(s, 407);
        assert(strstr(s, "Proxy-Authenticate: Basic"));
        EXPECT(through(get, ""), 407);
        EXPECT(through(get, wrong_slot), 407); /* that is the destination's */
        EXPECT(through(get, other), 407);
        EXPECT(through("GET /v1/run", h), 400);
        EXPECT(through("GET /base/x", h), 400);
        EXPECT(through("CONNECT localhost", h), 403);
        EXPECT(through("CONNECT 127.0.0.1:443", h), 403);
        EXPECT(through("CONNECT /", h), 400);
        EXPECT(through("GET https://localhost/x", h), 400);
        EXPECT(through("GET http://u@localhost/x", h), 400);
        EXPECT(through("GET http://localhost#x", h), 400);
        EXPECT(through("GET ftp://localhost/x", h), 400);
        EXPECT(through("OPTIONS *", h), 400);
        _cleanup_free_ char *with_body = strprintf("%sContent-Length: 5\r\n", h);
        EXPECT(through(connect, with_body), 400);
        assert(n_upstream == 0);

        /* The listener of the routes is no proxy. */
        EXPECT(authorized(connect, "", "", NULL), 400);
        _cleanup_free_ char *absolute = strprintf(
                "%s HTTP/1.1\r\nHost: x\r\nConnection: close\r\nx-api-key: %s\r\n%s\r\n", get, token_a, h);
        EXPECT(ask_at(&address_a, absolute), 400);
}

static void test_absolute(const char *origin) {
        _cleanup_free_ char *get = strprintf("GET %s/base/a%%2fb/../c?x=%%zz", origin),
                            *h = strprintf(
                                    "Proxy-Authorization: Bearer %s\r\nAuthorization: Basic own\r\nCookie: own\r\n"
                                    "Proxy-Connection: keep-alive\r\nX-Leak: %s\r\n",
                                    token_a, token_a);

        n_get = 0;
        agentd_log[0] = 0;
        audit_reset();
        char *s = through(get, h);
        EXPECT(s, 200);
        assert(startswith(upstream_saw, "GET /base/a%2fb/../c?x=%zz\n")); /* as it came: there is no policy on it */
        assert(strstr(upstream_saw, "\nAuthorization: Basic own\n") && strstr(upstream_saw, "\nCookie: own\n"));
        assert(!strstr(upstream_saw, "eyJ") && !strstr(upstream_saw, "Proxy") &&
               !strstr(upstream_saw, "other.example"));
        assert(!strstr(upstream_saw, SECRET) && n_get == 0);
        assert(strstr(agentd_log, "\"service\":\"proxy\"") && n_audit == 1 && strstr(audit_log, "AGENT_ROUTE=proxy "));
}

static unsigned n_omitted_records;

static bool record_has(const Text *record, const char *what) {
        return memmem(record->start, text_size(record), what, strlen(what));
}

static void audit_omitted(const Text *record) {
        if (!record_has(record, "\nAGENT_OMITTED=2"))
                return;
        n_omitted_records++;
        assert(record_has(record, "MESSAGE=Edit session " RUN_A ": 2 more") &&
               record_has(record, "\nAGENT_EDIT_SESSION=" RUN_A) && !record_has(record, "\nAGENT_RUN="));
}

/* What was too much for records of its own is told as the session's, too. */
static void test_omitted(const char *origin) {
        _cleanup_free_ char *get = strprintf("GET %s/base/x", origin);
        BridgeRun *run;

        assert(register_run(RUN_A, -EBADF, -EBADF, listen_tcp(&address_p)) == 0);
        run = strmap_get(bridge->runs, RUN_A);
        run->n_refused = REFUSALS_PER_SECOND; /* of a second that does not end */
        run->refused_usec = UINT64_MAX / 2;
        audit_sink = audit_omitted;
        EXPECT(through(get, ""), 407);
        EXPECT(through(get, ""), 407);
        assert(n_omitted_records == 0 && run->n_omitted == 2);
        assert(register_run(RUN_A, listen_tcp(&address_a), -EBADF, listen_tcp(&address_p)) == 0);
        assert(n_omitted_records == 1);
        audit_sink = audit_to_log;
}

/* A session in an edit has the proxy and nothing else, and its record says whose it is. */
static void test_edit_session(const char *origin) {
        _cleanup_free_ char *get = strprintf("GET %s/base/x", origin),
                            *h = strprintf("Proxy-Authorization: Bearer %s\r\n", token_a);

        live_a->holder = strdup("carol");
        assert(live_a->holder && live_run_write(live_dir, live_a, (gid_t) -1) == 0);
        agentd_log[0] = 0;
        audit_reset();
        EXPECT(through(get, h), 200);
        assert(n_audit == 1 && strstr(audit_log, "AGENT_EDIT_SESSION=" RUN_A) &&
               strstr(audit_log, "AGENT_HOLDER=carol"));
        assert(!strstr(audit_log, "AGENT_RUN=") && !strstr(agentd_log, "\"service\":\"proxy\""));
        assert(strstr(audit_log, "MESSAGE=Edit session " RUN_A ": GET proxy: 200 complete "));
        EXPECT(authorized("GET", "/v1/run", "", NULL), 401);
        char *told = through("GET http://elsewhere.example/x", h);
        EXPECT(told, 403);
        assert(strstr(told, "--allow-host") && !strstr(told, "definition"));

        /* It may be open for longer than its token is good for, but not after its end; and no run, or other session. */
        const uint64_t day = 24 * 3600, ago = (uint64_t) time(NULL) - 40 * day;
        _cleanup_free_ char *old = mint_at(key, live_a, live_a->jti, ago, ago + 30 * day),
                            *other = mint_at(key, live_a, "cccccccccccccccccccccccccccccccc", ago, ago + 30 * day),
                            *h_old = strprintf("Proxy-Authorization: Bearer %s\r\n", old),
                            *h_other = strprintf("Proxy-Authorization: Bearer %s\r\n", other);
        EXPECT(through(get, h_old), 200);
        EXPECT(through(get, h_other), 407);
        _cleanup_free_ char *file = strprintf("%s/%s.json", live_dir, live_a->run);
        assert(unlink(file) == 0);
        EXPECT(through(get, h_old), 407);
        live_a->holder = mfree(live_a->holder);
        assert(live_run_write(live_dir, live_a, (gid_t) -1) == 0);
        EXPECT(through(get, h_old), 407);
        EXPECT(through(get, h), 200);
        assert(strstr(authorized("GET", "/v1/run", "", NULL), " 401 ") == NULL);
}

static void test_tunnel(const char *target) {
        char buf[65536];

        agentd_log[0] = 0;
        audit_reset();
        int fd = open_tunnel(target, token_a, "early");
        int far = accept_one();
        assert(far >= 0);
        pump();
        ssize_t n = recv(far, buf, sizeof(buf), 0);
        assert(n == 5 && memcmp(buf, "early", 5) == 0);
        assert(send(far, "\0\1\2\r\n\r\n", 7, MSG_NOSIGNAL) == 7);
        pump();
        n = recv(fd, buf, sizeof(buf), MSG_DONTWAIT);
        static const char head[] = "HTTP/1.1 200 Connection Established\r\n\r\n";
        assert(n == (ssize_t) strlen(head) + 7 && memcmp(buf, head, strlen(head)) == 0 &&
               memcmp(buf + strlen(head), "\0\1\2\r\n\r\n", 7) == 0);

        /* The client ends its half; the other half goes on. */
        assert(shutdown(fd, SHUT_WR) == 0);
        pump();
        assert(recv(far, buf, sizeof(buf), 0) == 0);
        assert(send(far, "late", 4, MSG_NOSIGNAL) == 4);
        pump();
        assert(recv(fd, buf, sizeof(buf), MSG_DONTWAIT) == 4);
        safe_close(far);
        pump();
        assert(recv(fd, buf, sizeof(buf), MSG_DONTWAIT) == 0);
        safe_close(fd);
        pump();
        assert(n_audit == 1 && strstr(audit_log, "AGENT_METHOD=CONNECT ") &&
               strstr(audit_log, "AGENT_OUTCOME=complete "));
        assert(strstr(agentd_log, "\"method\":\"CONNECT\"") && strstr(agentd_log, "\"outcome\":\"complete\"") &&
               strstr(agentd_log, "\"request_bytes\":5,\"response_bytes\":11"));

        /* Much, both ways, against a reader that is slow at first: bounded, and byte-exact. */
        fd = open_tunnel(target, token_a, "");
        far = accept_one();
        assert(far >= 0);
        assert(recv(fd, buf, strlen(head), 0) == (ssize_t) strlen(head));
        for (unsigned direction = 0; direction < 2; direction++) {
                int from = direction ? far : fd, to = direction ? fd : far;
                size_t sent = 0, got = 0, total = 8 << 20;

                for (unsigned stuck = 0; stuck < 20;) { /* nobody reads: it stops by itself */
                        for (size_t i = 0; i < sizeof(buf); i++)
                                buf[i] = (char) ((sent + i) * 31 >> 3);
                        ssize_t k = send(from, buf, MIN(sizeof(buf), total - sent), MSG_NOSIGNAL | MSG_DONTWAIT);
                        sent += k > 0 ? (size_t) k : 0;
                        stuck = k > 0 ? 0 : stuck + 1;
                        pump();
                        if (sent == total)
                                break;
                }
                while (got < total) {
                        ssize_t k = recv(to, buf, sizeof(buf), MSG_DONTWAIT);
                        for (ssize_t i = 0; i < k; i++)
                                assert(buf[i] == (char) ((got + (size_t) i) * 31 >> 3));
                        got += k > 0 ? (size_t) k : 0;
                        for (size_t i = 0; i < sizeof(buf); i++)
                                buf[i] = (char) ((sent + i) * 31 >> 3);
                        k = sent < total ? send(from, buf, MIN(sizeof(buf), total - sent), MSG_NOSIGNAL | MSG_DONTWAIT)
                                         : 0;
                        sent += k > 0 ? (size_t) k : 0;
                        assert(sd_event_run(bridge->event, 0) >= 0);
                }
        }

        /* The run ends: so does the tunnel. */
        assert(register_run(RUN_A, listen_tcp(&address_a), -EBADF, listen_tcp(&address_p)) == 0);
        pump();
        assert(is_cut(far));
        safe_close(fd);
        safe_close(far);

        /* A host that does not answer, and one that must not be dialled. */
        proxy_of("localhost:1", NULL);
        fd = open_tunnel("localhost:1", token_a, "");
        EXPECT(receive(fd), 502);
        safe_close(fd);
}

int main(void) {
        harness_start();
        echo_listener = listen_tcp(&echo_address);
        assert(fcntl(echo_listener, F_SETFL, O_NONBLOCK) == 0);
        assert(register_run(RUN_A, listen_tcp(&address_a), -EBADF, listen_tcp(&address_p)) == 0);

        _cleanup_free_ char *origin = strprintf("http://localhost:%u", ntohs(upstream_address.sin_port)),
                            *target = strprintf("localhost:%u", ntohs(echo_address.sin_port));
        test_refusals(origin, origin + strlen("http://"));
        test_absolute(origin);
        test_edit_session(origin);
        test_omitted(origin);
        proxy_of(target, NULL);
        test_tunnel(target);
        safe_close(echo_listener);
        return harness_end();
}
