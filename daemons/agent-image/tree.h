/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * Acts on a tree whose content a stranger chose. Every path is relative to the tree's root and resolved without
 * following any symlink, so nothing outside can be reached; a symlink on the way is -ELOOP.
 */

#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>

#include "basic/macro.h"

/* Opens an existing PATH ("" or "." is the root itself). */
int tree_open(int root, const char *path, uint64_t flags);
/* Opens the directory that holds PATH, making it (0755) and those above where MAKE; *ret_name points into PATH. */
int tree_open_parent(int root, const char *path, bool make, const char **ret_name);
/* Makes a directory and those above it; one that is there is left as it is (-ENOTDIR where it is none). */
int tree_mkdir(int root, const char *path, mode_t mode, uid_t uid, gid_t gid);
/* Makes an empty file where there is none; a symlink or device in its place is replaced. */
int tree_touch(int root, const char *path, mode_t mode);
/* Removes what is in a directory, not itself; missing is fine. The directory keeps its mtime. */
int tree_empty(int root, const char *path);
/* Removes PATH, whatever it is; missing is fine. Its parent keeps its mtime. */
int tree_remove(int root, const char *path);

/*
 * Calls VISIT for each inode of the tree, directories after what they hold, the root last; NAME is relative to DIR. A
 * negative return value ends the walk. Returns the number of entries, the root included; -ENAMETOOLONG where a path
 * in it has more than TREE_PATH_MAX bytes, which nobody could open from the root, nor mkfs.erofs pack.
 */
#define TREE_PATH_MAX (PATH_MAX - 4)
typedef int (*tree_visit_t)(int dir, const char *name, const struct stat *st, void *userdata);
int64_t tree_walk(int root, tree_visit_t visit, void *userdata);
