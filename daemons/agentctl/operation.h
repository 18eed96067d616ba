/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Long work of agentd (org.agentd1.Operation): start it, show how far it is, tell its end. */

#include "client.h"

/* The end of one, for callers that tell it themselves. */
typedef struct OperationEnd {
        char *path;   /* NULL: not waited for, its path was printed */
        char *detail;
        int status;   /* an exit status */
        bool closing; /* to be canceled is what is wanted: that is a success */
} OperationEnd;

void operation_end_done(OperationEnd *end);
/* Tells an end that was waited for, as operation_run() does. Returns an exit status. */
int operation_tell(Client *c, const OperationEnd *end, const char *kind, const char *subject, const char *verb);
/* As operation_run(), but a success is not told. A negative value: told, and END is empty. */
int operation_wait(Client *c, sd_bus_message *m, const char *subject, OperationEnd *end);
/* Waits for the end of one that is under way already. */
int operation_follow(Client *c, const char *path, OperationEnd *end);
/* The document that a finished operation left. */
int operation_read_result(Client *c, const char *path, sd_json_variant **ret);

/*
 * Sends M, whose reply is an operation's path, and waits for the end, or prints the path with --no-wait.
 * Ctrl-C cancels the operation; a second one leaves at once. A success is told as "KIND SUBJECT VERB." Returns an exit
 * status.
 */
int operation_run(Client *c, sd_bus_message *m, const char *kind, const char *subject, const char *verb);
