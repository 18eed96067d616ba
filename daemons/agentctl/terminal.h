/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * A remote terminal shown in ours: bytes go both ways, ours is raw meanwhile and comes back as it was whatever happens,
 * and changes of its size are passed on. There is no escape sequence: the session is ended from inside.
 */

#include "basic/macro.h"

/* Returns 0 when the other end of MASTER is closed, -EINTR when ours went away, or a fault that was told. */
int terminal_run(int master);
