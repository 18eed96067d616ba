/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The Manager's methods about runners. A runner is part of every run of every user, so all but the list ask polkit for
 * deploy-runner, whoever calls. */
#include "basic/name-util.h"
#include "basic/string-util.h"
#include "bus-util.h"
#include "runner-deploy.h"

#define AGENTS_MAX 1000U

static int verify(Manager *m, sd_bus_message *msg, sd_bus_error *e) {
        return bus_verify_async(m->polkit, msg, POLKIT_ACTION_DEPLOY_RUNNER, NULL, (uid_t) -1, e);
}

/* "NAME" or "USER/NAME" → added to the list as the latter. */
static int add_agent(char **list, const char *ref, const char *sender, sd_bus_error *e) {
        const char *slash = strchr(ref, '/'), *name = slash ? slash + 1 : ref;
        _cleanup_free_ char *user = slash ? strndup(ref, (size_t) (slash - ref)) : strdup(sender);
        char *n;

        if (!user)
                return -ENOMEM;
        if (!object_name_is_valid(name) || isempty(user) || strchr(user, ' ') || string_has_cc(user))
                return sd_bus_error_setf(e, BUS_ERROR_INVALID_OPTION, "\"%.100s\" is no agent's name.", ref);
        n = strprintf("%s%s%s/%s", strempty(*list), *list ? " " : "", user, name);
        if (!n)
                return -ENOMEM;
        free(*list);
        *list = n;
        return 0;
}

typedef struct DeployOptions {
        const char *note;
        uint32_t percent;
        char **refs;
        char *agents; /* in one text */
} DeployOptions;

static void deploy_options_done(DeployOptions *o) {
        strv_free(o->refs);
        free(o->agents);
}

static int read_options(sd_bus_message *msg, const char *sender, DeployOptions *o, sd_bus_error *e) {
        static const BusOption options[] = {
                { "agents", "an array of strings", bus_option_strings, offsetof(DeployOptions, refs) },
                { "canary", "a share of the runs in percent, 1 to 100, of type u", bus_option_u32,
                  offsetof(DeployOptions, percent), .min = 1, .max = 100 },
                { "note", "one line of at most 1024 bytes", bus_option_string, offsetof(DeployOptions, note),
                  .is_valid = bus_note_is_valid },
                {}
        };
        int r;

        r = bus_read_options(msg, options, o, e);
        if (r < 0)
                return r;
        if (o->percent > 0 && o->refs)
                return sd_bus_error_set(e, BUS_ERROR_INVALID_OPTION,
                                        "A canary goes by share or by agents, not by both.");
        if (o->refs && (strv_length(o->refs) == 0 || strv_length(o->refs) > AGENTS_MAX))
                return sd_bus_error_setf(e, BUS_ERROR_INVALID_OPTION, "Option agents names 1 to %u agents.",
                                         AGENTS_MAX);
        for (char **a = o->refs; r >= 0 && a && *a; a++)
                r = add_agent(&o->agents, *a, sender, e);
        return r;
}

int method_deploy_runner(sd_bus_message *msg, void *userdata, sd_bus_error *e) {
        _cleanup_(deploy_options_done) DeployOptions options = {};
        _cleanup_free_ char *user = NULL;
        Manager *m = userdata;
        uid_t uid;
        bool canary;
        int fd, r;

        r = verify(m, msg, e);
        if (r <= 0)
                return r < 0 ? r : 1;
        r = bus_sender_user(msg, &uid, &user);
        if (r >= 0)
                r = sd_bus_message_read(msg, "h", &fd);
        if (r >= 0)
                r = read_options(msg, user, &options, e);
        if (r < 0)
                return r;
        canary = options.percent > 0 || options.agents;
        if (canary && !runner_set_current(&m->runners))
                return sd_bus_error_set(e, BUS_ERROR_NO_SUCH_RUNNER,
                                        "There is no current runner beside which a canary could be. Deploy one first.");
        return operation_start_and_reply(
                m, msg,
                &(OperationRequest) { .kind = OPERATION_DEPLOY_RUNNER,
                                      .subject = "runner",
                                      .user = user,
                                      .uid = uid,
                                      .input_fd = fd,
                                      .note = options.note,
                                      .sandbox_uid = (uid_t) -1,
                                      .deploy = { .state = canary ? RUNNER_CANARY : RUNNER_CURRENT,
                                                  .percent = options.percent,
                                                  .agents = options.agents } },
                e);
}

/* --- the list ------------------------------------------------------------------------------------------------------
 */

