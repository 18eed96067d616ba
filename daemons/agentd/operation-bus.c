/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Operations on the bus, and the Manager's methods that start them. */
#include <fcntl.h>

#include "basic/string-util.h"
#include "bus-util.h"
#include "layer-quota.h"
#include "operation.h"
#include "run.h"

static int operation_find(sd_bus *bus, const char *path, const char *interface, void *userdata, void **found,
                          sd_bus_error *e) {
        Manager *m = userdata;
        const char *id = startswith(path, BUS_PATH "/operation/");
        Operation *o = id ? strmap_get(m->operations, id) : NULL;

        if (!o || !bus_may_read(bus, o->uid, o->user))
                return 0;
        *found = o;
        return 1;
}

static int operation_enumerate(sd_bus *bus, const char *prefix, void *userdata, char ***nodes, sd_bus_error *e) {
        _cleanup_strv_free_ char **l = calloc(1, sizeof(char *));
        Manager *m = userdata;
        Operation *o;
        int r;

        if (!l)
                return -ENOMEM;
        for (size_t i = 0; (o = strmap_next(m->operations, &i));) {
                if (!bus_may_read(bus, o->uid, o->user))
                        continue;
                r = strv_extend(&l, o->path);
                if (r < 0)
                        return r;
        }
        *nodes = TAKE_PTR(l);
        return 1;
}

static int property_id(sd_bus *bus, const char *path, const char *interface, const char *property,
                       sd_bus_message *reply, void *userdata, sd_bus_error *e) {
        return sd_bus_message_append(reply, "s", ((Operation *) userdata)->id);
}

static int property_kind(sd_bus *bus, const char *path, const char *interface, const char *property,
                         sd_bus_message *reply, void *userdata, sd_bus_error *e) {
        return sd_bus_message_append(reply, "s", operation_kind_to_string(((Operation *) userdata)->kind));
}

static int property_state(sd_bus *bus, const char *path, const char *interface, const char *property,
                          sd_bus_message *reply, void *userdata, sd_bus_error *e) {
        return sd_bus_message_append(reply, "s", operation_state_to_string(((Operation *) userdata)->state));
}

static int method_cancel(sd_bus_message *msg, void *userdata, sd_bus_error *e) {
        Operation *o = userdata;
        int r;

        r = bus_verify_owner(o->manager, msg, POLKIT_ACTION_MANAGE, NULL, o->uid, o->user, e);
        if (r <= 0)
                return r < 0 ? r : 1;
        operation_cancel(o);
        return sd_bus_reply_method_return(msg, NULL);
}

static int method_open_result(sd_bus_message *msg, void *userdata, sd_bus_error *e) {
        Operation *o = userdata;
        _cleanup_close_ int fd = -EBADF;
        char path[64];

        if (o->result_fd < 0)
                return sd_bus_error_setf(e, BUS_ERROR_NO_RESULT, "A %s has no document as its result.",
                                         operation_kind_to_string(o->kind));
        if (o->state == OPERATION_RUNNING)
                return sd_bus_error_set(e, BUS_ERROR_NO_RESULT,
                                        "The operation is under way. Wait for OperationFinished.");
        /* Opened anew: read-only, with an offset of its own. */
        snprintf(path, sizeof path, "/proc/self/fd/%d", o->result_fd);
        fd = open(path, O_RDONLY | O_CLOEXEC);
        return fd < 0 ? -errno : sd_bus_reply_method_return(msg, "h", fd);
}

const sd_bus_vtable operation_vtable[] = {
        SD_BUS_VTABLE_START(0),
        SD_BUS_METHOD_WITH_ARGS("OpenResult", SD_BUS_NO_ARGS, SD_BUS_RESULT("h", fd), method_open_result,
                                SD_BUS_VTABLE_UNPRIVILEGED),
        SD_BUS_METHOD("Cancel", NULL, NULL, method_cancel, SD_BUS_VTABLE_UNPRIVILEGED),
        SD_BUS_PROPERTY("Id", "s", property_id, 0, SD_BUS_VTABLE_PROPERTY_CONST),
        SD_BUS_PROPERTY("Kind", "s", property_kind, 0, SD_BUS_VTABLE_PROPERTY_CONST),
        SD_BUS_PROPERTY("Subject", "s", NULL, offsetof(Operation, subject), SD_BUS_VTABLE_PROPERTY_CONST),
        SD_BUS_PROPERTY("State", "s", property_state, 0, SD_BUS_VTABLE_PROPERTY_EMITS_INVALIDATION),
        SD_BUS_PROPERTY("Step", "s", NULL, offsetof(Operation, step), SD_BUS_VTABLE_PROPERTY_EMITS_INVALIDATION),
        SD_BUS_PROPERTY("Progress", "t", NULL, offsetof(Operation, progress),
                        SD_BUS_VTABLE_PROPERTY_EMITS_INVALIDATION),
        SD_BUS_PROPERTY("Detail", "s", NULL, offsetof(Operation, detail), SD_BUS_VTABLE_PROPERTY_EMITS_INVALIDATION),
        SD_BUS_PROPERTY("Error", "s", NULL, offsetof(Operation, error_name), SD_BUS_VTABLE_PROPERTY_EMITS_INVALIDATION),
        SD_BUS_VTABLE_END
};

