/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Elements (sv) of the property array of a StartTransientUnit call, for the types that need more than one line. */

#include <systemd/sd-bus.h>

#include "basic/macro.h"

#define TRY(x)                                                                                                         \
        do {                                                                                                           \
                int _r_ = (x);                                                                                         \
                if (_r_ < 0)                                                                                           \
                        return _r_;                                                                                    \
        } while (0)

static inline int append_bool(sd_bus_message *m, const char *name, bool b) {
        return sd_bus_message_append(m, "(sv)", name, "b", (int) b);
}

static inline int append_string(sd_bus_message *m, const char *name, const char *s) {
        return sd_bus_message_append(m, "(sv)", name, "s", s);
}

static inline int append_uint64(sd_bus_message *m, const char *name, uint64_t t) {
        return sd_bus_message_append(m, "(sv)", name, "t", t);
}

int append_strv(sd_bus_message *m, const char *name, char *const *l);
/* ExecStartEx with no-env-expand: "$X" in an argument is the command's own, not for PID 1 to replace. */
int append_exec(sd_bus_message *m, char *const *argv);
