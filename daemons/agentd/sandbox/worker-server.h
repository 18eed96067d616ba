/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

#include "basic/macro.h"

/*
 * The worker itself: answers requests on SOCKET until its other end is closed. Joins PID 1's mount namespace first
 * unless STAY. Only one worker at a time works on a runtime directory (a lock): a new one waits until an old one has
 * finished its request.
 */
int worker_serve(int socket, const char *state_dir, const char *runtime_dir, bool stay);
