/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * What agentd keeps for a run, asked for and answered over org.agentd1.Report:
 *
 * GET, PUT /v1/session     a document that the session's next run can read; any bytes, at most SESSION_MAX. The answer
 *                          carries an ETag; a PUT with If-Match fails with 412 where somebody else was faster.
 * POST /v1/usage           {"key", "amount", "description"?}: a deduction, once for each key
 * GET /v1/artifacts/NAME   an artifact of this run
 * GET /v1/runs/ID          what became of a run: this one, or one that it has called
 *
 * Each is one call of agentd, with one answer.
 */

#include <sys/stat.h>

#include "basic/fs-util.h"
#include "basic/json-util.h"
#include "basic/log.h"
#include "basic/string-util.h"
#include "http/problem.h"
#include "report.h"
#include "routes.h"

#define SESSION_MAX ((size_t) 1024 * 1024)
#define USAGE_MAX ((size_t) 4096)

typedef struct StateCall StateCall;

struct StateCall {
        Bridge *bridge;
        HttpRequest *http; /* NULL when the client has gone */
        LiveRun *live;
        bool reported; /* nothing of agentd comes any more */
        void (*answer)(StateCall *c, sd_bus_message *reply);
        char *type, *match;
        /* GET of an artifact */
        int fd;
        uint64_t left;
};

static StateCall *state_call_free(StateCall *c) {
        live_run_unref(c->live);
        safe_close(c->fd);
        free(c->type);
        free(c->match);
        return mfree(c);
}

static void on_client_done(HttpRequest *req, HttpOutcome outcome, void *userdata) {
        StateCall *c = userdata;

        c->http = NULL;
        if (c->reported)
                state_call_free(c);
}

static void send_more(HttpRequest *req, void *userdata);

static StateCall *state_call_new(const RouteRequest *r, void (*answer)(StateCall *c, sd_bus_message *reply)) {
        static const HttpRequestOps ops = { .writable = send_more, .done = on_client_done };
        StateCall *c = calloc(1, sizeof(StateCall));

        if (!c) {
                http_problem(r->http, 503, "out-of-memory", NULL, NULL, 0);
                return NULL;
        }
        *c = (StateCall) {
                .bridge = r->run->bridge,
                .http = r->http,
                .live = live_run_ref(r->live),
                .reported = true,
                .answer = answer,
                .fd = -EBADF,
        };
        http_request_set_ops(r->http, &ops, c);
        return c;
}

static void on_reported(int error, sd_bus_message *reply, const char *detail, void *userdata) {
        StateCall *c = userdata;

        c->reported = true;
        if (!c->http) {
                state_call_free(c);
                return;
        }
        switch (error) {
        case 0:
                c->answer(c, reply);
                break;
        case -ENOENT:
                http_problem(c->http, 409, "run-is-over", "The run has ended already.", NULL, 0);
                break;
        case -ENODATA:
                http_problem(c->http, 404, "not-there", detail, NULL, 0);
                break;
        case -EEXIST:
                http_problem(c->http, c->match ? 412 : 409, "contradiction", detail, NULL, 0);
                break;
        case -EDQUOT:
                http_problem(c->http, 402, "limit-reached", detail, NULL, 0);
                break;
        case -ENOSPC:
                http_problem(c->http, 507, "no-space", detail, NULL, 0);
                break;
        case -EINVAL:
                http_problem(c->http, 422, "refused", detail, NULL, 0);
                break;
        default:
                http_problem(c->http, 503, "agentd-unavailable", "The platform does not answer at the moment.", NULL,
                             0);
        }
}

static void state_call_sent(StateCall *c, int error) {
        if (error >= 0) {
                c->reported = false;
                return;
        }
        log_warning_limited_errno(error, "Run %s: failed to ask agentd: %m", c->live->run);
        http_problem(c->http, 503, "agentd-unavailable", "The platform does not answer at the moment.", NULL, 0);
}

/* ---- session ---- */

