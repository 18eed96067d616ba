/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* From the command line to a verb and from its outcome to an exit status. */

#include "agentctl.h"

#include <locale.h>

#include "exit-status.h"
#include "pager.h"
#include "verb.h"

static int dispatch(Client *c, int argc, char **argv) {
        const Options *o = c->options;
        const Verb *v;
        int words = 0, r;

        if (option_given(o, OPTION_VERSION)) {
                printf("agentctl %s\n", AGENTD_VERSION);
                return STATUS_SUCCESS;
        }

        v = verb_find(verbs, argc, argv, &words);
        if (option_given(o, OPTION_HELP)) {
                if (v)
                        help_print_verb(stdout, v);
                else if (argc == 0)
                        help_print(stdout);
                else if (argc > 1 || !help_print_family(stdout, argv[0]))
                        return verb_unknown(argc, argv);
                return STATUS_SUCCESS;
        }

        if (argc == 0) {
                help_print(stderr);
                return STATUS_USAGE;
        }
        if (!v) {
                if (argc == 1 && help_print_family(stderr, argv[0]))
                        return STATUS_USAGE;
                return verb_unknown(argc, argv);
        }

        r = verb_check(v, o, argc - words);
        if (r < 0)
                return r;
        return v->run(c, argc - words, argv + words);
}

int agentctl_main(int argc, char **argv) {
        Options options = OPTIONS_DEFAULT;
        Client client = { .options = &options };
        int first, r;

        (void) setlocale(LC_ALL, "");

        r = options_parse(&options, argc, argv, &first);
        if (r >= 0)
                r = dispatch(&client, argc - first, argv + first);

        /* A result that could not be written is no success */
        if (fflush(stdout) != 0 || ferror(stdout))
                r = errno == EPIPE ? r : fail_errno(-errno, "Cannot write to stdout");
        client_done(&client);
        pager_close();
        options_done(&options);

        if (r < 0)
                return r == USAGE_ERROR ? STATUS_USAGE : STATUS_ERROR;
        return r;
}
