/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * Where PID 1 and agentd mount something over what an environment brings. Each must be what its mode says, and each
 * directory on the way to it a directory: a symbolic link there would have things mounted in another place, for example
 * in one that the agent can rename. Whoever makes a layer refuses others, and whoever composes a root.
 */

#include <sys/stat.h>

#include "basic/macro.h"

typedef struct MountPoint {
        const char *path;
        mode_t mode; /* with its type */
        bool agent;  /* belongs to the agent's user */
} MountPoint;

static const MountPoint mount_points[] = {
        { "opt/agentd/runner", S_IFDIR | 0755, false },
        { "run",               S_IFDIR | 0755, false },
        { "proc",              S_IFDIR | 0555, false },
        { "sys",               S_IFDIR | 0555, false },
        { "dev",               S_IFDIR | 0755, false },
        { "tmp",               S_IFDIR | 01777, false },
        { "var/tmp",           S_IFDIR | 01777, false },
        { "home/agent",        S_IFDIR | 0700, true },
        { "etc/machine-id",    S_IFREG | 0444, false },
        { "etc/hostname",      S_IFREG | 0644, false },
        { "etc/hosts",         S_IFREG | 0644, false },
};
