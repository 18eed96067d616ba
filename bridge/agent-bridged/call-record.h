/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* What the receipt says of one call that went through the bridge. No body, no query, no header. */

#include "bridge.h"
#include "report.h"

typedef struct CallRecord {
        const char *id; /* of the request */
        const char *service, *method, *path;
        unsigned status; /* what the sandbox was told; 0: nothing */
        uint64_t request_bytes, response_bytes;
        uint64_t started_usec, duration_usec; /* CLOCK_REALTIME; length */
        const char *outcome; /* complete, client_closed, upstream_error, denied, interrupted */
} CallRecord;

/* Before the call's request goes out; what is in RECORD counts if we die before it is closed. */
int call_record_open(Bridge *b, const LiveRun *live, const CallRecord *record, CallReport **ret);
/* Tells agentd. REPORT: what was opened, or NULL; it is the queue's then. Logs what fails. */
void call_record_close(Bridge *b, const LiveRun *live, const CallRecord *record, CallReport *report);
