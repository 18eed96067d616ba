/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * What the bridge owes agentd, written down before it can matter: a memfd in the service manager's store of file
 * descriptors, so that it outlives the bridge however that ends. A call of a service is noted before its request goes
 * out, and what became of it before the client can see the end; a result before it is sent. A line stays until all that
 * is noted was taken. So after kill -9 the next bridge knows of every call that a client can know of.
 *
 * Lines are JSON: [method, run, attempt, strings…]; of two that concern the same call the later one counts.
 */

#include "basic/json-util.h"
#include "basic/macro.h"

typedef struct ReportLog ReportLog;

/* FD: what a bridge before us left, or negative. Owns it in any case. */
int report_log_open(int fd, ReportLog **ret);
ReportLog *report_log_free(ReportLog *l);
DEFINE_CLEANUP(ReportLog *, report_log_free);

/* Notes a line, SIZE bytes with a newline at the end. -EFBIG: it has grown too large. */
int report_log_add(ReportLog *l, const char *line, size_t size);
/* Nothing is owed. */
int report_log_clear(ReportLog *l);

/* True when there is much more in it than what was owed the last time: note all that is owed once more between
 * begin and end, which then gives back what was before. A crash at any point leaves too many lines, never too few. */
bool report_log_wants_compaction(const ReportLog *l);
void report_log_compact_begin(ReportLog *l);
int report_log_compact_end(ReportLog *l, bool complete);

/* Lines of before; broken ones (cut short by a crash) are passed over. In a callback nothing may be added. */
typedef void (*report_log_line_t)(sd_json_variant *line, void *userdata);
int report_log_read(ReportLog *l, report_log_line_t callback, void *userdata);
