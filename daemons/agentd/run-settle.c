/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The end of a run: what could outlive it is taken away (token first), its end is stored with the receipt, and only
 * then told. Or, where the platform was at fault and nothing of the agent's ran, it is queued again for a fresh
 * sandbox.
 */
#include <stdarg.h>
#include <systemd/sd-journal.h>

#include "basic/string-util.h"
#include "bus-util.h"
#include "retention.h"
#include "run.h"

/* Retries of a bridge that is being restarted: its name is activatable, so a call waits for it; what comes back is
 * "no reply" from an instance that died with the call in hand. */
#define BRIDGE_RETRY_USEC (200 * USEC_PER_MSEC)
#define BRIDGE_TRIES_MAX 50
/* How soon the end of a run is stored again where the disk was full. */
#define FINISH_RETRY_USEC (5 * USEC_PER_SEC)

/* In the journal entry of each run's end; followers of a run's log stop at it. */
#define MESSAGE_RUN_FINISHED "2f5b1c61a1d54a0cb3c3f0a3a1f2c9d7"

static void run_unregister(Run *run);

void run_end_done(RunEnd *end) {
        end->message = mfree(end->message);
}

void run_set_end(Run *run, RunResult result, bool retry, const char *format, ...) {
        va_list ap;

        if (run->end.result >= 0) /* the first reason is the reason */
                return;
        run->end.result = result;
        run->end.retry = retry;
        va_start(ap, format);
        if (vasprintf(&run->end.message, format, ap) < 0)
                run->end.message = NULL;
        va_end(ap);
}

/* --- the last step -------------------------------------------------------------------------------------------- */

static void run_finish(Run *run);

static int on_finish_again(sd_event_source *s, uint64_t usec, void *userdata) {
        Run *run = userdata;

        run->retry = sd_event_source_disable_unref(run->retry);
        run_finish(run);
        return 0;
}

static bool run_finish_later(Run *run) {
        return sd_event_add_time_relative(run->manager->event, &run->retry, CLOCK_MONOTONIC, FINISH_RETRY_USEC, 0,
                                          on_finish_again, run) >= 0;
}

static void run_finish(Run *run) {
        _cleanup_(run_freep) Run *r = run;
        _cleanup_free_ char *receipt = NULL, *steps = NULL;
        Manager *m = run->manager;
        uint64_t now = now_realtime();
        int k;

        if (run->end.retry && run->row->attempt < m->settings->max_attempts && !run->row->cancel_requested) {
                log_warning("Run %s: attempt %u failed, trying again with a fresh sandbox: %s", run->row->id,
                            run->row->attempt, strempty(run->end.message));
                k = store_run_requeue(m->store, run->row->id, run->row->fence, run->end.message,
                                      now + m->settings->retry_delay_usec * run->row->attempt);
                if (k < 0) {
                        log_error_errno(k, "Run %s: cannot be queued again: %s", run->row->id, store_error(m->store));
                        if (run_finish_later(run))
                                TAKE_PTR(r);
                        return;
                }
                run->unit = unit_free(run->unit);
                run_drop_exit_record(run->row->id);
                run_signal_changed(m, run->row->id);
                manager_dispatch_soon(m);
                return;
        }

        if (run->end.result == RUN_RESULT_SUCCESS && !run->folded) {
                /* Before the end is told: the next run is to find it. */
                k = run_fold(run, &run->folded);
                if (k < 0)
                        log_error_errno(k, "Run %s: its runner is not folded into the environment: %m", run->row->id);
        }
        k = run_steps(run, &steps);
        if (k >= 0)
                k = run_receipt(m, run->row, run, &run->end, now, &receipt);
        if (k >= 0)
                k = store_run_finish(m->store, run->row->id, run->row->fence,
                                     &(StoreRunEnd) {
                                             .result = run->end.result,
                                             .message = run->end.message,
                                             .exit_code = run->end.exit_code,
                                             .exit_signal = run->end.exit_signal,
                                             .usage = run->end.usage,
                                             .steps = steps,
                                             .receipt = receipt,
                                             .finished_usec = now,
                                     });
        if (k < 0) {
                /* Disk full or the like: its end is kept in hand until it can be stored. */
                log_error_errno(k, "Run %s: its end cannot be stored: %s", run->row->id, store_error(m->store));
                if (run_finish_later(run))
                        TAKE_PTR(r);
                return;
        }
        /* Not before: they were the proof of the end for an agentd after us. */
        run->unit = unit_free(run->unit);
        run_drop_exit_record(run->row->id);
        if (run->row->keep && run->end.result == RUN_RESULT_SUCCESS)
                kept_add(m, run->row, now);
        sd_journal_send("MESSAGE=Run %s of agent %s/%s finished: %s", run->row->id, run->row->user, run->row->agent,
                        run_result_to_string(run->end.result), "MESSAGE_ID=" MESSAGE_RUN_FINISHED, "PRIORITY=%i",
                        LOG_INFO, "AGENT_RUN=%s", run->row->id, "AGENT_NAME=%s", run->row->agent, "AGENT_USER=%s",
                        run->row->user, "AGENT_RESULT=%s", run_result_to_string(run->end.result), NULL);
        run_signal_finished(m, run->row, run->end.result, run->end.message);
        retention_drop_parts(run->row->id);
        retention_look(m);
        manager_dispatch_soon(m);
}

