/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Making, starting and freeing the Manager, and the dispatcher that claims runs from the queue. */
#include <grp.h>
#include <pwd.h>
#include <signal.h>
#include <sys/stat.h>
#include <systemd/sd-daemon.h>
#include <systemd/sd-id128.h>
#include <time.h>

#include "basic/fs-util.h"
#include "basic/landlock.h"
#include "basic/string-util.h"
#include "bus-util.h"
#include "environment.h"
#include "key-store.h"
#include "operation.h"
#include "retention.h"
#include "run.h"
#include "runner-deploy.h"

uint64_t now_realtime(void) {
        struct timespec ts;

        clock_gettime(CLOCK_REALTIME, &ts);
        return (uint64_t) ts.tv_sec * USEC_PER_SEC + (uint64_t) ts.tv_nsec / NSEC_PER_USEC;
}

uint64_t now_monotonic(void) {
        struct timespec ts;

        clock_gettime(CLOCK_MONOTONIC, &ts);
        return (uint64_t) ts.tv_sec * USEC_PER_SEC + (uint64_t) ts.tv_nsec / NSEC_PER_USEC;
}

/* --- dispatcher ------------------------------------------------------------------------------------------------- */

static int on_queue_timer(sd_event_source *s, uint64_t usec, void *userdata) {
        manager_dispatch_soon(userdata);
        return 0;
}

static void arm_queue_timer(Manager *m) {
        uint64_t next;

        if (store_queue_next(m->store, &next) < 0 || next == 0)
                return;
        if (m->queue_timer) {
                sd_event_source_set_time(m->queue_timer, next);
                sd_event_source_set_enabled(m->queue_timer, SD_EVENT_ONESHOT);
        } else if (sd_event_add_time(m->event, &m->queue_timer, CLOCK_REALTIME, next, 0, on_queue_timer, m) < 0)
                log_oom();
}

/* One run per loop turn, so that a burst of calls does not keep replies, signals and ends waiting. */
static int on_dispatch(sd_event_source *s, void *userdata) {
        Manager *m = userdata;
        StoreRun *row;
        int r;

        if (!m->reconciled || !m->runners_ready) {
                sd_event_source_set_enabled(s, SD_EVENT_OFF);
                return 0;
        }
        r = store_run_claim(m->store,
                            &(StoreLiveLimits) { .live = m->settings->max_live,
                                                 .live_per_user = m->settings->max_live_per_user },
                            &row);
        if (r < 0)
                log_error_errno(r, "The queue cannot be read: %s", store_error(m->store));
        if (r <= 0) {
                sd_event_source_set_enabled(s, SD_EVENT_OFF);
                arm_queue_timer(m);
                return 0;
        }
        run_begin(m, row);
        return 0;
}

void manager_dispatch_soon(Manager *m) {
        sd_event_source_set_enabled(m->dispatch_source, SD_EVENT_ON);
}

uid_t manager_pick_uid(Manager *m) {
        for (uid_t tries = SANDBOX_UID_MAX - SANDBOX_UID_MIN + 1; tries > 0; tries--) {
                uid_t uid = m->next_uid;
                bool used = false;
                Run *run;

                m->next_uid = uid >= SANDBOX_UID_MAX ? SANDBOX_UID_MIN : uid + 1;
                for (size_t i = 0; !used && (run = strmap_next(m->runs, &i));)
                        used = run->uid == uid;
                /* systemd keeps a file for each dynamic uid that it has given out (to anybody). */
                if (!used) {
                        char path[64];

                        snprintf(path, sizeof path, "/run/systemd/dynamic-uid/%u", (unsigned) uid);
                        if (access(path, F_OK) < 0)
                                return uid;
                }
        }
        return (uid_t) -1;
}

/* --- life ------------------------------------------------------------------------------------------------------- */

static int on_signal(sd_event_source *s, const struct signalfd_siginfo *si, void *userdata) {
        /* Nothing to finish: runs are PID 1's, every state is on disk, and whoever comes next reconciles. */
        sd_notify(false, "STOPPING=1");
        return sd_event_exit(sd_event_source_get_event(s), 0);
}

static void warn_of_kernel(void) {
        if (landlock_abi() < LANDLOCK_ABI_SCOPES)
                log_warning(
                        "There is no Landlock with scopes here (it needs Linux 6.12, must not be left out of lsm= on the "
                        "kernel's command line, and not be withheld by a container's filter): an agent's program can "
                        "read, change and kill the process of the runner that started it.");
}

