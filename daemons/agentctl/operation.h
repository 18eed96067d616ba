/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Long work of agentd (org.agentd1.Operation): start it, show how far it is, tell its end. */

#include "client.h"

/*
 * Sends M, whose reply is an operation's path, and waits for the end, or prints the path with --no-wait.
 * Ctrl-C cancels the operation; a second one leaves at once. A success is told as "KIND SUBJECT VERB." Returns an exit
 * status.
 */
int operation_run(Client *c, sd_bus_message *m, const char *kind, const char *subject, const char *verb);
