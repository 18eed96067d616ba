/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* Images: imported from an archive or built, as operations of agentd. */

#include <fcntl.h>
#include <sys/stat.h>

#include "document.h"
#include "operation.h"
#include "output.h"
#include "verb.h"

int verb_image_list(Client *c, int argc _unused_, char **argv _unused_) {
        static const Column columns[] = {
                { "NAME", "name", CELL_STRING },
                { "USER", "user", CELL_STRING },
                { "LAYER", "layer", CELL_DIGEST },
                { "SIZE", "size", CELL_SIZE },
                { "CREATED", "created_usec", CELL_TIME },
        };
        _cleanup_(sd_bus_message_unrefp) sd_bus_message *reply = NULL;
        _cleanup_(table_freep) Table *t = NULL;
        const char *name, *layer, *user;
        uint64_t size, created;
        int r;

        r = client_call(c, &manager_target, "ListImages", &reply, NULL);
        if (r < 0)
                return r;
        t = table_new(columns, ELEMENTSOF(columns));
        if (!t)
                return fail_oom();

        r = sd_bus_message_enter_container(reply, 'a', "(sstts)");
        if (r < 0)
                return client_bad_reply(r);
        while ((r = sd_bus_message_read(reply, "(sstts)", &name, &layer, &size, &created, &user)) > 0)
                if (table_add_string(t, name) < 0 || table_add_string(t, user) < 0 || table_add_string(t, layer) < 0 ||
                    table_add_number(t, size) < 0 || table_add_number(t, created) < 0)
                        return fail_oom();
        if (r < 0)
                return client_bad_reply(r);
        return output_table(c, t, "images");
}

int verb_image_import(Client *c, int argc _unused_, char **argv) {
        _cleanup_(sd_bus_message_unrefp) sd_bus_message *m = NULL;
        const char *name = argv[0], *file = argv[1];
        _cleanup_close_ int fd = -EBADF;
        struct stat st;
        int r;

        if (streq(file, "-")) {
                if (isatty(STDIN_FILENO))
                        return fail_usage("An archive cannot come from a terminal; pipe it in or name a file.");
                fd = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3);
        } else
                fd = open(file, O_RDONLY | O_CLOEXEC | O_NOCTTY);
        if (fd < 0)
                return fail_errno(-errno, "Cannot open \"%s\"", file);
        if (fstat(fd, &st) < 0)
                return fail_errno(-errno, "Cannot look at \"%s\"", file);
        if (S_ISDIR(st.st_mode))
                return fail("\"%s\" is a directory. Pack it first: tar -C %s -c . | agentctl image import %s -", file,
                            file, name);

        r = client_new_call(c, &manager_target, "ImportImage", &m);
        if (r < 0)
                return r;
        r = sd_bus_message_append(m, "sha{sv}", name, fd, 0);
        if (r < 0)
                return fail_errno(r, "Cannot make a message");
        return operation_run(c, m, "Image", name, "imported");
}

int verb_image_build(Client *c, int argc, char **argv) {
        _cleanup_(sd_bus_message_unrefp) sd_bus_message *m = NULL;
        int r;

        r = client_new_call(c, &manager_target, "BuildImage", &m);
        if (r < 0)
                return r;
        r = sd_bus_message_append_basic(m, 's', argv[0]);
        if (r >= 0)
                r = sd_bus_message_open_container(m, 'a', "{sv}");
        if (r >= 0 && argc > 1) {
                r = sd_bus_message_open_container(m, 'e', "sv");
                if (r >= 0)
                        r = sd_bus_message_append_basic(m, 's', "packages");
                if (r >= 0)
                        r = sd_bus_message_open_container(m, 'v', "as");
                if (r >= 0)
                        r = sd_bus_message_append_strv(m, argv + 1); /* argv ends with NULL */
                if (r >= 0)
                        r = sd_bus_message_close_container(m);
                if (r >= 0)
                        r = sd_bus_message_close_container(m);
        }
        if (r >= 0 && c->options->mirror)
                r = sd_bus_message_append(m, "{sv}", "mirror", "s", c->options->mirror);
        if (r >= 0)
                r = sd_bus_message_close_container(m);
        if (r < 0)
                return fail_errno(r, "Cannot make a message");
        return operation_run(c, m, "Image", argv[0], "built");
}

int verb_image_remove(Client *c, int argc _unused_, char **argv) {
        return document_act(c, "RemoveImage", argv[0], "Image", "removed");
}
