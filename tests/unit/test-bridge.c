/* SPDX-License-Identifier: LGPL-2.1-or-later */
#undef NDEBUG

/*
 * The whole bridge in one process, with a strong room, an agentd and an upstream of the test's own in the same event
 * loop: who may speak, what reaches the upstream and what does not, what comes back, and that reports survive an
 * agentd that is away. The upstream is our own server over plain HTTP on loopback, which only a test can allow.
 */

#include <sys/mman.h>
#include <sys/stat.h>

#include "bridge-harness.h"

/* ---- tests ---- */

static void test_auth(void) {
        static char refusal[4096];
        _cleanup_free_ char *foreign = mint(other_key, live_a, live_a->jti);
        _cleanup_free_ char *old = mint(key, live_a, "cccccccccccccccccccccccccccccccc");
        char *s;

        strcpy(refusal, ask("GET", "/v1/run", "", NULL));
        EXPECT(refusal, 401);
        assert(strstr(refusal, "WWW-Authenticate: Bearer\r\n"));

        /* All the same answer. */
        const char *const bad[] = { "x", token_b, foreign, old, "eyJhbGciOiJub25lIn0.e30." };
        for (size_t i = 0; i < ELEMENTSOF(bad); i++) {
                _cleanup_free_ char *h = strprintf("Authorization: Bearer %s\r\n", bad[i]);
                assert(streq(ask("GET", "/v1/run", h, NULL), refusal));
                assert(streq(ask("GET", "/v1/nothing", h, NULL), refusal));
                assert(streq(ask("POST", "/v1/run/result", h, "{\"status\":\"success\"}"), refusal));
                assert(streq(ask("GET", "/v1/services/demo/x", h, NULL), refusal));
        }
        assert(n_upstream == 0 && n_get == 0 && agentd_log[0] == 0);

        /* Every slot. */
        _cleanup_free_ char *user_pass = strprintf("x-access-token:%s", token_a);
        _cleanup_free_ char *basic = base64_encode(user_pass, strlen(user_pass));
        const char *const slots[][2] = { { "Authorization: Bearer ", token_a }, { "authorization: bearer ", token_a },
                                         { "Authorization: token ", token_a },
                                         { "Authorization: Basic ", basic }, { "X-Api-Key: ", token_a },
                                         { "x-goog-api-key: ", token_a },
                                         { "api-key: ", token_a }, { "X-Amz-Security-Token: ", token_a },
                                         { "Authorization: Bearer nonsense\r\nx-api-key: ", token_a } };
        for (size_t i = 0; i < ELEMENTSOF(slots); i++) {
                _cleanup_free_ char *h = strprintf("%s%s\r\n", slots[i][0], slots[i][1]);
                s = ask("GET", "/v1/run", h, NULL);
                EXPECT(s, 200);
                assert(endswith(s, "\r\n\r\n{\"v\":1,\"input\":\"hello\"}"));
        }

        /* A's token is worthless in B's sandbox and the other way round. */
        _cleanup_free_ char *text = strprintf("GET /v1/run HTTP/1.1\r\nHost: x\r\nConnection: "
                                              "close\r\nAuthorization: Bearer %s\r\n\r\n", token_a);
        EXPECT(ask_at(&address_b, text), 401);
        EXPECT(ask_at(&address_a, text), 200);

        EXPECT(authorized("GET", "/", "", NULL), 404);
        EXPECT(authorized("GET", "/v1/nothing", "", NULL), 404);
        EXPECT(authorized("DELETE", "/v1/run", "", NULL), 405);
        EXPECT(authorized("GET", "/v1/../v1/run", "", NULL), 400);
        EXPECT(authorized("GET", "/v1//run", "", NULL), 400);
        EXPECT(authorized("GET", "/v1/services/none/x", "", NULL), 404);
        EXPECT(authorized("GET", "/v1/services/", "", NULL), 404);

        /* Each request on a connection that is kept is looked at anew. */
        int fd = dial(&address_a);
        _cleanup_free_ char *keep = strprintf("GET /v1/run HTTP/1.1\r\nHost: x\r\nx-api-key: %s\r\n\r\nGET /v1/run "
                                              "HTTP/1.1\r\nHost: x\r\n\r\n", token_a);
        assert(send(fd, keep, strlen(keep), MSG_NOSIGNAL) == (ssize_t) strlen(keep));
        pump();
        s = receive(fd);
        EXPECT(s, 200);
        assert(strstr(s, "HTTP/1.1 401 "));
        safe_close(fd);
}

