/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* See service-call.h. This file: who may call what, the credential, the request's body, the end and the report. */

#include <time.h>
#include <systemd/sd-id128.h>

#include "basic/json-util.h"
#include "basic/log.h"
#include "basic/string-util.h"
#include "http/http-path.h"
#include "http/problem.h"
#include "service-call.h"

static uint64_t now_usec(clockid_t clock) {
        struct timespec ts;

        assert(clock_gettime(clock, &ts) == 0);
        return (uint64_t) ts.tv_sec * USEC_PER_SEC + (uint64_t) ts.tv_nsec / NSEC_PER_USEC;
}

static ServiceCall *call_free(ServiceCall *c) {
        if (!c)
                return NULL;

        call_upstream_drop(c);
        material_call_free(c->material_call);
        material_done(&c->material);
        redactor_free(c->redactor);
        report_cancel(c->report);
        http_buffer_done(&c->body);
        if (c->token)
                explicit_bzero(c->token, strlen(c->token));
        free(c->token);
        free(c->method);
        free(c->path);
        service_unref(c->service);
        live_run_unref(c->live);
        return mfree(c);
}

/* What the receipt will say of the call. */
static int call_format(const ServiceCall *c, const char *outcome, char **ret) {
        _cleanup_json_ sd_json_variant *v = NULL;
        uint64_t duration = now_usec(CLOCK_MONOTONIC) - c->started_monotonic_usec;

        int r = sd_json_buildo(&v,
                               SD_JSON_BUILD_PAIR("service", SD_JSON_BUILD_STRING(c->service->name)),
                               SD_JSON_BUILD_PAIR("method", SD_JSON_BUILD_STRING(c->method)),
                               SD_JSON_BUILD_PAIR("path", SD_JSON_BUILD_STRING(c->path)),
                               SD_JSON_BUILD_PAIR("status", SD_JSON_BUILD_UNSIGNED(c->reported_status)),
                               SD_JSON_BUILD_PAIR("request_bytes", SD_JSON_BUILD_UNSIGNED(c->request_bytes)),
                               SD_JSON_BUILD_PAIR("response_bytes", SD_JSON_BUILD_UNSIGNED(c->response_bytes)),
                               SD_JSON_BUILD_PAIR("started_usec", SD_JSON_BUILD_UNSIGNED(c->started_usec)),
                               SD_JSON_BUILD_PAIR("duration_usec", SD_JSON_BUILD_UNSIGNED(duration)),
                               SD_JSON_BUILD_PAIR("outcome", SD_JSON_BUILD_STRING(outcome)));
        return r < 0 ? r : sd_json_variant_format(v, 0, ret);
}

int call_note(ServiceCall *c) {
        _cleanup_free_ char *text = NULL;
        char id[SD_ID128_STRING_MAX];
        sd_id128_t random;

        if (c->report)
                return 0;
        int r = sd_id128_randomize(&random);
        if (r >= 0)
                r = call_format(c, "interrupted", &text);
        if (r >= 0)
                r = report_open_call(c->bridge, c->live, sd_id128_to_string(random, id), text, &c->report);
        return r;
}

static void call_report(ServiceCall *c, const char *outcome) {
        _cleanup_free_ char *text = NULL;

        int r = call_note(c);
        if (r >= 0)
                r = call_format(c, outcome, &text);
        if (r >= 0)
                r = report_close_call(TAKE_PTR(c->report), text);
        if (r < 0)
                log_warning_errno(r, "Run %s: a call of %s could not be reported: %m", c->live->run, c->service->name);
}

static void on_client_done(HttpRequest *req, HttpOutcome outcome, void *userdata) {
        ServiceCall *c = userdata;
        const char *text = c->outcome;

        if (!text)
                switch (outcome) {
                case HTTP_OUTCOME_COMPLETE:
                        text = "complete";
                        break;
                case HTTP_OUTCOME_ABORTED:
                        text = "upstream_error";
                        break;
                default:
                        text = "client_closed";
                }
        if (c->redactor && redactor_hits(c->redactor) > 0)
                log_warning("Run %s: %s echoed its credential %u times in an answer to %s %s; it was taken out. "
                            "Consider to change the credential, and to narrow the paths that are allowed.", c->live->run,
                            c->service->name,
                            redactor_hits(c->redactor), c->method, c->path);
        call_report(c, text);
        call_free(c);
}

