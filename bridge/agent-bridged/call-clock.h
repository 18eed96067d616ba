/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

#include "bridge.h"

int call_clock_new(sd_event *event, CallClock **ret);
/* No call is on it any more. */
CallClock *call_clock_free(CallClock *k);
DEFINE_CLEANUP(CallClock *, call_clock_free);
