/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * PUT /v1/artifacts/NAME: a file that outlives the run. agentd opens it (BeginArtifact), the bytes go straight to
 * that descriptor, and it counts when agentd has committed it. A body that breaks off is never committed. The body is
 * only read once agentd has opened the file; disk writes are plain, the reader of the socket waits for them.
 */

#include "basic/fs-util.h"
#include "basic/json-util.h"
#include "basic/log.h"
#include "basic/string-util.h"
#include "http/problem.h"
#include "report.h"
#include "routes.h"

typedef struct ArtifactPut {
        Bridge *bridge;
        HttpRequest *http;
        LiveRun *live;
        char *name, *type;
        int fd;
        uint64_t size;
        Report *report; /* the one that we wait for */
} ArtifactPut;

static ArtifactPut *artifact_put_free(ArtifactPut *a) {
        report_forget(a->report);
        live_run_unref(a->live);
        safe_close(a->fd);
        free(a->name);
        free(a->type);
        return mfree(a);
}

/* The request is over: whatever is still on its way to agentd comes too late to be answered. */
static void on_done(HttpRequest *req, HttpOutcome outcome, void *userdata) {
        artifact_put_free(userdata);
}

static void answer_failure(ArtifactPut *a, int error, const char *detail) {
        if (error == -ENOENT)
                http_problem(a->http, 409, "run-is-over", "The run has ended already.", NULL, 0);
        else if (error == -EINVAL)
                http_problem(a->http, 422, "artifact-refused", detail, NULL, 0);
        else if (error == -EDQUOT)
                http_problem(a->http, 413, "artifact-limit-reached", detail, NULL, 0);
        else if (error == -ENOSPC)
                http_problem(a->http, 507, "no-space", detail ?: "There is no space left for artifacts.", NULL, 0);
        else
                http_problem(a->http, 503, "artifact-not-kept", NULL, NULL, 0);
}

static void on_committed(int error, sd_bus_message *reply, const char *detail, void *userdata) {
        static const HttpField fields[] = { { "Content-Type", "application/json" } };
        ArtifactPut *a = userdata;
        _cleanup_json_ sd_json_variant *v = NULL;
        _cleanup_free_ char *text = NULL;

        a->report = NULL;
        if (error < 0) {
                answer_failure(a, error, detail);
                return;
        }

        int r = sd_json_buildo(&v, SD_JSON_BUILD_PAIR("name", SD_JSON_BUILD_STRING(a->name)),
                               SD_JSON_BUILD_PAIR("size", SD_JSON_BUILD_UNSIGNED(a->size)));
        if (r >= 0)
                r = sd_json_variant_format(v, 0, &text);
        if (r >= 0)
                r = http_response_send(a->http, 201, fields, ELEMENTSOF(fields), text, strlen(text));
        if (r < 0)
                http_request_abort(a->http);
}

static void on_readable(HttpRequest *req, void *userdata) {
        ArtifactPut *a = userdata;
        char buf[16384];
        ssize_t n;
        int r;

        if (http_response_started(req) || a->report || a->fd < 0)
                return;

        while ((n = http_request_read(req, buf, sizeof(buf))) > 0) {
                r = write_full(a->fd, buf, (size_t) n);
                if (r < 0) {
                        log_warning_limited_errno(r, "Run %s: failed to write an artifact: %m", a->live->run);
                        answer_failure(a, r, NULL);
                        return;
                }
                a->size += (uint64_t) n;
        }
        if (n == -EFBIG) {
                http_problem(req, 413, "artifact-too-large", "The artifact is larger than the run's limit.", NULL, 0);
                return;
        }
        if (n < 0)
                return;

        a->fd = safe_close(a->fd);
        r = report_send(a->bridge, a->live, on_committed, a, &a->report, "CommitArtifact", "sts", a->name, a->size,
                        a->type ?: "application/octet-stream");
        if (r < 0)
                answer_failure(a, r, NULL);
}

static void on_begun(int error, sd_bus_message *reply, const char *detail, void *userdata) {
        ArtifactPut *a = userdata;
        int fd;

        a->report = NULL;
        if (error >= 0)
                error = sd_bus_message_read(reply, "h", &fd);
        if (error >= 0) {
                a->fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
                if (a->fd < 0)
                        error = -errno;
        }
        if (error < 0) {
                answer_failure(a, error, detail);
                return;
        }
        http_request_accept_body(a->http, a->live->limits.artifact_bytes);
}

/* The name is one canonical segment of the path: what is escaped in it is decoded, once. */
int route_decode_name(const char *s, char **ret) {
        char *out = malloc(strlen(s) + 1), *o = out;

        if (!out)
                return -ENOMEM;
        for (; *s; o++) {
                if (*s == '%') {
                        uint8_t b;
                        char hex[3] = { s[1], s[2], 0 };

                        for (char *p = hex; *p; p++)
                                *p = (char) (*p >= 'A' && *p <= 'F' ? *p - 'A' + 'a' : *p);
                        if (hex_decode(hex, 2, &b, 1) < 0) {
                                free(out);
                                return -EINVAL;
                        }
                        *o = (char) b;
                        s += 3;
                } else
                        *o = *s++;
        }
        *o = 0;
        *ret = out;
        return 0;
}

void route_put_artifact(const RouteRequest *r) {
        static const HttpRequestOps ops = { .readable = on_readable, .done = on_done };
        const HttpHead *head = http_request_head(r->http);
        _cleanup_free_ char *name = NULL;

        if (strchr(r->rest, '/') || route_decode_name(r->rest, &name) < 0 || !artifact_name_is_valid(name)) {
                http_problem(r->http, 400, "bad-artifact-name",
                             "An artifact's name is 1 to 255 bytes of printable UTF-8, has no '/' and does not "
                             "start with a dot.", NULL, 0);
                return;
        }
        if (head->length != HTTP_LENGTH_UNKNOWN && head->length > r->live->limits.artifact_bytes) {
                http_problem(r->http, 413, "artifact-too-large", "The artifact is larger than the run's limit.", NULL,
                             0);
                return;
        }

        ArtifactPut *a = calloc(1, sizeof(ArtifactPut));
        if (!a) {
                http_problem(r->http, 503, "out-of-memory", NULL, NULL, 0);
                return;
        }
        *a = (ArtifactPut) { .bridge = r->run->bridge, .http = r->http, .fd = -EBADF, .live = live_run_ref(r->live) };
        a->name = TAKE_PTR(name);
        http_request_set_ops(r->http, &ops, a);

        const char *type = http_head_get(head, "content-type");
        if (type && *type && strlen(type) <= 255 && utf8_is_valid(type, strlen(type)))
                a->type = strdup(type);

        /* As much as it may become is kept free for it. */
        int k = report_send(a->bridge, a->live, on_begun, a, &a->report, "BeginArtifact", "st", a->name,
                            head->length == HTTP_LENGTH_UNKNOWN ? a->live->limits.artifact_bytes :
                                                                 (uint64_t) head->length);
        if (k < 0)
                answer_failure(a, k, NULL);
}
