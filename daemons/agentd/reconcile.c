/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * After a start: the store says what was live, PID 1 says what is, the worker and the bridge say what is left. No run
 * dies by our absence, none is started twice, nothing without a run stays.
 *
 * The units of operations, but for sessions in edits, end with the agentd that began them. What they worked on is
 * looked at, and taken away, only when the last of them is over: one that is still being stopped goes on writing.
 */
#include <dirent.h>
#include <fcntl.h>

#include "basic/fs-util.h"
#include "basic/string-util.h"
#include "edit-session.h"
#include "environment.h"
#include "operation.h"
#include "run.h"

#define RESTART_ATTEMPTS_MAX 20U
/* More than the units' own TimeoutStopSec=. */
#define STRAGGLERS_USEC (20 * USEC_PER_SEC)

static void on_cleaned(int error, const char *message, void *userdata) {
        if (error < 0)
                log_error_errno(error, "Leftovers of a run cannot be taken away: %s", message);
}

static void on_worker_list(int error, const char *message, const WorkerRun *runs, size_t n, void *userdata) {
        Manager *m = userdata;

        if (error < 0) {
                log_error_errno(error, "The leftovers of earlier runs cannot be listed: %s", message);
                n = 0;
        }
        for (size_t i = 0; i < n; i++) {
                _cleanup_(store_run_freep) StoreRun *row = NULL;

                if (strmap_get(m->runs, runs[i].id) || edit_session_has_id(m, runs[i].id))
                        continue;
                /* The changes of a finished "keep" run are wanted until they are frozen or too old. */
                if (runs[i].upper && !runs[i].composed && store_run_get(m->store, runs[i].id, &row) >= 0 && row->keep &&
                    row->state == RUN_FINISHED && row->result == RUN_RESULT_SUCCESS &&
                    kept_add(m, row, row->finished_usec) >= 0)
                        continue;
                if (worker_cleanup(m->worker, runs[i].id, false, on_cleaned, NULL, NULL) < 0)
                        log_oom();
        }
        manager_reconciled(m);
}

/* Live files of runs that are not live: their tokens would still be good. */
static void remove_stale_live_files(Manager *m) {
        DIR *d = opendir(LIVE_DIRECTORY);
        struct dirent *de;

        if (!d)
                return;
        while ((de = readdir(d))) {
                char id[RUN_ID_LEN + 1];

                snprintf(id, sizeof id, "%.*s", RUN_ID_LEN, de->d_name);
                if (run_id_is_valid(id) && !strmap_get(m->runs, id) && !edit_session_has_id(m, id))
                        live_run_remove(LIVE_DIRECTORY, id);
        }
        closedir(d);
}

/* Of runs whose end is stored. */
static void remove_stale_exit_records(Manager *m) {
        DIR *d = opendir(ENDED_DIRECTORY);
        struct dirent *de;

        if (!d)
                return;
        while ((de = readdir(d)))
                if (run_id_is_valid(de->d_name) && !strmap_get(m->runs, de->d_name))
                        run_drop_exit_record(de->d_name);
        closedir(d);
}

static int on_bridge_list(sd_bus_message *msg, void *userdata, sd_bus_error *error) {
        Manager *m = userdata;
        const char *id;

        if (sd_bus_message_get_error(msg) || sd_bus_message_enter_container(msg, 'a', "s") < 0)
                return 0; /* the bridge itself drops those whose live file is gone when it starts */
        while (sd_bus_message_read(msg, "s", &id) > 0)
                if (!strmap_get(m->runs, id) && !edit_session_has_id(m, id))
                        sd_bus_call_method_async(m->calls, NULL, "org.agentd1.Bridge", "/org/agentd1/Bridge",
                                                 "org.agentd1.Bridge", "UnregisterRun", NULL, NULL, "s", id);
        return 0;
}

static int collect_row(const StoreRun *row, void *userdata) {
        return strv_extend(userdata, row->id);
}

