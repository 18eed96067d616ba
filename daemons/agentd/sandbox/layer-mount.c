/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * EROFS straight from the file where the kernel can (with directio, else every byte would be cached twice), through a
 * loop device where it answers ENOTBLK (a store on tmpfs or overlayfs, or a kernel without that ability).
 */
#include <dirent.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/statfs.h>

#include "basic/name-util.h"
#include "basic/string-util.h"
#include "sandbox/layer-mount.h"
#include "sandbox/loop-device.h"
#include "sandbox/mount-util.h"

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

static int mount_by_loop(const char *path) {
        _cleanup_close_ int file = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW), loop = -EBADF;
        char source[64];
        int r;

        if (file < 0)
                return -errno;
        r = loop_device_attach(path, file, true, &loop);
        if (r < 0)
                return r;
        snprintf(source, sizeof source, "/proc/self/fd/%d", loop);
        return mount_erofs(source, false);
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
                mount_fd = mount_by_loop(file);
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
