/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

#include "basic/macro.h"

/*
 * Makes the upper directory of an overlay that is no longer mounted fit to be a layer: what deletions and replaced
 * directories are written with (whiteouts, opaque marks) stays; overlayfs' notes about this host's lower files go; so
 * do mount points, caches and temporary files. Works in place and may be repeated. Tells an error itself. Returns the
 * number of entries.
 */
int64_t freeze_upper(int upper);
