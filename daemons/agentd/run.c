/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The pipeline of one run. Each step is asynchronous and ends in the next one's function; every failure ends in
 * run_fail(), every end in run_settle(). There is no other way out of here than run_finish().
 */
#include <stdarg.h>
#include <sys/wait.h>
#include <systemd/sd-journal.h>

#include "basic/string-util.h"
#include "run.h"
#include "token/run-token.h"

/* Retries of a bridge that is being restarted: its name is activatable, so a call waits for it; what comes back is
 * "no reply" from an instance that died with the call in hand. */
#define BRIDGE_RETRY_USEC (200 * USEC_PER_MSEC)
#define BRIDGE_TRIES_MAX 50
/* How soon the end of a run is stored again where the disk was full. */
#define FINISH_RETRY_USEC (5 * USEC_PER_SEC)

/* In the journal entry of each run's end; followers of a run's log stop at it. */
#define MESSAGE_RUN_FINISHED "2f5b1c61a1d54a0cb3c3f0a3a1f2c9d7"

static void run_settle(Run *run);
static void run_register(Run *run);
static void run_unregister(Run *run);
static void on_unit(Unit *u, UnitEvent event, const char *message, void *userdata);

void run_end_done(RunEnd *end) {
        end->message = mfree(end->message);
}

Run *run_free(Run *run) {
        if (!run)
                return NULL;
        if (run->row)
                strmap_remove(run->manager->runs, run->row->id);
        run_runner_done(run);
        worker_slot_unref(run->worker_slot);
        sd_bus_slot_unref(run->bridge_slot);
        sd_event_source_disable_unref(run->retry);
        unit_forget(run->unit); /* whoever comes next may need it */
        safe_close(run->listener_fd);
        live_run_unref(run->live);
        generation_free(run->generation);
        definition_free(run->definition);
        store_agent_free(run->agent);
        store_run_free(run->row);
        run_end_done(&run->end);
        free(run->unit_name);
        free(run->folded);
        return mfree(run);
}

static Run *run_new(Manager *m, StoreRun *row) {
        Run *run = calloc(1, sizeof *run);

        if (!run) {
                store_run_free(row);
                return NULL;
        }
        *run = (Run) { .manager = m, .row = row, .listener_fd = -EBADF, .end = RUN_END_NULL, .uid = (uid_t) -1 };
        run->t_claimed = now_monotonic();
        if (strmap_put(m->runs, row->id, run) < 0) { /* out of memory, or live already: then hands off */
                run->row = NULL;
                store_run_free(row);
                return run_free(run);
        }
        return run;
}

static void set_end(Run *run, RunResult result, bool retry, const char *format, ...) _printf_(4, 5);

