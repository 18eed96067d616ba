/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The Manager's methods about environments: looking at generations, moving the head, keeping the store in order. */
#include "basic/json-util.h"
#include "basic/string-util.h"
#include "bus-util.h"
#include "environment.h"
#include "operation.h"

#define KEEP_MAX 1000000U

/* AGENT and, where REF is not NULL, one of its generations. >0 go on. */
static int resolve(Manager *m, sd_bus_message *msg, const char *agent, const char *ref, const char *action,
                   char **ret_user, uid_t *ret_uid, char **ret_name, StoreGeneration **ret, sd_bus_error *e) {
        _cleanup_free_ char *user = NULL, *name = NULL, *reason = NULL;
        int r;

        r = bus_resolve_owned(m, msg, agent, action, e, &user, ret_uid, &name);
        if (r <= 0)
                return r;
        r = environment_find(m, user, name, ref, ret, &reason);
        if (r == -ENOENT || r == -EINVAL || r == -ENOTUNIQ) {
                _cleanup_(store_agent_freep) StoreAgent *a = NULL;

                return sd_bus_error_set(e, store_agent_get(m->store, user, name, &a) == -ENOENT ?
                                        BUS_ERROR_NO_SUCH_AGENT : BUS_ERROR_NO_SUCH_GENERATION, strempty(reason));
        }
        if (r < 0)
                return bus_store_error(m, e, r);
        *ret_user = TAKE_PTR(user);
        *ret_name = TAKE_PTR(name);
        return 1;
}

int method_show_generation(sd_bus_message *msg, void *userdata, sd_bus_error *e) {
        _cleanup_(store_generation_freep) StoreGeneration *g = NULL;
        _cleanup_free_ char *user = NULL, *name = NULL, *text = NULL;
        _cleanup_json_ sd_json_variant *v = NULL;
        const char *agent, *ref;
        Manager *m = userdata;
        int r;

        r = sd_bus_message_read(msg, "ss", &agent, &ref);
        if (r < 0)
                return r;
        r = resolve(m, msg, agent, ref, POLKIT_ACTION_EXECUTE, &user, NULL, &name, &g, e);
        if (r <= 0)
                return r < 0 ? r : 1;
        r = environment_describe(m, g, &v);
        if (r >= 0)
                r = json_format_canonical(v, &text);
        return r < 0 ? bus_store_error(m, e, r) : sd_bus_reply_method_return(msg, "s", text);
}

int method_rollback_environment(sd_bus_message *msg, void *userdata, sd_bus_error *e) {
        _cleanup_(store_generation_freep) StoreGeneration *g = NULL;
        _cleanup_free_ char *user = NULL, *name = NULL, *layer = NULL, *path = NULL;
        _cleanup_(store_agent_freep) StoreAgent *a = NULL;
        _cleanup_(generation_freep) Generation *d = NULL;
        const char *agent, *ref, *expected = NULL;
        Manager *m = userdata;
        int r;

        r = sd_bus_message_read(msg, "ss", &agent, &ref);
        if (r < 0)
                return r;
        r = resolve(m, msg, agent, ref, POLKIT_ACTION_MANAGE, &user, NULL, &name, &g, e);
        if (r <= 0)
                return r < 0 ? r : 1;
        r = bus_read_options(
                msg, (const BusOption[]) { { "expected-head", "a string", bus_option_string }, {} }, &expected, e);
        if (r < 0)
                return r;
        r = store_agent_get(m->store, user, name, &a);
        if (r < 0)
                return bus_store_error(m, e, r);
        if (expected && !streq(a->head, expected))
                return sd_bus_error_setf(e, BUS_ERROR_HEAD_MOVED,
                                         "The head of \"%s\" is %s by now; nothing was changed.", name, a->head);
        r = environment_manifest(g, &d);
        if (r >= 0)
                r = environment_check_layers(m, d, &layer);
        if (r < 0 && r != -ENOMEM)
                return sd_bus_error_setf(e, BUS_ERROR_ENVIRONMENT_DAMAGED,
                                         "Generation %" PRIu64 " of \"%s\" cannot be used: %s%s. Nothing was changed.",
                                         g->number, name, layer ? "there is no layer " : strerror(-r), strempty(layer));
        if (r >= 0 && !g->is_head)
                r = store_head_swap(m->store, user, name, a->head_rev,
                                    &(StoreGeneration) { .digest = g->digest }, NULL);
        if (r == -ESTALE)
                return sd_bus_error_setf(e, BUS_ERROR_HEAD_MOVED, "The head of \"%s\" moved meanwhile; try again.",
                                         name);
        if (r < 0)
                return bus_store_error(m, e, r);
        log_info("Environment of %s/%s: the head is generation %" PRIu64 " (%s).", user, name, g->number, g->digest);
        if (!g->is_head && agent_object_path(user, name, &path) >= 0)
                sd_bus_emit_properties_changed(m->bus, path, BUS_INTERFACE_AGENT, "Generation", NULL);
        return sd_bus_reply_method_return(msg, "s", g->digest);
}