static void test_result(void) {
        agentd_log[0] = 0;
        agentd_away = 2;
        char *s = authorized("POST", "/v1/run/result", "", "{\"status\":\"success\",\"output\":{\"x\":1}}");
        EXPECT(s, 200);
        assert(strstr(agentd_log, "ReportResult aaaa 1 {\"status\":\"success\",\"output\":{\"x\":1}} 0\n"));
        assert(agentd_away == 0);

        EXPECT(authorized("POST", "/v1/run/result", "", "{\"status\":\"maybe\"}"), 422);
        EXPECT(authorized("POST", "/v1/run/result", "", "not json"), 422);
        EXPECT(authorized("POST", "/v1/run/result", "", ""), 422);
        _cleanup_free_ char *big = malloc(2001);
        memset(big, 'x', 2000);
        big[2000] = 0;
        EXPECT(authorized("POST", "/v1/run/result", "", big), 413);
}

/* The log of the bridge under test. */
static int reports_fd = -EBADF;

/* What agentd could not take before a restart or kill -9, the next bridge sends. */
static void test_saved_reports(void) {
        static const char saved[] = "[\"ReportCall\",\"" RUN_A
                                    "\",1,\"id\",\"{\\\"outcome\\\":\\\"interrupted\\\"}\"]\n"
                                    "[\"ReportCall\",\"" RUN_A
                                    "\",1,\"other\",\"{\\\"outcome\\\":\\\"interrupted\\\"}\"]\n"
                                    "[\"ReportCall\",\"" RUN_A "\",1,\"id\",\"{}\"]\n"
                                    "[\"ReportResult\",\"" RUN_A "\",2,\"{\\\"status\\\":1}\",null]\n"
                                    "[\"Evil\",\"" RUN_A "\",1,\"x\",\"y\"]\n17\n[\"ReportCall\",\"cut sho";
        struct stat st;

        agentd_log[0] = 0;
        agentd_away = 1;
        int fd = memfd_create("reports", MFD_CLOEXEC);
        assert(fd >= 0 && write_full(fd, saved, strlen(saved)) == 0);
        int again = reports_fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
        assert(again >= 0 && report_queue_open(bridge, fd) == 0);
        assert(report_queue_size(bridge->reports) == 3); /* of the call that is there twice, the later line */
        while (report_queue_size(bridge->reports) > 0)
                assert(sd_event_run(bridge->event, UINT64_MAX) >= 0);
        assert(strstr(agentd_log, "ReportCall aaaa 1 {} 0\n"));
        assert(strstr(agentd_log, "ReportCall aaaa 1 {\"outcome\":\"interrupted\"} 0\n"));
        assert(strstr(agentd_log, "ReportResult aaaa 2 {\"status\":1} 0\n"));
        assert(fstat(again, &st) == 0 && st.st_size == 0); /* all taken: nothing is owed */
}

static size_t count_of(const char *text, const char *what) {
        size_t n = 0;

        for (const char *p = text; (p = strstr(p, what)); p += strlen(what))
                n++;
        return n;
}

/* Calls go out together; none is lost where agentd is away, or does not want one of them; and the log holds what is
 * owed, not all that ever was. */
