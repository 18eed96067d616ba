/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Removals in a thread of their own, because a tree with millions of files, or a file of many gigabytes, would hold the
 * event loop up. Nobody hears of the end: what a crash leaves is removed at the next start. Each falls back to removing
 * it here where no thread can be had. */
void async_remove_tree(const char *path);
void async_remove_trees(char *const *paths);
/* The files in DIRECTORY whose names begin so. */
void async_remove_prefix(const char *directory, const char *prefix);