static void end_row(Manager *m, StoreRun *row, RunResult result, const char *message) {
        RunEnd end = RUN_END_NULL;
        int r;

        end.result = result;
        end.message = strdup(message);
        r = run_finish_row(m, row, &end);
        if (r < 0)
                log_error_errno(r, "Run %s: cannot be ended: %m", row->id);
        run_end_done(&end);
        store_run_free(row);
}

static void reconcile_row(Manager *m, StoreRun *row) {
        bool same_boot = streq_ptr(row->boot_id, m->boot_id);
        int r = 0;

        if (row->state == RUN_QUEUED) {
                if (row->cancel_requested) /* noted, but not carried out */
                        end_row(m, row, RUN_RESULT_CANCELED, "Canceled while it was queued.");
                else
                        store_run_free(row);
                return;
        }
        if (!row->unit || (row->state == RUN_PREPARING && !same_boot)) {
                /* Its unit was never asked for, or PID 1 forgot about it before it ran: a new attempt. Restarts are not
                 * the run's fault, so they do not count as MaxAttempts= does; but a run that brings agentd down each
                 * time must not do so for ever. */
                if (row->attempt >= RESTART_ATTEMPTS_MAX) {
                        end_row(m, row, RUN_RESULT_SANDBOX_FAILED,
                                "agentd was restarted too often before the run began.");
                        return;
                }
                r = store_run_requeue(m->store, row->id, row->fence, "agentd was restarted before the run began.", 0);
                if (r < 0)
                        log_error_errno(r, "Run %s: cannot be queued again: %m", row->id);
                store_run_free(row);
                return;
        }
        if (!same_boot) {
                end_row(m, row, RUN_RESULT_LOST, "The host was restarted while the run was live.");
                return;
        }
        run_resume(m, row);
}

/* --- what earlier operations left ------------------------------------------------------------------------------- */

/* Layers that were published, but what they were for was never committed; and half-made ones. */
static void clean_store(Manager *m) {
        _cleanup_strv_free_ char **published = NULL, **busy = NULL;
        Operation *o;
        int r;

        r = layer_store_noted(m->layers, &published);
        if (r >= 0)
                r = environment_drop_layers(m, published);
        if (r < 0)
                log_warning_errno(r, "Layers that nobody came to need cannot be removed: %m");
        r = environment_drop_documents(m);
        if (r < 0)
                log_warning_errno(r, "Documents of generations that nobody has cannot be removed: %m");
        /* The shipped runner may be on its way in by now. */
        r = 0;
        for (size_t i = 0; r >= 0 && (o = strmap_next(m->operations, &i));)
                if (o->staging)
                        r = strv_extend(&busy, o->staging);
        if (r >= 0)
                r = layer_store_clean_staging(m->layers, busy);
        if (r < 0)
                log_warning_errno(r, "Half-made layers cannot be removed: %m");
        environment_reserve();
}

struct Stragglers {
        Manager *manager;
        Unit **units;
        size_t n, over;
        sd_event_source *source; /* the deadline, or the turn in which nothing is left to wait for */
};

Stragglers *stragglers_free(Stragglers *s) {
        if (!s)
                return NULL;
        for (size_t i = 0; i < s->n; i++)
                unit_free(s->units[i]);
        free(s->units);
        sd_event_source_disable_unref(s->source);
        return mfree(s);
}

static void stragglers_over(Stragglers *s) {
        Manager *m = s->manager;

        m->stragglers = stragglers_free(s);
        clean_store(m);
        /* Nothing is claimed, and nobody is heard, before the leftovers are known (on_worker_list). */
        if (worker_list(m->worker, on_worker_list, m, NULL) < 0)
                on_worker_list(-ENOMEM, "out of memory", NULL, 0, m);
}

static int on_stragglers_late(sd_event_source *e, uint64_t usec, void *userdata) {
        Stragglers *s = userdata;

        log_warning("Units of earlier operations do not end; going on without them.");
        stragglers_over(s);
        return 0;
}

static int on_stragglers_none(sd_event_source *e, void *userdata) {
        stragglers_over(userdata);
        return 0;
}

/* In a turn of its own, since the unit that tells of its end is freed then. */
static int stragglers_over_soon(Stragglers *s) {
        s->source = sd_event_source_disable_unref(s->source);
        return sd_event_add_defer(s->manager->event, &s->source, on_stragglers_none, s);
}

