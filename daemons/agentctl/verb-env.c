/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* Environments: their generations, what differs between them, moving the head, and the store that keeps them. */

#include <fcntl.h>
#include <sys/stat.h>

#include "basic/name-util.h"
#include "basic/string-util.h"
#include "exit-status.h"
#include "format.h"
#include "operation.h"
#include "output.h"
#include "run-info.h"
#include "verb.h"

int verb_env_log(Client *c, int argc _unused_, char **argv) {
        static const Column columns[] = {
                { "N", "number", CELL_NUMBER },
                { "GENERATION", "digest", CELL_DIGEST },
                { "PARENT", "parent", CELL_DIGEST },
                { "CREATED", "created_usec", CELL_TIME },
                { "AUTHOR", "author", CELL_STRING },
                { "HEAD", "head", CELL_BOOL },
                { "NOTE", "note", CELL_STRING },
        };
        _cleanup_(sd_bus_message_unrefp) sd_bus_message *reply = NULL;
        const char *digest, *parent, *author, *note;
        _cleanup_(table_freep) Table *t = NULL;
        uint64_t created, number;
        int head, r;

        r = client_call(c, &manager_target, "ListGenerations", &reply, "s", argv[0]);
        if (r < 0)
                return r;
        t = table_new(columns, ELEMENTSOF(columns));
        if (!t)
                return fail_oom();

        r = sd_bus_message_enter_container(reply, 'a', "(sstssbt)");
        if (r < 0)
                return client_bad_reply(r);
        while ((r = sd_bus_message_read(reply, "(sstssbt)", &digest, &parent, &created, &author, &note, &head,
                                        &number)) > 0)
                if (table_add_number(t, number) < 0 || table_add_string(t, digest) < 0 ||
                    table_add_string(t, parent) < 0 || table_add_number(t, created) < 0 ||
                    table_add_string(t, author) < 0 || table_add_number(t, (uint64_t) (head != 0)) < 0 ||
                    table_add_string(t, note) < 0)
                        return fail_oom();
        if (r < 0)
                return client_bad_reply(r);
        return output_table(c, t, "generations");
}

int verb_env_freeze(Client *c, int argc _unused_, char **argv) {
        _cleanup_(sd_bus_message_unrefp) sd_bus_message *m = NULL;
        const Options *o = c->options;
        _cleanup_free_ char *id = NULL;
        int r;

        if (o->from_run) {
                r = run_id_resolve(c, o->from_run, &id);
                if (r < 0)
                        return r;
        }
        r = client_new_call(c, &manager_target, "FreezeEnvironment", &m);
        if (r < 0)
                return r;
        r = sd_bus_message_append(m, "s", argv[0]);
        if (r >= 0)
                r = sd_bus_message_open_container(m, 'a', "{sv}");
        if (r >= 0 && id)
                r = sd_bus_message_append(m, "{sv}", "from-run", "s", id);
        if (r >= 0 && o->note)
                r = sd_bus_message_append(m, "{sv}", "note", "s", o->note);
        if (r >= 0)
                r = sd_bus_message_close_container(m);
        if (r < 0)
                return fail_errno(r, "Cannot make a message");
        return operation_run(c, m, "The environment of", argv[0], "has a new generation");
}

int verb_env_show(Client *c, int argc, char **argv) {
        _cleanup_(sd_bus_message_unrefp) sd_bus_message *reply = NULL;
        const char *text;
        int r;

        r = client_call(c, &manager_target, "ShowGeneration", &reply, "ss", argv[0], argc > 1 ? argv[1] : "head");
        if (r < 0)
                return r;
        r = sd_bus_message_read_basic(reply, 's', &text);
        return r < 0 ? client_bad_reply(r) : output_json_text(c, text);
}

static const char *member(sd_json_variant *v, const char *key) {
        sd_json_variant *m = sd_json_variant_by_key(v, key);

        return m && sd_json_variant_is_string(m) ? sd_json_variant_string(m) : NULL;
}

static uint64_t number(sd_json_variant *v, const char *key) {
        sd_json_variant *m = sd_json_variant_by_key(v, key);

        return m && sd_json_variant_is_unsigned(m) ? sd_json_variant_unsigned(m) : 0;
}

