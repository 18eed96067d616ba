/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Who needs which file, and the removal of those that nobody needs. All of it happens in one turn of the event loop,
 * and whatever makes a new reference (a commit, a run's preparation) is a turn of its own; so nothing can begin to
 * need a file between the look and the removal. A layer that the worker is just moving in is named by its operation.
 */
#include <fcntl.h>

#include "async-remove.h"
#include "basic/fs-util.h"
#include "basic/json-util.h"
#include "basic/string-util.h"
#include "environment.h"
#include "operation.h"
#include "run.h"

/* Room for the database's log in which a prune says what it forgets. */
#define RESERVE AGENTD_STATE_DIR "/reserve"
#define RESERVE_SIZE (4 << 20)

static FileUse *file_use_free(FileUse *u) {
        if (!u)
                return NULL;
        free(u->digest);
        return mfree(u);
}

static StrMap *uses_free(StrMap *map) {
        FileUse *u;

        while (map && (u = strmap_first(map))) {
                strmap_remove(map, u->digest);
                file_use_free(u);
        }
        return strmap_free(map);
}

References *references_free(References *r) {
        if (!r)
                return NULL;
        uses_free(r->layers);
        uses_free(r->manifests);
        return mfree(r);
}

static int use(StrMap *map, const char *digest, const void *owner, FileUse **ret) {
        FileUse *u = strmap_get(map, digest);
        int r;

        if (!u) {
                u = calloc(1, sizeof *u);
                if (!u)
                        return -ENOMEM;
                u->digest = strdup(digest);
                r = u->digest ? strmap_put(map, u->digest, u) : -ENOMEM;
                if (r < 0) {
                        file_use_free(u);
                        return r;
                }
        }
        if (owner && u->last_owner != owner) {
                u->last_owner = owner;
                u->owners++;
        }
        if (ret)
                *ret = u;
        return 0;
}

typedef struct Collect {
        References *refs;
        char *agent; /* of the row before */
        uintptr_t owner;
} Collect;

static int use_manifest(References *refs, const Generation *g, const void *owner) {
        int r;

        r = use(refs->layers, g->base, owner, NULL);
        for (char **e = g->env; r >= 0 && e && *e; e++)
                r = use(refs->layers, *e, owner, NULL);
        /* Not the runner: that is the platform's, and one that is gone is swapped for another. */
        return r;
}

static int collect_generation(const char *user, const char *name, const StoreGeneration *g, void *userdata) {
        _cleanup_(generation_freep) Generation *d = NULL;
        _cleanup_free_ char *agent = strprintf("%s/%s", user, name);
        Collect *c = userdata;
        int r;

        if (!agent)
                return -ENOMEM;
        if (!streq_ptr(agent, c->agent)) {
                free(c->agent);
                c->agent = TAKE_PTR(agent);
                c->owner++;
        }
        r = use(c->refs->manifests, g->digest, (void *) c->owner, NULL);
        if (r < 0)
                return r;
        r = environment_manifest(g, &d);
        /* One that cannot be read might name anything: nothing is removed then. */
        return r < 0 ? r : use_manifest(c->refs, d, (void *) c->owner);
}

static int collect_image(const StoreImage *i, void *userdata) {
        Collect *c = userdata;

        c->owner++;
        return use(c->refs->layers, i->digest, (void *) c->owner, NULL);
}

static int collect_runner(const StoreRunner *runner, void *userdata) {
        Collect *c = userdata;

        return use(c->refs->layers, runner->digest, NULL, NULL);
}

int references_collect(Manager *m, References **ret) {
        _cleanup_(references_freep) References *refs = calloc(1, sizeof *refs);
        Collect c = { .refs = refs };
        Operation *o;
        Run *run;
        int r;

        if (!refs)
                return -ENOMEM;
        refs->layers = strmap_new();
        refs->manifests = strmap_new();
        if (!refs->layers || !refs->manifests)
                return -ENOMEM;
        r = store_generation_walk(m->store, NULL, NULL, collect_generation, &c);
        free(c.agent);
        if (r >= 0)
                r = store_image_list(m->store, NULL, collect_image, &c);
        for (size_t i = 0; r >= 0 && (run = strmap_next(m->runs, &i));)
                if (run->generation)
                        r = use_manifest(refs, run->generation, NULL);
        for (size_t i = 0; r >= 0 && (o = strmap_next(m->operations, &i));) {
                if (o->state != OPERATION_RUNNING)
                        continue;
                if (o->digest)
                        r = use(refs->layers, o->digest, NULL, NULL);
                for (char **l = o->holds; r >= 0 && l && *l; l++)
                        r = use(refs->layers, *l, NULL, NULL);
        }
        if (r >= 0)
                r = store_runner_list(m->store, collect_runner, &c);
        if (r < 0)
                return r;
        *ret = TAKE_PTR(refs);
        return 0;
}

/* --- prune ------------------------------------------------------------------------------------------------------ */

typedef struct Doomed {
        char *user, *name;
        char **digests;
} Doomed;

typedef struct Plan {
        Manager *manager;
        uint64_t keep, seen; /* of the agent whose rows come now */
        Doomed *doomed;
        size_t n;
        StrMap *held; /* digests of generations that something stands on, as keys of themselves */
} Plan;

static void plan_done(Plan *p) {
        char *k;

        for (size_t i = 0; i < p->n; i++) {
                free(p->doomed[i].user);
                free(p->doomed[i].name);
                strv_free(p->doomed[i].digests);
        }
        free(p->doomed);
        while (p->held && (k = strmap_first(p->held))) {
                strmap_remove(p->held, k);
                free(k);
        }
        strmap_free(p->held);
}

static int hold(StrMap *held, const char *digest) {
        char *k;
        int r;

        if (!digest || strmap_get(held, digest))
                return 0;
        k = strdup(digest);
        r = k ? strmap_put(held, k, k) : -ENOMEM;
        if (r < 0)
                free(k);
        return r;
}

static int hold_run(const StoreRun *run, void *userdata) {
        return hold(userdata, run->generation);
}

static int collect_held(Manager *m, StrMap *held) {
        Operation *o;
        Edit *edit;
        int r;

        r = store_runs_unfinished(m->store, hold_run, held);
        if (r >= 0)
                r = kept_walk(m, hold_run, held);
        for (size_t i = 0; r >= 0 && (edit = strmap_next(m->edits, &i));)
                r = hold(held, edit->generation);
        for (size_t i = 0; r >= 0 && (o = strmap_next(m->operations, &i));)
                if (o->state == OPERATION_RUNNING)
                        for (char **l = o->generations; r >= 0 && l && *l; l++)
                                r = hold(held, *l);
        return r;
}

static int plan_generation(const char *user, const char *name, const StoreGeneration *g, void *userdata) {
        Plan *p = userdata;
        Doomed *d = p->n > 0 ? &p->doomed[p->n - 1] : NULL;

        if (!d || !streq(d->user, user) || !streq(d->name, name)) {
                d = reallocarray(p->doomed, p->n + 1, sizeof *d);
                if (!d)
                        return -ENOMEM;
                p->doomed = d;
                d = &p->doomed[p->n++];
                *d = (Doomed) { .user = strdup(user), .name = strdup(name) };
                if (!d->user || !d->name)
                        return -ENOMEM;
                p->seen = 0;
        }
        /* The newest one always stays, so that a number is never given out twice. */
        if (p->seen++ < p->keep || g->is_head || strmap_get(p->held, g->digest))
                return 0;
        return strv_extend(&d->digests, g->digest);
}

static int forget_generations(Manager *m, const char *user, const char *name, uint64_t keep, PruneResult *result) {
        Plan p = { .manager = m, .keep = keep, .held = strmap_new() };
        int r;

        r = p.held ? collect_held(m, p.held) : -ENOMEM;
        if (r >= 0)
                r = store_generation_walk(m->store, user, name, plan_generation, &p);
        for (size_t i = 0; r >= 0 && i < p.n; i++) {
                if (!p.doomed[i].digests)
                        continue;
                r = store_generation_remove(m->store, p.doomed[i].user, p.doomed[i].name, p.doomed[i].digests);
                if (r > 0)
                        result->generations += (uint32_t) r;
        }
        plan_done(&p);
        return r;
}

typedef struct Folds {
        StrMap *held;
        uint64_t keep, n;
        char **doomed;
} Folds;

static int plan_fold(const StoreGeneration *g, void *userdata) {
        Folds *f = userdata;

        if (!streq_ptr(g->author, "agentd") || !streq_ptr(g->note, ENVIRONMENT_FOLD_NOTE))
                return 0;
        if (f->n++ < f->keep || g->is_head || !f->held || strmap_get(f->held, g->digest))
                return 0;
        return strv_extend(&f->doomed, g->digest);
}

int environment_forget_folds(Manager *m, const char *user, const char *name) {
        Folds f = { .keep = m->settings->max_runner_generations };
        Plan p = {};
        int r;

        r = store_generation_list(m->store, user, name, plan_fold, &f);
        /* Who is held is known by all that runs, so that is not asked for each single one. */
        if (r < 0 || f.n <= f.keep + f.keep / 4)
                return MIN(r, 0);
        p.held = strmap_new();
        r = p.held ? collect_held(m, p.held) : -ENOMEM;
        f = (Folds) { .held = p.held, .keep = f.keep };
        if (r >= 0)
                r = store_generation_list(m->store, user, name, plan_fold, &f);
        if (r >= 0 && f.doomed)
                r = store_generation_remove(m->store, user, name, f.doomed);
        strv_free(f.doomed);
        plan_done(&p);
        return MIN(r, 0);
}

static void on_released(int error, const char *message, void *userdata) {
        if (error < 0)
                log_warning_errno(error, "Layers that nobody uses cannot be unmounted: %s", message);
}

/* Those of LAYERS that are in nobody's way of REFS. */
static int remove_layers(Manager *m, const References *refs, char *const *layers, PruneResult *result) {
        _cleanup_free_ char *trash = NULL;
        int r = 0;

        for (char *const *d = layers; r >= 0 && *d; d++) {
                uint64_t size = 0;

                if (strmap_get(refs->layers, *d))
                        continue;
                r = layer_store_open_layer(m->layers, *d, NULL, &size);
                if (r == -ENOENT) {
                        r = 0;
                        continue;
                }
                /* Moved aside at once, removed by a thread: gigabytes take a while. On a disk that is so full that
                 * there is no room for a directory, at once: that they go is the point. */
                if (r >= 0 && !trash)
                        r = layer_store_new_staging(m->layers, &trash);
                if (r >= 0)
                        r = layer_store_discard(m->layers, *d, trash);
                if (r == -ENOSPC || r == -EDQUOT)
                        r = layer_store_remove(m->layers, *d);
                if (r < 0)
                        break;
                result->layers++;
                result->bytes += size;
        }
        if (trash)
                async_remove_tree(trash);
        if (result->layers > 0 && worker_release_layers(m->worker, on_released, NULL, NULL) < 0)
                log_oom();
        return r;
}

static int remove_orphans(Manager *m, PruneResult *result) {
        _cleanup_strv_free_ char **layers = NULL, **manifests = NULL;
        _cleanup_(references_freep) References *refs = NULL;
        int r;

        r = layer_store_list(m->layers, &layers);
        if (r >= 0)
                r = generation_list(m->layers, &manifests);
        if (r >= 0)
                r = references_collect(m, &refs);
        for (char **d = manifests; r >= 0 && *d; d++)
                if (!strmap_get(refs->manifests, *d))
                        r = generation_remove(m->layers, *d);
        return r < 0 ? r : remove_layers(m, refs, layers, result);
}

int environment_drop_layers(Manager *m, char *const *digests) {
        _cleanup_(references_freep) References *refs = NULL;
        PruneResult ignored = {};
        int r;

        if (!digests || !digests[0])
                return 0;
        r = references_collect(m, &refs);
        return r < 0 ? r : remove_layers(m, refs, digests, &ignored);
}

static int collect_document(const char *user, const char *name, const StoreGeneration *g, void *userdata) {
        return use(userdata, g->digest, NULL, NULL);
}

int environment_drop_documents(Manager *m) {
        _cleanup_strv_free_ char **documents = NULL;
        StrMap *known = strmap_new();
        int r;

        r = known ? generation_list(m->layers, &documents) : -ENOMEM;
        if (r >= 0)
                r = store_generation_walk(m->store, NULL, NULL, collect_document, known);
        for (char **d = documents; r >= 0 && *d; d++)
                if (!strmap_get(known, *d))
                        r = generation_remove(m->layers, *d);
        uses_free(known);
        return MIN(r, 0);
}

void environment_use_reserve(void) {
        (void) unlink_noerrno(AT_FDCWD, RESERVE, 0);
}

void environment_reserve(void) {
        _cleanup_close_ int fd = open(RESERVE, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
        int r = fd < 0 ? -errno : -posix_fallocate(fd, 0, RESERVE_SIZE);

        if (r == -ENOSPC || r == -EDQUOT)
                environment_use_reserve();
        if (r < 0)
                log_debug_errno(r, "No room can be kept for a prune on a full disk: %m");
}

int environment_prune(Manager *m, const char *user, const char *name, uint64_t keep, PruneResult *ret) {
        PruneResult result = {};
        int r = 0;

        if (keep > 0)
                r = forget_generations(m, user, name, keep, &result);
        if (keep > 0 && r == -ENOSPC) {
                /* To forget needs some room, too: this is what the reserve is for, and what nobody needs already. */
                environment_use_reserve();
                r = remove_orphans(m, &result);
                if (r >= 0)
                        r = forget_generations(m, user, name, keep, &result);
        }
        if (r >= 0)
                r = remove_orphans(m, &result);
        environment_reserve();
        if (r < 0)
                return r;
        *ret = result;
        return 0;
}

/* --- usage ------------------------------------------------------------------------------------------------------ */

typedef struct Usage {
        Manager *manager;
        References *refs;
        sd_json_variant *agents, *images;
        char *agent; /* that is being added up */
        uint64_t generations, layers, bytes, own;
        StrMap *seen; /* its layers, FileUse of refs */
} Usage;

static void forget_seen(Usage *u) {
        FileUse *f;

        while ((f = strmap_first(u->seen)))
                strmap_remove(u->seen, f->digest);
}

static int end_agent(Usage *u) {
        _cleanup_json_ sd_json_variant *v = NULL;
        int r = 0;

        if (u->agent)
                r = sd_json_buildo(&v, SD_JSON_BUILD_PAIR_STRING("agent", u->agent),
                                   SD_JSON_BUILD_PAIR_UNSIGNED("generations", u->generations),
                                   SD_JSON_BUILD_PAIR_UNSIGNED("layers", u->layers),
                                   SD_JSON_BUILD_PAIR_UNSIGNED("bytes", u->bytes),
                                   SD_JSON_BUILD_PAIR_UNSIGNED("own", u->own),
                                   SD_JSON_BUILD_PAIR_UNSIGNED("shared", u->bytes - u->own));
        if (r >= 0 && v)
                r = sd_json_variant_append_array(&u->agents, v);
        u->agent = mfree(u->agent);
        u->generations = u->layers = u->bytes = u->own = 0;
        forget_seen(u);
        return r;
}

static int add_layer(Usage *u, const char *digest) {
        FileUse *f = strmap_get(u->refs->layers, digest);
        int r;

        if (!f || strmap_get(u->seen, digest))
                return 0;
        r = strmap_put(u->seen, f->digest, f);
        if (r < 0)
                return r;
        u->layers++;
        u->bytes += f->size;
        if (f->owners <= 1)
                u->own += f->size;
        return 0;
}

static int usage_generation(const char *user, const char *name, const StoreGeneration *g, void *userdata) {
        _cleanup_free_ char *agent = strprintf("%s/%s", user, name);
        _cleanup_(generation_freep) Generation *d = NULL;
        Usage *u = userdata;
        int r;

        if (!agent)
                return -ENOMEM;
        if (!streq_ptr(agent, u->agent)) {
                r = end_agent(u);
                if (r < 0)
                        return r;
                u->agent = TAKE_PTR(agent);
        }
        u->generations++;
        r = environment_manifest(g, &d);
        if (r >= 0)
                r = add_layer(u, d->base);
        for (char **e = r >= 0 ? d->env : NULL; r >= 0 && e && *e; e++)
                r = add_layer(u, *e);
        return r;
}

static int usage_image(const StoreImage *i, void *userdata) {
        _cleanup_json_ sd_json_variant *v = NULL;
        _cleanup_free_ char *image = strprintf("%s/%s", i->user, i->name);
        Usage *u = userdata;
        FileUse *f = strmap_get(u->refs->layers, i->digest);
        int r;

        r = image ? sd_json_buildo(&v, SD_JSON_BUILD_PAIR_STRING("image", image),
                                   SD_JSON_BUILD_PAIR_UNSIGNED("bytes", i->size),
                                   SD_JSON_BUILD_PAIR_BOOLEAN("shared", f && f->owners > 1)) : -ENOMEM;
        return r < 0 ? r : sd_json_variant_append_array(&u->images, v);
}

int environment_usage(Manager *m, const char *user, sd_json_variant **ret) {
        _cleanup_json_ sd_json_variant *orphans = NULL, *empty = NULL;
        _cleanup_(references_freep) References *refs = NULL;
        _cleanup_strv_free_ char **layers = NULL;
        uint64_t total = 0, orphan_bytes = 0;
        Usage u = { .manager = m };
        unsigned n_orphans = 0;
        int r;

        r = references_collect(m, &refs);
        if (r >= 0)
                r = layer_store_list(m->layers, &layers);
        if (r < 0)
                return r;
        u.refs = refs;
        for (char **d = layers; *d; d++) {
                FileUse *f = strmap_get(refs->layers, *d);
                uint64_t size = 0;

                if (layer_store_open_layer(m->layers, *d, NULL, &size) < 0)
                        continue;
                total += size;
                if (f) {
                        f->size = size;
                        f->present = true;
                } else {
                        n_orphans++;
                        orphan_bytes += size;
                }
        }
        u.seen = strmap_new();
        r = u.seen ? sd_json_variant_new_array(&empty, NULL, 0) : -ENOMEM;
        if (r >= 0)
                r = store_generation_walk(m->store, user, NULL, usage_generation, &u);
        if (r >= 0)
                r = end_agent(&u);
        if (r >= 0)
                r = store_image_list(m->store, user, usage_image, &u);
        if (r >= 0 && !user)
                r = sd_json_buildo(&orphans, SD_JSON_BUILD_PAIR_UNSIGNED("layers", n_orphans),
                                   SD_JSON_BUILD_PAIR_UNSIGNED("bytes", orphan_bytes));
        if (r >= 0)
                r = sd_json_buildo(ret,
                                   SD_JSON_BUILD_PAIR_VARIANT("agents", u.agents ?: empty),
                                   SD_JSON_BUILD_PAIR_VARIANT("images", u.images ?: empty),
                                   SD_JSON_BUILD_PAIR_CONDITION(!user, "total", SD_JSON_BUILD_UNSIGNED(total)),
                                   SD_JSON_BUILD_PAIR_CONDITION(!user, "unused", SD_JSON_BUILD_VARIANT(orphans)));
        free(u.agent);
        if (u.seen)
                forget_seen(&u);
        strmap_free(u.seen);
        sd_json_variant_unref(u.agents);
        sd_json_variant_unref(u.images);
        return r;
}
