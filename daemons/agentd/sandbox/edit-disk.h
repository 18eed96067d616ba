/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * Where the changes of an edit are: a file system of their own in the file <dir>/disk, so that they have a size that
 * they cannot grow beyond. It is as large as it may become, and mostly holes: while a session may write to it, all of
 * it is set aside on the disk below (so a full disk is an error at the beginning, never lost writes in the middle), and
 * what is free in it is given back at the end.
 *
 * Two mounts of one such file would destroy it, so a lock is held by the loop device, as long as that lives.
 */

#include "sandbox/step.h"

#define EDIT_DISK_SIZE_MIN (UINT64_C(64) << 20)

/* Mounts DIR/disk at POINT (an empty directory); makes it where it is not there yet. RESERVE: for a session. Slow.
 * -ENOSPC where the disk below has no room, -EBUSY where it is still mounted somewhere. */
int edit_disk_mount(const char *dir, uint64_t size, bool reserve, const char *point, char message[STEP_MESSAGE_MAX]);
/* Gives back what is free, unmounts. Nothing there is fine. */
int edit_disk_unmount(const char *point);