int method_diff_generations(sd_bus_message *msg, void *userdata, sd_bus_error *e) {
        _cleanup_(store_generation_freep) StoreGeneration *from = NULL, *to = NULL;
        _cleanup_(generation_freep) Generation *from_d = NULL, *to_d = NULL;
        _cleanup_strv_free_ char **from_layers = NULL, **to_layers = NULL;
        _cleanup_free_ char *user = NULL, *name = NULL, *reason = NULL;
        const char *agent, *from_ref, *to_ref;
        Manager *m = userdata;
        uid_t uid;
        int r;

        r = sd_bus_message_read(msg, "sss", &agent, &from_ref, &to_ref);
        if (r < 0)
                return r;
        r = resolve(m, msg, agent, from_ref, POLKIT_ACTION_MANAGE, &user, &uid, &name, &from, e);
        if (r <= 0)
                return r < 0 ? r : 1;
        r = bus_read_options(msg, (const BusOption[]) { {} }, NULL, e);
        if (r < 0)
                return r;
        r = environment_find(m, user, name, to_ref, &to, &reason);
        if (r == -ENOENT || r == -EINVAL || r == -ENOTUNIQ)
                return sd_bus_error_set(e, BUS_ERROR_NO_SUCH_GENERATION, strempty(reason));
        if (r >= 0)
                r = environment_manifest(from, &from_d);
        if (r >= 0)
                r = environment_manifest(to, &to_d);
        if (r >= 0)
                r = generation_layers(from_d, &from_layers);
        if (r >= 0)
                r = generation_layers(to_d, &to_layers);
        if (r < 0)
                return bus_store_error(m, e, r);
        return operation_start_and_reply(m, msg,
                                         &(OperationRequest) { .kind = OPERATION_DIFF,
                                                               .subject = name,
                                                               .user = user,
                                                               .uid = uid,
                                                               .input_fd = -EBADF,
                                                               .sandbox_uid = (uid_t) -1,
                                                               .generations = (char *[]) { from->digest, to->digest, NULL },
                                                               .views = { from_layers, to_layers } },
                                         e);
}

int method_get_disk_usage(sd_bus_message *msg, void *userdata, sd_bus_error *e) {
        _cleanup_json_ sd_json_variant *v = NULL;
        _cleanup_free_ char *user = NULL, *text = NULL;
        Manager *m = userdata;
        uid_t uid;
        int r;

        r = bus_sender_user(msg, &uid, &user);
        if (r < 0)
                return r;
        r = environment_usage(m, uid == 0 ? NULL : user, &v);
        if (r >= 0)
                r = json_format_canonical(v, &text);
        return r < 0 ? bus_store_error(m, e, r) : sd_bus_reply_method_return(msg, "s", text);
}

int method_prune_environments(sd_bus_message *msg, void *userdata, sd_bus_error *e) {
        _cleanup_free_ char *user = NULL, *name = NULL;
        Manager *m = userdata;
        uint32_t keep = 0;
        PruneResult result;
        const char *agent;
        int r;

        r = sd_bus_message_read(msg, "s", &agent);
        if (r < 0)
                return r;
        r = bus_resolve_one_or_all(m, msg, agent, POLKIT_ACTION_MANAGE, e, &user, &name);
        if (r <= 0)
                return r < 0 ? r : 1;
        r = bus_read_options(msg,
                             (const BusOption[]) { { "keep", "a number of at least 1, of type u", bus_option_u32,
                                                     .min = 1, .max = KEEP_MAX }, {} },
                             &keep, e);
        if (r < 0)
                return r;
        if (name) {
                _cleanup_(store_agent_freep) StoreAgent *a = NULL;

                r = store_agent_get(m->store, user, name, &a);
                if (r == -ENOENT)
                        return sd_bus_error_setf(e, BUS_ERROR_NO_SUCH_AGENT, "%s has no agent \"%s\".", user, name);
        }
        if (r >= 0)
                r = environment_prune(m, user, name, keep, &result);
        if (r == -EINVAL || r == -ENODATA)
                return sd_bus_error_set(
                        e, BUS_ERROR_ENVIRONMENT_DAMAGED,
                        "A generation's manifest cannot be read, so nobody knows what is needed and nothing "
                        "was removed. Run: agentctl env fsck.");
        if (r < 0)
                return bus_store_error(m, e, r);
        if (result.generations > 0 || result.layers > 0)
                log_info("Pruned %u generations, %u layers, %" PRIu64 " bytes.", result.generations, result.layers,
                         result.bytes);
        return sd_bus_reply_method_return(msg, "uut", result.generations, result.layers, result.bytes);
}

int method_check_environments(sd_bus_message *msg, void *userdata, sd_bus_error *e) {
        _cleanup_free_ char *user = NULL;
        Manager *m = userdata;
        uid_t uid;
        int r;

        r = bus_sender_user(msg, &uid, &user);
        if (r < 0)
                return r;
        r = bus_verify_async(m->polkit, msg, POLKIT_ACTION_MANAGE, NULL, uid, e);
        if (r <= 0)
                return r < 0 ? r : 1;
        r = bus_read_options(msg, (const BusOption[]) { {} }, NULL, e);
        if (r < 0)
                return r;
        return operation_start_and_reply(m, msg,
                                         &(OperationRequest) { .kind = OPERATION_FSCK,
                                                               .subject = "store",
                                                               .user = user,
                                                               .uid = uid,
                                                               .input_fd = -EBADF,
                                                               .sandbox_uid = (uid_t) -1 },
                                         e);
}
