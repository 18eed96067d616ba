/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* See the header. */
#include <systemd/sd-event.h>

#include "basic/log.h"
#include "basic/string-util.h"
#include "systemd-errand.h"

#define RETRY_USEC (100 * USEC_PER_MSEC)
#define TRIES_MAX 600U /* a minute; then it is not being replaced, it is broken */

typedef struct Errand Errand;

struct Errand {
        Errands *errands;
        Errand *next, *previous;
        ErrandKind kind;
        char *unit;
        int signal;
        unsigned tries;
        sd_bus_slot *slot;
        sd_event_source *timer;
};

struct Errands {
        sd_bus *bus;
        Errand *first;
};

static int errand_send(Errand *e);

static void errand_free(Errand *e) {
        if (e->previous)
                e->previous->next = e->next;
        else
                e->errands->first = e->next;
        if (e->next)
                e->next->previous = e->previous;
        sd_bus_slot_unref(e->slot);
        sd_event_source_disable_unref(e->timer);
        free(e->unit);
        free(e);
}

int errands_new(sd_bus *bus, Errands **ret) {
        Errands *e = calloc(1, sizeof *e);

        if (!e)
                return -ENOMEM;
        e->bus = sd_bus_ref(bus);
        *ret = e;
        return 0;
}

Errands *errands_free(Errands *e) {
        if (!e)
                return NULL;
        while (e->first)
                errand_free(e->first);
        sd_bus_unref(e->bus);
        return mfree(e);
}

bool errand_peer_is_away(const sd_bus_error *e) {
        return sd_bus_error_has_names(e, SD_BUS_ERROR_NO_REPLY, SD_BUS_ERROR_DISCONNECTED, SD_BUS_ERROR_TIMEOUT,
                                      SD_BUS_ERROR_SERVICE_UNKNOWN, SD_BUS_ERROR_NAME_HAS_NO_OWNER,
                                      "org.freedesktop.DBus.Error.TimedOut",
                                      "org.freedesktop.DBus.Error.Spawn.ChildExited",
                                      "org.freedesktop.systemd1.ShuttingDown") > 0;
}

static int on_timer(sd_event_source *s, uint64_t usec, void *userdata) {
        Errand *e = userdata;
        int r;

        e->timer = sd_event_source_disable_unref(e->timer);
        r = errand_send(e);
        if (r < 0) {
                log_error_errno(r, "%s: PID 1 cannot be asked: %m", e->unit);
                errand_free(e);
        }
        return 0;
}

static int on_reply(sd_bus_message *m, void *userdata, sd_bus_error *ret_error) {
        Errand *e = userdata;
        const sd_bus_error *error = sd_bus_message_get_error(m);

        e->slot = sd_bus_slot_unref(e->slot);
        if (error && errand_peer_is_away(error) && ++e->tries < TRIES_MAX &&
            sd_event_add_time_relative(sd_bus_get_event(e->errands->bus), &e->timer, CLOCK_MONOTONIC, RETRY_USEC, 0,
                                       on_timer, e) >= 0)
                return 0;
        if (error && !sd_bus_error_has_name(error, "org.freedesktop.systemd1.NoSuchUnit") &&
            !sd_bus_error_has_name(error, "org.freedesktop.systemd1.NoSuchProcess"))
                log_warning("%s: PID 1 refuses: %s", e->unit, error->message ?: error->name);
        errand_free(e);
        return 0;
}

static int errand_send(Errand *e) {
        switch (e->kind) {
        case ERRAND_STOP:
                return sd_bus_call_method_async(e->errands->bus, &e->slot, SD_NAME, SD_PATH, SD_MANAGER, "StopUnit",
                                                on_reply, e, "ss", e->unit, "replace");
        case ERRAND_KILL:
                return sd_bus_call_method_async(e->errands->bus, &e->slot, SD_NAME, SD_PATH, SD_MANAGER, "KillUnit",
                                                on_reply, e, "ssi", e->unit, "all", e->signal);
        case ERRAND_RESET:
                return sd_bus_call_method_async(e->errands->bus, &e->slot, SD_NAME, SD_PATH, SD_MANAGER,
                                                "ResetFailedUnit", on_reply, e, "s", e->unit);
        }
        return -EINVAL;
}

int errand_run(Errands *errands, ErrandKind kind, const char *unit, int signal) {
        Errand *e = calloc(1, sizeof *e);
        int r;

        if (!e)
                return -ENOMEM;
        *e = (Errand){
                .errands = errands, .kind = kind, .unit = strdup(unit), .signal = signal, .next = errands->first
        };
        if (e->next)
                e->next->previous = e;
        errands->first = e;
        r = e->unit ? errand_send(e) : -ENOMEM;
        if (r < 0)
                errand_free(e);
        return r;
}