void call_fail(ServiceCall *c, unsigned status, const char *code, const char *detail, const char *outcome) {
        call_upstream_drop(c);
        c->material_call = material_call_free(c->material_call);
        c->outcome = outcome;
        if (!http_response_started(c->http))
                c->reported_status = status;
        http_problem(c->http, status, code, detail, NULL, 0);
}

static void on_readable(HttpRequest *req, void *userdata) {
        ServiceCall *c = userdata;

        if (c->keep_body && !c->body_kept) {
                char buf[8192];
                ssize_t n;

                while ((n = http_request_read(req, buf, sizeof(buf))) > 0)
                        if (http_buffer_append(&c->body, buf, (size_t) n) < 0) {
                                call_fail(c, 503, "out-of-memory", NULL, "denied");
                                return;
                        }
                if (n < 0)
                        return;
                c->body_kept = true;
                call_upstream_start(c);
                return;
        }

        if (c->upload_paused && c->transfer) {
                c->upload_paused = false;
                curl_transfer_unpause(c->transfer);
        }
}

static void on_writable(HttpRequest *req, void *userdata) {
        ServiceCall *c = userdata;

        if (c->download_paused && c->transfer) {
                c->download_paused = false;
                curl_transfer_unpause(c->transfer);
        }
}

/* The credential is there (or none is needed): now the client may send its body. */
static void call_start(ServiceCall *c) {
        const HttpHead *head = http_request_head(c->http);

        if (c->body_kept) { /* second try */
                call_upstream_start(c);
                return;
        }
        if (head->length == 0) {
                c->keep_body = c->body_kept = true;
                call_upstream_start(c);
                return;
        }
        c->keep_body = c->service->auth.kind == SERVICE_AUTH_OAUTH2_CLIENT_CREDENTIALS &&
                       head->length <= CALL_REPLAY_MAX;
        http_request_accept_body(c->http, c->body_max);
        if (!c->keep_body)
                call_upstream_start(c);
}

static void call_get_material(ServiceCall *c);

static void on_material(MaterialError error, Material *material, void *userdata) {
        ServiceCall *c = userdata;

        c->material_call = material_call_free(c->material_call);

        /* The strong room may just be restarting: the next connection waits in its socket's backlog. */
        if (error == MATERIAL_UNAVAILABLE && c->material_tries++ < 2) {
                call_get_material(c);
                return;
        }

        switch (error) {
        case MATERIAL_OK:
                break;
        case MATERIAL_TOKEN_REFUSED:
                c->outcome = "denied";
                c->reported_status = 401;
                route_refuse(c->http);
                return;
        case MATERIAL_NOT_IN_SCOPE:
                call_fail(c, 404, "no-such-service", "The run has no service of that name.", "denied");
                return;
        case MATERIAL_NO_CREDENTIAL:
                call_fail(c, 403, "no-credential", "The service has no credential yet; its owner sets it with "
                                                   "\"agentctl credential set\".",
                          "denied");
                return;
        case MATERIAL_UNUSABLE:
                call_fail(c, 403, "credential-unusable", "The service's credential does not fit its kind of "
                                                         "authentication; its owner must "
                          "set it again.", "denied");
                return;
        case MATERIAL_NO_ACCESS_TOKEN:
                call_fail(c, 503, "no-access-token", "The service's authorization server gives no access token at "
                                                     "the moment.", "upstream_error");
                return;
        case MATERIAL_UNAVAILABLE:
                call_fail(c, 503, "credentials-unavailable", "The credential store does not answer at the moment.",
                          "upstream_error");
                return;
        }

        int r = 0;
        material_done(&c->material);
        c->material = *material;
        *material = (Material) {};
        if (!c->redactor)
                r = redactor_new(&c->redactor);
        for (char **s = c->material.redact; r >= 0 && s && *s; s++)
                r = redactor_add(c->redactor, *s, strlen(*s));
        if (r < 0) {
                call_fail(c, 503, "out-of-memory", NULL, "denied");
                return;
        }
        call_start(c);
}

