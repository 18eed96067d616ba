/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * PID 1 as seen by agentd: starts transient service units and tells how they fared.
 *
 * Two matches serve all units (JobRemoved, PropertiesChanged); signals are dispatched by job or object path.
 * Guarantees to the owner of a Unit:
 *   - the matches are there before the first unit is started, so no signal is missed;
 *   - UNIT_RUNNING and UNIT_ADRIFT come at most once, UNIT_ENDED or UNIT_START_FAILED exactly once, in that order;
 *   - a lost signal (daemon-reload, an overflowing queue) is made up for by asking again after a while;
 *   - the unit is pinned (AddRef) until the Unit is freed, so its result can be read after its end; how it outlives
 *     agentd itself is said in systemd-client.c.
 */

#include <sys/wait.h>
#include <systemd/sd-bus.h>
#include <systemd/sd-event.h>

#include "basic/macro.h"

typedef struct SystemdClient SystemdClient;
typedef struct Unit Unit;

typedef enum UnitEvent {
        UNIT_START_FAILED, /* nothing of it ran: refused by PID 1, or the sandbox could not be set up */
        UNIT_RUNNING,      /* the program was executed */
        UNIT_ADRIFT,       /* unit_hold() only: it goes on, but PID 1 has lost sight of it, see there */
        UNIT_ENDED,        /* inactive or failed; unit_result() tells how */
        UNIT_GONE,         /* unit_attach() only: PID 1 does not know the unit */
} UnitEvent;

typedef struct UnitResult {
        char result[32];        /* Result= of the service: success, exit-code, signal, core-dump, timeout, oom-kill … */
        int code;               /* CLD_EXITED, CLD_KILLED, CLD_DUMPED; 0 unknown */
        int status;             /* exit status or signal */
        char invocation_id[33]; /* "" unknown */
        uint64_t cpu_nsec, memory_peak, io_read_bytes, io_write_bytes; /* UINT64_MAX: not accounted */
        uint64_t started_usec; /* CLOCK_REALTIME of the main process; 0 unknown */
        uint64_t runtime_max_usec; /* UINT64_MAX: none, 0: unknown */
} UnitResult;

/* Whether PID 1 could not set up what it was to execute: systemd.exec(5) has exit statuses of its own for that. Nothing of
 * the program ran then (Type=exec makes the start job wait for the exec). */
static inline bool unit_result_is_setup(const UnitResult *u) {
        return u->code == CLD_EXITED && u->status >= 200 && u->status <= 243;
}

typedef void (*unit_event_handler_t)(Unit *u, UnitEvent event, const char *message, void *userdata);

int systemd_client_new(sd_bus *bus, SystemdClient **ret);
SystemdClient *systemd_client_free(SystemdClient *c);
DEFINE_CLEANUP(SystemdClient *, systemd_client_free);

/* Appends the unit's properties, as (sv) elements, to the open array of a StartTransientUnit call. */
typedef int (*unit_properties_t)(sd_bus_message *m, void *userdata);

/* Asks PID 1 to start NAME with the given properties, mode "fail". FDS in properties stay ours. */
int unit_start(SystemdClient *c, const char *name, unit_properties_t properties, unit_event_handler_t handler,
               void *userdata, Unit **ret);
/* Watches a unit that an earlier agentd started. */
int unit_attach(SystemdClient *c, const char *name, unit_event_handler_t handler, void *userdata, Unit **ret);
/* For a unit whose processes all end with its program (PrivatePIDs=), right after unit_start() or unit_attach(): one
 * that ended well stays as it is, "active (exited)", until unit_free(). So whoever stores the end before that can be
 * killed at any moment: the next one finds the unit and its result.
 *
 * With PrivatePIDs= PID 1 starts a process that starts the program, tells PID 1 of it, and exits. Whether PID 1 takes
 * note of the exit only after the message is a race between its event loop and waitid(); where the exit comes first
 * (systemd 257; rare, and less so the busier the host is), it takes the unit to be over, well ended. With Type=exec the
 * program most often is not executed then, as nobody is there to be told of it; but it may be, and PID 1 does not look
 * at it any more: neither at its end nor at RuntimeMaxSec=. So a unit on hold is over only when no process is in its
 * cgroup; UNIT_ADRIFT tells, once and after UNIT_RUNNING, that the owner has to keep its time. Whether anything ran, the
 * owner has to know by himself. */
void unit_hold(Unit *u);
/* SIGTERM, then SIGKILL after the unit's TimeoutStopSec. Repeating it is harmless. */
int unit_stop(Unit *u);
/* Kills every process of the unit's cgroup at once. */
int unit_kill(Unit *u, int signal);

const char *unit_name(const Unit *u);
const UnitResult *unit_result(const Unit *u);
/* Drops the pin and PID 1's memory of a unit that is over. Does not stop a unit that is live. */
Unit *unit_free(Unit *u);
DEFINE_CLEANUP(Unit *, unit_free);
/* Drops the pin, and leaves the unit as it is for whoever attaches to it next. */
Unit *unit_forget(Unit *u);
DEFINE_CLEANUP(Unit *, unit_forget);

/* Names of the loaded units that match PATTERN (a glob); for reconciling after a start. Blocks: start-up only. */
int systemd_client_list(SystemdClient *c, const char *pattern, char ***ret);
/* Stops a unit that nobody watches, and forgets that it failed. */
int systemd_client_stop(SystemdClient *c, const char *name);
