/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Starting and watching transient units; see the header for the promises.
 *
 * The life of a Unit: StartTransientUnit is sent → its reply names the job → JobRemoved of that job → from then on
 * ActiveState counts ("done" alone does not mean "running": a quick program may already be over). Whenever something
 * about the unit changed, all its properties are read with one GetAll, and the one function unit_evaluate() decides.
 *
 * Units are expected to have RemainAfterExit=yes: one whose program ended well stays "active (exited)" until somebody
 * stops it, and one that failed stays "failed". So an end that happens while no agentd is there to see it is not
 * lost, whereas a reference (AddRef) goes with the connection that holds it. The price is the stop, made here: at
 * once, or for a unit on hold when its owner has stored how it ended.
 */
#include <signal.h>
#include <sys/wait.h>

#include "basic/log.h"
#include "basic/string-util.h"
#include "basic/strmap.h"
#include "bus/bus-options.h"
#include "cgroup-watch.h"
#include "systemd-client.h"
#include "systemd-errand.h"
#include "unit-state.h"

#define SD_UNIT "org.freedesktop.systemd1.Unit"

/* How often a unit is asked for its state though no signal came. Only a safety net: JobRemoved may be
 * lost over a daemon-reload. */
#define UNIT_POLL_USEC (20 * USEC_PER_SEC)
/* While PID 1 is being replaced (daemon-reexec) nobody answers; asked again so often. */
#define UNIT_RETRY_USEC (100 * USEC_PER_MSEC)

struct SystemdClient {
        sd_bus *bus;
        Errands *errands;
        StrMap *units; /* by object path */
        StrMap *jobs;  /* by job path: units whose job is pending */
        sd_bus_slot *job_removed_slot, *properties_slot;
        sd_event_source *poll_source;
};

struct Unit {
        SystemdClient *client;
        char *name, *path, *job;
        unit_properties_t properties; /* while it is not known whether PID 1 took the start */
        unit_event_handler_t handler;
        void *userdata;
        sd_bus_slot *start_slot, *get_slot;
        sd_event_source *retry_source;
        CgroupWatch *cgroup;
        bool attached;    /* not started by this Unit: a missing unit is an answer, not a fault */
        bool job_done;    /* the start job is over (or there never was one to wait for) */
        bool told_running, told_adrift, told_end;
        bool dirty;       /* something changed while a GetAll was under way */
        bool failed;      /* ActiveState was failed: reset it when freed */
        bool job_failed;
        bool stop_sent;   /* the program is over; what it left behind is being killed */
        bool hold;        /* it leaves nothing behind, and is the proof of its end until the Unit is freed */
        UnitState now;          /* as it was seen last */
        UnitResult exit_result; /* as it was when the program ended, before our own stop */
};

static int unit_refresh(Unit *u);
static void unit_refresh_later(Unit *u);
static int unit_send_start(Unit *u);

static void unit_tell(Unit *u, UnitEvent event, const char *message) {
        if (event == UNIT_RUNNING)
                u->told_running = true;
        else if (event == UNIT_ADRIFT)
                u->told_adrift = true;
        else
                u->told_end = true;
        u->handler(u, event, message, u->userdata); /* may free u */
}

static bool active_state_is_over(const char *s) {
        return streq(s, "inactive") || streq(s, "failed");
}

static void on_cgroup_empty(void *userdata) {
        Unit *u = userdata;

        u->cgroup = cgroup_watch_free(u->cgroup);
        unit_refresh(u); /* what it used is in the properties */
}

/* For a unit on hold that PID 1 takes to be over. */
static bool unit_goes_on(Unit *u) {
        int r;

        if (u->cgroup)
                return cgroup_watch_populated(u->cgroup);
        r = cgroup_watch_new(sd_bus_get_event(u->client->bus), u->now.control_group, on_cgroup_empty, u, &u->cgroup);
        if (r < 0)
                log_warning_errno(r, "%s: its processes cannot be watched: %m", u->name);
        return r > 0;
}

