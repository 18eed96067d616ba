/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * What is told to agentd: results, calls, artifacts. agentd may be restarting, so each report is repeated, with
 * growing pauses, until agentd has answered or the run's live file is gone. All of agentd's methods for this may be
 * repeated without harm. The number of reports that wait is bounded; they outlive a restart of the bridge.
 */

#include "bridge.h"

typedef struct Report Report;
typedef struct CallReport CallReport;

#define REPORTS_MAX 8192U
#define REPORTS_LARGE_MAX 8U /* results and session documents of one run */

/* Error: 0, or a negative errno: -ENOENT the run is over, -EINVAL agentd does not want it (DETAIL says why), -ENODATA
 * what was asked for is not there, -EEXIST it contradicts what was there, -EDQUOT a limit, others are our faults. REPLY
 * is the method's answer where there was one. Called from the event loop, once; the report is gone afterwards. */
typedef void (*report_done_t)(int error, sd_bus_message *reply, const char *detail, void *userdata);

int report_queue_new(Bridge *b, ReportQueue **ret);
/* Reports that still wait are dropped without a call of their done functions. */
ReportQueue *report_queue_free(ReportQueue *q);
DEFINE_CLEANUP(ReportQueue *, report_queue_free);
size_t report_queue_size(const ReportQueue *q);

/* Begins to note what is owed (report-log.h), and sends what a bridge before us noted in FD (negative: nothing). Owns
 * FD. */
int report_queue_open(Bridge *b, int fd);

/* Answers M, a call of UnregisterRun, when agentd has taken all reports of RUN, so that its receipt is whole. */
int report_queue_settle(Bridge *b, const char *run, sd_bus_message *m);

/* A call whose request is about to go out: noted, but not sent. TEXT, which is taken also on
 * failure, is what counts if we die before it is closed. */
int report_open_call(Bridge *b, const LiveRun *live, const char *call, char *text, CallReport **ret);
/* What became of it: noted, and sent soon, together with others. The report is the queue's then, and so is
 * TEXT, also on failure. */
int report_close_call(CallReport *report, char *text);
/* It did not happen. */
CallReport *report_cancel_call(CallReport *report);

/* Waits no longer than it must: the bridge is about to end. */
void report_queue_flush(ReportQueue *q);

/* Calls METHOD of org.agentd1.Report with (run, attempt, TYPES…). The arguments are kept as a sealed message. DONE
 * may be NULL. *ret may be NULL for a report that nobody cancels. -ENOBUFS: too many wait. */
int report_send(Bridge *b, const LiveRun *live, report_done_t done, void *userdata, Report **ret, const char *method,
                const char *types, ...);
/* The same with two strings and an array of bytes. */
int report_send_bytes(Bridge *b, const LiveRun *live, report_done_t done, void *userdata, const char *method,
                      const char *first, const char *second, const void *data, size_t size);
/* Nobody waits any more for the answer; the report itself still goes out. */
void report_forget(Report *report);
/* The report is not needed any more. */
Report *report_cancel(Report *report);
