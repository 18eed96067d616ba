/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * What programs read of the machine is the run's own: these are the files that stand in for the host's /proc/cpuinfo,
 * /proc/meminfo and so on inside a run, made from its limits. They are written below runs/<run>/proc/ when the sandbox
 * is prepared; agentd binds each over its place (BindReadOnlyPaths=) with the table here.
 */

#include "basic/macro.h"

typedef struct ProcFile {
        const char *name; /* below runs/<run>/proc/ */
        const char *path; /* where it belongs inside the run */
} ProcFile;

/* Ends with a NULL name. Each of them exists after a successful worker_prepare(). */
extern const ProcFile proc_files[];

/* Writes all of proc_files[] below DIRFD (which is empty). 0 or NULL: as the host has it. */
int proc_files_write(int dirfd, const char *run, unsigned cpus, uint64_t memory_max, const char *hostname);
