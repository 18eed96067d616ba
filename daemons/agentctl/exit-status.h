/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

#include "basic/macro.h"

/* What agentctl's exit status tells. It is documented in agentctl(1): scripts depend on the numbers. */
typedef enum ExitStatus {
        STATUS_SUCCESS = 0,
        STATUS_FAILED = 1, /* the agent (or the operation) said that it failed */
        STATUS_USAGE = 2,
        STATUS_ERROR = 3, /* D-Bus or anything else */
        STATUS_EXIT_CODE = 10,
        STATUS_SIGNAL = 11,
        STATUS_TIMEOUT = 12,
        STATUS_OOM_KILL = 13,
        STATUS_CANCELED = 14,
        STATUS_OUT_OF_CREDIT = 15,
        STATUS_SANDBOX_FAILED = 16,
        STATUS_LOST = 17,
        STATUS_INTERRUPTED = 130, /* Ctrl-C while waiting */
} ExitStatus;

/* From a run's property Result; STATUS_ERROR for one that this version does not know. */
ExitStatus exit_status_from_run_result(const char *result);
/* From OperationFinished's RESULT. */
ExitStatus exit_status_from_operation_result(const char *result);
