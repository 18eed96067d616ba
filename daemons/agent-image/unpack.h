/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

#include "basic/macro.h"

/*
 * Unpacks a tar archive that a stranger made (compressed or not) into an empty directory. Nothing is ever written
 * outside: entries with absolute names, "..", or a symlink on their way are refused, device nodes too (those below
 * dev/ are left out). Owners, modes with set-id bits, times, hard links, user xattrs and file capabilities are kept;
 * layers are mounted nosuid.
 */

typedef struct UnpackLimits {
        uint64_t bytes_max;   /* sum of the files' sizes, holes included */
        uint64_t entries_max;
} UnpackLimits;

/* Tells an error itself (report.h). RET_NEWEST: the newest mtime in the archive, in seconds. */
int unpack_tar(int input_fd, int root, const UnpackLimits *limits, int64_t *ret_newest);
/* The same for whatever "image import" takes: also archives of images (oci.h), laid out in the directory SPOOL first;
 * their layers go on top of each other, deletions included. */
int unpack_image(int input_fd, int root, int spool, const UnpackLimits *limits, int64_t *ret_newest);