static void answer_session(StateCall *c, sd_bus_message *reply) {
        HttpField fields[] = { { "Content-Type", NULL }, { "ETag", NULL }, { "Cache-Control", "no-store" } };
        const char *type, *tag;
        const void *data;
        size_t size;

        int r = sd_bus_message_read(reply, "ss", &type, &tag);
        if (r >= 0)
                r = sd_bus_message_read_array(reply, 'y', &data, &size);
        fields[0].value = isempty(type) ? "application/octet-stream" : type;
        fields[1].value = tag;
        if (r >= 0)
                r = http_response_send(c->http, 200, fields, ELEMENTSOF(fields), data, size);
        if (r < 0)
                http_request_abort(c->http);
}

static void answer_session_put(StateCall *c, sd_bus_message *reply) {
        HttpField field = { "ETag", NULL };

        int r = sd_bus_message_read(reply, "s", &field.value);
        if (r >= 0)
                r = http_response_send(c->http, 204, &field, 1, NULL, 0);
        if (r < 0)
                http_request_abort(c->http);
}

static bool has_session(const RouteRequest *r) {
        if (r->live->session)
                return true;
        http_problem(r->http, 404, "no-session", "The run was started without a session.", NULL, 0);
        return false;
}

void route_get_session(const RouteRequest *r) {
        StateCall *c;

        if (!has_session(r) || !(c = state_call_new(r, answer_session)))
                return;
        state_call_sent(c, report_send(c->bridge, c->live, on_reported, c, NULL, "GetSession", ""));
}

static void on_session_body(HttpRequest *req, const char *data, size_t size, void *userdata) {
        static const HttpRequestOps ops = { .done = on_client_done };
        StateCall *c = userdata;

        if (!data) { /* refused, or the client has gone */
                http_request_set_ops(req, NULL, NULL);
                state_call_free(c);
                return;
        }
        http_request_set_ops(req, &ops, c);
        state_call_sent(c, report_send_bytes(c->bridge, c->live, on_reported, c, "PutSession", strempty(c->type),
                                             strempty(c->match), data, size));
}

void route_put_session(const RouteRequest *r) {
        const HttpHead *head = http_request_head(r->http);
        const char *type = http_head_get(head, "content-type"), *match = http_head_get(head, "if-match");
        StateCall *c;

        if (!has_session(r) || !(c = state_call_new(r, answer_session_put)))
                return;
        if ((type &&
             (strlen(type) > 255 || !utf8_is_valid(type, strlen(type)) || free_and_strdup(&c->type, type) < 0)) ||
            (match &&
             (strlen(match) > 80 || !utf8_is_valid(match, strlen(match)) || free_and_strdup(&c->match, match) < 0))) {
                http_problem(r->http, 400, "bad-header", "Content-Type or If-Match is not usable.", NULL, 0);
                return;
        }
        if (http_request_collect(r->http, SESSION_MAX, on_session_body, c) < 0) {
                http_request_set_ops(r->http, NULL, NULL);
                state_call_free(c); /* was answered */
        }
}

/* ---- usage ---- */

static void answer_usage(StateCall *c, sd_bus_message *reply) {
        static const HttpField fields[] = { { "Content-Type", "application/json" } };
        _cleanup_free_ char *text = NULL;
        int fresh;

        int r = sd_bus_message_read(reply, "b", &fresh);
        if (r >= 0) {
                text = strprintf("{\"status\":\"%s\"}\n", fresh ? "recorded" : "known");
                r = text ? http_response_send(c->http, fresh ? 201 : 200, fields, 1, text, strlen(text)) : -ENOMEM;
        }
        if (r < 0)
                http_request_abort(c->http);
}

static void on_usage_body(HttpRequest *req, const char *data, size_t size, void *userdata) {
        static const HttpRequestOps ops = { .done = on_client_done };
        _cleanup_json_ sd_json_variant *v = NULL;
        _cleanup_free_ char *error = NULL;
        StateCall *c = userdata;
        const char *key, *description;
        sd_json_variant *amount;

        if (!data) {
                http_request_set_ops(req, NULL, NULL);
                state_call_free(c);
                return;
        }
        http_request_set_ops(req, &ops, c);

        (void) json_parse(data, size, &v, &error);
        key = v ? json_string(v, "key") : NULL;
        description = v ? json_string(v, "description") : NULL;
        amount = v ? sd_json_variant_by_key(v, "amount") : NULL;
        if (!key || !token_name_is_valid(key) || !amount || !sd_json_variant_is_unsigned(amount) ||
            sd_json_variant_unsigned(amount) == 0 || sd_json_variant_unsigned(amount) > INT64_MAX ||
            (description && (strlen(description) > 255 || string_has_cc(description)))) {
                http_problem(req, 422, "bad-usage",
                             error
                                     ?: "Usage is {\"key\": 1 to 128 of A-Za-z0-9._:-, \"amount\": "
                                        "a whole number of micro-credits above 0, \"description\": at most 255 bytes}.",
                             NULL, 0);
                return;
        }
        state_call_sent(c, report_send(c->bridge, c->live, on_reported, c, NULL, "ReportUsage", "sts", key,
                                       sd_json_variant_unsigned(amount), strempty(description)));
}

