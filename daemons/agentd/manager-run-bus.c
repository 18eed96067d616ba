/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The Manager's methods about runs. ExecuteAgent here is the one entry of the pipeline, whoever triggers it. */
#include "basic/json-util.h"
#include "basic/string-util.h"
#include "bus-util.h"
#include "retention.h"
#include "run.h"

#define LABELS_MAX 32U
#define LABEL_VALUE_MAX 256U

typedef struct ExecuteOptions {
        const char *trigger, *session, *idempotency_key, *parent;
        uint64_t timeout_usec;
        int32_t priority;
        bool keep, verify;
        char *labels; /* JSON, allocated */
} ExecuteOptions;

static int read_labels(sd_bus_message *m, const BusOption *option, void *field, sd_bus_error *e) {
        _cleanup_json_ sd_json_variant *v = NULL;
        const char *key, *value;
        char **ret = field;
        unsigned n = 0;
        int r;

        r = sd_bus_message_enter_container(m, 'v', "a{ss}");
        if (r < 0)
                return -EINVAL;
        r = sd_bus_message_enter_container(m, 'a', "{ss}");
        if (r < 0)
                return r;
        while ((r = sd_bus_message_read(m, "{ss}", &key, &value)) > 0) {
                if (++n > LABELS_MAX || !token_name_is_valid(key) || strlen(value) > LABEL_VALUE_MAX)
                        return -EINVAL;
                r = sd_json_variant_set_field_string(&v, key, value);
                if (r < 0)
                        return r;
        }
        if (r < 0)
                return r;
        r = sd_bus_message_exit_container(m);
        if (r < 0)
                return r;
        r = sd_bus_message_exit_container(m);
        if (r < 0)
                return r;
        *ret = mfree(*ret);
        return v ? json_format_canonical(v, ret) : 0;
}

/* None at all is as good as an empty one. */
static int read_name(sd_bus_message *m, const BusOption *option, void *field, sd_bus_error *e) {
        const char **name = field;
        int r = bus_option_string(m, option, field, e);

        if (r >= 0 && isempty(*name))
                *name = NULL;
        return r >= 0 && *name && !token_name_is_valid(*name) ? -EINVAL : r;
}

static int read_options(sd_bus_message *m, ExecuteOptions *o, sd_bus_error *e) {
        static const char name[] = "1 to 128 of A-Z a-z 0-9 . _ : -";
        static const BusOption options[] = {
                { "trigger", name, read_name, offsetof(ExecuteOptions, trigger) },
                { "session", name, read_name, offsetof(ExecuteOptions, session) },
                { "idempotency-key", name, read_name, offsetof(ExecuteOptions, idempotency_key) },
                { "timeout-usec", "a number of microseconds above 0, of type t", bus_option_u64,
                  offsetof(ExecuteOptions, timeout_usec), .min = 1 },
                { "priority", "a number from -100 to 100, of type i", bus_option_i32,
                  offsetof(ExecuteOptions, priority), .min = (uint64_t) -100, .max = 100 },
                { "parent-run", name, read_name, offsetof(ExecuteOptions, parent) },
                { "keep", "true or false", bus_option_bool, offsetof(ExecuteOptions, keep) },
                { "verify", "true or false", bus_option_bool, offsetof(ExecuteOptions, verify) },
                { "labels",
                  "a dictionary of strings (a{ss}), of at most 32 labels with names of A-Z a-z 0-9 . _ : - and short "
                  "values",
                  read_labels, offsetof(ExecuteOptions, labels) },
                {}
        };

        return bus_read_options(m, options, o, e);
}

/* A run may be another's child only while that one is live, and within one user. */
static int check_parent(Manager *m, const char *parent, const char *user, sd_bus_error *e) {
        _cleanup_(store_run_freep) StoreRun *row = NULL;

        if (!run_id_is_valid(parent) || store_run_get(m->store, parent, &row) < 0 || !streq(row->user, user) ||
            row->state == RUN_FINISHED)
                return sd_bus_error_setf(e, BUS_ERROR_NO_SUCH_RUN, "The parent run is not a live run of %s.", user);
        return 0;
}