/* agentd compares whole digests; people have the beginning of one, as "env log" shows it. */
static int find_digest(Client *c, const char *agent, const char *generation, char **ret) {
        _cleanup_(sd_bus_message_unrefp) sd_bus_message *reply = NULL;
        _cleanup_(sd_json_variant_unrefp) sd_json_variant *v = NULL;
        const char *text, *digest = NULL;
        int r;

        r = client_call(c, &manager_target, "ShowGeneration", &reply, "ss", agent, generation);
        if (r < 0)
                return r;
        r = sd_bus_message_read_basic(reply, 's', &text);
        if (r >= 0)
                r = sd_json_parse(text, 0, &v, NULL, NULL);
        if (r >= 0)
                digest = member(v, "digest");
        if (!digest)
                return client_bad_reply(r < 0 ? r : -EBADMSG);
        *ret = strdup(digest);
        return *ret ? 0 : fail_oom();
}

int verb_env_rollback(Client *c, int argc _unused_, char **argv) {
        _cleanup_(sd_bus_message_unrefp) sd_bus_message *m = NULL, *reply = NULL;
        const char *head = c->options->expected_head, *digest;
        _cleanup_free_ char *found = NULL;
        int r;

        if (head && !digest_is_valid(head)) {
                r = find_digest(c, argv[0], head, &found);
                if (r < 0)
                        return r;
                head = found;
        }
        r = client_new_call(c, &manager_target, "RollbackEnvironment", &m);
        if (r < 0)
                return r;
        r = sd_bus_message_append(m, "ss", argv[0], argv[1]);
        if (r >= 0)
                r = head ? sd_bus_message_append(m, "a{sv}", 1, "expected-head", "s", head) :
                           sd_bus_message_append(m, "a{sv}", 0);
        if (r < 0)
                return fail_errno(r, "Cannot make a message");
        r = client_send(c, m, &reply);
        if (r < 0)
                return r;
        r = sd_bus_message_read_basic(reply, 's', &digest);
        if (r < 0)
                return client_bad_reply(r);
        if (client_json(c)) {
                _cleanup_(sd_json_variant_unrefp) sd_json_variant *v = NULL;

                r = sd_json_buildo(&v, SD_JSON_BUILD_PAIR_STRING("agent", argv[0]),
                                   SD_JSON_BUILD_PAIR_STRING("head", digest));
                return r < 0 ? fail_errno(r, "Cannot make JSON") : output_json(c, v);
        }
        if (!client_quiet(c))
                notice("The next run of %s boots from that generation.", argv[0]);
        printf("%s\n", digest);
        return STATUS_SUCCESS;
}

static void print_path(sd_json_variant *v) {
        const char *change = strempty(member(v, "change"));
        bool added = streq(change, "added"), removed = streq(change, "removed");
        char from[FORMAT_MAX], to[FORMAT_MAX];
        sd_json_variant *what = sd_json_variant_by_key(v, "what");

        format_size(number(v, "from_size"), from);
        format_size(number(v, "to_size"), to);
        output_printf("%c %s", added ? '+' : removed ? '-' : '~', strempty(member(v, "path")));
        if (!streq(strempty(member(v, "type")), "file"))
                output_printf(" [%s]", strempty(member(v, "type")));
        else if (added || removed)
                output_printf(" %s", added ? to : from);
        else if (number(v, "from_size") != number(v, "to_size"))
                output_printf(" %s -> %s", from, to);
        for (size_t i = 0; what && i < sd_json_variant_elements(what); i++)
                output_printf("%s%s", i == 0 ? " (" : ", ",
                              strempty(sd_json_variant_string(sd_json_variant_by_index(what, i))));
        puts(what && sd_json_variant_elements(what) > 0 ? ")" : "");
}

