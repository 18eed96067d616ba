/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include <fcntl.h>
#include <linux/loop.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "sandbox/loop-device.h"

#define LOOP_TRIES 32
#define LOOP_MAJOR 7

static int open_device(int number) {
        char path[48];
        int fd;

        snprintf(path, sizeof path, "/dev/loop%d", number);
        fd = open(path, O_RDWR | O_CLOEXEC);
        if (fd >= 0 || errno != ENOENT)
                return fd < 0 ? -errno : fd;
        /* A container has its own /dev, without nodes for devices that were made later. Elsewhere none may be opened.
         * Others may have been told of the same device, and have a node for it, too. */
        snprintf(path, sizeof path, "/dev/.agentd-loop%d-%d", number, (int) gettid());
        if (mknod(path, S_IFBLK | 0600, makedev(LOOP_MAJOR, (unsigned) number)) < 0 && errno != EEXIST)
                return -errno;
        fd = open(path, O_RDWR | O_CLOEXEC);
        if (fd < 0)
                fd = -errno;
        (void) unlink(path);
        return fd;
}

int loop_device_attach(const char *path, int file, bool read_only, int *ret) {
        _cleanup_close_ int control = open("/dev/loop-control", O_RDWR | O_CLOEXEC);

        if (control < 0)
                return -errno;
        for (unsigned i = 0; i < LOOP_TRIES; i++) {
                struct loop_config lc = {
                        .fd = (uint32_t) file,
                        .info.lo_flags = (read_only ? LO_FLAGS_READ_ONLY : 0) | LO_FLAGS_AUTOCLEAR | LO_FLAGS_DIRECT_IO,
                };
                _cleanup_close_ int loop = -EBADF;
                int n;

                n = ioctl(control, LOOP_CTL_GET_FREE);
                if (n < 0)
                        return -errno;
                loop = open_device(n);
                if (loop < 0)
                        return loop;
                snprintf((char *) lc.info.lo_file_name, LO_NAME_SIZE, "%s", path);
                if (ioctl(loop, LOOP_CONFIGURE, &lc) < 0) {
                        if (errno == EBUSY)
                                continue; /* somebody else was quicker */
                        if (errno != EINVAL)
                                return -errno;
                        lc.info.lo_flags &= ~(uint32_t) LO_FLAGS_DIRECT_IO;
                        if (ioctl(loop, LOOP_CONFIGURE, &lc) < 0)
                                return -errno;
                }
                *ret = TAKE_FD(loop);
                return 0;
        }
        return -EBUSY;
}
