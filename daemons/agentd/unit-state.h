/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* What PID 1 says of a unit: the properties of one GetAll that matter here. */

#include "systemd-client.h"

typedef struct UnitState {
        char active_state[32], sub_state[32], load_state[32];
        char control_group[512]; /* "" where it has none */
        bool has_job; /* PID 1 has something to do with it yet: "inactive" may mean "not begun" */
        UnitResult result;
} UnitState;

#define UNIT_RESULT_NULL                                                                                               \
        (UnitResult) {                                                                                                 \
                .cpu_nsec = UINT64_MAX, .memory_peak = UINT64_MAX, .io_read_bytes = UINT64_MAX,                        \
                .io_write_bytes = UINT64_MAX,                                                                          \
        }

/* M is at the array of a GetAll's answer. What is not in it stays as it was. */
int unit_state_read(UnitState *u, sd_bus_message *m);