static void test_call_batches(void) {
        LiveRun live = { .attempt = 1 };
        CallReport *c, *held;
        char id[32];
        struct stat st;

        strcpy(live.run, RUN_A);
        agentd_log[0] = 0;
        n_batches = 0;
        agentd_away = 2;
        for (unsigned i = 0; i < 20; i++) {
                snprintf(id, sizeof(id), "batch-%u", i);
                assert(report_open_call(bridge, &live, id, strdup("{\"state\":\"open\"}"), &c) == 0);
                assert(report_close_call(c, strdup("{\"state\":\"closed\"}")) == 0);
        }
        assert(report_open_call(bridge, &live, "held", strdup("{\"state\":\"held\"}"), &held) == 0);
        assert(report_queue_size(bridge->reports) == 21);
        while (report_queue_size(bridge->reports) > 1) /* by its own timer */
                assert(sd_event_run(bridge->event, UINT64_MAX) >= 0);
        assert(agentd_away == 0 && n_batches == 1);
        assert(count_of(agentd_log, "ReportCall aaaa 1 {\"state\":\"closed\"} 0\n") == 20);
        assert(!strstr(agentd_log, "open") && !strstr(agentd_log, "held"));

        /* One that is not wanted does not keep the others. */
        agentd_refuses = true;
        assert(report_open_call(bridge, &live, "bad", strdup("{}"), &c) == 0);
        assert(report_close_call(c, strdup("{}")) == 0);
        assert(report_open_call(bridge, &live, "good", strdup("{}"), &c) == 0);
        assert(report_close_call(c, strdup("{}")) == 0);
        pump();
        agentd_refuses = false;
        assert(report_queue_size(bridge->reports) == 1);

        /* While one call goes on nothing can be thrown away as a whole. */
        _cleanup_free_ char *big = malloc(4001);
        memset(big, 'x', 4000);
        big[4000] = 0;
        for (unsigned i = 0; i < 1000; i++) {
                agentd_log[0] = 0;
                snprintf(id, sizeof(id), "big-%u", i);
                assert(report_open_call(bridge, &live, id, strdup(big), &c) == 0);
                assert(report_close_call(c, strdup("{}")) == 0);
                report_queue_flush(bridge->reports);
                while (report_queue_size(bridge->reports) > 1)
                        assert(sd_event_run(bridge->event, UINT64_MAX) >= 0);
        }
        assert(fstat(reports_fd, &st) == 0);
        assert(st.st_size > 3 * 1024 * 1024);             /* so much was written */
        assert(st.st_blocks * 512 < 2 * 1024 * 1024);     /* so much is there */

        /* And the next bridge finds in the rest the call that goes on. */
        _cleanup_free_ char *text = NULL;
        size_t size;
        assert(lseek(reports_fd, 0, SEEK_SET) == 0 && read_full_fd(reports_fd, 64 << 20, &text, &size) == 0);
        assert(memmem(text, size, "\"held\"", 6) && text[0] == 0);

        agentd_log[0] = 0;
        assert(report_close_call(held, strdup("{\"state\":\"over\"}")) == 0);
        pump();
        assert(strstr(agentd_log, "\"over\"") && report_queue_size(bridge->reports) == 0);
        assert(fstat(reports_fd, &st) == 0 && st.st_size == 0);
}

static void test_logs(void) {
        char *s = authorized("POST", "/v1/logs", "Content-Type: application/x-ndjson\r\n",
                             "{\"stream\":\"stdout\",\"message\":\"one\"}\n{\"message\":\"two\",\"level\":\"error\"}\n"
                             "broken\n{\"x\":1}\n\n{\"message\":\"end\"}");
        EXPECT(s, 200);
        assert(endswith(s, "{\"lines\":3,\"refused\":2}\n"));
        s = authorized("POST", "/v1/logs", "Content-Type: text/plain\r\n", "a\r\nb\n\nc");
        assert(endswith(s, "{\"lines\":3,\"refused\":0}\n"));

        _cleanup_free_ char *big = malloc(8001);
        memset(big, 'x', 8000);
        big[8000] = 0;
        EXPECT(authorized("POST", "/v1/logs", "", big), 413);
}

