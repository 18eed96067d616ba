/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "basic/string-util.h"
#include "bus/bus-options.h"
#include "unit-state.h"

static void copy_word(char *dst, size_t size, const char *src) {
        snprintf(dst, size, "%s", src);
}

static int read_property(sd_bus_message *m, const char *name, void *userdata) {
        UnitState *u = userdata;
        const char *s;
        uint64_t t;
        int32_t i;
        int r;

        static const struct {
                const char *name;
                size_t offset;
        } counters[] = {
                { "CPUUsageNSec", offsetof(UnitResult, cpu_nsec) },
                { "MemoryPeak", offsetof(UnitResult, memory_peak) },
                { "IOReadBytes", offsetof(UnitResult, io_read_bytes) },
                { "IOWriteBytes", offsetof(UnitResult, io_write_bytes) },
                { "ExecMainStartTimestamp", offsetof(UnitResult, started_usec) },
                { "ExecMainExitTimestamp", offsetof(UnitResult, exited_usec) },
        };

        for (size_t k = 0; k < ELEMENTSOF(counters); k++)
                if (streq(name, counters[k].name)) {
                        r = sd_bus_message_read(m, "v", "t", &t);
                        if (r >= 0)
                                *(uint64_t *) ((char *) &u->result + counters[k].offset) = t;
                        return r;
                }
        if (streq(name, "ActiveState")) {
                r = sd_bus_message_read(m, "v", "s", &s);
                if (r >= 0)
                        copy_word(u->active_state, sizeof u->active_state, s);
                return r;
        }
        if (streq(name, "SubState")) {
                r = sd_bus_message_read(m, "v", "s", &s);
                if (r >= 0)
                        copy_word(u->sub_state, sizeof u->sub_state, s);
                return r;
        }
        if (streq(name, "LoadState")) {
                r = sd_bus_message_read(m, "v", "s", &s);
                if (r >= 0)
                        copy_word(u->load_state, sizeof u->load_state, s);
                return r;
        }
        if (streq(name, "Result")) {
                r = sd_bus_message_read(m, "v", "s", &s);
                if (r >= 0)
                        copy_word(u->result.result, sizeof u->result.result, s);
                return r;
        }
        if (streq(name, "Job")) {
                uint32_t id;

                r = sd_bus_message_read(m, "v", "(uo)", &id, &s);
                if (r >= 0)
                        u->has_job = id != 0;
                return r;
        }
        if (streq(name, "ExecMainCode")) {
                r = sd_bus_message_read(m, "v", "i", &i);
                if (r >= 0)
                        u->result.code = i;
                return r;
        }
        if (streq(name, "ExecMainStatus")) {
                r = sd_bus_message_read(m, "v", "i", &i);
                if (r >= 0)
                        u->result.status = i;
                return r;
        }
        if (streq(name, "InvocationID")) {
                const void *p;
                size_t n;

                r = sd_bus_message_enter_container(m, 'v', "ay");
                if (r < 0)
                        return r;
                r = sd_bus_message_read_array(m, 'y', &p, &n);
                if (r < 0)
                        return r;
                for (size_t k = 0; n == 16 && k < n; k++)
                        snprintf(u->result.invocation_id + 2 * k, 3, "%02x", ((const uint8_t *) p)[k]);
                return sd_bus_message_exit_container(m);
        }
        return sd_bus_message_skip(m, "v");
}

int unit_state_read(UnitState *u, sd_bus_message *m) {
        return bus_read_dictionary(m, read_property, u);
}
