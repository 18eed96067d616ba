/* SPDX-License-Identifier: LGPL-2.1-or-later */
#undef NDEBUG

/*
 * The whole bridge in one process, with a strong room, an agentd and an upstream of the test's own in the same event
 * loop: who may speak, what reaches the upstream and what does not, what comes back, and that reports survive an
 * agentd that is away. The upstream is our own server over plain HTTP on loopback, which only a test can allow.
 */

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <systemd/sd-id128.h>
#include <systemd/sd-varlink.h>
#include <time.h>

#include "auth.h"
#include "basic/fs-util.h"
#include "basic/string-util.h"
#include "bridge.h"
#include "report.h"
#include "token/run-token.h"

#define RUN_A "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
#define RUN_B "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
#define SECRET "s3cr3t/credential+of-the-service"

static char dir[] = "/tmp/test-bridge-XXXXXX";
static char *live_dir, *keys_dir, *material_path;
static SigningKey *key, *other_key;
static Bridge *bridge;
static struct sockaddr_in address_a, address_b;
static char *token_a, *token_b;

/* ---- agentd ---- */

static sd_bus *agentd;
static unsigned agentd_away; /* so many calls get no answer */
static char agentd_log[8192];
static int artifact_fd = -EBADF;

static int on_agentd_call(sd_bus_message *m, void *userdata, sd_bus_error *e) {
        const char *member = sd_bus_message_get_member(m), *run, *a = "", *b = "";
        uint32_t attempt;
        uint64_t t = 0;

        if (sd_bus_message_is_signal(m, NULL, NULL))
                return 0;
        if (agentd_away > 0) {
                agentd_away--;
                return sd_bus_reply_method_errorf(m, SD_BUS_ERROR_NO_REPLY, "restarting");
        }

        assert(sd_bus_message_read(m, "su", &run, &attempt) > 0);
        if (streq(member, "ReportResult"))
                assert(sd_bus_message_read(m, "s", &a) > 0);
        else if (streq(member, "ReportCall"))
                assert(sd_bus_message_read(m, "ss", &b, &a) > 0);
        else if (streq(member, "BeginArtifact"))
                assert(sd_bus_message_read(m, "st", &a, &t) > 0);
        else if (streq(member, "CommitArtifact"))
                assert(sd_bus_message_read(m, "sts", &a, &t, &b) > 0);
        snprintf(agentd_log + strlen(agentd_log), sizeof(agentd_log) - strlen(agentd_log),
                 "%s %.4s %u %s %" PRIu64 "\n", member, run, attempt, a, t);

        if (streq(member, "BeginArtifact"))
                return sd_bus_reply_method_return(m, "h", artifact_fd);
        return sd_bus_reply_method_return(m, NULL);
}

static void agentd_start(void) {
        int fds[2];
        sd_id128_t id;

        assert(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds) == 0);
        assert(sd_id128_randomize(&id) == 0);
        assert(sd_bus_new(&agentd) == 0);
        assert(sd_bus_set_fd(agentd, fds[0], fds[0]) == 0);
        assert(sd_bus_set_server(agentd, true, id) == 0);
        assert(sd_bus_negotiate_fds(agentd, true) >= 0);
        assert(sd_bus_start(agentd) >= 0);
        assert(sd_bus_add_filter(agentd, NULL, on_agentd_call, NULL) >= 0);
        assert(sd_bus_attach_event(agentd, bridge->event, 0) >= 0);

        assert(sd_bus_new(&bridge->bus) == 0);
        assert(sd_bus_set_fd(bridge->bus, fds[1], fds[1]) == 0);
        assert(sd_bus_negotiate_fds(bridge->bus, true) >= 0);
        assert(sd_bus_start(bridge->bus) >= 0);
        assert(sd_bus_attach_event(bridge->bus, bridge->event, 0) >= 0);
}

/* ---- the strong room ---- */

static unsigned n_get, n_invalidate;
static const char *material_error;
static unsigned generation = 1;

