/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* See exchange.h. */

#include <syslog.h>

#include "audit.h"
#include "basic/string-util.h"
#include "exchange.h"
#include "http/problem.h"

#define MESSAGE_REQUEST "5a7d0b6d4a3c4c1c9e5b1f6f0a9d2e71"
#define PATH_SHOWN_MAX 1024

int exchange_new(HttpRequest *req, Exchange **ret) {
        Exchange *x = calloc(1, sizeof(Exchange));
        if (!x)
                return -ENOMEM;

        x->route = "none";
        http_request_set_context(req, x);
        *ret = x;
        return 0;
}

Exchange *exchange_of(const HttpRequest *req) {
        return http_request_context(req);
}

void exchange_set_target(HttpRequest *req, const char *service, const char *path) {
        Exchange *x = exchange_of(req);

        if (!x)
                return;
        /* A record that lacks its path is better than none. */
        (void) free_and_strdup(&x->service, service);
        (void) free_and_strdup(&x->path, path);
        if (x->path && strlen(x->path) > PATH_SHOWN_MAX)
                x->path[PATH_SHOWN_MAX] = 0;
}

static const char *outcome_to_string(HttpOutcome outcome) {
        static const char *const names[] = {
                [HTTP_OUTCOME_COMPLETE] = "complete", [HTTP_OUTCOME_CLIENT_CLOSED] = "client_closed",
                [HTTP_OUTCOME_BAD_BODY] = "bad_body", [HTTP_OUTCOME_TIMEOUT] = "timeout",
                [HTTP_OUTCOME_ABORTED] = "aborted", [HTTP_OUTCOME_SHUTDOWN] = "shutdown",
                [HTTP_OUTCOME_MALFORMED] = "malformed",
        };

        return names[outcome];
}

static void count(Bridge *b, const HttpRecord *record, const char *route) {
        BridgeCounters *c = &b->counters;

        c->outcomes[record->outcome]++;
        c->classes[MIN(record->status / 100, (unsigned) ELEMENTSOF(c->classes) - 1)]++;
        c->request_bytes += record->request_bytes;
        c->response_bytes += record->response_bytes;
        for (size_t i = 0; i < ELEMENTSOF(c->routes); i++)
                if (!c->routes[i].route || streq(c->routes[i].route, route)) {
                        c->routes[i].route = route; /* constants, fewer than there is room for */
                        c->routes[i].n++;
                        break;
                }
}

/* Of a session in an edit there is the proxy's listener alone. */
static bool is_edit_session(const BridgeRun *run, const LiveRun *live) {
        return live ? live->holder != NULL : run != run->bridge->remote && !run->listeners[RUN_LISTENER_HTTP];
}

