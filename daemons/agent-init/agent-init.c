/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * agent-init COMMAND ARG…: the first process of a run.
 *
 * A run has a PID namespace of its own, and the kernel treats its first process differently: signals that it has no handler
 * for are ignored (so a polite stop would do nothing, and abort() would loop), and orphans become its children (so a
 * program that does not reap them fills its TasksMax= with zombies). This program takes that place: it starts the command
 * as an ordinary process, passes signals on, reaps whatever dies, and ends when the command does: with its exit status, or
 * with 128 + n where signal n killed it, as shells do. What is left then is killed by the kernel with the namespace.
 *
 * It is static and tiny, because each run pays for it, and it trusts nothing inside the sandbox: it reads no file, no
 * variable, no library.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char *argv[]) {
        sigset_t all, old;
        pid_t child;

        if (argc < 2)
                return 2;
        sigfillset(&all);
        sigprocmask(SIG_BLOCK, &all, &old);

        child = fork();
        if (child == 0) {
                sigprocmask(SIG_SETMASK, &old, NULL);
                execv(argv[1], argv + 1);
                dprintf(STDERR_FILENO, "%s: %s\n", argv[1], strerror(errno));
                _exit(errno == ENOENT ? 127 : 126);
        }
        if (child < 0)
                return 125;

        for (;;) {
                siginfo_t si;

                if (sigwaitinfo(&all, &si) < 0)
                        continue;
                if (si.si_signo != SIGCHLD) {
                        /* A stop comes to us alone (KillMode=mixed), so the command hears of it once. */
                        kill(child, si.si_signo);
                        continue;
                }
                for (;;) {
                        int status;
                        pid_t pid = waitpid(-1, &status, WNOHANG);

                        if (pid <= 0)
                                break;
                        if (pid != child)
                                continue;
                        return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
                }
        }
}