static int append_agents(sd_bus_message *m, const char *list) {
        int r;

        r = sd_bus_message_open_container(m, 'a', "s");
        for (const char *p = list; r >= 0 && p && *p; p += strcspn(p, " "), p += *p == ' ') {
                _cleanup_free_ char *one = strndup(p, strcspn(p, " "));

                r = one ? sd_bus_message_append(m, "s", one) : -ENOMEM;
        }
        return r < 0 ? r : sd_bus_message_close_container(m);
}

static int append_verdict(const StoreVerdict *v, void *userdata) {
        return sd_bus_message_append(userdata, "(sbts)", v->node, (int) v->ok, v->created_usec, strempty(v->reason));
}

/* The store must not be asked from within a walk, so the digests are collected first. */
typedef struct ListContext {
        Store *store;
        sd_bus_message *reply;
        StoreRunner *rows;
        size_t n;
} ListContext;

static int collect_row(const StoreRunner *row, void *userdata) {
        ListContext *c = userdata;
        StoreRunner *rows = reallocarray(c->rows, c->n + 1, sizeof *rows), *x;

        if (!rows)
                return -ENOMEM;
        c->rows = rows;
        x = &rows[c->n++];
        *x = (StoreRunner) { .created_usec = row->created_usec, .state = row->state, .percent = row->percent };
        if (free_and_strdup(&x->digest, row->digest) < 0 || free_and_strdup(&x->name, row->name) < 0 ||
            free_and_strdup(&x->version, row->version) < 0 || free_and_strdup(&x->author, row->author) < 0 ||
            free_and_strdup(&x->note, row->note) < 0 || free_and_strdup(&x->agents, row->agents) < 0)
                return -ENOMEM;
        return 0;
}

static void list_context_done(ListContext *c) {
        for (size_t i = 0; i < c->n; i++) {
                free(c->rows[i].digest);
                free(c->rows[i].name);
                free(c->rows[i].version);
                free(c->rows[i].author);
                free(c->rows[i].note);
                free(c->rows[i].agents);
        }
        free(c->rows);
}

static int append_runner(ListContext *c, const StoreRunner *x) {
        sd_bus_message *m = c->reply;
        int r;

        r = sd_bus_message_open_container(m, 'r', "sssstssuasa(sbts)");
        if (r >= 0)
                r = sd_bus_message_append(m, "sssstssu", x->digest, x->name, x->version,
                                          store_runner_state_to_string(x->state), x->created_usec, x->author,
                                          strempty(x->note), (uint32_t) x->percent);
        if (r >= 0)
                r = append_agents(m, x->agents);
        if (r >= 0)
                r = sd_bus_message_open_container(m, 'a', "(sbts)");
        if (r >= 0)
                r = store_verdict_list(c->store, x->digest, append_verdict, m);
        if (r >= 0)
                r = sd_bus_message_close_container(m);
        return r < 0 ? r : sd_bus_message_close_container(m);
}

int method_list_runners(sd_bus_message *msg, void *userdata, sd_bus_error *e) {
        _cleanup_(sd_bus_message_unrefp) sd_bus_message *reply = NULL;
        Manager *m = userdata;
        ListContext c = { .store = m->store };
        int r;

        r = bus_list_open(msg, "(sssstssuasa(sbts))", &reply);
        if (r < 0)
                return r;
        c.reply = reply;
        r = store_runner_list(m->store, collect_row, &c);
        for (size_t i = 0; r >= 0 && i < c.n; i++)
                r = append_runner(&c, &c.rows[i]);
        list_context_done(&c);
        if (r < 0)
                return bus_store_error(m, e, r);
        return bus_list_send(reply);
}

/* --- moves ---------------------------------------------------------------------------------------------------------
 */

typedef struct FindContext {
        const char *ref;
        char digest[DIGEST_LEN + 1];
        unsigned n;
} FindContext;

static int find_row(const StoreRunner *row, void *userdata) {
        FindContext *f = userdata;

        if (startswith(row->digest, f->ref) || startswith(row->digest + 7, f->ref)) {
                memcpy(f->digest, row->digest, DIGEST_LEN + 1);
                f->n++;
        }
        return 0;
}

/* A digest, or at least 6 digits from its beginning that only one has. */
static int resolve(Manager *m, const char *ref, char ret[static DIGEST_LEN + 1], sd_bus_error *e) {
        FindContext f = { .ref = ref };
        const char *hex = startswith(ref, "sha256:") ?: ref;
        int r;

        if (strlen(hex) < 6 || strlen(hex) > 64 || strspn(hex, "0123456789abcdef") != strlen(hex))
                return sd_bus_error_set(e, BUS_ERROR_NO_SUCH_RUNNER,
                                        "A runner is named by its digest, or by at least 6 digits from its beginning.");
        r = store_runner_list(m->store, find_row, &f);
        if (r < 0)
                return bus_store_error(m, e, r);
        if (f.n != 1)
                return sd_bus_error_setf(e, BUS_ERROR_NO_SUCH_RUNNER,
                                         f.n == 0 ? "There is no runner %s." : "More than one runner begins with %s.",
                                         ref);
        memcpy(ret, f.digest, DIGEST_LEN + 1);
        return 0;
}

