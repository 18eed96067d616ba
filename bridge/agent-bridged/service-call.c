/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* See service-call.h. This file: which service is meant, the credential, the request's body, the end and the report. */

#include <time.h>

#include "basic/log.h"
#include "basic/string-util.h"
#include "call-record.h"
#include "exchange.h"
#include "http/http-path.h"
#include "http/problem.h"
#include "service-call.h"
#include "service/proxy-allow.h"

static uint64_t now_usec(clockid_t clock) {
        struct timespec ts;

        assert(clock_gettime(clock, &ts) == 0);
        return (uint64_t) ts.tv_sec * USEC_PER_SEC + (uint64_t) ts.tv_nsec / NSEC_PER_USEC;
}

static ServiceCall *call_free(ServiceCall *c) {
        if (!c)
                return NULL;

        call_upstream_drop(c);
        approval_free(c->approval);
        material_call_free(c->material_call);
        material_done(&c->material);
        redactor_free(c->redactor);
        report_cancel_call(c->report);
        http_buffer_done(&c->body);
        if (c->token)
                explicit_bzero(c->token, strlen(c->token));
        free(c->token);
        free(c->method);
        free(c->path);
        free(c->path_shown);
        service_unref(c->service);
        live_run_unref(c->live);
        bridge_call_ended(c->bridge);
        return mfree(c);
}

static CallRecord call_record(const ServiceCall *c, const char *outcome) {
        return (CallRecord) {
                .id = http_request_id(c->http),
                .service = c->service->name,
                .method = c->method,
                .path = c->path_shown,
                .status = c->reported_status,
                .request_bytes = c->request_bytes,
                .response_bytes = c->response_bytes,
                .started_usec = c->started_usec,
                .duration_usec = now_usec(CLOCK_MONOTONIC) - c->started_monotonic_usec,
                .outcome = outcome,
        };
}

int call_note(ServiceCall *c) {
        CallRecord record = call_record(c, "interrupted");

        return c->report ? 0 : call_record_open(c->bridge, c->live, &record, &c->report);
}

static void call_report(ServiceCall *c, const char *outcome) {
        CallRecord record = call_record(c, outcome);

        call_record_close(c->bridge, c->live, &record, TAKE_PTR(c->report));
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
                case HTTP_OUTCOME_SHUTDOWN:
                        text = "interrupted"; /* by the end of the run, or ours */
                        break;
                default:
                        text = "client_closed";
                }
        if (c->redactor && redactor_hits(c->redactor) > 0)
                log_warning_limited("Run %s: %s echoed its credential %u times in an answer to %s %s; it was taken "
                                    "out. Consider to change the credential, and to narrow the paths that are allowed.",
                                    c->live->run, c->service->name, redactor_hits(c->redactor), c->method, c->path);
        if (c->redactor && redactor_hits(c->redactor) > 0)
                c->bridge->counters.redactions++;
        if (streq(text, "upstream_error"))
                c->bridge->counters.upstream_errors++;
        if (exchange_of(req))
                exchange_of(req)->outcome = text;
        call_report(c, text);
        call_free(c);
}

void call_fail(ServiceCall *c, unsigned status, const char *code, const char *detail, const char *outcome) {
        call_upstream_drop(c);
        c->approval = approval_free(c->approval);
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
                c->body_kept = true;
                call_upstream_start(c);
                return;
        }
        http_request_accept_body(c->http, c->body_max);
        if (!c->keep_body)
                call_upstream_start(c);
}

static void on_material(MaterialStatus error, Material *material, void *userdata) {
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
                http_request_set_problem_style(c->http, PROBLEM_STYLE_PROBLEM);
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
        case _MATERIAL_STATUS_MAX:
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

void call_get_material(ServiceCall *c) {
        if (c->service->auth.kind == SERVICE_AUTH_NONE) {
                call_start(c);
                return;
        }

        int r = material_get(c->bridge, c->live, c->service, c->token, on_material, c, &c->material_call);
        if (r < 0) {
                log_warning_limited_errno(r, "Failed to ask for a credential: %m");
                call_fail(c, 503, "credentials-unavailable", "The credential store does not answer at the moment.",
                          "upstream_error");
                return;
        }
        /* In the meantime. What fails now is tried again, and told, when it is started. */
        (void) call_note(c);
        (void) call_upstream_prepare(c);
}

static void on_invalidated(MaterialStatus error, Material *material, void *userdata) {
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
                log_warning_limited_errno(r, "Failed to report a refused access token: %m");
                call_fail(c, 503, "credentials-unavailable", "The credential store does not answer at the moment.",
                          "upstream_error");
        }
}

