/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* See exchange.h. */

#include <sys/uio.h>
#include <syslog.h>
#include <systemd/sd-journal.h>

#include "basic/string-util.h"
#include "exchange.h"
#include "http/problem.h"

#define MESSAGE_REQUEST "5a7d0b6d4a3c4c1c9e5b1f6f0a9d2e71"
#define FIELDS_MAX 24
#define PATH_SHOWN_MAX 1024

static void send_to_journal(char *const *fields) {
        struct iovec iov[FIELDS_MAX];
        int n = 0;

        for (; fields[n]; n++)
                iov[n] = (struct iovec) { .iov_base = fields[n], .iov_len = strlen(fields[n]) };
        (void) sd_journal_sendv(iov, n);
}

audit_sink_t audit_sink = send_to_journal;

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

static void write_record(BridgeRun *run, const HttpRecord *record, const Exchange *x) {
        char *fields[FIELDS_MAX + 1] = {};
        size_t n = 0;
        bool complete = true;
        const LiveRun *live = x ? x->live : NULL;
        const char *method = record->request ? http_request_head(record->request)->method : NULL;
        const char *code = record->request ? http_request_problem_code(record->request) : NULL;
        const char *outcome = x && x->outcome ? x->outcome : outcome_to_string(record->outcome);
        /* Of a session in an edit there is the proxy's listener alone. */
        bool edit = live ? live->holder != NULL : run != run->bridge->remote && !run->listeners[RUN_LISTENER_HTTP];
        bool refused = record->status == 401 || record->status == 403 || !record->request;

#define ADD(...)                                                                                                       \
        ({                                                                                                             \
                if (n < FIELDS_MAX)                                                                                    \
                        complete = (fields[n++] = strprintf(__VA_ARGS__)) && complete;                                 \
        })
        const char *id = live ? live->run : run->id;

        ADD("MESSAGE=%s %s: %s %s%s%s: %u %s", edit ? "Edit session" : "Run", id, strempty(method),
            x ? x->route : "malformed", x && x->service ? " " : "", x && x->service ? x->service : "", record->status,
            code ?: outcome);
        ADD("MESSAGE_ID=" MESSAGE_REQUEST);
        ADD("PRIORITY=%i", refused ? LOG_NOTICE : LOG_INFO);
        ADD("SYSLOG_IDENTIFIER=agent-bridge-audit");
        ADD("%s=%s", edit ? "AGENT_EDIT_SESSION" : "AGENT_RUN", id);
        ADD("AGENT_REQUEST_ID=%s", record->id);
        ADD("AGENT_STATUS=%u", record->status);
        ADD("AGENT_OUTCOME=%s", outcome);
        ADD("AGENT_REQUEST_BYTES=%" PRIu64, record->request_bytes);
        ADD("AGENT_RESPONSE_BYTES=%" PRIu64, record->response_bytes);
        ADD("AGENT_DURATION_USEC=%" PRIu64, record->duration_usec);
        if (method)
                ADD("AGENT_METHOD=%s", method);
        if (code)
                ADD("AGENT_PROBLEM=%s", code);
        if (x) {
                ADD("AGENT_ROUTE=%s", x->route);
                if (x->reason)
                        ADD("AGENT_REASON=%s", x->reason);
                if (x->service)
                        ADD("AGENT_SERVICE=%s", x->service);
                if (x->path)
                        ADD("AGENT_PATH=%s", x->path);
        }
        if (live) {
                ADD("AGENT_NAME=%s", live->agent);
                ADD("AGENT_USER=%s", live->user);
                if (live->holder)
                        ADD("AGENT_HOLDER=%s", live->holder);
                else
                        ADD("AGENT_ATTEMPT=%" PRIu64, live->attempt);
        }
#undef ADD

        if (complete)
                audit_sink(fields);
        for (size_t i = 0; i < n; i++)
                free(fields[i]);
}

void exchange_flush_refusals(BridgeRun *run) {
        _cleanup_free_ char *message = NULL, *id = NULL, *omitted = NULL;

        if (run->n_omitted == 0)
                return;
        message = strprintf("MESSAGE=Run %s: %" PRIu64 " more requests were not let in.", run->id, run->n_omitted);
        id = strprintf("AGENT_RUN=%s", run->id);
        omitted = strprintf("AGENT_OMITTED=%" PRIu64, run->n_omitted);
        if (!message || !id || !omitted)
                return;
        run->n_omitted = 0;
        audit_sink((char *[]) { message, (char *) "MESSAGE_ID=" MESSAGE_REQUEST, (char *) "PRIORITY=4",
                                (char *) "SYSLOG_IDENTIFIER=agent-bridge-audit", id, omitted, NULL });
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