int manager_new(Manager **ret) {
        _cleanup_(manager_freep) Manager *m = calloc(1, sizeof *m);
        sigset_t mask;
        int r;

        if (!m)
                return -ENOMEM;
        m->runs = strmap_new();
        m->operations = strmap_new();
        m->kept = strmap_new();
        m->checks = strmap_new();
        m->edits = strmap_new();
        m->layer_checks = strmap_new();
        if (!m->layer_checks || !m->runs || !m->operations || !m->kept || !m->checks || !m->edits)
                return -ENOMEM;
        m->next_uid = SANDBOX_UID_MIN + (uid_t) (now_realtime() % (SANDBOX_UID_MAX - SANDBOX_UID_MIN));
        /* So that no operation gets the name of one of an earlier agentd, whose end a client may still wait for. */
        m->last_operation = now_realtime() / USEC_PER_MSEC; /* more than one in a second may come before a restart */
        sigemptyset(&mask);
        sigaddset(&mask, SIGTERM);
        sigaddset(&mask, SIGINT);
        sigaddset(&mask, SIGCHLD);
        if (sigprocmask(SIG_BLOCK, &mask, NULL) < 0)
                return -errno;
        signal(SIGPIPE, SIG_IGN);
        r = sd_event_default(&m->event);
        if (r >= 0)
                r = sd_event_add_signal(m->event, NULL, SIGTERM, on_signal, m);
        if (r >= 0)
                r = sd_event_add_signal(m->event, NULL, SIGINT, on_signal, m);
        if (r >= 0)
                r = sd_event_add_defer(m->event, &m->dispatch_source, on_dispatch, m);
        if (r >= 0)
                r = sd_event_source_set_enabled(m->dispatch_source, SD_EVENT_OFF);
        if (r >= 0)
                r = sd_event_source_set_priority(m->dispatch_source, SD_EVENT_PRIORITY_IDLE);
        if (r >= 0)
                r = sd_event_set_watchdog(m->event, true);
        if (r < 0)
                return r;
        *ret = TAKE_PTR(m);
        return 0;
}

Manager *manager_free(Manager *m) {
        Operation *o;
        Run *run;

        if (!m)
                return NULL;
        /* Runs and operations go before what they use; nothing is undone by freeing them. */
        if (m->checks)
                runner_checks_free_all(m);
        if (m->layer_checks)
                layer_checks_free_all(m);
        while ((run = m->runs ? strmap_first(m->runs) : NULL))
                run_free(run);
        while ((o = m->operations ? strmap_first(m->operations) : NULL))
                operation_free(o);
        stragglers_free(m->stragglers);
        log_streams_free_all(m);
        approvals_free_all(m);
        retention_free(m);
        if (m->kept)
                kept_free_all(m);
        edits_free(m);
        sd_event_source_disable_unref(m->dispatch_source);
        sd_event_source_disable_unref(m->queue_timer);
        bus_polkit_free(m->polkit);
        systemd_client_free(m->systemd);
        worker_free(m->worker);
        store_run_free(m->found_run);
        store_agent_free(m->found_agent);
        sd_bus_flush_close_unref(m->calls);
        sd_bus_flush_close_unref(m->bus);
        runner_set_done(&m->runners);
        signing_key_free(m->key);
        store_free(m->store);
        layer_store_free(m->layers);
        settings_free(m->settings);
        strmap_free(m->runs);
        strmap_free(m->operations);
        strmap_free(m->kept);
        strmap_free(m->checks);
        strmap_free(m->layer_checks);
        strmap_free(m->edits);
        sd_event_unref(m->event);
        return mfree(m);
}

static int make_directories(Manager *m) {
        struct passwd *pw = getpwnam("agent-bridge");
        int r = 0;

        if (!pw)
                return log_error_errno(-ESRCH, "There is no user agent-bridge; run systemd-sysusers.");
        m->bridge_uid = pw->pw_uid;
        m->bridge_gid = pw->pw_gid;
        for (const char *const *d = (const char *const[]) { AGENTD_STATE_DIR, AGENTD_STATE_DIR "/artifacts",
                                                             AGENTD_RUNTIME_DIR "/runs", ENDED_DIRECTORY, LIVE_DIRECTORY, NULL };
             *d && r >= 0; d++)
                r = mkdir_parents(*d, 0700);
        if (r >= 0 && (chmod(AGENTD_RUNTIME_DIR, 0755) < 0 || chown(LIVE_DIRECTORY, 0, m->bridge_gid) < 0 ||
                       chmod(LIVE_DIRECTORY, 0750) < 0))
                r = -errno;
        if (r < 0)
                return log_error_errno(r, "Directories cannot be made: %m");
        return 0;
}

static int read_boot_id(Manager *m) {
        sd_id128_t id;
        int r;

        r = sd_id128_get_boot(&id);
        if (r < 0)
                return log_error_errno(r, "The boot id cannot be read: %m");
        sd_id128_to_string(id, m->boot_id);
        return 0;
}

