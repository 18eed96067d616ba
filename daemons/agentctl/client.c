/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* The connection to the bus, calls on it, and what is said when one fails. */

#include "client.h"

#include <stdarg.h>

#include "polkit-agent.h"

const Target manager_target = { "org.agentd1", "/org/agentd1", "org.agentd1.Manager" };
const Target credentials_target = { "org.agentd1.Credentials", "/org/agentd1/Credentials", "org.agentd1.Credentials" };

/* Long enough for a person to type a password, should polkit ask for one. */
#define CALL_TIMEOUT_USEC (120 * USEC_PER_SEC)

typedef struct Hint {
        const char *name;
        const char *text;
} Hint;

/* Only where the way out is a command; the messages of agentd itself say what is wrong. */
static const Hint hints[] = {
        { "org.agentd1.Error.NoSuchAgent", "\"agentctl agent list\" shows what there is." },
        { "org.agentd1.Error.NoSuchImage", "\"agentctl image list\" shows what there is." },
        { "org.agentd1.Error.NoSuchService", "\"agentctl service list\" shows what there is." },
        { "org.agentd1.Error.NoSuchRun", "\"agentctl runs\" shows what there is." },
        { "org.agentd1.Error.NoSuchArtifact", "\"agentctl artifacts RUN\" lists them." },
        { "org.agentd1.Error.NoSuchGeneration", "\"agentctl env log AGENT\" shows what there is." },
        { "org.agentd1.Error.NoSuchEdit", "\"agentctl env edits\" shows what there is." },
        { "org.agentd1.Error.NoSuchRunner", "\"agentctl runner list\" shows what there is." },
        { "org.agentd1.Error.NoSuchCredential", "\"agentctl credential list\" shows what there is." },
        { "org.agentd1.Error.NoSuchApproval", "\"agentctl approvals\" shows what there is." },
        { "org.agentd1.Error.RunNotFinished", "\"agentctl status RUN\" tells how far it is." },
        { "org.freedesktop.DBus.Error.ServiceUnknown", "Is agentd installed on this machine?" },
        { "org.freedesktop.DBus.Error.NameHasNoOwner", "Is agentd installed on this machine?" },
        { "org.freedesktop.DBus.Error.NoReply", "See \"systemctl status agentd\"." },
        { "org.freedesktop.DBus.Error.Timeout", "See \"systemctl status agentd\"." },
        { "org.freedesktop.DBus.Error.InteractiveAuthorizationRequired",
          "Run it on a terminal and without --no-ask-password, or as root." },
};

static const char *hint_find(const char *name) {
        for (size_t i = 0; name && i < ELEMENTSOF(hints); i++)
                if (streq(hints[i].name, name))
                        return hints[i].text;
        return NULL;
}

/* The bus says which name it could not start. */
static const char *start_hint(const char *message) {
        return strstr(message, "org.agentd1.Credentials") ? "See \"systemctl status agent-credentiald\"." :
               strstr(message, "org.agentd1.Bridge")      ? "See \"systemctl status agent-bridged\"." :
                                                            "See \"systemctl status agentd\".";
}

void client_done(Client *c) {
        c->bus = sd_bus_flush_close_unref(c->bus);
        polkit_agent_close(&c->polkit_agent);
}

int client_connect(Client *c) {
        _cleanup_(sd_bus_flush_close_unrefp) sd_bus *bus = NULL;
        int r;

        if (c->bus)
                return 0;

        r = sd_bus_open_system_with_description(&bus, "agentctl");
        if (r < 0)
                return fail_errno(r, "Cannot connect to the system bus");

        if (c->options->ask_password) {
                r = sd_bus_set_allow_interactive_authorization(bus, true);
                if (r >= 0)
                        r = sd_bus_set_method_call_timeout(bus, CALL_TIMEOUT_USEC);
                if (r < 0)
                        return fail_errno(r, "Cannot set up the connection to the system bus");
                if (c->polkit_agent == 0)
                        polkit_agent_open(&c->polkit_agent);
        }

        c->bus = TAKE_PTR(bus);
        return 0;
}

