/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

#include "basic/macro.h"

/*
 * Makes a network namespace with nothing in it but a loopback interface that is up, pins it at PATH (a file that must
 * not exist), and opens a TCP socket inside that listens on 127.0.0.1:PORT. A socket belongs to the namespace it was
 * made in for ever: whoever accepts from it need not enter. On failure nothing stays. Must not be called with other
 * threads around.
 */
int netns_make(const char *path, uint16_t port, int *ret_listener);
