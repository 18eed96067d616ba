/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

#include "basic/macro.h"

/*
 * Makes the upper directory of an overlay that is no longer mounted fit to be a layer: what deletions and replaced
 * directories are written with (whiteouts, opaque marks) stays; overlayfs' notes about this host's lower files go; so
 * do mount points, caches and temporary files. Works in place and may be repeated. Tells an error itself. Returns the
 * number of entries. Files that together would have more than BYTES_MAX bytes in the layer, where holes are bytes like
 * all others, are refused.
 */
int64_t freeze_upper(int upper, uint64_t bytes_max);

/* Whiteouts that an edit session made belong to the host's root, whatever the session's ids; RAW is its upper as it
 * is on disk. They are given to BASE, the session's root, so that the layer has the same bytes wherever it was made. */
int64_t freeze_own_whiteouts(int raw, uid_t base);
