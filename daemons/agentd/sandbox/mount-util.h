/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * Thin wrappers around the kernel's fd-based mount calls, in our error convention. Everything is built detached and
 * attached to its path last, so that a failure in between leaves nothing mounted.
 */

#include <fcntl.h>
#include <linux/mount.h>
#include <stdarg.h>
#include <sys/syscall.h>

#include "basic/macro.h"

#ifndef OPEN_TREE_CLONE
#define OPEN_TREE_CLONE 1
#endif
#ifndef OPEN_TREE_CLOEXEC
#define OPEN_TREE_CLOEXEC O_CLOEXEC
#endif

static inline int mount_fs_open(const char *type) {
        int fd = (int) syscall(SYS_fsopen, type, FSOPEN_CLOEXEC);
        return fd < 0 ? -errno : fd;
}

static inline int mount_fs_string(int fd, const char *key, const char *value) {
        return syscall(SYS_fsconfig, fd, FSCONFIG_SET_STRING, key, value, 0) < 0 ? -errno : 0;
}

static inline int mount_fs_flag(int fd, const char *key) {
        return syscall(SYS_fsconfig, fd, FSCONFIG_SET_FLAG, key, NULL, 0) < 0 ? -errno : 0;
}

/* Makes the superblock and gives a detached mount of it. */
static inline int mount_fs_create(int fd, unsigned attributes) {
        int m;

        if (syscall(SYS_fsconfig, fd, FSCONFIG_CMD_CREATE, NULL, NULL, 0) < 0)
                return -errno;
        m = (int) syscall(SYS_fsmount, fd, FSMOUNT_CLOEXEC, attributes);
        return m < 0 ? -errno : m;
}

static inline int mount_attach(int fd, const char *path) {
        return syscall(SYS_move_mount, fd, "", AT_FDCWD, path, MOVE_MOUNT_F_EMPTY_PATH) < 0 ? -errno : 0;
}

/* A detached copy of the mount at PATH. */
static inline int mount_clone(const char *path) {
        int fd = (int) syscall(SYS_open_tree, AT_FDCWD, path, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
        return fd < 0 ? -errno : fd;
}

/* A detached copy of the mount at PATH, its owners translated by the user namespace. */
static inline int mount_clone_idmapped(const char *path, int userns_fd) {
        struct mount_attr attr = { .attr_set = MOUNT_ATTR_IDMAP, .userns_fd = (uint64_t) userns_fd };
        int fd;

        fd = (int) syscall(SYS_open_tree, AT_FDCWD, path, OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC);
        if (fd < 0)
                return -errno;
        if (syscall(SYS_mount_setattr, fd, "", AT_EMPTY_PATH, &attr, sizeof attr) < 0) {
                int r = -errno;

                close(fd);
                return r;
        }
        return fd;
}

/* 1: PATH is the root of a mount, 0: it is not, or does not exist. Symlinks are not followed. */
int mount_point_is(const char *path);
/* Unmounts all that is stacked at PATH, lazily (busy is no error); nothing there and no such path are fine. */
int mount_point_clear(const char *path);
