/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* Requests that wait for a person's word, and the key for run tokens. */

#include "basic/string-util.h"
#include "exit-status.h"
#include "output.h"
#include "verb.h"

int verb_approvals(Client *c, int argc _unused_, char **argv _unused_) {
        static const Column columns[] = {
                { "REQUEST", "request", CELL_STRING },
                { "RUN", "run", CELL_STRING },
                { "SERVICE", "service", CELL_STRING },
                { "METHOD", "method", CELL_STRING },
                { "PATH", "path", CELL_STRING },
                { "SINCE", "since_usec", CELL_TIME },
        };
        _cleanup_(sd_bus_message_unrefp) sd_bus_message *reply = NULL;
        const char *id, *run, *service, *method, *path;
        _cleanup_(table_freep) Table *t = NULL;
        uint64_t since;
        int r;

        r = client_call(c, &manager_target, "ListApprovals", &reply, NULL);
        if (r < 0)
                return r;
        t = table_new(columns, ELEMENTSOF(columns));
        if (!t)
                return fail_oom();

        r = sd_bus_message_enter_container(reply, 'a', "(ssssst)");
        if (r < 0)
                return client_bad_reply(r);
        while ((r = sd_bus_message_read(reply, "(ssssst)", &id, &run, &service, &method, &path, &since)) > 0)
                if (table_add_string(t, id) < 0 || table_add_string(t, run) < 0 || table_add_string(t, service) < 0 ||
                    table_add_string(t, method) < 0 || table_add_string(t, path) < 0 || table_add_number(t, since) < 0)
                        return fail_oom();
        if (r < 0)
                return client_bad_reply(r);
        return output_table(c, t, "approvals");
}

static int decide(Client *c, const char *id, bool granted) {
        _cleanup_(sd_json_variant_unrefp) sd_json_variant *v = NULL;
        const char *result = granted ? "approved" : "denied";
        int r;

        r = client_call(c, &manager_target, "Approve", NULL, "sb", id, (int) granted);
        if (r < 0)
                return r;
        if (!client_json(c)) {
                if (!client_quiet(c))
                        notice("The request %s is %s.", id, result);
                return STATUS_SUCCESS;
        }
        r = sd_json_buildo(&v, SD_JSON_BUILD_PAIR_STRING("request", id), SD_JSON_BUILD_PAIR_STRING("result", result));
        return r < 0 ? fail_errno(r, "Cannot make JSON") : output_json(c, v);
}

int verb_approve(Client *c, int argc _unused_, char **argv) {
        return decide(c, argv[0], true);
}

int verb_deny(Client *c, int argc _unused_, char **argv) {
        return decide(c, argv[0], false);
}

int verb_key_rotate(Client *c, int argc _unused_, char **argv _unused_) {
        _cleanup_(sd_json_variant_unrefp) sd_json_variant *v = NULL;
        _cleanup_(sd_bus_message_unrefp) sd_bus_message *reply = NULL;
        const char *kid;
        int r;

        r = client_call(c, &manager_target, "RotateKey", &reply, NULL);
        if (r < 0)
                return r;
        r = sd_bus_message_read(reply, "s", &kid);
        if (r < 0)
                return client_bad_reply(r);
        if (!client_json(c)) {
                printf("%s\n", kid);
                return STATUS_SUCCESS;
        }
        r = sd_json_buildo(&v, SD_JSON_BUILD_PAIR_STRING("key", kid));
        return r < 0 ? fail_errno(r, "Cannot make JSON") : output_json(c, v);
}
