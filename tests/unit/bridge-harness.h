/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * The whole bridge in one process, for the tests test-bridge*.c: with a strong room, an agentd and an upstream of the
 * test's own in the same event loop. The upstream is our own server over plain HTTP on loopback, which only a test can
 * allow. Two runs are registered, A and B; most helpers speak as A. harness_start() comes first, harness_end() last.
 */

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <systemd/sd-id128.h>
#include <time.h>

#include "audit.h"
#include "auth.h"
#include "basic/fs-util.h"
#include "basic/string-util.h"
#include "bridge.h"
#include "exchange.h"
#include "material/material-wire.h"
#include "report.h"
#include "token/run-token.h"

#pragma GCC diagnostic ignored "-Wunused-function"
#pragma GCC diagnostic ignored "-Wunused-variable"

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
static bool agentd_refuses;
static unsigned n_batches;
static int artifact_fd = -EBADF;

static char session_data[1 << 20], session_type[256];
static size_t session_size;
static uint64_t session_rev;
static sd_bus_message *approval_call; /* held until a test answers it */

/* The methods that keep something for runs. >0: answered. */
static int on_agentd_state_call(sd_bus_message *m, const char *member) {
        _cleanup_(sd_bus_message_unrefp) sd_bus_message *reply = NULL;
        const char *a, *b, *c, *d;
        char tag[32];
        uint64_t t;

        if (streq(member, "GetSession")) {
                if (session_rev == 0)
                        return sd_bus_reply_method_errorf(m, "org.agentd1.Error.NoSuchSession", "nothing there");
                snprintf(tag, sizeof(tag), "\"%" PRIu64 "\"", session_rev);
                assert(sd_bus_message_new_method_return(m, &reply) >= 0);
                assert(sd_bus_message_append(reply, "ss", session_type, tag) >= 0);
                assert(sd_bus_message_append_array(reply, 'y', session_data, session_size) >= 0);
                return sd_bus_message_send(reply);
        }
        if (streq(member, "PutSession")) {
                const void *data;

                assert(sd_bus_message_read(m, "ss", &a, &b) > 0);
                size_t size;
                assert(sd_bus_message_read_array(m, 'y', &data, &size) > 0);
                snprintf(tag, sizeof(tag), "\"%" PRIu64 "\"", session_rev);
                if (*b && !streq(b, tag))
                        return sd_bus_reply_method_errorf(m, "org.agentd1.Error.SessionChanged", "changed");
                assert(size <= sizeof(session_data));
                session_size = size;
                if (size > 0)
                        memcpy(session_data, data, size);
                snprintf(session_type, sizeof(session_type), "%s", a);
                snprintf(tag, sizeof(tag), "\"%" PRIu64 "\"", ++session_rev);
                return sd_bus_reply_method_return(m, "s", tag);
        }
        if (streq(member, "ReportUsage")) {
                assert(sd_bus_message_read(m, "sts", &a, &t, &b) > 0);
                if (streq(a, "conflict"))
                        return sd_bus_reply_method_errorf(m, "org.agentd1.Error.IdempotencyConflict", "other amount");
                if (t > 1000)
                        return sd_bus_reply_method_errorf(m, SD_BUS_ERROR_LIMITS_EXCEEDED, "too much");
                return sd_bus_reply_method_return(m, "b", !streq(a, "known"));
        }
        if (streq(member, "OpenArtifact")) {
                assert(sd_bus_message_read(m, "s", &a) > 0);
                if (artifact_fd < 0 || !streq(a, "there.png"))
                        return sd_bus_reply_method_errorf(m, "org.agentd1.Error.NoSuchArtifact", "no artifact");
                t = (uint64_t) lseek(artifact_fd, 0, SEEK_END);
                lseek(artifact_fd, 0, SEEK_SET);
                return sd_bus_reply_method_return(m, "hts", artifact_fd, t, "image/png");
        }
        if (streq(member, "GetRun")) {
                assert(sd_bus_message_read(m, "s", &a) > 0);
                if (*a != 'a')
                        return sd_bus_reply_method_errorf(m, "org.agentd1.Error.NoSuchArtifact", "no run");
                return sd_bus_reply_method_return(m, "s", "{\"state\":\"running\"}");
        }
        if (streq(member, "RequestApproval")) {
                assert(sd_bus_message_read(m, "sssst", &a, &b, &c, &d, &t) > 0);
                sd_bus_message_unref(approval_call);
                approval_call = sd_bus_message_ref(m);
                return 1;
        }
        return 0;
}

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

        if (streq(member, "ReportCalls")) { /* logged as if each had come alone */
                n_batches++;
                assert(sd_bus_message_enter_container(m, 'a', "(suss)") > 0);
                while (sd_bus_message_read(m, "(suss)", &run, &attempt, &b, &a) > 0)
                        snprintf(agentd_log + strlen(agentd_log), sizeof(agentd_log) - strlen(agentd_log),
                                 "ReportCall %.4s %u %s 0\n", run, attempt, a);
                return sd_bus_reply_method_return(m, "a(us)", agentd_refuses ? 1 : 0, 0,
                                                  "org.agentd1.Error.InvalidInput");
        }
        assert(sd_bus_message_read(m, "su", &run, &attempt) > 0);
        int k = on_agentd_state_call(m, member);
        if (k != 0)
                return k;
        if (streq(member, "ReportResult"))
                assert(sd_bus_message_read(m, "s", &a) > 0);
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

