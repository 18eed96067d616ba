/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* Runners: deployed from a directory or a tar, listed with what is known of them, moved back and forth. */

#include <fcntl.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "basic/string-util.h"
#include "operation.h"
#include "output.h"
#include "verb.h"

#define RUNNER_TYPE "sssstssuasa(sbts)"

/* A directory goes through tar(1), which writes while agentd reads; the modes, owners and times that it packs are made
 * the same for all over there. */
static int open_directory(const char *path, int *ret_fd, pid_t *ret_tar) {
        const char *argv[] = { "tar", "--create", "--file=-", "--format=pax", "--numeric-owner", "--directory",
                               path,  ".",        NULL };
        _cleanup_close_ int out = -EBADF, in = -EBADF;
        posix_spawn_file_actions_t actions;
        int p[2], r;

        if (pipe2(p, O_CLOEXEC) < 0)
                return fail_errno(-errno, "Cannot make a pipe");
        out = p[0];
        in = p[1];
        r = posix_spawn_file_actions_init(&actions);
        if (r == 0)
                r = posix_spawn_file_actions_adddup2(&actions, in, STDOUT_FILENO);
        if (r == 0)
                r = posix_spawnp(ret_tar, argv[0], &actions, NULL, (char *const *) argv, environ);
        posix_spawn_file_actions_destroy(&actions);
        if (r != 0)
                return fail_errno(-r, "Cannot start tar");
        *ret_fd = TAKE_FD(out);
        return 0;
}

static int open_source(const char *file, int *ret_fd, pid_t *ret_tar) {
        struct stat st;
        int fd;

        if (streq(file, "-")) {
                if (isatty(STDIN_FILENO))
                        return fail_usage(
                                "An archive cannot come from a terminal; pipe it in or name a file or directory.");
                fd = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3);
        } else {
                if (stat(file, &st) >= 0 && S_ISDIR(st.st_mode))
                        return open_directory(file, ret_fd, ret_tar);
                fd = open(file, O_RDONLY | O_CLOEXEC | O_NOCTTY);
        }
        if (fd < 0)
                return fail_errno(-errno, "Cannot open \"%s\"", file);
        *ret_fd = fd;
        return 0;
}

static int append_agents(sd_bus_message *m, const char *list) {
        _cleanup_free_ char *copy = strdup(list);
        _cleanup_strv_free_ char **agents = NULL;
        char *save = NULL;
        int r = copy ? 0 : -ENOMEM;

        for (char *a = copy ? strtok_r(copy, ", ", &save) : NULL; r >= 0 && a; a = strtok_r(NULL, ", ", &save))
                r = strv_extend(&agents, a);
        if (r >= 0)
                r = sd_bus_message_open_container(m, 'e', "sv");
        if (r >= 0)
                r = sd_bus_message_append(m, "s", "agents");
        if (r >= 0)
                r = sd_bus_message_open_container(m, 'v', "as");
        if (r >= 0)
                r = sd_bus_message_append_strv(m, agents);
        if (r >= 0)
                r = sd_bus_message_close_container(m);
        return r < 0 ? r : sd_bus_message_close_container(m);
}

int verb_runner_deploy(Client *c, int argc _unused_, char **argv) {
        _cleanup_(sd_bus_message_unrefp) sd_bus_message *m = NULL;
        const Options *o = c->options;
        _cleanup_close_ int fd = -EBADF;
        pid_t tar = 0;
        int r, status;

        if (option_given(o, OPTION_CANARY) && o->agents)
                return fail_usage("A canary goes by share (--canary) or by agents (--agents), not by both.");
        r = client_new_call(c, &manager_target, "DeployRunner", &m);
        if (r < 0)
                return r;
        r = open_source(argv[0], &fd, &tar);
        if (r < 0)
                return r;
        r = sd_bus_message_append(m, "h", fd);
        if (r >= 0)
                r = sd_bus_message_open_container(m, 'a', "{sv}");
        if (r >= 0 && o->note)
                r = sd_bus_message_append(m, "{sv}", "note", "s", o->note);
        if (r >= 0 && option_given(o, OPTION_CANARY))
                r = sd_bus_message_append(m, "{sv}", "canary", "u", o->canary);
        if (r >= 0 && o->agents)
                r = append_agents(m, o->agents);
        if (r >= 0)
                r = sd_bus_message_close_container(m);
        fd = safe_close(fd); /* the message has its own */
        if (r < 0)
                r = fail_errno(r, "Cannot make a message");
        else
                r = operation_run(c, m, "Runner", argv[0], "deployed");
        m = sd_bus_message_unref(m); /* with its end of the pipe: whoever writes to it ends */
        if (tar > 0)
                while (waitpid(tar, &status, 0) < 0 && errno == EINTR)
                        ;
        return r;
}

