/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

#include "basic/macro.h"

/* From here on stdout goes to $AGENTD_PAGER, $PAGER, or less, where stdout is a terminal and WANTED is true. */
void pager_open(bool wanted);
/* Waits until the reader is done; call it last. */
void pager_close(void);
