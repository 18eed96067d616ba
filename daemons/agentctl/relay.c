/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "basic/fs-util.h"
#include "relay.h"

static void __attribute__((noreturn)) carry(int from, int to) {
        char buf[16384];
        ssize_t n;

        /* Nothing else of ours is held open: the bus and the other ends of the pipes would not see us go. */
        if (dup2(from, STDIN_FILENO) < 0 || dup2(to, STDOUT_FILENO) < 0 || close_range(2, ~0U, 0) < 0)
                _exit(EXIT_FAILURE);
        (void) signal(SIGINT, SIG_IGN); /* what is on its way still goes out */
        do
                n = read(STDIN_FILENO, buf, sizeof buf);
        while (n > 0 ? write_full(STDOUT_FILENO, buf, (size_t) n) >= 0 : n < 0 && errno == EINTR);
        _exit(EXIT_SUCCESS);
}

static int begin_one(Relay *r, int fd) {
        _cleanup_close_ int ours = -EBADF, theirs = -EBADF;
        struct stat st;
        int p[2];
        pid_t pid;

        if (fstat(fd, &st) < 0)
                return -errno;
        if (!S_ISSOCK(st.st_mode))
                return 0;
        if (pipe2(p, O_CLOEXEC) < 0)
                return -errno;
        ours = p[fd == STDIN_FILENO];
        theirs = p[fd != STDIN_FILENO];
        pid = fork();
        if (pid < 0)
                return -errno;
        if (pid == 0)
                carry(fd == STDIN_FILENO ? fd : ours, fd == STDIN_FILENO ? ours : fd);
        r->pids[fd] = pid;
        r->fds[fd] = TAKE_FD(theirs);
        return 0;
}

int relay_begin(Relay *ret) {
        Relay r = { .fds = { STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO } };

        for (int fd = 0; fd < 3; fd++) {
                int k = begin_one(&r, fd);

                if (k < 0) {
                        relay_end(&r);
                        return k;
                }
        }
        *ret = r;
        return 0;
}

void relay_end(Relay *r) {
        for (int fd = 0; fd < 3; fd++) {
                if (r->pids[fd] <= 0)
                        continue;
                safe_close(r->fds[fd]);
                if (fd == STDIN_FILENO)
                        (void) kill(r->pids[fd], SIGKILL);
        }
        for (int fd = 0; fd < 3; fd++)
                if (r->pids[fd] > 0)
                        while (waitpid(r->pids[fd], NULL, 0) < 0 && errno == EINTR)
                                ;
        *r = (Relay) {};
}
