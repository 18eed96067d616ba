/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* agent-bridged: see bridge.h. */

#include <stdio.h>
#include <sys/prctl.h>

#include "basic/log.h"
#include "bridge.h"

static int run(void) {
        _cleanup_(bridge_freep) Bridge *b = NULL;

        int r = bridge_new(NULL, &b);
        if (r < 0)
                return r;
        r = bridge_startup(b);
        if (r < 0)
                return r;
        return bridge_serve(b);
}

int main(int argc, char *argv[]) {
        if (argc > 1) {
                bool version = streq(argv[1], "--version");

                printf(version ? "agent-bridged " AGENTD_VERSION "\n" :
                                 "agent-bridged is started by the service manager and takes no arguments.\n");
                return version ? EXIT_SUCCESS : EXIT_FAILURE;
        }

        log_setup("agent-bridged");
#ifndef __SANITIZE_ADDRESS__ /* whose leak check attaches to us */
        (void) prctl(PR_SET_DUMPABLE, 0); /* what passes through is in nobody's core dump */
#endif
        return run() < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}
