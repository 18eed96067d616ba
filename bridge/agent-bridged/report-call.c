/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * Calls of services, see report.h. There are many of them and nobody waits for agentd's answer but the run's end, so
 * those that are over are told together, at most one message at a time. What makes them safe is the log, not agentd.
 */

#include "basic/log.h"
#include "basic/string-util.h"
#include "basic/text.h"
#include "report-internal.h"

#define BATCH_USEC (50 * USEC_PER_MSEC)
#define BATCH_MAX 256U
#define BATCH_SIZE_MAX ((size_t) 512 * 1024)

struct CallReport {
        ReportQueue *queue;
        CallList *list;
        CallReport *next, *previous;
        char run[RUN_ID_LEN + 1];
        uint32_t attempt;
        bool noted;
        char *text;
        char id[];
};

static void batch_schedule(ReportQueue *q, uint64_t usec);

static void call_list_remove(CallReport *c) {
        CallList *l = TAKE_PTR(c->list);

        if (!l)
                return;
        if (c->previous)
                c->previous->next = c->next;
        else
                l->first = c->next;
        if (c->next)
                c->next->previous = c->previous;
        else
                l->last = c->previous;
        c->next = c->previous = NULL;
        l->n--;
}

static void call_list_append(CallList *l, CallReport *c) {
        call_list_remove(c);
        c->list = l;
        c->previous = l->last;
        if (l->last)
                l->last->next = c;
        else
                l->first = c;
        l->last = c;
        l->n++;
}

CallReport *report_cancel_call(CallReport *c) {
        if (!c)
                return NULL;

        ReportQueue *q = c->queue;

        call_list_remove(c);
        q->n--;
        if (c->noted)
                queue_unnote(q);
        queue_uncount(q, c->run);
        free(c->text);
        return mfree(c);
}

/* Takes TEXT, also on failure. */
static int call_report_new(ReportQueue *q, const char *run, uint64_t attempt, const char *id, char *text,
                           CallReport **ret) {
        _cleanup_free_ char *owned = text;

        if (!q->bridge->bus)
                return -ENOTCONN;
        if (q->n >= REPORTS_MAX)
                return -ENOBUFS;

        CallReport *c = malloc(sizeof(CallReport) + strlen(id) + 1);
        if (!c)
                return -ENOMEM;
        *c = (CallReport) { .queue = q, .attempt = (uint32_t) attempt };
        strcpy(c->run, run);
        strcpy(c->id, id);
        int r = queue_count(q, run);
        if (r < 0) {
                free(c);
                return r;
        }
        c->text = TAKE_PTR(owned);
        q->n++;
        *ret = c;
        return 0;
}

static int call_note(CallReport *c) {
        /* ["ReportCall","run",attempt,"id","text"]: each byte of the text may become six. */
        size_t size = strlen(c->run) + strlen(c->id) + strlen(c->text) * 6 + 64;
        _cleanup_free_ char *line = malloc(size);

        if (!line)
                return -ENOMEM;
        Text t = text_in(line, size);
        text_add(&t, "[\"ReportCall\",\"");
        text_add(&t, c->run);
        text_add(&t, "\",");
        text_add_u64(&t, c->attempt);
        text_add(&t, ",\"");
        text_add(&t, c->id);
        text_add(&t, "\",");
        t.at += json_quote(t.at, c->text);
        text_add(&t, "]\n");

        int r = queue_note(c->queue, line, text_size(&t));
        if (r < 0)
                return r;
        if (!c->noted) {
                c->noted = true;
                c->queue->n_noted++;
        }
        return 0;
}

int report_open_call(Bridge *b, const LiveRun *live, const char *call, char *text, CallReport **ret) {
        CallReport *c;

        int r = call_report_new(b->reports, live->run, live->attempt, call, text, &c);
        if (r < 0)
                return r;
        r = b->reports->log ? call_note(c) : 0;
        if (r < 0) {
                report_cancel_call(c);
                return r;
        }
        call_list_append(&b->reports->open, c);
        *ret = c;
        return 0;
}

int report_close_call(CallReport *c, char *text) {
        ReportQueue *q = c->queue;

        free(c->text);
        c->text = text;
        int r = q->log ? call_note(c) : 0;
        if (r < 0) {
                report_cancel_call(c);
                return r;
        }
        call_list_append(&q->ready, c);
        batch_schedule(q,
                       q->bridge->draining || q->ready.n >= BATCH_MAX || queue_is_awaited(q, c->run) ? 0 : BATCH_USEC);
        return 0;
}

static void batch_drop(ReportQueue *q) {
        while (q->sent.first)
                report_cancel_call(q->sent.first);
}

/* Back to the front of those that wait, in their order. */
static void batch_return(ReportQueue *q) {
        CallReport *c;

        while ((c = q->ready.first))
                call_list_append(&q->sent, c);
        while ((c = q->sent.first))
                call_list_append(&q->ready, c);
}

static void batch_failed(ReportQueue *q) {
        batch_return(q);
        q->batch_delay_usec = q->batch_delay_usec == 0 ? RETRY_FIRST_USEC
                                                       : MIN(q->batch_delay_usec * 2, RETRY_MAX_USEC);

        /* Not at once: agentd takes the live file away before it asks us for the rest. */
        if (q->batch_delay_usec > RETRY_GIVE_UP_USEC)
                for (CallReport *c = q->ready.first, *next; c; c = next) {
                        next = c->next;
                        if (report_run_is_over(q, c->run))
                                report_cancel_call(c);
                }
        batch_schedule(q, q->batch_delay_usec);
}

