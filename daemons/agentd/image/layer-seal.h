/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * A layer's seal is fs-verity, where the file system offers it (ext4 with the feature "verity", btrfs, f2fs): the
 * kernel keeps a tree of hashes beside the file's bytes and compares each block as it is read from the disk, so that
 * a wrong one is an I/O error and never reaches a run; and the file can be written to by nobody any more, root
 * included. Its root hash, once the kernel has found it, is what tells in constant time whether a file is the one
 * that was sealed.
 */

#include "basic/digest.h"

/* 1: the file is sealed (by now, or was before); 0: the file system does not offer it. Reads the whole file. */
int layer_seal(int fd);
/* 1 and the root hash; 0: it has none. */
int layer_seal_measure(int fd, char ret[static DIGEST_LEN + 1]);
