/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* Look-up of verbs, checks of what was given to them, and their help. The table itself is in verb-table.c. */

#include "verb.h"

#include "format.h"

static const char *const group_titles[_GROUP_MAX] = {
        [GROUP_RUNS] = "Runs",
        [GROUP_AGENTS] = "Agents and their environments",
        [GROUP_IMAGES] = "Images",
        [GROUP_SERVICES] = "Services and credentials",
        [GROUP_RUNNERS] = "Runners",
        [GROUP_OTHER] = "Other",
};

/* Whether NAME is the first word of a verb of two words. */
static bool is_family(const char *name) {
        size_t l = strlen(name);

        for (const Verb *v = verbs; v->name; v++)
                if (startswith(v->name, name) && v->name[l] == ' ')
                        return true;
        return false;
}

const Verb *verb_find(const Verb *table, int argc, char **argv, int *ret_words) {
        for (const Verb *v = table; v->name; v++) {
                const char *second = strchr(v->name, ' ');
                size_t first = second ? (size_t) (second - v->name) : strlen(v->name);

                if (argc < 1 || strlen(argv[0]) != first || strncmp(argv[0], v->name, first) != 0)
                        continue;
                if (second && (argc < 2 || !streq(argv[1], second + 1)))
                        continue;
                *ret_words = second ? 2 : 1;
                return v;
        }
        return NULL;
}

int verb_unknown(int argc, char **argv) {
        return fail_usage("There is no verb \"%s%s%s\". \"agentctl help\" shows all.", argv[0], argc > 1 ? " " : "",
                          argc > 1 ? argv[1] : "");
}

int verb_check(const Verb *v, const Options *o, int argc) {
        for (OptionId id = 0; id < _OPTION_MAX; id++)
                if (option_given(o, id) && !option_is_common(id) && !(v->options & OPTION_BIT(id)))
                        return fail_usage("\"%s\" does not take %s. See \"agentctl help %s\".", v->name,
                                          option_name(id), v->name);

        /* What is too much is not repeated: it might be a secret */
        if (argc < (int) v->min_args)
                return fail_usage("Too few arguments: agentctl %s %s", v->name, strempty(v->args));
        if (argc > (int) v->max_args)
                return fail_usage("Too many arguments: agentctl %s%s%s%s", v->name, isempty(v->args) ? "" : " ",
                                  strempty(v->args), streq(v->name, "credential set") ?
                                          " (a secret is never given on the command line: it comes on stdin)" : "");
        return 0;
}

static void print_common_options(FILE *f) {
        fputs("\nCommon options:\n", f);
        for (OptionId id = 0; option_is_common(id); id++)
                option_print_help(f, id);
}

static void print_verb_line(FILE *f, const Verb *v) {
        char left[64];

        snprintf(left, sizeof(left), "  %s%s%s", v->name, isempty(v->args) ? "" : " ", strempty(v->args));
        fprintf(f, "%s%*s %s\n", left, 33 - (int) text_width(left), "", v->summary);
}

void help_print(FILE *f) {
        fputs("agentctl [OPTIONS…] VERB …\n\n"
              "Run cloud agents and look after their environments and credentials.\n", f);
        for (VerbGroup g = 0; g < _GROUP_MAX; g++) {
                fprintf(f, "\n%s:\n", group_titles[g]);
                for (const Verb *v = verbs; v->name; v++)
                        if (v->group == g)
                                print_verb_line(f, v);
        }
        print_common_options(f);
        fputs("\nRUN is a run's id, a unique part of it from its beginning or end (4 digits or more), or \"last\".\n"
              "\"agentctl help VERB\" tells more about one verb; agentctl(1) tells all.\n", f);
}

void help_print_verb(FILE *f, const Verb *v) {
        bool title = false;

        fprintf(f, "agentctl [OPTIONS…] %s%s%s\n\n%s.\n", v->name, isempty(v->args) ? "" : " ", strempty(v->args),
                v->summary);
        if (v->details)
                fprintf(f, "\n%s\n", v->details);
        for (OptionId id = 0; id < _OPTION_MAX; id++)
                if (v->options & OPTION_BIT(id)) {
                        if (!title)
                                fputs("\nOptions:\n", f);
                        title = true;
                        option_print_help(f, id);
                }
        print_common_options(f);
}

bool help_print_family(FILE *f, const char *family) {
        size_t l = strlen(family);

        if (!is_family(family))
                return false;
        fprintf(f, "agentctl [OPTIONS…] %s VERB …\n\n", family);
        for (const Verb *v = verbs; v->name; v++)
                if (startswith(v->name, family) && v->name[l] == ' ')
                        print_verb_line(f, v);
        print_common_options(f);
        return true;
}

int verb_help(Client *c _unused_, int argc, char **argv) {
        const Verb *v;
        int words;

        if (argc == 0) {
                help_print(stdout);
                return 0;
        }
        v = verb_find(verbs, argc, argv, &words);
        if (v && words == argc) {
                help_print_verb(stdout, v);
                return 0;
        }
        if (argc == 1 && help_print_family(stdout, argv[0]))
                return 0;
        return verb_unknown(argc, argv);
}
