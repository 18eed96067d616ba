/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

#include "basic/macro.h"

/*
 * A free loop device on FILE, which goes by itself with its last user. PATH is what it shows as its file. *ret is the
 * open device; mount /proc/self/fd/<that>. The device holds FILE's own open file: what is locked by it stays locked as
 * long.
 */
int loop_device_attach(const char *path, int file, bool read_only, int *ret);
