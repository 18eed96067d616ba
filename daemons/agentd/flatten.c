/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * An environment that is edited again and again becomes a tall stack of layers, and each of them costs at every look-up
 * of a file. When a stack is taller than FLATTEN_ABOVE, its layers above the image are merged into one, beside
 * everything else and with low priority; runs see the same files before and after, and what was begun on the tall stack
 * (an edit, a run with keep) can be frozen on top of the flat one. Whatever goes wrong leaves the environment as it
 * was.
 */
#include "basic/string-util.h"
#include "environment.h"
#include "operation.h"

#define FLATTEN_ABOVE 8U
/* More of them were hardly cut off in the middle; they come after the next freeze, as ever. */
#define FLATTEN_AT_START_MAX 8U

static int load_head(Manager *m, const char *user, const char *agent, StoreAgent **ret_agent, StoreGeneration **ret_row,
                     Generation **ret) {
        _cleanup_(store_generation_freep) StoreGeneration *row = NULL;
        _cleanup_(store_agent_freep) StoreAgent *a = NULL;
        int r;

        r = store_agent_get(m->store, user, agent, &a);
        if (r >= 0)
                r = store_generation_get(m->store, user, agent, a->head, &row);
        if (r >= 0)
                r = environment_manifest(row, ret);
        if (r < 0)
                return r;
        *ret_agent = TAKE_PTR(a);
        *ret_row = TAKE_PTR(row);
        return 0;
}

bool flatten_maybe(Manager *m, const char *user, const char *agent) {
        _cleanup_(store_generation_freep) StoreGeneration *row = NULL;
        _cleanup_(store_agent_freep) StoreAgent *a = NULL;
        _cleanup_(generation_freep) Generation *g = NULL;
        Operation *o;
        int r;

        r = load_head(m, user, agent, &a, &row, &g);
        if (r >= 0 && strv_length(g->env) <= FLATTEN_ABOVE)
                return false;
        if (r >= 0)
                r = operation_start(m,
                                    &(OperationRequest) { .kind = OPERATION_FLATTEN,
                                                          .subject = agent,
                                                          .user = user,
                                                          .uid = a->uid,
                                                          .input_fd = -EBADF,
                                                          .sandbox_uid = (uid_t) -1,
                                                          .generations = (char *[]) { row->digest, NULL },
                                                          .views = { g->env, (char *[]) { g->base, NULL } } },
                                    &o);
        if (r < 0 && r != -EALREADY && r != -ENOENT && r != -ENOSPC)
                log_warning_errno(r, "The layers of %s/%s cannot be merged now: %m", user, agent);
        return r >= 0;
}

static int collect_agent(const StoreAgent *a, void *userdata) {
        return strv_extend(userdata, a->user) < 0 || strv_extend(userdata, a->name) < 0 ? -ENOMEM : 0;
}

void flatten_all(Manager *m) {
        _cleanup_strv_free_ char **l = NULL;
        unsigned n = 0;
        int r;

        r = store_agent_list(m->store, NULL, collect_agent, &l);
        if (r < 0)
                log_warning_errno(r, "Environments with many layers cannot be looked for: %m");
        for (char **a = l; r >= 0 && a && *a && n < FLATTEN_AT_START_MAX; a += 2)
                n += flatten_maybe(m, a[0], a[1]);
}

/* [A, B, C…, X] with A, B, C… merged into F becomes [F, X]: something may have been frozen on top meanwhile. */
static int replace_prefix(char *const *env, char *const *merged, const char *flat, char ***ret) {
        _cleanup_strv_free_ char **l = NULL;
        size_t n = strv_length(merged);
        int r;

        if (strv_length(env) < n)
                return -ESTALE;
        for (size_t i = 0; i < n; i++)
                if (!streq(env[i], merged[i]))
                        return -ESTALE;
        r = strv_extend(&l, flat);
        for (char *const *e = env + n; r >= 0 && *e; e++)
                r = strv_extend(&l, *e);
        if (r < 0)
                return r;
        *ret = TAKE_PTR(l);
        return 0;
}

int flatten_commit(Operation *o, char **ret_error) {
        _cleanup_(store_generation_freep) StoreGeneration *row = NULL;
        _cleanup_(generation_freep) Generation *head = NULL, *g = NULL;
        _cleanup_(store_agent_freep) StoreAgent *a = NULL;
        _cleanup_free_ char *manifest = NULL, *note = NULL;
        _cleanup_strv_free_ char **env = NULL;
        char digest[DIGEST_LEN + 1];
        Manager *m = o->manager;
        int r;

        r = load_head(m, o->user, o->subject, &a, &row, &head);
        if (r >= 0)
                r = replace_prefix(head->env, o->views[0].layers, o->digest, &env);
        if (r == -ESTALE)
                *ret_error = strdup("the environment has changed; it is tried again after the next freeze");
        if (r >= 0)
                r = generation_new(head->arch, head->base, env, head->runner, row->digest, &g);
        if (r >= 0)
                r = generation_encode(g, &manifest, digest);
        if (r >= 0)
                r = generation_save(m->layers, g, digest);
        if (r < 0)
                return r;
        note = strprintf("%zu layers merged into one", strv_length(o->views[0].layers));
        r = note ? store_head_swap(m->store, o->user, o->subject, a->head_rev,
                                   &(StoreGeneration){ .digest = digest,
                                                       .parent = row->digest,
                                                       .author = (char *) "agentd",
                                                       .note = note,
                                                       .manifest = manifest },
                                   NULL)
                 : -ENOMEM;
        return r < 0 ? r : free_and_strdup(&o->digest, digest);
}
