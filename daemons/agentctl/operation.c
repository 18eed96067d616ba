/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * One operation as seen by the client that asked for it. OperationFinished carries the end; the object's
 * properties are read once after the call (it may have ended before the reply came) and when agentd returns.
 */

#include "operation.h"

#include "basic/fs-util.h"
#include "basic/string-util.h"
#include "exit-status.h"
#include "format.h"
#include "output.h"
#include "properties.h"
#include "waiter.h"

#define OPERATION_INTERFACE "org.agentd1.Operation"
#define RESULT_SIZE_MAX (256U << 20)

typedef struct Operation {
        Client *client;
        Waiter *waiter;
        char *path;
        char *id, *kind, *state, *step, *detail;
        uint64_t progress;
        bool canceling, closing, line_open;
} Operation;

static const Property operation_properties[] = {
        { "Id", 's', offsetof(Operation, id) },
        { "Kind", 's', offsetof(Operation, kind) },
        { "State", 's', offsetof(Operation, state) },
        { "Step", 's', offsetof(Operation, step) },
        { "Progress", 't', offsetof(Operation, progress) },
        { "Detail", 's', offsetof(Operation, detail) },
        {}
};

static void operation_done(Operation *o) {
        waiter_free(o->waiter);
        free(o->path);
        free(o->id);
        free(o->kind);
        free(o->state);
        free(o->step);
        free(o->detail);
}

static bool operation_is_over(const Operation *o) {
        return !isempty(o->state) && !streq(o->state, "running");
}

static void clear_line(Operation *o) {
        if (o->line_open)
                fputs("\r\033[K", stderr);
        o->line_open = false;
}

static void show_progress(Operation *o) {
        _cleanup_free_ char *step = NULL;
        char buf[FORMAT_MAX];

        if (!client_shows_progress(o->client) || isempty(o->step) || operation_is_over(o))
                return;
        step = text_escape(o->step, strlen(o->step), false);
        if (!step)
                return;
        fprintf(stderr, "\r\033[K%s", step);
        if (o->progress > 0)
                fprintf(stderr, " %s", format_amount(o->progress, buf));
        fputs(o->canceling ? " (canceling)" : " …", stderr);
        fflush(stderr);
        o->line_open = true;
}

static int operation_refresh(void *userdata) {
        _cleanup_(sd_bus_error_free) sd_bus_error error = SD_BUS_ERROR_NULL;
        Operation *o = userdata;
        int r;

        r = properties_get_all(o->client, o->path, OPERATION_INTERFACE, operation_properties, o, &error);
        if (r < 0) {
                if (client_error_is_transient(&error, r))
                        return -EAGAIN;
                clear_line(o);
                if (sd_bus_error_has_names(&error, SD_BUS_ERROR_UNKNOWN_OBJECT, SD_BUS_ERROR_UNKNOWN_INTERFACE,
                                           SD_BUS_ERROR_UNKNOWN_METHOD))
                        return fail("The operation is gone: agentd was restarted meanwhile. Nothing half-made stays; "
                                    "start it again.");
                return client_report(&error, r, NULL);
        }
        show_progress(o);
        return operation_is_over(o);
}

static int operation_interrupted(void *userdata) {
        _cleanup_(sd_bus_message_unrefp) sd_bus_message *m = NULL;
        Operation *o = userdata;
        int r;

        clear_line(o);
        if (o->canceling)
                return 1;

        r = sd_bus_message_new_method_call(o->client->bus, &m, manager_target.destination, o->path,
                                           OPERATION_INTERFACE, "Cancel");
        if (r >= 0) /* The end is told by OperationFinished, an answer is not needed */
                r = sd_bus_send(o->client->bus, m, NULL);
        if (r < 0) {
                (void) fail_errno(r, "Cannot cancel the operation");
                return 1;
        }
        notice("Canceling. Press Ctrl-C again to leave without waiting.");
        o->canceling = true;
        return 0;
}

static int on_finished(sd_bus_message *m, void *userdata, sd_bus_error *error _unused_) {
        const char *path, *result, *detail;
        Operation *o = userdata;

        if (sd_bus_message_read(m, "soss", NULL, &path, &result, &detail) < 0 || !streq_ptr(path, o->path))
                return 0;
        if (free_and_strdup(&o->state, result) < 0 || free_and_strdup(&o->detail, detail) < 0)
                return 0;
        waiter_finish(o->waiter);
        return 0;
}

static int on_changed(sd_bus_message *m _unused_, void *userdata, sd_bus_error *error _unused_) {
        Operation *o = userdata;

        waiter_poke(o->waiter);
        return 0;
}

/* Says how it ended, unless it was a success. */
static int tell_end(Operation *o) {
        ExitStatus status = exit_status_from_operation_result(o->state);

        clear_line(o);
        if (status == STATUS_CANCELED && o->closing)
                return STATUS_SUCCESS;
        if (status == STATUS_CANCELED)
                notice("Canceled.");
        else if (status != STATUS_SUCCESS)
                (void) fail("%s", isempty(o->detail) ? "The operation failed." : o->detail);
        return (int) status;
}

