/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* Credentials: given to agent-credentiald, which alone opens them again. Nothing here ever shows one. */

#include "basic/string-util.h"
#include "exit-status.h"
#include "output.h"
#include "secret.h"
#include "verb.h"

static int tell(Client *c, const char *service, const char *result) {
        _cleanup_(sd_json_variant_unrefp) sd_json_variant *v = NULL;
        int r;

        if (!client_json(c)) {
                if (!client_quiet(c))
                        notice("The credential of %s is %s.", service, result);
                return STATUS_SUCCESS;
        }
        r = sd_json_buildo(&v, SD_JSON_BUILD_PAIR_STRING("service", service),
                           SD_JSON_BUILD_PAIR_STRING("result", result));
        return r < 0 ? fail_errno(r, "Cannot make JSON") : output_json(c, v);
}

/* A credential may come before its service, but a name that was mistyped looks the same. */
static void look_for_service(Client *c, const char *name) {
        _cleanup_(sd_bus_error_free) sd_bus_error error = SD_BUS_ERROR_NULL;
        const char *user = c->options->user;
        _cleanup_free_ char *ref = user ? strprintf("%s/%s", user, name) : strdup(name);
        int r;

        /* Nobody is asked for a password only to be told this */
        if (!ref || client_quiet(c) || client_json(c) || (user && geteuid() != 0))
                return;
        r = client_call_full(c, &manager_target, "GetService", NULL, &error, "s", ref);
        if (r < 0 && sd_bus_error_has_name(&error, "org.agentd1.Error.NoSuchService"))
                notice("There is no service %s yet: agentctl service add FILE.", ref);
}

int verb_credential_set(Client *c, int argc _unused_, char **argv) {
        _cleanup_free_ char *prompt = strprintf("Secret for %s (not shown): ", argv[0]);
        _cleanup_close_ int fd = -EBADF;
        int r;

        if (!prompt)
                return fail_oom();
        /* Nobody is asked for a secret that cannot be delivered then */
        r = client_connect(c);
        if (r < 0)
                return r;
        r = secret_read(c->options->fd, prompt, &fd);
        if (r < 0)
                return r;
        r = client_call(c, &credentials_target, "SetCredential", NULL, "ssh", strempty(c->options->user), argv[0], fd);
        if (r < 0)
                return r;
        r = tell(c, argv[0], "set");
        look_for_service(c, argv[0]);
        return r;
}

int verb_credential_list(Client *c, int argc _unused_, char **argv _unused_) {
        static const Column columns[] = {
                { "SERVICE", "service", CELL_STRING },
                { "KIND", "kind", CELL_STRING },
                { "CHANGED", "changed_usec", CELL_TIME },
        };
        _cleanup_(sd_bus_message_unrefp) sd_bus_message *reply = NULL;
        _cleanup_(table_freep) Table *t = NULL;
        const char *service, *kind;
        uint64_t changed;
        int r;

        r = client_call(c, &credentials_target, "ListCredentials", &reply, "s", strempty(c->options->user));
        if (r < 0)
                return r;
        t = table_new(columns, ELEMENTSOF(columns));
        if (!t)
                return fail_oom();

        r = sd_bus_message_enter_container(reply, 'a', "(sst)");
        if (r < 0)
                return client_bad_reply(r);
        while ((r = sd_bus_message_read(reply, "(sst)", &service, &kind, &changed)) > 0)
                if (table_add_string(t, service) < 0 || table_add_string(t, kind) < 0 ||
                    table_add_number(t, changed) < 0)
                        return fail_oom();
        if (r < 0)
                return client_bad_reply(r);
        return output_table(c, t, "credentials");
}

int verb_credential_remove(Client *c, int argc _unused_, char **argv) {
        int r;

        r = client_call(c, &credentials_target, "RemoveCredential", NULL, "ss", strempty(c->options->user), argv[0]);
        if (r < 0)
                return r;
        return tell(c, argv[0], "removed");
}