typedef struct Runner {
        const char *digest, *name, *version, *state, *author, *note;
        uint64_t created;
        uint32_t percent;
        char canary[256];
} Runner;

/* Up to the verdicts, which follow. */
static int read_runner(sd_bus_message *m, Runner *ret) {
        const char *agent;
        size_t n = 0;
        int r;

        r = sd_bus_message_enter_container(m, 'r', RUNNER_TYPE);
        if (r <= 0)
                return r;
        r = sd_bus_message_read(m, "sssstssu", &ret->digest, &ret->name, &ret->version, &ret->state, &ret->created,
                                &ret->author, &ret->note, &ret->percent);
        if (r >= 0)
                r = sd_bus_message_enter_container(m, 'a', "s");
        if (r < 0)
                return r;
        ret->canary[0] = 0;
        if (ret->percent > 0)
                snprintf(ret->canary, sizeof ret->canary, "%" PRIu32 " %%", ret->percent);
        while ((r = sd_bus_message_read(m, "s", &agent)) > 0)
                if (n < sizeof ret->canary)
                        n += (size_t) snprintf(ret->canary + n, sizeof ret->canary - n, "%s%s", n > 0 ? " " : "",
                                               agent);
        if (r >= 0)
                r = sd_bus_message_exit_container(m);
        if (r >= 0)
                r = sd_bus_message_enter_container(m, 'a', "(sbts)");
        return r < 0 ? r : 1;
}

static int end_runner(sd_bus_message *m) {
        int r = sd_bus_message_exit_container(m);

        return r < 0 ? r : sd_bus_message_exit_container(m);
}

static int add_row(Table *t, const Runner *x, sd_bus_message *m) {
        uint64_t quarantined = 0, accepted = 0;
        int ok, r;

        while ((r = sd_bus_message_read(m, "(sbts)", NULL, &ok, NULL, NULL)) > 0)
                ok ? accepted++ : quarantined++;
        if (r < 0)
                return r;
        if (table_add_string(t, x->digest) < 0 || table_add_string(t, x->name) < 0 ||
            table_add_string(t, x->version) < 0 || table_add_string(t, x->state) < 0 ||
            table_add_string(t, x->canary) < 0 || table_add_number(t, accepted) < 0 ||
            table_add_number(t, quarantined) < 0 || table_add_number(t, x->created) < 0 ||
            table_add_string(t, x->author) < 0 || table_add_string(t, x->note) < 0)
                return -ENOMEM;
        return 0;
}

static int add_verdicts(Table *t, const Runner *x, sd_bus_message *m) {
        const char *node, *reason;
        uint64_t when, n = 0;
        int ok, r;

        while ((r = sd_bus_message_read(m, "(sbts)", &node, &ok, &when, &reason)) > 0 || (r == 0 && n == 0)) {
                bool none = r == 0;

                if (table_add_string(t, x->digest) < 0 || table_add_string(t, x->version) < 0 ||
                    table_add_string(t, x->state) < 0 || table_add_string(t, x->canary) < 0 ||
                    table_add_string(t, none ? "not tried yet" : ok ? "accepted" : "quarantined") < 0 ||
                    table_add_string(t, none ? "" : node) < 0 || table_add_number(t, none ? 0 : when) < 0 ||
                    table_add_string(t, none ? "" : reason) < 0)
                        return -ENOMEM;
                n++;
        }
        return r;
}

