/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * One pager behind stdout. The command in the environment is the caller's own and runs as the caller, in a shell,
 * as in other programs; "" or "cat" switch paging off.
 */

#include "pager.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

static pid_t pager_pid = 0;

void pager_open(bool wanted) {
        const char *command;
        int fds[2];
        pid_t pid;

        if (!wanted || pager_pid > 0 || !isatty(STDOUT_FILENO) || geteuid() != getuid())
                return;
        command = getenv("AGENTD_PAGER") ?: getenv("PAGER");
        if (command && (isempty(command) || streq(command, "cat")))
                return;
        if (pipe2(fds, O_CLOEXEC) < 0)
                return;

        fflush(stdout);
        pid = fork();
        if (pid == 0) {
                sigset_t none;

                sigemptyset(&none);
                (void) sigprocmask(SIG_SETMASK, &none, NULL);
                if (dup2(fds[0], STDIN_FILENO) < 0)
                        _exit(EXIT_FAILURE);
                (void) prctl(PR_SET_PDEATHSIG, SIGTERM);
                (void) setenv("LESS", "FRSXMK", false);
                if (command)
                        execl("/bin/sh", "sh", "-c", command, NULL);
                else {
                        execlp("less", "less", NULL);
                        execlp("more", "more", NULL);
                        execlp("cat", "cat", NULL);
                }
                _exit(EXIT_FAILURE);
        }
        close(fds[0]);
        if (pid < 0 || dup2(fds[1], STDOUT_FILENO) < 0) {
                close(fds[1]);
                return;
        }
        close(fds[1]);
        pager_pid = pid;
}

void pager_close(void) {
        if (pager_pid <= 0)
                return;
        (void) fflush(stdout);
        (void) close(STDOUT_FILENO);
        while (waitpid(pager_pid, NULL, 0) < 0 && errno == EINTR)
                ;
        pager_pid = 0;
}