static void unit_evaluate(Unit *u) {
        if (u->told_end || !u->job_done)
                return;
        if (u->now.has_job && active_state_is_over(u->now.active_state)) {
                unit_refresh_later(u);
                return;
        }
        u->failed = streq(u->now.active_state, "failed");

        if (u->attached && (streq(u->now.load_state, "not-found") ||
                            (streq(u->now.active_state, "inactive") && u->now.result.code == 0))) {
                unit_tell(u, UNIT_GONE, NULL);
                return;
        }
        /* The program is over, the unit not yet: whatever it left in the cgroup goes at once. */
        if (streq(u->now.active_state, "active") && streq(u->now.sub_state, "exited")) {
                if (u->hold) {
                        if (!unit_goes_on(u))
                                unit_tell(u, UNIT_ENDED, NULL);
                        else if (!u->told_running) {
                                unit_refresh_later(u); /* for the rest of it; the owner may free us now */
                                unit_tell(u, UNIT_RUNNING, NULL);
                        } else if (!u->told_adrift)
                                unit_tell(u, UNIT_ADRIFT, NULL);
                        return;
                }
                if (u->stop_sent)
                        return;
                u->stop_sent = true;
                u->exit_result = u->now.result;
                unit_kill(u, SIGKILL);
                unit_stop(u);
                return;
        }
        if (active_state_is_over(u->now.active_state)) {
                if (u->stop_sent) {
                        uint64_t cpu = u->now.result.cpu_nsec, peak = u->now.result.memory_peak;

                        u->now.result = u->exit_result;
                        if (cpu != UINT64_MAX)
                                u->now.result.cpu_nsec = cpu;
                        if (peak != UINT64_MAX)
                                u->now.result.memory_peak = peak;
                }
                /* A start job that failed without a word before: the program was never reached, as Type=exec makes the
                 * job wait for the exec. */
                if (u->job_failed && !u->told_running) {
                        char text[128];

                        snprintf(text, sizeof text, "the unit could not be set up (%s, status %d)",
                                 u->now.result.result, u->now.result.status);
                        unit_tell(u, UNIT_START_FAILED, text);
                } else
                        unit_tell(u, UNIT_ENDED, NULL);
                return;
        }
        if (streq(u->now.active_state, "active") && !u->told_running)
                unit_tell(u, UNIT_RUNNING, NULL);
}

static int on_retry(sd_event_source *s, uint64_t usec, void *userdata) {
        unit_refresh(userdata);
        return 0;
}

static void unit_refresh_later(Unit *u) {
        int r;

        if (u->retry_source) {
                r = sd_event_source_set_time_relative(u->retry_source, UNIT_RETRY_USEC);
                if (r >= 0)
                        r = sd_event_source_set_enabled(u->retry_source, SD_EVENT_ONESHOT);
        } else
                r = sd_event_add_time_relative(sd_bus_get_event(u->client->bus), &u->retry_source, CLOCK_MONOTONIC,
                                               UNIT_RETRY_USEC, 0, on_retry, u);
        if (r < 0)
                log_warning_errno(r, "%s: cannot be asked for again soon: %m", u->name); /* on_poll() will */
}

/* After a look at the unit: the start of which no word came, because PID 1 was replaced with our call in hand, or
 * because JobRemoved was lost. False where nothing can be said of the unit yet. */
static bool unit_settle_start(Unit *u) {
        int r;

        if (u->properties && streq(u->now.load_state, "not-found")) { /* it was not taken */
                r = unit_send_start(u);
                if (r < 0)
                        unit_tell(u, UNIT_START_FAILED, strerror(-r));
                return false;
        }
        if (u->job_done || u->start_slot)
                return true;
        if (u->now.has_job) {
                if (u->properties) /* nobody will tell us the end of a job that we do not know */
                        unit_refresh_later(u);
                return true;
        }
        if (u->job)
                strmap_remove(u->client->jobs, u->job);
        u->job = mfree(u->job);
        u->properties = NULL;
        u->job_done = true;
        u->job_failed = streq(u->now.active_state, "failed") && unit_result_is_setup(&u->now.result);
        return true;
}

