/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * The textual authentication agent of polkit as a child process, for as long as agentctl runs. It registers
 * with --fallback, so that a graphical agent of the same session goes first.
 */

#include "polkit-agent.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#define READY_TIMEOUT_MSEC 5000

void polkit_agent_open(pid_t *ret) {
        _cleanup_close_ int read_end = -EBADF;
        int fds[2];
        pid_t pid;

        if (geteuid() == 0 || !isatty(STDIN_FILENO) || access("/usr/bin/pkttyagent", X_OK) < 0)
                return;
        if (pipe2(fds, O_CLOEXEC) < 0)
                return;
        read_end = fds[0];

        pid = fork();
        if (pid == 0) {
                char notify[16];
                sigset_t none;

                sigemptyset(&none);
                (void) sigprocmask(SIG_SETMASK, &none, NULL);
                (void) prctl(PR_SET_PDEATHSIG, SIGTERM);
                if (fcntl(fds[1], F_SETFD, 0) < 0)
                        _exit(EXIT_FAILURE);
                snprintf(notify, sizeof(notify), "%d", fds[1]);
                execl("/usr/bin/pkttyagent", "pkttyagent", "--notify-fd", notify, "--fallback", NULL);
                _exit(EXIT_FAILURE);
        }
        close(fds[1]);
        if (pid < 0)
                return;

        /* It closes the pipe when it is registered, or dead. */
        (void) poll(&(struct pollfd) { .fd = read_end, .events = POLLIN }, 1, READY_TIMEOUT_MSEC);
        *ret = pid;
}

void polkit_agent_close(pid_t *pid) {
        if (*pid <= 0)
                return;
        (void) kill(*pid, SIGTERM);
        (void) kill(*pid, SIGCONT);
        (void) waitpid(*pid, NULL, 0);
        *pid = 0;
}
