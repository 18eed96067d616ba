/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* See approval.h. */

#include "approval.h"
#include "report.h"

struct Approval {
        Bridge *bridge;
        Report *report; /* NULL once answered */
        sd_event_source *timer;
        approval_callback_t callback;
        void *userdata;
};

static void on_reported(int error, sd_bus_message *reply, const char *detail, void *userdata) {
        Approval *a = userdata;
        int granted = 0;

        a->report = NULL;
        if (error >= 0)
                error = sd_bus_message_read(reply, "b", &granted);
        a->timer = sd_event_source_disable_unref(a->timer);
        a->callback(error < 0 ? APPROVAL_UNAVAILABLE : granted ? APPROVAL_GRANTED : APPROVAL_DENIED, a->userdata);
}

static int on_timeout(sd_event_source *source, uint64_t usec, void *userdata) {
        Approval *a = userdata;

        a->report = report_cancel(a->report);
        a->callback(APPROVAL_TIMEOUT, a->userdata);
        return 0;
}

int approval_ask(Bridge *b, const LiveRun *live, const char *id, const char *service, const char *method,
                 const char *path, approval_callback_t callback, void *userdata, Approval **ret) {
        Approval *a = calloc(1, sizeof(Approval));
        if (!a)
                return -ENOMEM;
        *a = (Approval) { .bridge = b, .callback = callback, .userdata = userdata };

        int r = sd_event_add_time_relative(b->event, &a->timer, CLOCK_MONOTONIC, b->config.approval_usec, 0, on_timeout,
                                           a);
        if (r >= 0)
                r = report_send(b, live, on_reported, a, &a->report, "RequestApproval", "sssst", id, service, method,
                                path, b->config.approval_usec);
        if (r < 0) {
                approval_free(a);
                return r;
        }
        *ret = a;
        return 0;
}

Approval *approval_free(Approval *a) {
        if (!a)
                return NULL;

        report_cancel(a->report);
        sd_event_source_disable_unref(a->timer);
        return mfree(a);
}
