/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* agentd-worker: started by agentd only, with its socket as fd 3. */
#include <getopt.h>

#include "basic/log.h"
#include "sandbox/worker-protocol.h"
#include "sandbox/worker-server.h"

int main(int argc, char *argv[]) {
        static const struct option options[] = {
                { "state",   required_argument, NULL, 's' },
                { "runtime", required_argument, NULL, 'r' },
                { "stay",    no_argument,       NULL, 'y' },
                {}
        };
        const char *state = "/var/lib/agentd", *runtime = "/run/agentd";
        bool stay = false;
        int c, r;

        log_setup("agentd-worker");
        while ((c = getopt_long(argc, argv, "", options, NULL)) >= 0)
                switch (c) {
                case 's':
                        state = optarg;
                        break;
                case 'r':
                        runtime = optarg;
                        break;
                case 'y':
                        stay = true;
                        break;
                default:
                        return EXIT_FAILURE;
                }
        r = worker_serve(WORKER_SOCKET_FD, state, runtime, stay);
        if (r < 0)
                log_error_errno(r, "The worker cannot go on: %m");
        return r < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}
