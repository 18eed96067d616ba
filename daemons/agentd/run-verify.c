/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Are the layers that a run stands on still what their digests say? A sealed one (image/layer-seal.h) is looked at in
 * no time, whether or not anybody asked, since the kernel compares each of its blocks as it is read. Where it was asked
 * for (--verify, VerifyLayers=), one without a seal is read in full before anything of the run is started; and when the
 * run does not end well, all of them are read once more, as a block that went bad under a seal shows as an I/O error
 * in whatever read it.
 *
 * A layer that is read once is read for all runs that wait for it then. One that is wrong ends the run at once as
 * sandbox-failed, without another attempt: a fresh sandbox would stand on the same bytes.
 */
#include <systemd/sd-journal.h>

#include "basic/string-util.h"
#include "environment.h"
#include "run.h"

/* How many generations a message names. */
#define GENERATIONS_NAMED 8U

/* In the journal entry of a layer that is not what it was. */
#define MESSAGE_LAYER_DAMAGED "d3b1f0c57a8e4b6c9b0b6a0f2a4c7e51"

struct LayerCheck {
        Manager *manager;
        char digest[DIGEST_LEN + 1];
        WorkerSlot *slot;
        Run *waiting;
};

static void layer_check_free(LayerCheck *c) {
        strmap_remove(c->manager->layer_checks, c->digest);
        worker_slot_unref(c->slot);
        free(c);
}

void layer_checks_free_all(Manager *m) {
        LayerCheck *c;

        while ((c = strmap_first(m->layer_checks))) {
                for (Run *w = c->waiting; w; w = w->next_verifying)
                        w->layer_check = NULL;
                layer_check_free(c);
        }
}

void run_verify_leave(Run *run) {
        if (!run->layer_check)
                return;
        for (Run **p = &run->layer_check->waiting; *p; p = &(*p)->next_verifying)
                if (*p == run) {
                        *p = run->next_verifying;
                        break;
                }
        run->layer_check = NULL; /* the reading goes on: others may come */
}

void run_verify_done(Run *run) {
        run_verify_leave(run);
        run->to_verify = strv_free(run->to_verify);
        run->right_layers = strv_free(run->right_layers);
}

/* --- what is wrong ----------------------------------------------------------------------------------------------- */

typedef struct Hanging {
        const char *digest;
        FILE *f;
        unsigned n;
} Hanging;

static int find_hanging(const char *user, const char *name, const StoreGeneration *g, void *userdata) {
        _cleanup_(generation_freep) Generation *d = NULL;
        _cleanup_strv_free_ char **layers = NULL;
        Hanging *h = userdata;

        if (environment_manifest(g, &d) < 0 || generation_layers(d, &layers) < 0 || !strv_contains(layers, h->digest))
                return 0;
        if (h->n++ < GENERATIONS_NAMED)
                fprintf(h->f, "%s generation %" PRIu64 " of %s%s", h->n > 1 ? "," : "", g->number, name,
                        g->is_head ? " (head)" : "");
        return 0;
}

/* Only the user's own are named. */
static char *name_hanging(Manager *m, const char *user, const char *digest) {
        Hanging h = { .digest = digest };
        char *text = NULL;
        size_t size;

        h.f = open_memstream(&text, &size);
        if (!h.f)
                return NULL;
        (void) store_generation_walk(m->store, user, NULL, find_hanging, &h);
        if (h.n > GENERATIONS_NAMED)
                fprintf(h.f, " and %u more", h.n - GENERATIONS_NAMED);
        if (fclose(h.f) != 0)
                return mfree(text);
        return text;
}

static bool is_damage(int error) {
        return error == -EBADMSG || error == -ENOENT;
}

static void end_damaged(Run *run, const char *digest, int error) {
        const char *what = error == -ENOENT ? "is missing" : "is damaged, its bytes do not have the digest of its name";
        _cleanup_free_ char *hanging = name_hanging(run->manager, run->row->user, digest);

        sd_journal_send("MESSAGE=Run %s: the layer %s %s. What hangs on it: agentctl env fsck", run->row->id, digest,
                        what, "MESSAGE_ID=" MESSAGE_LAYER_DAMAGED, "PRIORITY=%i", LOG_ERR, "AGENT_LAYER=%s", digest,
                        "AGENT_RUN=%s", run->row->id, NULL);
        /* Also in place of what a run came to that read such bytes. */
        run->end.message = mfree(run->end.message);
        run->end.result = _RUN_RESULT_INVALID;
        run_set_end(run, RUN_RESULT_SANDBOX_FAILED, false, "The layer %s %s.%s%s%s", digest, what,
                    isempty(hanging) ? "" : " On it hang:", strempty(hanging), isempty(hanging) ? "" : ".");
        run_settle(run);
}

/* --- reading ----------------------------------------------------------------------------------------------------- */

