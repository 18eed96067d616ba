/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * What a back end of the store provides: the verbs of store.h without their argument checks and events, which store.c
 * adds once for all back ends. A verb is one transaction; see store.h for what each promises.
 */

#include "store.h"

typedef struct StoreOps {
        Store *(*free)(Store *s);
        const char *(*error)(Store *s);

        int (*run_enqueue)(Store *s, const StoreRunRequest *request, const char *id, const char *input_digest,
                           const StoreQueueLimits *limits, char ret_id[static RUN_ID_LEN + 1]);
        int (*run_claim)(Store *s, const StoreLiveLimits *limits, StoreRun **ret_run);
        int (*queue_next)(Store *s, uint64_t *ret_usec);
        int (*run_extend)(Store *s, const char *id, uint64_t fence, uint64_t lease_usec);
        int (*run_set_prepared)(Store *s, const char *id, uint64_t fence, const StoreRunPlan *plan);
        int (*run_set_running)(Store *s, const char *id, uint64_t fence, const char *invocation_id,
                               uint64_t started_usec, uint64_t deadline_usec, const char *steps);
        int (*run_requeue)(Store *s, const char *id, uint64_t fence, const char *message, uint64_t not_before_usec);
        int (*run_cancel_request)(Store *s, const char *id, const char *by, RunState *ret_state);
        int (*run_post_result)(Store *s, const char *id, unsigned attempt, const char *json);
        int (*run_finish)(Store *s, const char *id, uint64_t fence, const StoreRunEnd *end);
        int (*run_get)(Store *s, const char *id, StoreRun **ret);
        int (*run_get_input)(Store *s, const char *id, char **ret, size_t *ret_size);
        int (*run_get_posted)(Store *s, const char *id, char **ret);
        int (*run_get_receipt)(Store *s, const char *id, char **ret);
        int (*run_list)(Store *s, const StoreRunFilter *filter, StoreRunCallback callback, void *userdata);
        int (*runs_unfinished)(Store *s, StoreRunCallback callback, void *userdata);
        int (*runs_expired)(Store *s, uint64_t now_usec, StoreRunCallback callback, void *userdata);
        int (*counts)(Store *s, const char *user, const char *agent, StoreCounts *ret);

        int (*calls_add)(Store *s, StoreCall *calls, size_t n); /* those whose result is 0 */
        int (*calls)(Store *s, const char *id, StoreCallCallback callback, void *userdata);
        int (*artifact_begin)(Store *s, const char *id, unsigned attempt, const char *name,
                              const StoreArtifactLimits *limits);
        int (*artifact_commit)(Store *s, const char *id, unsigned attempt, const char *name, uint64_t size,
                               const char *content_type);
        int (*artifacts)(Store *s, const char *id, StoreArtifactCallback callback, void *userdata);
        int (*usage_add)(Store *s, const char *id, unsigned attempt, const char *key, uint64_t amount,
                         const char *description, uint64_t max);
        int (*usages)(Store *s, const char *id, StoreUsageCallback callback, void *userdata);
        int (*session_get)(Store *s, const char *user, const char *agent, const char *session, StoreSession **ret);
        int (*session_put)(Store *s, const char *user, const char *agent, const char *session,
                           const StoreSession *state, uint64_t expected_rev, uint64_t max_bytes, uint64_t *ret_rev);
        int (*runs_oldest)(Store *s, const StoreOldest *which, StoreRunCallback callback, void *userdata);
        int (*run_newest)(Store *s, const char *user, const char *agent, uint64_t n, uint64_t *ret_seq);
        int (*runs_remove)(Store *s, char *const *ids);
        int (*users)(Store *s, StoreUserCallback callback, void *userdata);

        int (*owned)(Store *s, const char *user, StoreOwned *ret);

        int (*agent_add)(Store *s, const StoreAgent *agent, const StoreGeneration *first);
        int (*agent_update)(Store *s, const char *user, const char *name, const char *definition,
                            uint64_t concurrency);
        int (*agent_remove)(Store *s, const char *user, const char *name);
        int (*agent_get)(Store *s, const char *user, const char *name, StoreAgent **ret);
        int (*agent_list)(Store *s, const char *user, StoreAgentCallback callback, void *userdata);
        int (*head_swap)(Store *s, const char *user, const char *name, uint64_t expected_rev,
                         const StoreGeneration *to, uint64_t *ret_rev);
        int (*generation_get)(Store *s, const char *user, const char *name, const char *digest, StoreGeneration **ret);
        int (*generation_list)(Store *s, const char *user, const char *name, StoreGenerationCallback callback,
                               void *userdata);
        int (*generation_walk)(Store *s, const char *user, const char *name, StoreGenerationWalk callback,
                               void *userdata);
        int (*generations_import)(Store *s, const StoreAgent *agent, const StoreGeneration *generations, size_t n,
                                  bool *ret_made);
        int (*generation_remove)(Store *s, const char *user, const char *name, char *const *digests);

        int (*image_add)(Store *s, const StoreImage *image);
        int (*image_find)(Store *s, const char *user, const char *name, StoreImage **ret);
        int (*image_remove)(Store *s, const char *user, const char *name);
        int (*image_list)(Store *s, const char *user, StoreImageCallback callback, void *userdata);

        int (*runner_deploy)(Store *s, const StoreRunner *runner);
        int (*runner_rollback)(Store *s, const char *digest, char **ret_digest);
        int (*runner_promote)(Store *s, char **ret_digest);
        int (*runner_withdraw)(Store *s, char **ret_digest);
        int (*runner_remove)(Store *s, const char *digest);
        int (*runner_list)(Store *s, StoreRunnerCallback callback, void *userdata);
        int (*verdict_add)(Store *s, const char *runner, const char *node, bool ok, const char *reason);
        int (*verdict_get)(Store *s, const char *runner, const char *node, StoreVerdict **ret);
        int (*verdict_list)(Store *s, const char *runner, StoreVerdictCallback callback, void *userdata);
        int (*node_put)(Store *s, const char *environment, const char *own, const char *node);
        int (*node_get)(Store *s, const char *environment, const char *own, char ret[static DIGEST_LEN + 1]);

        int (*service_add)(Store *s, const char *user, const char *name, const char *definition);
        int (*service_update)(Store *s, const char *user, const char *name, const char *definition);
        int (*service_remove)(Store *s, const char *user, const char *name);
        int (*service_get)(Store *s, const char *user, const char *name, StoreService **ret);
        int (*service_list)(Store *s, const char *user, StoreServiceCallback callback, void *userdata);

        int (*blob_put)(Store *s, const char *digest, const void *data, size_t size);
        int (*blob_get)(Store *s, const char *digest, char **ret, size_t *ret_size);
} StoreOps;

#define STORE_SUBSCRIBERS_MAX 8U

/* The first member of each back end's own structure. */
struct Store {
        const StoreOps *ops;
        struct {
                StoreEventHook hook;
                void *userdata;
        } subscribers[STORE_SUBSCRIBERS_MAX];
        unsigned n_subscribers;
};

/* Frees what a row owns, but not the structure itself. */
void store_run_done(StoreRun *run);
void store_agent_done(StoreAgent *a);
void store_generation_done(StoreGeneration *g);
void store_image_done(StoreImage *i);
void store_service_done(StoreService *v);
void store_runner_done(StoreRunner *r);
void store_verdict_done(StoreVerdict *v);