static int enqueue_error(Manager *m, sd_bus_error *e, int r, const char *user, const char *name) {
        switch (r) {
        case -ENOENT:
                return sd_bus_error_setf(e, BUS_ERROR_NO_SUCH_AGENT,
                                         "%s has no agent \"%s\". Create it first: agentctl agent create FILE.", user,
                                         name);
        case -EEXIST:
                return sd_bus_error_set(e, BUS_ERROR_IDEMPOTENCY_CONFLICT,
                                        "The idempotency key was used before with another input. Use a new key.");
        case -EBUSY:
                return sd_bus_error_set(e, BUS_ERROR_QUEUE_FULL, "The queue of this host is full. Try again later.");
        case -EDQUOT:
                return sd_bus_error_setf(e, BUS_ERROR_QUEUE_FULL, "%s has too many queued runs. Try again later.",
                                         user);
        case -ENOBUFS:
                retention_look(m);
                return sd_bus_error_setf(
                        e, BUS_ERROR_QUOTA_EXCEEDED,
                        "What is kept of %s's finished runs has reached its bound, and what can go by itself is "
                        "being removed. Try again later, or make room: agentctl prune-runs.",
                        user);
        case -ENOSPC:
                return bus_store_error(m, e, r);
        case -EUSERS:
                return sd_bus_error_setf(e, BUS_ERROR_QUEUE_FULL,
                                         "Agent \"%s\" has too many queued runs. Try again later.", name);
        default:
                return bus_store_error(m, e, r);
        }
}

int method_execute_agent(sd_bus_message *msg, void *userdata, sd_bus_error *e) {
        Manager *m = userdata;
        ExecuteOptions o = {};
        _cleanup_free_ char *user = NULL, *name = NULL, *path = NULL, *labels = NULL;
        char id[RUN_ID_LEN + 1];
        const char *ref, *input;
        _cleanup_free_ char *caller = NULL;
        uid_t uid, sender;
        int r, k;

        r = sd_bus_message_read(msg, "ss", &ref, &input);
        if (r < 0)
                return r;
        /* Before anybody is asked about it, since the message is kept until there is an answer. */
        if (strlen(input) > STORE_INPUT_MAX)
                return sd_bus_error_setf(
                        e, BUS_ERROR_INPUT_TOO_LARGE,
                        "The input has %zu bytes; at most %u are taken. Pass larger data as a file of the "
                        "environment or by a service.",
                        strlen(input), STORE_INPUT_MAX);
        r = bus_resolve_owned(m, msg, ref, POLKIT_ACTION_EXECUTE, e, &user, &uid, &name);
        if (r < 0)
                return r;
        if (r == 0)
                return 1; /* will be called again */

        r = read_options(msg, &o, e);
        labels = TAKE_PTR(o.labels);
        if (r < 0)
                return r;
        r = bus_sender_user(msg, &sender, &caller);
        if (r < 0)
                return r;
        /* What a receipt says of the trigger must be true, so only the platform's own triggers may say it. */
        if (o.trigger && sender != 0 && !streq(o.trigger, "dbus"))
                return sd_bus_error_set(e, BUS_ERROR_INVALID_OPTION, "Option trigger must be left out, or \"dbus\".");
        if (o.parent) {
                r = check_parent(m, o.parent, user, e);
                if (r < 0)
                        return r;
        }

        r = store_run_enqueue(m->store,
                              &(StoreRunRequest) {
                                      .user = user,
                                      .uid = uid,
                                      .agent = name,
                                      .trigger = o.trigger ?: "dbus",
                                      .caller = sender == uid ? NULL : caller,
                                      .session = o.session,
                                      .labels = labels,
                                      .idempotency_key = o.idempotency_key,
                                      .parent = o.parent,
                                      .priority = o.priority,
                                      .keep = o.keep,
                                      .verify = o.verify,
                                      .timeout_usec = o.timeout_usec,
                                      .input = input,
                                      .input_size = strlen(input),
                              },
                              &(StoreQueueLimits) {
                                      .queued = m->settings->max_queued,
                                      .queued_per_user = m->settings->max_queued_per_user,
                                      .queued_per_agent = m->settings->max_queued_per_agent,
                                      .finished_bytes_per_user = m->settings->max_size_per_user,
                                      .no_space = retention_check_space(m) < 0,
                              },
                              id);
        if (r < 0)
                return enqueue_error(m, e, r, user, name);
        k = run_object_path(id, &path);
        if (k < 0)
                return k;
        if (r > 0)
                run_signal_new(m, id);
        manager_dispatch_soon(m);
        return sd_bus_reply_method_return(msg, "o", path);
}

