/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* Environments: their generations, and making a new one from a kept run. */

#include "operation.h"
#include "output.h"
#include "run-info.h"
#include "verb.h"

int verb_env_log(Client *c, int argc _unused_, char **argv) {
        static const Column columns[] = {
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
        uint64_t created;
        int head, r;

        r = client_call(c, &manager_target, "ListGenerations", &reply, "s", argv[0]);
        if (r < 0)
                return r;
        t = table_new(columns, ELEMENTSOF(columns));
        if (!t)
                return fail_oom();

        r = sd_bus_message_enter_container(reply, 'a', "(sstssb)");
        if (r < 0)
                return client_bad_reply(r);
        while ((r = sd_bus_message_read(reply, "(sstssb)", &digest, &parent, &created, &author, &note, &head)) > 0)
                if (table_add_string(t, digest) < 0 || table_add_string(t, parent) < 0 ||
                    table_add_number(t, created) < 0 || table_add_string(t, author) < 0 ||
                    table_add_number(t, (uint64_t) (head != 0)) < 0 || table_add_string(t, note) < 0)
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

        if (!o->from_run)
                return fail_usage("Which run's changes? Give --from-run=RUN, a run that was started with --keep.");
        r = run_id_resolve(c, o->from_run, &id);
        if (r < 0)
                return r;
        r = client_new_call(c, &manager_target, "FreezeEnvironment", &m);
        if (r < 0)
                return r;
        r = sd_bus_message_append(m, "s", argv[0]);
        if (r >= 0)
                r = o->note ? sd_bus_message_append(m, "a{sv}", 2, "from-run", "s", id, "note", "s", o->note) :
                              sd_bus_message_append(m, "a{sv}", 1, "from-run", "s", id);
        if (r < 0)
                return fail_errno(r, "Cannot make a message");
        return operation_run(c, m, "The environment of", argv[0], "has a new generation");
}
