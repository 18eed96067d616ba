/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Reads what `node --check` said:
 *
 *   /opt/agentd/runner/main.cjs:12            (or file:///opt/agentd/runner/main.mjs:12)
 *   let x = ;
 *           ^
 *
 *   SyntaxError: Unexpected token ';'
 *       at …
 *
 *   Node.js v20.19.2
 */
#include "basic/string-util.h"
#include "runner-check.h"
#include "runner.h"

#define LINE_LENGTH_MAX 400

/* The line that begins at S, without control characters and bad UTF-8, for a message. */
static char *copy_line(const char *s) {
        size_t n = MIN(strcspn(s, "\n"), (size_t) LINE_LENGTH_MAX);
        char *l;

        while (n > 0 && !utf8_is_valid(s, n) && n > LINE_LENGTH_MAX - 4)
                n--;
        l = strndup(s, n);
        if (!l)
                return NULL;
        for (char *p = l; *p; p++)
                if ((unsigned char) *p < 0x20 || *p == 0x7f)
                        *p = ' ';
        if (!utf8_is_valid(l, strlen(l)))
                for (char *p = l; *p; p++)
                        if ((unsigned char) *p >= 0x80)
                                *p = '?';
        return l;
}

static const char *next_line(const char *s) {
        s += strcspn(s, "\n");
        return *s ? s + 1 : NULL;
}

/* "file:///opt/agentd/runner/a.mjs:12" → "a.mjs:12" */
static const char *runner_place(const char *line) {
        const char *p = startswith(line, "file://") ?: line;

        return startswith(p, RUNNER_INSIDE "/");
}

static bool is_error_line(const char *line) {
        size_t n = strcspn(line, ": [\n");

        return n >= 5 && line[0] >= 'A' && line[0] <= 'Z' && memcmp(line + n - 5, "Error", 5) == 0;
}

/* The last block of the output is that of the script at which the unit ended. */
static char *describe(const char *output) {
        const char *place = NULL, *error = NULL, *version = NULL;
        _cleanup_free_ char *p = NULL, *e = NULL, *v = NULL;

        for (const char *l = output; l; l = next_line(l))
                if (runner_place(l)) {
                        place = runner_place(l);
                        error = version = NULL;
                } else if (place && !error && is_error_line(l))
                        error = l;
                else if (place && startswith(l, "Node.js v"))
                        version = l;
        if (!place)
                return NULL;
        p = copy_line(place);
        e = error ? copy_line(error) : strdup("node --check refuses it");
        v = version ? copy_line(version) : strdup("node");
        return p && e && v ? strprintf("%s: %s (%s)", p, e, v) : NULL;
}

CheckVerdict runner_check_judge(const char *output, const char *result, int status, char **ret_reason) {
        static const struct {
                int status;
                const char *reason;
        } errors[] = {
                { CHECK_STATUS_BLIND,
                  "node ends with 0 but does not check: it accepted a script that is no JavaScript" },
                { CHECK_STATUS_TIMED_OUT, "node --check did not end in time (RunnerCheckTimeout=)" },
                { CHECK_STATUS_KILLED, "node --check was killed by a signal" },
                { CHECK_STATUS_NOT_STARTED, "node cannot be executed in the environment" },
        };
        _cleanup_free_ char *line = NULL;

        /* PID 1 may take any exit status of the first process of a PID namespace for a success, but what it says of
         * memory and time is right. */
        if (streq(result, "success") || streq(result, "exit-code")) {
                if (status == 0)
                        return CHECK_OK;
                if (status == CHECK_STATUS_REFUSED) {
                        *ret_reason = describe(output) ?: strdup("node --check refuses a script without saying why");
                        return CHECK_BROKEN;
                }
                for (size_t i = 0; i < ELEMENTSOF(errors); i++)
                        if (status == errors[i].status) {
                                *ret_reason = strdup(errors[i].reason);
                                return CHECK_ERROR;
                        }
        }
        line = copy_line(output);
        *ret_reason = isempty(line) ? strprintf("node --check ended as \"%s\" (status %d)", result, status) :
                                      strprintf("node --check ended as \"%s\": %s", result, line);
        return CHECK_ERROR;
}
