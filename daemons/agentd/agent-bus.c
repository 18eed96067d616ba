/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Agents on the bus: the objects, and the Manager's methods about them and their environments. */
#include "basic/string-util.h"
#include "bus-util.h"
#include "definition.h"
#include "edit.h"
#include "environment.h"
#include "image/generation.h"
#include "run.h"

static int agent_find(sd_bus *bus, const char *path, const char *interface, void *userdata, void **found,
                      sd_bus_error *e) {
        _cleanup_free_ char *user = NULL, *name = NULL;
        Manager *m = userdata;
        StoreAgent *agent;

        if (sd_bus_path_decode_many(path, BUS_PATH "/agent/%/%", &user, &name) <= 0 ||
            store_agent_get(m->store, user, name, &agent) < 0)
                return 0;
        store_agent_free(m->found_agent); /* as in run-bus.c */
        m->found_agent = agent;
        if (!bus_may_read(bus, agent->uid, agent->user))
                return 0;
        *found = agent;
        return 1;
}

typedef struct Enumeration {
        Manager *manager;
        sd_bus *bus;
        char **paths;
        uint64_t size;
} Enumeration;

/* All objects with their properties go into one message, and the bus hangs up on who sends one that is too large. Those of
 * one user always fit. */
#define OBJECTS_SIZE_MAX (UINT64_C(64) << 20)

static int add_size(const StoreUser *user, void *userdata) {
        Enumeration *n = userdata;
        StoreOwned o;
        int r;

        r = store_owned(n->manager->store, user->name, &o);
        if (r >= 0)
                n->size += o.agents_size;
        return r;
}

/* Names are told, by introspection, only to those who may see the object. */
static int enumerate_one(const StoreAgent *agent, void *userdata) {
        _cleanup_free_ char *path = NULL;
        Enumeration *n = userdata;
        int r;

        if (!bus_may_read(n->bus, agent->uid, agent->user))
                return 0;
        r = agent_object_path(agent->user, agent->name, &path);
        return r < 0 ? r : strv_extend(&n->paths, path);
}

static int agent_enumerate(sd_bus *bus, const char *prefix, void *userdata, char ***nodes, sd_bus_error *e) {
        Enumeration n = { .manager = userdata, .bus = bus, .paths = calloc(1, sizeof(char *)) };
        sd_bus_message *call = sd_bus_get_current_message(bus);
        Manager *m = userdata;
        int r = 0;

        if (!n.paths)
                return -ENOMEM;
        if (call && streq_ptr(sd_bus_message_get_member(call), "GetManagedObjects") && bus_may_read(bus, 0, "root"))
                r = store_users(m->store, add_size, &n);
        if (r >= 0 && n.size > OBJECTS_SIZE_MAX)
                r = sd_bus_error_set(e, SD_BUS_ERROR_LIMITS_EXCEEDED,
                                     "All agents of all users are too much for one message. Ask ListAgents.");
        if (r >= 0)
                r = store_agent_list(m->store, NULL, enumerate_one, &n);
        if (r < 0) {
                strv_free(n.paths);
                return r;
        }
        *nodes = n.paths;
        return 1;
}

const sd_bus_vtable agent_vtable[] = {
        SD_BUS_VTABLE_START(0),
        SD_BUS_PROPERTY("Name", "s", NULL, offsetof(StoreAgent, name), SD_BUS_VTABLE_PROPERTY_CONST),
        SD_BUS_PROPERTY("User", "s", NULL, offsetof(StoreAgent, user), SD_BUS_VTABLE_PROPERTY_CONST),
        SD_BUS_PROPERTY("Definition", "s", NULL, offsetof(StoreAgent, definition),
                        SD_BUS_VTABLE_PROPERTY_EMITS_INVALIDATION),
        SD_BUS_PROPERTY("Generation", "s", NULL, offsetof(StoreAgent, head), SD_BUS_VTABLE_PROPERTY_EMITS_INVALIDATION),
        SD_BUS_PROPERTY("CreatedUSec", "t", NULL, offsetof(StoreAgent, created_usec), SD_BUS_VTABLE_PROPERTY_CONST),
        SD_BUS_VTABLE_END
};

