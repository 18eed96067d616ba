/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * Landlock, as far as a run needs it: domains whose members trace and signal only what is in them (apart.c). Header
 * only, because agent-init, which links no library of ours, asks the same as agentd.
 */

#include <linux/landlock.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LANDLOCK_ABI_SCOPES 6 /* the first with LANDLOCK_SCOPE_SIGNAL: Linux 6.12 */

/* The kernel's; -1 where it has none, is booted without it, or where a container's filter does not let us ask. */
static inline long landlock_abi(void) {
        return syscall(SYS_landlock_create_ruleset, NULL, 0, LANDLOCK_CREATE_RULESET_VERSION);
}
