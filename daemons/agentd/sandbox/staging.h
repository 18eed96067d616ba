/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * Where overlays are put together. overlayfs takes its layers by path, and before kernel 6.13 or so only such that are
 * attached in the caller's own mount namespace: a detached clone is "Invalid argument". Attached in PID 1's namespace,
 * each would be an event and a unit for PID 1, and a crash would leave it there. So there is a second, private
 * mount namespace with nothing in it but a tmpfs of mount points: enter, attach the clones, make the overlay, leave.
 * It goes with the process.
 */

#include "basic/macro.h"

#define STAGING_PLACES 40U

/* Enters the private namespace (and makes it, the first time). Paths of the host cannot be seen until staging_leave().
 */
int staging_enter(void);
/* Attaches a detached mount; its path here is STAGING_PATH with PLACE's number. */
int staging_attach(int mount_fd, unsigned place);
#define STAGING_PATH "/%u"
/* Takes all that was attached away again (an overlay holds its own) and goes back. Without enter: nothing. */
int staging_leave(void);