static void verify_next(Run *run);

static void on_read(Run *run, const char *digest, int error, const char *message) {
        bool after = run->end.result >= 0;

        if (is_damage(error)) {
                end_damaged(run, digest, error);
                return;
        }
        if (error < 0 && !after) {
                run_fail(run, "verify", error, message);
                return;
        }
        if (error < 0)
                log_warning_errno(error, "Run %s: the layer %s cannot be checked: %s", run->row->id, digest, message);
        else if (!after && strv_extend(&run->right_layers, digest) < 0)
                log_oom();
        run->n_verified++;
        verify_next(run);
}

static void on_checked(int error, const char *message, void *userdata) {
        _cleanup_free_ char *text = strdup(strempty(message));
        LayerCheck *c = userdata;
        char digest[DIGEST_LEN + 1];
        Run *run = c->waiting;

        memcpy(digest, c->digest, sizeof digest);
        for (Run *w = run; w; w = w->next_verifying)
                w->layer_check = NULL;
        layer_check_free(c);
        while (run) {
                Run *next = run->next_verifying; /* RUN may be gone afterwards */

                run->next_verifying = NULL;
                on_read(run, digest, error, strempty(text));
                run = next;
        }
}

static int check_join(Run *run, const char *digest) {
        Manager *m = run->manager;
        LayerCheck *c = strmap_get(m->layer_checks, digest);
        int r;

        if (!c) {
                c = calloc(1, sizeof *c);
                if (!c)
                        return -ENOMEM;
                c->manager = m;
                snprintf(c->digest, sizeof c->digest, "%s", digest);
                r = strmap_put(m->layer_checks, c->digest, c);
                if (r < 0) {
                        free(c);
                        return r;
                }
                r = worker_verify_layer(m->worker, digest, on_checked, c, &c->slot);
                if (r < 0) {
                        layer_check_free(c);
                        return r;
                }
        }
        run->layer_check = c;
        run->next_verifying = c->waiting;
        c->waiting = run;
        return 0;
}

static void verify_next(Run *run) {
        const char *digest = run->to_verify ? run->to_verify[run->n_verified] : NULL;
        int r;

        if (!digest && run->end.result >= 0) {
                run_settle(run);
                return;
        }
        if (!digest) {
                run_compose_now(run);
                return;
        }
        r = check_join(run, digest);
        if (r < 0)
                on_read(run, digest, r, strerror(-r));
}

/* --- which, and when --------------------------------------------------------------------------------------------- */

/* The runner's is one of them. */
static int list_layers(const Run *run, char ***ret) {
        int r;

        r = run->generation ? generation_layers(run->generation, ret) : strv_copy((char *[]) { NULL }, ret);
        return r < 0 || !run->runner ? r : strv_extend(ret, run->runner->digest);
}

static bool is_asked_for(const Run *run) {
        return run->row->verify || run->manager->settings->verify_layers;
}

void run_compose(Run *run) {
        _cleanup_strv_free_ char **layers = NULL;
        const char *how = "fs-verity";
        int r;

        run->phase = RUN_PHASE_SANDBOX;
        run->to_verify = strv_free(run->to_verify);
        run->n_verified = 0;
        r = list_layers(run, &layers);
        for (char **l = layers; r >= 0 && l && *l; l++) {
                int k = layer_store_check_seal(run->manager->layers, *l);

                if (k == -EBADMSG || (k == -ENOENT && is_asked_for(run))) {
                        end_damaged(run, *l, k);
                        return;
                }
                if (k == LAYER_SEALED)
                        continue;
                how = is_asked_for(run) ? "digest" : NULL;
                if ((is_asked_for(run) || k == LAYER_SEAL_LOST) && !strv_contains(run->right_layers, *l))
                        r = strv_extend(&run->to_verify, *l);
        }
        if (r >= 0)
                r = free_and_strdup(&run->row->verified, how);
        if (r < 0)
                run_fail(run, "verify", r, NULL);
        else
                verify_next(run);
}

bool run_verify_end(Run *run) {
        int r;

        if (!is_asked_for(run) || run->end.result < 0 || run->end.result == RUN_RESULT_SUCCESS ||
            run->end.result == RUN_RESULT_CANCELED)
                return false;
        if (!run->generation && run->row->generation) { /* taken over from an earlier agentd */
                _cleanup_(store_generation_freep) StoreGeneration *g = NULL;

                r = store_generation_get(run->manager->store, run->row->user, run->row->agent, run->row->generation,
                                         &g);
                if (r < 0 || environment_manifest(g, &run->generation) < 0)
                        return false;
        }
        run->to_verify = strv_free(run->to_verify);
        run->n_verified = 0;
        r = list_layers(run, &run->to_verify);
        if (r < 0 || !run->to_verify || !run->to_verify[0])
                return false;
        verify_next(run);
        return true;
}