static int show(Client *c, const Column *columns, size_t n_columns, bool in_use, const char *what,
                int (*add)(Table *t, const Runner *x, sd_bus_message *m)) {
        _cleanup_(sd_bus_message_unrefp) sd_bus_message *reply = NULL;
        _cleanup_(table_freep) Table *t = NULL;
        Runner x;
        int r;

        r = client_call(c, &manager_target, "ListRunners", &reply, NULL);
        if (r < 0)
                return r;
        t = table_new(columns, n_columns);
        if (!t)
                return fail_oom();
        r = sd_bus_message_enter_container(reply, 'a', "(" RUNNER_TYPE ")");
        while (r >= 0 && (r = read_runner(reply, &x)) > 0) {
                if (in_use && streq(x.state, "stored"))
                        while ((r = sd_bus_message_read(reply, "(sbts)", NULL, NULL, NULL, NULL)) > 0)
                                ;
                else
                        r = add(t, &x, reply);
                if (r == -ENOMEM)
                        return fail_oom();
                if (r >= 0)
                        r = end_runner(reply);
        }
        return r < 0 ? client_bad_reply(r) : output_table(c, t, what);
}

int verb_runner_list(Client *c, int argc _unused_, char **argv _unused_) {
        static const Column columns[] = {
                { "RUNNER", "digest", CELL_DIGEST },        { "NAME", "name", CELL_STRING },
                { "VERSION", "version", CELL_STRING },      { "STATE", "state", CELL_STRING },
                { "CANARY", "canary", CELL_STRING },        { "ACCEPTED", "accepted", CELL_NUMBER },
                { "QUARANTINED", "quarantined", CELL_NUMBER }, { "DEPLOYED", "created_usec", CELL_TIME },
                { "BY", "author", CELL_STRING },            { "NOTE", "note", CELL_STRING },
        };

        return show(c, columns, ELEMENTSOF(columns), false, "runners", add_row);
}

int verb_runner_status(Client *c, int argc _unused_, char **argv _unused_) {
        static const Column columns[] = {
                { "RUNNER", "digest", CELL_DIGEST },   { "VERSION", "version", CELL_STRING },
                { "STATE", "state", CELL_STRING },     { "CANARY", "canary", CELL_STRING },
                { "VERDICT", "verdict", CELL_STRING }, { "NODE", "node", CELL_DIGEST },
                { "SINCE", "since_usec", CELL_TIME },  { "REASON", "reason", CELL_STRING },
        };

        return show(c, columns, ELEMENTSOF(columns), true, "verdicts", add_verdicts);
}

/* A move, told as "Runner sha256:… VERB." */
static int move_runner(Client *c, const char *member, const char *arg, const char *verb) {
        _cleanup_(sd_bus_message_unrefp) sd_bus_message *reply = NULL;
        const char *digest;
        int r;

        if (arg)
                r = client_call(c, &manager_target, member, &reply, "s", arg);
        else
                r = client_call(c, &manager_target, member, &reply, NULL);
        if (r < 0)
                return r;
        r = sd_bus_message_read(reply, "s", &digest);
        if (r < 0)
                return client_bad_reply(r);
        if (client_json(c)) {
                _cleanup_(sd_json_variant_unrefp) sd_json_variant *v = NULL;

                r = sd_json_buildo(&v, SD_JSON_BUILD_PAIR_STRING("digest", digest));
                return r < 0 ? fail_errno(r, "Cannot make JSON") : output_json(c, v);
        }
        if (!client_quiet(c))
                notice("Runner %s.", verb);
        printf("%s\n", digest);
        return 0;
}

int verb_runner_rollback(Client *c, int argc, char **argv) {
        return move_runner(c, "RollbackRunner", argc > 0 ? argv[0] : "", "is current again");
}

int verb_runner_promote(Client *c, int argc _unused_, char **argv _unused_) {
        return move_runner(c, "PromoteRunner", NULL, "is current now");
}

int verb_runner_withdraw(Client *c, int argc _unused_, char **argv _unused_) {
        return move_runner(c, "WithdrawRunner", NULL, "is no canary any more");
}

int verb_runner_remove(Client *c, int argc _unused_, char **argv) {
        int r = client_call(c, &manager_target, "RemoveRunner", NULL, "s", argv[0]);

        if (r < 0)
                return r;
        if (!client_quiet(c))
                notice("Runner %s removed.", argv[0]);
        return 0;
}