bool client_error_is_transient(const sd_bus_error *error, int r) {
        static const char *const names[] = {
                SD_BUS_ERROR_SERVICE_UNKNOWN,
                SD_BUS_ERROR_NAME_HAS_NO_OWNER,
                SD_BUS_ERROR_NO_REPLY,
                SD_BUS_ERROR_TIMEOUT,
                SD_BUS_ERROR_DISCONNECTED,
                "org.freedesktop.DBus.Error.TimedOut",
                /* What the bus says while the unit behind the name cannot be started just now. */
                "org.freedesktop.DBus.Error.Spawn.ChildExited",
                "org.freedesktop.DBus.Error.Spawn.Failed",
                "org.freedesktop.systemd1.ShuttingDown",
                "org.freedesktop.systemd1.TransactionIsDestructive",
        };

        if (!error || !error->name)
                return r == -ETIMEDOUT;
        for (size_t i = 0; i < ELEMENTSOF(names); i++)
                if (streq(names[i], error->name))
                        return true;
        return false;
}

int client_report(const sd_bus_error *error, int r, const char *file) {
        const char *message, *hint, *end;
        size_t l;

        if (!sd_bus_error_is_set(error))
                return fail_errno(r, "The call to agentd failed");

        message = isempty(error->message) ? error->name : error->message;
        hint = strstr(message, "startup job failed") ? start_hint(message) : hint_find(error->name);
        for (l = strlen(message); l > 0 && strchr(" \n", message[l - 1]);)
                l--;
        end = !hint || l == 0 || strchr(".!?", message[l - 1]) ? "" : ".";

        fail("%s%s%.*s%s%s%s", strempty(file), file ? ": " : "", (int) l, message, end, hint ? " " : "",
             strempty(hint));
        return r < 0 && r != USAGE_ERROR ? r : -EIO;
}

int client_bad_reply(int r) {
        return fail_errno(r, "agentd's reply is not as expected");
}

int client_new_call(Client *c, const Target *target, const char *member, sd_bus_message **ret) {
        int r;

        r = client_connect(c);
        if (r < 0)
                return r;
        r = sd_bus_message_new_method_call(c->bus, ret, target->destination, target->path, target->interface, member);
        if (r < 0)
                return fail_errno(r, "Cannot make a message");
        return 0;
}

int client_send_file(Client *c, sd_bus_message *m, const char *file, sd_bus_message **ret_reply) {
        _cleanup_(sd_bus_error_free) sd_bus_error error = SD_BUS_ERROR_NULL;
        int r;

        r = sd_bus_call(c->bus, m, 0, &error, ret_reply);
        if (r < 0)
                return client_report(&error, r, file);
        return 0;
}

int client_send(Client *c, sd_bus_message *m, sd_bus_message **ret_reply) {
        return client_send_file(c, m, NULL, ret_reply);
}

static int client_callv(Client *c, const Target *target, const char *member, sd_bus_message **ret_reply,
                        sd_bus_error *error, const char *types, va_list ap) {
        _cleanup_(sd_bus_message_unrefp) sd_bus_message *m = NULL;
        int r;

        r = sd_bus_message_new_method_call(c->bus, &m, target->destination, target->path, target->interface, member);
        if (r < 0)
                return r;
        if (!isempty(types)) {
                r = sd_bus_message_appendv(m, types, ap);
                if (r < 0)
                        return r;
        }
        return sd_bus_call(c->bus, m, 0, error, ret_reply);
}

int client_call_full(Client *c, const Target *target, const char *member, sd_bus_message **ret_reply,
                     sd_bus_error *error, const char *types, ...) {
        va_list ap;
        int r;

        r = client_connect(c);
        if (r < 0)
                return r;
        va_start(ap, types);
        r = client_callv(c, target, member, ret_reply, error, types, ap);
        va_end(ap);
        return r;
}

int client_call(Client *c, const Target *target, const char *member, sd_bus_message **ret_reply, const char *types,
                ...) {
        _cleanup_(sd_bus_error_free) sd_bus_error error = SD_BUS_ERROR_NULL;
        va_list ap;
        int r;

        r = client_connect(c);
        if (r < 0)
                return r;
        va_start(ap, types);
        r = client_callv(c, target, member, ret_reply, &error, types, ap);
        va_end(ap);
        if (r < 0)
                return client_report(&error, r, NULL);
        return 0;
}

int client_call_string(Client *c, const char *member, const char *arg, char **ret) {
        _cleanup_(sd_bus_message_unrefp) sd_bus_message *reply = NULL;
        const char *s;
        char type;
        int r;

        r = client_call(c, &manager_target, member, &reply, "s", arg);
        if (r < 0)
                return r;
        r = sd_bus_message_peek_type(reply, &type, NULL);
        if (r > 0)
                r = sd_bus_message_read_basic(reply, type, &s);
        if (r <= 0 || !strchr("so", type))
                return client_bad_reply(r < 0 ? r : -EBADMSG);
        *ret = strdup(s);
        return *ret ? 0 : fail_oom();
}
