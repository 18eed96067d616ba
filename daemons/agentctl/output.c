/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* Printing of results. Faults of stdout itself (a full disk behind it) are found in main(), once, at the end. */

#include "output.h"

#include <stdarg.h>

#include "format.h"
#include "pager.h"

bool output_is_terminal(void) {
        static int terminal = -1;

        if (terminal < 0)
                terminal = isatty(STDOUT_FILENO);
        return terminal;
}

static void open_pager(Client *c) {
        (void) output_is_terminal();
        pager_open(c->options->pager && !c->no_pager);
}

/* TO_PEOPLE: what would drive their terminal is written in JSON's own way, which changes nothing of the value. */
static int print_json(sd_json_variant *v, sd_json_format_flags_t flags, bool to_people) {
        _cleanup_free_ char *text = NULL, *escaped = NULL;
        int r;

        if (!to_people)
                r = sd_json_variant_dump(v, flags, stdout, NULL);
        else {
                r = sd_json_variant_format(v, flags, &text);
                if (r >= 0) {
                        escaped = text_escape_json(text);
                        r = escaped ? 0 : -ENOMEM;
                }
                if (r >= 0)
                        fputs(escaped, stdout);
        }
        return r < 0 ? fail_errno(r, "Cannot print JSON") : 0;
}

int output_json(Client *c, sd_json_variant *v) {
        sd_json_format_flags_t flags = SD_JSON_FORMAT_NEWLINE;

        if (c->options->json == JSON_PRETTY || (c->options->json == JSON_OFF && output_is_terminal()))
                flags |= SD_JSON_FORMAT_PRETTY;
        open_pager(c);
        return print_json(v, flags, output_is_terminal());
}

int output_json_value(sd_json_variant *v) {
        return print_json(v, SD_JSON_FORMAT_PRETTY, true);
}

void output_printf(const char *format, ...) {
        _cleanup_free_ char *text = NULL, *escaped = NULL;
        const bool newline = endswith(format, "\n");
        va_list ap;
        int n;

        va_start(ap, format);
        n = vasprintf(&text, format, ap);
        va_end(ap);
        if (n < 0)
                text = NULL;
        else
                escaped = text_escape(text, (size_t) n - newline, false);
        fputs(escaped ?: "Out of memory.", stdout);
        if (newline)
                putchar('\n');
}

int output_json_text(Client *c, const char *text) {
        _cleanup_(sd_json_variant_unrefp) sd_json_variant *v = NULL;
        int r;

        r = sd_json_parse(text, 0, &v, NULL, NULL);
        if (r < 0)
                return client_bad_reply(r);
        return output_json(c, v);
}

int output_table(Client *c, const Table *t, const char *what) {
        _cleanup_(sd_json_variant_unrefp) sd_json_variant *v = NULL;
        size_t n = table_rows(t);
        int r;

        if (client_json(c)) {
                r = table_to_json(t, &v);
                if (r < 0)
                        return fail_errno(r, "Cannot make JSON");
                return output_json(c, v);
        }

        open_pager(c);
        if (n > 0) {
                r = table_print(t, stdout, c->options->legend);
                if (r < 0)
                        return fail_oom();
        }
        if (c->options->legend && !client_quiet(c)) {
                if (n == 0)
                        printf("No %s.\n", what);
                else if (n == 1)
                        printf("\n1 %.*s.\n", (int) strlen(what) - 1, what);
                else
                        printf("\n%zu %s.\n", n, what);
        }
        return 0;
}

int output_text(Client *c _unused_, const char *text) {
        size_t len = strlen(text);
        _cleanup_free_ char *escaped = NULL;

        if (output_is_terminal()) {
                escaped = text_escape(text, len, /* keep_lines= */ true);
                if (!escaped)
                        return fail_oom();
                text = escaped;
        }
        fputs(text, stdout);
        if (len > 0 && !endswith(text, "\n"))
                fputc('\n', stdout);
        return 0;
}
