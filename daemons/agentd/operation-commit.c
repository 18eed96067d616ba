/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The end of an operation that made a layer: it is hashed (nothing that its unit says of it is believed), noted,
 * moved into the store, and then the one row is written that makes it count. The only place where something is
 * changed.
 */
#include "basic/string-util.h"
#include "layer-quota.h"
#include "operation.h"
#include "run.h"
#include "runner-deploy.h"

int operation_publish(Operation *o, const char *path, const char *digest, const LayerIdentity *identity,
                      worker_handler_t handler) {
        int r;

        r = layer_store_note(o->manager->layers, o->staging, digest);
        if (r >= 0)
                r = strv_extend(&o->published, digest);
        if (r < 0)
                return r;
        return identity ? worker_take_layer(o->manager->worker, path, digest, identity, handler, o, &o->worker_slot) :
                          worker_publish_layer(o->manager->worker, path, digest, handler, o, &o->worker_slot);
}

static int commit_image(Operation *o, char **ret_error) {
        int r;

        r = store_image_add(o->manager->store,
                            &(StoreImage){ .user = o->user, .name = o->subject, .digest = o->digest, .size = o->size });
        if (r == -EEXIST)
                *ret_error = strprintf("an image \"%s\" was made meanwhile", o->subject);
        return r;
}

static int load_generation(Operation *o, const char *digest, StoreGeneration **ret_row, Generation **ret) {
        _cleanup_(store_generation_freep) StoreGeneration *row = NULL;
        int r;

        r = store_generation_get(o->manager->store, o->user, o->subject, digest, &row);
        if (r >= 0 && !row->manifest)
                r = -ENODATA;
        if (r >= 0)
                r = generation_decode(row->manifest, strlen(row->manifest), ret, NULL);
        if (r >= 0 && ret_row)
                *ret_row = TAKE_PTR(row);
        return r;
}

/*
 * Whether a root on HEAD shows the same files as one on FROM, so that changes made on the one fit the other: between
 * them are only generations that the platform made by itself (a runner folded in, layers merged), or the layers are
 * the same.
 */
static int shows_the_same(Operation *o, const Generation *from, const char *head) {
        char wanted[DIGEST_LEN + 1], found[DIGEST_LEN + 1];
        _cleanup_free_ char *next = strdup(head);
        int r;

        r = next ? generation_environment_digest(from, wanted) : -ENOMEM;
        for (unsigned i = 0; r >= 0 && i < 1000; i++) {
                _cleanup_(store_generation_freep) StoreGeneration *row = NULL;
                _cleanup_(generation_freep) Generation *g = NULL;

                r = load_generation(o, next, &row, &g);
                if (r >= 0)
                        r = generation_environment_digest(g, found);
                if (r < 0)
                        return r == -ENOENT ? 0 : r; /* pruned meanwhile */
                if (streq(found, wanted))
                        return 1;
                if (!streq_ptr(row->author, "agentd") || !g->parent)
                        return 0;
                r = free_and_strdup(&next, g->parent);
        }
        return MIN(r, 0);
}