static void set_end(Run *run, RunResult result, bool retry, const char *format, ...) {
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
        /* Not before: it was the proof of the end for an agentd after us. */
        run->unit = unit_free(run->unit);
        if (run->row->keep && run->end.result == RUN_RESULT_SUCCESS)
                kept_add(m, run->row->id, now);
        sd_journal_send("MESSAGE=Run %s of agent %s/%s finished: %s", run->row->id, run->row->user, run->row->agent,
                        run_result_to_string(run->end.result), "MESSAGE_ID=" MESSAGE_RUN_FINISHED, "PRIORITY=%i",
                        LOG_INFO, "AGENT_RUN=%s", run->row->id, "AGENT_NAME=%s", run->row->agent, "AGENT_USER=%s",
                        run->row->user, "AGENT_RESULT=%s", run_result_to_string(run->end.result), NULL);
        run_signal_finished(m, run->row, run->end.result, run->end.message);
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

static void run_settle(Run *run) {
        bool keep;
        int r;

        assert(run->end.result >= 0);
        if (run->phase == RUN_PHASE_SETTLE)
                return;
        run->phase = RUN_PHASE_SETTLE;
        runner_check_leave(run);
        run->t_ended = now_monotonic();
        run->listener_fd = safe_close(run->listener_fd);
        run->worker_slot = worker_slot_unref(run->worker_slot);
        run->bridge_slot = sd_bus_slot_unref(run->bridge_slot);
        run->retry = sd_event_source_disable_unref(run->retry);
        run->bridge_tries = 0;

        /* From here on the token is worth nothing, whatever the bridge does. */
        run_remove_live(run->manager, run->row->id);
        run_unregister(run);

        keep = run->row->keep && run->end.result == RUN_RESULT_SUCCESS;
        r = worker_cleanup(run->manager->worker, run->row->id, keep, on_cleanup, run, &run->worker_slot);
        if (r < 0)
                on_cleanup(r, strerror(-r), run);
}

/* The platform's fault: a retry follows where one is left. */
void run_fail(Run *run, const char *step, int error, const char *message) {
        /* A stop that meets a unit which is still being set up makes that fail. */
        if (run->row->cancel_requested)
                set_end(run, RUN_RESULT_CANCELED, false, "Canceled by %s before it began.", strempty(run->row->cancel_by));
        set_end(run, RUN_RESULT_SANDBOX_FAILED, true, "The sandbox could not be made (step %s): %s.", step,
                isempty(message) ? strerror(-error) : message);
        run_settle(run);
}

void run_end(Run *run, RunResult result, const char *message) {
        set_end(run, result, false, "%s", message);
        run_settle(run);
}

static bool bridge_error_is_transient(const sd_bus_error *e) {
        return sd_bus_error_has_names(e, SD_BUS_ERROR_NO_REPLY, SD_BUS_ERROR_DISCONNECTED, SD_BUS_ERROR_TIMEOUT,
                                      SD_BUS_ERROR_SERVICE_UNKNOWN, SD_BUS_ERROR_NAME_HAS_NO_OWNER,
                                      "org.freedesktop.systemd1.ShuttingDown",
                                      "org.freedesktop.DBus.Error.Spawn.ChildExited",
                                      "org.freedesktop.DBus.Error.NoReply") > 0;
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
static bool bridge_try_again(Run *run, const sd_bus_error *e) {
        if (!bridge_error_is_transient(e) || ++run->bridge_tries >= BRIDGE_TRIES_MAX)
                return false;
        return sd_event_add_time_relative(run->manager->event, &run->retry, CLOCK_MONOTONIC, BRIDGE_RETRY_USEC, 0,
                                          on_bridge_retry, run) >= 0;
}

static int on_unregistered(sd_bus_message *m, void *userdata, sd_bus_error *error) {
        Run *run = userdata;
        const sd_bus_error *e = sd_bus_message_get_error(m);

        run->bridge_slot = sd_bus_slot_unref(run->bridge_slot);
        if (e && bridge_try_again(run, e))
                return 0;
        if (e)
                log_warning("Run %s: the bridge did not let go of it: %s", run->row->id, e->message);
        run->bridge_done = true;
        run_maybe_finish(run);
        return 0;
}

/* The bridge answers when it has cut the run's connections and has reported every call, so that the receipt is whole. */
static void run_unregister(Run *run) {
        int r;

        r = sd_bus_call_method_async(run->manager->bus, &run->bridge_slot, "org.agentd1.Bridge", "/org/agentd1/Bridge",
                                     "org.agentd1.Bridge", "UnregisterRun", on_unregistered, run, "s", run->row->id);
        if (r < 0) {
                log_warning_errno(r, "Run %s: the bridge cannot be told: %m", run->row->id);
                run->bridge_done = true;
        }
}

/* --- watch ------------------------------------------------------------------------------------------------------ */

static void run_on_end(Run *run) {
        _cleanup_(store_run_freep) StoreRun *row = NULL;
        _cleanup_free_ char *posted = NULL;

        /* What the store knows by now: a result that was posted, a wish to cancel. */
        if (store_run_get(run->manager->store, run->row->id, &row) >= 0) {
                run->row->has_posted = row->has_posted;
                run->row->cancel_requested = row->cancel_requested;
                if (free_and_strdup(&run->row->cancel_by, row->cancel_by) < 0)
                        log_oom();
        }
        if (run->row->has_posted)
                store_run_get_posted(run->manager->store, run->row->id, &posted);
        if (run->end.result < 0) {
                UnitResult u = *unit_result(run->unit);

                run_read_exit_record(run, &u);
                run_judge(run->row, run->definition, posted, &u, &run->end);
        }
        if (unit_result(run->unit)->invocation_id[0])
                free_and_strdup(&run->row->invocation_id, unit_result(run->unit)->invocation_id);
        run_settle(run);
}

static void run_on_running(Run *run) {
        const UnitResult *u = unit_result(run->unit);
        uint64_t started = u->started_usec ?: now_realtime();
        int r;

        run->phase = RUN_PHASE_RUN;
        run->t_started = now_monotonic();
        run->row->started_usec = started;
        if (u->invocation_id[0])
                free_and_strdup(&run->row->invocation_id, u->invocation_id);
        run->deadline_usec = started + run->row->timeout_usec;
        r = store_run_set_running(run->manager->store, run->row->id, run->row->fence, u->invocation_id, started,
                                  run->deadline_usec, NULL);
        if (r < 0) {
                log_error_errno(r, "Run %s: its start cannot be stored: %s", run->row->id,
                                store_error(run->manager->store));
                set_end(run, RUN_RESULT_SANDBOX_FAILED, false, "The run's state could not be stored.");
                unit_stop(run->unit); /* UNIT_ENDED follows */
                return;
        }
        run->row->state = RUN_RUNNING;
        run_signal_changed(run->manager, run->row->id);
        if (run->row->cancel_requested)
                unit_stop(run->unit);
}

/* systemd.exec(5): 200 and above are its own, for what it could not set up before the exec. */
static bool unit_status_is_setup(const UnitResult *u) {
        return u->code == CLD_EXITED && u->status >= 200 && u->status <= 243;
}

static void on_unit(Unit *u, UnitEvent event, const char *message, void *userdata) {
        Run *run = userdata;

        switch (event) {
        case UNIT_RUNNING:
                run_on_running(run);
                break;
        case UNIT_ENDED:
                /* Taken over while it was being set up: whether its start job failed, nobody saw. */
                if (run->resumed && run->row->state == RUN_PREPARING && unit_status_is_setup(unit_result(u))) {
                        on_unit(u, UNIT_START_FAILED, "the unit could not be set up", run);
                        return;
                }
                if (run->t_started == 0) { /* over before it was seen running */
                        run->t_started = now_monotonic();
                        if (run->row->started_usec == 0)
                                run->row->started_usec = unit_result(u)->started_usec ?: now_realtime();
                }
                run_on_end(run);
                break;
        case UNIT_START_FAILED:
                if (run->row->cancel_requested) {
                        set_end(run, RUN_RESULT_CANCELED, false, "Canceled by %s before it began.",
                                strempty(run->row->cancel_by));
                        run_settle(run);
                } else
                        run_fail(run, "start", -EIO, message);
                break;
        case UNIT_GONE:
                /* Only after run_resume(): it never started, as RemainAfterExit= keeps the ones that did. */
                if (run->row->state == RUN_PREPARING)
                        set_end(run, RUN_RESULT_SANDBOX_FAILED, true, "agentd was restarted before the run began.");
                else
                        set_end(run, RUN_RESULT_LOST, false, "The run's unit disappeared without a trace.");
                run_settle(run);
                break;
        }
}

/* --- start ------------------------------------------------------------------------------------------------------ */

static void run_start(Run *run) {
        int r;

        run->phase = RUN_PHASE_START;
        run->t_registered = now_monotonic();
        if (run->row->cancel_requested) {
                set_end(run, RUN_RESULT_CANCELED, false, "Canceled by %s before it began.", strempty(run->row->cancel_by));
                run_settle(run);
                return;
        }
        r = unit_start(run->manager->systemd, run->unit_name, run_unit_properties, on_unit, run, &run->unit);
        if (r < 0) {
                run_fail(run, "start", r, NULL);
                return;
        }
        unit_hold(run->unit);
}

static int on_registered(sd_bus_message *m, void *userdata, sd_bus_error *error) {
        Run *run = userdata;
        const sd_bus_error *e = sd_bus_message_get_error(m);

        run->bridge_slot = sd_bus_slot_unref(run->bridge_slot);
        if (e) {
                if (!bridge_try_again(run, e))
                        run_fail(run, "register", -EIO, e->message);
                return 0;
        }
        run->listener_fd = safe_close(run->listener_fd); /* the bridge has its own, and PID 1 keeps it for it */
        run_start(run);
        return 0;
}

static void run_register(Run *run) {
        _cleanup_(sd_bus_message_unrefp) sd_bus_message *m = NULL;
        _cleanup_close_ int local = -EBADF, proxy = -EBADF;
        int r;

        run->phase = RUN_PHASE_REGISTER;
        r = run_open_socket(run, &local);
        if (r >= 0)
                r = run_open_proxy(run, &proxy);
        if (r < 0) {
                run_fail(run, "listen", r, NULL);
                return;
        }
        r = sd_bus_message_new_method_call(run->manager->bus, &m, "org.agentd1.Bridge", "/org/agentd1/Bridge",
                                           "org.agentd1.Bridge", "RegisterRun");
        if (r >= 0)
                r = sd_bus_message_append(m, "s", run->row->id);
        if (r >= 0)
                r = sd_bus_message_open_container(m, 'a', "(sh)");
        if (r >= 0)
                r = sd_bus_message_append(m, "(sh)", "http", run->listener_fd);
        if (r >= 0)
                r = sd_bus_message_append(m, "(sh)", "unix", local);
        if (r >= 0 && proxy >= 0)
                r = sd_bus_message_append(m, "(sh)", "proxy", proxy);
        if (r >= 0)
                r = sd_bus_message_close_container(m);
        if (r >= 0)
                r = sd_bus_call_async(run->manager->bus, &run->bridge_slot, m, on_registered, run, 0);
        if (r < 0)
                run_fail(run, "register", r, NULL);
}

/* --- prepare ---------------------------------------------------------------------------------------------------- */

static void on_prepared(int error, const char *message, int listener_fd, void *userdata) {
        Run *run = userdata;

        run->worker_slot = worker_slot_unref(run->worker_slot);
        if (error < 0) {
                const char *rest = startswith(message, "stage: ") ?: startswith(message, "purge: ");

                run_fail(run, !rest ? "compose" : message[0] == 's' ? "stage" : "purge", error, rest ?: message);
                return;
        }
        run->listener_fd = listener_fd;
        run->t_sandbox = now_monotonic();
        if (run->runner)
                run_runner_settle(run);
        else
                run_go_on(run);
}

/* The runner is settled: from here on it is this sandbox. */
void run_go_on(Run *run) {
        _cleanup_free_ char *reason = NULL;
        Manager *m = run->manager;
        int r;

        /* What is promised to the token; the unit's own limit counts from its start and is the shorter one. */
        run->deadline_usec = now_realtime() + run->row->timeout_usec + 30 * USEC_PER_SEC;
        if (free_and_strdup(&run->row->runner, run->runner ? run->runner->digest : NULL) < 0)
                log_oom();

        r = run_write_files(run, &reason);
        if (r < 0) {
                run_fail(run, "files", r, reason);
                return;
        }
        run_register(run);
        if (run->phase != RUN_PHASE_REGISTER)
                return;

        /* While the bridge takes the listener: the plan, which must be on disk before the unit can exist. */
        r = store_run_set_prepared(m->store, run->row->id, run->row->fence,
                                   &(StoreRunPlan) {
                                           .unit = run->unit_name,
                                           .boot_id = m->boot_id,
                                           .generation = run->row->generation,
                                           .environment = run->environment,
                                           .runner = run->row->runner,
                                           .runner_before = run->row->runner_before,
                                           .verdict = run->row->verdict,
                                           .policy = run->policy,
                                           .sandbox_uid = run->uid,
                                           .deadline_usec = run->deadline_usec,
                                   });
        if (r < 0)
                run_fail(run, "store", r, NULL);
}

/* Looks up all that the run is made of. A wrong piece is the owner's to mend: the run ends as failed, without retry. */
static int run_load(Run *run, char **ret_reason) {
        _cleanup_(store_generation_freep) StoreGeneration *g = NULL;
        _cleanup_json_ sd_json_variant *services = NULL;
        _cleanup_free_ char *error = NULL;
        Manager *m = run->manager;
        int r;

        r = store_agent_get(m->store, run->row->user, run->row->agent, &run->agent);
        if (r < 0) {
                *ret_reason = strdup("The agent does not exist any more");
                return r;
        }
        r = definition_parse(run->agent->definition, strlen(run->agent->definition), m->settings, DEFINITION_STORED,
                             &run->definition, &error);
        if (r < 0) {
                *ret_reason = strprintf("The agent's definition is not valid any more: %s", strempty(error));
                return r;
        }
        r = store_generation_get(m->store, run->row->user, run->row->agent, run->agent->head, &g);
        if (r >= 0 && !g->manifest)
                r = -ENODATA;
        if (r >= 0)
                r = generation_decode(g->manifest, strlen(g->manifest), &run->generation, &error);
        if (r >= 0)
                r = generation_environment_digest(run->generation, run->environment);
        if (r >= 0)
                r = free_and_strdup(&run->row->generation, g->digest);
        if (r < 0) {
                *ret_reason = strprintf("The agent's environment cannot be read: %s", error ?: strerror(-r));
                return r;
        }

        r = live_run_new(&run->live);
        if (r < 0)
                return r;
        for (char **s = run->definition->services; s && *s; s++) {
                _cleanup_(store_service_freep) StoreService *row = NULL;
                _cleanup_(service_unrefp) Service *service = NULL;

                r = store_service_get(m->store, run->row->user, *s, &row);
                if (r < 0) {
                        *ret_reason = strprintf("The service %s does not exist any more", *s);
                        return r;
                }
                r = service_parse(row->definition, strlen(row->definition), 0, &service, &error);
                if (r < 0) {
                        *ret_reason = strprintf("The service %s is not valid any more: %s", *s, strempty(error));
                        return r;
                }
                r = sd_json_variant_set_field(&services, *s, service->definition);
                if (r >= 0)
                        r = live_run_add_service(run->live, service);
                if (r < 0)
                        return r;
        }
        return definition_policy(run->definition, services, NULL, run->policy);
}

/* Where the definition says that its programs keep compiled code; not read by the runner, but stale with it. */
static const char *compile_cache(const Definition *d) {
        for (char *const *e = d->environment; e && *e; e++)
                if (startswith(*e, "NODE_COMPILE_CACHE="))
                        return startswith(*e, "NODE_COMPILE_CACHE=");
        return NULL;
}

void run_compose(Run *run) {
        _cleanup_strv_free_ char **layers = NULL;
        int r;

        run->phase = RUN_PHASE_SANDBOX;
        run->composed++;
        r = generation_layers(run->generation, &layers);
        if (r >= 0)
                r = worker_prepare(run->manager->worker,
                                   &(SandboxSpec) {
                                           .run = run->row->id,
                                           .layers = (const char *const *) layers,
                                           .uid = run->uid,
                                           .disk_max = run->definition->limits.disk,
                                           .memory_max = run->definition->limits.memory,
                                           .cpus = (unsigned) ((run->definition->limits.cpu + 999999) / 1000000),
                                           .runner = run->runner ? run->runner->digest : NULL,
                                           .purge = run->swapped,
                                           .compile_cache = compile_cache(run->definition),
                                           .hostname = run->definition->name,
                                   },
                                   on_prepared, run, &run->worker_slot);
        if (r < 0)
                run_fail(run, "compose", r, NULL);
}

static void on_thrown_away(int error, const char *message, void *userdata) {
        Run *run = userdata;

        run->worker_slot = worker_slot_unref(run->worker_slot);
        if (error < 0)
                run_fail(run, "compose", error, message);
        else
                run_compose(run);
}

void run_compose_again(Run *run) {
        int r;

        run->phase = RUN_PHASE_SANDBOX;
        run->listener_fd = safe_close(run->listener_fd);
        r = worker_cleanup(run->manager->worker, run->row->id, false, on_thrown_away, run, &run->worker_slot);
        if (r < 0)
                run_fail(run, "compose", r, NULL);
}

void run_begin(Manager *m, StoreRun *row) {
        _cleanup_free_ char *reason = NULL;
        Run *run;
        int r;

        run = run_new(m, row);
        if (!run) {
                log_oom();
                return;
        }
        run_signal_changed(m, row->id);
        r = run_load(run, &reason);
        if (r < 0) {
                set_end(run, RUN_RESULT_FAILED, false, "%s.", reason ?: strerror(-r));
                run_settle(run);
                return;
        }
        if (run->definition->kind != AGENT_EXEC) {
                r = run_runner_load(run, &reason);
                if (r >= 0)
                        r = run_runner_select(run, &reason);
                if (r < 0) {
                        /* No fresh sandbox would change that. */
                        set_end(run, RUN_RESULT_SANDBOX_FAILED, false, "The sandbox could not be made (step stage): %s.",
                                reason ?: strerror(-r));
                        run_settle(run);
                        return;
                }
        }

        /* A retry is a new unit: names are never used twice, so leftovers of an earlier attempt cannot clash. */
        run->unit_name = row->attempt > 1 ? strprintf("agent-run-%s-%u.service", row->id, row->attempt)
                                          : strprintf("agent-run-%s.service", row->id);
        if (row->timeout_usec == 0 || row->timeout_usec > run->definition->limits.timeout_usec)
                row->timeout_usec = run->definition->limits.timeout_usec;
        run->uid = manager_pick_uid(m);
        if (!run->unit_name || run->uid == (uid_t) -1)
                run_fail(run, "compose", -EBUSY, NULL);
        else
                run_compose(run);
}

void run_resume(Manager *m, StoreRun *row) {
        _cleanup_free_ char *reason = NULL;
        char *unit = row->unit;
        Run *run;
        int r;

        run = run_new(m, row);
        if (!run) {
                log_oom();
                return;
        }
        run->resumed = true;
        run->uid = row->sandbox_uid;
        run->deadline_usec = row->deadline_usec;
        snprintf(run->policy, sizeof run->policy, "%s", strempty(row->policy));
        snprintf(run->environment, sizeof run->environment, "%s", strempty(row->environment));
        run->t_claimed = 0;
        run->phase = row->state == RUN_RUNNING ? RUN_PHASE_RUN : RUN_PHASE_START;

        /* The definition may have changed since; only its kind matters from here on. */
        r = store_agent_get(m->store, row->user, row->agent, &run->agent);
        if (r >= 0)
                r = definition_parse(run->agent->definition, strlen(run->agent->definition), m->settings,
                                     DEFINITION_STORED, &run->definition, &reason);
        if (r < 0)
                log_warning_errno(r, "Run %s: its agent cannot be read: %m", row->id);

        run->unit_name = strdup(strempty(unit));
        if (!run->unit_name || isempty(unit)) {
                set_end(run, RUN_RESULT_SANDBOX_FAILED, true, "agentd was restarted before the run began.");
                run_settle(run);
                return;
        }
        r = unit_attach(m->systemd, unit, on_unit, run, &run->unit);
        if (r < 0) {
                log_error_errno(r, "Run %s: its unit cannot be watched: %m", row->id);
                set_end(run, RUN_RESULT_LOST, false, "The run's unit could not be found again.");
                run_settle(run);
                return;
        }
        unit_hold(run->unit);
}

void run_cancel(Run *run) {
        run->row->cancel_requested = true;
        switch (run->phase) {
        case RUN_PHASE_SANDBOX:
        case RUN_PHASE_RUNNER:
        case RUN_PHASE_REGISTER:
                set_end(run, RUN_RESULT_CANCELED, false, "Canceled before it began.");
                run_settle(run);
                break;
        case RUN_PHASE_START:
        case RUN_PHASE_RUN:
                unit_stop(run->unit);
                break;
        case RUN_PHASE_SETTLE:
                break;
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
        return 0;
}