int method_get_run(sd_bus_message *msg, void *userdata, sd_bus_error *e) {
        _cleanup_(store_run_freep) StoreRun *row = NULL;
        _cleanup_free_ char *path = NULL;
        const char *id;
        int r;

        r = sd_bus_message_read(msg, "s", &id);
        if (r < 0)
                return r;
        r = bus_resolve_run(userdata, msg, id, POLKIT_ACTION_EXECUTE, e, &row);
        if (r <= 0)
                return r < 0 ? r : 1;
        r = run_object_path(id, &path);
        return r < 0 ? r : sd_bus_reply_method_return(msg, "o", path);
}

static int append_run(const StoreRun *row, void *userdata) {
        _cleanup_free_ char *path = NULL;
        int r;

        r = run_object_path(row->id, &path);
        if (r < 0)
                return r;
        return sd_bus_message_append(userdata, "(sosssssttt)", row->id, path, row->user, row->agent,
                                     run_state_to_string(row->state), strempty(run_result_to_string(row->result)),
                                     row->trigger, row->created_usec, row->started_usec, row->finished_usec);
}

typedef struct ListOptions {
        StoreRunFilter filter;
        const char *agent;
} ListOptions;

static int read_state(sd_bus_message *m, const BusOption *option, void *field, sd_bus_error *e) {
        const char *s;
        int r = bus_option_string(m, option, &s, e);

        if (r < 0)
                return r;
        *(RunState *) field = run_state_from_string(s);
        return *(RunState *) field < 0 ? -EINVAL : 0;
}

static int read_result(sd_bus_message *m, const BusOption *option, void *field, sd_bus_error *e) {
        const char *s;
        int r = bus_option_string(m, option, &s, e);

        if (r < 0)
                return r;
        *(RunResult *) field = run_result_from_string(s);
        return *(RunResult *) field < 0 ? -EINVAL : 0;
}

int method_list_runs(sd_bus_message *msg, void *userdata, sd_bus_error *e) {
        static const BusOption options[] = {
                { "limit", "a number from 1 to 1000, of type u", bus_option_u32, offsetof(ListOptions, filter.limit),
                  .min = 1, .max = STORE_LIST_MAX },
                { "agent", "a string", bus_option_string, offsetof(ListOptions, agent) },
                { "state", "queued, preparing, running or finished", read_state,
                  offsetof(ListOptions, filter.state) },
                { "result", "a result such as success or timeout", read_result,
                  offsetof(ListOptions, filter.result) },
                { "before", "a string", bus_option_string, offsetof(ListOptions, filter.before) },
                {}
        };
        _cleanup_(sd_bus_message_unrefp) sd_bus_message *reply = NULL;
        _cleanup_free_ char *user = NULL;
        ListOptions o = { .filter = STORE_RUN_FILTER_ANY };
        Manager *m = userdata;
        uid_t uid;
        int r;

        r = bus_sender_user(msg, &uid, &user);
        if (r < 0)
                return r;
        r = bus_read_options(msg, options, &o, e);
        if (r < 0)
                return r;
        if (uid != 0) /* others see their own */
                o.filter.user = user;
        if (o.agent) {
                const char *slash = uid == 0 ? strchr(o.agent, '/') : NULL;

                if (slash) {
                        free(user);
                        user = strndup(o.agent, (size_t) (slash - o.agent));
                        if (!user)
                                return -ENOMEM;
                }
                o.filter.user = user;
                o.filter.agent = slash ? slash + 1 : o.agent;
        }
        r = bus_list_open(msg, "(sosssssttt)", &reply);
        if (r < 0)
                return r;
        r = store_run_list(m->store, &o.filter, append_run, reply);
        if (r == -ENOENT)
                return sd_bus_error_set(e, BUS_ERROR_NO_SUCH_RUN, "The run given as \"before\" does not exist.");
        if (r < 0)
                return bus_store_error(m, e, r);
        return bus_list_send(reply);
}