static unsigned n_get, n_invalidate, n_packets;
static MaterialStatus material_error;
static const char *material_value;
static unsigned generation = 1;
static sd_event_source *strong_room, *strong_room_links[8];
static size_t n_strong_room_links;

static size_t answer_question(const MaterialQuestion *q, char *packet, size_t size) {
        char value[128];

        assert(*q->run && *q->service && streq(q->token, token_a));

        MaterialAnswer a = { .cookie = q->cookie, .status = q->verb == MATERIAL_GET ? material_error : MATERIAL_OK };
        if (q->verb == MATERIAL_INVALIDATE) {
                n_invalidate++;
                assert(q->generation == generation);
                generation++;
        } else
                n_get++;
        if (q->verb == MATERIAL_GET && a.status == MATERIAL_OK) {
                snprintf(value, sizeof(value), "Bearer %s", generation == 1 ? SECRET : "second-" SECRET);
                a.headers[0].name = "Authorization";
                a.headers[0].value = material_value ?: value;
                a.redact[0] = SECRET;
                a.n_headers = a.n_redact = 1;
                a.generation = generation;
        }
        ssize_t n = material_answer_encode(&a, packet, size);
        assert(n > 0);
        return (size_t) n;
}

static int on_question(sd_event_source *source, int fd, uint32_t revents, void *userdata) {
        char buf[MATERIAL_QUESTION_MAX], packet[MATERIAL_BATCH_SIZE];
        MaterialQuestion questions[MATERIAL_BATCH_MAX];
        size_t size = 0;

        ssize_t n = recv(fd, buf, sizeof(buf), MSG_DONTWAIT);
        if (n <= 0)
                return sd_event_source_set_enabled(source, SD_EVENT_OFF);
        int k = material_questions_decode(buf, (size_t) n, questions);
        assert(k > 0);
        n_packets++;
        for (int i = 0; i < k; i++)
                size += answer_question(questions + i, packet + size, sizeof(packet) - size);
        assert(send(fd, packet, size, MSG_NOSIGNAL) == (ssize_t) size);
        return 0;
}