static void write_record(BridgeRun *run, const HttpRecord *record, const Exchange *x) {
        char buf[AUDIT_SIZE_MAX], message_buf[AUDIT_SIZE_MAX / 4];
        Text t = text_in(buf, sizeof(buf)), message = text_in(message_buf, sizeof(message_buf));
        const LiveRun *live = x ? x->live : NULL;
        const char *method = record->request ? http_request_head(record->request)->method : NULL;
        const char *code = record->request ? http_request_problem_code(record->request) : NULL;
        const char *outcome = x && x->outcome ? x->outcome : outcome_to_string(record->outcome);
        bool edit = is_edit_session(run, live);
        bool refused = record->status == 401 || record->status == 403 || !record->request;
        const char *id = live ? live->run : run->id;

        text_add(&message, edit ? "Edit session " : "Run ");
        text_add(&message, id);
        text_add(&message, ": ");
        text_add(&message, strempty(method));
        text_add(&message, " ");
        text_add(&message, x ? x->route : "malformed");
        if (x && x->service && !streq(x->service, x->route)) { /* the proxy's is called as its route */
                text_add(&message, " ");
                text_add(&message, x->service);
        }
        text_add(&message, ": ");
        text_add_u64(&message, record->status);
        text_add(&message, " ");
        text_add(&message, code ?: outcome);
        audit_add(&t, "MESSAGE", text_end(&message));
        audit_add(&t, "MESSAGE_ID", MESSAGE_REQUEST);
        audit_add_u64(&t, "PRIORITY", refused ? LOG_NOTICE : LOG_INFO);
        audit_add(&t, "SYSLOG_IDENTIFIER", "agent-bridge-audit");
        audit_add(&t, edit ? "AGENT_EDIT_SESSION" : "AGENT_RUN", id);
        audit_add(&t, "AGENT_REQUEST_ID", record->id);
        audit_add_u64(&t, "AGENT_STATUS", record->status);
        audit_add(&t, "AGENT_OUTCOME", outcome);
        audit_add_u64(&t, "AGENT_REQUEST_BYTES", record->request_bytes);
        audit_add_u64(&t, "AGENT_RESPONSE_BYTES", record->response_bytes);
        audit_add_u64(&t, "AGENT_DURATION_USEC", record->duration_usec);
        if (method)
                audit_add(&t, "AGENT_METHOD", method);
        if (code)
                audit_add(&t, "AGENT_PROBLEM", code);
        if (x) {
                audit_add(&t, "AGENT_ROUTE", x->route);
                if (x->reason)
                        audit_add(&t, "AGENT_REASON", x->reason);
                if (x->service)
                        audit_add(&t, "AGENT_SERVICE", x->service);
                if (x->path)
                        audit_add(&t, "AGENT_PATH", x->path);
        }
        if (live) {
                audit_add(&t, "AGENT_NAME", live->agent);
                audit_add(&t, "AGENT_USER", live->user);
                if (live->holder)
                        audit_add(&t, "AGENT_HOLDER", live->holder);
                else
                        audit_add_u64(&t, "AGENT_ATTEMPT", live->attempt);
        }
        audit_sink(&t);
}

void exchange_flush_refusals(BridgeRun *run) {
        char buf[512], message_buf[128];
        Text t = text_in(buf, sizeof(buf)), message = text_in(message_buf, sizeof(message_buf));
        bool edit = is_edit_session(run, NULL);

        if (run->n_omitted == 0)
                return;
        text_add(&message, edit ? "Edit session " : "Run ");
        text_add(&message, run->id);
        text_add(&message, ": ");
        text_add_u64(&message, run->n_omitted);
        text_add(&message, " more requests were not let in.");
        audit_add(&t, "MESSAGE", text_end(&message));
        audit_add(&t, "MESSAGE_ID", MESSAGE_REQUEST);
        audit_add_u64(&t, "PRIORITY", LOG_WARNING);
        audit_add(&t, "SYSLOG_IDENTIFIER", "agent-bridge-audit");
        audit_add(&t, edit ? "AGENT_EDIT_SESSION" : "AGENT_RUN", run->id);
        audit_add_u64(&t, "AGENT_OMITTED", run->n_omitted);
        run->n_omitted = 0;
        audit_sink(&t);
}

/* Whether this one may have a record of its own. */
static bool admit_record(BridgeRun *run, const HttpRecord *record, const Exchange *x) {
        uint64_t now = 0;

        if (x && x->live && record->status != 429)
                return true;
        (void) sd_event_now(run->bridge->event, CLOCK_MONOTONIC, &now);
        if (now >= run->refused_usec + USEC_PER_SEC) {
                exchange_flush_refusals(run);
                run->refused_usec = now;
                run->n_refused = 0;
        }
        if (run->n_refused < REFUSALS_PER_SECOND) {
                run->n_refused++;
                return true;
        }
        run->n_omitted++;
        return false;
}

void exchange_observe(HttpListener *l, const HttpRecord *record, void *userdata) {
        BridgeRun *run = userdata;
        Exchange *x = record->request ? exchange_of(record->request) : NULL;

        count(run->bridge, record, x ? x->route : "malformed");
        if (admit_record(run, record, x))
                write_record(run, record, x);
        if (!x)
                return;

        lease_release(&x->lease);
        live_run_unref(x->live);
        free(x->service);
        free(x->path);
        free(x);
        http_request_set_context(record->request, NULL);
}
