/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* What report.c and report-call.c know of each other: the queue, and how much of it is whose. */

#include "basic/strmap.h"
#include "report-log.h"
#include "report.h"

#define REPORT_TIMEOUT_USEC (30 * USEC_PER_SEC)
#define RETRY_FIRST_USEC (50 * USEC_PER_MSEC)
#define RETRY_MAX_USEC (5 * USEC_PER_SEC)
#define RETRY_GIVE_UP_USEC (1 * USEC_PER_SEC) /* from this pause on a run that is over is not waited for */

#define AGENTD_NAME "org.agentd1"
#define REPORT_PATH "/org/agentd1/report"
#define REPORT_INTERFACE "org.agentd1.Report"

/* A call of UnregisterRun that is answered when agentd has all that there was to tell of the run. */
typedef struct Waiter Waiter;
struct Waiter {
        Waiter *next;
        char run[RUN_ID_LEN + 1];
        sd_bus_message *message;
};

typedef struct CallList {
        CallReport *first, *last;
        size_t n;
} CallList;

struct ReportQueue {
        Bridge *bridge;
        Report *reports;
        Waiter *waiters;
        StrMap *runs; /* how many reports of all kinds each has */
        size_t n, n_noted;
        ReportLog *log; /* NULL before report_queue_open() */

        /* Calls: going on; over, to be sent; under way. */
        CallList open, ready, sent;
        sd_bus_slot *batch;
        sd_event_source *batch_timer;
        uint64_t batch_delay_usec; /* before the next try; 0: the last one went well */
};

/* One more, and one less, of RUN; the last of a run answers who waits for it. */
int queue_count(ReportQueue *q, const char *run);
void queue_uncount(ReportQueue *q, const char *run);
/* Of what is in the log: the last one empties it. */
void queue_unnote(ReportQueue *q);
bool queue_is_awaited(const ReportQueue *q, const char *run);
/* Notes LINE; makes room in the log, where there is more of the past in it than of what is owed. */
int queue_note(ReportQueue *q, const char *line, size_t size);

bool report_error_is_transient(const sd_bus_error *e);
bool report_run_is_over(const ReportQueue *q, const char *run);

/* report-call.c */
int call_reports_note(ReportQueue *q);
/* A call that a bridge before us noted: taken for one that is over. Owns nothing. */
int call_report_load(ReportQueue *q, const char *run, uint64_t attempt, const char *id, const char *text,
                     StrMap *by_id);
/* Sends what there is at once, unless something is under way: then the rest follows it. */
void call_reports_flush(ReportQueue *q);
void call_reports_free(ReportQueue *q);
