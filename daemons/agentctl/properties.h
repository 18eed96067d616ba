/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* One map of D-Bus properties to fields of a structure. PropertiesChanged of agentd names what changed without telling
 * values (not everybody on the bus may read them), so that a change means GetAll. */

#include <systemd/sd-bus.h>

#include "basic/macro.h"
#include "client.h"

typedef struct Property {
        const char *name;
        char type; /* s: char * (replaced), u: uint32_t, t: uint64_t */
        size_t offset;
} Property;

/* Reads an a{sv}. What the map does not know, or has as another type, is skipped. MAP ends with a NULL name. */
int properties_read(sd_bus_message *m, const Property *map, void *userdata);
/* GetAll of an object of agentd. Not told on stderr. */
int properties_get_all(Client *c, const char *path, const char *interface, const Property *map, void *userdata,
                       sd_bus_error *error);
/* A match for PropertiesChanged of an object of agentd. Told on stderr. */
int properties_match(Client *c, sd_bus_slot **ret, const char *path, sd_bus_message_handler_t callback,
                     void *userdata);
