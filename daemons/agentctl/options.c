/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* One table of options: getopt_long()'s own table, the parsing and the help are all made from it. */

#include "options.h"

#include <getopt.h>

#include "basic/string-util.h"
#include "report.h"

typedef struct Option {
        const char *name;
        char letter; /* 0: none */
        int has_arg;
        const char *arg;
        const char *help;
} Option;

static const Option table[_OPTION_MAX] = {
        [OPTION_HELP] = { "help", 'h', no_argument, NULL, "Show this help" },
        [OPTION_VERSION] = { "version", 0, no_argument, NULL, "Show the version" },
        [OPTION_JSON] = { "json", 0, optional_argument, "MODE", "Print JSON: short, pretty (default) or off" },
        [OPTION_J] = { NULL, 'j', no_argument, NULL, "--json=pretty on a terminal, --json=short elsewhere" },
        [OPTION_NO_PAGER] = { "no-pager", 0, no_argument, NULL, "Do not pipe output into a pager" },
        [OPTION_NO_LEGEND] = { "no-legend", 0, no_argument, NULL, "Do not print headers and footers" },
        [OPTION_NO_ASK_PASSWORD] = { "no-ask-password", 0, no_argument, NULL, "Do not ask for authentication" },
        [OPTION_QUIET] = { "quiet", 'q', no_argument, NULL, "Print only what was asked for and errors" },
        [OPTION_INPUT] = { "input", 'i', required_argument, "TEXT", "The run's input, JSON or plain text" },
        [OPTION_INPUT_FILE] = { "input-file", 0, required_argument, "FILE", "Read the input from FILE, - is stdin" },
        [OPTION_WAIT] = { "wait", 'w', no_argument, NULL, "Wait for the end; the exit status tells the result" },
        [OPTION_NO_WAIT] = { "no-wait", 0, no_argument, NULL, "Print the operation's path and do not wait" },
        [OPTION_TIMEOUT] = { "timeout", 't', required_argument, "TIME",
                             "End the run after TIME, such as 90s or 10min, if not before" },
        [OPTION_SESSION] = { "session", 's', required_argument, "NAME", "Run in the session NAME" },
        [OPTION_KEEP] = { "keep", 0, optional_argument, NULL, "Keep the run's changes for \"env freeze\"" },
        [OPTION_KEEP_NEWEST] = { "keep", 0, required_argument, "N", "The N newest stay" },
        [OPTION_VERIFY] = { "verify", 0, no_argument, NULL,
                            "Check the bytes of the environment before the run begins" },
        [OPTION_IDEMPOTENCY_KEY] = { "idempotency-key", 0, required_argument, "KEY",
                                     "The same KEY and input give the same run" },
        [OPTION_PRIORITY] = { "priority", 0, required_argument, "N", "Place in the user's queue, -100 to 100" },
        [OPTION_LABEL] = { "label", 'l', required_argument, "KEY=VALUE", "Attach a label; may be repeated" },
        [OPTION_AGENT] = { "agent", 'a', required_argument, "AGENT", "Only runs of AGENT" },
        [OPTION_STATE] = { "state", 0, required_argument, "STATE",
                           "Only runs that are queued, preparing, running or finished" },
        [OPTION_RESULT] = { "result", 0, required_argument, "RESULT", "Only runs that ended as RESULT" },
        [OPTION_LINES] = { "lines", 'n', required_argument, "N", "At most N of the newest, or \"all\"" },
        [OPTION_FOLLOW] = { "follow", 'f', no_argument, NULL, "Go on until the run is over" },
        [OPTION_OUTPUT] = { "output", 'o', required_argument, "FILE",
                            "Write to FILE or into a directory, - is stdout" },
        [OPTION_FROM_RUN] = { "from-run", 0, required_argument, "RUN", "The kept run whose changes are frozen" },
        [OPTION_NOTE] = { "note", 0, required_argument, "TEXT", "A note to keep with what is made" },
        [OPTION_MIRROR] = { "mirror", 0, required_argument, "URL", "Debian mirror to build from; for root" },
        [OPTION_EXPECTED_HEAD] = { "expected-head", 0, required_argument, "DIGEST",
                                   "Change nothing if the head is another one" },
        [OPTION_USER] = { "user", 'u', required_argument, "USER", "The owner, if not the caller" },
        [OPTION_FD] = { "fd", 0, required_argument, "N", "Read the secret from the file descriptor N" },
        [OPTION_CANARY] = { "canary", 0, required_argument, "PERCENT", "Only for this share of the runs" },
        [OPTION_OLDER_THAN] = { "older-than", 0, required_argument, "TIME",
                                "Only what ended so long ago, such as 30days" },
        [OPTION_DRY_RUN] = { "dry-run", 0, no_argument, NULL, "Tell what would be done, and do not" },
        [OPTION_AGENTS] = { "agents", 0, required_argument, "LIST", "Only for these agents, separated by commas" },
        [OPTION_ALLOW_HOST] = { "allow-host", 0, required_argument, "HOST[:PORT]",
                                "Where the session may go as well; may be repeated" },
};

