/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* Reading and checking of text for agentd. See input.h. */

#include "input.h"

#include "basic/fs-util.h"
#include "format.h"
#include "report.h"

int input_check(const char *text, size_t size, const char *what) {
        _cleanup_free_ char *reason = NULL;

        if (size > INPUT_MAX)
                return fail("%s is too large: at most 1 MiB (%zu bytes) can be given.", what, INPUT_MAX);
        if (text_check(text, size, &reason) < 0)
                return fail_oom();
        if (reason)
                return fail("%s %s. Only UTF-8 text can be given; put other data into the agent's environment.", what,
                            reason);
        return 0;
}

int input_read(const char *file, const char *what, char **ret) {
        _cleanup_free_ char *text = NULL;
        _cleanup_close_ int fd = -EBADF;
        bool is_stdin = streq(file, "-");
        size_t size;
        int r;

        if (is_stdin && isatty(STDIN_FILENO))
                notice("Reading from the terminal; end with Ctrl-D.");
        if (!is_stdin) {
                fd = open(file, O_RDONLY | O_CLOEXEC | O_NOCTTY);
                if (fd < 0)
                        return fail_errno(-errno, "Cannot open \"%s\"", file);
        }

        r = read_full_fd(is_stdin ? STDIN_FILENO : fd, INPUT_MAX, &text, &size);
        if (r == -EFBIG)
                return fail("%s is too large: at most 1 MiB (%zu bytes) can be given.", what, INPUT_MAX);
        if (r < 0)
                return fail_errno(r, "Cannot read \"%s\"", is_stdin ? "stdin" : file);
        r = input_check(text, size, what);
        if (r < 0)
                return r;
        *ret = TAKE_PTR(text);
        return 0;
}