static int on_material_get(sd_varlink *link, sd_json_variant *parameters, sd_varlink_method_flags_t flags,
                           void *userdata) {
        char value[128];

        n_get++;
        assert(json_string(parameters, "run") && json_string(parameters, "service"));
        assert(streq(json_string(parameters, "token"), token_a));
        if (material_error)
                return sd_varlink_error(link, material_error, NULL);

        snprintf(value, sizeof(value), "Bearer %s", generation == 1 ? SECRET : "second-" SECRET);
        return sd_varlink_replybo(
                        link,
                        SD_JSON_BUILD_PAIR("headers", SD_JSON_BUILD_ARRAY(SD_JSON_BUILD_OBJECT(
                                SD_JSON_BUILD_PAIR("name", SD_JSON_BUILD_STRING("Authorization")),
                                SD_JSON_BUILD_PAIR("value", SD_JSON_BUILD_STRING(value))))),
                        SD_JSON_BUILD_PAIR("expires_usec", SD_JSON_BUILD_UNSIGNED(0)),
                        SD_JSON_BUILD_PAIR("generation", SD_JSON_BUILD_UNSIGNED(generation)),
                        SD_JSON_BUILD_PAIR("redact", SD_JSON_BUILD_ARRAY(SD_JSON_BUILD_STRING(SECRET))));
}

static int on_material_invalidate(sd_varlink *link, sd_json_variant *parameters, sd_varlink_method_flags_t flags,
                                  void *userdata) {
        n_invalidate++;
        assert(sd_json_variant_unsigned(sd_json_variant_by_key(parameters, "generation")) == generation);
        generation++;
        return sd_varlink_reply(link, NULL);
}

static sd_varlink_server *strong_room_start(void) {
        sd_varlink_server *s;

        assert(sd_varlink_server_new(&s, 0) == 0);
        assert(sd_varlink_server_bind_method_many(s, "org.agentd1.Material.Get", on_material_get,
                                                  "org.agentd1.Material.Invalidate",
                                                  on_material_invalidate) >= 0);
        assert(sd_varlink_server_listen_address(s, material_path, 0600) >= 0);
        assert(sd_varlink_server_attach_event(s, bridge->event, 0) >= 0);
        return s;
}

/* ---- the upstream ---- */

static char upstream_saw[16384];
static unsigned n_upstream;
static size_t upstream_body;
static HttpRequest *upstream_held;

static void upstream_count(HttpRequest *req, void *userdata) {
        char buf[8192];
        ssize_t n;

        while ((n = http_request_read(req, buf, sizeof(buf))) > 0)
                upstream_body += (size_t) n;
        if (n == 0 && !http_response_started(req))
                assert(http_response_send(req, 200, NULL, 0, "counted", 7) == 0);
}

static void upstream_gone(HttpRequest *req, HttpOutcome outcome, void *userdata) {
        if (req == upstream_held)
                upstream_held = NULL;
}

static void upstream(HttpRequest *req, void *userdata) {
        static const HttpRequestOps counting = { .readable = upstream_count };
        static const HttpRequestOps holding = { .done = upstream_gone };
        const HttpHead *h = http_request_head(req);
        char *p = upstream_saw;
        const char *end = upstream_saw + sizeof(upstream_saw);

        n_upstream++;
        p += snprintf(p, (size_t) (end - p), "%s %s%s%s\n", h->method, h->path, h->query ? "?" : "",
                      strempty(h->query));
        for (size_t i = 0; i < h->n_fields; i++)
                p += snprintf(p, (size_t) (end - p), "%s: %s\n", h->fields[i].name, h->fields[i].value);

        if (streq(h->path, "/base/echo")) {
                /* A careless one: everything it was sent comes back, in header and body, in two pieces. */
                const HttpField fields[] = { { "X-Echo", http_head_get(h, "authorization") }, { "Set-Cookie", "a=b" },
                                             { "Content-Type", "text/plain" },
                                             { "Alt-Svc", "h2=\":1\"" } };
                size_t half = strlen(upstream_saw) / 2;

                char *at = strstr(upstream_saw, SECRET);
                if (at)
                        half = (size_t) (at - upstream_saw) + 9;
                assert(http_response_start(req, 200, fields, ELEMENTSOF(fields), HTTP_LENGTH_UNKNOWN) == 0);
                assert(http_response_write(req, upstream_saw, half) == 0);
                assert(http_response_write(req, upstream_saw + half, strlen(upstream_saw) - half) == 0);
                http_response_end(req);
        } else if (streq(h->path, "/base/once")) {
                bool good = streq_ptr(http_head_get(h, "authorization"), "Bearer second-" SECRET);
                if (good) {
                        http_request_set_ops(req, &counting, NULL);
                        http_request_accept_body(req, UINT64_MAX);
                } else
                        assert(http_response_send(req, 401, NULL, 0, "no", 2) == 0);
        } else if (streq(h->path, "/base/denied"))
                assert(http_response_send(req, 401, NULL, 0, "no", 2) == 0);
        else if (streq(h->path, "/base/moved")) {
                char text[128];
                snprintf(text, sizeof(text), "http://127.0.0.1:%s/base/there?x=1", strrchr(http_head_get(h, "host"),
                                                                                           ':') + 1);
                const HttpField fields[] = { { "Location", text } };
                assert(http_response_send(req, 302, fields, 1, NULL, 0) == 0);
        } else if (streq(h->path, "/base/count")) {
                http_request_set_ops(req, &counting, NULL);
                http_request_accept_body(req, UINT64_MAX);
        } else if (streq(h->path, "/base/hold")) {
                http_request_set_ops(req, &holding, NULL);
                upstream_held = req;
        } else if (streq(h->path, "/base/early"))
                assert(http_response_send(req, 413, NULL, 0, "too much", 8) == 0);
        else if (streq(h->path, "/base/short")) {
                assert(http_response_start(req, 200, NULL, 0, 100) == 0);
                assert(http_response_write(req, "half", 4) == 0);
                http_response_end(req);
        } else
                assert(http_response_send(req, 200, NULL, 0, "fine", 4) == 0);
}

