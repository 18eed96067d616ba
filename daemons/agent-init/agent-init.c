/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * agent-init [--log BYTES] COMMAND ARG…: the first process of a run.
 *
 * A run has a PID namespace of its own, and the kernel treats its first process differently: signals that it has no handler
 * for are ignored (so a polite stop would do nothing, and abort() would loop), and orphans become its children (so a
 * program that does not reap them fills its TasksMax= with zombies). This program takes that place: it starts the command
 * as an ordinary process, passes signals on, reaps whatever dies, and ends when the command does: with its exit status, or
 * with 128 + n where signal n killed it, as shells do. What is left then is killed by the kernel with the namespace.
 *
 * That it began and how the command ended is also written to the file that agentd passed as the first listen fd: "began",
 * "exited N" or "killed N". PID 1 cannot be relied on for it: the first process of a namespace is not its child at first, and
 * the status of one that ends before PID 1 has heard of it is lost (the unit then counts as a success). The file has no name
 * inside the run, and with us not being dumpable nobody there can get at our descriptor.
 *
 * It is static and tiny, because each run pays for it, and it trusts nothing inside the sandbox: it reads no file and no
 * library.
 *
 * With --log, the command's output is passed on by us, up to so many bytes: log.c. A runner sends its agent's output to the
 * bridge, which does that for it.
 *
 * Nobody in the run sets limits of other processes: limits.c.
 *
 * agent-init --apart PROGRAM ARG…, as any later process, is how a runner starts the agent's program: apart.c. One file has
 * both because every file that is bound into a sandbox costs each run its share.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "apart.h"
#include "limits.h"
#include "log.h"

#define RECORD_FD 3 /* SD_LISTEN_FDS_START */

/* Returns the wait status of CHILD when it has ended; reaps whatever else dies. */
static bool reap(pid_t child, int *ret_status) {
        for (;;) {
                int status;
                pid_t pid = waitpid(-1, &status, WNOHANG);

                if (pid <= 0)
                        return false;
                if (pid == child) {
                        *ret_status = status;
                        return true;
                }
        }
}

/* Until CHILD has ended. A stop comes to us alone (KillMode=mixed), so the command hears of it once. */
static int wait_for(pid_t child, int signals, Log *log) {
        for (;;) {
                struct pollfd p[] = {
                        { .fd = signals, .events = POLLIN },
                        { .fd = log->in, .events = log_events_in(log) },
                        { .fd = STDOUT_FILENO, .events = log_events_out(log) },
                };
                struct signalfd_siginfo si;
                int status;

                /* An fd that is of no interest now would still tell of its end, without end. */
                for (unsigned i = 1; i < sizeof p / sizeof *p; i++)
                        if (p[i].events == 0)
                                p[i].fd = -1;
                if (poll(p, sizeof p / sizeof *p, -1) < 0)
                        continue;
                while (read(signals, &si, sizeof si) == sizeof si)
                        if (si.ssi_signo != SIGCHLD)
                                kill(child, (int) si.ssi_signo);
                if (reap(child, &status))
                        return status;
                if (p[1].revents || p[2].revents)
                        log_turn(log);
        }
}

int main(int argc, char *argv[]) {
        int record = getenv("LISTEN_FDS") ? RECORD_FD : -1, signals, status, r;
        Log log = { .in = -EBADF, .child = -EBADF };
        char **command = argv + 1;
        sigset_t all, old;
        pid_t child;

        if (argc < 2)
                return 2;
        /* The first process is always the init: whatever its command is called. */
        if (getpid() != 1 && strcmp(argv[1], "--apart") == 0)
                return argc < 3 ? 2 : apart_exec(argv + 2);
        prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
        if (record >= 0) {
                fcntl(record, F_SETFD, FD_CLOEXEC);
                dprintf(record, "began\n");
        }
        unsetenv("LISTEN_FDS");
        unsetenv("LISTEN_PID");
        unsetenv("LISTEN_PIDFDID");
        unsetenv("LISTEN_FDNAMES");
        sigfillset(&all);
        sigprocmask(SIG_BLOCK, &all, &old);
        signals = signalfd(-1, &all, SFD_CLOEXEC | SFD_NONBLOCK);
        if (signals < 0)
                return 125;
        /* agentd says this before any command of an agent's, so it is not one's name. */
        if (strcmp(argv[1], "--log") == 0) {
                if (argc < 4 || log_open(&log, strtoull(argv[2], NULL, 10)) < 0)
                        return 125;
                command = argv + 3;
        }

        child = fork();
        if (child == 0) {
                if (log.child >= 0 && (dup2(log.child, STDOUT_FILENO) < 0 || dup2(log.child, STDERR_FILENO) < 0))
                        _exit(125);
                r = limits_own_only();
                if (r < 0) {
                        dprintf(STDERR_FILENO, "The run's limits cannot be kept apart: %s\n", strerror(-r));
                        _exit(125);
                }
                sigprocmask(SIG_SETMASK, &old, NULL);
                execv(command[0], command);
                dprintf(STDERR_FILENO, "%s: %s\n", command[0], strerror(errno));
                _exit(errno == ENOENT ? 127 : 126);
        }
        if (child < 0) {
                if (record >= 0)
                        dprintf(record, "exited 125\n");
                return 125;
        }
        close(log.child);

        status = wait_for(child, signals, &log);
        if (record >= 0)
                dprintf(record, WIFEXITED(status) ? "exited %d\n" : "killed %d\n",
                        WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
        log_drain(&log);
        return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
