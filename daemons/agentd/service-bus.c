/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The Manager's methods about services. Definitions hold no secret; credentials are agent-credentiald's business. */
#include "basic/string-util.h"
#include "bus-util.h"
#include "definition.h"
#include "service/service.h"

static int read_service(Manager *m, sd_bus_message *msg, sd_bus_error *e, uid_t *ret_uid, char **ret_user,
                        Service **ret) {
        _cleanup_free_ char *user = NULL, *reason = NULL;
        const char *text;
        uid_t uid;
        int r;

        r = bus_sender_user(msg, &uid, &user);
        if (r < 0)
                return r;
        r = bus_verify_async(m->polkit, msg, POLKIT_ACTION_MANAGE, NULL, uid, e);
        if (r <= 0)
                return r;
        r = sd_bus_message_read(msg, "s", &text);
        if (r < 0)
                return r;
        r = service_parse(text, strlen(text), 0, ret, &reason);
        if (r == -EINVAL)
                return sd_bus_error_setf(e, BUS_ERROR_INVALID_DEFINITION, "The service's definition is not valid: %s",
                                         strempty(reason));
        if (r < 0)
                return r;
        *ret_uid = uid;
        *ret_user = TAKE_PTR(user);
        return 1;
}

static int no_such_service(sd_bus_error *e, const char *user, const char *name) {
        return sd_bus_error_setf(e, BUS_ERROR_NO_SUCH_SERVICE, "%s has no service \"%s\".", user, name);
}

int method_create_service(sd_bus_message *msg, void *userdata, sd_bus_error *e) {
        _cleanup_(service_unrefp) Service *s = NULL;
        _cleanup_free_ char *user = NULL, *text = NULL;
        Manager *m = userdata;
        uid_t uid;
        int r;

        r = read_service(m, msg, e, &uid, &user, &s);
        if (r <= 0)
                return r < 0 ? r : 1;
        r = service_to_json(s, &text);
        if (r >= 0)
                r = bus_check_room(m, e, uid, user, BUS_SERVICES, text, NULL);
        if (r < 0)
                return r;
        r = store_service_add(m->store, user, s->name, text);
        if (r == -EEXIST)
                return sd_bus_error_setf(e, BUS_ERROR_SERVICE_EXISTS,
                                         "%s has a service \"%s\" already. To change it: agentctl service update FILE.",
                                         user, s->name);
        return r < 0 ? bus_store_error(m, e, r) : sd_bus_reply_method_return(msg, NULL);
}

int method_update_service(sd_bus_message *msg, void *userdata, sd_bus_error *e) {
        _cleanup_(store_service_freep) StoreService *old = NULL;
        _cleanup_(service_unrefp) Service *s = NULL;
        _cleanup_free_ char *user = NULL, *text = NULL;
        Manager *m = userdata;
        uid_t uid;
        int r;

        r = read_service(m, msg, e, &uid, &user, &s);
        if (r <= 0)
                return r < 0 ? r : 1;
        r = service_to_json(s, &text);
        if (r < 0)
                return r;
        r = store_service_get(m->store, user, s->name, &old);
        if (r == -ENOENT)
                return no_such_service(e, user, s->name);
        if (r >= 0)
                r = bus_check_room(m, e, uid, user, BUS_SERVICES, text, old->definition);
        if (r < 0)
                return r;
        r = store_service_update(m->store, user, s->name, text);
        if (r == -ENOENT)
                return no_such_service(e, user, s->name);
        return r < 0 ? bus_store_error(m, e, r) : sd_bus_reply_method_return(msg, NULL);
}

typedef struct UserOf {
        Manager *manager;
        const char *service;
        char *agent; /* found */
} UserOf;

static int agent_uses(const StoreAgent *listed, void *userdata) {
        _cleanup_(store_agent_freep) StoreAgent *a = NULL;
        _cleanup_(definition_freep) Definition *d = NULL;
        UserOf *u = userdata;
        int r;

        if (u->agent)
                return 0;
        r = store_agent_get(u->manager->store, listed->user, listed->name, &a);
        if (r < 0)
                return r;
        if (definition_parse(a->definition, strlen(a->definition), u->manager->settings, DEFINITION_STORED, &d,
                             NULL) < 0)
                return 0;
        return strv_contains(d->services, u->service) ? free_and_strdup(&u->agent, a->name) : 0;
}

int method_remove_service(sd_bus_message *msg, void *userdata, sd_bus_error *e) {
        _cleanup_free_ char *user = NULL, *name = NULL;
        Manager *m = userdata;
        UserOf u = { .manager = m };
        const char *ref;
        int r;

        r = sd_bus_message_read(msg, "s", &ref);
        if (r < 0)
                return r;
        r = bus_resolve_owned(m, msg, ref, POLKIT_ACTION_MANAGE, e, &user, NULL, &name);
        if (r <= 0)
                return r < 0 ? r : 1;
        u.service = name;
        r = store_agent_list(m->store, user, agent_uses, &u);
        if (r < 0) {
                free(u.agent);
                return bus_store_error(m, e, r);
        }
        if (u.agent) {
                r = sd_bus_error_setf(e, BUS_ERROR_SERVICE_IN_USE,
                                      "Agent \"%s\" uses the service. Update or remove the agent first.", u.agent);
                free(u.agent);
                return r;
        }
        r = store_service_remove(m->store, user, name);
        if (r == -ENOENT)
                return no_such_service(e, user, name);
        return r < 0 ? bus_store_error(m, e, r) : sd_bus_reply_method_return(msg, NULL);
}

int method_get_service(sd_bus_message *msg, void *userdata, sd_bus_error *e) {
        _cleanup_(store_service_freep) StoreService *row = NULL;
        _cleanup_free_ char *user = NULL, *name = NULL;
        Manager *m = userdata;
        const char *ref;
        int r;

        r = sd_bus_message_read(msg, "s", &ref);
        if (r < 0)
                return r;
        r = bus_resolve_owned(m, msg, ref, POLKIT_ACTION_MANAGE, e, &user, NULL, &name);
        if (r <= 0)
                return r < 0 ? r : 1;
        r = store_service_get(m->store, user, name, &row);
        if (r == -ENOENT)
                return no_such_service(e, user, name);
        return r < 0 ? bus_store_error(m, e, r) : sd_bus_reply_method_return(msg, "s", row->definition);
}

static int append_service(const StoreService *row, void *userdata) {
        _cleanup_(service_unrefp) Service *s = NULL;

        if (service_parse(row->definition, strlen(row->definition), 0, &s, NULL) < 0)
                return sd_bus_message_append(userdata, "(ssss)", row->name, row->user, "", "");
        return sd_bus_message_append(userdata, "(ssss)", row->name, row->user, s->base_url.text,
                                     service_auth_kind_to_string(s->auth.kind));
}

int method_list_services(sd_bus_message *msg, void *userdata, sd_bus_error *e) {
        _cleanup_(sd_bus_message_unrefp) sd_bus_message *reply = NULL;
        _cleanup_free_ char *user = NULL;
        Manager *m = userdata;
        uid_t uid;
        int r;

        r = bus_sender_user(msg, &uid, &user);
        if (r < 0)
                return r;
        r = bus_list_open(msg, "(ssss)", &reply);
        if (r < 0)
                return r;
        r = store_service_list(m->store, uid == 0 ? NULL : user, append_service, reply);
        if (r < 0)
                return bus_store_error(m, e, r);
        return bus_list_send(reply);
}