static void test_artifacts(void) {
        _cleanup_free_ char *path = strprintf("%s/artifact", dir), *big = malloc(50001), *content = NULL;
        size_t size;

        agentd_log[0] = 0;
        agentd_away = 1;
        artifact_fd = open(path, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0600);
        memset(big, 'y', 50000);
        big[50000] = 0;
        char *s = authorized("PUT", "/v1/artifacts/a%20chart%2Epng", "Content-Type: image/png\r\n", big);
        EXPECT(s, 201);
        assert(endswith(s, "{\"name\":\"a chart.png\",\"size\":50000}"));
        assert(strstr(agentd_log, "BeginArtifact aaaa 1 a chart.png 50000\nCommitArtifact aaaa 1 a chart.png "
                                  "50000\n"));
        assert(read_full_file_at(AT_FDCWD, path, 1 << 20, &content, &size) == 0 && size == 50000 && streq(content,
                                                                                                          big));

        EXPECT(authorized("PUT", "/v1/artifacts/.hidden", "", "x"), 400);
        EXPECT(authorized("PUT", "/v1/artifacts/a/b", "", "x"), 400);
        EXPECT(authorized("PUT", "/v1/artifacts/a%2Fb", "", "x"), 400);
        EXPECT(authorized("PUT", "/v1/artifacts/a%00", "", "x"), 400);
        EXPECT(authorized("PUT", "/v1/artifacts/", "", "x"), 404);

        /* Too large, announced or not; broken off. Nothing is committed. */
        agentd_log[0] = 0;
        EXPECT(authorized("PUT", "/v1/artifacts/big", "Content-Length: 100001\r\n", NULL), 413);
        int fd = dial(&address_a);
        _cleanup_free_ char *head = strprintf("PUT /v1/artifacts/big HTTP/1.1\r\nHost: x\r\nx-api-key: "
                                              "%s\r\nTransfer-Encoding: chunked\r\n\r\n", token_a);
        assert(send(fd, head, strlen(head), MSG_NOSIGNAL) > 0);
        for (unsigned i = 0; i < 3; i++) {
                _cleanup_free_ char *chunk = strprintf("c350\r\n%s\r\n", big);
                (void) send(fd, chunk, strlen(chunk), MSG_NOSIGNAL);
                pump();
        }
        EXPECT(receive(fd), 413);
        safe_close(fd);
        fd = dial(&address_a);
        assert(send(fd, head, strlen(head), MSG_NOSIGNAL) > 0);
        pump();
        assert(send(fd, "5\r\nhello\r\n", 10, MSG_NOSIGNAL) > 0);
        pump();
        safe_close(fd);
        pump();
        assert(strstr(agentd_log, "BeginArtifact") && !strstr(agentd_log, "CommitArtifact"));
        artifact_fd = safe_close(artifact_fd);
}

