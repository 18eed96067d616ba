/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The pipeline of one run up to its end: prepare, start, watch. Each step is asynchronous and ends in the next one's
 * function; every failure ends in run_fail(), every end in run_settle() (run-settle.c). There is no other way out.
 */
#include <sys/wait.h>

#include "basic/string-util.h"
#include "run.h"

static void on_unit(Unit *u, UnitEvent event, const char *message, void *userdata);

Run *run_free(Run *run) {
        if (!run)
                return NULL;
        if (run->row)
                strmap_remove(run->manager->runs, run->row->id);
        run_runner_done(run);
        run_verify_done(run);
        worker_slot_unref(run->worker_slot);
        sd_bus_slot_unref(run->bridge_slot);
        sd_event_source_disable_unref(run->retry);
        sd_event_source_disable_unref(run->limit);
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
                if (run->out_of_time)
                        snprintf(u.result, sizeof u.result, "timeout");
                run_judge(run->row, run->definition, posted, &u, &run->end);
        }
        if (unit_result(run->unit)->invocation_id[0])
                free_and_strdup(&run->row->invocation_id, unit_result(run->unit)->invocation_id);
        if (!run_verify_end(run))
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
                run_set_end(run, RUN_RESULT_SANDBOX_FAILED, false, "The run's state could not be stored.");
                unit_stop(run->unit); /* UNIT_ENDED follows */
                return;
        }
        run->row->state = RUN_RUNNING;
        run_signal_changed(run->manager, run->row->id);
        if (run->row->cancel_requested)
                unit_stop(run->unit);
}

static int on_limit(sd_event_source *s, uint64_t usec, void *userdata) {
        Run *run = userdata;

        run->limit = sd_event_source_disable_unref(run->limit);
        run->out_of_time = true;
        unit_stop(run->unit);
        return 0;
}

/* PID 1 has lost sight of its program, which goes on. */
static void run_keep_time(Run *run) {
        uint64_t now = now_realtime();
        int r;

        log_warning("Run %s: PID 1 has lost sight of it; it goes on.", run->row->id);
        r = sd_event_add_time_relative(run->manager->event, &run->limit, CLOCK_MONOTONIC,
                                       run->deadline_usec > now ? run->deadline_usec - now : 0, 0, on_limit, run);
        if (r < 0) {
                log_error_errno(r, "Run %s: its time cannot be kept, so it is ended: %m", run->row->id);
                unit_stop(run->unit);
        }
}

static void on_unit(Unit *u, UnitEvent event, const char *message, void *userdata) {
        const uint64_t limit = unit_result(u)->runtime_max_usec;
        Run *run = userdata;

        /* What holds is what its unit was given; the row has only what its caller asked for. */
        if (run->resumed && limit != 0 && limit != UINT64_MAX)
                run->row->timeout_usec = limit;
        switch (event) {
        case UNIT_RUNNING:
                run_on_running(run);
                break;
        case UNIT_ADRIFT:
                run_keep_time(run);
                break;
        case UNIT_ENDED:
                /* Taken over while it was being set up: whether its start job failed, nobody saw. */
                if ((run->resumed && run->row->state == RUN_PREPARING && unit_result_is_setup(unit_result(u))) ||
                    run_never_began(run, unit_result(u))) {
                        on_unit(u, UNIT_START_FAILED, "the unit could not be set up", run);
                        return;
                }
                if (run->t_started == 0) { /* over before it was seen running */
                        run->t_started = now_monotonic();
                        if (run->row->started_usec == 0)
                                run->row->started_usec = unit_result(u)->started_usec ?: now_realtime();
                        /* Its own property is to say the same as its receipt; where it cannot be stored, the end
                         * cannot. */
                        (void) store_run_set_running(run->manager->store, run->row->id, run->row->fence,
                                                     unit_result(u)->invocation_id, run->row->started_usec, 0, NULL);
                }
                run_on_end(run);
                break;
        case UNIT_START_FAILED:
                if (run->row->cancel_requested) {
                        run_set_end(run, RUN_RESULT_CANCELED, false, "Canceled by %s before it began.",
                                strempty(run->row->cancel_by));
                        run_settle(run);
                } else
                        run_fail(run, "start", -EIO, message);
                break;
        case UNIT_GONE:
                /* Only after run_resume(): it never started, as RemainAfterExit= keeps the ones that did. */
                if (run->row->state == RUN_PREPARING)
                        run_set_end(run, RUN_RESULT_SANDBOX_FAILED, true, "agentd was restarted before the run began.");
                else
                        run_set_end(run, RUN_RESULT_LOST, false, "The run's unit disappeared without a trace.");
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
                run_set_end(run, RUN_RESULT_CANCELED, false, "Canceled by %s before it began.",
                            strempty(run->row->cancel_by));
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
                if (!run_bridge_try_again(run, e))
                        run_fail(run, "register", -EIO, e->message);
                return 0;
        }
        run->listener_fd = safe_close(run->listener_fd); /* the bridge has its own, and PID 1 keeps it for it */
        run_start(run);
        return 0;
}

void run_register(Run *run) {
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
        r = sd_bus_message_new_method_call(run->manager->calls, &m, "org.agentd1.Bridge", "/org/agentd1/Bridge",
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
                r = sd_bus_call_async(run->manager->calls, &run->bridge_slot, m, on_registered, run, 0);
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
        /* Of the first one: others, which follow where its runner is refused, are part of finding a runner. */
        if (run->t_sandbox == 0)
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
                                           .verified = run->row->verified,
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

void run_compose_now(Run *run) {
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
                run_set_end(run, RUN_RESULT_FAILED, false, "%s.", reason ?: strerror(-r));
                run_settle(run);
                return;
        }
        if (run->definition->kind != AGENT_EXEC) {
                r = run_runner_load(run, &reason);
                if (r >= 0)
                        r = run_runner_select(run, &reason);
                if (r < 0) {
                        /* No fresh sandbox would change that. */
                        run_set_end(run, RUN_RESULT_SANDBOX_FAILED, false,
                                    "The sandbox could not be made (step stage): %s.", reason ?: strerror(-r));
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
                run_set_end(run, RUN_RESULT_SANDBOX_FAILED, true, "agentd was restarted before the run began.");
                run_settle(run);
                return;
        }
        r = unit_attach(m->systemd, unit, on_unit, run, &run->unit);
        if (r < 0) {
                log_error_errno(r, "Run %s: its unit cannot be watched: %m", row->id);
                run_set_end(run, RUN_RESULT_LOST, false, "The run's unit could not be found again.");
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
                run_set_end(run, RUN_RESULT_CANCELED, false, "Canceled before it began.");
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
