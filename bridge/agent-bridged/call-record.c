/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* See call-record.h. */

#include "basic/json-util.h"
#include "basic/log.h"
#include "basic/text.h"
#include "call-record.h"

static void add_string(Text *t, const char *key, const char *value) {
        text_add(t, key);
        t->at += json_quote(t->at, value);
}

static void add_number(Text *t, const char *key, uint64_t value) {
        text_add(t, key);
        text_add_u64(t, value);
}

static int format(const CallRecord *c, char **ret) {
        /* Nothing but these can hold what has to be quoted; each byte may become six. */
        size_t size = strlen(c->path) * 6 + strlen(c->service) * 6 + strlen(c->method) * 6 + strlen(c->outcome) * 6 +
                      512;
        char *text = malloc(size);

        if (!text)
                return -ENOMEM;
        Text t = text_in(text, size);
        add_string(&t, "{\"service\":", c->service);
        add_string(&t, ",\"method\":", c->method);
        add_string(&t, ",\"path\":", c->path);
        add_number(&t, ",\"status\":", c->status);
        add_number(&t, ",\"request_bytes\":", c->request_bytes);
        add_number(&t, ",\"response_bytes\":", c->response_bytes);
        add_number(&t, ",\"started_usec\":", c->started_usec);
        add_number(&t, ",\"duration_usec\":", c->duration_usec);
        add_string(&t, ",\"outcome\":", c->outcome);
        text_add(&t, "}");
        *ret = text_end(&t);
        return 0;
}

int call_record_open(Bridge *b, const LiveRun *live, const CallRecord *record, CallReport **ret) {
        _cleanup_free_ char *text = NULL;

        *ret = NULL;
        if (live->holder) /* no run: nothing of it goes into a receipt, its record is the journal's */
                return 0;
        int r = format(record, &text);
        return r < 0 ? r : report_open_call(b, live, record->id, TAKE_PTR(text), ret);
}

void call_record_close(Bridge *b, const LiveRun *live, const CallRecord *record, CallReport *report) {
        _cleanup_free_ char *text = NULL;
        int r = 0;

        if (!report)
                r = call_record_open(b, live, record, &report);
        if (r >= 0 && report) {
                r = format(record, &text);
                if (r >= 0)
                        r = report_close_call(report, TAKE_PTR(text));
                else
                        report_cancel_call(report);
        }
        if (r < 0)
                log_warning_limited_errno(r, "Run %s: a call of %s could not be reported: %m", live->run,
                                          record->service);
}