/* getopt's value of an option without a letter. */
#define LONG_BASE 256

static int parse_json_mode(const char *arg, JsonMode *ret) {
        if (!arg || streq(arg, "pretty"))
                *ret = JSON_PRETTY;
        else if (streq(arg, "short"))
                *ret = JSON_SHORT;
        else if (streq(arg, "off"))
                *ret = JSON_OFF;
        else
                return fail_usage("--json= takes short, pretty or off, not \"%s\".", arg);
        return 0;
}

static int parse_number(const char *name, const char *arg, int64_t min, int64_t max, int64_t *ret) {
        bool negative = arg[0] == '-';
        uint64_t n;

        if (parse_uint64(arg + negative, &n) < 0 || n > INT32_MAX || (negative ? -(int64_t) n : (int64_t) n) < min ||
            (int64_t) n > max)
                return fail_usage("%s takes a number from %" PRIi64 " to %" PRIi64 ", not \"%s\".", name, min, max,
                                  arg);
        *ret = negative ? -(int64_t) n : (int64_t) n;
        return 0;
}

static int parse_word(const char *name, const char *arg, const char *const *words, const char **ret) {
        for (size_t i = 0; words[i]; i++)
                if (streq(words[i], arg)) {
                        *ret = arg;
                        return 0;
                }
        return fail_usage("%s does not know \"%s\"; see agentctl(1).", name, arg);
}

static int option_apply(Options *o, OptionId id, const char *arg) {
        static const char *const states[] = { "queued", "preparing", "running", "finished", NULL };
        static const char *const results[] = { "success",        "failed",   "exit-code", "signal",
                                               "timeout",        "oom-kill", "canceled",  "out-of-credit",
                                               "sandbox-failed", "lost",     NULL };
        int64_t n = 0;
        int r;

        o->given |= UINT64_C(1) << id;

        switch (id) {

        case OPTION_JSON:
                return parse_json_mode(arg, &o->json);
        case OPTION_J:
                o->json = isatty(STDOUT_FILENO) ? JSON_PRETTY : JSON_SHORT;
                return 0;
        case OPTION_NO_PAGER:
                o->pager = false;
                return 0;
        case OPTION_NO_LEGEND:
                o->legend = false;
                return 0;
        case OPTION_NO_ASK_PASSWORD:
                o->ask_password = false;
                return 0;
        case OPTION_INPUT:
                o->input = arg;
                return 0;
        case OPTION_INPUT_FILE:
                o->input_file = arg;
                return 0;
        case OPTION_TIMEOUT:
                if (parse_timespan(arg, &o->timeout_usec) < 0 || o->timeout_usec == 0 ||
                    o->timeout_usec == USEC_INFINITY)
                        return fail_usage("--timeout takes a time such as 90s, 10min or \"1h 30min\", not \"%s\".",
                                          arg);
                return 0;
        case OPTION_OLDER_THAN:
                if (parse_timespan(arg, &o->older_than_usec) < 0 || o->older_than_usec == 0 ||
                    o->older_than_usec == USEC_INFINITY)
                        return fail_usage("--older-than takes a time such as 12h or 30days, not \"%s\".", arg);
                return 0;
        case OPTION_SESSION:
                o->session = arg;
                return 0;
        case OPTION_IDEMPOTENCY_KEY:
                o->idempotency_key = arg;
                return 0;
        case OPTION_PRIORITY:
                r = parse_number("--priority", arg, -100, 100, &n);
                o->priority = (int32_t) n;
                return r;
        case OPTION_LABEL:
                if (!strchr(arg, '=') || arg[0] == '=')
                        return fail_usage("--label takes KEY=VALUE, not \"%s\".", arg);
                return strv_extend(&o->labels, arg) < 0 ? fail_oom() : 0;
        case OPTION_AGENT:
                o->agent = arg;
                return 0;
        case OPTION_STATE:
                return parse_word("--state", arg, states, &o->state);
        case OPTION_RESULT:
                return parse_word("--result", arg, results, &o->result);
        case OPTION_LINES:
                if (streq(arg, "all")) {
                        o->lines = UINT64_MAX;
                        return 0;
                }
                r = parse_number("--lines", arg, 1, INT32_MAX, &n);
                o->lines = (uint64_t) n;
                return r;
        case OPTION_OUTPUT:
                o->output = arg;
                return 0;
        case OPTION_FROM_RUN:
                o->from_run = arg;
                return 0;
        case OPTION_NOTE:
                o->note = arg;
                return 0;
        case OPTION_MIRROR:
                o->mirror = arg;
                return 0;
        case OPTION_KEEP_NEWEST:
                r = parse_number("--keep", arg, 0, 1000000, &n);
                o->keep_newest = (uint32_t) n;
                return r;
        case OPTION_EXPECTED_HEAD:
                o->expected_head = arg;
                return 0;
        case OPTION_USER:
                o->user = arg;
                return 0;
        case OPTION_CANARY:
                r = parse_number("--canary", arg, 1, 100, &n);
                o->canary = (uint32_t) n;
                return r;
        case OPTION_AGENTS:
                if (isempty(arg))
                        return fail_usage("--agents takes the names of agents, separated by commas.");
                o->agents = arg;
                return 0;
        case OPTION_ALLOW_HOST:
                return strv_extend(&o->hosts, arg) < 0 ? fail_oom() : 0;
        case OPTION_FD:
                r = parse_number("--fd", arg, 0, INT32_MAX, &n);
                o->fd = (int) n;
                return r;

        default: /* those that are only given or not */
                return 0;
        }
}

