/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * The command line. Options may stand anywhere, before or behind the verb. Each has one meaning in the whole
 * program; which verb takes which is the verb's affair (verb.h), checked after parsing by the set of
 * those that were given.
 */

#include "basic/macro.h"

typedef enum OptionId {
        OPTION_HELP,
        OPTION_VERSION,
        OPTION_JSON,
        OPTION_J,
        OPTION_NO_PAGER,
        OPTION_NO_LEGEND,
        OPTION_NO_ASK_PASSWORD,
        OPTION_QUIET,
        OPTION_INPUT,
        OPTION_INPUT_FILE,
        OPTION_WAIT,
        OPTION_NO_WAIT,
        OPTION_TIMEOUT,
        OPTION_SESSION,
        OPTION_KEEP,
        OPTION_KEEP_NEWEST, /* the same word, with a number */
        OPTION_VERIFY,
        OPTION_IDEMPOTENCY_KEY,
        OPTION_PRIORITY,
        OPTION_LABEL,
        OPTION_AGENT,
        OPTION_STATE,
        OPTION_RESULT,
        OPTION_LINES,
        OPTION_FOLLOW,
        OPTION_OUTPUT,
        OPTION_FROM_RUN,
        OPTION_NOTE,
        OPTION_MIRROR,
        OPTION_EXPECTED_HEAD,
        OPTION_USER,
        OPTION_FD,
        OPTION_CANARY,
        OPTION_AGENTS,
        OPTION_ALLOW_HOST,
        OPTION_OLDER_THAN,
        OPTION_DRY_RUN,
        _OPTION_MAX,
} OptionId;

typedef enum JsonMode {
        JSON_OFF,
        JSON_SHORT,
        JSON_PRETTY,
} JsonMode;

typedef struct Options {
        uint64_t given; /* bits by OptionId */

        JsonMode json;
        bool pager, legend, ask_password;

        const char *input, *input_file;
        uint64_t timeout_usec;
        const char *session, *idempotency_key;
        int32_t priority;
        char **labels; /* "key=value" */
        const char *agent, *state, *result;
        uint64_t lines; /* USEC_INFINITY-like UINT64_MAX: all */
        const char *output;
        const char *from_run, *note, *mirror, *user, *expected_head;
        uint32_t keep_newest; /* generations, or runs */
        uint64_t older_than_usec;
        int fd;
        uint32_t canary;
        const char *agents;
        char **hosts;
} Options;

#define OPTIONS_DEFAULT                                                                            \
        (Options) {                                                                                \
                .pager = true, .legend = true, .ask_password = true, .lines = 100, .fd = -EBADF,   \
        }

/*
 * Reads ARGV; strings point into it. The words that are no options are moved to its end, in their order, and
 * *ret_first is where they start. On a fault it is told on stderr and USAGE_ERROR comes back.
 */
int options_parse(Options *o, int argc, char **argv, int *ret_first);
void options_done(Options *o);

static inline bool option_given(const Options *o, OptionId id) {
        return o->given & (UINT64_C(1) << id);
}

/* "--input", and the whole help line's left part and text. */
const char *option_name(OptionId id);
void option_print_help(FILE *f, OptionId id);
/* Options that every verb takes. */
bool option_is_common(OptionId id);