static void call_get_material(ServiceCall *c) {
        if (c->service->auth.kind == SERVICE_AUTH_NONE) {
                call_start(c);
                return;
        }

        int r = material_get(c->bridge, c->live, c->service, c->token, on_material, c, &c->material_call);
        if (r < 0) {
                log_warning_errno(r, "Failed to ask for a credential: %m");
                call_fail(c, 503, "credentials-unavailable", "The credential store does not answer at the moment.",
                          "upstream_error");
        }
}

static void on_invalidated(MaterialError error, Material *material, void *userdata) {
        ServiceCall *c = userdata;

        if (error != MATERIAL_OK) {
                on_material(error, material, c);
                return;
        }
        c->material_call = material_call_free(c->material_call);
        call_get_material(c);
}

void call_retry(ServiceCall *c) {
        call_upstream_drop(c);
        c->retried = true;
        c->retry = false;

        int r = material_invalidate(c->bridge, c->live, c->service, c->token, c->material.generation, on_invalidated,
                                    c, &c->material_call);
        if (r < 0) {
                log_warning_errno(r, "Failed to report a refused access token: %m");
                call_fail(c, 503, "credentials-unavailable", "The credential store does not answer at the moment.",
                          "upstream_error");
        }
}

/* Policy, before anything is looked up or read. */
static void call_check(ServiceCall *c, const char *path_in_service) {
        const HttpHead *head = http_request_head(c->http);

        if (!service_match(c->service, c->method, path_in_service)) {
                log_notice("Run %s: %s %s of service %s is not allowed.", c->live->run, c->method, path_in_service,
                           c->service->name);
                call_fail(c, 403, "not-allowed", "The service's definition does not allow this method and path.",
                          "denied");
                return;
        }
        if (head->length != HTTP_LENGTH_UNKNOWN && head->length > c->body_max) {
                call_fail(c, 413, "body-too-large", "The request's body is larger than the service allows.", "denied");
                return;
        }
        if (streq(c->method, "HEAD") && head->length != 0) {
                call_fail(c, 400, "head-with-body", "A HEAD request has no body.", "denied");
                return;
        }
        /* A token in the URL would travel on, into somebody's log. */
        if (strstr(path_in_service, c->token) || (head->query && strstr(head->query, c->token))) {
                call_fail(c, 400, "token-in-url", "The run token does not belong into a URL.", "denied");
                return;
        }
        call_get_material(c);
}

void route_service(const RouteRequest *r) {
        static const HttpRequestOps ops = { .readable = on_readable, .writable = on_writable, .done = on_client_done };
        size_t n = strcspn(r->rest, "/");
        char name[256] = "";
        Service *service = NULL;

        if (n < sizeof(name)) {
                memcpy(name, r->rest, n);
                name[n] = 0;
                if (object_name_is_valid(name))
                        service = live_run_find_service(r->live, name);
        }
        if (!service) {
                http_problem(r->http, 404, "no-such-service", "The run has no service of that name.", NULL, 0);
                return;
        }

        ServiceCall *c = calloc(1, sizeof(ServiceCall));
        if (c) {
                *c = (ServiceCall) {
                        .bridge = r->run->bridge,
                        .run = r->run,
                        .http = r->http,
                        .live = live_run_ref(r->live),
                        .service = service_ref(service),
                        .token = strdup(r->token),
                        .method = strdup(http_request_head(r->http)->method),
                        .path = strdup(r->rest + n), /* "" where the request names just the service */
                        .body_max = MIN(service->body_max, r->live->limits.body_bytes),
                        .started_usec = now_usec(CLOCK_REALTIME),
                        .started_monotonic_usec = now_usec(CLOCK_MONOTONIC),
                };
        }
        if (!c || !c->token || !c->method || !c->path) {
                call_free(c);
                http_problem(r->http, 503, "out-of-memory", NULL, NULL, 0);
                return;
        }

        http_request_set_ops(r->http, &ops, c);
        call_check(c, *c->path ? c->path : "/");
}
