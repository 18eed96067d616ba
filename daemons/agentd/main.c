/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* agentd: the D-Bus service org.agentd1. */
#include <getopt.h>
#include <sys/stat.h>

#include "manager.h"

static int run(void) {
        _cleanup_(manager_freep) Manager *m = NULL;
        int r;

        r = manager_new(&m);
        if (r < 0)
                return log_error_errno(r, "Cannot begin: %m");
        r = manager_startup(m);
        if (r < 0)
                return r;
        return sd_event_loop(m->event);
}

int main(int argc, char *argv[]) {
        static const struct option options[] = {
                { "help", no_argument, NULL, 'h' },
                { "version", no_argument, NULL, 'V' },
                {},
        };
        int c;

        while ((c = getopt_long(argc, argv, "h", options, NULL)) >= 0)
                switch (c) {
                case 'h':
                        printf("agentd [--help] [--version]\n\nRuns agents in sandboxed units; the D-Bus service " BUS_NAME
                               ".\nIt is started by systemd; see agentd(8).\n");
                        return EXIT_SUCCESS;
                case 'V':
                        printf("agentd " AGENTD_VERSION "\n");
                        return EXIT_SUCCESS;
                default:
                        return EXIT_FAILURE;
                }
        log_setup("agentd");
        umask(0077);
        bus_error_register();
        return run() < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}
