/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* Sending definitions. They are not judged here: agentd is strict, and the only one who knows the rules. */

#include "document.h"

#include "exit-status.h"
#include "input.h"
#include "output.h"

static int tell(Client *c, const char *kind, const char *name, const char *verb) {
        _cleanup_(sd_json_variant_unrefp) sd_json_variant *v = NULL;
        int r;

        if (!client_json(c)) {
                if (!client_quiet(c))
                        notice("%s %s %s.", kind, name, verb);
                return STATUS_SUCCESS;
        }
        r = sd_json_buildo(&v, SD_JSON_BUILD_PAIR_STRING("name", name), SD_JSON_BUILD_PAIR_STRING("result", verb));
        if (r < 0)
                return fail_errno(r, "Cannot make JSON");
        return output_json(c, v);
}

int document_send(Client *c, const char *member, const char *file, const char *kind, const char *verb) {
        _cleanup_(sd_bus_message_unrefp) sd_bus_message *m = NULL, *reply = NULL;
        _cleanup_(sd_json_variant_unrefp) sd_json_variant *v = NULL;
        _cleanup_free_ char *text = NULL;
        const char *name = NULL;
        int r;

        r = input_read(file, "The definition", &text);
        if (r < 0)
                return r;
        r = client_new_call(c, &manager_target, member, &m);
        if (r < 0)
                return r;
        r = sd_bus_message_append_basic(m, 's', text);
        if (r < 0)
                return fail_errno(r, "Cannot make a message");
        r = client_send_file(c, m, streq(file, "-") ? "stdin" : file, &reply);
        if (r < 0)
                return r;

        /* It was accepted, so there is a name in it */
        if (sd_json_parse(text, 0, &v, NULL, NULL) >= 0)
                name = sd_json_variant_string(sd_json_variant_by_key(v, "name"));
        return tell(c, kind, strempty(name), verb);
}

int document_act(Client *c, const char *member, const char *name, const char *kind, const char *verb) {
        int r;

        r = client_call(c, &manager_target, member, NULL, "s", name);
        if (r < 0)
                return r;
        return tell(c, kind, name, verb);
}
