/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * The Manager owns everything in agentd and is freed last. It knows what is live: runs between claim and end,
 * operations under way. Everything else is in the store and looked up when asked for.
 */

#include <systemd/sd-bus.h>
#include <systemd/sd-event.h>

#include "basic/log.h"
#include "basic/macro.h"
#include "basic/strmap.h"
#include "bus/bus-error.h"
#include "bus/polkit.h"
#include "image/layer-store.h"
#include "runner.h"
#include "sandbox/worker.h"
#include "settings.h"
#include "store/store.h"
#include "systemd-client.h"
#include "key-store.h"

#define AGENTD_STATE_DIR "/var/lib/agentd"
#define AGENTD_RUNTIME_DIR "/run/agentd"
#define AGENTD_EMPTY_ROOT "/run/agent-root" /* by tmpfiles.d; of units that see what they name, and nothing else */
#define BUS_NAME "org.agentd1"
#define BUS_PATH "/org/agentd1"
#define BUS_INTERFACE_MANAGER "org.agentd1.Manager"
#define BUS_INTERFACE_RUN "org.agentd1.Run"
#define BUS_INTERFACE_AGENT "org.agentd1.Agent"
#define BUS_INTERFACE_OPERATION "org.agentd1.Operation"

typedef struct LogStream LogStream; /* log-bus.c */
typedef struct Retention Retention;
typedef struct Stragglers Stragglers; /* units of earlier operations that are still ending (reconcile.c) */

typedef struct Manager {
        sd_event *event;
        sd_bus *bus;   /* has our name: who calls us, what we announce */
        sd_bus *calls; /* what we ask of PID 1 and the bridge */
        Settings *settings;
        Store *store;
        LayerStore *layers;
        Worker *worker;
        SystemdClient *systemd;
        BusPolkit *polkit;
        SigningKey *key;
        KeyState key_state;
        RunnerSet runners; /* what new runs get: as in the store, read anew after each change */

        StrMap *runs;       /* Run, by id */
        StrMap *operations; /* Operation, by id */
        StrMap *checks;     /* RunnerCheck, by runner and node */
        StrMap *layer_checks; /* LayerCheck, by digest */
        StrMap *kept;       /* KeptUpper, by run id */
        StrMap *edits;      /* Edit, by "USER/AGENT" */
        Retention *retention; /* retention.c; NULL before what was left is known */
        StrMap *approvals;  /* approval-bus.c, by request id; NULL before the first */
        Stragglers *stragglers;
        uint64_t last_operation;
        LogStream *log_streams;

        sd_event_source *dispatch_source; /* claims one run per loop turn while there is room */
        sd_event_source *queue_timer;     /* for runs that wait out a retry delay */

        uid_t next_uid;
        uid_t bridge_uid;
        gid_t bridge_gid;
        char boot_id[33];
        bool runners_ready;
        bool reconciled; /* nothing is claimed before what was live is known again */

        /* Objects that a bus look-up found; they live until the next look-up (see run-bus.c). */
        StoreRun *found_run;
        StoreAgent *found_agent;
} Manager;

int manager_new(Manager **ret);
Manager *manager_free(Manager *m);
DEFINE_CLEANUP(Manager *, manager_free);

/* Opens the store, starts the worker, connects, reconciles. The bus name is taken when both of the below were called. */
int manager_startup(Manager *m);
/* What was live when an earlier agentd ended, and what it left behind: see reconcile.c. */
int manager_reconcile(Manager *m);

/* When both have been called runs can begin, and clients come: there is a runner, and what was left is known. */
void manager_runners_ready(Manager *m);
void manager_reconciled(Manager *m);

Stragglers *stragglers_free(Stragglers *s);
void log_streams_free_all(Manager *m);

/* Something may have become claimable: look at the queue in the next loop turn. */
void manager_dispatch_soon(Manager *m);
/* A number from the dynamic range that no live run has. */
uid_t manager_pick_uid(Manager *m);

/* Questions that nobody answered (approval-bus.c). */
void approvals_free_all(Manager *m);

/* Adds all objects and interfaces to the bus. */
int manager_export(Manager *m);
extern const sd_bus_vtable manager_vtable[], run_vtable[], agent_vtable[], operation_vtable[], report_vtable[];

uint64_t now_realtime(void);
uint64_t now_monotonic(void);
