/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* See call-record.h. */

#include "basic/json-util.h"
#include "basic/log.h"
#include "call-record.h"

static int format(const CallRecord *c, char **ret) {
        _cleanup_json_ sd_json_variant *v = NULL;

        int r = sd_json_buildo(&v, SD_JSON_BUILD_PAIR_STRING("service", c->service),
                               SD_JSON_BUILD_PAIR_STRING("method", c->method),
                               SD_JSON_BUILD_PAIR_STRING("path", c->path),
                               SD_JSON_BUILD_PAIR_UNSIGNED("status", c->status),
                               SD_JSON_BUILD_PAIR_UNSIGNED("request_bytes", c->request_bytes),
                               SD_JSON_BUILD_PAIR_UNSIGNED("response_bytes", c->response_bytes),
                               SD_JSON_BUILD_PAIR_UNSIGNED("started_usec", c->started_usec),
                               SD_JSON_BUILD_PAIR_UNSIGNED("duration_usec", c->duration_usec),
                               SD_JSON_BUILD_PAIR_STRING("outcome", c->outcome));
        return r < 0 ? r : sd_json_variant_format(v, 0, ret);
}

int call_record_open(Bridge *b, const LiveRun *live, const CallRecord *record, Report **ret) {
        _cleanup_free_ char *text = NULL;

        *ret = NULL;
        if (live->holder) /* no run: nothing of it goes into a receipt, its record is the journal's */
                return 0;
        int r = format(record, &text);
        return r < 0 ? r : report_open_call(b, live, record->id, text, ret);
}

void call_record_close(Bridge *b, const LiveRun *live, const CallRecord *record, Report *report) {
        _cleanup_free_ char *text = NULL;
        int r = 0;

        if (!report)
                r = call_record_open(b, live, record, &report);
        if (r >= 0 && report) {
                r = format(record, &text);
                if (r >= 0)
                        r = report_close_call(report, text);
                else
                        report_cancel(report);
        }
        if (r < 0)
                log_warning_errno(r, "Run %s: a call of %s could not be reported: %m", live->run, record->service);
}
