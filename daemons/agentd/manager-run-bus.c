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
        int priority;
        bool keep, verify;
        char *labels; /* JSON, allocated */
} ExecuteOptions;

static int invalid_option(sd_bus_error *e, const char *name, const char *must) {
        return sd_bus_error_setf(e, BUS_ERROR_INVALID_OPTION, "Option %s must be %s.", name, must);
}

static int read_labels(sd_bus_message *m, char **ret, sd_bus_error *e) {
        _cleanup_json_ sd_json_variant *v = NULL;
        const char *key, *value;
        unsigned n = 0;
        int r;

        r = sd_bus_message_enter_container(m, 'v', "a{ss}");
        if (r < 0)
                return invalid_option(e, "labels", "a dictionary of strings (a{ss})");
        r = sd_bus_message_enter_container(m, 'a', "{ss}");
        if (r < 0)
                return r;
        while ((r = sd_bus_message_read(m, "{ss}", &key, &value)) > 0) {
                if (++n > LABELS_MAX || !token_name_is_valid(key) || strlen(value) > LABEL_VALUE_MAX)
                        return invalid_option(e, "labels",
                                              "at most 32 labels with names of A-Z a-z 0-9 . _ : - and short values");
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
        free(*ret);
        *ret = NULL;
        return v ? json_format_canonical(v, ret) : 0;
}

static int read_option(sd_bus_message *m, const char *name, ExecuteOptions *o, sd_bus_error *e) {
        const struct {
                const char *name;
                const char **field;
        } strings[] = {
                { "trigger", &o->trigger },
                { "session", &o->session },
                { "idempotency-key", &o->idempotency_key },
                { "parent-run", &o->parent },
        };
        int b;

        for (size_t i = 0; i < ELEMENTSOF(strings); i++)
                if (streq(name, strings[i].name)) {
                        if (sd_bus_message_read(m, "v", "s", strings[i].field) < 0)
                                return invalid_option(e, name, "a string");
                        if (isempty(*strings[i].field))
                                *strings[i].field = NULL;
                        else if (!token_name_is_valid(*strings[i].field))
                                return invalid_option(e, name, "1 to 128 of A-Z a-z 0-9 . _ : -");
                        return 0;
                }
        if (streq(name, "timeout-usec"))
                return sd_bus_message_read(m, "v", "t", &o->timeout_usec) < 0 || o->timeout_usec == 0
                               ? invalid_option(e, name, "a number of microseconds above 0, of type t")
                               : 0;
        if (streq(name, "priority"))
                return sd_bus_message_read(m, "v", "i", &o->priority) < 0 || o->priority < -100 || o->priority > 100
                               ? invalid_option(e, name, "a number from -100 to 100, of type i")
                               : 0;
        if (streq(name, "keep")) {
                if (sd_bus_message_read(m, "v", "b", &b) < 0)
                        return invalid_option(e, name, "true or false");
                o->keep = b;
                return 0;
        }
        if (streq(name, "verify")) {
                if (sd_bus_message_read(m, "v", "b", &b) < 0)
                        return invalid_option(e, name, "true or false");
                o->verify = b;
                return 0;
        }
        if (streq(name, "labels"))
                return read_labels(m, &o->labels, e);
        return sd_bus_error_setf(e, BUS_ERROR_INVALID_OPTION,
                                 "There is no option \"%.64s\". Options are trigger, session, idempotency-key, "
                                 "timeout-usec, priority, parent-run, keep, verify, labels.",
                                 name);
}

static int read_options(sd_bus_message *m, ExecuteOptions *o, sd_bus_error *e) {
        const char *name;
        int r;

        r = sd_bus_message_enter_container(m, 'a', "{sv}");
        if (r < 0)
                return r;
        while ((r = sd_bus_message_enter_container(m, 'e', "sv")) > 0) {
                r = sd_bus_message_read(m, "s", &name);
                if (r < 0)
                        return r;
                r = read_option(m, name, o, e);
                if (r < 0)
                        return r;
                r = sd_bus_message_exit_container(m);
                if (r < 0)
                        return r;
        }
        return r < 0 ? r : sd_bus_message_exit_container(m);
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
        r = bus_resolve_owned(m, msg, ref, POLKIT_ACTION_EXECUTE, e, &user, &uid, &name);
        if (r < 0)
                return r;
        if (r == 0)
                return 1; /* will be called again */

        r = read_options(msg, &o, e);
        labels = TAKE_PTR(o.labels);
        if (r < 0)
                return r;
        if (strlen(input) > STORE_INPUT_MAX)
                return sd_bus_error_setf(
                        e, BUS_ERROR_INPUT_TOO_LARGE,
                        "The input has %zu bytes; at most %u are taken. Pass larger data as a file of the "
                        "environment or by a service.",
                        strlen(input), STORE_INPUT_MAX);
        r = bus_sender_user(msg, &sender, &caller);
        if (r < 0)
                return r;
        /* What a receipt says of the trigger must be true, so only the platform's own triggers may say it. */
        if (o.trigger && sender != 0 && !streq(o.trigger, "dbus"))
                return invalid_option(e, "trigger", "left out, or \"dbus\"");
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

int method_list_runs(sd_bus_message *msg, void *userdata, sd_bus_error *e) {
        _cleanup_(sd_bus_message_unrefp) sd_bus_message *reply = NULL;
        _cleanup_free_ char *user = NULL;
        StoreRunFilter filter = STORE_RUN_FILTER_ANY;
        Manager *m = userdata;
        const char *name, *s;
        uint32_t limit;
        uid_t uid;
        int r;

        r = bus_sender_user(msg, &uid, &user);
        if (r < 0)
                return r;
        if (uid != 0) /* others see their own */
                filter.user = user;
        r = sd_bus_message_enter_container(msg, 'a', "{sv}");
        if (r < 0)
                return r;
        while ((r = sd_bus_message_enter_container(msg, 'e', "sv")) > 0) {
                r = sd_bus_message_read(msg, "s", &name);
                if (r < 0)
                        return r;
                if (streq(name, "limit")) {
                        if (sd_bus_message_read(msg, "v", "u", &limit) < 0 || limit == 0 || limit > STORE_LIST_MAX)
                                return invalid_option(e, name, "a number from 1 to 1000, of type u");
                        filter.limit = limit;
                } else {
                        if (sd_bus_message_read(msg, "v", "s", &s) < 0)
                                return invalid_option(e, name, "a string");
                        if (streq(name, "agent")) {
                                const char *slash = strchr(s, '/');

                                if (slash && uid == 0) {
                                        free(user);
                                        user = strndup(s, (size_t) (slash - s));
                                        s = slash + 1;
                                        if (!user)
                                                return -ENOMEM;
                                }
                                filter.user = user;
                                filter.agent = s;
                        } else if (streq(name, "state")) {
                                filter.state = run_state_from_string(s);
                                if (filter.state < 0)
                                        return invalid_option(e, name, "queued, preparing, running or finished");
                        } else if (streq(name, "result")) {
                                filter.result = run_result_from_string(s);
                                if (filter.result < 0)
                                        return invalid_option(e, name, "a result such as success or timeout");
                        } else if (streq(name, "before"))
                                filter.before = s;
                        else
                                return sd_bus_error_setf(e, BUS_ERROR_INVALID_OPTION, "There is no filter \"%.64s\".",
                                                         name);
                }
                r = sd_bus_message_exit_container(msg);
                if (r < 0)
                        return r;
        }
        if (r < 0)
                return r;
        r = bus_list_open(msg, "(sosssssttt)", &reply);
        if (r < 0)
                return r;
        r = store_run_list(m->store, &filter, append_run, reply);
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
