/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * "agentctl run": asks for a run and, with --wait, sees it to its end. The match for RunFinished is in place
 * before ExecuteAgent is called, the run's state is read once after the reply, and again when agentd comes back
 * from a restart, so that an end is seen whenever it happens. The run is agentd's: leaving this program in any way
 * does not touch it.
 */

#include "basic/string-util.h"
#include "exit-status.h"
#include "format.h"
#include "input.h"
#include "output.h"
#include "run-info.h"
#include "run-output.h"
#include "verb.h"
#include "waiter.h"

typedef struct RunWait {
        Client *client;
        Waiter *waiter;
        RunInfo info;
        char *id, *path, *shown_state;
} RunWait;

static void run_wait_done(RunWait *w) {
        waiter_free(w->waiter);
        run_info_done(&w->info);
        free(w->id);
        free(w->path);
        free(w->shown_state);
}

static int append_option(sd_bus_message *m, const char *name, const char *type, const void *value) {
        int r;

        r = sd_bus_message_open_container(m, 'e', "sv");
        if (r >= 0)
                r = sd_bus_message_append_basic(m, 's', name);
        if (r >= 0)
                r = sd_bus_message_open_container(m, 'v', type);
        if (r >= 0)
                r = sd_bus_message_append_basic(m, type[0], value);
        if (r >= 0)
                r = sd_bus_message_close_container(m);
        if (r >= 0)
                r = sd_bus_message_close_container(m);
        return r;
}

static int append_labels(sd_bus_message *m, char *const *labels) {
        int r;

        r = sd_bus_message_open_container(m, 'e', "sv");
        if (r >= 0)
                r = sd_bus_message_append_basic(m, 's', "labels");
        if (r >= 0)
                r = sd_bus_message_open_container(m, 'v', "a{ss}");
        if (r >= 0)
                r = sd_bus_message_open_container(m, 'a', "{ss}");
        for (size_t i = 0; r >= 0 && labels[i]; i++) {
                const char *equals = strchr(labels[i], '=');
                _cleanup_free_ char *key = strndup(labels[i], (size_t) (equals - labels[i]));

                r = key ? sd_bus_message_append(m, "{ss}", key, equals + 1) : -ENOMEM;
        }
        if (r >= 0)
                r = sd_bus_message_close_container(m);
        if (r >= 0)
                r = sd_bus_message_close_container(m);
        if (r >= 0)
                r = sd_bus_message_close_container(m);
        return r;
}

static int append_options(sd_bus_message *m, const Options *o) {
        int r;

        r = sd_bus_message_open_container(m, 'a', "{sv}");
        if (r >= 0 && o->session)
                r = append_option(m, "session", "s", o->session);
        if (r >= 0 && o->idempotency_key)
                r = append_option(m, "idempotency-key", "s", o->idempotency_key);
        if (r >= 0 && option_given(o, OPTION_TIMEOUT))
                r = append_option(m, "timeout-usec", "t", &o->timeout_usec);
        if (r >= 0 && option_given(o, OPTION_PRIORITY))
                r = append_option(m, "priority", "i", &o->priority);
        if (r >= 0 && option_given(o, OPTION_KEEP))
                r = append_option(m, "keep", "b", &(int) { true });
        if (r >= 0 && option_given(o, OPTION_VERIFY))
                r = append_option(m, "verify", "b", &(int) { true });
        if (r >= 0 && o->labels)
                r = append_labels(m, o->labels);
        if (r >= 0)
                r = sd_bus_message_close_container(m);
        return r;
}

/* Calls ExecuteAgent; path and id of the run are allocated. */
static int execute(Client *c, const char *agent, char **ret_path, char **ret_id) {
        _cleanup_(sd_bus_message_unrefp) sd_bus_message *m = NULL, *reply = NULL;
        _cleanup_free_ char *text = NULL, *id = NULL;
        const Options *o = c->options;
        const char *path;
        int r;

        if (o->input && o->input_file)
                return fail_usage("--input and --input-file exclude each other.");
        r = o->input_file ? input_read(o->input_file, "The input", &text) :
                            input_check(strempty(o->input), strlen(strempty(o->input)), "The input");
        if (r < 0)
                return r;

        r = client_new_call(c, &manager_target, "ExecuteAgent", &m);
        if (r < 0)
                return r;
        r = sd_bus_message_append(m, "ss", agent, text ?: strempty(o->input));
        if (r >= 0)
                r = append_options(m, o);
        if (r < 0)
                return fail_errno(r, "Cannot make a message: are all arguments UTF-8?");
        r = client_send(c, m, &reply);
        if (r < 0)
                return r;
        r = sd_bus_message_read_basic(reply, 'o', &path);
        if (r >= 0)
                r = sd_bus_path_decode(path, "/org/agentd1/run", &id);
        if (r <= 0)
                return client_bad_reply(r < 0 ? r : -EBADMSG);

        *ret_path = strdup(path);
        if (!*ret_path)
                return fail_oom();
        *ret_id = TAKE_PTR(id);
        return 0;
}

/* Says each state once. */
static void show_state(RunWait *w) {
        if (!client_shows_progress(w->client) || isempty(w->info.state) || run_info_is_over(&w->info) ||
            streq_ptr(w->shown_state, w->info.state))
                return;
        notice("Run %s: %s", w->id, w->info.state);
        (void) free_and_strdup(&w->shown_state, w->info.state);
}

