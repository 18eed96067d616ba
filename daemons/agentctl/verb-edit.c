/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* Edits of environments: a shell or a command inside one, and giving it up. */

#include <fcntl.h>
#include <stdlib.h>

#include "basic/string-util.h"
#include "document.h"
#include "exit-status.h"
#include "operation.h"
#include "output.h"
#include "properties.h"
#include "relay.h"
#include "terminal.h"
#include "verb.h"

static int append_options(Client *c, sd_bus_message *m) {
        const char *term = getenv("TERM");
        int r;

        r = sd_bus_message_open_container(m, 'a', "{sv}");
        if (r >= 0 && !isempty(term))
                r = sd_bus_message_append(m, "{sv}", "term", "s", term);
        if (r >= 0 && c->options->hosts) {
                r = sd_bus_message_open_container(m, 'e', "sv");
                if (r >= 0)
                        r = sd_bus_message_append(m, "s", "allow-hosts");
                if (r >= 0)
                        r = sd_bus_message_open_container(m, 'v', "as");
                if (r >= 0)
                        r = sd_bus_message_append_strv(m, c->options->hosts);
                if (r >= 0)
                        r = sd_bus_message_close_container(m);
                if (r >= 0)
                        r = sd_bus_message_close_container(m);
        }
        return r < 0 ? r : sd_bus_message_close_container(m);
}

/* The session is over for us; how did it end? Its state may come a moment later. */
static int tell_end(Client *c, const char *path) {
        _cleanup_(operation_end_done) OperationEnd end = {};
        int r;

        r = operation_follow(c, path, &end);
        return r < 0 ? r : end.status;
}

static int edit_in_terminal(Client *c, const char *agent, char **command) {
        _cleanup_(sd_bus_message_unrefp) sd_bus_message *m = NULL, *reply = NULL;
        const char *path;
        int master, r;

        r = client_new_call(c, &manager_target, "OpenEditTerminal", &m);
        if (r < 0)
                return r;
        r = sd_bus_message_append(m, "s", agent);
        if (r >= 0)
                r = sd_bus_message_append_strv(m, command);
        if (r >= 0)
                r = append_options(c, m);
        if (r < 0)
                return fail_errno(r, "Cannot make a message");
        r = client_send(c, m, &reply);
        if (r < 0)
                return r;
        r = sd_bus_message_read(reply, "oh", &path, &master);
        if (r < 0)
                return client_bad_reply(r);
        r = terminal_run(master);
        if (r == -EINTR)
                return STATUS_INTERRUPTED;
        return r < 0 ? r : tell_end(c, path);
}

static int edit_on_pipes(Client *c, const char *agent, char **command) {
        _cleanup_(sd_bus_message_unrefp) sd_bus_message *m = NULL;
        _cleanup_(operation_end_done) OperationEnd end = {};
        _cleanup_(relay_end) Relay relay = {};
        int r;

        r = client_new_call(c, &manager_target, "EditEnvironment", &m);
        if (r < 0)
                return r;
        r = sd_bus_message_append(m, "s", agent);
        if (r >= 0)
                r = sd_bus_message_append_strv(m, command);
        if (r >= 0)
                r = relay_begin(&relay);
        if (r >= 0)
                r = sd_bus_message_append(m, "hhh", relay.fds[0], relay.fds[1], relay.fds[2]);
        if (r >= 0)
                r = append_options(c, m);
        if (r < 0)
                return fail_errno(r, "Cannot make a message");
        r = operation_wait(c, m, agent, &end);
        sd_bus_message_unref(TAKE_PTR(m)); /* it has copies of them */
        return r < 0 ? r : end.status;
}

int verb_env_edit(Client *c, int argc, char **argv) {
        int r;

        if (argc == 1 && !(isatty(STDIN_FILENO) && isatty(STDOUT_FILENO)))
                return fail_usage(
                        "A shell needs a terminal. Without one, name a command: agentctl env edit %s -- COMMAND.",
                        argv[0]);
        if (isatty(STDIN_FILENO) && isatty(STDOUT_FILENO)) {
                if (argc == 1 && !client_quiet(c))
                        notice("Changes stay in the edit until \"agentctl env freeze %s\" or \"env discard\".",
                               argv[0]);
                r = edit_in_terminal(c, argv[0], argv + 1);
        } else
                r = edit_on_pipes(c, argv[0], argv + 1);
        return r;
}

int verb_env_close(Client *c, int argc _unused_, char **argv) {
        _cleanup_(sd_bus_message_unrefp) sd_bus_message *reply = NULL;
        _cleanup_(operation_end_done) OperationEnd end = { .closing = true };
        const char *path;
        int r;

        r = client_call(c, &manager_target, "CloseEdit", &reply, "s", argv[0]);
        if (r < 0)
                return r;
        r = sd_bus_message_read_basic(reply, 'o', &path);
        if (r < 0)
                return client_bad_reply(r);
        r = operation_follow(c, path, &end);
        if (r >= 0 && end.status == STATUS_SUCCESS && !client_quiet(c))
                notice("The session in the edit of %s is closed; what it has changed stays.", argv[0]);
        return r < 0 ? r : end.status;
}

int verb_env_discard(Client *c, int argc _unused_, char **argv) {
        return document_act(c, "DiscardEdit", argv[0], "Edit of", "discarded");
}

int verb_env_edits(Client *c, int argc _unused_, char **argv _unused_) {
        static const Column columns[] = {
                { "AGENT", "agent", CELL_STRING },        { "USER", "user", CELL_STRING },
                { "BEGUN BY", "holder", CELL_STRING },    { "BEGUN", "created_usec", CELL_TIME },
                { "ON", "generation", CELL_DIGEST },      { "OPEN", "open", CELL_BOOL },
        };
        _cleanup_(sd_bus_message_unrefp) sd_bus_message *reply = NULL;
        const char *user, *agent, *holder, *generation;
        _cleanup_(table_freep) Table *t = NULL;
        uint64_t created;
        int open, r;

        r = client_call(c, &manager_target, "ListEdits", &reply, NULL);
        if (r < 0)
                return r;
        t = table_new(columns, ELEMENTSOF(columns));
        if (!t)
                return fail_oom();
        r = sd_bus_message_enter_container(reply, 'a', "(ssstsb)");
        if (r < 0)
                return client_bad_reply(r);
        while ((r = sd_bus_message_read(reply, "(ssstsb)", &user, &agent, &holder, &created, &generation, &open)) > 0)
                if (table_add_string(t, agent) < 0 || table_add_string(t, user) < 0 ||
                    table_add_string(t, holder) < 0 || table_add_number(t, created) < 0 ||
                    table_add_string(t, generation) < 0 || table_add_number(t, (uint64_t) (open != 0)) < 0)
                        return fail_oom();
        return r < 0 ? client_bad_reply(r) : output_table(c, t, "edits");
}