static int commit_freeze(Operation *o, char **ret_error) {
        const char *from = NULL, *runner = NULL;
        _cleanup_(store_generation_freep) StoreGeneration *base = NULL;
        _cleanup_(generation_freep) Generation *began = NULL, *parent = NULL, *g = NULL;
        _cleanup_(store_agent_freep) StoreAgent *agent = NULL;
        _cleanup_(store_run_freep) StoreRun *run = NULL;
        _cleanup_free_ char *manifest = NULL;
        char digest[DIGEST_LEN + 1];
        Manager *m = o->manager;
        int r;

        r = o->edit ? 0 : store_run_get(m->store, o->run, &run);
        if (r >= 0) {
                from = o->edit ? o->edit->generation : run->generation;
                runner = o->edit ? NULL : run->runner;
                r = store_agent_get(m->store, o->user, o->subject, &agent);
        }
        if (r >= 0)
                r = load_generation(o, from, NULL, &began);
        if (r >= 0)
                r = load_generation(o, agent->head, &base, &parent);
        if (r >= 0) {
                r = shows_the_same(o, began, agent->head);
                if (r == 0)
                        r = -ESTALE;
        }
        if (r == -ESTALE) {
                *ret_error = strdup(
                        o->edit ? "the environment was changed after the edit began; roll it back to where "
                                  "the edit stands, or discard the edit"
                                : "the environment was changed after the run began; run it again with --keep");
                return -ESTALE;
        }
        if (r >= 0)
                r = generation_derive(parent, base->digest, o->digest, runner, &g);
        if (r >= 0 && strv_length(g->env) >= SANDBOX_LAYERS_MAX) {
                *ret_error = strdup("the environment has too many layers; they are being merged, try again in a while");
                flatten_maybe(m, o->user, o->subject);
                return -E2BIG;
        }
        if (r >= 0)
                r = generation_encode(g, &manifest, digest);
        if (r >= 0)
                r = generation_save(m->layers, g, digest);
        if (r >= 0 && o->edit)
                r = edit_set_frozen(o->edit, digest, agent->head_rev);
        if (r >= 0)
                r = store_head_swap(m->store, o->user, o->subject, agent->head_rev,
                                    &(StoreGeneration) { .digest = digest,
                                                         .parent = base->digest,
                                                         .author = o->user,
                                                         .note = o->note,
                                                         .manifest = manifest },
                                    NULL);
        if (r < 0) {
                if (o->edit)
                        (void) edit_set_frozen(o->edit, NULL, 0);
                return r;
        }
        if (o->edit)
                o->done_edit = TAKE_PTR(o->edit);
        else
                kept_drop(m, o->run);
        return free_and_strdup(&o->digest, digest); /* what the caller wants to know is the generation */
}

static void on_published(int error, const char *message, void *userdata) {
        Operation *o = userdata;
        _cleanup_free_ char *reason = NULL, *text = NULL;
        Manager *m = o->manager;
        int r = error;

        o->worker_slot = worker_slot_unref(o->worker_slot);
        if (r < 0)
                reason = strdup(message);
        else if (o->kind != OPERATION_FLATTEN && o->kind != OPERATION_DEPLOY_RUNNER) {
                r = layer_quota_check(m, o->user, o->uid, (char *[]) { o->digest, NULL }, &reason);
                if (r == -ENOBUFS)
                        (void) free_and_strdup(&o->error_name, "QuotaExceeded");
        }
        if (r >= 0)
                r = o->kind == OPERATION_FREEZE        ? commit_freeze(o, &reason) :
                    o->kind == OPERATION_DEPLOY_RUNNER ? runner_deploy_commit(o, &reason) :
                    o->kind == OPERATION_FLATTEN       ? flatten_commit(o, &reason) :
                                                         commit_image(o, &reason);
        if (r < 0) {
                if (!operation_no_space(o, r)) {
                        text = strprintf("It cannot be stored: %s.", reason ?: strerror(-r));
                        operation_end(o, OPERATION_FAILED, strempty(text));
                }
                return;
        }
        if (o->done_edit) {
                Edit *edit = TAKE_PTR(o->done_edit);

                edit->operation = NULL;
                operation_drop_views(o);
                r = edit_discard(edit);
                if (r < 0)
                        log_error_errno(r, "The changes that were frozen cannot be removed: %m");
        }
        operation_end(o, OPERATION_DONE, o->digest);
        if (o->kind == OPERATION_FREEZE)
                flatten_maybe(o->manager, o->user, o->subject);
}

static void on_hashed(int error, const char *message, void *userdata) {
        Operation *o = userdata;
        char digest[DIGEST_LEN + 1];
        LayerIdentity identity;
        int r = error;

        o->worker_slot = worker_slot_unref(o->worker_slot);
        if (r >= 0)
                r = worker_hash_parse(message, digest, &identity);
        if (r >= 0) {
                o->size = identity.size;
                r = free_and_strdup(&o->digest, digest); /* from now on a prune leaves it alone */
        }
        if (r >= 0)
                r = operation_publish(o, o->image, digest, &identity, on_published);
        if (r < 0)
                on_published(r, error < 0 ? message : strerror(-r), o);
}

void operation_commit(Operation *o) {
        int r = worker_hash_layer(o->manager->worker, o->image, on_hashed, o, &o->worker_slot);

        if (r < 0)
                on_published(r, strerror(-r), o);
}
