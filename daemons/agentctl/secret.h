/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * Reading a secret without leaving traces: never from argv or the environment, without echo on a terminal, in
 * locked memory that is wiped, with core dumps off. It leaves this process only through a pipe to
 * agent-credentiald, whose reading end goes over the bus; agentd never sees it.
 */

#include "basic/macro.h"

#define SECRET_MAX ((size_t) 48 * 1024) /* fits into a pipe's buffer, so that writing never blocks */

/* From FD (or, where it is negative, from stdin); on a terminal PROMPT is shown. One trailing newline is taken off.
 * *ret_pipe is the reading end of a pipe that holds the secret and then ends. Told on stderr. */
int secret_read(int fd, const char *prompt, int *ret_pipe);
