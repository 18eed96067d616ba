/* SPDX-License-Identifier: LGPL-2.1-or-later */
#undef NDEBUG

/* Proves the routes that keep something: events, metrics, usage, session, artifacts, runs; what they refuse; that what
 * agentd says is told; and that they survive an agentd that is away. */

#include "bridge-harness.h"

static void test_events(void) {
        char *s = authorized("POST", "/v1/run/events", "Content-Type: application/x-ndjson\r\n",
                             "{\"type\":\"step\",\"n\":1}\n{\"n\":2}\nbroken\n{\"type\":\"a b\"}\n\"x\"\n"
                             "{\"type\":\"end\"}");
        EXPECT(s, 200);
        assert(endswith(s, "{\"lines\":2,\"refused\":4}\n"));
        EXPECT(authorized("GET", "/v1/run/events", "", NULL), 405);
        EXPECT(ask("POST", "/v1/run/events", "", "{\"type\":\"x\"}"), 401);

        s = authorized("POST", "/v1/metrics", "",
                       "{\"name\":\"rows\",\"value\":3}\n{\"name\":\"rows\",\"value\":4.5,\"kind\":\"counter\"}\n"
                       "{\"name\":\"temp\",\"value\":-7,\"kind\":\"gauge\"}\n{\"name\":\"temp\",\"value\":2,"
                       "\"kind\":\"gauge\"}\n"
                       /* refused: */
                       "{\"name\":\"rows\",\"value\":-1}\n{\"name\":\"rows\",\"value\":1,\"kind\":\"gauge\"}\n"
                       "{\"name\":\"a b\",\"value\":1}\n{\"name\":\"x\",\"value\":\"1\"}\n{\"name\":\"x\"}\n"
                       "{\"name\":\"x\",\"value\":1,\"kind\":\"histogram\"}\n{\"value\":1}");
        EXPECT(s, 200);
        assert(endswith(s, "{\"lines\":4,\"refused\":7}\n"));
        BridgeRun *run = strmap_get(bridge->runs, RUN_A);
        assert(run->n_metrics == 2 && (int) (run->metrics[0].value * 2) == 15 &&
               (int) run->metrics[1].value == 2);

        /* A sum is a number, too. */
        s = authorized("POST", "/v1/metrics", "",
                       "{\"name\":\"huge\",\"value\":1e308}\n{\"name\":\"huge\",\"value\":1e308}");
        assert(endswith(s, "{\"lines\":1,\"refused\":1}\n"));

        /* Names cannot be had without end, and events count against the log's limit. */
        _cleanup_free_ char *many = NULL;
        size_t size;
        FILE *f = open_memstream(&many, &size);
        for (unsigned i = 0; i < 40; i++)
                fprintf(f, "{\"name\":\"m%u\",\"value\":1}\n", i);
        fclose(f);
        for (unsigned i = 0; i < 3; i++)
                (void) authorized("POST", "/v1/metrics", "", many);
        assert(run->n_metrics <= RUN_METRICS_MAX);
        EXPECT(authorized("POST", "/v1/run/events", "", many), 413);
}

