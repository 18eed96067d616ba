/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

#include <fcntl.h>
#include <sys/stat.h>

#include "basic/macro.h"

/* Writes all of DATA, coping with short writes and EINTR. */
int write_full(int fd, const void *data, size_t size);

/* Reads until EOF, but refuses (-EFBIG) more than MAX bytes. The result has a NUL behind it. */
int read_full_fd(int fd, size_t max, char **ret, size_t *ret_size);
/* The same for a file below DIRFD; AT_FDCWD and absolute paths work. */
int read_full_file_at(int dirfd, const char *path, size_t max, char **ret, size_t *ret_size);

typedef enum WriteFileFlags {
        WRITE_FILE_SYNC = 1 << 0,      /* fsync the file before, and its directory after, the rename */
        WRITE_FILE_NOREPLACE = 1 << 1, /* -EEXIST where the name is taken */
} WriteFileFlags;

/* Creates or replaces a file in one atomic step: temporary name beside it, mode, owner, rename.
 * uid/gid may be (uid_t) -1 to keep the caller's. */
int write_file_atomic(int dirfd, const char *path, const void *data, size_t size, mode_t mode, uid_t uid, gid_t gid,
                      WriteFileFlags flags);

/* mkdir -p of the last component's parents as well; existing directories are left as they are. */
int mkdir_parents(const char *path, mode_t mode);

/* Removes a tree, however deep, without following symlinks or crossing mounts. Missing is no error. */
int rm_rf_at(int dirfd, const char *path);

/* unlinkat() for which a missing file is success. */
int unlink_noerrno(int dirfd, const char *path, int flags);
