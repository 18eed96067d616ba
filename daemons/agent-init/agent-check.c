/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * agent-check SECONDS NODE BROKEN SCRIPT…: has NODE check each SCRIPT (`node --check`), one after the other.
 *
 * It is the first process of the unit in which agentd validates a runner. First NODE gets BROKEN, which no Node
 * accepts: one that accepts it checks nothing. What NODE says goes to standard error; how it ended is told by the exit
 * status (daemons/agentd/runner-check.h), which is also written to the first listen fd as one byte, for the reason that
 * agent-init.c gives; without that byte nothing counts as checked. The sandbox of a run costs as much to set up as a
 * check takes, so all checks share one.
 *
 * As agent-init it is static and trusts nothing inside the sandbox; as the first process of its PID namespace it
 * cannot be killed from there.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "daemons/agentd/runner-check.h"

#define RECORD_FD 3 /* SD_LISTEN_FDS_START */

/* Wait status of a program that did not end in time, or was not started. */
#define TIMED_OUT (-1)
#define NOT_STARTED (-2)

static int run(char *node, char *script, long seconds, const sigset_t *all, const sigset_t *none) {
        char *argv[] = { node, (char *) "--check", script, NULL };
        struct timespec end, now;
        int errors[2];
        pid_t child;

        if (pipe2(errors, O_CLOEXEC) < 0)
                return NOT_STARTED;
        clock_gettime(CLOCK_MONOTONIC, &end);
        end.tv_sec += seconds;
        child = fork();
        if (child < 0)
                return NOT_STARTED;
        if (child == 0) {
                int e;

                sigprocmask(SIG_SETMASK, none, NULL);
                execv(node, argv);
                e = errno;
                if (write(errors[1], &e, sizeof e) < 0)
                        _exit(126);
                _exit(127);
        }
        close(errors[1]);
        for (;;) {
                struct timespec left = { 0 };
                int status, e;
                pid_t pid;

                while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
                        if (pid == child) {
                                ssize_t n = read(errors[0], &e, sizeof e);

                                close(errors[0]);
                                kill(-1, SIGKILL); /* whatever it has left behind; not us, being the first */
                                return n > 0 ? NOT_STARTED : status;
                        }
                clock_gettime(CLOCK_MONOTONIC, &now);
                left.tv_sec = end.tv_sec - now.tv_sec;
                if (left.tv_sec < 0 || (left.tv_sec == 0 && end.tv_nsec <= now.tv_nsec)) {
                        kill(-1, SIGKILL);
                        return TIMED_OUT;
                }
                sigtimedwait(all, NULL, &left);
        }
}

static int check(int argc, char *argv[]) {
        sigset_t all, none;
        long seconds;

        if (argc < 5 || (seconds = atol(argv[1])) < 1)
                return 2;
        sigfillset(&all);
        sigprocmask(SIG_BLOCK, &all, &none);
        for (int i = 3; i < argc; i++) {
                int status = run(argv[2], argv[i], seconds, &all, &none);

                if (status == NOT_STARTED)
                        return CHECK_STATUS_NOT_STARTED;
                if (status == TIMED_OUT)
                        return CHECK_STATUS_TIMED_OUT;
                if (WIFSIGNALED(status))
                        return CHECK_STATUS_KILLED;
                if (i == 3) {
                        if (WEXITSTATUS(status) == 0)
                                return CHECK_STATUS_BLIND;
                        if (WEXITSTATUS(status) != 1)
                                return CHECK_STATUS_ODD;
                        /* What it said about that one is in nobody's way. */
                        if (ftruncate(STDERR_FILENO, 0) < 0 || lseek(STDERR_FILENO, 0, SEEK_SET) < 0)
                                return CHECK_STATUS_ODD;
                        continue;
                }
                if (WEXITSTATUS(status) == 1)
                        return CHECK_STATUS_REFUSED;
                if (WEXITSTATUS(status) != 0)
                        return CHECK_STATUS_ODD;
        }
        return 0;
}

int main(int argc, char *argv[]) {
        unsigned char status;

        prctl(PR_SET_DUMPABLE, 0, 0, 0, 0); /* nobody inside gets at our descriptor */
        if (!getenv("LISTEN_FDS") || fcntl(RECORD_FD, F_SETFD, FD_CLOEXEC) < 0)
                return 2;
        unsetenv("LISTEN_FDS");
        unsetenv("LISTEN_PID");
        unsetenv("LISTEN_PIDFDID");
        unsetenv("LISTEN_FDNAMES");
        status = (unsigned char) check(argc, argv);
        return write(RECORD_FD, &status, 1) == 1 ? status : 2;
}