static int print_json(Client *c, const OperationEnd *end, const char *subject) {
        _cleanup_(sd_json_variant_unrefp) sd_json_variant *v = NULL;
        const char *result = end->status == STATUS_SUCCESS    ? "done"
                             : end->status == STATUS_CANCELED ? "canceled"
                                                              : "failed";
        int r;

        r = sd_json_buildo(&v, SD_JSON_BUILD_PAIR_STRING("operation", end->path),
                           SD_JSON_BUILD_PAIR_STRING("subject", subject), SD_JSON_BUILD_PAIR_STRING("result", result),
                           SD_JSON_BUILD_PAIR_STRING("detail", strempty(end->detail)));
        return r < 0 ? fail_errno(r, "Cannot make JSON") : output_json(c, v);
}

int operation_tell(Client *c, const OperationEnd *end, const char *kind, const char *subject, const char *verb) {
        int r;

        if (client_json(c)) {
                r = print_json(c, end, subject);
                return r < 0 ? r : end->status;
        }
        if (end->status == STATUS_SUCCESS) {
                const char *detail = strempty(end->detail);
                if (!client_quiet(c))
                        notice("%s %s %s.", kind, subject, verb);
                if (!isempty(detail))
                        output_printf("%s\n", detail);
        }
        return end->status;
}

void operation_end_done(OperationEnd *end) {
        end->path = mfree(end->path);
        end->detail = mfree(end->detail);
}

static int operation_await(Operation *o, sd_bus_slot **changed_slot, OperationEnd *end) {
        int r;

        r = properties_match(o->client, changed_slot, o->path, on_changed, o);
        if (r < 0)
                return r;
        r = waiter_run(o->waiter);
        clear_line(o);
        if (r == -EINTR) {
                notice("Left. The operation may still be winding up: %s", o->path);
                end->status = STATUS_INTERRUPTED;
                return 0;
        }
        if (r < 0)
                return r;
        end->status = tell_end(o);
        end->path = TAKE_PTR(o->path);
        end->detail = TAKE_PTR(o->detail);
        return 0;
}

static int operation_watch(Operation *o, sd_bus_slot **finished_slot) {
        static const WaiterOps ops = { operation_refresh, operation_interrupted };
        int r;

        r = waiter_new(o->client, &ops, o, &o->waiter);
        if (r < 0)
                return r;
        r = sd_bus_match_signal(o->client->bus, finished_slot, manager_target.destination, manager_target.path,
                                manager_target.interface, "OperationFinished", on_finished, o);
        return r < 0 ? fail_errno(r, "Cannot subscribe to signals") : 0;
}

int operation_follow(Client *c, const char *path, OperationEnd *end) {
        _cleanup_(sd_bus_slot_unrefp) sd_bus_slot *finished_slot = NULL, *changed_slot = NULL;
        _cleanup_(operation_done) Operation o = { .client = c, .path = strdup(path), .closing = end->closing };
        int r;

        if (!o.path)
                return fail_oom();
        r = operation_watch(&o, &finished_slot);
        return r < 0 ? r : operation_await(&o, &changed_slot, end);
}

int operation_wait(Client *c, sd_bus_message *m, const char *subject, OperationEnd *end) {
        _cleanup_(sd_bus_slot_unrefp) sd_bus_slot *finished_slot = NULL, *changed_slot = NULL;
        _cleanup_(sd_bus_message_unrefp) sd_bus_message *reply = NULL;
        _cleanup_(operation_done) Operation o = { .client = c };
        bool wait = !option_given(c->options, OPTION_NO_WAIT);
        const char *path;
        int r;

        c->no_pager = true;
        if (wait) {
                r = operation_watch(&o, &finished_slot);
                if (r < 0)
                        return r;
        }

        r = client_send(c, m, &reply);
        if (r < 0)
                return r;
        r = sd_bus_message_read_basic(reply, 'o', &path);
        if (r < 0)
                return client_bad_reply(r);

        if (!wait) {
                end->status = STATUS_SUCCESS;
                if (client_json(c)) {
                        _cleanup_(sd_json_variant_unrefp) sd_json_variant *v = NULL;

                        r = sd_json_buildo(&v, SD_JSON_BUILD_PAIR_STRING("operation", path),
                                           SD_JSON_BUILD_PAIR_STRING("subject", subject));
                        return r < 0 ? fail_errno(r, "Cannot make JSON") : output_json(c, v);
                }
                printf("%s\n", path);
                return STATUS_SUCCESS;
        }

        o.path = strdup(path);
        if (!o.path)
                return fail_oom();
        return operation_await(&o, &changed_slot, end);
}

int operation_read_result(Client *c, const char *path, sd_json_variant **ret) {
        const Target target = { manager_target.destination, path, OPERATION_INTERFACE };
        _cleanup_(sd_bus_message_unrefp) sd_bus_message *reply = NULL;
        _cleanup_free_ char *text = NULL;
        int fd, r;

        r = client_call(c, &target, "OpenResult", &reply, NULL);
        if (r < 0)
                return r;
        r = sd_bus_message_read_basic(reply, 'h', &fd);
        if (r >= 0)
                r = read_full_fd(fd, RESULT_SIZE_MAX, &text, NULL);
        if (r >= 0)
                r = sd_json_parse(text, 0, ret, NULL, NULL);
        return r < 0 ? client_bad_reply(r) : 0;
}

int operation_run(Client *c, sd_bus_message *m, const char *kind, const char *subject, const char *verb) {
        _cleanup_(operation_end_done) OperationEnd end = {};
        int r;

        r = operation_wait(c, m, subject, &end);
        if (r < 0)
                return r;
        return end.path ? operation_tell(c, &end, kind, subject, verb) : end.status;
}