int agent_export(Manager *m) {
        int r;

        r = sd_bus_add_fallback_vtable(m->bus, NULL, BUS_PATH "/agent", BUS_INTERFACE_AGENT, agent_vtable, agent_find,
                                       m);
        if (r < 0)
                return r;
        return sd_bus_add_node_enumerator(m->bus, NULL, BUS_PATH "/agent", agent_enumerate, m);
}

static int no_such_agent(sd_bus_error *e, const char *user, const char *name) {
        return sd_bus_error_setf(e, BUS_ERROR_NO_SUCH_AGENT,
                                 "%s has no agent \"%s\". Create it first: agentctl agent create FILE.", user, name);
}

static void agent_signal_changed(Manager *m, const char *user, const char *name, const char *property) {
        _cleanup_free_ char *path = NULL;

        if (agent_object_path(user, name, &path) >= 0)
                sd_bus_emit_properties_changed(m->bus, path, BUS_INTERFACE_AGENT, property, NULL);
}

/* Reads and checks a definition and the things that it names. The sender is the owner. */
static int read_definition(Manager *m, sd_bus_message *msg, sd_bus_error *e, uid_t *ret_uid, char **ret_user,
                           Definition **ret) {
        _cleanup_(definition_freep) Definition *d = NULL;
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
        r = definition_parse(text, strlen(text), m->settings, 0, &d, &reason);
        if (r == -EINVAL || r == -E2BIG)
                return sd_bus_error_setf(e, BUS_ERROR_INVALID_DEFINITION, "The definition is not valid: %s",
                                         strempty(reason));
        if (r < 0)
                return r;
        for (char **s = d->services; s && *s; s++) {
                _cleanup_(store_service_freep) StoreService *service = NULL;

                r = store_service_get(m->store, user, *s, &service);
                if (r == -ENOENT)
                        return sd_bus_error_setf(e, BUS_ERROR_NO_SUCH_SERVICE,
                                                 "%s has no service \"%s\". Add it first: agentctl service add FILE.",
                                                 user, *s);
                if (r < 0)
                        return bus_store_error(m, e, r);
        }
        *ret_uid = uid;
        *ret_user = TAKE_PTR(user);
        *ret = TAKE_PTR(d);
        return 1;
}

static int first_generation(Manager *m, const char *user, const Definition *d, char digest[static DIGEST_LEN + 1],
                            char **ret_manifest, sd_bus_error *e) {
        _cleanup_(store_image_freep) StoreImage *image = NULL;
        _cleanup_(generation_freep) Generation *g = NULL;
        const Runner *runner = runner_set_current(&m->runners);
        int r;

        r = store_image_find(m->store, user, d->image, &image);
        if (r == -ENOENT)
                return sd_bus_error_setf(
                        e, BUS_ERROR_NO_SUCH_IMAGE,
                        "There is no image \"%s\". Import or build it first: agentctl image import|build.", d->image);
        if (r < 0)
                return bus_store_error(m, e, r);
        r = generation_new(NULL, image->digest, NULL, runner ? runner->digest : NULL, NULL, &g);
        if (r < 0)
                return r;
        r = generation_encode(g, ret_manifest, digest);
        if (r >= 0)
                r = generation_save(m->layers, g, digest);
        return r == -ENOSPC || r == -EDQUOT ? bus_store_error(m, e, r) : r;
}

static int refuse_existing(sd_bus_error *e, const char *user, const char *name) {
        return sd_bus_error_setf(e, BUS_ERROR_AGENT_EXISTS,
                                 "%s has an agent \"%s\" already. To change it: agentctl agent update FILE.", user,
                                 name);
}

