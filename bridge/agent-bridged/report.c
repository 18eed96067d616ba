/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* See report.h. A message that was sent cannot be sent again, so a report keeps its arguments in a message that
 * never is, and each try is a copy of it. */

#include "basic/json-util.h"
#include "basic/log.h"
#include "report-log.h"
#include "report.h"

#define REPORT_TIMEOUT_USEC (30 * USEC_PER_SEC)
#define RETRY_FIRST_USEC (50 * USEC_PER_MSEC)
#define RETRY_MAX_USEC (5 * USEC_PER_SEC)
#define RETRY_GIVE_UP_USEC (1 * USEC_PER_SEC) /* from this pause on a run that is over is not waited for */

#define AGENTD_NAME "org.agentd1"
#define REPORT_PATH "/org/agentd1/report"
#define REPORT_INTERFACE "org.agentd1.Report"

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

/* A call of UnregisterRun that is answered when agentd has all that there was to tell of the run. */
typedef struct Waiter Waiter;
struct Waiter {
        Waiter *next;
        char run[RUN_ID_LEN + 1];
        sd_bus_message *message;
};

struct ReportQueue {
        Bridge *bridge;
        Report *reports;
        Waiter *waiters;
        size_t n, n_noted;
        ReportLog *log; /* NULL before report_queue_open() */
};

static int report_try(Report *p);

int report_queue_new(Bridge *b, ReportQueue **ret) {
        ReportQueue *q = calloc(1, sizeof(ReportQueue));
        if (!q)
                return -ENOMEM;
        q->bridge = b;
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
        while (q->reports)
                report_cancel(q->reports);
        return mfree(q);
}

size_t report_queue_size(const ReportQueue *q) {
        return q->n;
}

