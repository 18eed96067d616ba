/* SPDX-License-Identifier: LGPL-2.1-or-later */
#undef NDEBUG

/* Proves policy and audit: denials before allowances, limits per run, user and service, approval; one answer with one
 * id and one record for each request, none of which has a secret in it; errors in the provider's own shape; services by
 * their host names; escaped slashes; links. */

#include "bridge-harness.h"
#include "links.h"
#include "routes.h"

static LiveRun *live_c;
static struct sockaddr_in address_c;
static char *token_c;
#define RUN_C "cccccccccccccccccccccccccccccccc"

/* A run with services as a test wants them. */
static void make_run_c(void) {
        static const char *const definitions[] = {
                "{\"name\":\"denied\",\"base_url\":\"http://127.0.0.1:%u/base\",\"auth\":{\"kind\":\"bearer\"},"
                "\"allow\":[{\"methods\":[\"GET\",\"POST\"],\"paths\":[\"/*\"]}],"
                "\"deny\":[{\"methods\":[\"POST\"],\"paths\":[\"/app/installations/*/access_tokens\"]},"
                "{\"methods\":[\"GET\",\"POST\"],\"paths\":[\"/user/keys\",\"/admin/*\"]}]}",
                "{\"name\":\"few\",\"base_url\":\"http://127.0.0.1:%u/base\",\"auth\":{\"kind\":\"none\"},"
                "\"allow\":[{\"methods\":[\"GET\"],\"paths\":[\"/*\"]}],\"limits\":{\"concurrent\":1}}",
                "{\"name\":\"slow\",\"base_url\":\"http://127.0.0.1:%u/base\",\"auth\":{\"kind\":\"none\"},"
                "\"allow\":[{\"methods\":[\"GET\"],\"paths\":[\"/*\"]}],\"limits\":{\"requests_per_second\":1,\"burst\":2}}",
                "{\"name\":\"asked\",\"base_url\":\"http://127.0.0.1:%u/base\",\"auth\":{\"kind\":\"bearer\"},"
                "\"allow\":[{\"methods\":[\"GET\"],\"paths\":[\"/*\"]},"
                "{\"methods\":[\"POST\"],\"paths\":[\"/*\"],\"approval\":true}]}",
                "{\"name\":\"openai\",\"base_url\":\"http://127.0.0.1:%u/base\",\"auth\":{\"kind\":\"none\"},"
                "\"allow\":[],\"errors\":\"openai\"}",
                "{\"name\":\"anthropic\",\"base_url\":\"http://127.0.0.1:%u/base\",\"auth\":{\"kind\":\"none\"},"
                "\"allow\":[],\"errors\":\"anthropic\"}",
                "{\"name\":\"objects\",\"base_url\":\"http://127.0.0.1:%u/base\",\"auth\":{\"kind\":\"none\"},"
                "\"allow\":[{\"methods\":[\"GET\"],\"paths\":[\"/o/*\"]}],\"encoded_slash\":true}",
                "{\"name\":\"jar\",\"base_url\":\"http://127.0.0.1:%u/base\",\"auth\":{\"kind\":\"bearer\"},"
                "\"allow\":[{\"methods\":[\"GET\"],\"paths\":[\"/*\"]}],\"cookies\":true}",
                "{\"name\":\"hosted\",\"base_url\":\"http://localhost:%u/base/deep\",\"auth\":{\"kind\":\"bearer\"},"
                "\"allow\":[{\"methods\":[\"GET\"],\"paths\":[\"/*\"]}]}",
        };

        assert(live_run_new(&live_c) == 0);
        strcpy(live_c->run, RUN_C);
        strcpy(live_c->jti, "33333333333333333333333333333333");
        live_c->user = strdup("alice");
        live_c->uid = 1000;
        live_c->agent = strdup("analyst");
        live_c->deadline_usec = ((uint64_t) time(NULL) + 600) * USEC_PER_SEC;
        for (size_t i = 0; i < ELEMENTSOF(definitions); i++) {
                _cleanup_(service_unrefp) Service *s = NULL;
                _cleanup_free_ char *text = NULL, *error = NULL;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
                text = strprintf(definitions[i], ntohs(upstream_address.sin_port));
#pragma GCC diagnostic pop
                int r = service_parse(text, strlen(text), SERVICE_ALLOW_HTTP, &s, &error);
                if (r < 0)
                        fprintf(stderr, "%s: %s\n", text, error);
                assert(r == 0 && live_run_add_service(live_c, s) == 0);
        }
        assert(live_run_write(live_dir, live_c, (gid_t) -1) == 0);
        token_c = mint(key, live_c, live_c->jti);
        free(token_a);
        token_a = strdup(token_c); /* what the strong room expects, and what helpers send */
        assert(register_run(RUN_C, listen_tcp(&address_c), -EBADF, -EBADF) == 0);
        address_a = address_c;
}