int method_create_agent(sd_bus_message *msg, void *userdata, sd_bus_error *e) {
        _cleanup_(store_agent_freep) StoreAgent *old = NULL;
        _cleanup_(definition_freep) Definition *d = NULL;
        _cleanup_free_ char *user = NULL, *text = NULL, *manifest = NULL, *path = NULL;
        char digest[DIGEST_LEN + 1];
        Manager *m = userdata;
        uid_t uid;
        int r;

        r = read_definition(m, msg, e, &uid, &user, &d);
        if (r <= 0)
                return r < 0 ? r : 1;
        r = definition_format(d, &text);
        if (r >= 0)
                r = bus_check_room(m, e, uid, user, BUS_AGENTS, text, NULL);
        if (r < 0)
                return r;
        r = store_agent_get(m->store, user, d->name, &old);
        if (r >= 0)
                return refuse_existing(e, user, d->name);
        if (r != -ENOENT)
                return bus_store_error(m, e, r);
        r = first_generation(m, user, d, digest, &manifest, e);
        if (r < 0)
                return r;
        r = store_agent_add(m->store,
                            &(StoreAgent) { .user = user,
                                            .uid = uid,
                                            .name = d->name,
                                            .definition = text,
                                            .concurrency = d->concurrency,
                                            .head = digest },
                            &(StoreGeneration) {
                                    .digest = digest, .author = user, .note = (char *) "created", .manifest = manifest });
        if (r == -EEXIST)
                return refuse_existing(e, user, d->name);
        if (r < 0) {
                (void) environment_drop_documents(m);
                return bus_store_error(m, e, r);
        }
        r = agent_object_path(user, d->name, &path);
        if (r < 0)
                return r;
        sd_bus_emit_signal(m->bus, BUS_PATH, BUS_INTERFACE_MANAGER, "AgentNew", "so", d->name, path);
        return sd_bus_reply_method_return(msg, "o", path);
}

int method_update_agent(sd_bus_message *msg, void *userdata, sd_bus_error *e) {
        _cleanup_(store_agent_freep) StoreAgent *old = NULL;
        _cleanup_(definition_freep) Definition *d = NULL;
        _cleanup_free_ char *user = NULL, *text = NULL, *path = NULL;
        Manager *m = userdata;
        uid_t uid;
        int r;

        r = read_definition(m, msg, e, &uid, &user, &d);
        if (r <= 0)
                return r < 0 ? r : 1;
        r = definition_format(d, &text);
        if (r < 0)
                return r;
        r = store_agent_get(m->store, user, d->name, &old);
        if (r == -ENOENT)
                return no_such_agent(e, user, d->name);
        if (r >= 0)
                r = bus_check_room(m, e, uid, user, BUS_AGENTS, text, old->definition);
        if (r < 0)
                return r;
        r = store_agent_update(m->store, user, d->name, text, d->concurrency);
        if (r == -ENOENT)
                return no_such_agent(e, user, d->name);
        if (r < 0)
                return bus_store_error(m, e, r);
        agent_signal_changed(m, user, d->name, "Definition");
        manager_dispatch_soon(m); /* its concurrency may have grown */
        r = agent_object_path(user, d->name, &path);
        return r < 0 ? r : sd_bus_reply_method_return(msg, "o", path);
}

int method_remove_agent(sd_bus_message *msg, void *userdata, sd_bus_error *e) {
        _cleanup_free_ char *user = NULL, *name = NULL, *path = NULL;
        Manager *m = userdata;
        const char *ref;
        Edit *edit;
        int r;

        r = sd_bus_message_read(msg, "s", &ref);
        if (r < 0)
                return r;
        r = bus_resolve_owned(m, msg, ref, POLKIT_ACTION_MANAGE, e, &user, NULL, &name);
        if (r <= 0)
                return r < 0 ? r : 1;
        edit = edit_find(m, user, name);
        if (edit && edit->operation)
                return sd_bus_error_setf(e, BUS_ERROR_AGENT_BUSY,
                                         "The environment of \"%s\" is being edited. End the session first: "
                                         "agentctl env close AGENT.",
                                         name);
        r = store_agent_remove(m->store, user, name);
        if (r >= 0 && edit)
                edit_discard(edit);
        if (r == -ENOENT)
                return no_such_agent(e, user, name);
        if (r == -EBUSY)
                return sd_bus_error_setf(e, BUS_ERROR_AGENT_BUSY,
                                         "Agent \"%s\" has queued or live runs. Cancel them or wait for their end; "
                                         "they are shown by: agentctl runs --agent=AGENT.",
                                         name);
        if (r < 0)
                return bus_store_error(m, e, r);
        kept_drop_of_agent(m, user, name);
        if (agent_object_path(user, name, &path) >= 0)
                sd_bus_emit_signal(m->bus, BUS_PATH, BUS_INTERFACE_MANAGER, "AgentRemoved", "so", name, path);
        return sd_bus_reply_method_return(msg, NULL);
}