int method_cancel_run(sd_bus_message *msg, void *userdata, sd_bus_error *e) {
        _cleanup_(store_run_freep) StoreRun *row = NULL;
        _cleanup_free_ char *by = NULL;
        Manager *m = userdata;
        RunState state;
        const char *id;
        uid_t uid;
        int r;

        /* From the Run object's own method the id is in the path. */
        if (streq(sd_bus_message_get_member(msg), "Cancel"))
                id = strrchr(sd_bus_message_get_path(msg), '/') + 1;
        else {
                r = sd_bus_message_read(msg, "s", &id);
                if (r < 0)
                        return r;
        }
        r = bus_resolve_run(m, msg, id, POLKIT_ACTION_EXECUTE, e, &row);
        if (r <= 0)
                return r < 0 ? r : 1;
        r = bus_sender_user(msg, &uid, &by);
        if (r < 0)
                return r;
        r = store_run_cancel_request(m->store, id, by, &state);
        if (r == -EALREADY)
                return sd_bus_error_setf(e, BUS_ERROR_RUN_FINISHED, "The run is over already (%s).",
                                         strempty(run_result_to_string(row->result)));
        if (r < 0)
                return bus_store_error(m, e, r);
        if (state == RUN_QUEUED) {
                RunEnd end = RUN_END_NULL;

                end.result = RUN_RESULT_CANCELED;
                end.message = strprintf("Canceled by %s while it was queued.", by);
                r = run_finish_row(m, row, &end);
                run_end_done(&end);
                if (r < 0)
                        return bus_store_error(m, e, r);
        } else {
                Run *run = strmap_get(m->runs, id);

                if (run) {
                        free_and_strdup(&run->row->cancel_by, by);
                        run_cancel(run);
                }
        }
        return sd_bus_reply_method_return(msg, NULL);
}

int method_get_receipt(sd_bus_message *msg, void *userdata, sd_bus_error *e) {
        _cleanup_(store_run_freep) StoreRun *row = NULL;
        _cleanup_free_ char *text = NULL;
        Manager *m = userdata;
        const char *id;
        int r;

        r = sd_bus_message_read(msg, "s", &id);
        if (r < 0)
                return r;
        r = bus_resolve_run(m, msg, id, POLKIT_ACTION_EXECUTE, e, &row);
        if (r <= 0)
                return r < 0 ? r : 1;
        r = store_run_get_receipt(m->store, id, &text);
        if (r == -ENOENT)
                return sd_bus_error_setf(e, BUS_ERROR_RUN_NOT_FINISHED,
                                         "Run %s is %s; its receipt is written at its end.", id,
                                         run_state_to_string(row->state));
        if (r < 0)
                return bus_store_error(m, e, r);
        return sd_bus_reply_method_return(msg, "s", text);
}

int method_get_result(sd_bus_message *msg, void *userdata, sd_bus_error *e) {
        _cleanup_(store_run_freep) StoreRun *row = NULL;
        _cleanup_free_ char *text = NULL;
        Manager *m = userdata;
        const char *id;
        int r;

        r = sd_bus_message_read(msg, "s", &id);
        if (r < 0)
                return r;
        r = bus_resolve_run(m, msg, id, POLKIT_ACTION_EXECUTE, e, &row);
        if (r <= 0)
                return r < 0 ? r : 1;
        r = store_run_get_posted(m->store, id, &text);
        if (r < 0 && r != -ENOENT)
                return bus_store_error(m, e, r);
        return sd_bus_reply_method_return(msg, "s", strempty(text));
}