static int print_diff(Client *c, sd_json_variant *v) {
        sd_json_variant *paths = sd_json_variant_by_key(v, "paths"), *packages = sd_json_variant_by_key(v, "packages"),
                        *totals = sd_json_variant_by_key(v, "totals"), *bytes, *truncated;
        char size[FORMAT_MAX];
        int64_t n;

        if (client_json(c))
                return output_json(c, v);
        for (size_t i = 0; packages && i < sd_json_variant_elements(packages); i++) {
                sd_json_variant *p = sd_json_variant_by_index(packages, i);
                const char *from = member(p, "from"), *to = member(p, "to");

                output_printf("%c %s: %s %s%s%s\n", !from ? '+' : !to ? '-' : '~', strempty(member(p, "manager")),
                              strempty(member(p, "name")), strempty(from), from && to ? " -> " : "", strempty(to));
        }
        for (size_t i = 0; paths && i < sd_json_variant_elements(paths); i++)
                print_path(sd_json_variant_by_index(paths, i));
        truncated = sd_json_variant_by_key(v, "truncated");
        if (truncated && sd_json_variant_is_boolean(truncated) && sd_json_variant_boolean(truncated))
                puts("...");
        if (!totals || !c->options->legend || client_quiet(c))
                return STATUS_SUCCESS;
        bytes = sd_json_variant_by_key(totals, "bytes");
        n = bytes && sd_json_variant_is_integer(bytes) ? sd_json_variant_integer(bytes) : 0;
        if (number(totals, "added") + number(totals, "removed") + number(totals, "changed") > 0)
                putchar('\n');
        printf("%" PRIu64 " added, %" PRIu64 " removed, %" PRIu64 " changed; %s%s.\n", number(totals, "added"),
               number(totals, "removed"), number(totals, "changed"),
               format_size((uint64_t) (n < 0 ? -n : n), size), n < 0 ? " less" : " more");
        return STATUS_SUCCESS;
}

int verb_env_diff(Client *c, int argc, char **argv) {
        _cleanup_(sd_bus_message_unrefp) sd_bus_message *m = NULL;
        _cleanup_(sd_json_variant_unrefp) sd_json_variant *v = NULL;
        _cleanup_(operation_end_done) OperationEnd end = {};
        int r;

        r = client_new_call(c, &manager_target, "DiffGenerations", &m);
        if (r < 0)
                return r;
        r = sd_bus_message_append(m, "sssa{sv}", argv[0], argv[1], argc > 2 ? argv[2] : "head", 0);
        if (r < 0)
                return fail_errno(r, "Cannot make a message");
        r = operation_wait(c, m, argv[0], &end);
        if (r < 0)
                return r;
        if (end.status != STATUS_SUCCESS)
                return end.status;
        r = operation_read_result(c, end.path, &v);
        return r < 0 ? r : print_diff(c, v);
}

int verb_env_prune(Client *c, int argc, char **argv) {
        _cleanup_(sd_bus_message_unrefp) sd_bus_message *m = NULL, *reply = NULL;
        uint32_t keep = c->options->keep_newest, generations, layers;
        char size[FORMAT_MAX];
        uint64_t bytes;
        int r;

        if (option_given(c->options, OPTION_KEEP_NEWEST) && keep == 0)
                return fail_usage("At least one generation stays: --keep=1 or more.");
        r = client_new_call(c, &manager_target, "PruneEnvironments", &m);
        if (r < 0)
                return r;
        r = sd_bus_message_append(m, "s", argc > 0 ? argv[0] : "");
        if (r >= 0)
                r = keep > 0 ? sd_bus_message_append(m, "a{sv}", 1, "keep", "u", keep) :
                               sd_bus_message_append(m, "a{sv}", 0);
        if (r < 0)
                return fail_errno(r, "Cannot make a message");
        r = client_send(c, m, &reply);
        if (r < 0)
                return r;
        r = sd_bus_message_read(reply, "uut", &generations, &layers, &bytes);
        if (r < 0)
                return client_bad_reply(r);
        if (client_json(c)) {
                _cleanup_(sd_json_variant_unrefp) sd_json_variant *v = NULL;

                r = sd_json_buildo(&v, SD_JSON_BUILD_PAIR_UNSIGNED("generations", generations),
                                   SD_JSON_BUILD_PAIR_UNSIGNED("layers", layers),
                                   SD_JSON_BUILD_PAIR_UNSIGNED("bytes", bytes));
                return r < 0 ? fail_errno(r, "Cannot make JSON") : output_json(c, v);
        }
        if (!client_quiet(c))
                printf("%u generation%s and %u layer%s removed, %s freed.\n", generations, format_plural(generations),
                       layers, format_plural(layers), format_size(bytes, size));
        return STATUS_SUCCESS;
}