int operation_export(Manager *m) {
        int r;

        r = sd_bus_add_fallback_vtable(m->bus, NULL, BUS_PATH "/operation", BUS_INTERFACE_OPERATION, operation_vtable,
                                       operation_find, m);
        if (r < 0)
                return r;
        return sd_bus_add_node_enumerator(m->bus, NULL, BUS_PATH "/operation", operation_enumerate, m);
}

void operation_signal_changed(Operation *o) {
        sd_bus_emit_properties_changed(o->manager->bus, o->path, BUS_INTERFACE_OPERATION, "State", "Step", "Progress",
                                       "Detail", "Error", NULL);
}

void operation_signal_finished(Operation *o) {
        operation_signal_changed(o);
        sd_bus_emit_signal(o->manager->bus, BUS_PATH, BUS_INTERFACE_MANAGER, "OperationFinished", "soss", o->id,
                           o->path, operation_state_to_string(o->state), strempty(o->detail));
}

int operation_start_and_reply(Manager *m, sd_bus_message *msg, const OperationRequest *request, sd_bus_error *e) {
        OperationRequest asked = *request;
        _cleanup_free_ char *name = NULL;
        Operation *o;
        uid_t sender;
        int r;

        r = bus_sender_user(msg, &sender, &name);
        if (r < 0)
                return r;
        asked.root = sender == 0;
        r = operation_start(m, &asked, &o);
        if (r == -EUSERS)
                return sd_bus_error_set(e, BUS_ERROR_TOO_MANY_OPERATIONS,
                                        "Too many operations are under way (MaxOperations=, MaxOperationsPerUser= in "
                                        "agentd.conf). Wait for one to end.");
        if (r == -EALREADY)
                return sd_bus_error_setf(e, BUS_ERROR_TOO_MANY_OPERATIONS,
                                         "An operation on \"%s\" is under way already. Wait for its end.",
                                         request->subject);
        if (r == -ENOBUFS) {
                _cleanup_free_ char *reason = NULL;

                (void) layer_quota_check(m, request->user, request->uid, NULL, &reason);
                return sd_bus_error_setf(e, BUS_ERROR_QUOTA_EXCEEDED, "Nothing was begun: %s.", strempty(reason));
        }
        if (r < 0)
                return bus_store_error(m, e, r);
        return sd_bus_reply_method_return(msg, "o", o->path);
}

static int freeze_edit(Manager *m, sd_bus_message *msg, const char *user, uid_t uid, const char *name, const char *note,
                       sd_bus_error *e) {
        _cleanup_free_ char *holder = NULL;
        Edit *edit = edit_find(m, user, name);
        uid_t sender;
        int r;

        if (!edit)
                return sd_bus_error_setf(
                        e, BUS_ERROR_NO_SUCH_EDIT,
                        "The environment of \"%s\" is not being edited, so there is nothing to freeze. "
                        "A run's changes are named by option from-run.",
                        name);
        if (edit->operation)
                return edit_in_use(edit, e);
        r = bus_sender_user(msg, &sender, &holder);
        if (r < 0)
                return r;
        return operation_start_and_reply(m, msg,
                                         &(OperationRequest) { .kind = OPERATION_FREEZE,
                                                               .subject = name,
                                                               .user = user,
                                                               .uid = uid,
                                                               .input_fd = -EBADF,
                                                               .note = note,
                                                               .sandbox_uid = (uid_t) -1,
                                                               .edit = edit,
                                                               .holder = holder },
                                         e);
}

typedef struct FreezeOptions {
        const char *run, *note;
} FreezeOptions;

int method_freeze_environment(sd_bus_message *msg, void *userdata, sd_bus_error *e) {
        static const BusOption options[] = {
                { "from-run", "a string", bus_option_string, offsetof(FreezeOptions, run) },
                { "note", "one line of at most 1024 bytes", bus_option_string, offsetof(FreezeOptions, note),
                  .is_valid = bus_note_is_valid },
                {}
        };
        _cleanup_(store_run_freep) StoreRun *run = NULL;
        _cleanup_free_ char *user = NULL, *name = NULL;
        FreezeOptions o = {};
        const char *ref;
        Manager *m = userdata;
        uid_t uid;
        int r;

        r = sd_bus_message_read(msg, "s", &ref);
        if (r < 0)
                return r;
        r = bus_resolve_owned(m, msg, ref, POLKIT_ACTION_MANAGE, e, &user, &uid, &name);
        if (r <= 0)
                return r < 0 ? r : 1;
        r = bus_read_options(msg, options, &o, e);
        if (r < 0)
                return r;
        if (!o.run)
                return freeze_edit(m, msg, user, uid, name, o.note, e);
        if (!run_id_is_valid(o.run) || store_run_get(m->store, o.run, &run) < 0 || !streq(run->user, user) ||
            !streq(run->agent, name))
                return sd_bus_error_setf(e, BUS_ERROR_NO_SUCH_RUN, "Agent \"%s\" has no such run.", name);
        if (!run->keep || !kept_has(m, o.run))
                return sd_bus_error_set(
                        e, BUS_ERROR_NOT_FREEZABLE,
                        "The run's changes are not there: only a run that was started with \"keep\" and "
                        "ended with success can be frozen, once, within a day.");
        return operation_start_and_reply(
                m, msg,
                               &(OperationRequest) { .kind = OPERATION_FREEZE,
                                                     .subject = name,
                                                     .user = user,
                                                     .uid = uid,
                                                     .input_fd = -EBADF,
                                                     .note = o.note,
                                                     .run = o.run,
                                                     .sandbox_uid = run->sandbox_uid },
                               e);
}
