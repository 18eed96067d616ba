/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * Upstreams that say nothing, see service-call.h. There is no limit on the whole of a call, only on silence, and while we
 * wait for our own client its limits hold, not these. One timer serves all calls: it is set for the first that could be
 * over, which few ever are, and looks at all of them then. So a call, of which there are thousands a second, costs a
 * place in a list.
 */

#include "call-clock.h"
#include "service-call.h"

struct CallClock {
        sd_event *event;
        sd_event_source *timer;
        uint64_t armed_usec; /* UINT64_MAX: off */
        ServiceCall *calls;
};

static uint64_t clock_now(const CallClock *k) {
        uint64_t t = 0;

        (void) sd_event_now(k->event, CLOCK_MONOTONIC, &t);
        return t;
}

static uint64_t call_deadline(const ServiceCall *c) {
        return c->progress_usec + (c->head_complete ? c->service->idle_usec : c->service->first_byte_usec);
}

static int clock_arm(CallClock *k, uint64_t usec) {
        if (usec >= k->armed_usec)
                return 0;
        int r = sd_event_source_set_time(k->timer, usec);
        if (r >= 0)
                r = sd_event_source_set_enabled(k->timer, SD_EVENT_ONESHOT);
        if (r >= 0)
                k->armed_usec = usec;
        return r;
}

static int on_timer(sd_event_source *source, uint64_t usec, void *userdata) {
        CallClock *k = userdata;
        uint64_t now = clock_now(k), first = UINT64_MAX;

        k->armed_usec = UINT64_MAX;
        for (ServiceCall *c = k->calls, *next; c; c = next) {
                next = c->clock_next;
                if (c->upload_paused || c->download_paused)
                        c->progress_usec = now;
                if (now < call_deadline(c))
                        first = MIN(first, call_deadline(c));
                else
                        call_fail(c, 504, "upstream-silent", "The service did not answer in time.", "upstream_error");
        }
        return clock_arm(k, first);
}

int call_clock_new(sd_event *event, CallClock **ret) {
        _cleanup_(call_clock_freep) CallClock *k = calloc(1, sizeof(CallClock));
        if (!k)
                return -ENOMEM;

        k->event = sd_event_ref(event);
        k->armed_usec = UINT64_MAX;
        int r = sd_event_add_time(event, &k->timer, CLOCK_MONOTONIC, UINT64_MAX, 0, on_timer, k);
        if (r >= 0)
                r = sd_event_source_set_enabled(k->timer, SD_EVENT_OFF);
        if (r < 0)
                return r;
        *ret = TAKE_PTR(k);
        return 0;
}

CallClock *call_clock_free(CallClock *k) {
        if (!k)
                return NULL;

        assert(!k->calls);
        sd_event_source_disable_unref(k->timer);
        sd_event_unref(k->event);
        return mfree(k);
}

int call_clock_add(CallClock *k, ServiceCall *c) {
        int r = clock_arm(k, call_deadline(c));
        if (r < 0 || c->on_clock)
                return r;
        c->clock_next = k->calls;
        if (k->calls)
                k->calls->clock_previous = c;
        k->calls = c;
        c->on_clock = true;
        return 0;
}

void call_clock_remove(CallClock *k, ServiceCall *c) {
        if (!c->on_clock)
                return;
        if (c->clock_previous)
                c->clock_previous->clock_next = c->clock_next;
        else
                k->calls = c->clock_next;
        if (c->clock_next)
                c->clock_next->clock_previous = c->clock_previous;
        c->clock_next = c->clock_previous = NULL;
        c->on_clock = false;
}
