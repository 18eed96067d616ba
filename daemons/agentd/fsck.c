/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The check of everything that is stored for environments: each layer's bytes against its name, each manifest against
 * its digest, each head. An ordinary user's check covers what that user's agents and images need; root's covers all,
 * and tells what nobody needs. Layers are hashed one at a time, in the worker's child, so that runs go on beside it.
 *
 * The result is one JSON document; what is wrong names the file and everything that hangs on it. Nothing is removed. A
 * generation's file that is lost or damaged is written anew from the store's row, if that is intact.
 */
#include "basic/fs-util.h"
#include "basic/json-util.h"
#include "basic/string-util.h"
#include "environment.h"
#include "operation.h"
#include "run.h"

typedef struct FsckLayer {
        char *digest;
        sd_json_variant *users;
} FsckLayer;

struct Fsck {
        Operation *operation;
        StrMap *map; /* FsckLayer, by digest */
        FsckLayer **layers;
        size_t n, at;
        uint64_t bytes, generations;
        sd_json_variant *problems, *repaired;
        unsigned n_problems;
        char *first; /* problem, as a sentence */
};

Fsck *fsck_free(Fsck *f) {
        FsckLayer *l;

        if (!f)
                return NULL;
        while (f->map && (l = strmap_first(f->map))) {
                strmap_remove(f->map, l->digest);
                sd_json_variant_unref(l->users);
                free(l->digest);
                free(l);
        }
        strmap_free(f->map);
        free(f->layers);
        sd_json_variant_unref(f->problems);
        sd_json_variant_unref(f->repaired);
        free(f->first);
        return mfree(f);
}

static int add_layer(Fsck *f, const char *digest, sd_json_variant *user) {
        FsckLayer *l = strmap_get(f->map, digest), **p;
        int r;

        if (!l) {
                p = reallocarray(f->layers, f->n + 1, sizeof *p);
                if (!p)
                        return -ENOMEM;
                f->layers = p;
                l = calloc(1, sizeof *l);
                if (!l)
                        return -ENOMEM;
                l->digest = strdup(digest);
                r = l->digest ? strmap_put(f->map, l->digest, l) : -ENOMEM;
                if (r < 0) {
                        free(l->digest);
                        free(l);
                        return r;
                }
                f->layers[f->n++] = l;
        }
        return sd_json_variant_append_array(&l->users, user);
}

static int problem(Fsck *f, const char *kind, const char *digest, sd_json_variant *users, const char *sentence) {
        _cleanup_json_ sd_json_variant *v = NULL;
        int r;

        r = sd_json_buildo(&v, SD_JSON_BUILD_PAIR_STRING("kind", kind), SD_JSON_BUILD_PAIR_STRING("digest", digest),
                           SD_JSON_BUILD_PAIR_STRING("message", sentence),
                           SD_JSON_BUILD_PAIR_CONDITION(!!users, "users", SD_JSON_BUILD_VARIANT(users)));
        if (r >= 0)
                r = sd_json_variant_append_array(&f->problems, v);
        if (r < 0)
                return r;
        log_error("Store: %s", sentence);
        f->n_problems++;
        return f->first ? 0 : free_and_strdup(&f->first, sentence);
}

static int check_file(Fsck *f, const StoreGeneration *g, const Generation *d) {
        _cleanup_(generation_freep) Generation *stored = NULL;
        _cleanup_json_ sd_json_variant *v = NULL;
        LayerStore *layers = f->operation->manager->layers;
        char digest[DIGEST_LEN + 1];
        int r, k;

        k = generation_load(layers, g->digest, &stored);
        if (k >= 0)
                return 0;
        r = generation_remove(layers, g->digest);
        if (r >= 0)
                r = generation_save(layers, d, digest);
        if (r < 0)
                return r;
        log_warning("The document of the generation %s was %s and is written anew.", g->digest,
                    k == -ENOENT ? "missing" : "damaged");
        r = sd_json_buildo(&v, SD_JSON_BUILD_PAIR_STRING("kind", "manifest-file"),
                           SD_JSON_BUILD_PAIR_STRING("digest", g->digest));
        return r < 0 ? r : sd_json_variant_append_array(&f->repaired, v);
}

