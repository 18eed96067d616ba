/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* Runs as a list, one run's state, and ending one. */

#include "exit-status.h"
#include "format.h"
#include "output.h"
#include "run-info.h"
#include "verb.h"

#define PAGE_SIZE UINT64_C(1000)
#define PRUNE_TIMEOUT_USEC (3600 * USEC_PER_SEC)

static const Column columns[] = {
        { "RUN", "id", CELL_STRING },
        { NULL, "path", CELL_STRING },
        { "USER", "user", CELL_STRING },
        { "AGENT", "agent", CELL_STRING },
        { "STATE", "state", CELL_STRING },
        { "RESULT", "result", CELL_STRING },
        { "TRIGGER", "trigger", CELL_STRING },
        { "CREATED", "created_usec", CELL_TIME },
        { NULL, "started_usec", CELL_TIME },
        { NULL, "finished_usec", CELL_TIME },
        { "DURATION", "duration_usec", CELL_SPAN },
};

static int append_filter(sd_bus_message *m, const Options *o, uint32_t limit, const char *before) {
        const struct {
                const char *name, *value;
        } strings[] = {
                { "agent", o->agent },
                { "state", o->state },
                { "result", o->result },
                { "before", before },
        };
        int r;

        r = sd_bus_message_open_container(m, 'a', "{sv}");
        if (r >= 0)
                r = sd_bus_message_append(m, "{sv}", "limit", "u", limit);
        for (size_t i = 0; r >= 0 && i < ELEMENTSOF(strings); i++)
                if (strings[i].value)
                        r = sd_bus_message_append(m, "{sv}", strings[i].name, "s", strings[i].value);
        if (r >= 0)
                r = sd_bus_message_close_container(m);
        return r;
}

/* One page of at most LIMIT into the table. *before becomes the last id. Returns the number of rows. */
static int add_page(Client *c, Table *t, uint32_t limit, char before[static 64]) {
        _cleanup_(sd_bus_message_unrefp) sd_bus_message *m = NULL, *reply = NULL;
        const char *id, *path, *user, *agent, *state, *result, *trigger;
        uint64_t created, started, finished;
        int r, n = 0;

        r = client_new_call(c, &manager_target, "ListRuns", &m);
        if (r < 0)
                return r;
        r = append_filter(m, c->options, limit, isempty(before) ? NULL : before);
        if (r < 0)
                return fail_errno(r, "Cannot make a message");
        r = client_send(c, m, &reply);
        if (r < 0)
                return r;

        r = sd_bus_message_enter_container(reply, 'a', "(sosssssttt)");
        if (r < 0)
                return client_bad_reply(r);
        while ((r = sd_bus_message_read(reply, "(sosssssttt)", &id, &path, &user, &agent, &state, &result, &trigger,
                                        &created, &started, &finished)) > 0) {
                const char *strings[] = { id, path, user, agent, state, result, trigger };

                for (size_t i = 0; i < ELEMENTSOF(strings); i++)
                        if (table_add_string(t, strings[i]) < 0)
                                return fail_oom();
                if (table_add_number(t, created) < 0 || table_add_number(t, started) < 0 ||
                    table_add_number(t, finished) < 0 ||
                    table_add_number(t, finished > 0 && started == 0 ? USEC_INFINITY
                                                                     : run_duration(started, finished)) < 0)
                        return fail_oom();
                snprintf(before, 64, "%s", id);
                n++;
        }
        return r < 0 ? client_bad_reply(r) : n;
}

int verb_runs(Client *c, int argc _unused_, char **argv _unused_) {
        _cleanup_(table_freep) Table *t = NULL;
        uint64_t left = c->options->lines;
        char before[64] = "";
        int r;

        t = table_new(columns, ELEMENTSOF(columns));
        if (!t)
                return fail_oom();
        while (left > 0) {
                uint32_t limit = (uint32_t) MIN(left, PAGE_SIZE);

                r = add_page(c, t, limit, before);
                if (r < 0)
                        return r;
                if ((uint32_t) r < limit)
                        break;
                left -= limit;
        }
        return output_table(c, t, "runs");
}

