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
 * How the command ended is also written to the file that agentd passed as the first listen fd: "exited N" or "killed N". PID
 * 1 cannot be relied on for it: the first process of a namespace is not its child at first, and the status of one that ends
 * before PID 1 has heard of it is lost (the unit then counts as a success). The file has no name inside the run, and with
 * us not being dumpable nobody there can get at our descriptor.
 *
 * It is static and tiny, because each run pays for it, and it trusts nothing inside the sandbox: it reads no file and no
 * library.
 *
 * Nobody in the run sets limits of other processes: limits.c.
 *
 * agent-init --apart PROGRAM ARG…, as any later process, is how a runner starts the agent's program: apart.c. One file has
 * both because every file that is bound into a sandbox costs each run its share.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "apart.h"
#include "limits.h"

#define RECORD_FD 3 /* SD_LISTEN_FDS_START */

int main(int argc, char *argv[]) {
        int record = getenv("LISTEN_FDS") ? RECORD_FD : -1;
        sigset_t all, old;
        pid_t child;

        if (argc < 2)
                return 2;
        /* The first process is always the init: whatever its command is called. */
        if (getpid() != 1 && strcmp(argv[1], "--apart") == 0)
                return argc < 3 ? 2 : apart_exec(argv + 2);
        prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
        if (record >= 0)
                fcntl(record, F_SETFD, FD_CLOEXEC);
        unsetenv("LISTEN_FDS");
        unsetenv("LISTEN_PID");
        unsetenv("LISTEN_PIDFDID");
        unsetenv("LISTEN_FDNAMES");
        sigfillset(&all);
        sigprocmask(SIG_BLOCK, &all, &old);

        child = fork();
        if (child == 0) {
                int r = limits_own_only();

                if (r < 0) {
                        dprintf(STDERR_FILENO, "The run's limits cannot be kept apart: %s\n", strerror(-r));
                        _exit(125);
                }
                sigprocmask(SIG_SETMASK, &old, NULL);
                execv(argv[1], argv + 1);
                dprintf(STDERR_FILENO, "%s: %s\n", argv[1], strerror(errno));
                _exit(errno == ENOENT ? 127 : 126);
        }
        if (child < 0) {
                if (record >= 0)
                        dprintf(record, "exited 125\n");
                return 125;
        }

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
                        if (record >= 0)
                                dprintf(record, WIFEXITED(status) ? "exited %d\n" : "killed %d\n",
                                        WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
                        return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
                }
        }
}