static void test_session(void) {
        EXPECT(authorized("GET", "/v1/session", "", NULL), 404); /* without one */

        /* The live file is what counts, also in mid-run. */
        free(live_a->session);
        live_a->session = strdup("monday");
        assert(live_run_write(live_dir, live_a, (gid_t) -1) == 0);
        EXPECT(authorized("GET", "/v1/session", "", NULL), 401); /* the token is of no session */
        free(token_a);
        RunClaims claims = { .user = live_a->user, .agent = live_a->agent, .session = live_a->session };
        strcpy(claims.run, live_a->run);
        strcpy(claims.jti, live_a->jti);
        claims.iat = claims.nbf = (uint64_t) time(NULL);
        claims.exp = claims.iat + 600;
        assert(run_token_mint(key, &claims, &token_a) == 0);

        EXPECT(authorized("GET", "/v1/session", "", NULL), 404);
        agentd_away = 2;
        char *s = authorized("PUT", "/v1/session", "Content-Type: application/json\r\n", "{\"n\":1}");
        EXPECT(s, 204);
        assert(strstr(s, "\r\nETag: \"1\"\r\n") && agentd_away == 0);
        s = authorized("GET", "/v1/session", "", NULL);
        EXPECT(s, 200);
        assert(strstr(s, "\r\nETag: \"1\"\r\n") && strstr(s, "Content-Type: application/json\r\n") &&
               endswith(s, "\r\n\r\n{\"n\":1}"));
        EXPECT(authorized("PUT", "/v1/session", "If-Match: \"1\"\r\n", "two"), 204);
        s = authorized("PUT", "/v1/session", "If-Match: \"1\"\r\n", "three");
        EXPECT(s, 412);
        s = authorized("GET", "/v1/session", "", NULL);
        assert(endswith(s, "\r\n\r\ntwo") && strstr(s, "application/octet-stream"));

        /* Any bytes, up to 1 MiB. */
        _cleanup_free_ char *big = malloc((1 << 20) + 2), *head = NULL;
        for (size_t i = 0; i < (1 << 20) + 1; i++)
                big[i] = (char) (i * 7 + i / 251);
        for (unsigned over = 0; over < 2; over++) {
                size_t n = (1 << 20) + over, sent = 0;

                free(head);
                head = strprintf("PUT /v1/session HTTP/1.1\r\nHost: x\r\nConnection: close\r\nx-api-key: %s\r\n"
                                 "Content-Length: %zu\r\n\r\n", token_a, n);
                int fd = dial(&address_a);
                assert(send(fd, head, strlen(head), MSG_NOSIGNAL) > 0);
                pump();
                while (sent < n && !over) {
                        ssize_t k = send(fd, big + sent, n - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
                        sent += k > 0 ? (size_t) k : 0;
                        pump();
                }
                EXPECT(receive(fd), over ? 413 : 204);
                safe_close(fd);
                assert(session_size == 1 << 20 && memcmp(session_data, big, 1 << 20) == 0);
        }
        _cleanup_free_ char *want = NULL;
        want = strprintf("GET /v1/session HTTP/1.1\r\nHost: x\r\nConnection: close\r\nx-api-key: %s\r\n\r\n", token_a);
        int fd = dial(&address_a);
        assert(send(fd, want, strlen(want), MSG_NOSIGNAL) > 0);
        static char got[(1 << 20) + 4096];
        size_t n = 0;
        for (unsigned quiet = 0; quiet < 20;) {
                ssize_t k = recv(fd, got + n, sizeof(got) - n, MSG_DONTWAIT);
                if (k == 0)
                        break;
                if (k > 0)
                        n += (size_t) k;
                quiet = k > 0 ? 0 : quiet + 1;
                pump();
        }
        safe_close(fd);
        assert(n > 1 << 20 && memcmp(got + n - (1 << 20), big, 1 << 20) == 0);
}

static void test_usage(void) {
        agentd_away = 1;
        char *s = authorized("POST", "/v1/usage", "", "{\"key\":\"a\",\"amount\":5,\"description\":\"a chart\"}");
        EXPECT(s, 201);
        assert(endswith(s, "{\"status\":\"recorded\"}\n"));
        EXPECT(authorized("POST", "/v1/usage", "", "{\"key\":\"known\",\"amount\":5}"), 200);
        EXPECT(authorized("POST", "/v1/usage", "", "{\"key\":\"conflict\",\"amount\":5}"), 409);
        EXPECT(authorized("POST", "/v1/usage", "", "{\"key\":\"much\",\"amount\":1001}"), 402);
        static const char *const bad[] = {
                "", "x", "[]", "{}", "{\"key\":\"a\"}", "{\"amount\":5}", "{\"key\":\"a\",\"amount\":0}",
                "{\"key\":\"a\",\"amount\":-5}", "{\"key\":\"a\",\"amount\":1.5}", "{\"key\":\"a\",\"amount\":\"5\"}",
                "{\"key\":\"a\",\"amount\":1e30}", "{\"key\":\"a\",\"amount\":99999999999999999999}",
                "{\"key\":\"a b\",\"amount\":5}", "{\"key\":\"a\",\"amount\":5,\"amount\":6}",
                "{\"key\":\"a\",\"amount\":9223372036854775808}", "{\"key\":\"a\",\"amount\":5,\"description\":\"a\\nb\"}",
        };
        for (size_t i = 0; i < ELEMENTSOF(bad); i++)
                EXPECT(authorized("POST", "/v1/usage", "", bad[i]), 422);
}

static void test_reading(void) {
        _cleanup_free_ char *path = strprintf("%s/art", dir);

        EXPECT(authorized("GET", "/v1/artifacts/there.png", "", NULL), 404);
        artifact_fd = open(path, O_CREAT | O_TRUNC | O_RDWR | O_CLOEXEC, 0600);
        static char bytes[300000];
        for (size_t i = 0; i < sizeof(bytes); i++)
                bytes[i] = (char) ('a' + i % 23);
        assert(write_full(artifact_fd, bytes, sizeof(bytes)) == 0);
        char *s = authorized("GET", "/v1/artifacts/there%2Epng", "", NULL);
        EXPECT(s, 200);
        assert(strstr(s, "Content-Type: image/png\r\n") && strstr(s, "Content-Length: 300000\r\n"));
        s = strstr(s, "\r\n\r\n") + 4;
        assert(strlen(s) == sizeof(bytes) && memcmp(s, bytes, sizeof(bytes)) == 0);
        s = authorized("HEAD", "/v1/artifacts/there.png", "", NULL);
        EXPECT(s, 200);
        assert(endswith(s, "\r\n\r\n") && strstr(s, "Content-Length: 300000\r\n"));
        EXPECT(authorized("GET", "/v1/artifacts/other", "", NULL), 404);
        EXPECT(authorized("GET", "/v1/artifacts/.x", "", NULL), 404);
        EXPECT(authorized("GET", "/v1/artifacts/a%2Fb", "", NULL), 400);
        EXPECT(authorized("GET", "/v1/artifacts/..%2fstore.db", "", NULL), 400);
        EXPECT(authorized("DELETE", "/v1/artifacts/there.png", "", NULL), 405);
        artifact_fd = safe_close(artifact_fd);

        s = authorized("GET", "/v1/runs/" RUN_A, "", NULL);
        EXPECT(s, 200);
        assert(endswith(s, "{\"state\":\"running\"}"));
        EXPECT(authorized("GET", "/v1/runs/" RUN_B, "", NULL), 404);
        EXPECT(authorized("GET", "/v1/runs/../x", "", NULL), 400);
        EXPECT(authorized("GET", "/v1/runs/xyz", "", NULL), 404);
        EXPECT(authorized("POST", "/v1/runs/" RUN_A, "", "x"), 405);
}

int main(void) {
        harness_start();
        test_events();
        test_session();
        test_usage();
        test_reading();
        assert(report_queue_size(bridge->reports) == 0);
        return harness_end();
}