static void call_new(const RouteRequest *r, Service *service, const char *path, CallMode mode) {
        static const HttpRequestOps ops = { .readable = on_readable, .writable = on_writable, .done = on_client_done };
        static const ProblemStyle styles[] = {
                [SERVICE_ERRORS_PROBLEM] = PROBLEM_STYLE_PROBLEM,
                [SERVICE_ERRORS_OPENAI] = PROBLEM_STYLE_OPENAI,
                [SERVICE_ERRORS_ANTHROPIC] = PROBLEM_STYLE_ANTHROPIC,
        };

        ServiceCall *c = calloc(1, sizeof(ServiceCall));
        if (c) {
                *c = (ServiceCall) {
                        .bridge = r->run->bridge,
                        .run = r->run,
                        .http = r->http,
                        .live = live_run_ref(r->live),
                        .service = service_ref(service),
                        .mode = mode,
                        .token = strdup(r->token),
                        .method = strdup(http_request_head(r->http)->method),
                        .path = strdup(path), /* "" where the request names just the service */
                        .body_max = MIN(MIN(service->body_max, r->live->limits.body_bytes),
                                        r->run->bridge->config.body_max),
                        /* What is small is kept: it can go over a connection that is kept, too, or again with another
                         * access token. */
                        .keep_body = http_request_head(r->http)->length <= CALL_REPLAY_MAX,
                        .started_usec = now_usec(CLOCK_REALTIME),
                        .started_monotonic_usec = now_usec(CLOCK_MONOTONIC),
                };
                bridge_call_begins(c->bridge);
                /* The token may stand in it, before that is refused. */
                c->path_shown = mode == CALL_PROXY ? strprintf("%s/", service->base_url.text) :
                                strstr(path, r->token) ? strdup("/?") : strdup(path);
        }
        if (!c || !c->token || !c->method || !c->path || !c->path_shown) {
                call_free(c);
                http_problem(r->http, 503, "out-of-memory", NULL, NULL, 0);
                return;
        }

        exchange_set_target(r->http, service->name, c->path_shown);
        if (mode != CALL_PROXY)
                http_request_set_problem_style(r->http, styles[service->errors]);
        http_request_set_ops(r->http, &ops, c);
        call_check(c);
}

void call_proxy(const RouteRequest *r, Service *service) {
        call_new(r, service, http_request_head(r->http)->path, CALL_PROXY);
}

static void call_by_name(const RouteRequest *r, Service *service, const char *path, CallMode mode) {
        if (!service)
                http_problem(r->http, 404, "no-such-service", "The run has no service of that name.", NULL, 0);
        else if (!service->encoded_slash && strstr(path, "%2F"))
                http_problem(r->http, 400, "bad-path", "The service's definition does not allow an escaped '/'.", NULL,
                             0);
        else
                call_new(r, service, path, mode);
}

void route_service(const RouteRequest *r) {
        size_t n = strcspn(r->rest, "/");
        char name[256] = "";
        Service *service = NULL;

        if (n < sizeof(name)) {
                memcpy(name, r->rest, n);
                name[n] = 0;
                if (object_name_is_valid(name))
                        service = live_run_find_service(r->live, name);
        }
        call_by_name(r, service, r->rest + n, CALL_BY_NAME);
}

/* Of several services of one host the one with the longest path is meant. Two of the same base URL differ in their
 * credentials: which one is meant is not guessed. */
void route_service_by_host(const RouteRequest *r, const char *host) {
        _cleanup_free_ char *name = NULL;
        Service *best = NULL, *twin = NULL;
        const char *rest = "";
        uint16_t port;

        exchange_of(r->http)->route = "host";
        int k = proxy_authority_parse(host, 443, &name, &port);
        if (k == -ENOMEM) {
                http_problem(r->http, 503, "out-of-memory", NULL, NULL, 0);
                return;
        }

        for (size_t i = 0; k >= 0 && i < r->live->n_services; i++) {
                const ServiceUrl *u = &r->live->services[i]->base_url;
                const char *below;

                /* Over the socket clients speak plain HTTP, some then say port 80. */
                if (!streq(u->host, name) || (u->port != port && !(u->port == 443 && port == 80)) ||
                    !(below = http_path_below(r->path, u->path)))
                        continue;
                if (!best || strlen(u->path) > strlen(best->base_url.path)) {
                        best = r->live->services[i];
                        twin = NULL;
                        rest = below;
                } else if (streq(u->path, best->base_url.path))
                        twin = r->live->services[i];
        }
        if (twin) {
                _cleanup_free_ char *detail = strprintf("Services \"%s\" and \"%s\" have the same base URL: ask for "
                                                        "one by its name.", best->name, twin->name);
                http_problem(r->http, 409, "ambiguous-service", detail, NULL, 0);
                return;
        }
        call_by_name(r, best, rest, CALL_BY_HOST);
}