int verb_prune_runs(Client *c, int argc, char **argv) {
        _cleanup_(sd_bus_message_unrefp) sd_bus_message *m = NULL, *reply = NULL;
        const Options *o = c->options;
        bool dry_run = option_given(o, OPTION_DRY_RUN);
        char size[FORMAT_MAX];
        uint64_t bytes;
        uint32_t runs;
        int r;

        if (!option_given(o, OPTION_KEEP_NEWEST) && o->older_than_usec == 0)
                return fail_usage("Which runs are to go? Give --keep=N, --older-than=TIME or both.");
        r = client_new_call(c, &manager_target, "PruneRuns", &m);
        if (r < 0)
                return r;
        (void) sd_bus_set_method_call_timeout(c->bus, PRUNE_TIMEOUT_USEC); /* answered when all is done */
        r = sd_bus_message_append(m, "s", argc > 0 ? argv[0] : "");
        if (r >= 0)
                r = sd_bus_message_open_container(m, 'a', "{sv}");
        if (r >= 0 && option_given(o, OPTION_KEEP_NEWEST))
                r = sd_bus_message_append(m, "{sv}", "keep", "u", o->keep_newest);
        if (r >= 0 && o->older_than_usec > 0)
                r = sd_bus_message_append(m, "{sv}", "older-than-usec", "t", o->older_than_usec);
        if (r >= 0 && dry_run)
                r = sd_bus_message_append(m, "{sv}", "dry-run", "b", 1);
        if (r >= 0)
                r = sd_bus_message_close_container(m);
        if (r < 0)
                return fail_errno(r, "Cannot make a message");
        r = client_send(c, m, &reply);
        if (r < 0)
                return r;
        r = sd_bus_message_read(reply, "ut", &runs, &bytes);
        if (r < 0)
                return client_bad_reply(r);
        if (client_json(c)) {
                _cleanup_(sd_json_variant_unrefp) sd_json_variant *v = NULL;

                r = sd_json_buildo(&v, SD_JSON_BUILD_PAIR_UNSIGNED("runs", runs),
                                   SD_JSON_BUILD_PAIR_UNSIGNED("bytes", bytes),
                                   SD_JSON_BUILD_PAIR_BOOLEAN("dry_run", dry_run));
                return r < 0 ? fail_errno(r, "Cannot make JSON") : output_json(c, v);
        }
        if (!client_quiet(c))
                printf("%u run%s %s, with %s.\n", runs, format_plural(runs), dry_run ? "would be removed" : "removed",
                       format_size(bytes, size));
        return STATUS_SUCCESS;
}

static void print_field(const char *name, const char *value) {
        _cleanup_free_ char *escaped = NULL;

        if (isempty(value))
                return;
        escaped = text_escape(value, strlen(value), false);
        printf("%12s: %s\n", name, strempty(escaped));
}

static void print_time(const char *name, uint64_t usec) {
        char buf[FORMAT_MAX];

        if (usec > 0)
                print_field(name, format_time(usec, buf));
}

static void print_status(const RunInfo *i) {
        uint64_t duration = i->finished_usec > 0 && i->started_usec == 0
                                    ? USEC_INFINITY
                                    : run_duration(i->started_usec, i->finished_usec);
        char buf[FORMAT_MAX];

        print_field("Run", i->id);
        print_field("Agent", i->agent);
        print_field("User", i->user);
        print_field("Trigger", i->trigger);
        print_field("Session", i->session);
        if (isempty(i->result))
                print_field("State", i->state);
        else
                printf("%12s: %s (%s)\n", "State", i->state, i->result);
        print_field("Message", i->message);
        if (i->attempt > 1) {
                snprintf(buf, sizeof(buf), "%" PRIu32, i->attempt);
                print_field("Attempt", buf);
        }
        print_field("Unit", i->unit);
        print_time("Created", i->created_usec);
        print_time("Started", i->started_usec);
        print_time("Finished", i->finished_usec);
        if (duration != USEC_INFINITY)
                print_field("Duration", format_span(duration, buf));
        if (i->finished_usec == 0)
                print_time("Deadline", i->deadline_usec);
        print_field("Generation", i->generation);
        print_field("Environment", i->environment);
        print_field("Runner", i->runner);
}