static void print_users(sd_json_variant *problem) {
        sd_json_variant *users = sd_json_variant_by_key(problem, "users");

        for (size_t i = 0; users && i < sd_json_variant_elements(users); i++) {
                sd_json_variant *u = sd_json_variant_by_index(users, i), *head = sd_json_variant_by_key(u, "head");
                const char *image = member(u, "image"), *runner = member(u, "runner");

                if (runner)
                        output_printf("  runner %s\n", runner);
                else if (image)
                        output_printf("  image %s\n", image);
                else
                        output_printf("  %s, generation %" PRIu64 "%s, %s\n", strempty(member(u, "agent")),
                                      number(u, "number"),
                                      head && sd_json_variant_is_boolean(head) && sd_json_variant_boolean(head) ?
                                              " (head)" : "",
                                      strempty(member(u, "generation")));
        }
}

int verb_env_fsck(Client *c, int argc _unused_, char **argv _unused_) {
        sd_json_variant *problems, *repaired, *unused;
        _cleanup_(sd_bus_message_unrefp) sd_bus_message *m = NULL;
        _cleanup_(sd_json_variant_unrefp) sd_json_variant *v = NULL;
        _cleanup_(operation_end_done) OperationEnd end = {};
        char size[FORMAT_MAX];
        int r;

        r = client_new_call(c, &manager_target, "CheckEnvironments", &m);
        if (r < 0)
                return r;
        r = sd_bus_message_append(m, "a{sv}", 0);
        if (r < 0)
                return fail_errno(r, "Cannot make a message");
        r = operation_wait(c, m, "store", &end);
        if (r < 0)
                return r;
        if (!end.path || (end.status != STATUS_SUCCESS && end.status != STATUS_FAILED))
                return end.status;
        r = operation_read_result(c, end.path, &v);
        if (r < 0)
                return r;
        if (client_json(c)) {
                r = output_json(c, v);
                return r < 0 ? r : end.status;
        }
        problems = sd_json_variant_by_key(v, "problems");
        for (size_t i = 0; problems && i < sd_json_variant_elements(problems); i++) {
                sd_json_variant *p = sd_json_variant_by_index(problems, i);

                output_printf("%s\n", strempty(member(p, "message")));
                print_users(p);
        }
        repaired = sd_json_variant_by_key(v, "repaired");
        for (size_t i = 0; repaired && i < sd_json_variant_elements(repaired); i++)
                printf("Written anew: the document of %s.\n",
                       strempty(member(sd_json_variant_by_index(repaired, i), "digest")));
        unused = sd_json_variant_by_key(v, "unused");
        if (!client_quiet(c)) {
                uint64_t layers = number(v, "layers"), generations = number(v, "generations");
                size_t n = problems ? sd_json_variant_elements(problems) : 0;

                printf("%" PRIu64 " layer%s (%s) and %" PRIu64 " generation%s checked, %zu problem%s.\n", layers,
                       format_plural(layers), format_size(number(v, "bytes"), size), generations,
                       format_plural(generations), n, format_plural(n));
                n = unused ? sd_json_variant_elements(unused) : 0;
                if (n > 0)
                        printf("%zu layer%s needed by nobody: agentctl env prune.\n", n, n == 1 ? " is" : "s are");
        }
        return end.status;
}

