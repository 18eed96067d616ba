/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What an operation's unit tells, line by line: see agent-image's report.h. It is a stranger's word: bounded, shown
 * to whoever asked, believed in nothing that counts. */
#include "basic/json-util.h"
#include "basic/string-util.h"
#include "operation.h"

#define OPERATION_LINE_MAX 65536U

static bool error_name_is_valid(const char *s) {
        size_t n = strlen(s);

        return n > 0 && n <= 64 && strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ") == n;
}

static void on_line(Operation *o, const char *line) {
        _cleanup_json_ sd_json_variant *v = NULL;
        sd_json_variant *n;
        const char *s;

        if (json_parse(line, strlen(line), &v, NULL) < 0)
                return;
        s = json_string(v, "error");
        if (s) {
                free_and_strdup(&o->error, json_string(v, "message") ?: s);
                if (error_name_is_valid(s))
                        free_and_strdup(&o->error_name, s);
                return;
        }
        if (sd_json_variant_by_key(v, "size")) {
                o->made = true;
                s = json_string(v, "digest"); /* of an archive's configuration; a layer's is found here */
                if (s && digest_is_valid(s))
                        free_and_strdup(&o->digest, s);
                n = sd_json_variant_by_key(v, "manifest");
                if (n) {
                        o->manifest = mfree(o->manifest);
                        if (json_format_canonical(n, &o->manifest) < 0)
                                log_oom();
                }
                return;
        }
        s = json_string(v, "step");
        n = sd_json_variant_by_key(v, "progress");
        if (s) {
                bool changed = !streq_ptr(s, o->step) ||
                               (n && sd_json_variant_is_unsigned(n) && sd_json_variant_unsigned(n) != o->progress);

                free_and_strdup(&o->step, s);
                if (n && sd_json_variant_is_unsigned(n))
                        o->progress = sd_json_variant_unsigned(n);
                if (changed)
                        operation_signal_changed(o);
        }
}

int operation_on_pipe(sd_event_source *s, int fd, uint32_t revents, void *userdata) {
        Operation *o = userdata;
        char *nl;
        ssize_t n;

        if (!o->line) {
                o->line = malloc(OPERATION_LINE_MAX + 1);
                if (!o->line)
                        return log_oom();
        }
        n = read(fd, o->line + o->line_size, OPERATION_LINE_MAX - o->line_size);
        if (n < 0)
                return errno == EAGAIN || errno == EINTR ? 0 : -errno;
        if (n == 0) {
                o->pipe_source = sd_event_source_disable_unref(o->pipe_source);
                o->pipe_fd = safe_close(o->pipe_fd);
                o->pipe_ended = true;
                operation_judge(o);
                return 0;
        }
        o->line_size += (size_t) n;
        o->line[o->line_size] = 0;
        while ((nl = memchr(o->line, '\n', o->line_size))) {
                size_t used = (size_t) (nl - o->line) + 1;

                *nl = 0;
                on_line(o, o->line);
                memmove(o->line, o->line + used, o->line_size - used);
                o->line_size -= used;
        }
        if (o->line_size == OPERATION_LINE_MAX) /* not a line of ours */
                o->line_size = 0;
        return 0;
}

