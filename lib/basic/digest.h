/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

#include "basic/macro.h"

#define DIGEST_LEN (7 + 64) /* "sha256:" + hex */

/* SHA-256 in the form "sha256:<64 hex>". */
int digest_bytes(const void *data, size_t size, char ret[static DIGEST_LEN + 1]);
/* Digest of a whole file from its start; the offset is left at the end. */
int digest_fd(int fd, char ret[static DIGEST_LEN + 1]);
/* Digest of a tree: names, types, modes and bytes in a fixed order, no times, no owners.
 * Two directories with the same content have the same digest. */
int digest_tree(int dirfd, const char *path, char ret[static DIGEST_LEN + 1]);
