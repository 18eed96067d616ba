/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* Services: upstream APIs and what may be asked of them. Their definitions hold no secret. */

#include "document.h"
#include "output.h"
#include "verb.h"

int verb_service_list(Client *c, int argc _unused_, char **argv _unused_) {
        static const Column columns[] = {
                { "NAME", "name", CELL_STRING },
                { "USER", "user", CELL_STRING },
                { "URL", "base_url", CELL_STRING },
                { "AUTH", "auth", CELL_STRING },
        };
        _cleanup_(sd_bus_message_unrefp) sd_bus_message *reply = NULL;
        const char *name, *user, *url, *auth;
        _cleanup_(table_freep) Table *t = NULL;
        int r;

        r = client_call(c, &manager_target, "ListServices", &reply, NULL);
        if (r < 0)
                return r;
        t = table_new(columns, ELEMENTSOF(columns));
        if (!t)
                return fail_oom();

        r = sd_bus_message_enter_container(reply, 'a', "(ssss)");
        if (r < 0)
                return client_bad_reply(r);
        while ((r = sd_bus_message_read(reply, "(ssss)", &name, &user, &url, &auth)) > 0)
                if (table_add_string(t, name) < 0 || table_add_string(t, user) < 0 || table_add_string(t, url) < 0 ||
                    table_add_string(t, auth) < 0)
                        return fail_oom();
        if (r < 0)
                return client_bad_reply(r);
        return output_table(c, t, "services");
}

int verb_service_show(Client *c, int argc _unused_, char **argv) {
        _cleanup_free_ char *text = NULL;
        int r;

        r = client_call_string(c, "GetService", argv[0], &text);
        if (r < 0)
                return r;
        return output_json_text(c, text);
}

int verb_service_add(Client *c, int argc _unused_, char **argv) {
        return document_send(c, "CreateService", argv[0], "Service", "added");
}

int verb_service_update(Client *c, int argc _unused_, char **argv) {
        return document_send(c, "UpdateService", argv[0], "Service", "updated");
}

int verb_service_remove(Client *c, int argc _unused_, char **argv) {
        return document_act(c, "RemoveService", argv[0], "Service", "removed");
}