static int on_properties(sd_bus_message *m, void *userdata, sd_bus_error *error) {
        Unit *u = userdata;
        const sd_bus_error *e = sd_bus_message_get_error(m);
        int r;

        u->get_slot = sd_bus_slot_unref(u->get_slot);
        if (e && errand_peer_is_away(e)) {
                unit_refresh_later(u);
                return 0;
        }
        if (e) {
                /* The unit is not loaded (any more). For one that we pinned this cannot be, unless PID 1 lost it. */
                if (sd_bus_error_has_name(e, SD_BUS_ERROR_UNKNOWN_OBJECT) ||
                    sd_bus_error_has_name(e, "org.freedesktop.systemd1.NoSuchUnit")) {
                        u->job_done = true;
                        snprintf(u->now.load_state, sizeof u->now.load_state, "%s", "not-found");
                        snprintf(u->now.active_state, sizeof u->now.active_state, "%s", "inactive");
                        unit_evaluate(u);
                }
                return 0;
        }
        r = unit_state_read(&u->now, m);
        if (r < 0) {
                log_warning_errno(r, "%s: properties could not be read: %m", u->name);
                return 0;
        }
        if (u->dirty) {
                u->dirty = false;
                unit_refresh(u);
        }
        if (unit_settle_start(u))
                unit_evaluate(u);
        return 0;
}

/* Reads everything anew; a change that arrives meanwhile leads to one more reading. */
static int unit_refresh(Unit *u) {
        if (u->get_slot) {
                u->dirty = true;
                return 0;
        }
        return sd_bus_call_method_async(u->client->bus, &u->get_slot, SD_NAME, u->path,
                                        "org.freedesktop.DBus.Properties", "GetAll", on_properties, u, "s", "");
}

static int on_job_removed(sd_bus_message *m, void *userdata, sd_bus_error *error) {
        SystemdClient *c = userdata;
        const char *path, *name, *result;
        uint32_t id;
        Unit *u;

        /* A match callback returns 0, always: anything else keeps other matches from being called. */
        if (sd_bus_message_read(m, "uoss", &id, &path, &name, &result) < 0)
                return 0;
        u = strmap_get(c->jobs, path);
        if (!u)
                return 0;
        strmap_remove(c->jobs, path);
        u->job = mfree(u->job);
        u->job_done = true;
        u->job_failed = !streq(result, "done");
        unit_refresh(u);
        return 0;
}

typedef struct Change {
        const char *active, *sub; /* NULL: not among what changed */
} Change;

static int read_change(sd_bus_message *m, const char *name, void *userdata) {
        Change *change = userdata;

        if (streq(name, "ActiveState"))
                return sd_bus_message_read(m, "v", "s", &change->active);
        if (streq(name, "SubState"))
                return sd_bus_message_read(m, "v", "s", &change->sub);
        return sd_bus_message_skip(m, "v");
}

static int on_properties_changed(sd_bus_message *m, void *userdata, sd_bus_error *error) {
        SystemdClient *c = userdata;
        const char *interface;
        Change change = {};
        Unit *u = strmap_get(c->units, sd_bus_message_get_path(m));

        if (!u || sd_bus_message_read(m, "s", &interface) < 0)
                return 0;
        /* Only an end matters here; the start is told by the job. */
        if (!streq(interface, SD_UNIT) || bus_read_dictionary(m, read_change, &change) < 0)
                return 0;
        if (u->job_done && change.active &&
            (active_state_is_over(change.active) ||
             (streq(change.active, "active") && (streq(strempty(change.sub), "exited") || !u->told_running))))
                unit_refresh(u);
        return 0;
}

static int on_poll(sd_event_source *s, uint64_t usec, void *userdata) {
        SystemdClient *c = userdata;
        Unit *u;

        for (size_t i = 0; (u = strmap_next(c->units, &i));) {
                if (!u->start_slot) /* else there may be nothing to see yet */
                        unit_refresh(u);
        }
        sd_event_source_set_time_relative(s, UNIT_POLL_USEC);
        sd_event_source_set_enabled(s, SD_EVENT_ONESHOT);
        return 0;
}

