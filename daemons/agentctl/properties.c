/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* Reading properties into structures. See properties.h. */

#include "properties.h"

#include "basic/string-util.h"
#include "bus/bus-options.h"

#define PROPERTIES_INTERFACE "org.freedesktop.DBus.Properties"

static int read_value(sd_bus_message *m, const Property *p, void *userdata) {
        void *field = (uint8_t *) userdata + p->offset;
        const char *s;
        int r;

        if (p->type != 's')
                return sd_bus_message_read_basic(m, p->type, field);
        r = sd_bus_message_read_basic(m, 's', &s);
        if (r < 0)
                return r;
        return free_and_strdup(field, s);
}

typedef struct Reading {
        const Property *map;
        void *userdata;
} Reading;

static int read_property(sd_bus_message *m, const char *name, void *userdata) {
        const Reading *reading = userdata;
        const Property *p = reading->map;
        const char *contents;
        char type;
        int r;

        r = sd_bus_message_peek_type(m, &type, &contents);
        if (r < 0)
                return r;
        while (p->name && !(streq(p->name, name) && contents[0] == p->type && contents[1] == 0))
                p++;
        if (!p->name)
                return sd_bus_message_skip(m, "v");
        r = sd_bus_message_enter_container(m, 'v', contents);
        if (r >= 0)
                r = read_value(m, p, reading->userdata);
        return r < 0 ? r : sd_bus_message_exit_container(m);
}

int properties_read(sd_bus_message *m, const Property *map, void *userdata) {
        return bus_read_dictionary(m, read_property, &(Reading) { .map = map, .userdata = userdata });
}

int properties_get_all(Client *c, const char *path, const char *interface, const Property *map, void *userdata,
                       sd_bus_error *error) {
        _cleanup_(sd_bus_message_unrefp) sd_bus_message *reply = NULL;
        Target target = { manager_target.destination, path, PROPERTIES_INTERFACE };
        int r;

        r = client_call_full(c, &target, "GetAll", &reply, error, "s", interface);
        if (r < 0)
                return r;
        return properties_read(reply, map, userdata);
}

int properties_match(Client *c, sd_bus_slot **ret, const char *path, sd_bus_message_handler_t callback,
                     void *userdata) {
        int r;

        r = sd_bus_match_signal(c->bus, ret, manager_target.destination, path, PROPERTIES_INTERFACE,
                                "PropertiesChanged", callback, userdata);
        if (r < 0)
                return fail_errno(r, "Cannot subscribe to signals");
        return 0;
}
