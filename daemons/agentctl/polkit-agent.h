/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

#include "basic/macro.h"

/* Starts pkttyagent beside us where a password could be asked for on this terminal. Failing is fine: then polkit
 * uses another agent, or refuses. */
void polkit_agent_open(pid_t *ret);
void polkit_agent_close(pid_t *pid);