int systemd_client_new(sd_bus *bus, SystemdClient **ret) {
        _cleanup_(systemd_client_freep) SystemdClient *c = NULL;
        int r;

        c = calloc(1, sizeof *c);
        if (!c)
                return -ENOMEM;
        c->bus = sd_bus_ref(bus);
        c->units = strmap_new();
        c->jobs = strmap_new();
        if (!c->units || !c->jobs)
                return -ENOMEM;
        r = errands_new(bus, &c->errands);
        if (r < 0)
                return r;
        r = sd_bus_match_signal(bus, &c->job_removed_slot, SD_NAME, SD_PATH, SD_MANAGER, "JobRemoved", on_job_removed,
                                c);
        if (r < 0)
                return r;
        r = sd_bus_add_match(bus, &c->properties_slot,
                             "type='signal',sender='" SD_NAME "',interface='org.freedesktop.DBus.Properties',"
                             "member='PropertiesChanged',path_namespace='/org/freedesktop/systemd1/unit'",
                             on_properties_changed, c);
        if (r < 0)
                return r;
        /* Without Subscribe() PID 1 sends no signals at all, unless some other client happened to subscribe. */
        r = sd_bus_call_method(bus, SD_NAME, SD_PATH, SD_MANAGER, "Subscribe", NULL, NULL, NULL);
        if (r < 0)
                return r;
        r = sd_event_add_time_relative(sd_bus_get_event(bus), &c->poll_source, CLOCK_MONOTONIC, UNIT_POLL_USEC,
                                       USEC_PER_SEC, on_poll, c);
        if (r < 0)
                return r;
        *ret = TAKE_PTR(c);
        return 0;
}

SystemdClient *systemd_client_free(SystemdClient *c) {
        if (!c)
                return NULL;
        assert(!c->units || strmap_size(c->units) == 0); /* units go before the client */
        errands_free(c->errands);
        sd_event_source_disable_unref(c->poll_source);
        sd_bus_slot_unref(c->job_removed_slot);
        sd_bus_slot_unref(c->properties_slot);
        strmap_free(c->units);
        strmap_free(c->jobs);
        sd_bus_unref(c->bus);
        return mfree(c);
}

static int on_start_reply(sd_bus_message *m, void *userdata, sd_bus_error *error) {
        Unit *u = userdata;
        const sd_bus_error *e = sd_bus_message_get_error(m);
        const char *job;
        int r;

        u->start_slot = sd_bus_slot_unref(u->start_slot);
        if (e && errand_peer_is_away(e)) {
                unit_refresh_later(u);
                return 0;
        }
        u->properties = NULL;
        if (e) {
                unit_tell(u, UNIT_START_FAILED, e->message ?: e->name);
                return 0;
        }
        r = sd_bus_message_read(m, "o", &job);
        if (r >= 0)
                r = free_and_strdup(&u->job, job);
        if (r >= 0)
                r = strmap_put(u->client->jobs, u->job, u);
        if (r < 0)
                unit_tell(u, UNIT_START_FAILED, strerror(-r));
        return 0;
}

static int unit_new(SystemdClient *c, const char *name, unit_event_handler_t handler, void *userdata, Unit **ret) {
        _cleanup_(unit_forgetp) Unit *u = NULL;
        int r;

        u = calloc(1, sizeof *u);
        if (!u)
                return -ENOMEM;
        *u = (Unit) { .client = c, .handler = handler, .userdata = userdata,
                      .now.result = UNIT_RESULT_NULL };
        u->name = strdup(name);
        if (!u->name)
                return -ENOMEM;
        r = sd_bus_path_encode("/org/freedesktop/systemd1/unit", name, &u->path);
        if (r < 0)
                return r;
        r = strmap_put(c->units, u->path, u);
        if (r < 0) {
                u->path = mfree(u->path); /* not in the map: keep the destructor from removing the other one */
                return r;
        }
        *ret = TAKE_PTR(u);
        return 0;
}

static int unit_send_start(Unit *u) {
        _cleanup_(sd_bus_message_unrefp) sd_bus_message *m = NULL;
        int r;

        r = sd_bus_message_new_method_call(u->client->bus, &m, SD_NAME, SD_PATH, SD_MANAGER, "StartTransientUnit");
        if (r < 0)
                return r;
        r = sd_bus_message_append(m, "ss", u->name, "fail");
        if (r < 0)
                return r;
        r = sd_bus_message_open_container(m, 'a', "(sv)");
        if (r < 0)
                return r;
        r = sd_bus_message_append(m, "(sv)", "AddRef", "b", 1);
        if (r < 0)
                return r;
        r = u->properties(m, u->userdata);
        if (r < 0)
                return r;
        r = sd_bus_message_close_container(m);
        if (r < 0)
                return r;
        r = sd_bus_message_append(m, "a(sa(sv))", 0);
        if (r < 0)
                return r;
        return sd_bus_call_async(u->client->bus, &u->start_slot, m, on_start_reply, u, 0);
}

