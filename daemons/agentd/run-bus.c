/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Run objects on the bus. They are not kept in memory: each look-up reads the row from the store, so a run of last
 * year is as good an object as a live one. Only the owner and root see one at all.
 */
#include "basic/name-util.h"
#include "basic/string-util.h"
#include "bus-util.h"
#include "run.h"

static int run_find(sd_bus *bus, const char *path, const char *interface, void *userdata, void **found,
                    sd_bus_error *e) {
        Manager *m = userdata;
        const char *id = startswith(path, BUS_PATH "/run/");
        StoreRun *row;

        if (!id || !run_id_is_valid(id) || store_run_get(m->store, id, &row) < 0)
                return 0;
        /* sd-bus uses what is found only until the next look-up, so one place for it is enough. */
        store_run_free(m->found_run);
        m->found_run = row;
        if (!bus_may_read(bus, row->uid, row->user))
                return 0;
        *found = row;
        return 1;
}

typedef struct Enumeration {
        sd_bus *bus;
        char **paths;
} Enumeration;

/* Live and queued runs only: the history may be long. */
static int enumerate_one(const StoreRun *row, void *userdata) {
        _cleanup_free_ char *path = NULL;
        Enumeration *n = userdata;

        if (!bus_may_read(n->bus, row->uid, row->user))
                return 0;
        path = strprintf(BUS_PATH "/run/%s", row->id);
        return path ? strv_extend(&n->paths, path) : -ENOMEM;
}

static int run_enumerate(sd_bus *bus, const char *prefix, void *userdata, char ***nodes, sd_bus_error *e) {
        Enumeration n = { .bus = bus, .paths = calloc(1, sizeof(char *)) };
        Manager *m = userdata;
        int r;

        if (!n.paths)
                return -ENOMEM;
        r = store_runs_unfinished(m->store, enumerate_one, &n);
        if (r < 0) {
                strv_free(n.paths);
                return r;
        }
        *nodes = n.paths;
        return 1;
}

#define STRING_GETTER(name, expression)                                                                                \
        static int property_##name(sd_bus *bus, const char *path, const char *interface, const char *property,         \
                                   sd_bus_message *reply, void *userdata, sd_bus_error *e) {                           \
                const StoreRun *row = userdata;                                                                        \
                return sd_bus_message_append(reply, "s", strempty(expression));                                        \
        }                                                                                                              \
        struct __useless_struct_to_allow_trailing_semicolon__

STRING_GETTER(id, row->id);
STRING_GETTER(agent, row->agent);
STRING_GETTER(user, row->user);
STRING_GETTER(trigger, row->trigger);
STRING_GETTER(session, row->session);
STRING_GETTER(state, run_state_to_string(row->state));
STRING_GETTER(result, run_result_to_string(row->result));
STRING_GETTER(message, row->message);
STRING_GETTER(unit, row->unit);
STRING_GETTER(generation, row->generation);
STRING_GETTER(environment, row->environment);
STRING_GETTER(runner, row->runner);
STRING_GETTER(runner_before, row->runner_before);
STRING_GETTER(verdict, row->verdict);
STRING_GETTER(verified, row->verified);

static int property_swapped(sd_bus *bus, const char *path, const char *interface, const char *property,
                            sd_bus_message *reply, void *userdata, sd_bus_error *e) {
        const StoreRun *row = userdata;

        return sd_bus_message_append(reply, "b", (int) (row->runner && !streq_ptr(row->runner, row->runner_before)));
}

/* What sd-bus hands to a method of a found object is the row. The Manager is the slot's own userdata. */
static int method_cancel(sd_bus_message *msg, void *userdata, sd_bus_error *e) {
        return method_cancel_run(msg, sd_bus_slot_get_userdata(sd_bus_get_current_slot(sd_bus_message_get_bus(msg))),
                                 e);
}

