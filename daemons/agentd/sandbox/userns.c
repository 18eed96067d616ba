/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A map can be written only by somebody outside while the namespace has a process: so a child is made in a new one,
 * which does nothing but wait to be killed.
 */
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "sandbox/userns.h"

static int write_map(pid_t pid, const char *name, const char *map) {
        char path[64];
        ssize_t n;
        int fd, r = 0;

        snprintf(path, sizeof path, "/proc/%d/%s", (int) pid, name);
        fd = open(path, O_WRONLY | O_CLOEXEC | O_NOCTTY);
        if (fd < 0)
                return -errno;
        /* The kernel takes a map in one write or not at all. */
        n = write(fd, map, strlen(map));
        if (n < 0)
                r = -errno;
        else if ((size_t) n != strlen(map))
                r = -EIO;
        close(fd);
        return r;
}

static int open_with_map(const char *map) {
        int fd = -EBADF, r;
        char path[64];
        pid_t pid;

        pid = (pid_t) syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, NULL, NULL, NULL, NULL);
        if (pid < 0)
                return -errno;
        if (pid == 0) {
                (void) prctl(PR_SET_PDEATHSIG, SIGKILL);
                for (;;)
                        pause();
        }
        r = write_map(pid, "uid_map", map);
        if (r >= 0)
                r = write_map(pid, "gid_map", map);
        if (r >= 0) {
                snprintf(path, sizeof path, "/proc/%d/ns/user", (int) pid);
                fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
                r = fd < 0 ? -errno : fd;
        }
        (void) kill(pid, SIGKILL);
        while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
                ;
        return r;
}

int userns_open_for_uid(uid_t uid) {
        char map[96];

        if (uid <= IMAGE_AGENT_UID || uid > INT32_MAX)
                return -EINVAL;
        snprintf(map, sizeof map, "0 0 %d\n%d %" PRIu32 " 1\n", IMAGE_AGENT_UID, IMAGE_AGENT_UID, (uint32_t) uid);
        return open_with_map(map);
}

int userns_open_for_range(uid_t inside, uid_t outside, uid_t count) {
        char map[96];

        if (count == 0 || inside > INT32_MAX - count || outside > INT32_MAX - count)
                return -EINVAL;
        snprintf(map, sizeof map, "%" PRIu32 " %" PRIu32 " %" PRIu32 "\n", (uint32_t) inside, (uint32_t) outside,
                 (uint32_t) count);
        return open_with_map(map);
}