static int check_generation(const char *user, const char *name, const StoreGeneration *g, void *userdata) {
        _cleanup_free_ char *agent = strprintf("%s/%s", user, name), *sentence = NULL;
        _cleanup_json_ sd_json_variant *v = NULL, *users = NULL;
        _cleanup_(generation_freep) Generation *d = NULL;
        _cleanup_strv_free_ char **layers = NULL;
        char found[DIGEST_LEN + 1] = "";
        Fsck *f = userdata;
        int r;

        if (!agent)
                return -ENOMEM;
        f->generations++;
        r = sd_json_buildo(&v, SD_JSON_BUILD_PAIR_STRING("agent", agent),
                           SD_JSON_BUILD_PAIR_STRING("generation", g->digest),
                           SD_JSON_BUILD_PAIR_UNSIGNED("number", g->number),
                           SD_JSON_BUILD_PAIR_BOOLEAN("head", g->is_head));
        if (r < 0)
                return r;
        if (g->manifest)
                r = digest_bytes(g->manifest, strlen(g->manifest), found);
        if (r < 0)
                return r;
        r = streq(found, g->digest) ? environment_manifest(g, &d) : -EBADMSG;
        if (r == -ENOMEM)
                return r;
        if (r < 0) {
                sentence = strprintf("Generation %" PRIu64
                                     " of %s (%s) is damaged: its manifest does not have its digest.",
                                     g->number, agent, g->digest);
                r = sentence ? sd_json_variant_append_array(&users, v) : -ENOMEM;
                return r < 0 ? r : problem(f, "manifest-damaged", g->digest, users, sentence);
        }
        r = generation_layers(d, &layers);
        for (char **l = layers; r >= 0 && *l; l++)
                r = add_layer(f, *l, v);
        return r < 0 ? r : check_file(f, g, d);
}

static int check_image(const StoreImage *i, void *userdata) {
        _cleanup_free_ char *image = strprintf("%s/%s", i->user, i->name);
        _cleanup_json_ sd_json_variant *v = NULL;
        int r;

        r = image ? sd_json_buildo(&v, SD_JSON_BUILD_PAIR_STRING("image", image)) : -ENOMEM;
        return r < 0 ? r : add_layer(userdata, i->digest, v);
}

static int check_runner(const StoreRunner *runner, void *userdata) {
        _cleanup_json_ sd_json_variant *v = NULL;
        int r;

        r = sd_json_buildo(&v, SD_JSON_BUILD_PAIR_STRING("runner", runner->digest));
        return r < 0 ? r : add_layer(userdata, runner->digest, v);
}

static int check_head(const StoreAgent *a, void *userdata) {
        return strv_extend(userdata, a->user) < 0 || strv_extend(userdata, a->name) < 0 ||
               strv_extend(userdata, a->head) < 0 ? -ENOMEM : 0;
}

static int check_heads(Fsck *f, const char *user) {
        Manager *m = f->operation->manager;
        _cleanup_strv_free_ char **l = NULL;
        int r;

        r = store_agent_list(m->store, user, check_head, &l);
        for (char **a = l; r >= 0 && a && *a; a += 3) {
                _cleanup_(store_generation_freep) StoreGeneration *g = NULL;
                _cleanup_free_ char *sentence = NULL;

                r = store_generation_get(m->store, a[0], a[1], a[2], &g);
                if (r != -ENOENT)
                        continue;
                sentence = strprintf("The head of %s/%s is %s, which is none of its generations.", a[0], a[1], a[2]);
                r = sentence ? problem(f, "head-missing", a[2], NULL, sentence) : -ENOMEM;
        }
        return r;
}

static int find_orphans(Fsck *f, sd_json_variant **ret) {
        Manager *m = f->operation->manager;
        _cleanup_(references_freep) References *refs = NULL;
        _cleanup_strv_free_ char **layers = NULL;
        int r;

        r = layer_store_list(m->layers, &layers);
        if (r >= 0)
                r = references_collect(m, &refs);
        for (char **l = layers; r >= 0 && *l; l++) {
                _cleanup_json_ sd_json_variant *v = NULL;
                uint64_t size = 0;

                if (strmap_get(refs->layers, *l) || layer_store_open_layer(m->layers, *l, NULL, &size) < 0)
                        continue;
                r = sd_json_buildo(&v, SD_JSON_BUILD_PAIR_STRING("digest", *l),
                                   SD_JSON_BUILD_PAIR_UNSIGNED("size", size));
                if (r >= 0)
                        r = sd_json_variant_append_array(ret, v);
        }
        return r;
}

