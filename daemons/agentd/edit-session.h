/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * A session in an edit, beside its root and its unit: the way to the bridge's forward proxy, which is all that it has
 * of a network, and what an agentd after us has to know of it. It is an Operation of kind edit; its id on the bridge is
 * that of its root (views[0].id).
 *
 * Promises: the live file is there before anything of the session runs and gone before its end is told, so what its
 * token allows ends with it. A session belongs to PID 1, as a run does: it goes on while agentd is away, and is found
 * again.
 */

#include "operation.h"

typedef struct EditSession EditSession;

/* HOSTS: as resolved (edit-hosts.h), may be NULL: then it has no network at all. */
int edit_session_new(char *const *hosts, EditSession **ret);
/* For an operation that an earlier agentd began. */
int edit_session_resumed(Operation *o);
EditSession *edit_session_free(EditSession *s);

/* Root and network namespace are there. Writes the files, registers LISTENER_FD (owned), starts the unit; or ends O. */
void edit_session_begin(Operation *o, int listener_fd);
/* What it finds in its environment, empty where it may go nowhere; the values are in the file below, for PID 1, since
 * there is a token in them. */
const char *const *edit_session_variables(const Operation *o);
#define EDIT_ENVIRONMENT_FILE AGENTD_RUNTIME_DIR "/runs/%s/environment"

/* O is over: its token is worth nothing from here on. Repeating it is harmless. */
void edit_session_end(Operation *o);

/* Makes again, from their files, the sessions that an earlier agentd of this boot left in PID 1's hands. */
int edit_sessions_resume(Manager *m);
/* Whether ID is that of a session, UNIT that of its unit. */
bool edit_session_has_id(Manager *m, const char *id);
bool edit_session_has_unit(Manager *m, const char *unit);
