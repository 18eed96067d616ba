/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* The event loop of --wait. See waiter.h for what it promises. */

#include "waiter.h"

#include <signal.h>

/* Signals tell the end at once; this is for the case that one is lost all the same. */
#define CHECK_USEC (30 * USEC_PER_SEC)
/* When agentd has left the bus, or did not answer. Asking also has the bus start it again. */
#define RETRY_USEC (1 * USEC_PER_SEC)
#define AWAY_MAX_USEC (90 * USEC_PER_SEC)
#define POKE_USEC (50 * USEC_PER_MSEC)

struct Waiter {
        Client *client;
        const WaiterOps *ops;
        void *userdata;
        sd_event *event;
        sd_event_source *timer, *sigint, *sigterm;
        sd_bus_slot *owner_slot, *disconnected_slot;
        uint64_t away_since;
        bool finished, poked;
        int result;
};

Waiter *waiter_free(Waiter *w) {
        if (!w)
                return NULL;
        sd_bus_slot_unref(w->owner_slot);
        sd_bus_slot_unref(w->disconnected_slot);
        sd_event_source_disable_unref(w->timer);
        sd_event_source_disable_unref(w->sigint);
        sd_event_source_disable_unref(w->sigterm);
        if (w->client->bus)
                sd_bus_detach_event(w->client->bus);
        sd_event_unref(w->event);
        return mfree(w);
}

static void waiter_stop(Waiter *w, int result) {
        if (w->finished)
                return;
        w->finished = true;
        w->result = result;
}

void waiter_finish(Waiter *w) {
        waiter_stop(w, 0);
}

static void waiter_arm(Waiter *w, uint64_t usec) {
        (void) sd_event_source_set_time_relative(w->timer, usec);
        (void) sd_event_source_set_enabled(w->timer, SD_EVENT_ONESHOT);
}

void waiter_poke(Waiter *w) {
        if (!w->poked)
                waiter_arm(w, POKE_USEC);
        w->poked = true;
}

static int waiter_refresh(Waiter *w) {
        uint64_t now = 0;
        int r;

        w->poked = false;
        if (w->finished)
                return 0;

        r = w->ops->refresh(w->userdata);
        if (r > 0) {
                waiter_stop(w, 0);
                return 0;
        }
        if (r == 0) {
                w->away_since = 0;
                waiter_arm(w, CHECK_USEC);
                return 0;
        }
        if (r != -EAGAIN) {
                waiter_stop(w, r);
                return 0;
        }

        (void) sd_event_now(w->event, CLOCK_MONOTONIC, &now);
        if (w->away_since == 0)
                w->away_since = now;
        else if (now > w->away_since + AWAY_MAX_USEC) {
                waiter_stop(w, fail("agentd has been away for too long. See \"systemctl status agentd\"."));
                return 0;
        }
        waiter_arm(w, RETRY_USEC);
        return 0;
}

static int on_timer(sd_event_source *s _unused_, uint64_t usec _unused_, void *userdata) {
        return waiter_refresh(userdata);
}

static int on_signal(sd_event_source *s _unused_, const struct signalfd_siginfo *si _unused_, void *userdata) {
        Waiter *w = userdata;

        if (w->ops->interrupted(w->userdata) > 0)
                waiter_stop(w, -EINTR);
        return 0;
}

static int on_owner_changed(sd_bus_message *m, void *userdata, sd_bus_error *error _unused_) {
        const char *name, *old, *new;
        Waiter *w = userdata;

        if (sd_bus_message_read(m, "sss", &name, &old, &new) < 0)
                return 0;
        /* Gone: look a little later, it is most likely being restarted. Back: look at once. */
        waiter_arm(w, isempty(new) ? RETRY_USEC : 0);
        return 0;
}

static int on_disconnected(sd_bus_message *m _unused_, void *userdata, sd_bus_error *error _unused_) {
        waiter_stop(userdata, fail("The connection to the system bus was lost."));
        return 0;
}

int waiter_new(Client *c, const WaiterOps *ops, void *userdata, Waiter **ret) {
        _cleanup_(waiter_freep) Waiter *w = NULL;
        sigset_t set;
        int r;

        r = client_connect(c);
        if (r < 0)
                return r;

        w = malloc(sizeof(*w));
        if (!w)
                return fail_oom();
        *w = (Waiter) { .client = c, .ops = ops, .userdata = userdata };

        sigemptyset(&set);
        sigaddset(&set, SIGINT);
        sigaddset(&set, SIGTERM);
        if (sigprocmask(SIG_BLOCK, &set, NULL) < 0)
                return fail_errno(-errno, "Cannot block signals");

        r = sd_event_default(&w->event);
        if (r >= 0)
                r = sd_event_add_signal(w->event, &w->sigint, SIGINT, on_signal, w);
        if (r >= 0)
                r = sd_event_add_signal(w->event, &w->sigterm, SIGTERM, on_signal, w);
        if (r >= 0)
                r = sd_event_add_time_relative(w->event, &w->timer, CLOCK_MONOTONIC, 0, USEC_PER_MSEC, on_timer, w);
        if (r >= 0)
                r = sd_event_source_set_enabled(w->timer, SD_EVENT_OFF);
        if (r >= 0)
                r = sd_bus_attach_event(c->bus, w->event, SD_EVENT_PRIORITY_NORMAL);
        if (r < 0)
                return fail_errno(r, "Cannot set up the event loop");

        r = sd_bus_add_match(c->bus, &w->owner_slot,
                             "type='signal',sender='org.freedesktop.DBus',path='/org/freedesktop/DBus',"
                             "interface='org.freedesktop.DBus',member='NameOwnerChanged',arg0='org.agentd1'",
                             on_owner_changed, w);
        if (r >= 0)
                r = sd_bus_match_signal(c->bus, &w->disconnected_slot, "org.freedesktop.DBus.Local",
                                        "/org/freedesktop/DBus/Local", "org.freedesktop.DBus.Local", "Disconnected",
                                        on_disconnected, w);
        if (r < 0)
                return fail_errno(r, "Cannot subscribe to signals");

        *ret = TAKE_PTR(w);
        return 0;
}

int waiter_run(Waiter *w) {
        int r;

        waiter_refresh(w);
        /* Not sd_event_loop() and sd_event_exit(): the latter closes the bus, which is needed for the result */
        while (!w->finished) {
                r = sd_event_run(w->event, UINT64_MAX);
                if (r < 0)
                        return fail_errno(r, "The event loop failed");
        }
        return w->result;
}
