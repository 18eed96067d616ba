/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * The service manager's store of file descriptors, where the runs' listeners outlive this process. Entries are named
 * "run-<id>" and the like; a push removes the entry of that name first, so that there is one at most. Outside of a
 * service manager everything here succeeds and does nothing.
 */

#include "basic/macro.h"

typedef enum FdKind {
        FD_RUN,     /* a run's listeners, in the order of RunListener; the name is its id */
        FD_RUN_UNIX,
        FD_RUN_PROXY,
        FD_REMOTE,  /* the listener for sandbox hosts elsewhere, from agent-bridged-remote.socket */
        FD_CONTROL, /* the control socket, from agent-bridged.socket */
        FD_REPORTS, /* what is owed to agentd, see report-log.h */
} FdKind;

int fd_store_push(FdKind kind, const char *run, int fd);
int fd_store_remove(FdKind kind, const char *run);

/* One inherited descriptor; >0: taken. Else it is closed and its entry removed. RUN is NULL but for a run's. */
typedef int (*fd_store_take_t)(FdKind kind, const char *run, int fd, void *userdata);

/* Looks at all descriptors that we were started with, checks their kind, closes and removes what is unknown. */
int fd_store_take_back(fd_store_take_t take, void *userdata);

/* A stream socket that listens, of a family that a run's listener may have. */
bool fd_is_listener(int fd);
