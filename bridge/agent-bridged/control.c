/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * The control socket, for root: GET /healthz (a word and two numbers), GET /metrics (OpenMetrics). Nothing that comes
 * through a run's listener gets here.
 */

#include "basic/log.h"
#include "basic/string-util.h"
#include "http/problem.h"
#include "report.h"
#include "routes.h"

static void healthz(HttpRequest *req, Bridge *b) {
        static const HttpField fields[] = { { "Content-Type", "application/json" } };
        _cleanup_free_ char *text = strprintf("{\"status\":\"%s\",\"runs\":%zu,\"connections\":%u}\n",
                                              b->draining ? "draining" : "ok",
                                              strmap_size(b->runs), http_server_connections(b->server));

        if (!text || http_response_send(req, 200, fields, ELEMENTSOF(fields), text, strlen(text)) < 0)
                http_request_abort(req);
}

static void family(FILE *f, const char *name, const char *type, const char *help) {
        fprintf(f, "# TYPE %s %s\n# HELP %s %s\n", name, type, name, help);
}

static void add_listener(HttpListenerStatistics *sum, const HttpListener *l) {
        if (!l)
                return;

        const HttpListenerStatistics *s = http_listener_statistics(l);
        sum->accepted += s->accepted;
        sum->malformed += s->malformed;
        sum->http2_prefaces += s->http2_prefaces;
        sum->timeouts += s->timeouts;
        sum->connections += s->connections;
}

static void write_runs(FILE *f, Bridge *b) {
        size_t i = 0;

        family(f, "agent_run_log_bytes", "gauge", "Bytes of logs, events and metrics that a live run has sent.");
        for (BridgeRun *run; (run = strmap_next(b->runs, &i));)
                fprintf(f, "agent_run_log_bytes{run=\"%s\"} %" PRIu64 "\n", run->id, run->log_bytes);

        i = 0;
        family(f, "agent_run_metric", "gauge", "What a live run says of itself with POST /v1/metrics.");
        for (BridgeRun *run; (run = strmap_next(b->runs, &i));)
                for (size_t k = 0; k < run->n_metrics; k++)
                        fprintf(f, "agent_run_metric{run=\"%s\",name=\"%s\",kind=\"%s\"} %.17g\n", run->id,
                                run->metrics[k].name, run->metrics[k].gauge ? "gauge" : "counter",
                                run->metrics[k].value);
}

