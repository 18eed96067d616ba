/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * Waits for the end of something that agentd does (a run, an operation) such that it cannot be missed:
 * signals are subscribed to before the work is asked for, the state is read once after that, and again
 * whenever agentd comes back to the bus and every now and then. Ctrl-C is the caller's to interpret.
 */

#include <systemd/sd-event.h>

#include "client.h"

typedef struct Waiter Waiter;

typedef struct WaiterOps {
        /* Reads the state. Positive: over. Zero: not yet. -EAGAIN: agentd is away, ask again. Else: told, give up. */
        int (*refresh)(void *userdata);
        /* SIGINT or SIGTERM. Positive: stop waiting. */
        int (*interrupted)(void *userdata);
} WaiterOps;

/*
 * Connects, blocks the two signals and attaches the bus to an event loop. WHAT names the thing in
 * messages. The caller then adds its matches (a callback that sees the end calls waiter_finish()), starts the
 * work, and calls waiter_run().
 */
int waiter_new(Client *c, const WaiterOps *ops, void *userdata, Waiter **ret);
Waiter *waiter_free(Waiter *w);
DEFINE_CLEANUP(Waiter *, waiter_free);

/* 0: over. -EINTR: stopped by interrupted(). Else a fault that has been told. */
int waiter_run(Waiter *w);
void waiter_finish(Waiter *w);
/* Something has changed: have the state read soon. Many of these in a row cost one look. */
void waiter_poke(Waiter *w);
