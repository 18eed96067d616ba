/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Listeners of a run beside the one that the worker makes with its network namespace: the socket in the file system,
 * which is bound into the root at /run/agent-bridge.sock, and the forward proxy's, where the agent has one. Both are
 * made here, because neither needs a mount.
 */
#include <arpa/inet.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "basic/string-util.h"
#include "run.h"

#define BACKLOG SOMAXCONN

int run_open_socket(const Run *run, int *ret) {
        _cleanup_close_ int fd = -EBADF;
        struct sockaddr_un sa = { .sun_family = AF_UNIX };

        if (snprintf(sa.sun_path, sizeof sa.sun_path, AGENTD_RUNTIME_DIR "/runs/%s/bridge.sock", run->row->id) >=
            (int) sizeof sa.sun_path)
                return -ENAMETOOLONG;
        fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0)
                return -errno;
        /* Of a try before, whose answer got lost. */
        if (unlink(sa.sun_path) < 0 && errno != ENOENT)
                return -errno;
        /* Nobody but root gets into the directory above it, so nobody connects between these. */
        if (bind(fd, (struct sockaddr *) &sa, sizeof sa) < 0 || chmod(sa.sun_path, 0600) < 0 ||
            chown(sa.sun_path, run->uid, run->uid) < 0 || listen(fd, BACKLOG) < 0)
                return -errno;
        *ret = TAKE_FD(fd);
        return 0;
}

typedef struct Job {
        int netns, result;
} Job;

/* A thread may be in another network namespace than its process; a socket stays in the one that it was made in. */
static void *open_inside(void *userdata) {
        struct sockaddr_in sa = {
                .sin_family = AF_INET,
                .sin_port = htons(SANDBOX_PROXY_PORT),
                .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
        };
        _cleanup_close_ int fd = -EBADF;
        Job *job = userdata;

        if (setns(job->netns, CLONE_NEWNET) < 0 ||
            (fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) < 0 ||
            setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &(int) { 1 }, sizeof(int)) < 0 ||
            bind(fd, (struct sockaddr *) &sa, sizeof sa) < 0 || listen(fd, BACKLOG) < 0)
                job->result = -errno;
        else
                job->result = TAKE_FD(fd);
        return NULL;
}

int run_open_proxy(const Run *run, int *ret) {
        _cleanup_free_ char *path = strprintf(AGENTD_RUNTIME_DIR "/runs/%s/netns", run->row->id);
        _cleanup_close_ int netns = -EBADF;
        pthread_t thread;
        Job job;
        int r;

        if (!run->definition->proxy) {
                *ret = -EBADF;
                return 0;
        }
        if (!path)
                return -ENOMEM;
        netns = open(path, O_RDONLY | O_CLOEXEC);
        if (netns < 0)
                return -errno;
        job = (Job) { .netns = netns };
        r = pthread_create(&thread, NULL, open_inside, &job);
        if (r != 0)
                return -r;
        pthread_join(thread, NULL);
        if (job.result < 0)
                return job.result;
        *ret = job.result;
        return 0;
}
