/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* See report.h. A message that was sent cannot be sent again, so a report keeps its arguments in a message that
 * never is, and each try is a copy of it. */

#include "basic/json-util.h"
#include "basic/log.h"
#include "report-internal.h"

struct Report {
        ReportQueue *queue;
        Report *next, *previous;
        char run[RUN_ID_LEN + 1];
        const char *method;
        sd_bus_message *arguments; /* sealed */
        bool noted;                /* it is in the log */
        sd_bus_slot *slot;
        sd_event_source *timer;
        uint64_t delay_usec;
        report_done_t done;
        void *userdata;
};

static int report_try(Report *p);

int report_queue_new(Bridge *b, ReportQueue **ret) {
        ReportQueue *q = calloc(1, sizeof(ReportQueue));
        if (!q)
                return -ENOMEM;
        q->bridge = b;
        q->runs = strmap_new();
        if (!q->runs) {
                free(q);
                return -ENOMEM;
        }
        *ret = q;
        return 0;
}

ReportQueue *report_queue_free(ReportQueue *q) {
        if (!q)
                return NULL;
        /* agentd asks the next bridge again, which knows of the same reports by the log. */
        for (Waiter *w; (w = q->waiters);) {
                q->waiters = w->next;
                sd_bus_message_unref(w->message);
                free(w);
        }
        q->log = report_log_free(q->log); /* what is noted there stays for the next one */
        call_reports_free(q);
        while (q->reports)
                report_cancel(q->reports);
        strmap_free(q->runs);
        return mfree(q);
}

size_t report_queue_size(const ReportQueue *q) {
        return q->n;
}

/* How many reports of all kinds there are of one run. */
typedef struct RunCount {
        char run[RUN_ID_LEN + 1];
        size_t n;
} RunCount;

int queue_count(ReportQueue *q, const char *run) {
        RunCount *c = strmap_get(q->runs, run);

        if (!c) {
                c = calloc(1, sizeof(RunCount));
                if (!c)
                        return -ENOMEM;
                strcpy(c->run, run);
                int r = strmap_put(q->runs, c->run, c);
                if (r < 0) {
                        free(c);
                        return r;
                }
        }
        c->n++;
        return 0;
}

static void answer_waiters(ReportQueue *q, const char *run) {
        for (Waiter **p = &q->waiters, *w; (w = *p);)
                if (streq(w->run, run)) {
                        *p = w->next;
                        (void) sd_bus_reply_method_return(w->message, NULL);
                        sd_bus_message_unref(w->message);
                        free(w);
                } else
                        p = &w->next;
}

void queue_uncount(ReportQueue *q, const char *run) {
        RunCount *c = strmap_get(q->runs, run);

        assert(c && c->n > 0);
        if (--c->n > 0)
                return;
        (void) strmap_remove(q->runs, c->run);
        answer_waiters(q, c->run);
        free(c);
}

bool queue_is_awaited(const ReportQueue *q, const char *run) {
        for (const Waiter *w = q->waiters; w; w = w->next)
                if (streq(w->run, run))
                        return true;
        return false;
}

void queue_unnote(ReportQueue *q) {
        assert(q->n_noted > 0);
        if (--q->n_noted > 0 || !q->log)
                return;
        int r = report_log_clear(q->log);
        if (r < 0)
                log_warning_errno(r, "Reports that were taken cannot be forgotten: %m");
}

Report *report_cancel(Report *p) {
        if (!p)
                return NULL;

        ReportQueue *q = p->queue;

        if (p->previous)
                p->previous->next = p->next;
        else
                q->reports = p->next;
        if (p->next)
                p->next->previous = p->previous;
        q->n--;
        if (p->noted)
                queue_unnote(q);

        sd_bus_slot_unref(p->slot);
        sd_event_source_disable_unref(p->timer);
        sd_bus_message_unref(p->arguments);
        queue_uncount(q, p->run);
        free(p);
        return NULL;
}

void report_forget(Report *p) {
        if (p)
                p->done = NULL;
}

static void report_finish(Report *p, int error, sd_bus_message *reply, const char *detail) {
        report_done_t done = p->done;
        void *userdata = p->userdata;

        /* What the run itself did wrong it hears itself. */
        if (error < 0 && error != -ENOENT && error != -ENODATA && error != -EEXIST && error != -EDQUOT &&
            error != -ENOSPC)
                log_warning_limited_errno(error, "Run %s: %s was not taken by agentd: %s", p->run, p->method,
                                          detail ?: strerror(-error));
        report_cancel(p);
        if (done)
                done(error, reply, detail, userdata);
}