int unit_start(SystemdClient *c, const char *name, unit_properties_t properties, unit_event_handler_t handler,
               void *userdata, Unit **ret) {
        _cleanup_(unit_forgetp) Unit *u = NULL;
        int r;

        r = unit_new(c, name, handler, userdata, &u);
        if (r < 0)
                return r;
        u->properties = properties;
        r = unit_send_start(u);
        if (r < 0)
                return r;
        *ret = TAKE_PTR(u);
        return 0;
}

static int on_ref_reply(sd_bus_message *m, void *userdata, sd_bus_error *error) {
        Unit *u = userdata;

        u->start_slot = sd_bus_slot_unref(u->start_slot);
        /* Whatever the answer: the properties tell whether it is there. */
        unit_refresh(u);
        return 0;
}

int unit_attach(SystemdClient *c, const char *name, unit_event_handler_t handler, void *userdata, Unit **ret) {
        _cleanup_(unit_forgetp) Unit *u = NULL;
        int r;

        r = unit_new(c, name, handler, userdata, &u);
        if (r < 0)
                return r;
        u->attached = u->job_done = true;
        r = sd_bus_call_method_async(c->bus, &u->start_slot, SD_NAME, SD_PATH, SD_MANAGER, "RefUnit", on_ref_reply, u,
                                     "s", name);
        if (r < 0)
                return r;
        *ret = TAKE_PTR(u);
        return 0;
}

int unit_stop(Unit *u) {
        return errand_run(u->client->errands, ERRAND_STOP, u->name, 0);
}

int unit_kill(Unit *u, int signal) {
        return errand_run(u->client->errands, ERRAND_KILL, u->name, signal);
}

void unit_hold(Unit *u) {
        u->hold = true;
}

const char *unit_name(const Unit *u) {
        return u->name;
}

const UnitResult *unit_result(const Unit *u) {
        return &u->now.result;
}

Unit *unit_forget(Unit *u) {
        if (!u)
                return NULL;
        if (u->path) {
                strmap_remove(u->client->units, u->path);
                sd_bus_call_method_async(u->client->bus, NULL, SD_NAME, SD_PATH, SD_MANAGER, "UnrefUnit", NULL, NULL,
                                         "s", u->name);
        }
        if (u->job)
                strmap_remove(u->client->jobs, u->job);
        sd_bus_slot_unref(u->start_slot);
        sd_bus_slot_unref(u->get_slot);
        sd_event_source_disable_unref(u->retry_source);
        cgroup_watch_free(u->cgroup);
        free(u->name);
        free(u->path);
        free(u->job);
        return mfree(u);
}

Unit *unit_free(Unit *u) {
        int r = 0;

        if (!u)
                return NULL;
        if (u->failed)
                r = errand_run(u->client->errands, ERRAND_RESET, u->name, 0);
        else if (u->hold && u->told_end && !active_state_is_over(u->now.active_state))
                r = errand_run(u->client->errands, ERRAND_STOP, u->name, 0);
        if (r < 0)
                log_warning_errno(r, "%s: cannot be taken away, it stays until the next start: %m", u->name);
        return unit_forget(u);
}

int systemd_client_list(SystemdClient *c, const char *pattern, char ***ret) {
        _cleanup_(sd_bus_message_unrefp) sd_bus_message *reply = NULL;
        _cleanup_strv_free_ char **l = calloc(1, sizeof(char *));
        const char *name;
        int r;

        if (!l)
                return -ENOMEM;
        r = sd_bus_call_method(c->bus, SD_NAME, SD_PATH, SD_MANAGER, "ListUnitsByPatterns", NULL, &reply, "asas", 0, 1,
                               pattern);
        if (r < 0)
                return r;
        r = sd_bus_message_enter_container(reply, 'a', "(ssssssouso)");
        if (r < 0)
                return r;
        while ((r = sd_bus_message_read(reply, "(ssssssouso)", &name, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
                                        NULL)) > 0) {
                r = strv_extend(&l, name);
                if (r < 0)
                        return r;
        }
        if (r < 0)
                return r;
        *ret = TAKE_PTR(l);
        return 0;
}

int systemd_client_stop(SystemdClient *c, const char *name) {
        int r;

        /* One that failed is not stopped by a stop. */
        r = errand_run(c->errands, ERRAND_STOP, name, 0);
        return r < 0 ? r : errand_run(c->errands, ERRAND_RESET, name, 0);
}