static void test_service(void) {
        char *s;

        agentd_log[0] = 0;
        n_upstream = n_get = 0;
        EXPECT(authorized("GET", "/v1/services/demo/a/b?q=%2B&r", "X-Vendor: yes\r\nUser-Agent: me\r\nCookie: "
                                                                  "c\r\nX-Forwarded-For: 1.1.1.1\r\n"
                          "X_Api_Key: k\r\nConnection: x-hop\r\nX-Hop: 1\r\nX-Original-URL: "
                          "/admin\r\nAccept-Encoding: gzip\r\n", NULL), 200);
        assert(n_upstream == 1 && n_get == 1);
        assert(startswith(upstream_saw, "GET /base/a/b?q=%2B&r\n"));
        assert(strstr(upstream_saw, "\nAuthorization: Bearer " SECRET "\n") && strstr(upstream_saw,
                                                                                      "\nX-Vendor: yes\n") &&
               strstr(upstream_saw, "\nUser-Agent: me\n") && strstr(upstream_saw, "\nAccept-Encoding: identity\n"));
        static const char *const gone[] = { "ookie", "orwarded", "X_", "x-hop", "X-Hop", "Original", "Expect", "eyJ",
                                            "\nAccept:", "gzip" };
        for (size_t i = 0; i < ELEMENTSOF(gone); i++) {
                if (strstr(upstream_saw, gone[i]))
                        fprintf(stderr, "%s in: %s\n", gone[i], upstream_saw);
                assert(!strstr(upstream_saw, gone[i]));
        }
        assert(strstr(agentd_log, "ReportCall aaaa 1 "
                                  "{\"service\":\"demo\",\"method\":\"GET\",\"path\":\"/a/b\",\"status\":200,"));
        assert(strstr(agentd_log, "\"outcome\":\"complete\""));

        /* Token in another slot: Authorization is not the client's either. */
        _cleanup_free_ char *h = strprintf("x-api-key: %s\r\nAuthorization: Bearer other\r\nX-Copy: see %s\r\n",
                                           token_a, token_a);
        EXPECT(ask("GET", "/v1/services/demo", h, NULL), 200);
        assert(startswith(upstream_saw, "GET /base\n") && !strstr(upstream_saw, "other") && !strstr(upstream_saw,
                                                                                                    "eyJ"));
        EXPECT(authorized("GET", "/v1/services/demo/", "", NULL), 200);
        assert(startswith(upstream_saw, "GET /base/\n"));
        EXPECT(authorized("HEAD", "/v1/services/demo/x", "", NULL), 200);
        assert(startswith(upstream_saw, "HEAD /base/x\n"));

        /* What is echoed does not come back. */
        _cleanup_free_ char *echo = strprintf("GET /v1/services/demo/echo HTTP/1.0\r\nx-api-key: %s\r\n\r\n", token_a);
        s = ask_at(&address_a, echo); /* without chunks in between */
        EXPECT(s, 200);
        assert(strstr(s, "X-Echo: Bearer ********") && !strstr(s, SECRET) && !strstr(s, "Set-Cookie") &&
               !strstr(s, "Alt-Svc"));
        assert(strstr(s, "GET /base/echo\n") && strstr(s, "Authorization: Bearer ********"));

        s = authorized("GET", "/v1/services/demo/moved", "", NULL);
        EXPECT(s, 302);
        assert(strstr(s, "\r\nLocation: /v1/services/demo/there?x=1\r\n"));

        /* Policy. */
        n_upstream = n_get = 0;
        agentd_log[0] = 0;
        EXPECT(authorized("DELETE", "/v1/services/demo/x", "", NULL), 403);
        assert(strstr(agentd_log, "\"outcome\":\"denied\""));
        EXPECT(authorized("GET", "/v1/services/demo/%2e%2e/x", "", NULL), 400);
        EXPECT(authorized("GET", "/v1/services/demo/a%2fb", "", NULL), 400);
        EXPECT(authorized("POST", "/v1/services/demo/x", "Content-Length: 1048577\r\n", NULL), 413);
        _cleanup_free_ char *leak = strprintf("/v1/services/demo/x?key=%s", token_a);
        EXPECT(authorized("GET", leak, "", NULL), 400);
        assert(n_upstream == 0 && n_get == 0);

        static const struct {
                MaterialStatus error;
                unsigned status;
        } errors[] = { { MATERIAL_TOKEN_REFUSED, 401 }, { MATERIAL_NOT_IN_SCOPE, 404 }, { MATERIAL_NO_CREDENTIAL, 403 },
                       { MATERIAL_UNUSABLE, 403 }, { MATERIAL_NO_ACCESS_TOKEN, 503 }, { MATERIAL_UNAVAILABLE, 503 } };
        for (size_t i = 0; i < ELEMENTSOF(errors); i++) {
                material_error = errors[i].error;
                EXPECT(authorized("GET", "/v1/services/demo/x", "", NULL), errors[i].status);
        }
        material_error = MATERIAL_OK;
        assert(n_upstream == 0);

        /* Without authentication nobody is asked for a credential. */
        n_get = 0;
        EXPECT(authorized("GET", "/v1/services/open/x", "", NULL), 200);
        assert(n_get == 0 && !strstr(upstream_saw, "uthorization"));
}