static void test_deny(void) {
        n_upstream = n_get = 0;
        EXPECT(authorized("POST", "/v1/services/denied/app/installations/7/access_tokens", "", "x"), 403);
        EXPECT(authorized("POST", "/v1/services/denied/app/installations/7/access_tokens/", "", "x"), 403);
        EXPECT(authorized("POST", "/v1/services/denied/app/installations/%37/access%5ftokens", "", "x"), 403);
        EXPECT(authorized("GET", "/v1/services/denied/user/keys", "", NULL), 403);
        EXPECT(authorized("GET", "/v1/services/denied/admin/x/y", "", NULL), 403);
        EXPECT(authorized("GET", "/v1/services/denied/admin", "", NULL), 403);
        assert(n_upstream == 0 && n_get == 0);
        EXPECT(authorized("GET", "/v1/services/denied/app/installations/7/access_tokens", "", NULL), 200);
        EXPECT(authorized("GET", "/v1/services/denied/user", "", NULL), 200);
        EXPECT(authorized("GET", "/v1/services/denied/administrators", "", NULL), 200);
}

/* Cookies pass where the definition says so, and nowhere else. */
static void test_cookies(void) {
        char *s = authorized("GET", "/v1/services/jar/echo", "Cookie: s=1; t=2\r\n", NULL);
        EXPECT(s, 200);
        assert(strstr(upstream_saw, "\nCookie: s=1; t=2\n") &&
               strstr(s, "\r\nSet-Cookie: a=b; Path=/v1/services/jar\r\n"));
        s = authorized("GET", "/v1/services/denied/echo", "Cookie: s=1; t=2\r\n", NULL);
        EXPECT(s, 200);
        assert(!strstr(upstream_saw, "ookie") && !strstr(s, "Set-Cookie"));
        EXPECT(authorized("GET", "/v1/services/jar/x", "Connection: close, cookie\r\nCookie: s=1\r\n", NULL), 200);
        assert(!strstr(upstream_saw, "ookie"));
        _cleanup_free_ char *token = strprintf("Cookie: session=%s\r\n", token_a);
        EXPECT(authorized("GET", "/v1/services/jar/x", token, NULL), 200);
        assert(!strstr(upstream_saw, "ookie"));
        EXPECT(authorized("GET", "/v1/services/jar/x", "Cook_ie: a\r\nCOOKIE2: b\r\n", NULL), 200);
        assert(!strcasestr(upstream_saw, "cook"));
}

static int hold(const char *service) {
        _cleanup_free_ char *head = strprintf("GET /v1/services/%s/hold HTTP/1.1\r\nHost: x\r\nx-api-key: %s\r\n\r\n",
                                              service, token_a);
        int fd = dial(&address_a);

        upstream_held = NULL;
        assert(send(fd, head, strlen(head), MSG_NOSIGNAL) > 0);
        pump();
        assert(upstream_held);
        return fd;
}