static int status_to_json(const RunInfo *info, sd_json_variant **ret) {
        _cleanup_(sd_json_variant_unrefp) sd_json_variant *object = NULL;
        static const struct {
                const char *key;
                size_t offset;
                char type;
        } fields[] = {
                { "id", offsetof(RunInfo, id), 's' },
                { "agent", offsetof(RunInfo, agent), 's' },
                { "user", offsetof(RunInfo, user), 's' },
                { "trigger", offsetof(RunInfo, trigger), 's' },
                { "session", offsetof(RunInfo, session), 's' },
                { "state", offsetof(RunInfo, state), 's' },
                { "result", offsetof(RunInfo, result), 's' },
                { "message", offsetof(RunInfo, message), 's' },
                { "attempt", offsetof(RunInfo, attempt), 'u' },
                { "unit", offsetof(RunInfo, unit), 's' },
                { "generation", offsetof(RunInfo, generation), 's' },
                { "environment", offsetof(RunInfo, environment), 's' },
                { "runner", offsetof(RunInfo, runner), 's' },
                { "created_usec", offsetof(RunInfo, created_usec), 't' },
                { "started_usec", offsetof(RunInfo, started_usec), 't' },
                { "finished_usec", offsetof(RunInfo, finished_usec), 't' },
                { "deadline_usec", offsetof(RunInfo, deadline_usec), 't' },
        };

        for (size_t i = 0; i < ELEMENTSOF(fields); i++) {
                const void *field = (const uint8_t *) info + fields[i].offset;
                _cleanup_(sd_json_variant_unrefp) sd_json_variant *v = NULL;
                int r;

                if (fields[i].type == 's') {
                        const char *s = *(const char *const *) field;
                        r = isempty(s) ? sd_json_variant_new_null(&v) : sd_json_variant_new_string(&v, s);
                } else {
                        uint64_t n = fields[i].type == 'u' ? *(const uint32_t *) field : *(const uint64_t *) field;
                        r = n == 0 && fields[i].type == 't' ? sd_json_variant_new_null(&v) :
                                                              sd_json_variant_new_unsigned(&v, n);
                }
                if (r >= 0)
                        r = sd_json_variant_set_field(&object, fields[i].key, v);
                if (r < 0)
                        return r;
        }
        *ret = TAKE_PTR(object);
        return 0;
}

int verb_status(Client *c, int argc _unused_, char **argv) {
        _cleanup_(sd_bus_error_free) sd_bus_error error = SD_BUS_ERROR_NULL;
        _cleanup_(sd_json_variant_unrefp) sd_json_variant *v = NULL;
        _cleanup_(run_info_done) RunInfo info = {};
        _cleanup_free_ char *id = NULL;
        int r;

        r = run_id_resolve(c, argv[0], &id);
        if (r < 0)
                return r;
        r = run_info_read(c, id, &info, &error);
        if (r < 0)
                return client_report(&error, r, NULL);

        if (!client_json(c)) {
                print_status(&info);
                return STATUS_SUCCESS;
        }
        r = status_to_json(&info, &v);
        if (r < 0)
                return fail_errno(r, "Cannot make JSON");
        return output_json(c, v);
}

int verb_cancel(Client *c, int argc _unused_, char **argv) {
        _cleanup_(sd_json_variant_unrefp) sd_json_variant *v = NULL;
        _cleanup_free_ char *id = NULL;
        int r;

        r = run_id_resolve(c, argv[0], &id);
        if (r < 0)
                return r;
        r = client_call(c, &manager_target, "CancelRun", NULL, "s", id);
        if (r < 0)
                return r;
        if (!client_json(c)) {
                if (!client_quiet(c))
                        notice("Run %s is being canceled.", id);
                return STATUS_SUCCESS;
        }
        r = sd_json_buildo(&v, SD_JSON_BUILD_PAIR_STRING("run", id), SD_JSON_BUILD_PAIR_STRING("result", "canceled"));
        if (r < 0)
                return fail_errno(r, "Cannot make JSON");
        return output_json(c, v);
}