int method_get_agent(sd_bus_message *msg, void *userdata, sd_bus_error *e) {
        _cleanup_free_ char *user = NULL, *name = NULL, *path = NULL;
        _cleanup_(store_agent_freep) StoreAgent *agent = NULL;
        Manager *m = userdata;
        const char *ref;
        int r;

        r = sd_bus_message_read(msg, "s", &ref);
        if (r < 0)
                return r;
        r = bus_resolve_owned(m, msg, ref, POLKIT_ACTION_EXECUTE, e, &user, NULL, &name);
        if (r <= 0)
                return r < 0 ? r : 1;
        r = store_agent_get(m->store, user, name, &agent);
        if (r == -ENOENT)
                return no_such_agent(e, user, name);
        if (r < 0)
                return bus_store_error(m, e, r);
        r = agent_object_path(user, name, &path);
        return r < 0 ? r : sd_bus_reply_method_return(msg, "o", path);
}

static int append_agent(const StoreAgent *a, void *userdata) {
        _cleanup_free_ char *path = NULL;
        int r;

        r = agent_object_path(a->user, a->name, &path);
        return r < 0 ? r : sd_bus_message_append(userdata, "(ssso)", a->name, a->user, strempty(a->head), path);
}

int method_list_agents(sd_bus_message *msg, void *userdata, sd_bus_error *e) {
        _cleanup_(sd_bus_message_unrefp) sd_bus_message *reply = NULL;
        _cleanup_free_ char *user = NULL;
        Manager *m = userdata;
        uid_t uid;
        int r;

        r = bus_sender_user(msg, &uid, &user);
        if (r < 0)
                return r;
        r = bus_list_open(msg, "(ssso)", &reply);
        if (r < 0)
                return r;
        r = store_agent_list(m->store, uid == 0 ? NULL : user, append_agent, reply);
        if (r < 0)
                return bus_store_error(m, e, r);
        return bus_list_send(reply);
}

static int append_generation(const StoreGeneration *g, void *userdata) {
        return sd_bus_message_append(userdata, "(sstssbt)", g->digest, strempty(g->parent), g->created_usec,
                                     strempty(g->author), strempty(g->note), (int) g->is_head, g->number);
}

int method_list_generations(sd_bus_message *msg, void *userdata, sd_bus_error *e) {
        _cleanup_(sd_bus_message_unrefp) sd_bus_message *reply = NULL;
        _cleanup_(store_agent_freep) StoreAgent *agent = NULL;
        _cleanup_free_ char *user = NULL, *name = NULL;
        Manager *m = userdata;
        const char *ref;
        int r;

        r = sd_bus_message_read(msg, "s", &ref);
        if (r < 0)
                return r;
        r = bus_resolve_owned(m, msg, ref, POLKIT_ACTION_EXECUTE, e, &user, NULL, &name);
        if (r <= 0)
                return r < 0 ? r : 1;
        r = store_agent_get(m->store, user, name, &agent);
        if (r == -ENOENT)
                return no_such_agent(e, user, name);
        if (r < 0)
                return bus_store_error(m, e, r);
        r = bus_list_open(msg, "(sstssbt)", &reply);
        if (r < 0)
                return r;
        r = store_generation_list(m->store, user, name, append_generation, reply);
        if (r < 0)
                return bus_store_error(m, e, r);
        return bus_list_send(reply);
}
