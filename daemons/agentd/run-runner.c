/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Which runner a run gets, and what a successful run changes for the next one.
 *
 * The candidates are those of the moment at which the run was claimed: canary, current, previous ones. The first whose
 * verdict for the sandbox's node is good, or not known yet, is staged; what is not known is found out before anything
 * of the run is started. Nothing is patched: another candidate means another, fresh sandbox.
 */
#include "basic/string-util.h"
#include "environment.h"
#include "run.h"

#define COMPOSED_MAX (RUNNER_CANDIDATES_MAX + 1)

int run_runner_load(Run *run, char **ret_reason) {
        const char *before = run->generation->runner;
        int r;

        r = runner_set_candidates(&run->manager->runners, run->row->user, run->row->agent, run->row->id,
                                  run->candidates);
        if (r < 0)
                return r;
        if (r == 0) {
                *ret_reason = strdup("No runner is deployed, see agentctl runner deploy");
                return -ENOENT;
        }
        return free_and_strdup(&run->row->runner_before, before);
}

void run_runner_done(Run *run) {
        runner_check_leave(run);
        for (size_t i = 0; i < ELEMENTSOF(run->candidates); i++)
                run->candidates[i] = runner_unref(run->candidates[i]);
        run->runner = NULL;
}

/* 1: its verdict is good; 0: not known; -ENOEXEC: it is bad, *ret_reason says why. run->node is set where known. */
static int judge_candidate(Run *run, const Runner *c, char **ret_reason) {
        _cleanup_(store_verdict_freep) StoreVerdict *v = NULL;
        Store *s = run->manager->store;
        int r;

        run->node[0] = 0;
        r = store_node_get(s, run->environment, strempty(c->node_digest), run->node);
        if (r < 0)
                return r == -ENOENT ? 0 : r;
        r = store_verdict_get(s, c->digest, run->node, &v);
        if (r < 0)
                return r == -ENOENT ? 0 : r;
        if (v->ok)
                return 1;
        *ret_reason = strdup(strempty(v->reason));
        return -ENOEXEC;
}

/* Sets run->runner. 1: its verdict is good, 0: to be found out. */
int run_runner_select(Run *run, char **ret_reason) {
        _cleanup_free_ char *first = NULL;

        for (size_t i = 0; run->candidates[i]; i++) {
                _cleanup_free_ char *reason = NULL;
                int r;

                r = judge_candidate(run, run->candidates[i], &reason);
                if (r == -ENOEXEC) {
                        if (!first)
                                first = TAKE_PTR(reason);
                        continue;
                }
                if (r < 0)
                        return r;
                run->runner = run->candidates[i];
                run->swapped = !streq_ptr(run->runner->digest, run->row->runner_before);
                return r;
        }
        *ret_reason = strprintf("no runner suits the environment's node: %s", strempty(first));
        return -ENOEXEC;
}

static void on_node(int error, const char *message, void *userdata) {
        Run *run = userdata;
        int r = error;

        run->worker_slot = worker_slot_unref(run->worker_slot);
        if (r == -ENOENT || r == -ENOEXEC) {
                /* A fresh sandbox would have the same environment. */
                _cleanup_free_ char *text = strprintf(
                        "The sandbox could not be made (step validate): the environment has no "
                        "program %s, which the runner needs.",
                        run->runner->node ?: RUNNER_IMAGE_NODE);

                run_end(run, RUN_RESULT_SANDBOX_FAILED, strempty(text));
                return;
        }
        if (r >= 0)
                r = store_node_put(run->manager->store, run->environment, strempty(run->runner->node_digest), message);
        if (r < 0)
                run_fail(run, "validate", r, error < 0 ? message : NULL);
        else
                run_runner_settle(run);
}