static void test_bodies(void) {
        _cleanup_free_ char *body = malloc(900001), *head = NULL;
        char *s;

        memset(body, 'z', 900000);
        body[900000] = 0;
        upstream_body = 0;
        int fd = dial(&address_a);
        head = strprintf("POST /v1/services/demo/count HTTP/1.1\r\nHost: x\r\nx-api-key: %s\r\nExpect: "
                         "100-continue\r\nContent-Length: 900000\r\n\r\n", token_a);
        assert(send(fd, head, strlen(head), MSG_NOSIGNAL) > 0);
        pump();
        assert(streq(receive(fd), "HTTP/1.1 100 Continue\r\n\r\n"));
        for (size_t sent = 0; sent < 900000;) {
                ssize_t n = send(fd, body + sent, 900000 - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
                if (n > 0)
                        sent += (size_t) n;
                pump();
        }
        s = receive(fd);
        EXPECT(s, 200);
        assert(endswith(s, "counted") && upstream_body == 900000);
        assert(strstr(upstream_saw, "\nContent-Length: 900000\n"));
        safe_close(fd);

        /* Chunked stays chunked; beyond the limit the call ends. */
        upstream_body = 0;
        _cleanup_free_ char *chunked = strprintf("POST /v1/services/demo/count HTTP/1.1\r\nHost: x\r\nConnection: "
                                                 "close\r\nx-api-key: %s\r\n"
                                                 "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX-Trailer: "
                                                 "1\r\n\r\n", token_a);
        s = ask_at(&address_a, chunked);
        EXPECT(s, 200);
        assert(upstream_body == 5 && strstr(upstream_saw, "\nTransfer-Encoding: chunked\n") && !strstr(upstream_saw,
                                                                                                       "railer"));

        fd = dial(&address_a);
        chunked = mfree(chunked);
        chunked = strprintf("POST /v1/services/demo/count HTTP/1.1\r\nHost: x\r\nx-api-key: "
                            "%s\r\nTransfer-Encoding: chunked\r\n\r\n", token_a);
        assert(send(fd, chunked, strlen(chunked), MSG_NOSIGNAL) > 0);
        pump();
        for (unsigned i = 0; i < 3; i++) {
                (void) send(fd, "dbba0\r\n", 7, MSG_NOSIGNAL);
                for (size_t sent = 0; sent < 900000;) {
                        ssize_t n = send(fd, body + sent, 900000 - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
                        if (n < 0 && errno != EAGAIN)
                                break;
                        sent += n > 0 ? (size_t) n : 0;
                        pump();
                }
                (void) send(fd, "\r\n", 2, MSG_NOSIGNAL);
        }
        EXPECT(receive(fd), 413);
        safe_close(fd);

        /* POST without a body says so. */
        EXPECT(authorized("POST", "/v1/services/demo/x", "", NULL), 200);
        assert(strstr(upstream_saw, "\nContent-Length: 0\n"));

        /* The upstream answers before it was sent everything. */
        s = authorized("POST", "/v1/services/demo/early", "", body);
        EXPECT(s, 413);
        assert(endswith(s, "too much"));

        /* Half an answer does not look like a whole one: no end of chunks, and not all of the announced length. */
        s = authorized("GET", "/v1/services/demo/short", "", NULL);
        EXPECT(s, 200);
        assert(strstr(s, "Content-Length: 100\r\n") && strlen(strstr(s, "\r\n\r\n") + 4) < 100);

        /* The client goes: so does the call. */
        agentd_log[0] = 0;
        fd = dial(&address_a);
        head = mfree(head);
        head = strprintf("GET /v1/services/demo/hold HTTP/1.1\r\nHost: x\r\nx-api-key: %s\r\n\r\n", token_a);
        assert(send(fd, head, strlen(head), MSG_NOSIGNAL) > 0);
        pump();
        assert(upstream_held);
        safe_close(fd);
        pump();
        assert(!upstream_held && strstr(agentd_log, "\"outcome\":\"client_closed\""));
}

static void test_refused_token(void) {
        char *s;

        /* One new access token, one more try, the same body. */
        n_invalidate = n_get = n_upstream = 0;
        generation = 1;
        upstream_body = 0;
        s = authorized("POST", "/v1/services/oauth/once", "", "0123456789");
        EXPECT(s, 200);
        assert(n_invalidate == 1 && n_get == 2 && n_upstream == 2 && upstream_body == 10 && endswith(s, "counted"));

        /* Not for ever. */
        n_invalidate = n_get = n_upstream = 0;
        s = authorized("GET", "/v1/services/oauth/denied", "", NULL);
        EXPECT(s, 401);
        assert(n_invalidate == 1 && n_get == 2 && n_upstream == 2 && endswith(s, "no"));

        /* A plain credential does not get better by asking again. */
        n_invalidate = n_upstream = 0;
        EXPECT(authorized("GET", "/v1/services/demo/denied", "", NULL), 401);
        assert(n_invalidate == 0 && n_upstream == 1);
        generation = 1;
}

static void test_end(void) {
        agentd_log[0] = 0;
        int fd = dial(&address_a), idle = dial(&address_a);
        _cleanup_free_ char *head = strprintf("GET /v1/services/demo/hold HTTP/1.1\r\nHost: x\r\nx-api-key: "
                                              "%s\r\n\r\n", token_a);
        assert(send(fd, head, strlen(head), MSG_NOSIGNAL) > 0);
        pump();
        assert(upstream_held);

        /* No live file: the token is dead at once, through the same listener. */
        assert(live_run_remove(live_dir, RUN_A) == 0);
        EXPECT(authorized("GET", "/v1/run", "", NULL), 401);

        /* Unregistered: streams are cut, nobody listens. */
        assert(bridge_run_unregister(bridge, RUN_A) == 0);
        assert(bridge_run_unregister(bridge, RUN_A) == -ENOENT);
        pump();
        char c;
        assert(is_cut(fd));
        assert(recv(idle, &c, 1, MSG_DONTWAIT) <= 0);
        safe_close(fd);
        safe_close(idle);
        fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        assert(connect(fd, (struct sockaddr *) &address_a, sizeof(address_a)) < 0 && errno == ECONNREFUSED);
        safe_close(fd);
        pump();
        assert(!upstream_held);

        /* A second attempt's listener takes the place of the first. */
        struct sockaddr_in first = address_b;
        assert(register_run(RUN_B, listen_tcp(&address_b), -EBADF, -EBADF) == 0);
        assert(strmap_size(bridge->runs) == 1);
        fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        assert(connect(fd, (struct sockaddr *) &first, sizeof(first)) < 0 && errno == ECONNREFUSED);
        safe_close(fd);
        safe_close(dial(&address_b));

        int fds[2];
        assert(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
        assert(register_run(RUN_A, fds[0], -EBADF, -EBADF) == -EBADF);
        safe_close(fds[0]);
        safe_close(fds[1]);
        assert(bridge_run_unregister(bridge, RUN_B) == 0);
}

int main(void) {
        harness_start();
        test_auth();
        test_result();
        test_saved_reports();
        test_call_batches();
        test_logs();
        test_artifacts();
        test_service();
        test_bodies();
        test_refused_token();
        test_end();
        assert(report_queue_size(bridge->reports) == 0);
        return harness_end();
}