static void test_limits(void) {
        /* Of a service: one at a time. Others are not concerned, and the place comes back however the call ended. */
        int fd = hold("few");
        n_upstream = 0;
        char *s = authorized("GET", "/v1/services/few/x", "", NULL);
        EXPECT(s, 429);
        assert(strstr(s, "\r\nRetry-After: 1\r\n") && n_upstream == 0);
        EXPECT(authorized("GET", "/v1/services/denied/x", "", NULL), 200);
        safe_close(fd);
        pump();
        EXPECT(authorized("GET", "/v1/services/few/x", "", NULL), 200);
        EXPECT(authorized("GET", "/v1/services/few/short", "", NULL), 200);
        EXPECT(authorized("GET", "/v1/services/few/x", "", NULL), 200);

        /* Of a service: so often. */
        unsigned passed = 0;
        for (unsigned i = 0; i < 4; i++)
                passed += status_of(authorized("GET", "/v1/services/slow/x", "", NULL)) == 200;
        assert(passed >= 2 && passed < 4);

        /* Of a run, and of a user: calls of all of its services. */
        bridge->config.run_limit.concurrent = 1;
        fd = hold("denied");
        EXPECT(authorized("GET", "/v1/services/objects/o/x", "", NULL), 429);
        EXPECT(authorized("GET", "/v1/run", "", NULL), 503); /* no task file; but no limit */
        safe_close(fd);
        pump();
        bridge->config.run_limit.concurrent = 0;
        bridge->config.user_limit.concurrent = 1;
        fd = hold("denied");
        EXPECT(authorized("GET", "/v1/services/objects/o/x", "", NULL), 429);
        safe_close(fd);
        pump();
        bridge->config.user_limit.concurrent = 0;
        EXPECT(authorized("GET", "/v1/services/objects/o/x", "", NULL), 200);

        /* Of a run: requests of any kind; a stranger's count for nobody. */
        bridge->config.run_limit = (Limit) { .rate = 1, .burst = 1 };
        for (unsigned i = 0; i < 3; i++)
                EXPECT(ask("GET", "/v1/run", "", NULL), 401);
        EXPECT(authorized("GET", "/v1/nothing", "", NULL), 404);
        EXPECT(authorized("GET", "/v1/nothing", "", NULL), 429);
        bridge->config.run_limit = (Limit) {};

        /* A body's size: the bridge's own word over the service's. */
        bridge->config.body_max = 10;
        EXPECT(authorized("POST", "/v1/services/denied/count", "", "0123456789"), 200);
        EXPECT(authorized("POST", "/v1/services/denied/count", "", "0123456789a"), 413);
        bridge->config.body_max = UINT64_MAX;
        assert(bridge->counters.limited >= 6);
}

static int post_asked(void) {
        _cleanup_free_ char *text = strprintf(
                "POST /v1/services/asked/count HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
                "x-api-key: %s\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n",
                token_a);
        int fd = dial(&address_a);

        assert(send(fd, text, strlen(text), MSG_NOSIGNAL) > 0);
        pump();
        return fd;
}

