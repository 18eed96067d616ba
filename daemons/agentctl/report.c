/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* One line on stderr for each fault. See report.h for the convention. */

#include "report.h"

#include <stdarg.h>

#include "format.h"

static void print_line(const char *prefix, const char *format, va_list ap, const char *suffix) {
        _cleanup_free_ char *text = NULL, *escaped = NULL;

        if (vasprintf(&text, format, ap) < 0)
                text = NULL;
        if (text)
                escaped = text_escape(text, strlen(text), /* keep_lines= */ false);
        fprintf(stderr, "%s%s%s%s\n", prefix, escaped ?: "Out of memory.", suffix ? ": " : "", strempty(suffix));
}

#define PRINT(prefix, format, suffix)                                                              \
        do {                                                                                       \
                va_list ap;                                                                        \
                va_start(ap, format);                                                              \
                print_line(prefix, format, ap, suffix);                                            \
                va_end(ap);                                                                        \
        } while (false)

int fail(const char *format, ...) {
        PRINT("agentctl: ", format, NULL);
        return -EIO;
}

int fail_errno(int error, const char *format, ...) {
        PRINT("agentctl: ", format, strerror(abs(error)));
        return error == 0 || -abs(error) == USAGE_ERROR ? -EIO : -abs(error);
}

int fail_usage(const char *format, ...) {
        PRINT("agentctl: ", format, NULL);
        return USAGE_ERROR;
}

int fail_oom(void) {
        fputs("agentctl: Out of memory.\n", stderr);
        return -ENOMEM;
}

void notice(const char *format, ...) {
        PRINT("", format, NULL);
}
