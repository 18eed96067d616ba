/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

#include "basic/macro.h"

/* The user of images that a run's dynamic user stands for. */
#define IMAGE_AGENT_UID 1000

/*
 * A user namespace whose only use is its map, for id-mapped mounts: the image's ids 0..999 stay, 1000 is UID. Gives
 * its fd (close-on-exec); the namespace has no process and goes with the last fd and mount.
 */
int userns_open_for_uid(uid_t uid);
/* The same for a whole range: COUNT ids from INSIDE (on disk) are those from OUTSIDE. */
int userns_open_for_range(uid_t inside, uid_t outside, uid_t count);