static int run_wait_refresh(void *userdata) {
        _cleanup_(sd_bus_error_free) sd_bus_error error = SD_BUS_ERROR_NULL;
        RunWait *w = userdata;
        int r;

        r = run_info_read(w->client, w->id, &w->info, &error);
        if (r < 0)
                return client_error_is_transient(&error, r) ? -EAGAIN : client_report(&error, r, NULL);
        show_state(w);
        return run_info_is_over(&w->info);
}

static int run_wait_interrupted(void *userdata) {
        RunWait *w = userdata;

        fprintf(stderr,
                "\nRun %s goes on. Follow it with \"agentctl logs -f %s\", end it with \"agentctl cancel %s\".\n",
                w->id, w->id, w->id);
        return 1;
}

static int on_run_finished(sd_bus_message *m, void *userdata, sd_bus_error *error _unused_) {
        const char *id, *result, *message;
        RunWait *w = userdata;

        if (sd_bus_message_read(m, "soss", &id, NULL, &result, &message) < 0 || !streq_ptr(id, w->id))
                return 0;
        if (free_and_strdup(&w->info.state, "finished") < 0 || free_and_strdup(&w->info.result, result) < 0 ||
            free_and_strdup(&w->info.message, message) < 0)
                return 0; /* the next look at the state finds it */
        waiter_finish(w->waiter);
        return 0;
}

static int on_run_changed(sd_bus_message *m _unused_, void *userdata, sd_bus_error *error _unused_) {
        RunWait *w = userdata;

        waiter_poke(w->waiter);
        return 0;
}

static void show_success(const RunWait *w) {
        _cleanup_(sd_bus_error_free) sd_bus_error error = SD_BUS_ERROR_NULL;
        _cleanup_(run_info_done) RunInfo info = {};
        char buf[FORMAT_MAX];

        /* The signal that told the end carries no times */
        if (run_info_read(w->client, w->id, &info, &error) >= 0 && info.started_usec > 0 && info.finished_usec > 0)
                notice("Run %s: success after %s", w->id,
                       format_span(run_duration(info.started_usec, info.finished_usec), buf));
        else
                notice("Run %s: success", w->id);
}

/* The end: output to stdout, how it ended to stderr, and the exit status. */
static int run_wait_tell(RunWait *w) {
        _cleanup_(sd_json_variant_unrefp) sd_json_variant *document = NULL, *v = NULL;
        ExitStatus status = exit_status_from_run_result(w->info.result);
        sd_json_variant *output = NULL;
        Client *c = w->client;
        int r;

        r = run_output_get(c, w->id, &document);
        if (r < 0)
                return status == STATUS_SUCCESS ? r : (int) status;

        if (client_json(c)) {
                if (document)
                        output = sd_json_variant_by_key(document, "output");
                r = sd_json_buildo(&v, SD_JSON_BUILD_PAIR_STRING("run", w->id),
                                   SD_JSON_BUILD_PAIR_STRING("path", w->path),
                                   SD_JSON_BUILD_PAIR_STRING("result", w->info.result),
                                   SD_JSON_BUILD_PAIR_STRING("message", strempty(w->info.message)),
                                   SD_JSON_BUILD_PAIR("output", SD_JSON_BUILD_VARIANT(output)));
                r = r < 0 ? fail_errno(r, "Cannot make JSON") : output_json(c, v);
        } else
                r = run_output_print(c, document);
        if (r < 0)
                return r;

        if (status != STATUS_SUCCESS)
                (void) fail("Run %s ended as %s%s%s", w->id, w->info.result, isempty(w->info.message) ? "." : ": ",
                            strempty(w->info.message));
        else if (client_shows_progress(c))
                show_success(w);
        return (int) status;
}

static int run_and_wait(Client *c, const char *agent) {
        static const WaiterOps ops = { run_wait_refresh, run_wait_interrupted };
        _cleanup_(sd_bus_slot_unrefp) sd_bus_slot *finished_slot = NULL, *changed_slot = NULL;
        _cleanup_(run_wait_done) RunWait w = { .client = c };
        int r;

        c->no_pager = true;
        r = waiter_new(c, &ops, &w, &w.waiter);
        if (r < 0)
                return r;
        r = sd_bus_match_signal(c->bus, &finished_slot, manager_target.destination, manager_target.path,
                                manager_target.interface, "RunFinished", on_run_finished, &w);
        if (r < 0)
                return fail_errno(r, "Cannot subscribe to signals");

        r = execute(c, agent, &w.path, &w.id);
        if (r < 0)
                return r;
        r = properties_match(c, &changed_slot, w.path, on_run_changed, &w);
        if (r < 0)
                return r;

        r = waiter_run(w.waiter);
        if (r == -EINTR)
                return STATUS_INTERRUPTED;
        if (r < 0) {
                notice("Run %s may still be going on; see \"agentctl status %s\".", w.id, w.id);
                return r;
        }
        return run_wait_tell(&w);
}

int verb_run(Client *c, int argc _unused_, char **argv) {
        _cleanup_(sd_json_variant_unrefp) sd_json_variant *v = NULL;
        _cleanup_free_ char *path = NULL, *id = NULL;
        int r;

        if (option_given(c->options, OPTION_WAIT))
                return run_and_wait(c, argv[0]);

        r = execute(c, argv[0], &path, &id);
        if (r < 0)
                return r;
        if (!client_json(c)) {
                printf("%s\n", id);
                return STATUS_SUCCESS;
        }
        r = sd_json_buildo(&v, SD_JSON_BUILD_PAIR_STRING("run", id), SD_JSON_BUILD_PAIR_STRING("path", path));
        if (r < 0)
                return fail_errno(r, "Cannot make JSON");
        return output_json(c, v);
}
