/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Questions about mount points, answered without parsing a table of all mounts. */
#include <linux/stat.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include "sandbox/mount-util.h"

int mount_point_is(const char *path) {
        struct statx sx;

        if (statx(AT_FDCWD, path, AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT, STATX_TYPE, &sx) < 0)
                return errno == ENOENT ? 0 : -errno;
        return (sx.stx_attributes & STATX_ATTR_MOUNT_ROOT) != 0;
}

int mount_point_clear(const char *path) {
        for (unsigned i = 0; i < 64; i++)
                if (umount2(path, MNT_DETACH | UMOUNT_NOFOLLOW) < 0) {
                        if (errno == EINVAL || errno == ENOENT)
                                return 0;
                        return -errno;
                }
        return -ELOOP;
}