const sd_bus_vtable run_vtable[] = {
        SD_BUS_VTABLE_START(0),
        SD_BUS_METHOD("Cancel", NULL, NULL, method_cancel, SD_BUS_VTABLE_UNPRIVILEGED),
        SD_BUS_PROPERTY("Id", "s", property_id, 0, SD_BUS_VTABLE_PROPERTY_CONST),
        SD_BUS_PROPERTY("Agent", "s", property_agent, 0, SD_BUS_VTABLE_PROPERTY_CONST),
        SD_BUS_PROPERTY("User", "s", property_user, 0, SD_BUS_VTABLE_PROPERTY_CONST),
        SD_BUS_PROPERTY("Trigger", "s", property_trigger, 0, SD_BUS_VTABLE_PROPERTY_CONST),
        SD_BUS_PROPERTY("Session", "s", property_session, 0, SD_BUS_VTABLE_PROPERTY_CONST),
        SD_BUS_PROPERTY("State", "s", property_state, 0, SD_BUS_VTABLE_PROPERTY_EMITS_INVALIDATION),
        SD_BUS_PROPERTY("Result", "s", property_result, 0, SD_BUS_VTABLE_PROPERTY_EMITS_INVALIDATION),
        SD_BUS_PROPERTY("Message", "s", property_message, 0, SD_BUS_VTABLE_PROPERTY_EMITS_INVALIDATION),
        SD_BUS_PROPERTY("Attempt", "u", NULL, offsetof(StoreRun, attempt), SD_BUS_VTABLE_PROPERTY_EMITS_INVALIDATION),
        SD_BUS_PROPERTY("Unit", "s", property_unit, 0, SD_BUS_VTABLE_PROPERTY_EMITS_INVALIDATION),
        SD_BUS_PROPERTY("Generation", "s", property_generation, 0, SD_BUS_VTABLE_PROPERTY_EMITS_INVALIDATION),
        SD_BUS_PROPERTY("Environment", "s", property_environment, 0, SD_BUS_VTABLE_PROPERTY_EMITS_INVALIDATION),
        SD_BUS_PROPERTY("Runner", "s", property_runner, 0, SD_BUS_VTABLE_PROPERTY_EMITS_INVALIDATION),
        SD_BUS_PROPERTY("RunnerBefore", "s", property_runner_before, 0, SD_BUS_VTABLE_PROPERTY_EMITS_INVALIDATION),
        SD_BUS_PROPERTY("RunnerSwapped", "b", property_swapped, 0, SD_BUS_VTABLE_PROPERTY_EMITS_INVALIDATION),
        SD_BUS_PROPERTY("RunnerVerdict", "s", property_verdict, 0, SD_BUS_VTABLE_PROPERTY_EMITS_INVALIDATION),
        SD_BUS_PROPERTY("LayersVerified", "s", property_verified, 0, SD_BUS_VTABLE_PROPERTY_EMITS_INVALIDATION),
        SD_BUS_PROPERTY("CreatedUSec", "t", NULL, offsetof(StoreRun, created_usec), SD_BUS_VTABLE_PROPERTY_CONST),
        SD_BUS_PROPERTY("StartedUSec", "t", NULL, offsetof(StoreRun, started_usec),
                        SD_BUS_VTABLE_PROPERTY_EMITS_INVALIDATION),
        SD_BUS_PROPERTY("FinishedUSec", "t", NULL, offsetof(StoreRun, finished_usec),
                        SD_BUS_VTABLE_PROPERTY_EMITS_INVALIDATION),
        SD_BUS_PROPERTY("DeadlineUSec", "t", NULL, offsetof(StoreRun, deadline_usec),
                        SD_BUS_VTABLE_PROPERTY_EMITS_INVALIDATION),
        SD_BUS_VTABLE_END
};

int run_export(Manager *m) {
        int r;

        r = sd_bus_add_fallback_vtable(m->bus, NULL, BUS_PATH "/run", BUS_INTERFACE_RUN, run_vtable, run_find, m);
        if (r < 0)
                return r;
        return sd_bus_add_node_enumerator(m->bus, NULL, BUS_PATH "/run", run_enumerate, m);
}

void run_signal_new(Manager *m, const char *id) {
        _cleanup_free_ char *path = NULL;
        int r;

        r = run_object_path(id, &path);
        if (r >= 0)
                r = sd_bus_emit_signal(m->bus, BUS_PATH, BUS_INTERFACE_MANAGER, "RunNew", "so", id, path);
        if (r < 0)
                log_warning_errno(r, "Run %s: cannot be announced: %m", id);
}

void run_signal_changed(Manager *m, const char *id) {
        _cleanup_free_ char *path = NULL;
        int r;

        r = run_object_path(id, &path);
        if (r >= 0)
                r = sd_bus_emit_properties_changed(m->bus, path, BUS_INTERFACE_RUN, "State", "Result", "Message",
                                                   "Attempt", "Unit", "Generation", "Environment", "Runner",
                                                   "RunnerBefore", "RunnerSwapped", "RunnerVerdict", "LayersVerified",
                                                   "StartedUSec", "FinishedUSec", "DeadlineUSec", NULL);
        if (r < 0)
                log_warning_errno(r, "Run %s: its change cannot be announced: %m", id);
}

void run_signal_finished(Manager *m, const StoreRun *row, RunResult result, const char *message) {
        _cleanup_free_ char *path = NULL;
        int r;

        run_signal_changed(m, row->id);
        r = run_object_path(row->id, &path);
        if (r >= 0)
                r = sd_bus_emit_signal(m->bus, BUS_PATH, BUS_INTERFACE_MANAGER, "RunFinished", "soss", row->id, path,
                                       run_result_to_string(result), strempty(message));
        if (r < 0)
                log_warning_errno(r, "Run %s: its end cannot be announced: %m", row->id);
}