static int on_strong_room(sd_event_source *source, int fd, uint32_t revents, void *userdata) {
        int link = accept4(fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

        assert(link >= 0 && n_strong_room_links < ELEMENTSOF(strong_room_links));
        sd_event_source **io = strong_room_links + n_strong_room_links++;
        assert(sd_event_add_io(bridge->event, io, link, EPOLLIN, on_question, NULL) >= 0);
        assert(sd_event_source_set_io_fd_own(*io, true) >= 0);
        return 0;
}

static void strong_room_start(void) {
        struct sockaddr_un sa = { .sun_family = AF_UNIX };
        int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

        strcpy(sa.sun_path, material_path);
        assert(fd >= 0 && bind(fd, (struct sockaddr *) &sa, sizeof(sa)) == 0 && listen(fd, 16) == 0);
        assert(sd_event_add_io(bridge->event, &strong_room, fd, EPOLLIN, on_strong_room, NULL) >= 0);
        assert(sd_event_source_set_io_fd_own(strong_room, true) >= 0);
}

static void strong_room_stop(void) {
        while (n_strong_room_links > 0)
                sd_event_source_disable_unref(strong_room_links[--n_strong_room_links]);
        strong_room = sd_event_source_disable_unref(strong_room);
        assert(unlink(material_path) == 0);
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
        for (unsigned quiet = 0; quiet < 6;) {
                quiet = sd_event_run(bridge->event, 2 * USEC_PER_MSEC) > 0 ? 0 : quiet + 1;
                if (quiet == 3) /* what would go out a little later */
                        report_queue_flush(bridge->reports);
        }
}

static int dial(const struct sockaddr_in *sa) {
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

        assert(fd >= 0);
        assert(connect(fd, (const struct sockaddr *) sa, sizeof(*sa)) == 0);
        return fd;
}

/* The other side has closed it, in either way. */
_unused_ static bool is_cut(int fd) {
        char c;
        ssize_t n = recv(fd, &c, 1, MSG_DONTWAIT);

        return n == 0 || (n < 0 && errno != EAGAIN);
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

        /* Each answer has an id of its own, in a header and in the problem; tests compare whole answers. */
        for (char *id; (id = strstr(buf, HTTP_REQUEST_ID_HEADER ": "));) {
                char *end = strstr(id, "\r\n") + 2;
                memmove(id, end, strlen(end) + 1);
        }
        for (char *id; (id = strstr(buf, ",\"request_id\":\""));)
                memmove(id, id + 48, strlen(id + 48) + 1);
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

static int listen_unix(const char *path) {
        struct sockaddr_un sa = { .sun_family = AF_UNIX };
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

        snprintf(sa.sun_path, sizeof(sa.sun_path), "%s", path);
        assert(fd >= 0 && bind(fd, (struct sockaddr *) &sa, sizeof(sa)) == 0 && listen(fd, 64) == 0);
        return fd;
}

static int listen_tcp(struct sockaddr_in *ret) {
        struct sockaddr_in sa = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
        socklen_t len = sizeof(sa);

        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        assert(fd >= 0 && bind(fd, (struct sockaddr *) &sa, sizeof(sa)) == 0 && listen(fd, 64) == 0);
        assert(getsockname(fd, (struct sockaddr *) &sa, &len) == 0);
        *ret = sa;
        return fd;
}

static char *mint_at(SigningKey *k, const LiveRun *live, const char *jti, uint64_t from, uint64_t to) {
        RunClaims claims = { .user = live->user, .agent = live->agent, .session = (char *) "" };
        char *token;

        strcpy(claims.run, live->run);
        strcpy(claims.jti, jti);
        claims.iat = claims.nbf = from;
        claims.exp = to;
        assert(run_token_mint(k, &claims, &token) == 0);
        return token;
}

static char *mint(SigningKey *k, const LiveRun *live, const char *jti) {
        const uint64_t now = (uint64_t) time(NULL);

        return mint_at(k, live, jti, now, now + 600);
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
        live->limits.log_bytes = 8000;
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

static struct sockaddr_in upstream_address;
static HttpServer *upstream_server;
static AddressGuard *guard;
static LiveRun *live_a, *live_b;

static int register_run(const char *id, int http, int local, int proxy) {
        int fds[_RUN_LISTENER_MAX] = { http, local, proxy };

        int r = bridge_run_register(bridge, id, fds);
        assert(r < 0 || (fds[0] < 0 && fds[1] < 0 && fds[2] < 0));
        return r;
}

/* Records of requests, one string each: all fields but times and ids, in the order in which they are written. */
static char audit_log[65536];
static unsigned n_audit;

static void audit_to_log(const Text *record) {
        size_t n = strlen(audit_log);

        n_audit++;
        for (const char *p = record->start, *end; p < record->at; p = end + 1) {
                end = memchr(p, '\n', (size_t) (record->at - p));
                assert(end && memchr(p, '=', (size_t) (end - p)));
                if (!startswith(p, "AGENT_DURATION") && !startswith(p, "MESSAGE_ID") && n + 1500 < sizeof(audit_log))
                        n += (size_t) snprintf(audit_log + n, sizeof(audit_log) - n, "%.*s ", (int) (end - p), p);
        }
        snprintf(audit_log + n, sizeof(audit_log) - n, "\n");
}

static void audit_reset(void) {
        audit_log[0] = 0;
        n_audit = 0;
}

static void harness_start(void) {
        HttpListener *listener;

        assert(mkdtemp(dir));
        live_dir = strprintf("%s/live", dir);
        keys_dir = strprintf("%s/keys", dir);
        material_path = strprintf("%s/material", dir);
        assert(mkdir(live_dir, 0700) == 0 && mkdir(keys_dir, 0700) == 0);
        assert(signing_key_generate(&key) == 0 && signing_key_generate(&other_key) == 0);
        write_key(key);

        assert(bridge_new(&(BridgePaths) { .live = live_dir, .keys = keys_dir, .material = material_path },
                          &bridge) == 0);
        bridge->upstreams = upstream_pool_free(bridge->upstreams);
        assert(address_guard_new((char *[]) { (char *) "127.0.0.0/8", NULL }, &guard) == 0);
        assert(upstream_pool_new(bridge->event, &(CurlGlueOptions) { .guard = guard, .allow_http = true },
                                 &bridge->upstreams) == 0);
        audit_sink = audit_to_log;

        agentd_start();
        strong_room_start();
        assert(http_server_new(bridge->event, &HTTP_SERVER_OPTIONS_DEFAULT, &upstream_server) == 0);
        assert(http_listener_new(upstream_server, listen_tcp(&upstream_address), upstream, NULL, &listener) == 0);

        live_a = make_live(RUN_A, "11111111111111111111111111111111", ntohs(upstream_address.sin_port));
        live_b = make_live(RUN_B, "22222222222222222222222222222222", ntohs(upstream_address.sin_port));
        token_a = mint(key, live_a, live_a->jti);
        token_b = mint(key, live_b, live_b->jti);
        assert(register_run(RUN_A, listen_tcp(&address_a), -EBADF, -EBADF) == 0);
        assert(register_run(RUN_B, listen_tcp(&address_b), -EBADF, -EBADF) == 0);
}

static int harness_end(void) {
        http_server_free(upstream_server);
        strong_room_stop();
        sd_event *event = sd_event_ref(bridge->event);
        bridge_free(bridge);
        sd_bus_close_unref(agentd);
        address_guard_free(guard);
        live_run_unref(live_a);
        live_run_unref(live_b);
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