static void test_approval(void) {
        n_upstream = n_get = 0;
        EXPECT(authorized("GET", "/v1/services/asked/x", "", NULL), 200);
        assert(!approval_call && n_upstream == 1);

        /* Yes. Until then nothing is looked up, sent or read, not even the body is asked for. */
        n_upstream = n_get = 0;
        upstream_body = 0;
        int fd = post_asked();
        assert(approval_call && n_upstream == 0 && n_get == 0);
        char c;
        assert(recv(fd, &c, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN);
        assert(sd_bus_reply_method_return(approval_call, "b", 1) >= 0);
        approval_call = sd_bus_message_unref(approval_call);
        pump();
        char *s = receive(fd);
        assert(streq(s, "HTTP/1.1 100 Continue\r\n\r\n"));
        assert(send(fd, "hello", 5, MSG_NOSIGNAL) == 5);
        s = receive(fd);
        EXPECT(s, 200);
        assert(upstream_body == 5 && n_get == 1);
        safe_close(fd);

        /* No. */
        n_upstream = n_get = 0;
        fd = post_asked();
        assert(sd_bus_reply_method_return(approval_call, "b", 0) >= 0);
        approval_call = sd_bus_message_unref(approval_call);
        pump();
        s = receive(fd);
        EXPECT(s, 403);
        assert(strstr(s, "approval-denied") && n_upstream == 0 && n_get == 0);
        safe_close(fd);

        /* No answer. */
        bridge->config.approval_usec = 50 * USEC_PER_MSEC;
        fd = post_asked();
        s = receive(fd);
        EXPECT(s, 403);
        assert(strstr(s, "approval-timeout") && n_upstream == 0);
        safe_close(fd);
        (void) sd_bus_reply_method_return(approval_call, "b", 1); /* too late */
        approval_call = sd_bus_message_unref(approval_call);
        pump();
        assert(n_upstream == 0);

        /* Nobody waits any more. */
        bridge->config.approval_usec = 300 * USEC_PER_SEC;
        fd = post_asked();
        safe_close(fd);
        pump();
        (void) sd_bus_reply_method_return(approval_call, "b", 1);
        approval_call = sd_bus_message_unref(approval_call);
        pump();
        assert(n_upstream == 0);
}

static void test_shapes(void) {
        char *s = authorized("POST", "/v1/services/openai/chat/completions", "", "{}");
        EXPECT(s, 403);
        assert(strstr(s, "Content-Type: application/json\r\n"));
        assert(strstr(s, "\r\n\r\n{\"error\":{\"message\":\"agent-bridge: ") &&
               strstr(s, "\"param\":null,\"code\":\"not-allowed\""));
        s = authorized("POST", "/v1/services/anthropic/v1/messages", "", "{}");
        EXPECT(s, 403);
        assert(strstr(
                s,
                "\r\n\r\n{\"type\":\"error\",\"error\":{\"type\":\"permission_error\",\"message\":\"agent-bridge: "));
        s = authorized("POST", "/v1/services/denied/user/keys", "", "{}");
        assert(strstr(s, "Content-Type: application/problem+json\r\n") && strstr(s, "urn:agentd:problem:not-allowed"));
}

static void test_slashes(void) {
        EXPECT(authorized("GET", "/v1/services/objects/o/a%2Fb%20c?x=%2B", "", NULL), 200);
        assert(startswith(upstream_saw, "GET /base/o/a%2Fb%20c?x=%2B\n"));
        EXPECT(authorized("GET", "/v1/services/objects/o/a%2fb", "", NULL), 200);
        assert(startswith(upstream_saw, "GET /base/o/a%2Fb\n"));
        n_upstream = 0;
        static const char *const bad[] = { "/o/a%2F..%2Fb", "/o/%2e%2e%2Fb", "/o/a%2F%2E%2E",
                                           "/o/..%2Fadmin", "/o/a%5cb",      "/o/a%252Fb",
                                           "/o/a%2F%2e",    "/o/%2F/..",     "/o/.%2F" };
        for (size_t i = 0; i < ELEMENTSOF(bad); i++) {
                _cleanup_free_ char *path = strprintf("/v1/services/objects%s", bad[i]);
                EXPECT(authorized("GET", path, "", NULL), 400);
        }
        /* It is a character of a name, not a way into another folder. */
        EXPECT(authorized("GET", "/v1/services/objects%2Fo/x", "", NULL), 404);
        EXPECT(authorized("GET", "/v1/services/objects/x%2F..%2Fo/y", "", NULL), 400);
        EXPECT(authorized("GET", "/v1/services/denied/a%2fb", "", NULL), 400);
        EXPECT(authorized("GET", "/v1%2frun", "", NULL), 400);
        assert(n_upstream == 0);
}

static void test_hosts(void) {
        _cleanup_free_ char *path = strprintf("%s/sock", dir);
        struct sockaddr_un sa = { .sun_family = AF_UNIX };
        struct {
                const char *host, *path;
                unsigned status;
                const char *saw;
        } cases[] = {
                { "localhost:PORT", "/base/deep/a?b", 200, "GET /base/deep/a?b\n" },
                { "LOCALHOST:PORT", "/base/deep", 200, "GET /base/deep\n" },
                { "localhost:PORT", "/base/x", 404, NULL },
                { "localhost:PORT", "/base/deeper", 404, NULL },
                { "localhost:PORT", "/base/deep/../x", 400, NULL },
                { "localhost:1", "/base/deep/a", 404, NULL },
                { "localhost.:PORT", "/base/deep/a", 404, NULL },
                { "localhost", "/base/deep/a", 404, NULL },
                { "127.0.0.1:PORT", "/base/deep/a", 404, NULL },
                { "[::1]:PORT", "/base/deep/a", 404, NULL },
                { "0x7f000001:PORT", "/base/deep/a", 404, NULL },
                { "localhost.evil.example:PORT", "/base/deep/a", 404, NULL },
                { "agent-bridge.", "/v1/services/denied/x", 404, NULL },
                { "AGENT-bridge", "/v1/services/denied/x", 200, "GET /base/x\n" },
                { "api.evil.example", "/base/deep/a", 404, NULL },
                { "169.254.169.254", "/", 404, NULL },
                { "agent-bridge", "/v1/services/denied/x", 200, "GET /base/x\n" },
                { "localhost", "/v1/services/denied/x", 200, "GET /base/x\n" },
                { "agent-bridge", "/base/deep/a", 404, NULL },
        };

        assert(register_run(RUN_C, listen_tcp(&address_c), listen_unix(path), -EBADF) == 0);
        address_a = address_c;
        snprintf(sa.sun_path, sizeof(sa.sun_path), "%s", path);
        for (size_t i = 0; i < ELEMENTSOF(cases); i++)
                for (unsigned with = 0; with < 2; with++) {
                        char host[64], *port;
                        snprintf(host, sizeof(host), "%s", cases[i].host);
                        if ((port = strstr(host, "PORT")))
                                snprintf(port, 8, "%u", ntohs(upstream_address.sin_port));
                        _cleanup_free_ char *text = strprintf("GET %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n"
                                                              "%s%s\r\n\r\n", cases[i].path, host,
                                                              with ? "Authorization: token " : "X-None: ",
                                                              with ? token_a : "x");
                        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
                        assert(connect(fd, (struct sockaddr *) &sa, sizeof(sa)) == 0);
                        assert(send(fd, text, strlen(text), MSG_NOSIGNAL) > 0);
                        upstream_saw[0] = 0;
                        pump();
                        EXPECT(receive(fd), with ? cases[i].status : 401);
                        if (with && cases[i].saw)
                                assert(startswith(upstream_saw, cases[i].saw) && strstr(upstream_saw, SECRET));
                        safe_close(fd);
                        pump();
                }
        /* By TCP a Host means nothing. */
        EXPECT(authorized("GET", "/base/deep/a", "", NULL), 404);
}

static const char *count_of(const char *text, const char *what, unsigned *ret) {
        *ret = 0;
        for (const char *p = text; (p = strstr(p, what)); p++)
                (*ret)++;
        return text;
}

static void test_audit(void) {
        unsigned n;

        /* One record for one request, whatever becomes of it. */
        audit_reset();
        EXPECT(authorized("GET", "/v1/services/denied/secret-path?secret=query", "X-Secret: header\r\n", NULL), 200);
        assert(n_audit == 1);
        assert(strstr(audit_log, "AGENT_RUN=" RUN_C " ") && strstr(audit_log, "AGENT_USER=alice ") &&
               strstr(audit_log, "AGENT_NAME=analyst ") && strstr(audit_log, "AGENT_SERVICE=denied ") &&
               strstr(audit_log, "AGENT_PATH=/secret-path ") && strstr(audit_log, "AGENT_STATUS=200 ") &&
               strstr(audit_log, "AGENT_OUTCOME=complete ") && strstr(audit_log, "AGENT_METHOD=GET ") &&
               strstr(audit_log, "AGENT_RESPONSE_BYTES=4 "));
        assert(!strstr(audit_log, "query") && !strstr(audit_log, "header") && !strstr(audit_log, SECRET) &&
               !strstr(audit_log, "eyJ"));

        static const char *const requests[] = {
                "GET /v1/run HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
                "GET /v1/run HTTP/1.1\r\nHost: x\r\nConnection: close\r\nx-api-key: eyJhbGciOiJub25lIn0.e30.\r\n\r\n",
                "GET / HTTP/1.1\nHost: x\n\n",
                "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
                "GET /v1/run HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade, close\r\n\r\n",
                "GET /\x01 HTTP/1.1\r\nHost: x\r\n\r\n",
        };
        for (size_t i = 0; i < ELEMENTSOF(requests); i++) {
                audit_reset();
                assert(status_of(ask_at(&address_a, requests[i])) >= 400);
                if (n_audit != 1)
                        fprintf(stderr, "%zu: %s", i, audit_log);
                assert(n_audit == 1 && !strstr(audit_log, "eyJ"));
                count_of(audit_log, "\n", &n);
                assert(n == 1);
        }
        audit_reset();
        int fd = dial(&address_a);
        safe_close(fd);
        pump();
        assert(n_audit == 0); /* no request, no record */

        /* A wrong token: why is for the administrator alone. */
        audit_reset();
        _cleanup_free_ char *h = strprintf("x-api-key: %s\r\n", token_b);
        EXPECT(ask("GET", "/v1/run", h, NULL), 401);
        assert(strstr(audit_log, "AGENT_REASON=token of another run ") && !strstr(audit_log, "AGENT_USER=") &&
               strstr(audit_log, "AGENT_PROBLEM=token-refused "));

        /* A token in the path is in no record, and in no receipt. */
        audit_reset();
        agentd_log[0] = 0;
        _cleanup_free_ char *path = strprintf("/v1/services/denied/x/%s/y", token_a);
        EXPECT(authorized("GET", path, "", NULL), 400);
        assert(n_audit == 1 && !strstr(audit_log, "eyJ") && !strstr(agentd_log, "eyJ") &&
               strstr(agentd_log, "ReportCall"));

        /* Clients that go, upstreams that break. */
        audit_reset();
        fd = hold("denied");
        safe_close(fd);
        pump();
        assert(n_audit == 1 && strstr(audit_log, "AGENT_OUTCOME=client_closed ") &&
               strstr(audit_log, "AGENT_STATUS=0 "));
        audit_reset();
        EXPECT(authorized("GET", "/v1/services/denied/short", "", NULL), 200);
        assert(n_audit == 1 && strstr(audit_log, "AGENT_OUTCOME=upstream_error "));

        /* The id that the client is told is the one in the record and in the receipt. */
        audit_reset();
        agentd_log[0] = 0;
        _cleanup_free_ char *text = strprintf("GET /v1/services/denied/x HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
                                              "x-api-key: %s\r\nAgent-Request-Id: mine\r\n\r\n", token_a);
        static char raw[4096];
        size_t got = 0;
        fd = dial(&address_a);
        assert(send(fd, text, strlen(text), MSG_NOSIGNAL) > 0);
        for (unsigned quiet = 0; quiet < 10;) {
                ssize_t k = recv(fd, raw + got, sizeof(raw) - 1 - got, MSG_DONTWAIT);
                if (k == 0)
                        break;
                got += k > 0 ? (size_t) k : 0;
                quiet = k > 0 ? 0 : quiet + 1;
                pump();
        }
        raw[got] = 0;
        safe_close(fd);
        char *id = strstr(raw, "\r\nAgent-Request-Id: "), field[128];
        assert(id && strlen(id) > 52 && !strstr(raw, "mine"));
        snprintf(field, sizeof(field), "AGENT_REQUEST_ID=%.32s ", id + 20);
        assert(strstr(audit_log, field));
        count_of(raw, "Agent-Request-Id", &n);
        assert(n == 1);
}

static uint64_t flood_records, flood_omitted;

static void audit_flood(const Text *record) {
        const char *omitted = memmem(record->start, text_size(record), "\nAGENT_OMITTED=", 15);
        uint64_t n = omitted ? strtoull(omitted + 15, NULL, 10) : 0;

        flood_omitted += n;
        flood_records += n == 0;
}

/* A sandbox that hammers at the door does not fill the journal; but it is told how often it did. */
static void test_flood(void) {
        static const char request[] = "GET /v1/run HTTP/1.1\r\nHost: x\r\n\r\n", bad[] = "GET / HTTP/1.1\nHost: x\n\n";
        enum { N = 3000 };
        char buf[65536];

        audit_sink = audit_flood;
        int fd = dial(&address_a);
        for (size_t sent = 0, l = strlen(request); sent < N * l;) {
                ssize_t k = send(fd, request + sent % l, l - sent % l, MSG_NOSIGNAL | MSG_DONTWAIT);

                sent += k > 0 ? (size_t) k : 0;
                if (k <= 0)
                        assert(sd_event_run(bridge->event, 10 * USEC_PER_MSEC) >= 0);
                while (recv(fd, buf, sizeof(buf), MSG_DONTWAIT) > 0)
                        ;
        }
        for (unsigned quiet = 0; quiet < 20;) {
                quiet = sd_event_run(bridge->event, USEC_PER_MSEC) > 0 ? 0 : quiet + 1;
                while (recv(fd, buf, sizeof(buf), MSG_DONTWAIT) > 0)
                        ;
        }
        safe_close(fd);
        for (unsigned i = 0; i < 5; i++)
                EXPECT(ask_at(&address_a, bad), 400);
        uint64_t before = flood_records;
        EXPECT(authorized("GET", "/v1/nothing", "", NULL), 404); /* who was let in has his own */
        assert(flood_records == before + 1);
        assert(register_run(RUN_C, listen_tcp(&address_c), -EBADF, -EBADF) == 0); /* the end of the listener */
        address_a = address_c;
        assert(flood_records < N / 2 && flood_records + flood_omitted == N + 6);
        audit_sink = audit_to_log;
}

static void test_links(void) {
        static const struct {
                const char *in, *out;
        } cases[] = {
                { "<http://127.0.0.1:PORT/base/r?page=2>; rel=\"next\", <http://127.0.0.1:PORT/base/r?page=9>; rel=\"last\"",
                  "</v1/services/denied/r?page=2>; rel=\"next\", </v1/services/denied/r?page=9>; rel=\"last\"" },
                { "<http://evil.example/base/r>; rel=next", "<http://evil.example/base/r>; rel=next" },
                { "</base/r>; title=\"<http://127.0.0.1:PORT/base/x>\"",
                  "</v1/services/denied/r>; title=\"</v1/services/denied/x>\"" },
                { "no link at all <", "no link at all <" },
                { "", "" },
        };
        Service *s = live_run_find_service(live_c, "denied");

        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                char text[2][512];
                for (unsigned k = 0; k < 2; k++) {
                        const char *from = k ? cases[i].out : cases[i].in;
                        size_t n = 0;
                        for (; *from && n < sizeof(text[k]) - 8; from++)
                                if (startswith(from, "PORT")) {
                                        n += (size_t) snprintf(text[k] + n, 8, "%u", ntohs(upstream_address.sin_port));
                                        from += 3;
                                } else
                                        text[k][n++] = *from;
                        text[k][n] = 0;
                }
                _cleanup_free_ char *out = NULL;
                LinkBase base = { .service = s, .path = "/x", .authority = "x", .port = 8377 };
                assert(rewrite_link(&base, text[0], &out) == 0);
                if (!streq(out, text[1]))
                        fprintf(stderr, "%s\n%s\n", out, text[1]);
                assert(streq(out, text[1]));
        }
}