static int on_disconnected(sd_bus_message *msg, void *userdata, sd_bus_error *e) {
        Manager *m = userdata;

        log_error("The bus is gone; ending, to be started again.");
        sd_event_exit(m->event, EXIT_FAILURE);
        return 0;
}

static int connect_one(Manager *m, sd_bus **ret, const char *description, int64_t priority) {
        int r;

        r = sd_bus_open_system_with_description(ret, description);
        if (r >= 0)
                r = sd_bus_attach_event(*ret, m->event, priority);
        if (r >= 0)
                r = sd_bus_match_signal(*ret, NULL, "org.freedesktop.DBus.Local", "/org/freedesktop/DBus/Local",
                                        "org.freedesktop.DBus.Local", "Disconnected", on_disconnected, m);
        return r;
}

/* Whoever calls us as fast as they can fills the queue of the connection that has our name, and all else that comes by
 * it waits. What we ask of PID 1 and the bridge has a connection of its own, so that the runs of others go on. */
static int connect_bus(Manager *m) {
        int r;

        r = connect_one(m, &m->bus, "agentd", SD_EVENT_PRIORITY_NORMAL);
        if (r >= 0)
                r = connect_one(m, &m->calls, "agentd-calls", SD_EVENT_PRIORITY_NORMAL - 1);
        if (r >= 0)
                r = sd_bus_negotiate_creds(m->bus, true, SD_BUS_CREDS_EUID);
        if (r >= 0)
                r = bus_polkit_new(m->bus, &m->polkit);
        if (r >= 0)
                r = systemd_client_new(m->calls, &m->systemd);
        if (r < 0)
                return log_error_errno(r, "The system bus cannot be used: %m");
        return 0;
}

int manager_startup(Manager *m) {
        _cleanup_free_ char *error = NULL;
        int r;

        r = settings_load("agentd.conf", &m->settings, &error);
        if (r < 0)
                return log_error_errno(r, "agentd.conf: %s", error ?: strerror(-r));
        warn_of_kernel();
        r = read_boot_id(m);
        if (r >= 0)
                r = make_directories(m);
        if (r < 0)
                return r;
        r = store_open_sqlite(AGENTD_STATE_DIR "/store.db", &m->store, &error);
        if (r == -ENOSPC) { /* so that there is somebody to ask for a prune */
                environment_use_reserve();
                error = mfree(error);
                r = store_open_sqlite(AGENTD_STATE_DIR "/store.db", &m->store, &error);
        }
        if (r < 0)
                return log_error_errno(r, "The store cannot be opened: %s", error ?: strerror(-r));
        r = layer_store_open(AGENTD_STATE_DIR, &m->layers);
        if (r < 0)
                return log_error_errno(r, "The store of layers cannot be opened: %m");
        r = edits_load(m);
        if (r < 0)
                return log_error_errno(r, "The edits of environments cannot be read: %m");
        r = key_store_load(&m->key, &m->key_state);
        if (r < 0)
                return r;
        r = worker_new(m->event, NULL, &m->worker);
        if (r < 0)
                return log_error_errno(r, "The worker cannot be started: %m");
        r = connect_bus(m);
        if (r < 0)
                return r;
        /* Watches first, then the look at what is there, then the name: nobody can ask before we know. */
        r = manager_export(m);
        if (r < 0)
                return log_error_errno(r, "The objects cannot be put on the bus: %m");
        r = manager_reconcile(m);
        if (r < 0)
                return r;
        /* On the very first start the shipped runner is packed before anybody can ask for a run. */
        return runner_deploy_shipped(m);
}

/* Nobody can ask before all of it is known: a call that came earlier would be told that there is none of what there is.
 */
static void manager_open(Manager *m) {
        int r;

        if (!m->runners_ready || !m->reconciled)
                return;
        r = sd_bus_request_name(m->bus, BUS_NAME, 0);
        if (r < 0) {
                log_error_errno(r, "The name " BUS_NAME " cannot be had: %m");
                sd_event_exit(m->event, EXIT_FAILURE);
                return;
        }
        /* Not before kept changes and live runs are known, on which removals depend. */
        r = retention_start(m);
        if (r < 0)
                log_warning_errno(r, "Nothing that is too old will be removed: %m");
        manager_dispatch_soon(m);
        sd_notify(false, m->key_state == KEY_VOLATILE ?
                  "READY=1\nSTATUS=The key for run tokens cannot be kept in /etc/credstore.encrypted; see the journal." :
                  m->key_state == KEY_REPLACED ?
                  "READY=1\nSTATUS=The key for run tokens could not be opened and was replaced; see the journal." :
                  "READY=1");
        flatten_all(m);
}

void manager_runners_ready(Manager *m) {
        if (m->runners_ready)
                return;
        m->runners_ready = true;
        manager_open(m);
}

void manager_reconciled(Manager *m) {
        m->reconciled = true;
        manager_open(m);
}
