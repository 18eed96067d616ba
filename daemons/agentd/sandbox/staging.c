/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "sandbox/mount-util.h"
#include "sandbox/staging.h"

static int host_ns = -EBADF, staging_ns = -EBADF;
static bool entered;
static uint64_t attached; /* bit per place */

static int open_own_namespace(void) {
        int fd = open("/proc/thread-self/ns/mnt", O_RDONLY | O_CLOEXEC);

        return fd < 0 ? -errno : fd;
}

/* A namespace whose root is a tmpfs with STAGING_PLACES directories, and nothing of what was there before. */
static int make_namespace(void) {
        if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
            mount("agentd-staging", "/proc", "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, "mode=0700,size=64k") < 0 ||
            chdir("/proc") < 0 || syscall(SYS_pivot_root, ".", ".") < 0 || umount2(".", MNT_DETACH) < 0 ||
            chdir("/") < 0)
                return -errno;
        for (unsigned i = 0; i < STAGING_PLACES; i++) {
                char name[16];

                snprintf(name, sizeof name, STAGING_PATH, i);
                if (mkdir(name, 0700) < 0)
                        return -errno;
        }
        return 0;
}

int staging_enter(void) {
        int r;

        assert(!entered);
        if (host_ns < 0) {
                r = open_own_namespace();
                if (r < 0)
                        return r;
                host_ns = r;
        }
        if (staging_ns < 0) {
                _cleanup_close_ int proc = open("/proc/thread-self/ns", O_PATH | O_DIRECTORY | O_CLOEXEC);

                if (proc < 0)
                        return -errno;
                entered = true; /* from here on there is something to go back from */
                r = make_namespace();
                if (r < 0)
                        return r;
                staging_ns = openat(proc, "mnt", O_RDONLY | O_CLOEXEC);
                return staging_ns < 0 ? -errno : 0;
        }
        if (setns(staging_ns, CLONE_NEWNS) < 0)
                return -errno;
        entered = true;
        return 0;
}

int staging_attach(int mount_fd, unsigned place) {
        char path[16];
        int r;

        assert(entered && place < STAGING_PLACES);
        snprintf(path, sizeof path, STAGING_PATH, place);
        r = mount_attach(mount_fd, path);
        if (r >= 0)
                attached |= UINT64_C(1) << place;
        return r;
}

int staging_leave(void) {
        if (!entered)
                return 0;
        for (unsigned i = 0; i < STAGING_PLACES; i++)
                if (attached & UINT64_C(1) << i) {
                        char path[16];

                        snprintf(path, sizeof path, STAGING_PATH, i);
                        umount2(path, MNT_DETACH | UMOUNT_NOFOLLOW);
                }
        attached = 0;
        entered = false;
        return setns(host_ns, CLONE_NEWNS) < 0 ? -errno : 0;
}