void route_post_usage(const RouteRequest *r) {
        StateCall *c = state_call_new(r, answer_usage);

        if (c && http_request_collect(r->http, USAGE_MAX, on_usage_body, c) < 0) {
                http_request_set_ops(r->http, NULL, NULL);
                state_call_free(c);
        }
}

/* ---- artifacts ---- */

static void send_more(HttpRequest *req, void *userdata) {
        StateCall *c = userdata;
        char buf[16384];

        if (c->fd < 0)
                return;
        while (c->left > 0 && http_response_writable(req)) {
                ssize_t n = read(c->fd, buf, MIN(c->left, (uint64_t) sizeof(buf)));

                if (n < 0 && errno == EINTR)
                        continue;
                if (n <= 0 || http_response_write(req, buf, (size_t) n) < 0) {
                        c->fd = safe_close(c->fd);
                        http_request_abort(req); /* shorter than announced */
                        return;
                }
                c->left -= (uint64_t) n;
        }
        if (c->left == 0) {
                c->fd = safe_close(c->fd);
                http_response_end(req);
        }
}

static void answer_artifact(StateCall *c, sd_bus_message *reply) {
        HttpField fields[] = { { "Content-Type", NULL }, { "X-Content-Type-Options", "nosniff" } };
        const char *type;
        int fd;

        int r = sd_bus_message_read(reply, "hts", &fd, &c->left, &type);
        if (r >= 0) {
                c->fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
                r = c->fd < 0 ? -errno : 0;
        }
        if (r >= 0) {
                fields[0].value = isempty(type) || !http_field_value_is_valid(type) ? "application/octet-stream" : type;
                r = http_response_start(c->http, 200, fields, ELEMENTSOF(fields), c->left);
        }
        if (r < 0) {
                http_problem(c->http, 503, "artifact-unavailable", NULL, NULL, 0);
                return;
        }
        if (streq(http_request_head(c->http)->method, "HEAD")) {
                c->fd = safe_close(c->fd);
                http_response_end(c->http);
                return;
        }
        send_more(c->http, c);
}

void route_get_artifact(const RouteRequest *r) {
        _cleanup_free_ char *name = NULL;
        StateCall *c;

        if (strchr(r->rest, '/') || route_decode_name(r->rest, &name) < 0 || !artifact_name_is_valid(name)) {
                http_problem(r->http, 404, "not-there", "The run has no artifact of that name.", NULL, 0);
                return;
        }
        c = state_call_new(r, answer_artifact);
        if (c)
                state_call_sent(c, report_send(c->bridge, c->live, on_reported, c, NULL, "OpenArtifact", "s", name));
}

/* ---- runs ---- */

static void answer_run(StateCall *c, sd_bus_message *reply) {
        static const HttpField fields[] = { { "Content-Type", "application/json" }, { "Cache-Control", "no-store" } };
        const char *text;

        int r = sd_bus_message_read(reply, "s", &text);
        if (r >= 0)
                r = http_response_send(c->http, 200, fields, ELEMENTSOF(fields), text, strlen(text));
        if (r < 0)
                http_request_abort(c->http);
}

void route_get_run_by_id(const RouteRequest *r) {
        StateCall *c;

        if (!run_id_is_valid(r->rest)) {
                http_problem(r->http, 404, "no-such-run", "There is no such run that this one may know of.", NULL, 0);
                return;
        }
        c = state_call_new(r, answer_run);
        if (c)
                state_call_sent(c, report_send(c->bridge, c->live, on_reported, c, NULL, "GetRun", "s", r->rest));
}
