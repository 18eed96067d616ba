/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * EROFS straight from the file where the kernel can (with directio, else every byte would be cached twice), through a
 * loop device where it answers ENOTBLK (a store on tmpfs or overlayfs, or a kernel without that ability).
 */
#include <dirent.h>
#include <linux/loop.h>
#include <linux/magic.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/sysmacros.h>

#include "basic/name-util.h"
#include "basic/string-util.h"
#include "sandbox/layer-mount.h"
#include "sandbox/mount-util.h"

#define LOOP_TRIES 32
#define LAYER_ATTRIBUTES (MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV)

/* A detached mount of SOURCE, a regular file or block device. */
static int mount_erofs(const char *source, bool direct) {
        _cleanup_close_ int fs = -EBADF;
        int r;

        fs = mount_fs_open("erofs");
        if (fs < 0)
                return fs;
        r = mount_fs_string(fs, "source", source);
        if (r >= 0)
                r = mount_fs_flag(fs, "ro");
        /* Kernels before 6.13 do not know it; they cache twice, but work. */
        if (r >= 0 && direct)
                (void) mount_fs_flag(fs, "directio");
        if (r < 0)
                return r;
        return mount_fs_create(fs, LAYER_ATTRIBUTES);
}

static int open_loop_device(const char *runtime_dir, int number) {
        _cleanup_free_ char *path = NULL;
        char dev[32];
        int fd;

        snprintf(dev, sizeof dev, "/dev/loop%d", number);
        fd = open(dev, O_RDWR | O_CLOEXEC);
        if (fd >= 0 || errno != ENOENT)
                return fd < 0 ? -errno : fd;
        /* A container has its own /dev, without nodes for devices that were made later. */
        path = strprintf("%s/loop%d", runtime_dir, number);
        if (!path)
                return -ENOMEM;
        if (mknod(path, S_IFBLK | 0600, makedev(7, (unsigned) number)) < 0 && errno != EEXIST)
                return -errno;
        fd = open(path, O_RDWR | O_CLOEXEC);
        if (fd < 0)
                fd = -errno;
        (void) unlink(path);
        return fd;
}

static int mount_by_loop(const char *runtime_dir, const char *path) {
        _cleanup_close_ int control = -EBADF, file = -EBADF;

        file = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
        if (file < 0)
                return -errno;
        control = open("/dev/loop-control", O_RDWR | O_CLOEXEC);
        if (control < 0)
                return -errno;
        for (unsigned i = 0; i < LOOP_TRIES; i++) {
                struct loop_config lc = {
                        .fd = (uint32_t) file,
                        .info.lo_flags = LO_FLAGS_READ_ONLY | LO_FLAGS_AUTOCLEAR | LO_FLAGS_DIRECT_IO,
                };
                _cleanup_close_ int loop = -EBADF;
                char source[64];
                int n;

                n = ioctl(control, LOOP_CTL_GET_FREE);
                if (n < 0)
                        return -errno;
                loop = open_loop_device(runtime_dir, n);
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
                snprintf(source, sizeof source, "/proc/self/fd/%d", loop);
                return mount_erofs(source, false);
        }
        return -EBUSY;
}

static bool is_mounted_layer(const char *path) {
        struct statfs sf;

        return mount_point_is(path) > 0 && statfs(path, &sf) >= 0 && (unsigned long) sf.f_type == EROFS_SUPER_MAGIC_V1;
}

int layer_mount_ensure(const char *runtime_dir, LayerStore *store, const char *digest, char **ret_path,
                       char message[STEP_MESSAGE_MAX]) {
        _cleanup_free_ char *point = NULL, *file = NULL;
        _cleanup_close_ int mount_fd = -EBADF;
        int r;

        if (!digest_is_valid(digest))
                return step_fail(message, -EINVAL, "A layer's name is no digest");
        point = strprintf("%s/layers/%s", runtime_dir, digest + 7);
        if (!point)
                return -ENOMEM;
        if (is_mounted_layer(point)) {
                *ret_path = TAKE_PTR(point);
                return 0;
        }
        r = layer_store_path(store, digest, &file);
        if (r >= 0)
                r = layer_store_open_layer(store, digest, NULL, NULL);
        if (r < 0)
                return step_fail(message, r, "Cannot open the layer %s", digest);
        mount_fd = mount_erofs(file, true);
        if (mount_fd == -ENOTBLK)
                mount_fd = mount_by_loop(runtime_dir, file);
        if (mount_fd < 0)
                return step_fail(message, mount_fd, "Cannot mount the layer %s", digest);
        if (mkdir(point, 0700) < 0 && errno != EEXIST)
                return step_fail(message, -errno, "Cannot make %s", point);
        r = mount_attach(mount_fd, point);
        if (r < 0) {
                (void) rmdir(point);
                return step_fail(message, r, "Cannot attach the layer %s", digest);
        }
        *ret_path = TAKE_PTR(point);
        return 0;
}

int layer_mount_release(const char *runtime_dir, char *const *in_use, char message[STEP_MESSAGE_MAX]) {
        _cleanup_free_ char *dir = NULL;
        struct dirent *de;
        int r = 0;
        DIR *d;

        dir = strprintf("%s/layers", runtime_dir);
        if (!dir)
                return -ENOMEM;
        d = opendir(dir);
        if (!d)
                return errno == ENOENT ? 0 : step_fail(message, -errno, "Cannot read %s", dir);
        while ((de = readdir(d))) {
                _cleanup_free_ char *digest = NULL, *point = NULL;
                int k;

                digest = strprintf("sha256:%s", de->d_name);
                point = strprintf("%s/%s", dir, de->d_name);
                if (!digest || !point) {
                        r = -ENOMEM;
                        break;
                }
                if (!digest_is_valid(digest) || strv_contains(in_use, digest))
                        continue;
                k = mount_point_clear(point);
                if (k >= 0 && rmdir(point) < 0 && errno != ENOENT)
                        k = -errno;
                if (k < 0)
                        r = step_fail(message, k, "Cannot unmount the layer %s", digest);
        }
        closedir(d);
        return r;
}
