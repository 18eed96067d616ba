/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include <errno.h>
#include <string.h>

#include "basic/string-util.h"
#include "bus/bus-error.h"
#include "bus/bus-options.h"

int bus_option_string(sd_bus_message *m, const BusOption *option, void *field, sd_bus_error *e) {
        const char *s;

        if (sd_bus_message_read(m, "v", "s", &s) < 0 || (option->is_valid && !option->is_valid(s)))
                return -EINVAL;
        *(const char **) field = s;
        return 0;
}

int bus_option_bool(sd_bus_message *m, const BusOption *option, void *field, sd_bus_error *e) {
        int b;

        if (sd_bus_message_read(m, "v", "b", &b) < 0)
                return -EINVAL;
        *(bool *) field = b;
        return 0;
}

static bool in_range(const BusOption *o, uint64_t n) {
        return n >= o->min && (o->max == 0 || n <= o->max);
}

int bus_option_u32(sd_bus_message *m, const BusOption *option, void *field, sd_bus_error *e) {
        uint32_t n;

        if (sd_bus_message_read(m, "v", "u", &n) < 0 || !in_range(option, n))
                return -EINVAL;
        *(uint32_t *) field = n;
        return 0;
}

int bus_option_u64(sd_bus_message *m, const BusOption *option, void *field, sd_bus_error *e) {
        uint64_t n;

        if (sd_bus_message_read(m, "v", "t", &n) < 0 || !in_range(option, n))
                return -EINVAL;
        *(uint64_t *) field = n;
        return 0;
}

int bus_option_i32(sd_bus_message *m, const BusOption *option, void *field, sd_bus_error *e) {
        int32_t n;

        if (sd_bus_message_read(m, "v", "i", &n) < 0 || n < (int64_t) option->min || n > (int64_t) option->max)
                return -EINVAL;
        *(int32_t *) field = n;
        return 0;
}

int bus_option_strings(sd_bus_message *m, const BusOption *option, void *field, sd_bus_error *e) {
        _cleanup_strv_free_ char **strings = NULL;
        char ***place = field;
        int r;

        if (sd_bus_message_enter_container(m, 'v', "as") < 0)
                return -EINVAL;
        r = bus_read_strings(m, &strings);
        if (r < 0)
                return r == -E2BIG ? -EINVAL : r;
        if (!strings) { /* none is not the same as not given */
                strings = calloc(1, sizeof *strings);
                if (!strings)
                        return -ENOMEM;
        }
        strv_free(*place);
        *place = TAKE_PTR(strings);
        return sd_bus_message_exit_container(m);
}

static int no_such_option(const BusOption *options, const char *name, sd_bus_error *e) {
        _cleanup_free_ char *names = NULL;

        for (const BusOption *o = options; o->name; o++) {
                char *longer = strprintf("%s%s%s", strempty(names), names ? ", " : "", o->name);

                if (!longer)
                        return -ENOMEM;
                free(names);
                names = longer;
        }
        if (!names)
                return sd_bus_error_setf(e, BUS_ERROR_INVALID_OPTION, "There is no option \"%.64s\".", name);
        return sd_bus_error_setf(e, BUS_ERROR_INVALID_OPTION, "There is no option \"%.64s\". Options are %s.", name,
                                 names);
}

typedef struct Reading {
        const BusOption *options;
        void *userdata;
        sd_bus_error *error;
} Reading;

static int read_option(sd_bus_message *m, const char *name, void *userdata) {
        const Reading *reading = userdata;
        const BusOption *o = reading->options;
        int r;

        while (o->name && !streq(o->name, name))
                o++;
        if (!o->name)
                return no_such_option(reading->options, name, reading->error);
        r = o->read(m, o, (uint8_t *) reading->userdata + o->offset, reading->error);
        if (r == -EINVAL && !sd_bus_error_is_set(reading->error))
                return sd_bus_error_setf(reading->error, BUS_ERROR_INVALID_OPTION, "Option %s must be %s.", name,
                                         o->must);
        return r;
}

int bus_read_options(sd_bus_message *m, const BusOption *options, void *userdata, sd_bus_error *e) {
        return bus_read_dictionary(m, read_option,
                                   &(Reading) { .options = options, .userdata = userdata, .error = e });
}

int bus_read_dictionary(sd_bus_message *m, int (*read)(sd_bus_message *m, const char *name, void *userdata),
                        void *userdata) {
        const char *name;
        int r;

        r = sd_bus_message_enter_container(m, 'a', "{sv}");
        if (r < 0)
                return r;
        while ((r = sd_bus_message_enter_container(m, 'e', "sv")) > 0) {
                r = sd_bus_message_read_basic(m, 's', &name);
                if (r >= 0)
                        r = read(m, name, userdata);
                if (r >= 0)
                        r = sd_bus_message_exit_container(m);
                if (r < 0)
                        return r;
        }
        return r < 0 ? r : sd_bus_message_exit_container(m);
}

int bus_read_strings(sd_bus_message *m, char ***ret) {
        size_t n = 0, size = 0;
        const char *s;
        int r;

        for (char **i = *ret; i && *i; i++, n++)
                size += strlen(*i) + 1;
        r = sd_bus_message_enter_container(m, 'a', "s");
        if (r < 0)
                return r;
        while ((r = sd_bus_message_read_basic(m, 's', &s)) > 0) {
                size += strlen(s) + 1;
                if (++n > BUS_STRINGS_MAX || size > BUS_STRINGS_SIZE_MAX)
                        return -E2BIG;
                r = strv_extend(ret, s);
                if (r < 0)
                        return r;
        }
        return r < 0 ? r : sd_bus_message_exit_container(m);
}