static void test_metrics(void) {
        HttpListener *control;
        struct sockaddr_in sa;

        assert(http_listener_new(bridge->server, listen_tcp(&sa), routes_handle_control, bridge, &control) == 0);
        static const char get[] = "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
        char *s = ask_at(&sa, get);
        EXPECT(s, 200);
        assert(strstr(s, "application/openmetrics-text") && endswith(s, "# EOF\n"));
        assert(strstr(s, "\nagent_bridge_runs 3\n") &&
               strstr(s, "\nagent_bridge_requests_total{outcome=\"complete\"} ") &&
               strstr(s, "\nagent_bridge_route_requests_total{route=\"service\"} "));
        /* Each family once, with its type before its samples. */
        unsigned n;
        count_of(s, "# TYPE agent_bridge_requests counter\n", &n);
        assert(n == 1);
        static const char health[] = "GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
        EXPECT(ask_at(&sa, health), 200);
        http_listener_free(control);
        /* The sandbox has neither, with or without a token. */
        EXPECT(authorized("GET", "/metrics", "", NULL), 404);
        EXPECT(authorized("GET", "/healthz", "User-Agent: GoogleHC/1.0\r\n", NULL), 404);
        EXPECT(ask("GET", "/healthz", "User-Agent: GoogleHC/1.0\r\n", NULL), 401);
}

int main(void) {
        harness_start();
        make_run_c();
        test_deny();
        test_cookies();
        test_limits();
        test_approval();
        test_shapes();
        test_slashes();
        test_audit();
        test_flood();
        test_links();
        test_metrics();
        test_hosts();
        live_run_unref(live_c);
        free(token_c);
        return harness_end();
}
