/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * What a caller feeds to us, or takes from us, at their own pace: a pipe, a socket, a file of any kind. Whoever holds
 * the other end must not hold our place by it: where in all the time that was waited for them, up to the bound, less
 * than STALL_BYTES went through, the error is told ("Stalled") and the process ends, also out of a read that cannot be
 * interrupted. Only waiting counts; what is done with the bytes may take as long as it takes.
 */

#include <archive.h>

#include "basic/macro.h"

#define STALL_BYTES (256U * 1024U)

/* Before the first use; 0 is no bound. */
int stall_begin(uint64_t usec);

/* As those of libarchive, which look for EAGAIN in vain. FD stays the caller's. An ARCHIVE_* value. */
int stall_open_reader(struct archive *a, int fd);
int stall_open_writer(struct archive *a, int fd);
