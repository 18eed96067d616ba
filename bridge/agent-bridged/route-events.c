/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * POST /v1/run/events: what happens in a run, for whoever watches it: NDJSON objects with a member "type", which go to
 * the journal as they are (AGENT_EVENT=), in the order in which they came.
 *
 * POST /v1/metrics: NDJSON {"name", "value", "kind": "counter" (default: is added to what was there) or "gauge"}. Each
 * goes to the journal (AGENT_METRIC=), and the sums are among the bridge's own counters while the run lives.
 */

#include <math.h>
#include <syslog.h>

#include "basic/json-util.h"
#include "basic/string-util.h"
#include "line-post.h"

static bool event_line(LinePost *p, const char *data, size_t size, bool cut) {
        _cleanup_json_ sd_json_variant *v = NULL;
        _cleanup_free_ char *field = NULL, *text = NULL;
        const char *type;

        if (cut || json_parse(data, size, &v, NULL) < 0)
                return false;
        type = json_string(v, "type");
        if (!type || !token_name_is_valid(type))
                return false;

        /* Written anew: one line, and no two readers of JSON can see different things in it. */
        if (json_format_canonical(v, &text) < 0 || !(field = strprintf("AGENT_EVENT=%s", type)))
                return false;
        line_post_journal(p->live, LOG_INFO, "agent-event", (char *[]) { field, NULL }, text, strlen(text));
        return true;
}

void route_post_events(const RouteRequest *r) {
        line_post(r, event_line);
}

/* As Prometheus wants them. */
static bool metric_name_is_valid(const char *s) {
        size_t n = strlen(s);

        if (n == 0 || n > 64 || (*s >= '0' && *s <= '9'))
                return false;
        return strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") == n;
}

static bool run_metric_add(BridgeRun *run, const char *name, bool gauge, double value) {
        RunMetric *m = NULL;

        for (size_t i = 0; i < run->n_metrics; i++)
                if (streq(run->metrics[i].name, name))
                        m = run->metrics + i;
        if (!m) {
                if (run->n_metrics >= RUN_METRICS_MAX)
                        return false;

                RunMetric *l = reallocarray(run->metrics, run->n_metrics + 1, sizeof(RunMetric));
                if (!l)
                        return false;
                run->metrics = l;
                m = l + run->n_metrics++;
                *m = (RunMetric) { .gauge = gauge };
                strcpy(m->name, name);
        }
        if (m->gauge != gauge || !isfinite(gauge ? value : m->value + value))
                return false;
        m->value = gauge ? value : m->value + value;
        return true;
}

static bool metric_line(LinePost *p, const char *data, size_t size, bool cut) {
        _cleanup_free_ char *name_field = NULL, *kind_field = NULL, *value_field = NULL;
        _cleanup_json_ sd_json_variant *v = NULL;
        sd_json_variant *number;
        const char *name, *kind;
        double value;
        bool gauge;

        if (cut || json_parse(data, size, &v, NULL) < 0)
                return false;
        name = json_string(v, "name");
        kind = json_string(v, "kind") ?: "counter";
        number = sd_json_variant_by_key(v, "value");
        gauge = streq(kind, "gauge");
        if (!name || !metric_name_is_valid(name) || !(gauge || streq(kind, "counter")) || !number ||
            !sd_json_variant_is_number(number))
                return false;
        value = sd_json_variant_real(number);
        if (!isfinite(value) || (!gauge && value < 0))
                return false;
        if (!run_metric_add(p->run, name, gauge, value))
                return false;

        name_field = strprintf("AGENT_METRIC=%s", name);
        kind_field = strprintf("AGENT_METRIC_KIND=%s", kind);
        value_field = strprintf("AGENT_METRIC_VALUE=%.17g", value);
        if (!name_field || !kind_field || !value_field)
                return false;
        line_post_journal(p->live, LOG_INFO, "agent-metric", (char *[]) { name_field, kind_field, value_field, NULL },
                          name, strlen(name));
        return true;
}

void route_post_metrics(const RouteRequest *r) {
        line_post(r, metric_line);
}