int verb_env_du(Client *c, int argc _unused_, char **argv _unused_) {
        static const Column columns[] = {
                { "AGENT", "agent", CELL_STRING },   { "GENERATIONS", "generations", CELL_NUMBER },
                { "LAYERS", "layers", CELL_NUMBER }, { "SIZE", "bytes", CELL_SIZE },
                { "OWN", "own", CELL_SIZE },         { "SHARED", "shared", CELL_SIZE },
        };
        _cleanup_(sd_bus_message_unrefp) sd_bus_message *reply = NULL;
        _cleanup_(sd_json_variant_unrefp) sd_json_variant *v = NULL;
        _cleanup_(table_freep) Table *t = NULL;
        char total[FORMAT_MAX], unused[FORMAT_MAX];
        sd_json_variant *agents;
        const char *text;
        int r;

        r = client_call(c, &manager_target, "GetDiskUsage", &reply, NULL);
        if (r < 0)
                return r;
        r = sd_bus_message_read_basic(reply, 's', &text);
        if (r >= 0)
                r = sd_json_parse(text, 0, &v, NULL, NULL);
        if (r < 0)
                return client_bad_reply(r);
        if (client_json(c))
                return output_json(c, v);
        t = table_new(columns, ELEMENTSOF(columns));
        if (!t)
                return fail_oom();
        agents = sd_json_variant_by_key(v, "agents");
        for (size_t i = 0; agents && i < sd_json_variant_elements(agents); i++) {
                sd_json_variant *a = sd_json_variant_by_index(agents, i);

                if (table_add_string(t, strempty(member(a, "agent"))) < 0 ||
                    table_add_number(t, number(a, "generations")) < 0 || table_add_number(t, number(a, "layers")) < 0 ||
                    table_add_number(t, number(a, "bytes")) < 0 || table_add_number(t, number(a, "own")) < 0 ||
                    table_add_number(t, number(a, "shared")) < 0)
                        return fail_oom();
        }
        r = output_table(c, t, "environments");
        if (r >= 0 && sd_json_variant_by_key(v, "total") && c->options->legend && !client_quiet(c))
                printf("All layers take %s, of which nobody needs %s.\n", format_size(number(v, "total"), total),
                       format_size(number(sd_json_variant_by_key(v, "unused"), "bytes"), unused));
        return r;
}

/* The file appears whole or not at all: agentd writes into one that gets its name at the end. */
int verb_env_export(Client *c, int argc, char **argv) {
        const char *file = argv[1];
        _cleanup_(sd_bus_message_unrefp) sd_bus_message *m = NULL;
        _cleanup_(operation_end_done) OperationEnd end = {};
        _cleanup_free_ char *part = NULL;
        _cleanup_close_ int fd = -EBADF;
        bool out = streq(file, "-");
        int r;

        if (out) {
                if (isatty(STDOUT_FILENO))
                        return fail_usage("An archive does not go to a terminal; name a file or pipe it on.");
                fd = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3);
        } else {
                part = strprintf("%s.part", file);
                if (!part)
                        return fail_oom();
                fd = open(part, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
        }
        if (fd < 0)
                return fail_errno(-errno, "Cannot write \"%s\"", file);
        r = client_new_call(c, &manager_target, "ExportEnvironment", &m);
        if (r >= 0) {
                r = sd_bus_message_append(m, "ssha{sv}", argv[0], argc > 2 ? argv[2] : "head", fd, 0);
                if (r < 0)
                        r = fail_errno(r, "Cannot make a message");
        }
        if (r >= 0)
                r = operation_wait(c, m, argv[0], &end);
        if (r >= 0 && end.path && end.status == STATUS_SUCCESS && part && (fsync(fd) < 0 || rename(part, file) < 0))
                r = fail_errno(-errno, "Cannot write \"%s\"", file);
        if (part && (r < 0 || end.status != STATUS_SUCCESS))
                (void) unlink(part);
        if (r < 0 || !end.path || end.status != STATUS_SUCCESS)
                return r < 0 ? r : end.status;
        return out ? STATUS_SUCCESS : operation_tell(c, &end, "The environment of", argv[0], "is exported");
}

int verb_env_import(Client *c, int argc _unused_, char **argv) {
        _cleanup_(sd_bus_message_unrefp) sd_bus_message *m = NULL;
        _cleanup_close_ int fd = -EBADF;
        const char *file = argv[1];
        int r;

        if (streq(file, "-")) {
                if (isatty(STDIN_FILENO))
                        return fail_usage("An archive cannot come from a terminal; pipe it in or name a file.");
                fd = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3);
        } else
                fd = open(file, O_RDONLY | O_CLOEXEC | O_NOCTTY);
        if (fd < 0)
                return fail_errno(-errno, "Cannot open \"%s\"", file);
        r = client_new_call(c, &manager_target, "ImportEnvironment", &m);
        if (r < 0)
                return r;
        r = sd_bus_message_append(m, "sha{sv}", argv[0], fd, 0);
        if (r < 0)
                return fail_errno(r, "Cannot make a message");
        return operation_run(c, m, "The environment of", argv[0], "is imported");
}
