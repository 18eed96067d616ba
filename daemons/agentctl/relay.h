/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * Standard input and output for a session in an environment, which takes pipes, files and terminals, but no sockets
 * (over one, its root could give away what it has open). Where ours is a socket, as under systemd, a pipe is given
 * instead, and a process of ours carries what goes through it.
 */

#include <sys/types.h>

typedef struct Relay {
        int fds[3];    /* to pass on */
        pid_t pids[3]; /* 0: passed on as it is */
} Relay;

int relay_begin(Relay *ret);
/* Waits until all output is out. */
void relay_end(Relay *r);
