/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* The tables behind agentctl's exit status: typed endings of runs and operations to numbers. */

#include "exit-status.h"

typedef struct Mapping {
        const char *result;
        ExitStatus status;
} Mapping;

static const Mapping run_results[] = {
        { "success", STATUS_SUCCESS },
        { "failed", STATUS_FAILED },
        { "exit-code", STATUS_EXIT_CODE },
        { "signal", STATUS_SIGNAL },
        { "timeout", STATUS_TIMEOUT },
        { "oom-kill", STATUS_OOM_KILL },
        { "canceled", STATUS_CANCELED },
        { "out-of-credit", STATUS_OUT_OF_CREDIT },
        { "sandbox-failed", STATUS_SANDBOX_FAILED },
        { "lost", STATUS_LOST },
};

static const Mapping operation_results[] = {
        { "done", STATUS_SUCCESS },
        { "failed", STATUS_FAILED },
        { "canceled", STATUS_CANCELED },
};

static ExitStatus lookup(const Mapping *table, size_t n, const char *result) {
        for (size_t i = 0; i < n; i++)
                if (streq_ptr(table[i].result, result))
                        return table[i].status;
        return STATUS_ERROR;
}

ExitStatus exit_status_from_run_result(const char *result) {
        return lookup(run_results, ELEMENTSOF(run_results), result);
}

ExitStatus exit_status_from_operation_result(const char *result) {
        return lookup(operation_results, ELEMENTSOF(operation_results), result);
}