static int write_result(Fsck *f) {
        _cleanup_json_ sd_json_variant *v = NULL, *empty = NULL, *orphans = NULL;
        _cleanup_free_ char *text = NULL;
        Operation *o = f->operation;
        int r;

        r = sd_json_variant_new_array(&empty, NULL, 0);
        /* With a manifest that cannot be read, nobody knows what is needed. */
        if (r >= 0 && o->uid == 0 && find_orphans(f, &orphans) < 0)
                orphans = sd_json_variant_unref(orphans);
        if (r >= 0)
                r = sd_json_buildo(&v, SD_JSON_BUILD_PAIR_UNSIGNED("layers", f->n),
                                   SD_JSON_BUILD_PAIR_UNSIGNED("bytes", f->bytes),
                                   SD_JSON_BUILD_PAIR_UNSIGNED("generations", f->generations),
                                   SD_JSON_BUILD_PAIR_VARIANT("problems", f->problems ?: empty),
                                   SD_JSON_BUILD_PAIR_VARIANT("repaired", f->repaired ?: empty),
                                   SD_JSON_BUILD_PAIR_CONDITION(o->uid == 0, "unused",
                                                                SD_JSON_BUILD_VARIANT(orphans ?: empty)));
        if (r >= 0)
                r = json_format_canonical(v, &text);
        return r < 0 ? r : write_full(o->result_fd, text, strlen(text));
}

static void fsck_end(Fsck *f, int r) {
        _cleanup_free_ char *text = NULL;
        Operation *o = f->operation;

        if (o->canceled) {
                operation_end(o, OPERATION_CANCELED, "Canceled.");
                return;
        }
        if (r >= 0)
                r = write_result(f);
        if (r < 0)
                text = strprintf("The check cannot go on: %s.", strerror(-r));
        else if (f->n_problems > 1)
                text = strprintf("%u problems were found. The first: %s", f->n_problems, f->first);
        else if (f->n_problems > 0)
                text = strdup(f->first);
        else {
                operation_end(o, OPERATION_DONE, "");
                return;
        }
        operation_end(o, OPERATION_FAILED, strempty(text));
}

static void check_next(Fsck *f);

static void on_verified(int error, const char *message, void *userdata) {
        Fsck *f = userdata;
        FsckLayer *l = f->layers[f->at++];
        _cleanup_free_ char *sentence = NULL;
        int r = 0;

        f->operation->worker_slot = worker_slot_unref(f->operation->worker_slot);
        if (error == -ENOENT)
                sentence = strprintf("The layer %s is missing.", l->digest);
        else if (error == -EBADMSG)
                sentence = strprintf("The layer %s is damaged: its bytes do not have the digest of its name.",
                                     l->digest);
        else if (error < 0)
                sentence = strprintf("The layer %s cannot be read: %s.", l->digest, message);
        if (error < 0)
                r = sentence ? problem(f, error == -ENOENT ? "layer-missing" : error == -EBADMSG ? "layer-damaged" :
                                                                                "layer-unreadable",
                                       l->digest, l->users, sentence) : -ENOMEM;
        if (r < 0)
                fsck_end(f, r);
        else
                check_next(f);
}

static void check_next(Fsck *f) {
        Operation *o = f->operation;
        uint64_t size = 0;
        int r;

        if (f->at >= f->n || o->canceled) {
                fsck_end(f, 0);
                return;
        }
        operation_set_step(o, "checking", f->bytes);
        if (layer_store_open_layer(o->manager->layers, f->layers[f->at]->digest, NULL, &size) >= 0)
                f->bytes += size;
        r = worker_verify_layer(o->manager->worker, f->layers[f->at]->digest, on_verified, f, &o->worker_slot);
        if (r < 0)
                fsck_end(f, r);
}

static int on_begin(sd_event_source *s, void *userdata) {
        Fsck *f = userdata;

        sd_event_source_set_enabled(s, SD_EVENT_OFF);
        check_next(f);
        return 0;
}

int fsck_start(Operation *o) {
        const char *user = o->uid == 0 ? NULL : o->user;
        Manager *m = o->manager;
        Fsck *f;
        int r;

        f = o->fsck = calloc(1, sizeof *f);
        if (!f)
                return -ENOMEM;
        f->operation = o;
        f->map = strmap_new();
        if (!f->map)
                return -ENOMEM;
        r = store_generation_walk(m->store, user, NULL, check_generation, f);
        if (r >= 0)
                r = check_heads(f, user);
        if (r >= 0)
                r = store_image_list(m->store, user, check_image, f);
        if (r >= 0 && !user)
                r = store_runner_list(m->store, check_runner, f);
        if (r < 0)
                return r;
        /* Not in this turn: with nothing to check, the end would come before the caller knows of the beginning. */
        r = sd_event_add_defer(m->event, &o->pipe_source, on_begin, f);
        return r < 0 ? r : 0;
}