bool report_run_is_over(const ReportQueue *q, const char *run) {
        _cleanup_(live_run_unrefp) LiveRun *live = NULL;

        return live_cache_get(q->bridge->live, run, &live) == -ENOENT;
}

static int on_timer(sd_event_source *source, uint64_t usec, void *userdata) {
        Report *p = userdata;

        int r = report_try(p);
        if (r < 0)
                report_finish(p, r, NULL, NULL);
        return 0;
}

static void report_retry(Report *p, int error) {
        /* Not at once: agentd takes the live file away before it asks us for the rest. */
        if (p->delay_usec >= RETRY_GIVE_UP_USEC && report_run_is_over(p->queue, p->run)) {
                report_finish(p, -ENOENT, NULL, "The run is over.");
                return;
        }

        p->delay_usec = p->delay_usec == 0 ? RETRY_FIRST_USEC : MIN(p->delay_usec * 2, RETRY_MAX_USEC);
        int r;
        if (!p->timer)
                r = sd_event_add_time_relative(p->queue->bridge->event, &p->timer, CLOCK_MONOTONIC, p->delay_usec, 0,
                                               on_timer, p);
        else {
                r = sd_event_source_set_time_relative(p->timer, p->delay_usec);
                if (r >= 0)
                        r = sd_event_source_set_enabled(p->timer, SD_EVENT_ONESHOT);
        }
        if (r < 0)
                report_finish(p, r, NULL, NULL);
}

/* Errors that mean "agentd is not there just now". */
bool report_error_is_transient(const sd_bus_error *e) {
        static const char *const names[] = {
                SD_BUS_ERROR_NO_REPLY, SD_BUS_ERROR_DISCONNECTED, SD_BUS_ERROR_SERVICE_UNKNOWN,
                SD_BUS_ERROR_NAME_HAS_NO_OWNER,
                SD_BUS_ERROR_TIMEOUT, "org.freedesktop.DBus.Error.TimedOut", "org.freedesktop.DBus.Error.UnknownObject",
                "org.freedesktop.DBus.Error.UnknownMethod", "org.freedesktop.DBus.Error.UnknownInterface",
        };

        for (size_t i = 0; i < ELEMENTSOF(names); i++)
                if (sd_bus_error_has_name(e, names[i]))
                        return true;
        return startswith(e->name, "org.freedesktop.DBus.Error.Spawn.") ||
               startswith(e->name, "org.freedesktop.systemd1.");
}

static int on_reply(sd_bus_message *m, void *userdata, sd_bus_error *ret_error) {
        Report *p = userdata;
        const sd_bus_error *e = sd_bus_message_get_error(m);

        p->slot = sd_bus_slot_unref(p->slot);
        if (!e)
                report_finish(p, 0, m, NULL);
        else if (report_error_is_transient(e))
                report_retry(p, -EAGAIN);
        else if (sd_bus_error_has_name(e, "org.agentd1.Error.NoSuchRun"))
                report_finish(p, -ENOENT, NULL, e->message);
        else if (sd_bus_error_has_name(e, "org.agentd1.Error.NoSuchArtifact") ||
                 sd_bus_error_has_name(e, "org.agentd1.Error.NoSuchSession"))
                report_finish(p, -ENODATA, NULL, e->message);
        else if (sd_bus_error_has_name(e, "org.agentd1.Error.IdempotencyConflict") ||
                 sd_bus_error_has_name(e, "org.agentd1.Error.SessionChanged"))
                report_finish(p, -EEXIST, NULL, e->message);
        else if (sd_bus_error_has_name(e, "org.agentd1.Error.QuotaExceeded") ||
                 sd_bus_error_has_name(e, "org.agentd1.Error.NoSpace"))
                report_finish(p, -ENOSPC, NULL, e->message);
        else if (sd_bus_error_has_name(e, SD_BUS_ERROR_LIMITS_EXCEEDED))
                report_finish(p, -EDQUOT, NULL, e->message);
        else
                report_finish(p, -EINVAL, NULL, e->message);
        return 0;
}

static int report_try(Report *p) {
        _cleanup_(sd_bus_message_unrefp) sd_bus_message *m = NULL;
        sd_bus *bus = p->queue->bridge->bus;

        if (!bus)
                return -ENOTCONN;
        int r = sd_bus_message_new_method_call(bus, &m, AGENTD_NAME, REPORT_PATH, REPORT_INTERFACE, p->method);
        if (r < 0)
                return r;
        r = sd_bus_message_rewind(p->arguments, true);
        if (r < 0)
                return r;
        r = sd_bus_message_copy(m, p->arguments, true);
        if (r < 0)
                return r;
        return sd_bus_call_async(bus, &p->slot, m, on_reply, p, REPORT_TIMEOUT_USEC);
}