static void write_metrics(FILE *f, Bridge *b) {
        static const char *const outcomes[] = {
                [HTTP_OUTCOME_COMPLETE] = "complete", [HTTP_OUTCOME_CLIENT_CLOSED] = "client_closed",
                [HTTP_OUTCOME_BAD_BODY] = "bad_body", [HTTP_OUTCOME_TIMEOUT] = "timeout",
                [HTTP_OUTCOME_ABORTED] = "aborted", [HTTP_OUTCOME_SHUTDOWN] = "shutdown",
                [HTTP_OUTCOME_MALFORMED] = "malformed",
        };
        const BridgeCounters *c = &b->counters;
        HttpListenerStatistics sum = {
                .accepted = c->accepted, .malformed = c->malformed, .http2_prefaces = c->http2_prefaces,
                .timeouts = c->timeouts,
        };
        HttpListenerStatistics remote = {};
        size_t i = 0;

        for (BridgeRun *run; (run = strmap_next(b->runs, &i));)
                for (RunListener k = 0; k < _RUN_LISTENER_MAX; k++)
                        add_listener(&sum, run->listeners[k]);
        if (b->remote) {
                add_listener(&remote, b->remote->listeners[RUN_LISTENER_HTTP]);
                add_listener(&sum, b->remote->listeners[RUN_LISTENER_HTTP]);
        }

        family(f, "agent_bridge_runs", "gauge", "Registered runs.");
        fprintf(f, "agent_bridge_runs %zu\n", strmap_size(b->runs));
        family(f, "agent_bridge_connections", "gauge", "Open connections of sandboxes.");
        fprintf(f, "agent_bridge_connections %u\n", sum.connections);
        family(f, "agent_bridge_accepted", "counter", "Connections accepted from sandboxes.");
        fprintf(f, "agent_bridge_accepted_total %" PRIu64 "\n", sum.accepted);
        family(f, "agent_bridge_remote_accepted", "counter", "Those that came through agent-bridged-remote.socket.");
        fprintf(f, "agent_bridge_remote_accepted_total %" PRIu64 "\n", remote.accepted);
        family(f, "agent_bridge_malformed", "counter", "Heads and bodies that were no HTTP.");
        fprintf(f, "agent_bridge_malformed_total %" PRIu64 "\n", sum.malformed);
        family(f, "agent_bridge_http2_prefaces", "counter", "Connections that began with HTTP/2 and were closed.");
        fprintf(f, "agent_bridge_http2_prefaces_total %" PRIu64 "\n", sum.http2_prefaces);
        family(f, "agent_bridge_timeouts", "counter", "Clients that were too slow.");
        fprintf(f, "agent_bridge_timeouts_total %" PRIu64 "\n", sum.timeouts);

        family(f, "agent_bridge_requests", "counter", "Requests by how they ended.");
        for (size_t k = 0; k < ELEMENTSOF(c->outcomes); k++)
                fprintf(f, "agent_bridge_requests_total{outcome=\"%s\"} %" PRIu64 "\n", outcomes[k], c->outcomes[k]);
        family(f, "agent_bridge_answers", "counter", "Answers by the class of their status; 0: none was given.");
        for (size_t k = 0; k < ELEMENTSOF(c->classes); k++)
                fprintf(f, "agent_bridge_answers_total{class=\"%zu\"} %" PRIu64 "\n", k, c->classes[k]);
        family(f, "agent_bridge_route_requests", "counter", "Requests by route.");
        for (size_t k = 0; k < ELEMENTSOF(c->routes) && c->routes[k].route; k++)
                fprintf(f, "agent_bridge_route_requests_total{route=\"%s\"} %" PRIu64 "\n", c->routes[k].route,
                        c->routes[k].n);
        family(f, "agent_bridge_request_bytes", "counter", "Bytes of bodies from sandboxes.");
        fprintf(f, "agent_bridge_request_bytes_total %" PRIu64 "\n", c->request_bytes);
        family(f, "agent_bridge_response_bytes", "counter", "Bytes of bodies to sandboxes.");
        fprintf(f, "agent_bridge_response_bytes_total %" PRIu64 "\n", c->response_bytes);
        family(f, "agent_bridge_denied", "counter", "Requests whose token was refused.");
        fprintf(f, "agent_bridge_denied_total %" PRIu64 "\n", c->denied);
        family(f, "agent_bridge_limited", "counter", "Requests that were too many.");
        fprintf(f, "agent_bridge_limited_total %" PRIu64 "\n", c->limited);
        family(f, "agent_bridge_upstream_errors", "counter", "Calls that failed by the service's fault.");
        fprintf(f, "agent_bridge_upstream_errors_total %" PRIu64 "\n", c->upstream_errors);
        family(f, "agent_bridge_redactions", "counter", "Answers that had a credential in them, which was taken out.");
        fprintf(f, "agent_bridge_redactions_total %" PRIu64 "\n", c->redactions);
        family(f, "agent_bridge_reports_waiting", "gauge", "Reports that agentd has not taken yet.");
        fprintf(f, "agent_bridge_reports_waiting %zu\n", report_queue_size(b->reports));
        write_runs(f, b);
        fputs("# EOF\n", f);
}

static void metrics(HttpRequest *req, Bridge *b) {
        static const HttpField fields[] = {
                { "Content-Type", "application/openmetrics-text; version=1.0.0; charset=utf-8" },
        };
        _cleanup_free_ char *text = NULL;
        size_t size = 0;
        FILE *f = open_memstream(&text, &size);

        if (f)
                write_metrics(f, b);
        if (!f || fclose(f) != 0 || http_response_send(req, 200, fields, ELEMENTSOF(fields), text, size) < 0)
                http_request_abort(req);
}

void routes_handle_control(HttpRequest *req, void *userdata) {
        const HttpHead *head = http_request_head(req);
        bool get = streq(head->method, "GET") || streq(head->method, "HEAD");

        if (get && streq(head->path, "/healthz"))
                healthz(req, userdata);
        else if (get && streq(head->path, "/metrics"))
                metrics(req, userdata);
        else
                http_problem(req, 404, "no-such-route", NULL, NULL, 0);
}
