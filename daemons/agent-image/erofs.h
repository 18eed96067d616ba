/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

#include "basic/macro.h"

/*
 * Makes the layer's file OUT of the directory TREE: uncompressed EROFS, the same bytes for the same tree (no build
 * time, a constant uuid; mtimes of files are kept). Its digest is for those to find who trust nothing here. Tells an
 * error itself. TREE is a path, or "/proc/self/fd/N"; OUT is an absolute one.
 */
int erofs_make(const char *tree, const char *out, uint64_t *ret_size);
