/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * How a run ended, from two witnesses: PID 1 (how the unit fared), which cannot lie, and the runner (what the agent's
 * program did), which runs inside the sandbox and counts only where PID 1 has nothing to say against it.
 */
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/wait.h>

#include "basic/json-util.h"
#include "basic/string-util.h"
#include "run.h"

#define MESSAGE_MAX 1024U

_printf_(3, 4) static void end_set(RunEnd *end, RunResult result, const char *format, ...) {
        va_list ap;

        end->result = result;
        free(end->message);
        va_start(ap, format);
        if (vasprintf(&end->message, format, ap) < 0)
                end->message = NULL;
        va_end(ap);
}

static void judge_posted(const char *posted, RunEnd *end) {
        _cleanup_json_ sd_json_variant *v = NULL;
        const char *status, *message;
        sd_json_variant *code, *sig;

        if (json_parse(posted, strlen(posted), &v, NULL) < 0 || !(status = json_string(v, "status"))) {
                end_set(end, RUN_RESULT_FAILED, "The runner's result cannot be understood.");
                return;
        }
        message = json_string(v, "message");
        if (streq(status, "success")) {
                end_set(end, RUN_RESULT_SUCCESS, "%.*s", (int) MESSAGE_MAX, message ?: "The agent finished its task.");
                return;
        }
        code = sd_json_variant_by_key(v, "exit_code");
        sig = sd_json_variant_by_key(v, "signal");
        if (sig && sd_json_variant_is_unsigned(sig) && sd_json_variant_unsigned(sig) < 65) {
                end->exit_signal = (int) sd_json_variant_unsigned(sig);
                end_set(end, RUN_RESULT_SIGNAL, "The agent's command was killed by signal %d (%s).", end->exit_signal,
                        strsignal(end->exit_signal));
        } else if (code && sd_json_variant_is_unsigned(code) && sd_json_variant_unsigned(code) > 0 &&
                   sd_json_variant_unsigned(code) < 256) {
                end->exit_code = (int) sd_json_variant_unsigned(code);
                end_set(end, RUN_RESULT_EXIT_CODE, "The agent's command exited with status %d%s%.*s", end->exit_code,
                        message ? ": " : ".", (int) MESSAGE_MAX, strempty(message));
        } else
                end_set(end, RUN_RESULT_FAILED, "%.*s", (int) MESSAGE_MAX, message ?: "The agent reported a failure.");
}

void run_judge(const StoreRun *row, const Definition *definition, const char *posted, const UnitResult *u,
               RunEnd *end) {
        const bool exec_kind = definition && definition->kind == AGENT_EXEC;
        const char *program = exec_kind ? "The agent's command" : "The runner";
        bool clean = streq(u->result, "success") && !(u->code == CLD_KILLED || u->code == CLD_DUMPED) && u->status == 0;

        end->usage = (StoreUsage) {
                .cpu_usec = u->cpu_nsec == UINT64_MAX ? STORE_UNKNOWN : u->cpu_nsec / NSEC_PER_USEC,
                .memory_peak = u->memory_peak,
                .io_read_bytes = u->io_read_bytes,
                .io_write_bytes = u->io_write_bytes,
        };

        /* Out of memory and out of time are facts of PID 1's, whatever was posted before. */
        if (streq(u->result, "oom-kill")) {
                end_set(end, RUN_RESULT_OOM_KILL, "The run needed more memory than its limit allows and was killed.");
                return;
        }
        if (streq(u->result, "timeout") && !row->cancel_requested) {
                end_set(end, RUN_RESULT_TIMEOUT, "The run took longer than its limit of %" PRIu64 " s and was ended.",
                        row->timeout_usec / USEC_PER_SEC);
                return;
        }
        if (!exec_kind && posted && (clean || !row->cancel_requested)) {
                judge_posted(posted, end);
                return;
        }
        if (row->cancel_requested && !clean) {
                end_set(end, RUN_RESULT_CANCELED, "Canceled by %s.", strempty(row->cancel_by));
                return;
        }
        /* A stop that the program took well counts as a clean end for PID 1 (SIGTERM). */
        if (row->cancel_requested && exec_kind && u->code != CLD_EXITED) {
                end_set(end, RUN_RESULT_CANCELED, "Canceled by %s.", strempty(row->cancel_by));
                return;
        }
        if (clean) {
                if (exec_kind)
                        end_set(end, RUN_RESULT_SUCCESS, "The command exited with status 0.");
                else if (row->cancel_requested)
                        end_set(end, RUN_RESULT_CANCELED, "Canceled by %s.", strempty(row->cancel_by));
                else
                        end_set(end, RUN_RESULT_FAILED, "The runner ended without a result.");
                return;
        }
        if (u->code == CLD_KILLED || u->code == CLD_DUMPED) {
                end->exit_signal = u->status;
                end_set(end, RUN_RESULT_SIGNAL, "%s was killed by signal %d (%s).", program, u->status,
                        strsignal(u->status));
                return;
        }
        if (u->code == CLD_EXITED && !exec_kind && (u->status == 126 || u->status == 127)) {
                end_set(end, RUN_RESULT_SANDBOX_FAILED,
                        "The runner could not be executed: the environment has no node that works.");
                return;
        }
        if (u->code == CLD_EXITED && exec_kind && (u->status == 126 || u->status == 127)) {
                end->exit_code = u->status;
                end_set(end, RUN_RESULT_EXIT_CODE,
                        "The command exited with status %d, as when it cannot be executed: is %s in the environment, and "
                        "executable?",
                        u->status, definition->command[0]);
                return;
        }
        if (u->code == CLD_EXITED) {
                end->exit_code = u->status;
                end_set(end, RUN_RESULT_EXIT_CODE, "%s exited with status %d.", program, u->status);
                return;
        }
        end_set(end, RUN_RESULT_FAILED, "The run's unit ended as \"%s\".", u->result);
}