/* ---- the sandbox's side ---- */

static void pump(void) {
        for (unsigned quiet = 0; quiet < 6;)
                quiet = sd_event_run(bridge->event, 2 * USEC_PER_MSEC) > 0 ? 0 : quiet + 1;
}

static int dial(const struct sockaddr_in *sa) {
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

        assert(fd >= 0);
        assert(connect(fd, (const struct sockaddr *) sa, sizeof(*sa)) == 0);
        return fd;
}

/* Whatever comes until the server closes, or nothing more comes. */
static char *receive(int fd) {
        static char buf[1 << 20];
        size_t n = 0;

        for (unsigned quiet = 0; quiet < 25 && n < sizeof(buf) - 1;) {
                ssize_t k = recv(fd, buf + n, sizeof(buf) - 1 - n, MSG_DONTWAIT);
                if (k > 0) {
                        n += (size_t) k;
                        quiet = 0;
                } else if (k == 0)
                        break;
                else
                        quiet++;
                pump();
        }
        buf[n] = 0;
        return buf;
}

static char *ask_at(const struct sockaddr_in *sa, const char *text) {
        int fd = dial(sa);

        assert(send(fd, text, strlen(text), MSG_NOSIGNAL) == (ssize_t) strlen(text));
        pump();
        char *s = receive(fd);
        safe_close(fd);
        pump();
        return s;
}

static char *ask(const char *method, const char *path, const char *headers, const char *body) {
        _cleanup_free_ char *text = NULL;

        if (body)
                text = strprintf("%s %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n%sContent-Length: %zu\r\n\r\n%s",
                                 method, path, headers,
                                 strlen(body), body);
        else
                text = strprintf("%s %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n%s\r\n", method, path, headers);
        assert(text);
        return ask_at(&address_a, text);
}

static char *authorized(const char *method, const char *path, const char *headers, const char *body) {
        _cleanup_free_ char *h = strprintf("Authorization: Bearer %s\r\n%s", token_a, headers);

        return ask(method, path, h, body);
}

static unsigned status_of(const char *s) {
        unsigned status = 0;

        (void) sscanf(s, "HTTP/1.1 %u ", &status);
        return status;
}

static void expect_status(const char *s, unsigned want, int line) {
        if (status_of(s) != want)
                fprintf(stderr, "line %d: wanted %u, got: %s\n", line, want, s);
        assert(status_of(s) == want);
}
#define EXPECT(s, want) expect_status(s, want, __LINE__)

/* ---- set-up ---- */

static int listen_tcp(struct sockaddr_in *ret) {
        struct sockaddr_in sa = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
        socklen_t len = sizeof(sa);

        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        assert(fd >= 0 && bind(fd, (struct sockaddr *) &sa, sizeof(sa)) == 0 && listen(fd, 64) == 0);
        assert(getsockname(fd, (struct sockaddr *) &sa, &len) == 0);
        *ret = sa;
        return fd;
}

static char *mint(SigningKey *k, const LiveRun *live, const char *jti) {
        RunClaims claims = { .user = live->user, .agent = live->agent, .session = (char *) "" };
        char *token;
        uint64_t now = (uint64_t) time(NULL);

        strcpy(claims.run, live->run);
        strcpy(claims.jti, jti);
        claims.iat = claims.nbf = now;
        claims.exp = now + 600;
        assert(run_token_mint(k, &claims, &token) == 0);
        return token;
}

