/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* How a check ends: agent-check's exit status, and what agentd makes of it. Apart from runner-check.c, so that it can
 * be tried without units. */

enum {
        CHECK_STATUS_NONE = -1,        /* agent-check did not come to an end */
        CHECK_STATUS_REFUSED = 1,      /* node does not accept the script at which it ended */
        CHECK_STATUS_BLIND = 10,       /* node accepts what is no JavaScript */
        CHECK_STATUS_TIMED_OUT = 11,
        CHECK_STATUS_KILLED = 12,      /* node was killed by a signal */
        CHECK_STATUS_NOT_STARTED = 13, /* node cannot be executed */
        CHECK_STATUS_ODD = 14,         /* node ended in a way that says nothing */
};

typedef enum CheckVerdict {
        CHECK_OK,
        CHECK_BROKEN, /* the runner's fault: this node does not accept it */
        CHECK_ERROR,  /* the check itself went wrong: node, sandbox or time */
} CheckVerdict;

/* STATUS is agent-check's own word, RESULT PID 1's; OUTPUT is what node said last. *ret_reason is a sentence, or
 * "FILE:LINE: message" where the runner is broken; it stays NULL where all is well. */
CheckVerdict runner_check_judge(const char *output, const char *result, int status, char **ret_reason);
