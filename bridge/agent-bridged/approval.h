/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * A person's word about one request. agentd is asked, and announces the question on the bus; whoever owns the run says
 * yes or no there. Meanwhile the request is held, its body unread. No answer in time is a no. Asking is repeated while
 * agentd restarts; it knows a question by the request's id.
 */

#include "bridge.h"

typedef struct Approval Approval;

typedef enum ApprovalVerdict {
        APPROVAL_GRANTED,
        APPROVAL_DENIED,
        APPROVAL_TIMEOUT,
        APPROVAL_UNAVAILABLE,
} ApprovalVerdict;

/* Called once, from the event loop; may free the approval. */
typedef void (*approval_callback_t)(ApprovalVerdict verdict, void *userdata);

int approval_ask(Bridge *b, const LiveRun *live, const char *id, const char *service, const char *method,
                 const char *path, approval_callback_t callback, void *userdata, Approval **ret);
/* Takes the question back where it is still open. */
Approval *approval_free(Approval *a);
