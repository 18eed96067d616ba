/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * Asks polkit whether the sender of a method call may do something, without blocking.
 *
 * A handler calls bus_verify_async() before it looks at any state. On the first pass that sends the
 * question and returns 0; the handler then returns 1. When the answer comes, the very same message is put
 * back into the connection's read queue, so that path, object look-up and handler run again from
 * zero; nothing of the first pass is kept but the verdict. On the second pass it returns 1 or a
 * refusal. An action, details or owner that differ from the first pass' are a refusal.
 *
 *         r = bus_verify_async(polkit, m, "org.agentd1.manage", NULL, owner_uid, error);
 *         if (r < 0)
 *                 return r;
 *         if (r == 0)
 *                 return 1;  // will be called again
 */

#include <systemd/sd-bus.h>

#include "basic/macro.h"

#define POLKIT_ACTION_EXECUTE "org.agentd1.execute"
#define POLKIT_ACTION_MANAGE "org.agentd1.manage"
#define POLKIT_ACTION_DEPLOY_RUNNER "org.agentd1.deploy-runner"
#define POLKIT_ACTION_MANAGE_CREDENTIALS "org.agentd1.manage-credentials"

typedef struct BusPolkit BusPolkit;

/* One for a connection. Questions in flight are bounded, also of each user; beyond that: LimitsExceeded. */
int bus_polkit_new(sd_bus *bus, BusPolkit **ret);
/* Questions in flight are answered with an error. Free before the bus. */
BusPolkit *bus_polkit_free(BusPolkit *p);
DEFINE_CLEANUP(BusPolkit *, bus_polkit_free);
/* Number of questions in flight: a daemon with any is not idle. */
size_t bus_polkit_pending(const BusPolkit *p);

/*
 * DETAILS: pairs of key and value, ends with NULL, may be NULL. Root passes, and so does GOOD_USER
 * ((uid_t) -1: nobody) where it is the sender's euid. >0 go on; 0 will be called again; <0 refused, with
 * *e set: AccessDenied or InteractiveAuthorizationRequired.
 */
int bus_verify_async(BusPolkit *p, sd_bus_message *m, const char *action, const char *const *details, uid_t good_user,
                     sd_bus_error *e);

/* Effective uid of the sender, as the bus says. Asked by a connection of its own: nothing is read on M's meanwhile. */
int bus_sender_euid(sd_bus_message *m, uid_t *ret);