static void run_maybe_finish(Run *run) {
        if (run->bridge_done && run->cleanup_done)
                run_finish(run);
}

/* --- settle: what could outlive the run goes ------------------------------------------------------------------- */

static void on_cleanup(int error, const char *message, void *userdata) {
        Run *run = userdata;

        run->worker_slot = worker_slot_unref(run->worker_slot);
        if (error < 0)
                log_error_errno(error, "Run %s: sandbox cannot be taken away: %s", run->row->id, message);
        run->cleanup_done = true;
        run_maybe_finish(run);
}

void run_settle(Run *run) {
        bool keep;
        int r;

        assert(run->end.result >= 0);
        if (run->phase == RUN_PHASE_SETTLE)
                return;
        run->phase = RUN_PHASE_SETTLE;
        runner_check_leave(run);
        run_verify_leave(run);
        run->t_ended = now_monotonic();
        run->listener_fd = safe_close(run->listener_fd);
        run->worker_slot = worker_slot_unref(run->worker_slot);
        run->bridge_slot = sd_bus_slot_unref(run->bridge_slot);
        run->retry = sd_event_source_disable_unref(run->retry);
        run->limit = sd_event_source_disable_unref(run->limit);
        run->bridge_tries = 0;

        /* From here on the token is worth nothing, whatever the bridge does. */
        run_remove_live(run->manager, run->row->id);
        run_unregister(run);

        keep = run->row->keep && run->end.result == RUN_RESULT_SUCCESS;
        run_keep_exit_record(run);
        r = worker_cleanup(run->manager->worker, run->row->id, keep, on_cleanup, run, &run->worker_slot);
        if (r < 0)
                on_cleanup(r, strerror(-r), run);
}

/* The platform's fault: a retry follows where one is left. */
void run_fail(Run *run, const char *step, int error, const char *message) {
        /* A stop that meets a unit which is still being set up makes that fail. */
        if (run->row->cancel_requested)
                run_set_end(run, RUN_RESULT_CANCELED, false, "Canceled by %s before it began.",
                            strempty(run->row->cancel_by));
        run_set_end(run, RUN_RESULT_SANDBOX_FAILED, true, "The sandbox could not be made (step %s): %s.%s", step,
                isempty(message) ? strerror(-error) : message,
                error == -ENOSPC ? " Sandboxes are made in /run, or memory: make room there." : "");
        /* What is wrong with a layer may show in its mount. */
        if (!streq(step, "compose") || !run_verify_end(run))
                run_settle(run);
}

void run_end(Run *run, RunResult result, const char *message) {
        run_set_end(run, result, false, "%s", message);
        run_settle(run);
}

static int on_bridge_retry(sd_event_source *s, uint64_t usec, void *userdata) {
        Run *run = userdata;

        run->retry = sd_event_source_disable_unref(run->retry);
        if (run->phase == RUN_PHASE_SETTLE)
                run_unregister(run);
        else
                run_register(run);
        return 0;
}

/* True where another try was arranged. */
bool run_bridge_try_again(Run *run, const sd_bus_error *e) {
        if (!bus_bridge_is_away(e) || ++run->bridge_tries >= BRIDGE_TRIES_MAX)
                return false;
        return sd_event_add_time_relative(run->manager->event, &run->retry, CLOCK_MONOTONIC, BRIDGE_RETRY_USEC, 0,
                                          on_bridge_retry, run) >= 0;
}

static int on_unregistered(sd_bus_message *m, void *userdata, sd_bus_error *error) {
        Run *run = userdata;
        const sd_bus_error *e = sd_bus_message_get_error(m);

        run->bridge_slot = sd_bus_slot_unref(run->bridge_slot);
        if (e && run_bridge_try_again(run, e))
                return 0;
        if (e)
                log_warning("Run %s: the bridge did not let go of it: %s", run->row->id, e->message);
        run->bridge_done = true;
        run_maybe_finish(run);
        return 0;
}

/* The bridge answers when it has cut the run's connections and has reported every call, so that the receipt is whole.
 */
static void run_unregister(Run *run) {
        int r;

        r = sd_bus_call_method_async(run->manager->calls, &run->bridge_slot, "org.agentd1.Bridge",
                                     "/org/agentd1/Bridge", "org.agentd1.Bridge", "UnregisterRun", on_unregistered, run,
                                     "s", run->row->id);
        if (r < 0) {
                log_warning_errno(r, "Run %s: the bridge cannot be told: %m", run->row->id);
                run->bridge_done = true;
        }
}

int run_finish_row(Manager *m, StoreRun *row, const RunEnd *end) {
        _cleanup_free_ char *receipt = NULL;
        uint64_t now = now_realtime();
        int r;

        r = run_receipt(m, row, NULL, end, now, &receipt);
        if (r < 0)
                return r;
        r = store_run_finish(m->store, row->id, row->fence,
                             &(StoreRunEnd) {
                                     .result = end->result,
                                     .message = end->message,
                                     .exit_code = end->exit_code,
                                     .exit_signal = end->exit_signal,
                                     .usage = end->usage,
                                     .receipt = receipt,
                                     .finished_usec = now,
                             });
        if (r < 0)
                return r;
        run_signal_finished(m, row, end->result, end->message);
        retention_look(m);
        return 0;
}