static bool has_reports(const ReportQueue *q, const char *run) {
        for (const Report *p = q->reports; p; p = p->next)
                if (streq(p->run, run))
                        return true;
        return false;
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

Report *report_cancel(Report *p) {
        if (!p)
                return NULL;

        ReportQueue *q = p->queue;
        char run[RUN_ID_LEN + 1];

        memcpy(run, p->run, sizeof(run));

        if (p->previous)
                p->previous->next = p->next;
        else
                q->reports = p->next;
        if (p->next)
                p->next->previous = p->previous;
        q->n--;
        if (p->noted && --q->n_noted == 0 && q->log) {
                int r = report_log_clear(q->log);
                if (r < 0)
                        log_warning_errno(r, "Reports that were taken cannot be forgotten: %m");
        }

        sd_bus_slot_unref(p->slot);
        sd_event_source_disable_unref(p->timer);
        sd_bus_message_unref(p->arguments);
        free(p);
        if (q->waiters && !has_reports(q, run))
                answer_waiters(q, run);
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
        if (error < 0 && error != -ENOENT && error != -ENODATA && error != -EEXIST && error != -EDQUOT)
                log_warning_errno(error, "Run %s: %s was not taken by agentd: %s", p->run, p->method,
                                  detail ?: strerror(-error));
        report_cancel(p);
        if (done)
                done(error, reply, detail, userdata);
}

static bool run_is_over(Report *p) {
        _cleanup_(live_run_unrefp) LiveRun *live = NULL;

        return live_cache_get(p->queue->bridge->live, p->run, &live) == -ENOENT;
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
        if (p->delay_usec >= RETRY_GIVE_UP_USEC && run_is_over(p)) {
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
static bool error_is_transient(const sd_bus_error *e) {
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
        else if (error_is_transient(e))
                report_retry(p, -EAGAIN);
        else if (sd_bus_error_has_name(e, "org.agentd1.Error.NoSuchRun"))
                report_finish(p, -ENOENT, NULL, e->message);
        else if (sd_bus_error_has_name(e, "org.agentd1.Error.NoSuchArtifact") ||
                 sd_bus_error_has_name(e, "org.agentd1.Error.NoSuchSession"))
                report_finish(p, -ENODATA, NULL, e->message);
        else if (sd_bus_error_has_name(e, "org.agentd1.Error.IdempotencyConflict") ||
                 sd_bus_error_has_name(e, "org.agentd1.Error.SessionChanged"))
                report_finish(p, -EEXIST, NULL, e->message);
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
        if (q->n >= (streq(method, "ReportCall") ? REPORTS_MAX : REPORTS_MAX * 2))
                return -ENOBUFS;
        if (has_large(method) && count_large(q, run) >= REPORTS_LARGE_MAX)
                return -ENOBUFS;

        Report *p = calloc(1, sizeof(Report));
        if (!p)
                return -ENOMEM;
        *p = (Report) { .queue = q, .method = method, .next = q->reports };
        strcpy(p->run, run);
        if (p->next)
                p->next->previous = p;
        q->reports = p;
        q->n++;

        int r = sd_bus_message_new_method_call(b->bus, &p->arguments, AGENTD_NAME, REPORT_PATH, REPORT_INTERFACE,
                                               method);
        if (r >= 0)
                r = sd_bus_message_append(p->arguments, "su", run, (uint32_t) attempt);
        if (r < 0) {
                report_cancel(p);
                return r;
        }
        *ret = p;
        return 0;
}

/* [method, run, attempt, strings…] of what outlives us; 0 and NULL for the rest. */
static int report_line(Report *p, sd_json_variant **ret) {
        const char *run, *a = NULL, *b = NULL;
        uint32_t attempt;
        bool call = streq(p->method, "ReportCall");

        *ret = NULL;
        if (!call && !streq(p->method, "ReportResult"))
                return 0; /* artifacts: nobody waits for them any more */

        int r = sd_bus_message_rewind(p->arguments, true);
        if (r >= 0)
                r = sd_bus_message_read(p->arguments, "sus", &run, &attempt, &a);
        if (r >= 0 && call)
                r = sd_bus_message_read(p->arguments, "s", &b);
        if (r < 0)
                return r;
        return sd_json_build(ret, SD_JSON_BUILD_ARRAY(SD_JSON_BUILD_STRING(p->method), SD_JSON_BUILD_STRING(run),
                                                      SD_JSON_BUILD_UNSIGNED(attempt), SD_JSON_BUILD_STRING(a),
                                                      SD_JSON_BUILD_STRING(b)));
}

/* The log is full of what was taken meanwhile: begin it anew with what is still owed. */
static int rewrite_log(ReportQueue *q) {
        int r = report_log_clear(q->log);

        for (Report *p = q->reports; r >= 0 && p; p = p->next) {
                _cleanup_json_ sd_json_variant *line = NULL;

                if (!p->noted)
                        continue;
                r = report_line(p, &line);
                if (r >= 0)
                        r = report_log_add(q->log, line);
        }
        return r;
}

static int report_note(Report *p) {
        _cleanup_json_ sd_json_variant *line = NULL;
        ReportQueue *q = p->queue;

        if (!q->log)
                return 0;
        int r = report_line(p, &line);
        if (r < 0 || !line)
                return r;
        r = report_log_add(q->log, line);
        if (r == -EFBIG) {
                r = rewrite_log(q);
                if (r >= 0)
                        r = report_log_add(q->log, line);
        }
        if (r < 0)
                return r;
        if (!p->noted) {
                p->noted = true;
                q->n_noted++;
        }
        return 0;
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

int report_open_call(Bridge *b, const LiveRun *live, const char *call, const char *text, Report **ret) {
        Report *p;

        int r = report_new(b, live->run, live->attempt, "ReportCall", &p);
        if (r < 0)
                return r;
        r = sd_bus_message_append(p->arguments, "ss", call, text);
        if (r >= 0)
                r = sd_bus_message_seal(p->arguments, 1, 0);
        if (r >= 0)
                r = report_note(p);
        if (r < 0) {
                report_cancel(p);
                return r;
        }
        *ret = p;
        return 0;
}

int report_close_call(Report *p, const char *text) {
        _cleanup_(sd_bus_message_unrefp) sd_bus_message *m = NULL;
        const char *run, *call;
        uint32_t attempt;

        int r = sd_bus_message_rewind(p->arguments, true);
        if (r >= 0)
                r = sd_bus_message_read(p->arguments, "sus", &run, &attempt, &call);
        if (r >= 0)
                r = sd_bus_message_new_method_call(p->queue->bridge->bus, &m, AGENTD_NAME, REPORT_PATH,
                                                   REPORT_INTERFACE, p->method);
        if (r >= 0)
                r = sd_bus_message_append(m, "suss", run, attempt, call, text);
        if (r >= 0) {
                sd_bus_message_unref(p->arguments);
                p->arguments = TAKE_PTR(m);
                r = report_start(p);
        }
        if (r < 0)
                report_cancel(p);
        return r;
}

/* ---- what a bridge before us owed ---- */

typedef struct Loading {
        ReportQueue *queue;
        unsigned broken;
} Loading;

/* The report of the same call, if there is one among those that were read. */
static Report *find_call(ReportQueue *q, const char *call) {
        for (Report *p = q->reports; p; p = p->next) {
                const char *run, *other;
                uint32_t attempt;

                if (p->noted && streq(p->method, "ReportCall") && sd_bus_message_rewind(p->arguments, true) >= 0 &&
                    sd_bus_message_read(p->arguments, "sus", &run, &attempt, &other) >= 0 && streq(other, call))
                        return p;
        }
        return NULL;
}

static int load_line(ReportQueue *q, sd_json_variant *v) {
        const char *text[5] = {};
        Report *p, *old;

        if (!sd_json_variant_is_array(v) || sd_json_variant_elements(v) != ELEMENTSOF(text) ||
            !sd_json_variant_is_unsigned(sd_json_variant_by_index(v, 2)))
                return -EBADMSG;
        for (size_t i = 0; i < ELEMENTSOF(text); i++) {
                sd_json_variant *e = sd_json_variant_by_index(v, i);
                if (sd_json_variant_is_string(e))
                        text[i] = sd_json_variant_string(e);
        }
        bool call = streq_ptr(text[0], "ReportCall");
        if (!(call || streq_ptr(text[0], "ReportResult")) || !text[1] || !run_id_is_valid(text[1]) || !text[3] ||
            (call && !text[4]))
                return -EBADMSG;

        old = call ? find_call(q, text[3]) : NULL;
        int r = report_new(q->bridge, text[1], sd_json_variant_unsigned(sd_json_variant_by_index(v, 2)),
                           call ? "ReportCall" : "ReportResult", &p);
        if (r < 0)
                return r;
        r = call ? sd_bus_message_append(p->arguments, "ss", text[3], text[4]) :
                   sd_bus_message_append(p->arguments, "s", text[3]);
        if (r >= 0)
                r = sd_bus_message_seal(p->arguments, 1, 0);
        if (r < 0) {
                report_cancel(p);
                return r;
        }
        p->noted = true;
        q->n_noted++;
        report_cancel(old);
        return 0;
}

static void on_line(sd_json_variant *v, void *userdata) {
        Loading *l = userdata;

        if (load_line(l->queue, v) < 0)
                l->broken++;
}

int report_queue_open(Bridge *b, int fd) {
        ReportQueue *q = b->reports;
        Loading l = { .queue = q };
        bool old = fd >= 0;

        int r = report_log_open(fd, &q->log);
        if (r < 0 || !old)
                return r;
        r = report_log_read(q->log, on_line, &l);
        if (r < 0)
                return r;
        if (l.broken > 0)
                log_warning("%u reports of before the restart cannot be read.", l.broken);
        if (q->n > 0)
                log_info("%zu reports of before the restart go to agentd now.", q->n);
        for (Report *p = q->reports, *next; p; p = next) {
                next = p->next;
                r = report_try(p);
                if (r < 0)
                        report_finish(p, r, NULL, NULL);
        }
        return q->n_noted == 0 ? report_log_clear(q->log) : 0;
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
        if (!has_reports(q, run))
                return sd_bus_reply_method_return(m, NULL);

        Waiter *w = malloc(sizeof(Waiter));
        if (!w)
                return -ENOMEM;
        *w = (Waiter) { .next = q->waiters, .message = sd_bus_message_ref(m) };
        strcpy(w->run, run);
        q->waiters = w;
        return 1; /* answer_waiters() replies */
}
