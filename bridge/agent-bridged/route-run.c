/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* GET /v1/run: the task, as agentd wrote it. POST /v1/run/result: the runner's result; the runner hears of success
 * only when agentd has it on disk, so a runner that got its 200 may exit. */

#include "basic/json-util.h"
#include "basic/log.h"
#include "http/problem.h"
#include "report.h"
#include "routes.h"

void route_get_run(const RouteRequest *r) {
        static const HttpField fields[] = { { "Content-Type", "application/json" }, { "Cache-Control", "no-store" } };
        _cleanup_free_ char *task = NULL;
        size_t size;

        int k = live_task_read(r->run->bridge->paths.live, r->live->run, &task, &size);
        if (k < 0) {
                log_warning_limited_errno(k, "Run %s: failed to read its task: %m", r->live->run);
                http_problem(r->http, 503, "task-unavailable", "The run's task cannot be read.", NULL, 0);
                return;
        }

        k = http_response_send(r->http, 200, fields, ELEMENTSOF(fields), task, size);
        if (k < 0)
                http_request_abort(r->http);
}

typedef struct ResultPost {
        Bridge *bridge;
        HttpRequest *http; /* NULL when the client has gone; the report goes on */
        LiveRun *live;
} ResultPost;

static ResultPost *result_post_free(ResultPost *p) {
        live_run_unref(p->live);
        return mfree(p);
}

static void on_client_done(HttpRequest *req, HttpOutcome outcome, void *userdata) {
        ResultPost *p = userdata;

        if (p->http)
                p->http = NULL;
        else
                result_post_free(p); /* answered before */
}

static void on_reported(int error, sd_bus_message *reply, const char *detail, void *userdata) {
        static const HttpField fields[] = { { "Content-Type", "application/json" } };
        static const char ok[] = "{\"status\":\"recorded\"}\n";
        ResultPost *p = userdata;
        HttpRequest *req = TAKE_PTR(p->http);

        if (!req) {
                result_post_free(p);
                return;
        }
        if (error == -ENOENT)
                http_problem(req, 409, "run-is-over", "The run has ended already.", NULL, 0);
        else if (error == -EINVAL)
                http_problem(req, 422, "result-refused", detail, NULL, 0);
        else if (error < 0)
                http_problem(req, 503, "result-not-recorded", NULL, NULL, 0);
        else if (http_response_send(req, 200, fields, ELEMENTSOF(fields), ok, strlen(ok)) < 0)
                http_request_abort(req);
}

static bool result_is_plausible(const char *data, size_t size, char **ret_error) {
        _cleanup_json_ sd_json_variant *v = NULL;

        if (json_parse(data, size, &v, ret_error) < 0)
                return false;
        return sd_json_variant_is_object(v) &&
               (streq_ptr(json_string(v, "status"), "success") || streq_ptr(json_string(v, "status"), "failed"));
}

static void on_body(HttpRequest *req, const char *data, size_t size, void *userdata) {
        static const HttpRequestOps ops = { .done = on_client_done };
        _cleanup_free_ char *error = NULL, *text = NULL;
        ResultPost *p = userdata;

        if (!data) { /* refused, or the client has gone */
                http_request_set_ops(req, NULL, NULL);
                result_post_free(p);
                return;
        }

        if (!result_is_plausible(data, size, &error)) {
                http_request_set_ops(req, NULL, NULL);
                result_post_free(p);
                http_problem(req, 422, "bad-result", error ?: "A result is a JSON object with \"status\": "
                                                              "\"success\" or \"failed\".", NULL, 0);
                return;
        }

        http_request_set_ops(req, &ops, p);
        text = strndup(data, size); /* plausible ones hold no NUL */
        int r = text ? report_send(p->bridge, p->live, on_reported, p, NULL, "ReportResult", "s", text) : -ENOMEM;
        if (r < 0) {
                log_limited_errno(LOG_ERR, r, "Run %s: failed to report its result: %m", p->live->run);
                p->http = NULL;
                http_problem(req, 503, "result-not-recorded", NULL, NULL, 0);
        }
}

void route_post_result(const RouteRequest *r) {
        ResultPost *p = calloc(1, sizeof(ResultPost));

        if (!p) {
                http_problem(r->http, 503, "out-of-memory", NULL, NULL, 0);
                return;
        }
        p->bridge = r->run->bridge;
        p->http = r->http;
        p->live = live_run_ref(r->live);
        if (http_request_collect(r->http, r->live->limits.result_bytes, on_body, p) < 0)
                result_post_free(p); /* was answered */
}