/* Those that carry a document. They stay when their client goes away, so each run may have few of them under way. */
static bool has_large(const char *method) {
        return streq(method, "ReportResult") || streq(method, "PutSession");
}

static unsigned count_large(const ReportQueue *q, const char *run) {
        unsigned n = 0;

        for (const Report *p = q->reports; p; p = p->next)
                n += has_large(p->method) && streq(p->run, run);
        return n;
}

static int report_new(Bridge *b, const char *run, uint64_t attempt, const char *method, Report **ret) {
        ReportQueue *q = b->reports;

        if (!b->bus)
                return -ENOTCONN;
        /* Results have room even where a run fills the queue with its calls while agentd is away. */
        if (q->n >= REPORTS_MAX * 2)
                return -ENOBUFS;
        if (has_large(method) && count_large(q, run) >= REPORTS_LARGE_MAX)
                return -ENOBUFS;

        Report *p = calloc(1, sizeof(Report));
        if (!p)
                return -ENOMEM;
        *p = (Report) { .queue = q, .method = method, .next = q->reports };
        strcpy(p->run, run);
        int r = queue_count(q, run);
        if (r < 0) {
                free(p);
                return r;
        }
        if (p->next)
                p->next->previous = p;
        q->reports = p;
        q->n++;

        r = sd_bus_message_new_method_call(b->bus, &p->arguments, AGENTD_NAME, REPORT_PATH, REPORT_INTERFACE, method);
        if (r >= 0)
                r = sd_bus_message_append(p->arguments, "su", run, (uint32_t) attempt);
        if (r < 0) {
                report_cancel(p);
                return r;
        }
        *ret = p;
        return 0;
}

/* Of results; nobody waits for artifacts any more when we are gone. */
static int report_note(Report *p) {
        _cleanup_json_ sd_json_variant *line = NULL;
        _cleanup_free_ char *text = NULL;
        ReportQueue *q = p->queue;
        const char *run, *a = NULL;
        uint32_t attempt;

        if (!q->log || !streq(p->method, "ReportResult"))
                return 0;
        int r = sd_bus_message_rewind(p->arguments, true);
        if (r >= 0)
                r = sd_bus_message_read(p->arguments, "sus", &run, &attempt, &a);
        if (r >= 0)
                r = sd_json_build(&line, SD_JSON_BUILD_ARRAY(SD_JSON_BUILD_STRING(p->method), SD_JSON_BUILD_STRING(run),
                                                             SD_JSON_BUILD_UNSIGNED(attempt), SD_JSON_BUILD_STRING(a),
                                                             SD_JSON_BUILD_NULL));
        if (r >= 0)
                r = sd_json_variant_format(line, SD_JSON_FORMAT_NEWLINE, &text);
        if (r >= 0)
                r = queue_note(q, text, strlen(text));
        if (r >= 0 && !p->noted) {
                p->noted = true;
                q->n_noted++;
        }
        return r < 0 ? r : 0;
}

static void compact_log(ReportQueue *q) {
        report_log_compact_begin(q->log);
        int r = call_reports_note(q);
        for (Report *p = q->reports; r >= 0 && p; p = p->next)
                if (p->noted)
                        r = report_note(p);
        int k = report_log_compact_end(q->log, r >= 0);
        if (r < 0 || k < 0)
                log_warning_errno(r < 0 ? r : k, "The log of what is owed to agentd cannot be made shorter: %m");
}

int queue_note(ReportQueue *q, const char *line, size_t size) {
        if (report_log_wants_compaction(q->log))
                compact_log(q);
        return report_log_add(q->log, line, size);
}

static int report_start(Report *p) {
        int r = sd_bus_message_seal(p->arguments, 1, 0);
        if (r >= 0)
                r = report_note(p);
        if (r >= 0)
                r = report_try(p);
        return r;
}

int report_send(Bridge *b, const LiveRun *live, report_done_t done, void *userdata, Report **ret, const char *method,
                const char *types, ...) {
        Report *p;

        int r = report_new(b, live->run, live->attempt, method, &p);
        if (r < 0)
                return r;

        va_list ap;
        va_start(ap, types);
        r = sd_bus_message_appendv(p->arguments, types, ap);
        va_end(ap);
        if (r >= 0)
                r = report_start(p);
        if (r < 0) {
                report_cancel(p);
                return r;
        }

        p->done = done;
        p->userdata = userdata;
        if (ret)
                *ret = p;
        return 0;
}

