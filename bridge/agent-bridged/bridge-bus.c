/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* The bridge's face on D-Bus: org.agentd1.Bridge. For root only: the bus policy says so, and so does each method. */

#include <fcntl.h>

#include "basic/log.h"
#include "bridge.h"
#include "bus/bus-error.h"
#include "bus/polkit.h"
#include "report.h"

#define BRIDGE_NAME "org.agentd1.Bridge"
#define BRIDGE_PATH "/org/agentd1/Bridge"
#define BRIDGE_INTERFACE "org.agentd1.Bridge"

static int require_root(sd_bus_message *m, sd_bus_error *e) {
        uid_t uid;

        int r = bus_sender_euid(m, &uid);
        if (r < 0)
                return r;
        if (uid != 0)
                return sd_bus_error_set(e, SD_BUS_ERROR_ACCESS_DENIED, "Only root may tell the bridge about runs.");
        return 1;
}

static int check_id(const char *id, sd_bus_error *e) {
        if (!run_id_is_valid(id))
                return sd_bus_error_set(e, BUS_ERROR_INVALID_NAME, "A run id is 32 lower-case hexadecimal digits.");
        return 0;
}

/* Copies: the message keeps the descriptors that it brought. */
static int read_listeners(sd_bus_message *m, int fds[static _RUN_LISTENER_MAX], sd_bus_error *e) {
        const char *name;
        int r, fd;

        r = sd_bus_message_enter_container(m, 'a', "(sh)");
        if (r < 0)
                return r;
        while ((r = sd_bus_message_read(m, "(sh)", &name, &fd)) > 0) {
                RunListener kind = run_listener_from_string(name);

                if (kind < 0 || fds[kind] >= 0)
                        return sd_bus_error_set(e, SD_BUS_ERROR_INVALID_ARGS,
                                                "Listeners are \"http\", \"unix\" and \"proxy\", each at most once.");
                fds[kind] = fcntl(fd, F_DUPFD_CLOEXEC, 3);
                if (fds[kind] < 0)
                        return -errno;
        }
        return r < 0 ? r : sd_bus_message_exit_container(m);
}

static int method_register_run(sd_bus_message *m, void *userdata, sd_bus_error *e) {
        Bridge *b = userdata;
        int fds[_RUN_LISTENER_MAX];
        const char *id;

        for (size_t i = 0; i < ELEMENTSOF(fds); i++)
                fds[i] = -EBADF;

        int r = require_root(m, e);
        if (r < 0)
                return r;
        r = sd_bus_message_read(m, "s", &id);
        if (r < 0)
                return r;
        r = check_id(id, e);
        if (r >= 0)
                r = read_listeners(m, fds, e);
        if (r >= 0)
                r = bridge_run_register(b, id, fds);
        for (size_t i = 0; i < ELEMENTSOF(fds); i++)
                safe_close(fds[i]);
        if (sd_bus_error_is_set(e))
                return r;
        if (r == -EBADF)
                return sd_bus_error_set(e, SD_BUS_ERROR_INVALID_ARGS,
                                        "The descriptor is not a listening stream socket.");
        if (r == -ENOBUFS)
                return sd_bus_error_set(e, SD_BUS_ERROR_LIMITS_EXCEEDED, "Too many runs are registered.");
        if (r < 0)
                return log_error_errno(r, "Run %s: failed to register: %m", id);

        return sd_bus_reply_method_return(m, NULL);
}

static int method_unregister_run(sd_bus_message *m, void *userdata, sd_bus_error *e) {
        Bridge *b = userdata;
        const char *id;

        int r = require_root(m, e);
        if (r < 0)
                return r;
        r = sd_bus_message_read(m, "s", &id);
        if (r < 0)
                return r;
        r = check_id(id, e);
        if (r < 0)
                return r;

        (void) bridge_run_unregister(b, id); /* not there is as good as gone */
        return report_queue_settle(b, id, m);
}

static int method_list_registered(sd_bus_message *m, void *userdata, sd_bus_error *e) {
        _cleanup_(sd_bus_message_unrefp) sd_bus_message *reply = NULL;
        Bridge *b = userdata;

        int r = require_root(m, e);
        if (r < 0)
                return r;
        r = sd_bus_message_new_method_return(m, &reply);
        if (r < 0)
                return r;
        r = sd_bus_message_open_container(reply, 'a', "s");
        if (r < 0)
                return r;

        size_t i = 0;
        for (BridgeRun *run; (run = strmap_next(b->runs, &i));) {
                r = sd_bus_message_append(reply, "s", run->id);
                if (r < 0)
                        return r;
        }

        r = sd_bus_message_close_container(reply);
        if (r < 0)
                return r;
        return sd_bus_message_send(reply);
}

static const sd_bus_vtable bridge_vtable[] = {
        SD_BUS_VTABLE_START(0),
        SD_BUS_METHOD_WITH_ARGS("RegisterRun", SD_BUS_ARGS("s", run, "a(sh)", listeners), SD_BUS_NO_RESULT,
                                method_register_run,
                                SD_BUS_VTABLE_UNPRIVILEGED),
        SD_BUS_METHOD_WITH_ARGS("UnregisterRun", SD_BUS_ARGS("s", run), SD_BUS_NO_RESULT, method_unregister_run,
                                SD_BUS_VTABLE_UNPRIVILEGED),
        SD_BUS_METHOD_WITH_ARGS("ListRegistered", SD_BUS_NO_ARGS, SD_BUS_RESULT("as", runs), method_list_registered,
                                SD_BUS_VTABLE_UNPRIVILEGED),
        SD_BUS_VTABLE_END,
};

int bridge_bus_startup(Bridge *b) {
        int r = bus_error_register();
        if (r < 0)
                return log_error_errno(r, "Failed to register the bus errors: %m");

        r = sd_bus_open_system(&b->bus);
        if (r < 0)
                return log_error_errno(r, "Failed to connect to the system bus: %m");
        /* Restarted by the service manager, with all listeners. */
        r = sd_bus_set_exit_on_disconnect(b->bus, true);
        if (r < 0)
                return log_error_errno(r, "Failed to watch the bus connection: %m");
        r = sd_bus_add_object_vtable(b->bus, NULL, BRIDGE_PATH, BRIDGE_INTERFACE, bridge_vtable, b);
        if (r < 0)
                return log_error_errno(r, "Failed to add %s: %m", BRIDGE_PATH);
        r = sd_bus_attach_event(b->bus, b->event, SD_EVENT_PRIORITY_NORMAL);
        if (r < 0)
                return log_error_errno(r, "Failed to attach the bus to the event loop: %m");
        r = sd_bus_request_name(b->bus, BRIDGE_NAME, 0);
        if (r < 0)
                return log_error_errno(r, "Failed to take the name %s: %m", BRIDGE_NAME);
        return 0;
}
