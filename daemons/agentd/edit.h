/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * An edit of an agent's environment: changes on top of one generation that are not frozen yet. It is a directory
 * <state>/edits/<id>/ with edit.json and the disk (sandbox/edit-disk.h) with the overlay's upper/ and work/, so it
 * outlives sessions, agentd and a reboot. There is one for each agent at most. It ends by a freeze or by being
 * discarded; until then, one session (a shell, or one command) at a time may be open in it.
 */

#include "manager.h"

typedef struct Operation Operation;

typedef struct Edit {
        Manager *manager;
        char *key; /* "USER/AGENT" */
        char *user, *agent;
        char id[RUN_ID_LEN + 1];
        char *dir;
        char *holder;     /* who began it */
        char *generation; /* that it stands on */
        char **layers;    /* of that */
        uid_t base;       /* the session's root on the host */
        uint64_t size; /* of the disk that its changes are on; 0: they are in the directory itself, without a bound */
        uint64_t created_usec;
        Operation *operation; /* session or freeze that is under way */
} Edit;

/* What earlier agentds left. Those whose agent is gone are removed. */
int edits_load(Manager *m);
void edits_free(Manager *m);

Edit *edit_find(Manager *m, const char *user, const char *agent);
/* The one that is there, or a new one on the head, begun by HOLDER. */
int edit_open(Manager *m, const char *user, const char *agent, const char *holder, Edit **ret);
/*
 * A freeze moves the head and then removes the edit. So that an agentd which dies in between leaves no edit whose
 * changes are frozen already: says before the first step that they are about to become the generation DIGEST, on top of
 * the head's revision REV; edits_load() looks whether that came true. NULL takes it back.
 */
int edit_set_frozen(Edit *e, const char *digest, uint64_t rev);
/* Removes it and all changes in it. -EBUSY where a session or freeze is under way. */
int edit_discard(Edit *e);

/* How many a user has. */
unsigned edits_count(Manager *m, const char *user);

/* edit-bus.c: the error for whoever comes second; says who holds it, since when, and how to end that. */
int edit_in_use(const Edit *edit, sd_bus_error *e);
