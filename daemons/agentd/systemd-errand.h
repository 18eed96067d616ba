/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * Calls of PID 1 that must get through, though nobody waits for their answer: to stop a unit, to kill its processes, to
 * forget that it failed. While PID 1 is being replaced (daemon-reexec) or the bus is not there for it, they are sent
 * again until they were answered; that the unit is not there (any more) is an answer. They go when the Errands are
 * freed.
 */

#include <systemd/sd-bus.h>

#include "basic/macro.h"

#define SD_NAME "org.freedesktop.systemd1"
#define SD_PATH "/org/freedesktop/systemd1"
#define SD_MANAGER "org.freedesktop.systemd1.Manager"

typedef struct Errands Errands;

typedef enum ErrandKind {
        ERRAND_STOP,
        ERRAND_KILL,
        ERRAND_RESET,
} ErrandKind;

int errands_new(sd_bus *bus, Errands **ret);
Errands *errands_free(Errands *e);
DEFINE_CLEANUP(Errands *, errands_free);

/* SIGNAL is for ERRAND_KILL. */
int errand_run(Errands *e, ErrandKind kind, const char *unit, int signal);

/* True for errors that mean "not there just now": the peer went away with the call in hand, or is just being started.
 */
bool errand_peer_is_away(const sd_bus_error *e);