/* Whether the words up to here are those of "env prune" or "prune-runs", whose --keep takes a number. */
static bool is_prune(int argc, char **argv) {
        for (int i = 1; i < argc; i++) {
                if (streq(argv[i], "prune-runs"))
                        return true;
                if (streq(argv[i], "env"))
                        return i + 1 < argc && streq(argv[i + 1], "prune");
        }
        return false;
}

int options_parse(Options *o, int argc, char **argv, int *ret_first) {
        struct option getopt_table[_OPTION_MAX + 1] = {};
        char letters[2 * _OPTION_MAX + 1], *p = letters;
        size_t n = 0;
        int c, r;

        for (OptionId id = 0; id < _OPTION_MAX; id++) {
                /* OPTION_KEEP_NEWEST is told from OPTION_KEEP below, getopt knows one "--keep". */
                if (table[id].name && id != OPTION_KEEP_NEWEST)
                        getopt_table[n++] = (struct option) {
                                .name = table[id].name,
                                .has_arg = table[id].has_arg,
                                .val = LONG_BASE + (int) id,
                        };
                if (table[id].letter) {
                        *p++ = table[id].letter;
                        if (table[id].has_arg == required_argument)
                                *p++ = ':';
                }
        }
        *p = 0;

        optind = 0; /* glibc: start anew */
        while ((c = getopt_long(argc, argv, letters, getopt_table, NULL)) >= 0) {
                OptionId id = _OPTION_MAX;

                if (c == '?')
                        return USAGE_ERROR; /* getopt has said why */
                if (c >= LONG_BASE)
                        id = (OptionId) (c - LONG_BASE);
                else
                        for (id = 0; id < _OPTION_MAX && table[id].letter != c;)
                                id++;
                assert(id < _OPTION_MAX);
                if (id == OPTION_KEEP) {
                        /* getopt's optional arguments are only those behind a "=". */
                        if (!optarg && is_prune(argc, argv)) {
                                if (optind >= argc)
                                        return fail_usage("How many of the newest are to stay? --keep=N.");
                                optarg = argv[optind++];
                        }
                        if (optarg)
                                id = OPTION_KEEP_NEWEST;
                }
                r = option_apply(o, id, optarg);
                if (r < 0)
                        return r;
        }

        *ret_first = optind;
        return 0;
}

void options_done(Options *o) {
        o->labels = strv_free(o->labels);
        o->hosts = strv_free(o->hosts);
}

const char *option_name(OptionId id) {
        static char name[32];

        if (table[id].name)
                snprintf(name, sizeof(name), "--%s%s", table[id].name, id == OPTION_KEEP_NEWEST ? "=N" : "");
        else
                snprintf(name, sizeof(name), "-%c", table[id].letter);
        return name;
}

bool option_is_common(OptionId id) {
        return id <= OPTION_QUIET;
}

void option_print_help(FILE *f, OptionId id) {
        const Option *option = table + id;
        bool optional = option->has_arg == optional_argument;
        char left[64];

        snprintf(left, sizeof(left), "  %c%c%s%s%s%s%s", option->letter ? '-' : ' ', option->letter ?: ' ',
                 option->name ? "  --" : "", strempty(option->name),
                 !option->arg ? "" : optional ? "[=" : "=", strempty(option->arg),
                 option->arg && optional ? "]" : "");
        fprintf(f, "%-33s %s\n", left, option->help);
}
