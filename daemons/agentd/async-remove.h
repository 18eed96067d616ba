/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Removes a tree in a thread of its own, because one with millions of files would hold the event loop up. Nobody hears of the
 * end: what a crash leaves is removed at the next start. Falls back to removing it here where no thread can be had. */
void async_remove_tree(const char *path);