static int moved(Manager *m, sd_bus_message *msg, const char *digest, const char *state, const char *what) {
        runner_changed(m);
        log_info("Runner %s is %s.", digest, what);
        sd_bus_emit_signal(m->bus, BUS_PATH, BUS_INTERFACE_MANAGER, "RunnerDeployed", "ss", digest, state);
        return sd_bus_reply_method_return(msg, "s", digest);
}

int method_rollback_runner(sd_bus_message *msg, void *userdata, sd_bus_error *e) {
        char digest[DIGEST_LEN + 1];
        _cleanup_free_ char *to = NULL;
        Manager *m = userdata;
        const char *ref;
        int r;

        r = verify(m, msg, e);
        if (r <= 0)
                return r < 0 ? r : 1;
        r = sd_bus_message_read(msg, "s", &ref);
        if (r >= 0 && !isempty(ref))
                r = resolve(m, ref, digest, e);
        if (r < 0)
                return r;
        r = store_runner_rollback(m->store, isempty(ref) ? NULL : digest, &to);
        if (r == -ENOENT)
                return sd_bus_error_set(e, BUS_ERROR_NO_SUCH_RUNNER,
                                        isempty(ref) ? "There is no previous runner to go back to." :
                                                       "This runner was never current, or is so now.");
        return r < 0 ? bus_store_error(m, e, r) : moved(m, msg, to, "current", "current again (rollback)");
}

static int no_canary(sd_bus_error *e) {
        return sd_bus_error_set(e, BUS_ERROR_NO_SUCH_RUNNER, "There is no canary.");
}

int method_promote_runner(sd_bus_message *msg, void *userdata, sd_bus_error *e) {
        _cleanup_free_ char *digest = NULL;
        Manager *m = userdata;
        int r;

        r = verify(m, msg, e);
        if (r <= 0)
                return r < 0 ? r : 1;
        r = store_runner_promote(m->store, &digest);
        if (r == -ENOENT)
                return no_canary(e);
        return r < 0 ? bus_store_error(m, e, r) : moved(m, msg, digest, "current", "promoted from canary to current");
}

int method_withdraw_runner(sd_bus_message *msg, void *userdata, sd_bus_error *e) {
        _cleanup_free_ char *digest = NULL;
        Manager *m = userdata;
        int r;

        r = verify(m, msg, e);
        if (r <= 0)
                return r < 0 ? r : 1;
        r = store_runner_withdraw(m->store, &digest);
        if (r == -ENOENT)
                return no_canary(e);
        return r < 0 ? bus_store_error(m, e, r) : moved(m, msg, digest, "stored", "no canary any more");
}

static void on_released(int error, const char *message, void *userdata) {
        if (error < 0)
                log_warning_errno(error, "Layers that nobody uses cannot be unmounted: %s", message);
}

/* A live run keeps its mount, and with it the bytes, until it ends. */
int method_remove_runner(sd_bus_message *msg, void *userdata, sd_bus_error *e) {
        char digest[DIGEST_LEN + 1];
        Manager *m = userdata;
        const char *ref;
        int r;

        r = verify(m, msg, e);
        if (r <= 0)
                return r < 0 ? r : 1;
        r = sd_bus_message_read(msg, "s", &ref);
        if (r >= 0)
                r = resolve(m, ref, digest, e);
        if (r < 0)
                return r;
        r = store_runner_remove(m->store, digest);
        if (r == -EBUSY)
                return sd_bus_error_set(
                        e, BUS_ERROR_RUNNER_IN_USE,
                        "It is the current runner, or the canary. Deploy, roll back or withdraw first.");
        if (r < 0)
                return bus_store_error(m, e, r);
        runner_changed(m);
        r = layer_store_remove(m->layers, digest);
        if (r < 0)
                log_warning_errno(r, "The layer of runner %s cannot be removed: %m", digest);
        /* While it is mounted, its bytes stay on the disk. */
        r = worker_release_layers(m->worker, on_released, NULL, NULL);
        if (r < 0)
                log_oom();
        log_info("Runner %s is removed.", digest);
        return sd_bus_reply_method_return(msg, NULL);
}