static int read_refused(ReportQueue *q, sd_bus_message *m) {
        const char *error;
        uint32_t index;
        int r;

        r = sd_bus_message_enter_container(m, 'a', "(us)");
        while (r >= 0 && (r = sd_bus_message_read(m, "(us)", &index, &error)) > 0) {
                const CallReport *c = q->sent.first;

                /* Of a run that is over by now nobody wants to know. */
                if (streq(error, "org.agentd1.Error.NoSuchRun"))
                        continue;
                for (uint32_t i = 0; c && i < index; i++)
                        c = c->next;
                log_warning_limited("Run %s: a call was not taken by agentd: %s.", c ? c->run : "-", error);
        }
        return r;
}

static int on_batch_reply(sd_bus_message *m, void *userdata, sd_bus_error *ret_error) {
        ReportQueue *q = userdata;
        const sd_bus_error *e = sd_bus_message_get_error(m);

        q->batch = sd_bus_slot_unref(q->batch);
        if (e && report_error_is_transient(e)) {
                batch_failed(q);
                return 0;
        }

        int r = e ? -EINVAL : read_refused(q, m);
        if (r < 0)
                log_warning_errno(r, "%zu calls were not taken by agentd: %s", q->sent.n, e && e->message ? e->message :
                                  "its answer makes no sense");
        q->batch_delay_usec = 0;
        batch_drop(q);
        if (q->ready.n > 0)
                batch_schedule(q, q->bridge->draining || q->ready.n >= BATCH_MAX || q->waiters ? 0 : BATCH_USEC);
        return 0;
}

static int batch_send(ReportQueue *q) {
        _cleanup_(sd_bus_message_unrefp) sd_bus_message *m = NULL;
        sd_bus *bus = q->bridge->bus;
        size_t size = 0;

        int r = bus ? sd_bus_message_new_method_call(bus, &m, AGENTD_NAME, REPORT_PATH, REPORT_INTERFACE, "ReportCalls")
                    : -ENOTCONN;
        if (r >= 0)
                r = sd_bus_message_open_container(m, 'a', "(suss)");
        while (r >= 0 && q->ready.first && q->sent.n < BATCH_MAX && size < BATCH_SIZE_MAX) {
                CallReport *c = q->ready.first;

                r = sd_bus_message_append(m, "(suss)", c->run, c->attempt, c->id, c->text);
                size += strlen(c->text);
                call_list_append(&q->sent, c);
        }
        if (r >= 0)
                r = sd_bus_message_close_container(m);
        return r < 0 ? r : sd_bus_call_async(bus, &q->batch, m, on_batch_reply, q, REPORT_TIMEOUT_USEC);
}

void call_reports_flush(ReportQueue *q) {
        if (q->batch || q->ready.n == 0)
                return;
        if (q->batch_timer)
                (void) sd_event_source_set_enabled(q->batch_timer, SD_EVENT_OFF);

        int r = batch_send(q);
        if (r < 0) {
                log_debug_errno(r, "Failed to send calls to agentd: %m");
                batch_failed(q);
        }
}

static int on_batch_timer(sd_event_source *source, uint64_t usec, void *userdata) {
        call_reports_flush(userdata);
        return 0;
}

static void batch_schedule(ReportQueue *q, uint64_t usec) {
        int enabled = SD_EVENT_OFF, r;

        if (q->batch || q->ready.n == 0)
                return; /* comes when that has been answered */
        if (q->batch_timer)
                (void) sd_event_source_get_enabled(q->batch_timer, &enabled);
        if (enabled != SD_EVENT_OFF && usec > 0)
                return;
        usec = MAX(usec, q->batch_delay_usec);
        if (!q->batch_timer)
                r = sd_event_add_time_relative(q->bridge->event, &q->batch_timer, CLOCK_MONOTONIC, usec,
                                               5 * USEC_PER_MSEC, on_batch_timer, q);
        else {
                r = sd_event_source_set_time_relative(q->batch_timer, usec);
                if (r >= 0)
                        r = sd_event_source_set_enabled(q->batch_timer, SD_EVENT_ONESHOT);
        }
        if (r < 0)
                log_warning_errno(r, "Calls cannot be told to agentd now: %m");
}

int call_report_load(ReportQueue *q, const char *run, uint64_t attempt, const char *id, const char *text,
                     StrMap *by_id) {
        CallReport *c, *old = strmap_get(by_id, id);

        if (old)
                return free_and_strdup(&old->text, text);
        char *copy = strdup(text);
        int r = copy ? call_report_new(q, run, attempt, id, copy, &c) : -ENOMEM;
        if (r < 0)
                return r;
        r = strmap_put(by_id, c->id, c);
        if (r < 0) {
                report_cancel_call(c);
                return r;
        }
        c->noted = true;
        q->n_noted++;
        call_list_append(&q->ready, c);
        return 0;
}

int call_reports_note(ReportQueue *q) {
        CallList *lists[] = { &q->open, &q->ready, &q->sent };
        int r = 0;

        for (size_t i = 0; r >= 0 && i < ELEMENTSOF(lists); i++)
                for (CallReport *c = lists[i]->first; r >= 0 && c; c = c->next)
                        if (c->noted)
                                r = call_note(c);
        return r;
}

void call_reports_free(ReportQueue *q) {
        q->batch = sd_bus_slot_unref(q->batch);
        q->batch_timer = sd_event_source_disable_unref(q->batch_timer);
        for (CallReport *c; (c = q->open.first ?: q->ready.first ?: q->sent.first);)
                report_cancel_call(c);
}
