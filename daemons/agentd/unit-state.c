/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* See unit-state.h. */
#include "basic/string-util.h"
#include "bus/bus-options.h"
#include "unit-state.h"

/* How each property is put away: a word, cut off where it is longer than any that is known; a counter; a number. */
typedef int (*property_reader_t)(sd_bus_message *m, void *field, size_t size);

static int read_word(sd_bus_message *m, void *field, size_t size) {
        const char *s;
        int r = sd_bus_message_read(m, "v", "s", &s);

        if (r >= 0)
                snprintf(field, size, "%s", s);
        return r;
}

static int read_counter(sd_bus_message *m, void *field, size_t size) {
        uint64_t t;
        int r = sd_bus_message_read(m, "v", "t", &t);

        if (r >= 0)
                *(uint64_t *) field = t;
        return r;
}

static int read_number(sd_bus_message *m, void *field, size_t size) {
        int32_t i;
        int r = sd_bus_message_read(m, "v", "i", &i);

        if (r >= 0)
                *(int *) field = i;
        return r;
}

static int read_job(sd_bus_message *m, void *field, size_t size) {
        const char *path;
        uint32_t id;
        int r = sd_bus_message_read(m, "v", "(uo)", &id, &path);

        if (r >= 0)
                *(bool *) field = id != 0;
        return r;
}

static int read_id(sd_bus_message *m, void *field, size_t size) {
        const void *p;
        size_t n;
        int r;

        r = sd_bus_message_enter_container(m, 'v', "ay");
        if (r < 0)
                return r;
        r = sd_bus_message_read_array(m, 'y', &p, &n);
        if (r < 0)
                return r;
        for (size_t k = 0; n == 16 && k < n; k++)
                snprintf((char *) field + 2 * k, 3, "%02x", ((const uint8_t *) p)[k]);
        return sd_bus_message_exit_container(m);
}

static int read_property(sd_bus_message *m, const char *name, void *userdata) {
#define FIELD(f) offsetof(UnitState, f), sizeof(((UnitState *) NULL)->f)
        static const struct {
                const char *name;
                property_reader_t read;
                size_t offset, size;
        } properties[] = {
                { "ActiveState", read_word, FIELD(active_state) },
                { "SubState", read_word, FIELD(sub_state) },
                { "LoadState", read_word, FIELD(load_state) },
                { "ControlGroup", read_word, FIELD(control_group) },
                { "Result", read_word, FIELD(result.result) },
                { "Job", read_job, FIELD(has_job) },
                { "ExecMainCode", read_number, FIELD(result.code) },
                { "ExecMainStatus", read_number, FIELD(result.status) },
                { "ExecMainStartTimestamp", read_counter, FIELD(result.started_usec) },
                { "RuntimeMaxUSec", read_counter, FIELD(result.runtime_max_usec) },
                { "CPUUsageNSec", read_counter, FIELD(result.cpu_nsec) },
                { "MemoryPeak", read_counter, FIELD(result.memory_peak) },
                { "IOReadBytes", read_counter, FIELD(result.io_read_bytes) },
                { "IOWriteBytes", read_counter, FIELD(result.io_write_bytes) },
                { "InvocationID", read_id, FIELD(result.invocation_id) },
        };
#undef FIELD

        for (size_t i = 0; i < ELEMENTSOF(properties); i++)
                if (streq(name, properties[i].name))
                        return properties[i].read(m, (char *) userdata + properties[i].offset, properties[i].size);
        return sd_bus_message_skip(m, "v");
}

int unit_state_read(UnitState *u, sd_bus_message *m) {
        return bus_read_dictionary(m, read_property, u);
}