void run_runner_settle(Run *run) {
        _cleanup_free_ char *reason = NULL;
        const Runner *staged = run->runner;
        int r;

        run->phase = RUN_PHASE_RUNNER;
        r = run_runner_select(run, &reason);
        if (r == -ENOEXEC) {
                _cleanup_free_ char *text = strprintf("The sandbox could not be made (step validate): %s.",
                                                      strempty(reason));

                run_end(run, RUN_RESULT_SANDBOX_FAILED, strempty(text));
                return;
        }
        if (r < 0) {
                run_fail(run, "validate", r, reason);
                return;
        }
        if (run->runner != staged) {
                if (run->composed >= COMPOSED_MAX)
                        run_fail(run, "validate", -ELOOP, NULL);
                else
                        run_compose_again(run);
                return;
        }
        if (r > 0) {
                run->t_checked = now_monotonic();
                if (free_and_strdup(&run->row->verdict, run->checked ? "checked" : "cached") < 0)
                        log_oom();
                run_go_on(run);
                return;
        }
        if (run->node[0])
                r = runner_check_join(run);
        else
                r = worker_node(run->manager->worker, run->row->id, run->runner->node ? run->runner->digest : NULL,
                                run->runner->node, run->environment, on_node, run, &run->worker_slot);
        if (r < 0)
                run_fail(run, "validate", r, NULL);
}

/* --- fold -------------------------------------------------------------------------------------------------------- */

static bool is_passing_canary(Run *run) {
        const RunnerSet *set = &run->manager->runners;

        for (size_t i = 0; i < set->n; i++)
                if (streq(set->runners[i]->digest, run->row->runner))
                        return set->runners[i]->state == RUNNER_CANARY && !set->runners[i]->agents;
        return false;
}

/*
 * After a successful run that swapped: a generation with the same layers and the new runner, so that the next run
 * skips the swap. Of several runs that fold at once the first one moves the head, the others find it moved. A canary
 * that goes by share is not folded: the next run most probably has the other one again. *ret_generation stays NULL
 * where there is nothing to do.
 *
 * A warm compile cache does not go with it, because it does not pay for a runner of our size: with node 22 and 24 a
 * filled NODE_COMPILE_CACHE makes its CPU time 0.97 to 0.98 of what it is without, and its request for the task no
 * earlier; node 20 has no such cache.
 */
int run_fold(Run *run, char **ret_generation) {
        _cleanup_(store_generation_freep) StoreGeneration *base = NULL;
        _cleanup_(generation_freep) Generation *parent = NULL, *g = NULL;
        _cleanup_(store_agent_freep) StoreAgent *agent = NULL;
        _cleanup_free_ char *manifest = NULL;
        char digest[DIGEST_LEN + 1];
        const StoreRun *row = run->row;
        Manager *m = run->manager;
        int r;

        if (!row->runner || !row->generation || streq_ptr(row->runner, row->runner_before) || is_passing_canary(run))
                return 0;
        r = store_agent_get(m->store, row->user, row->agent, &agent);
        if (r < 0)
                return r == -ENOENT ? 0 : r;
        if (!streq_ptr(agent->head, row->generation))
                return 0; /* folded by another run, or changed by its owner: the next run sees to it */
        r = store_generation_get(m->store, row->user, row->agent, row->generation, &base);
        if (r >= 0 && !base->manifest)
                r = -ENODATA;
        if (r >= 0)
                r = generation_decode(base->manifest, strlen(base->manifest), &parent, NULL);
        if (r >= 0)
                r = generation_derive(parent, base->digest, NULL, row->runner, &g);
        if (r >= 0)
                r = generation_encode(g, &manifest, digest);
        if (r >= 0)
                r = generation_save(m->layers, g, digest);
        if (r >= 0)
                r = store_head_swap(m->store, row->user, row->agent, agent->head_rev,
                                    &(StoreGeneration) { .digest = digest,
                                                         .parent = base->digest,
                                                         .author = (char *) "agentd",
                                                         .note = (char *) ENVIRONMENT_FOLD_NOTE,
                                                         .manifest = manifest },
                                    NULL);
        if (r == -ESTALE)
                return 0;
        if (r < 0) {
                (void) environment_drop_documents(m);
                return r;
        }
        r = environment_forget_folds(m, row->user, row->agent);
        if (r < 0)
                log_warning_errno(r, "Agent %s/%s: generations of old runners cannot be forgotten: %m", row->user,
                                  row->agent);
        *ret_generation = strdup(digest);
        return *ret_generation ? 0 : -ENOMEM;
}
