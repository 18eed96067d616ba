/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* What a run leaves behind: its result, its receipt and its artifacts. */

#include <fcntl.h>
#include <sys/stat.h>

#include "basic/fs-util.h"
#include "basic/name-util.h"
#include "basic/string-util.h"
#include "exit-status.h"
#include "output.h"
#include "run-info.h"
#include "run-output.h"
#include "verb.h"

int verb_result(Client *c, int argc _unused_, char **argv) {
        _cleanup_(sd_json_variant_unrefp) sd_json_variant *document = NULL;
        _cleanup_free_ char *id = NULL;
        int r;

        r = run_id_resolve(c, argv[0], &id);
        if (r < 0)
                return r;
        r = run_output_get(c, id, &document);
        if (r < 0)
                return r;
        if (!document)
                return fail("Run %s has posted no result. \"agentctl status %s\" tells how it stands.", id, id);
        return client_json(c) ? output_json(c, document) : run_output_print(c, document);
}

int verb_receipt(Client *c, int argc _unused_, char **argv) {
        _cleanup_free_ char *id = NULL, *text = NULL;
        int r;

        r = run_id_resolve(c, argv[0], &id);
        if (r < 0)
                return r;
        r = client_call_string(c, "GetReceipt", id, &text);
        if (r < 0)
                return r;
        return output_json_text(c, text);
}

int verb_artifacts(Client *c, int argc _unused_, char **argv) {
        static const Column columns[] = {
                { "NAME", "name", CELL_STRING },
                { "SIZE", "size", CELL_SIZE },
                { "TYPE", "content_type", CELL_STRING },
        };
        _cleanup_(sd_bus_message_unrefp) sd_bus_message *reply = NULL;
        _cleanup_(table_freep) Table *t = NULL;
        _cleanup_free_ char *id = NULL;
        const char *name, *type;
        uint64_t size;
        int r;

        r = run_id_resolve(c, argv[0], &id);
        if (r < 0)
                return r;
        r = client_call(c, &manager_target, "ListArtifacts", &reply, "s", id);
        if (r < 0)
                return r;
        t = table_new(columns, ELEMENTSOF(columns));
        if (!t)
                return fail_oom();

        r = sd_bus_message_enter_container(reply, 'a', "(sts)");
        if (r < 0)
                return client_bad_reply(r);
        while ((r = sd_bus_message_read(reply, "(sts)", &name, &size, &type)) > 0)
                if (table_add_string(t, name) < 0 || table_add_number(t, size) < 0 || table_add_string(t, type) < 0)
                        return fail_oom();
        if (r < 0)
                return client_bad_reply(r);
        return output_table(c, t, "artifacts");
}

static int copy_bytes(int from, int to) {
        char buf[64 * 1024];

        for (;;) {
                ssize_t l = read(from, buf, sizeof(buf));
                int r;

                if (l < 0 && errno == EINTR)
                        continue;
                if (l <= 0)
                        return l < 0 ? -errno : 0;
                r = write_full(to, buf, (size_t) l);
                if (r < 0)
                        return r;
        }
}

/* Writes into a temporary file beside PATH and renames it, so that PATH is whole or not there. */
static int copy_to_new_file(int from, const char *path) {
        _cleanup_free_ char *temporary = strprintf("%s.XXXXXX", path);
        _cleanup_close_ int fd = -EBADF;
        mode_t mask;
        int r;

        if (!temporary)
                return -ENOMEM;
        fd = mkostemp(temporary, O_CLOEXEC);
        if (fd < 0)
                return -errno;
        mask = umask(0);
        (void) umask(mask);

        r = copy_bytes(from, fd);
        if (r >= 0 && fchmod(fd, 0666 & ~mask) < 0)
                r = -errno;
        if (r >= 0 && rename(temporary, path) < 0)
                r = -errno;
        if (r < 0)
                (void) unlink(temporary);
        return r;
}

static int copy_to_path(int from, const char *path) {
        _cleanup_close_ int fd = -EBADF;
        struct stat st;

        /* Devices, pipes and the targets of symlinks are written into, not replaced */
        if (lstat(path, &st) < 0 || S_ISREG(st.st_mode))
                return copy_to_new_file(from, path);
        fd = open(path, O_WRONLY | O_CLOEXEC | O_NOCTTY | O_TRUNC);
        if (fd < 0)
                return -errno;
        return copy_bytes(from, fd);
}

int verb_artifact(Client *c, int argc _unused_, char **argv) {
        _cleanup_(sd_bus_message_unrefp) sd_bus_message *reply = NULL;
        const char *output = c->options->output, *name = argv[1];
        _cleanup_free_ char *id = NULL, *inside = NULL;
        struct stat st;
        int fd, r;

        if (!output && output_is_terminal())
                return fail_usage("An artifact may hold anything and is not written to a terminal. Give --output=FILE, "
                                  "or --output=- if it is safe.");

        r = run_id_resolve(c, argv[0], &id);
        if (r < 0)
                return r;
        r = client_call(c, &manager_target, "OpenArtifact", &reply, "ss", id, name);
        if (r < 0)
                return r;
        r = sd_bus_message_read_basic(reply, 'h', &fd); /* stays the reply's */
        if (r < 0)
                return client_bad_reply(r);

        if (!output || streq(output, "-")) {
                r = copy_bytes(fd, STDOUT_FILENO);
                if (r < 0)
                        return fail_errno(r, "Cannot write to stdout");
                return STATUS_SUCCESS;
        }

        if (stat(output, &st) >= 0 && S_ISDIR(st.st_mode)) {
                if (!artifact_name_is_valid(name))
                        return fail("\"%s\" is no good file name. Give --output=FILE.", name);
                output = inside = strprintf("%s/%s", output, name);
                if (!inside)
                        return fail_oom();
        }
        r = copy_to_path(fd, output);
        if (r < 0)
                return fail_errno(r, "Cannot write \"%s\"", output);
        if (!client_quiet(c))
                notice("%s", output);
        return STATUS_SUCCESS;
}
