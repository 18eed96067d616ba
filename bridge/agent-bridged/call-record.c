/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* See call-record.h. */

#include "basic/json-util.h"
#include "basic/log.h"
#include "call-record.h"

static int format(const CallRecord *c, char **ret) {
        /* Nothing but these can hold what has to be quoted; each byte may become six. */
        size_t size = strlen(c->path) * 6 + strlen(c->service) * 6 + strlen(c->method) * 6 + strlen(c->outcome) * 6 +
                      512,
               n;
        char *text = malloc(size);

        if (!text)
                return -ENOMEM;
        n = (size_t) snprintf(text, size, "{\"service\":");
        n += json_quote(text + n, c->service);
        n += (size_t) snprintf(text + n, size - n, ",\"method\":");
        n += json_quote(text + n, c->method);
        n += (size_t) snprintf(text + n, size - n, ",\"path\":");
        n += json_quote(text + n, c->path);
        n += (size_t) snprintf(text + n, size - n,
                               ",\"status\":%u,\"request_bytes\":%" PRIu64 ",\"response_bytes\":%" PRIu64
                               ",\"started_usec\":%" PRIu64 ",\"duration_usec\":%" PRIu64 ",\"outcome\":",
                               c->status, c->request_bytes, c->response_bytes, c->started_usec, c->duration_usec);
        n += json_quote(text + n, c->outcome);
        (void) snprintf(text + n, size - n, "}");
        *ret = text;
        return 0;
}

int call_record_open(Bridge *b, const LiveRun *live, const CallRecord *record, CallReport **ret) {
        _cleanup_free_ char *text = NULL;

        *ret = NULL;
        if (live->holder) /* no run: nothing of it goes into a receipt, its record is the journal's */
                return 0;
        int r = format(record, &text);
        return r < 0 ? r : report_open_call(b, live, record->id, text, ret);
}

void call_record_close(Bridge *b, const LiveRun *live, const CallRecord *record, CallReport *report) {
        _cleanup_free_ char *text = NULL;
        int r = 0;

        if (!report)
                r = call_record_open(b, live, record, &report);
        if (r >= 0 && report) {
                r = format(record, &text);
                if (r >= 0)
                        r = report_close_call(report, text);
                else
                        report_cancel_call(report);
        }
        if (r < 0)
                log_warning_limited_errno(r, "Run %s: a call of %s could not be reported: %m", live->run,
                                          record->service);
}
