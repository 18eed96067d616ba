/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * Options of a method (a{sv}) by a table, as sd-json reads objects: each has a name, a reader and a place in the
 * caller's struct. What is no option, or not of the form that it must have, is InvalidOption with a sentence that says
 * what would do. Strings belong to the message.
 */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <systemd/sd-bus.h>

typedef struct BusOption BusOption;

struct BusOption {
        const char *name;
        const char *must; /* what goes after "Option NAME must be " */
        /* Reads the variant where M stands into FIELD. -EINVAL: it is not what it must be. Else an errno, with or
         * without an error of its own in E. */
        int (*read)(sd_bus_message *m, const BusOption *option, void *field, sd_bus_error *e);
        size_t offset; /* of FIELD in the caller's struct */
        uint64_t min, max; /* of numbers; max 0: any */
        bool (*is_valid)(const char *s); /* of strings; NULL: any */
};

/* Readers. FIELD is a const char *, bool, uint32_t, uint64_t, int32_t (MIN and MAX are taken as signed) or char ** (in
 * its own memory, bounded by BUS_STRINGS_*; what was there goes; of an empty array an empty list, not NULL). */
int bus_option_string(sd_bus_message *m, const BusOption *option, void *field, sd_bus_error *e);
int bus_option_bool(sd_bus_message *m, const BusOption *option, void *field, sd_bus_error *e);
int bus_option_u32(sd_bus_message *m, const BusOption *option, void *field, sd_bus_error *e);
int bus_option_u64(sd_bus_message *m, const BusOption *option, void *field, sd_bus_error *e);
int bus_option_i32(sd_bus_message *m, const BusOption *option, void *field, sd_bus_error *e);
int bus_option_strings(sd_bus_message *m, const BusOption *option, void *field, sd_bus_error *e);

/* Reads the dictionary where M stands. OPTIONS ends with one without a name; USERDATA is where OFFSETs count from. */
int bus_read_options(sd_bus_message *m, const BusOption *options, void *userdata, sd_bus_error *e);

/*
 * An array of strings that a caller chose the length of; what is in RET already counts. -E2BIG where it has more than
 * BUS_STRINGS_MAX elements or BUS_STRINGS_SIZE_MAX bytes. (sd_bus_message_read_strv() counts all again for each
 * element: a large array would hold up the loop for minutes.)
 */
#define BUS_STRINGS_MAX 2048U
#define BUS_STRINGS_SIZE_MAX (512U * 1024U)
int bus_read_strings(sd_bus_message *m, char ***ret);

/* Any dictionary (a{sv}): READ takes the variant of each entry, or skips it. */
int bus_read_dictionary(sd_bus_message *m, int (*read)(sd_bus_message *m, const char *name, void *userdata),
                        void *userdata);