static void on_straggler(Unit *u, UnitEvent event, const char *message, void *userdata) {
        Stragglers *s = userdata;

        if (event != UNIT_RUNNING && ++s->over >= s->n && stragglers_over_soon(s) < 0)
                log_oom(); /* the deadline is still there */
}

static int stop_operations(Manager *m) {
        _cleanup_strv_free_ char **names = NULL;
        Stragglers *s = calloc(1, sizeof *s);
        int r;

        if (!s)
                return -ENOMEM;
        m->stragglers = s;
        s->manager = m;
        r = systemd_client_list(m->systemd, "agent-op-*.service", &names);
        if (r < 0)
                log_warning_errno(r, "Units of earlier operations cannot be listed: %m");
        s->units = calloc(strv_length(names) + 1, sizeof *s->units);
        if (!s->units)
                return -ENOMEM;
        for (char **n = names; n && *n; n++) {
                Unit **u = &s->units[s->n];

                if (edit_session_has_unit(m, *n))
                        continue;
                log_info("Unit %s belongs to an operation of an earlier agentd and is stopped.", *n);
                r = unit_attach(m->systemd, *n, on_straggler, s, u);
                if (r < 0) {
                        log_warning_errno(r, "%s cannot be watched: %m", *n);
                        systemd_client_stop(m->systemd, *n);
                        continue;
                }
                s->n++;
                r = unit_stop(*u);
                if (r < 0)
                        log_warning_errno(r, "%s cannot be stopped: %m", *n);
        }
        return s->n > 0 ? sd_event_add_time_relative(m->event, &s->source, CLOCK_MONOTONIC, STRAGGLERS_USEC, 0,
                                                     on_stragglers_late, s) :
                          stragglers_over_soon(s);
}

static void stop_strange_units(Manager *m) {
        static const char *const patterns[] = { "agent-run-*.service", "agent-check-*.service" };

        for (size_t i = 0; i < ELEMENTSOF(patterns); i++) {
                _cleanup_strv_free_ char **names = NULL;
                int r;

                r = systemd_client_list(m->systemd, patterns[i], &names);
                if (r < 0) {
                        log_warning_errno(r, "Units %s cannot be listed: %m", patterns[i]);
                        continue;
                }
                for (char **n = names; *n; n++) {
                        char id[RUN_ID_LEN + 1];
                        const char *p = startswith(*n, "agent-run-");
                        Run *run;

                        snprintf(id, sizeof id, "%.*s", RUN_ID_LEN, strempty(p));
                        run = p ? strmap_get(m->runs, id) : NULL;
                        if (run && streq_ptr(run->unit_name, *n))
                                continue;
                        log_warning("Unit %s belongs to nothing that is known here and is stopped.", *n);
                        systemd_client_stop(m->systemd, *n);
                }
        }
}

int manager_reconcile(Manager *m) {
        _cleanup_strv_free_ char **ids = NULL;
        int r;

        ids = calloc(1, sizeof(char *));
        if (!ids)
                return -ENOMEM;
        r = store_runs_unfinished(m->store, collect_row, &ids);
        if (r < 0)
                return log_error_errno(r, "Unfinished runs cannot be read: %s", store_error(m->store));
        for (char **id = ids; *id; id++) {
                StoreRun *row;

                r = store_run_get(m->store, *id, &row);
                if (r < 0)
                        log_error_errno(r, "Run %s: cannot be read: %m", *id);
                else
                        reconcile_row(m, row);
        }
        r = edit_sessions_resume(m);
        if (r < 0)
                return log_error_errno(r, "The sessions in environments cannot be found again: %m");
        remove_stale_live_files(m);
        remove_stale_exit_records(m);
        stop_strange_units(m);
        sd_bus_call_method_async(m->calls, NULL, "org.agentd1.Bridge", "/org/agentd1/Bridge", "org.agentd1.Bridge",
                                 "ListRegistered", on_bridge_list, m, NULL);
        return stop_operations(m);
}
