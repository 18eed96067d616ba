/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The only way out of a run: its own network namespace, in which just the bridge's listener can be reached. */
#include <endian.h>
#include <fcntl.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/socket.h>

#include "sandbox/netns.h"

#define LISTENER_BACKLOG SOMAXCONN /* when it is full, clients that connect wait for a second, or three */

static int loopback_up(int socket_fd) {
        struct ifreq ifr = { .ifr_name = "lo" };

        if (ioctl(socket_fd, SIOCGIFFLAGS, &ifr) < 0)
                return -errno;
        ifr.ifr_flags |= IFF_UP;
        return ioctl(socket_fd, SIOCSIFFLAGS, &ifr) < 0 ? -errno : 0;
}

static int listener_open(uint16_t port, int *ret) {
        struct sockaddr_in sa = {
                .sin_family = AF_INET,
                .sin_port = htobe16(port),
                .sin_addr.s_addr = htobe32(INADDR_LOOPBACK),
        };
        _cleanup_close_ int fd = -EBADF;
        int one = 1, r;

        fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0)
                return -errno;
        r = loopback_up(fd);
        if (r < 0)
                return r;
        if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) < 0 ||
            bind(fd, (struct sockaddr *) &sa, sizeof sa) < 0 ||
            listen(fd, LISTENER_BACKLOG) < 0)
                return -errno;
        *ret = TAKE_FD(fd);
        return 0;
}

/* Inside the new namespace. */
static int fill(const char *path, uint16_t port, int *ret_listener) {
        _cleanup_close_ int listener = -EBADF;
        int r;

        r = listener_open(port, &listener);
        if (r < 0)
                return r;
        if (mount("/proc/self/ns/net", path, NULL, MS_BIND, NULL) < 0)
                return -errno;
        *ret_listener = TAKE_FD(listener);
        return 0;
}

int netns_make(const char *path, uint16_t port, int *ret_listener) {
        _cleanup_close_ int ours = -EBADF, file = -EBADF;
        int r;

        ours = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
        if (ours < 0)
                return -errno;
        file = open(path, O_RDONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0400);
        if (file < 0)
                return -errno;
        if (unshare(CLONE_NEWNET) < 0) {
                r = -errno;
                (void) unlink(path);
                return r;
        }
        r = fill(path, port, ret_listener);
        /* Staying in a stranger's namespace would break every later request: better to die and be started anew. */
        if (setns(ours, CLONE_NEWNET) < 0)
                abort();
        if (r < 0)
                (void) unlink(path);
        return r;
}