static LiveRun *make_live(const char *run, const char *jti, uint16_t upstream_port) {
        LiveRun *live;
        static const char *const kinds[] = { "{\"kind\":\"bearer\"}",
                                             "{\"kind\":\"oauth2-client-credentials\",\"token_url\":"
                                              "\"http://127.0.0.1/t\",\"client_id\":\"c\"}",
                                             "{\"kind\":\"none\"}" };
        static const char *const names[] = { "demo", "oauth", "open" };

        assert(live_run_new(&live) == 0);
        strcpy(live->run, run);
        strcpy(live->jti, jti);
        live->attempt = 1;
        live->user = strdup("alice");
        live->uid = 1000;
        live->agent = strdup("analyst");
        live->deadline_usec = ((uint64_t) time(NULL) + 600) * USEC_PER_SEC;
        live->limits.log_bytes = 2000;
        live->limits.result_bytes = 1000;
        live->limits.artifact_bytes = 100000;
        for (size_t i = 0; i < ELEMENTSOF(kinds); i++) {
                _cleanup_free_ char *text = NULL, *error = NULL;
                _cleanup_(service_unrefp) Service *s = NULL;

                text = strprintf("{\"name\":\"%s\",\"base_url\":\"http://127.0.0.1:%u/base\",\"auth\":%s,\"allow\":["
                                 "{\"methods\":[\"GET\",\"HEAD\",\"POST\"],\"paths\":[\"/*\"]}],"
                                 "\"limits\":{\"body\":\"1M\"}}",
                                 names[i], upstream_port, kinds[i]);
                int r = service_parse(text, strlen(text), SERVICE_ALLOW_HTTP, &s, &error);
                if (r < 0)
                        fprintf(stderr, "%s\n", error);
                assert(r == 0);
                assert(live_run_add_service(live, s) == 0);
        }
        assert(live_run_write(live_dir, live, (gid_t) -1) == 0);
        assert(live_task_write(live_dir, run, "{\"v\":1,\"input\":\"hello\"}", 23, (gid_t) -1) == 0);
        return live;
}

static void write_key(SigningKey *k) {
        _cleanup_free_ char *path = strprintf("%s/%s.pem", keys_dir, signing_key_kid(k));
        const char *pem = signing_key_public_pem(k);

        assert(write_file_atomic(AT_FDCWD, path, pem, strlen(pem), 0644, (uid_t) -1, (gid_t) -1, 0) == 0);
}

/* ---- tests ---- */

