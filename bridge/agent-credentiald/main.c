/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* agent-credentiald: see credentiald.h. */

#include <signal.h>
#include <sys/prctl.h>
#include <systemd/sd-daemon.h>

#include "basic/log.h"
#include "bus/bus-error.h"
#include "credentiald.h"

static int run(void) {
        _cleanup_(credentiald_freep) Credentiald *c = NULL;
        int r;

        /* Nobody reads this memory by ptrace() or from /proc, whatever the unit says. (The leak checker does.) */
#ifndef __SANITIZE_ADDRESS__
        if (prctl(PR_SET_DUMPABLE, 0) < 0)
                return log_error_errno(-errno, "Failed to make the process undumpable: %m");
#endif

        r = bus_error_register();
        if (r < 0)
                return log_oom();
        r = credentiald_new(&c);
        if (r < 0)
                return log_error_errno(r, "Failed to start: %m");

        if ((r = sd_event_add_signal(c->event, NULL, SIGTERM | SD_EVENT_SIGNAL_PROCMASK, NULL, NULL)) < 0 ||
            (r = sd_event_add_signal(c->event, NULL, SIGINT | SD_EVENT_SIGNAL_PROCMASK, NULL, NULL)) < 0 ||
            (r = sd_event_set_watchdog(c->event, true)) < 0)
                return log_error_errno(r, "Failed to set up the event loop: %m");

        r = credentiald_startup(c);
        if (r < 0)
                return r;

        (void) sd_notify(false, "READY=1\nSTATUS=Handing out material for live runs.");
        r = sd_event_loop(c->event);
        (void) sd_notify(false, "STOPPING=1\nSTATUS=");
        if (r < 0)
                return log_error_errno(r, "The event loop failed: %m");

        return r;
}

int main(int argc, char *argv[]) {
        log_setup("agent-credentiald");

        if (argc > 1) {
                log_error("%s takes no arguments.", argv[0]);
                return EXIT_FAILURE;
        }

        return run() < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}
