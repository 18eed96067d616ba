/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * The service manager's store of file descriptors, where the runs' listeners outlive this process. Entries are named "run-<id>"; a push
 * removes the entry of that name first, so that there is one at most. Outside of a service manager everything here succeeds and
 * does nothing.
 */

#include "basic/macro.h"

int fd_store_push(const char *run, int fd);
int fd_store_remove(const char *run);

/* One inherited descriptor; closed by us where the callback does not take it (returns 0 or an error). RUN is NULL for the control socket. */
typedef int (*fd_store_take_t)(const char *run, int fd, void *userdata);

/* Looks at all descriptors that we were started with, checks their kind, closes and removes what is unknown. */
int fd_store_take_back(fd_store_take_t take, void *userdata);

/* A stream socket that listens, of a family that a run's listener may have. */
bool fd_is_listener(int fd);
