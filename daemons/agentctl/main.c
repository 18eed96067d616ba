/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* agentctl, the command line of agentd. All of it is in a static library, so that tests can link it. */

#include "agentctl.h"

int main(int argc, char **argv) {
        return agentctl_main(argc, argv);
}
