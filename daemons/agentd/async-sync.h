/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * fsync(), or with WHOLE syncfs(), without blocking the event loop: a thread does it, the loop hears of it. The handler
 * is called exactly once, from the loop, unless the object is freed before; the fd is owned by the object.
 */

#include <systemd/sd-event.h>

#include "basic/macro.h"

typedef struct AsyncSync AsyncSync;
typedef void (*async_sync_handler_t)(int error, void *userdata);

int async_sync_start(sd_event *event, int fd, bool whole, async_sync_handler_t handler, void *userdata,
                     AsyncSync **ret);
AsyncSync *async_sync_free(AsyncSync *a);
