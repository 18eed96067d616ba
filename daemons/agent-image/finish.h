/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

#include "basic/macro.h"

/*
 * Makes an unpacked or freshly installed root file system an environment's base: checks that it is one, gives it the
 * user `agent` (1000) with its home and the places that runs mount over, takes out what belongs to a host or a moment
 * (/tmp, apt's lists, resolv.conf, machine-id, logs), and gives all that was touched by us the time NEWEST, so that
 * the same input gives the same bytes.
 */

#define AGENT_ID 1000

/* STARTED: when we began to write into the tree. Tells an error itself. Returns the number of entries. */
int64_t finish_image(int root, int64_t started, int64_t newest);
