/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "unit-property.h"

int append_strv(sd_bus_message *m, const char *name, char *const *l) {
        TRY(sd_bus_message_open_container(m, 'r', "sv"));
        TRY(sd_bus_message_append(m, "s", name));
        TRY(sd_bus_message_open_container(m, 'v', "as"));
        TRY(sd_bus_message_append_strv(m, (char **) l));
        TRY(sd_bus_message_close_container(m));
        return sd_bus_message_close_container(m);
}

int append_exec(sd_bus_message *m, char *const *argv) {
        TRY(sd_bus_message_open_container(m, 'r', "sv"));
        TRY(sd_bus_message_append(m, "s", "ExecStartEx"));
        TRY(sd_bus_message_open_container(m, 'v', "a(sasas)"));
        TRY(sd_bus_message_open_container(m, 'a', "(sasas)"));
        TRY(sd_bus_message_open_container(m, 'r', "sasas"));
        TRY(sd_bus_message_append(m, "s", argv[0]));
        TRY(sd_bus_message_append_strv(m, (char **) argv));
        TRY(sd_bus_message_append(m, "as", 1, "no-env-expand"));
        TRY(sd_bus_message_close_container(m));
        TRY(sd_bus_message_close_container(m));
        TRY(sd_bus_message_close_container(m));
        return sd_bus_message_close_container(m);
}
