/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* From here on neither this process nor what it starts sets limits of other processes, or that of core dumps. Returns 0
 * or a negative errno. */
int limits_own_only(void);