static void test_auth(LiveRun *live_a) {
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

/* What agentd could not take before a restart or kill -9, the next bridge sends. */
static void test_saved_reports(void) {
        static const char saved[] = "[\"ReportCall\",\"" RUN_A "\",1,\"id\",\"{\\\"outcome\\\":\\\"interrupted\\\"}\"]\n"
                                    "[\"ReportCall\",\"" RUN_A "\",1,\"other\",\"{\\\"outcome\\\":\\\"interrupted\\\"}\"]\n"
                                    "[\"ReportCall\",\"" RUN_A "\",1,\"id\",\"{}\"]\n"
                                    "[\"ReportResult\",\"" RUN_A "\",2,\"{\\\"status\\\":1}\",null]\n"
                                    "[\"Evil\",\"" RUN_A "\",1,\"x\",\"y\"]\n17\n[\"ReportCall\",\"cut sho";
        struct stat st;

        agentd_log[0] = 0;
        agentd_away = 1;
        int fd = memfd_create("reports", MFD_CLOEXEC);
        assert(fd >= 0 && write_full(fd, saved, strlen(saved)) == 0);
        _cleanup_close_ int again = fcntl(fd, F_DUPFD_CLOEXEC, 3);
        assert(report_queue_open(bridge, fd) == 0);
        assert(report_queue_size(bridge->reports) == 3); /* of the call that is there twice, the later line */
        while (report_queue_size(bridge->reports) > 0)
                assert(sd_event_run(bridge->event, UINT64_MAX) >= 0);
        assert(strstr(agentd_log, "ReportCall aaaa 1 {} 0\n"));
        assert(strstr(agentd_log, "ReportCall aaaa 1 {\"outcome\":\"interrupted\"} 0\n"));
        assert(strstr(agentd_log, "ReportResult aaaa 2 {\"status\":1} 0\n"));
        assert(fstat(again, &st) == 0 && st.st_size == 0); /* all taken: nothing is owed */
}

static void test_logs(void) {
        char *s = authorized("POST", "/v1/logs", "Content-Type: application/x-ndjson\r\n",
                             "{\"stream\":\"stdout\",\"message\":\"one\"}\n{\"message\":\"two\",\"level\":\"error\"}\n"
                             "broken\n{\"x\":1}\n\n{\"message\":\"end\"}");
        EXPECT(s, 200);
        assert(endswith(s, "{\"lines\":3,\"refused\":2}\n"));
        s = authorized("POST", "/v1/logs", "Content-Type: text/plain\r\n", "a\r\nb\n\nc");
        assert(endswith(s, "{\"lines\":3,\"refused\":0}\n"));

        _cleanup_free_ char *big = malloc(2001);
        memset(big, 'x', 2000);
        big[2000] = 0;
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
        assert(strstr(agentd_log, "BeginArtifact aaaa 1 a chart.png 100000\nCommitArtifact aaaa 1 a chart.png "
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
                const char *error;
                unsigned status;
        } errors[] = { { "org.agentd1.Material.TokenRefused", 401 }, { "org.agentd1.Material.ServiceNotInScope", 404 },
                       { "org.agentd1.Material.NoCredential", 403 }, { "org.agentd1.Material.AccessTokenUnavailable",
                                                                       503 },
                       { "org.agentd1.Material.Busy", 503 } };
        for (size_t i = 0; i < ELEMENTSOF(errors); i++) {
                material_error = errors[i].error;
                EXPECT(authorized("GET", "/v1/services/demo/x", "", NULL), errors[i].status);
        }
        material_error = NULL;
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

static void test_end(LiveRun *live_a) {
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
        assert(recv(fd, &c, 1, MSG_DONTWAIT) <= 0 && errno != EAGAIN);
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
        assert(bridge_run_register(bridge, RUN_B, listen_tcp(&address_b), true) == 0);
        assert(strmap_size(bridge->runs) == 1);
        fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        assert(connect(fd, (struct sockaddr *) &first, sizeof(first)) < 0 && errno == ECONNREFUSED);
        safe_close(fd);
        safe_close(dial(&address_b));

        int fds[2];
        assert(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
        assert(bridge_run_register(bridge, RUN_A, fds[0], true) == -EBADF);
        safe_close(fds[0]);
        safe_close(fds[1]);
        assert(bridge_run_unregister(bridge, RUN_B) == 0);
}

int main(void) {
        struct sockaddr_in upstream_address;
        HttpServer *upstream_server;
        HttpListener *listener;
        AddressGuard *guard;

        assert(mkdtemp(dir));
        live_dir = strprintf("%s/live", dir);
        keys_dir = strprintf("%s/keys", dir);
        material_path = strprintf("%s/material", dir);
        assert(mkdir(live_dir, 0700) == 0 && mkdir(keys_dir, 0700) == 0);
        assert(signing_key_generate(&key) == 0 && signing_key_generate(&other_key) == 0);
        write_key(key);

        assert(bridge_new(&(BridgePaths) { .live = live_dir, .keys = keys_dir, .material = material_path },
                          &bridge) == 0);
        bridge->curl = curl_glue_free(bridge->curl);
        assert(address_guard_new((char *[]) { (char *) "127.0.0.0/8", NULL }, &guard) == 0);
        assert(curl_glue_new(bridge->event, &(CurlGlueOptions) { .guard = guard, .allow_http = true },
                             &bridge->curl) == 0);

        agentd_start();
        sd_varlink_server *strong_room = strong_room_start();
        assert(http_server_new(bridge->event, &HTTP_SERVER_OPTIONS_DEFAULT, &upstream_server) == 0);
        assert(http_listener_new(upstream_server, listen_tcp(&upstream_address), upstream, NULL, &listener) == 0);

        LiveRun *a = make_live(RUN_A, "11111111111111111111111111111111", ntohs(upstream_address.sin_port));
        LiveRun *b = make_live(RUN_B, "22222222222222222222222222222222", ntohs(upstream_address.sin_port));
        token_a = mint(key, a, a->jti);
        token_b = mint(key, b, b->jti);
        assert(bridge_run_register(bridge, RUN_A, listen_tcp(&address_a), true) == 0);
        assert(bridge_run_register(bridge, RUN_B, listen_tcp(&address_b), true) == 0);

        test_auth(a);
        test_result();
        test_saved_reports();
        test_logs();
        test_artifacts();
        test_service();
        test_bodies();
        test_refused_token();
        test_end(a);
        assert(report_queue_size(bridge->reports) == 0);

        http_server_free(upstream_server);
        sd_varlink_server_unref(strong_room);
        sd_event *event = sd_event_ref(bridge->event);
        bridge_free(bridge);
        sd_bus_close_unref(agentd);
        address_guard_free(guard);
        live_run_unref(a);
        live_run_unref(b);
        signing_key_free(key);
        signing_key_free(other_key);
        sd_event_unref(event);
        free(token_a);
        free(token_b);
        assert(rm_rf_at(AT_FDCWD, dir) == 0);
        free(live_dir);
        free(keys_dir);
        free(material_path);
        return 0;
}
