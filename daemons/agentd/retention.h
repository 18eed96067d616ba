/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * What is kept of finished runs, and for how long: agentd.conf's [Retention]. A sweep takes away runs that are too old,
 * and of users who have too much the oldest ones, with all that belongs to them; a caller may ask for one (PruneRuns).
 *
 * What is still needed stays: a run whose caller is live, changes that wait for a freeze, an idempotency key within its
 * window. Work is done in small batches, one in a turn of the event loop, when nothing else is to be done.
 *
 * Order: first the rows, in one transaction, then the files. What a crash leaves in between is found by the next start.
 */

#include "manager.h"

/* Looks for what has no row, then sweeps now and again. */
int retention_start(Manager *m);
void retention_free(Manager *m);
/* A run has ended, or something was refused for what is kept already: look whether of somebody there is too much now,
 * or the disk is short of room while there are layers that nobody needs. */
void retention_look(Manager *m);
/* Takes away what a finished run began to upload and did not commit. */
void retention_drop_parts(const char *run);

typedef struct PruneRequest {
        const char *user, *agent; /* NULL: everybody's; all of the user's */
        uint32_t keep;            /* with BY_NUMBER: that many of the newest stay */
        bool by_number;
        uint64_t before_usec;     /* only what ended before; 0 any */
        bool dry_run;
} PruneRequest;

/* Replies to MSG, with the number of runs and their bytes, when it is done. -EUSERS: too many are under way. */
int retention_prune(Manager *m, sd_bus_message *msg, const PruneRequest *request);

/* 0, or -ENOSPC where the disk has less room than KeepFree= leaves to others. */
int retention_check_space(Manager *m);