int report_send_bytes(Bridge *b, const LiveRun *live, report_done_t done, void *userdata, const char *method,
                      const char *first, const char *second, const void *data, size_t size) {
        Report *p;

        int r = report_new(b, live->run, live->attempt, method, &p);
        if (r < 0)
                return r;
        r = sd_bus_message_append(p->arguments, "ss", first, second);
        if (r >= 0)
                r = sd_bus_message_append_array(p->arguments, 'y', data, size);
        if (r >= 0)
                r = report_start(p);
        if (r < 0) {
                report_cancel(p);
                return r;
        }
        p->done = done;
        p->userdata = userdata;
        return 0;
}

/* ---- what a bridge before us owed ---- */

typedef struct Loading {
        ReportQueue *queue;
        StrMap *calls; /* by id: of two lines the later one counts */
        unsigned broken;
} Loading;

static int load_result(ReportQueue *q, const char *run, uint64_t attempt, const char *text) {
        Report *p;

        int r = report_new(q->bridge, run, attempt, "ReportResult", &p);
        if (r < 0)
                return r;
        r = sd_bus_message_append(p->arguments, "s", text);
        if (r >= 0)
                r = sd_bus_message_seal(p->arguments, 1, 0);
        if (r < 0) {
                report_cancel(p);
                return r;
        }
        p->noted = true;
        q->n_noted++;
        return 0;
}

/* [method, run, attempt, strings…] */
static int load_line(Loading *l, sd_json_variant *v) {
        const char *text[5] = {};

        if (!sd_json_variant_is_array(v) || sd_json_variant_elements(v) != ELEMENTSOF(text) ||
            !sd_json_variant_is_unsigned(sd_json_variant_by_index(v, 2)))
                return -EBADMSG;
        for (size_t i = 0; i < ELEMENTSOF(text); i++) {
                sd_json_variant *e = sd_json_variant_by_index(v, i);
                if (sd_json_variant_is_string(e))
                        text[i] = sd_json_variant_string(e);
        }
        uint64_t attempt = sd_json_variant_unsigned(sd_json_variant_by_index(v, 2));
        if (!text[0] || !text[1] || !run_id_is_valid(text[1]) || !text[3])
                return -EBADMSG;
        if (streq(text[0], "ReportCall") && text[4])
                return call_report_load(l->queue, text[1], attempt, text[3], text[4], l->calls);
        return streq(text[0], "ReportResult") ? load_result(l->queue, text[1], attempt, text[3]) : -EBADMSG;
}

static void on_line(sd_json_variant *v, void *userdata) {
        Loading *l = userdata;

        if (load_line(l, v) < 0)
                l->broken++;
}

int report_queue_open(Bridge *b, int fd) {
        ReportQueue *q = b->reports;
        Loading l = { .queue = q };
        bool old = fd >= 0;

        int r = report_log_open(fd, &q->log);
        if (r < 0 || !old)
                return r;
        l.calls = strmap_new();
        if (!l.calls)
                return -ENOMEM;
        r = report_log_read(q->log, on_line, &l);
        strmap_free(l.calls);
        if (r < 0)
                return r;
        if (l.broken > 0)
                log_warning("%u reports of before the restart cannot be read.", l.broken);
        if (q->n > 0)
                log_info("%zu reports of before the restart go to agentd now.", q->n);
        call_reports_flush(q);
        for (Report *p = q->reports, *next; p; p = next) {
                next = p->next;
                r = report_try(p);
                if (r < 0)
                        report_finish(p, r, NULL, NULL);
        }
        return q->n_noted == 0 ? report_log_clear(q->log) : 0;
}

void report_queue_flush(ReportQueue *q) {
        call_reports_flush(q);
}

int report_queue_settle(Bridge *b, const char *run, sd_bus_message *m) {
        ReportQueue *q = b->reports;

        /* agentd is there, as it has just called: no need to wait for the next try. */
        for (Report *p = q->reports, *next; p; p = next) {
                next = p->next;
                if (!streq(p->run, run) || p->slot || !p->timer)
                        continue;
                (void) sd_event_source_set_enabled(p->timer, SD_EVENT_OFF);
                int r = report_try(p);
                if (r < 0)
                        report_finish(p, r, NULL, NULL);
        }
        call_reports_flush(q);
        if (!strmap_get(q->runs, run))
                return sd_bus_reply_method_return(m, NULL);

        Waiter *w = malloc(sizeof(Waiter));
        if (!w)
                return -ENOMEM;
        *w = (Waiter) { .next = q->waiters, .message = sd_bus_message_ref(m) };
        strcpy(w->run, run);
        q->waiters = w;
        return 1; /* answer_waiters() replies */
}
