/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The part of the store that all back ends share: argument checks, and events after the commit. What arrives at a back
 * end has passed here, so that no back end needs checks of its own.
 */
#include <sys/mman.h>

#include "basic/fs-util.h"
#include "basic/string-util.h"

#include "store-backend.h"

/* ---- the store itself and its events ---- */

Store *store_free(Store *s) {
        return s ? s->ops->free(s) : NULL;
}

const char *store_error(Store *s) {
        return s->ops->error(s);
}

int store_subscribe(Store *s, StoreEventHook hook, void *userdata) {
        if (s->n_subscribers >= STORE_SUBSCRIBERS_MAX)
                return -E2BIG;
        s->subscribers[s->n_subscribers].hook = hook;
        s->subscribers[s->n_subscribers++].userdata = userdata;
        return 0;
}

void store_unsubscribe(Store *s, StoreEventHook hook, void *userdata) {
        for (unsigned i = 0; i < s->n_subscribers; i++)
                if (s->subscribers[i].hook == hook && s->subscribers[i].userdata == userdata) {
                        s->n_subscribers--;
                        memmove(s->subscribers + i, s->subscribers + i + 1,
                                (s->n_subscribers - i) * sizeof(s->subscribers[0]));
                        return;
                }
}

static void publish(Store *s, const StoreEvent *event) {
        for (unsigned i = 0; i < s->n_subscribers; i++)
                s->subscribers[i].hook(event, s->subscribers[i].userdata);
}

/* R is the verb's result: nothing is told where nothing was done. */
static int run_changed(Store *s, int r, StoreEventType type, const char *id) {
        if (r >= 0)
                publish(s, &(StoreEvent) { .type = type, .run = id });
        return r;
}

static int agent_changed(Store *s, int r, StoreEventType type, const char *user, const char *name) {
        if (r >= 0)
                publish(s, &(StoreEvent) { .type = type, .user = user, .name = name });
        return r;
}

static bool id_is_invalid(const char *id) {
        return !run_id_is_valid(id);
}

/* ---- runs ---- */

int store_run_enqueue(Store *s, const StoreRunRequest *request, const StoreQueueLimits *limits,
                      char ret_id[static RUN_ID_LEN + 1]) {
        char id[RUN_ID_LEN + 1], digest[DIGEST_LEN + 1], found[RUN_ID_LEN + 1];
        int r;

        if (isempty(request->user) || isempty(request->agent) || isempty(request->trigger) || !request->input)
                return -EINVAL;
        if (request->input_size > STORE_INPUT_MAX)
                return -E2BIG;
        if (request->parent && id_is_invalid(request->parent))
                return -EINVAL;
        if (request->id) {
                if (id_is_invalid(request->id))
                        return -EINVAL;
                memcpy(id, request->id, sizeof id);
        } else {
                r = run_id_new(id);
                if (r < 0)
                        return r;
        }
        r = digest_bytes(request->input, request->input_size, digest);
        if (r < 0)
                return r;
        r = s->ops->run_enqueue(s, request, id, digest, limits, found);
        if (r < 0)
                return r;
        memcpy(ret_id, found, sizeof found);
        return r > 0 ? run_changed(s, r, STORE_EVENT_RUN_QUEUED, ret_id) : 0;
}

int store_run_claim(Store *s, const StoreLiveLimits *limits, StoreRun **ret_run) {
        int r = s->ops->run_claim(s, limits, ret_run);

        return r > 0 ? run_changed(s, r, STORE_EVENT_RUN_CHANGED, (*ret_run)->id) : r;
}

int store_queue_next(Store *s, uint64_t *ret_usec) {
        return s->ops->queue_next(s, ret_usec);
}

int store_run_extend(Store *s, const char *id, uint64_t fence, uint64_t lease_usec) {
        if (id_is_invalid(id))
                return -ENOENT;
        return s->ops->run_extend(s, id, fence, lease_usec);
}

int store_run_set_prepared(Store *s, const char *id, uint64_t fence, const StoreRunPlan *plan) {
        if (id_is_invalid(id))
                return -ENOENT;
        return run_changed(s, s->ops->run_set_prepared(s, id, fence, plan), STORE_EVENT_RUN_CHANGED, id);
}

int store_run_set_running(Store *s, const char *id, uint64_t fence, const char *invocation_id, uint64_t started_usec,
                          uint64_t deadline_usec, const char *steps) {
        if (id_is_invalid(id))
                return -ENOENT;
        return run_changed(s,
                           s->ops->run_set_running(s, id, fence, invocation_id, started_usec, deadline_usec, steps),
                           STORE_EVENT_RUN_CHANGED, id);
}

int store_run_requeue(Store *s, const char *id, uint64_t fence, const char *message, uint64_t not_before_usec) {
        if (id_is_invalid(id))
                return -ENOENT;
        return run_changed(s, s->ops->run_requeue(s, id, fence, message, not_before_usec), STORE_EVENT_RUN_QUEUED, id);
}

int store_run_cancel_request(Store *s, const char *id, const char *by, RunState *ret_state) {
        int r;

        if (id_is_invalid(id))
                return -ENOENT;
        if (isempty(by))
                return -EINVAL;
        r = s->ops->run_cancel_request(s, id, by, ret_state);
        return r > 0 ? run_changed(s, r, STORE_EVENT_RUN_CHANGED, id) : r;
}

int store_run_post_result(Store *s, const char *id, unsigned attempt, const char *json) {
        int r;

        if (id_is_invalid(id))
                return -ENOENT;
        if (strlen(json) > STORE_RESULT_MAX)
                return -E2BIG;
        r = s->ops->run_post_result(s, id, attempt, json);
        return r > 0 ? run_changed(s, r, STORE_EVENT_RUN_CHANGED, id) : r;
}

int store_run_finish(Store *s, const char *id, uint64_t fence, const StoreRunEnd *end) {
        if (id_is_invalid(id))
                return -ENOENT;
        if (!run_result_to_string(end->result))
                return -EINVAL;
        return run_changed(s, s->ops->run_finish(s, id, fence, end), STORE_EVENT_RUN_FINISHED, id);
}

int store_run_get(Store *s, const char *id, StoreRun **ret) {
        return id_is_invalid(id) ? -ENOENT : s->ops->run_get(s, id, ret);
}

int store_run_get_input(Store *s, const char *id, char **ret, size_t *ret_size) {
        return id_is_invalid(id) ? -ENOENT : s->ops->run_get_input(s, id, ret, ret_size);
}

int store_run_get_posted(Store *s, const char *id, char **ret) {
        return id_is_invalid(id) ? -ENOENT : s->ops->run_get_posted(s, id, ret);
}

int store_run_get_receipt(Store *s, const char *id, char **ret) {
        return id_is_invalid(id) ? -ENOENT : s->ops->run_get_receipt(s, id, ret);
}

int store_run_list(Store *s, const StoreRunFilter *filter, StoreRunCallback callback, void *userdata) {
        StoreRunFilter f = *filter;

        if (f.agent && !f.user)
                return -EINVAL;
        if (f.state != _RUN_STATE_INVALID && !run_state_to_string(f.state))
                return -EINVAL;
        if (f.result != _RUN_RESULT_INVALID && !run_result_to_string(f.result))
                return -EINVAL;
        if (f.before && id_is_invalid(f.before))
                return -ENOENT;
        f.limit = f.limit == 0 ? 100 : MIN(f.limit, STORE_LIST_MAX);
        return s->ops->run_list(s, &f, callback, userdata);
}

int store_runs_unfinished(Store *s, StoreRunCallback callback, void *userdata) {
        return s->ops->runs_unfinished(s, callback, userdata);
}

int store_runs_expired(Store *s, uint64_t now_usec, StoreRunCallback callback, void *userdata) {
        return s->ops->runs_expired(s, now_usec, callback, userdata);
}

int store_counts(Store *s, const char *user, const char *agent, StoreCounts *ret) {
        return agent && !user ? -EINVAL : s->ops->counts(s, user, agent, ret);
}

int store_calls_add(Store *s, StoreCall *calls, size_t n) {
        size_t good = 0;

        for (size_t i = 0; i < n; i++) {
                StoreCall *c = calls + i;

                c->result = id_is_invalid(c->id) ? -ENOENT : !token_name_is_valid(c->call_id) ? -EINVAL :
                            strlen(c->json) > STORE_CALL_SIZE_MAX ? -E2BIG : 0;
                good += c->result == 0;
        }
        return good == 0 ? 0 : s->ops->calls_add(s, calls, n);
}

int store_call_add(Store *s, const char *id, unsigned attempt, const char *call_id, const char *json) {
        StoreCall call = { .id = id, .attempt = attempt, .call_id = call_id, .json = json };
        int r = store_calls_add(s, &call, 1);

        return r < 0 ? r : call.result;
}

int store_calls(Store *s, const char *id, StoreCallCallback callback, void *userdata) {
        return id_is_invalid(id) ? -ENOENT : s->ops->calls(s, id, callback, userdata);
}

int store_artifact_begin(Store *s, const char *id, unsigned attempt, const char *name,
                         const StoreArtifactLimits *limits) {
        if (id_is_invalid(id))
                return -ENOENT;
        if (!artifact_name_is_valid(name) || limits->bytes > INT64_MAX / 2)
                return -EINVAL;
        return s->ops->artifact_begin(s, id, attempt, name, limits);
}

int store_artifact_commit(Store *s, const char *id, unsigned attempt, const char *name, uint64_t size,
                          const char *content_type) {
        if (id_is_invalid(id))
                return -ENOENT;
        if (!artifact_name_is_valid(name))
                return -EINVAL;
        return s->ops->artifact_commit(s, id, attempt, name, size, strempty(content_type));
}

int store_artifacts(Store *s, const char *id, StoreArtifactCallback callback, void *userdata) {
        return id_is_invalid(id) ? -ENOENT : s->ops->artifacts(s, id, callback, userdata);
}

int store_usage_add(Store *s, const char *id, unsigned attempt, const char *key, uint64_t amount,
                    const char *description, uint64_t max) {
        if (id_is_invalid(id))
                return -ENOENT;
        if (!token_name_is_valid(key) || amount == 0 || amount > INT64_MAX)
                return -EINVAL;
        return s->ops->usage_add(s, id, attempt, key, amount, strempty(description), MIN(max, (uint64_t) INT64_MAX));
}

int store_usages(Store *s, const char *id, StoreUsageCallback callback, void *userdata) {
        return id_is_invalid(id) ? -ENOENT : s->ops->usages(s, id, callback, userdata);
}

int store_session_get(Store *s, const char *user, const char *agent, const char *session, StoreSession **ret) {
        return token_name_is_valid(session) ? s->ops->session_get(s, user, agent, session, ret) : -ENOENT;
}

int store_session_put(Store *s, const char *user, const char *agent, const char *session, const StoreSession *state,
                      uint64_t expected_rev, uint64_t max_bytes, uint64_t *ret_rev) {
        if (!token_name_is_valid(session))
                return -EINVAL;
        if (state->size > STORE_SESSION_SIZE_MAX)
                return -E2BIG;
        return s->ops->session_put(s, user, agent, session, state, expected_rev, max_bytes, ret_rev);
}

/* ---- what is kept of finished runs ---- */

int store_runs_oldest(Store *s, const StoreOldest *which, StoreRunCallback callback, void *userdata) {
        StoreOldest w = *which;

        if (w.agent && !w.user)
                return -EINVAL;
        w.limit = w.limit == 0 ? 100 : MIN(w.limit, STORE_LIST_MAX);
        return s->ops->runs_oldest(s, &w, callback, userdata);
}

int store_run_newest(Store *s, const char *user, const char *agent, uint64_t n, uint64_t *ret_seq) {
        if (agent && !user)
                return -EINVAL;
        return n == 0 || n > STORE_NEWEST_MAX ? -E2BIG : s->ops->run_newest(s, user, agent, n, ret_seq);
}

int store_runs_remove(Store *s, char *const *ids) {
        size_t n = strv_length((char **) ids);
        int r;

        if (n > STORE_REMOVE_MAX)
                return -E2BIG;
        for (size_t i = 0; i < n; i++)
                if (id_is_invalid(ids[i]))
                        return -EINVAL;
        r = s->ops->runs_remove(s, ids);
        for (size_t i = 0; r > 0 && i < n; i++)
                publish(s, &(StoreEvent) { .type = STORE_EVENT_RUN_REMOVED, .run = ids[i] });
        return r;
}

int store_users(Store *s, StoreUserCallback callback, void *userdata) {
        return s->ops->users(s, callback, userdata);
}

/* ---- agents and their generations ---- */

int store_agent_add(Store *s, const StoreAgent *agent, const StoreGeneration *first) {
        if (isempty(agent->user) || isempty(agent->name) || !agent->definition || agent->concurrency == 0)
                return -EINVAL;
        if (!digest_is_valid(first->digest) || !first->manifest)
                return -EINVAL;
        return agent_changed(s, s->ops->agent_add(s, agent, first), STORE_EVENT_AGENT_NEW, agent->user, agent->name);
}

int store_agent_update(Store *s, const char *user, const char *name, const char *definition, uint64_t concurrency) {
        if (!definition || concurrency == 0)
                return -EINVAL;
        return agent_changed(s, s->ops->agent_update(s, user, name, definition, concurrency),
                             STORE_EVENT_AGENT_CHANGED, user, name);
}

int store_agent_remove(Store *s, const char *user, const char *name) {
        return agent_changed(s, s->ops->agent_remove(s, user, name), STORE_EVENT_AGENT_REMOVED, user, name);
}

int store_agent_get(Store *s, const char *user, const char *name, StoreAgent **ret) {
        return s->ops->agent_get(s, user, name, ret);
}

int store_owned(Store *s, const char *user, StoreOwned *ret) {
        return s->ops->owned(s, user, ret);
}

int store_agent_list(Store *s, const char *user, StoreAgentCallback callback, void *userdata) {
        return s->ops->agent_list(s, user, callback, userdata);
}

int store_head_swap(Store *s, const char *user, const char *name, uint64_t expected_rev, const StoreGeneration *to,
                    uint64_t *ret_rev) {
        if (!digest_is_valid(to->digest))
                return -EINVAL;
        return agent_changed(s, s->ops->head_swap(s, user, name, expected_rev, to, ret_rev),
                             STORE_EVENT_AGENT_CHANGED, user, name);
}

int store_generation_get(Store *s, const char *user, const char *name, const char *digest, StoreGeneration **ret) {
        return s->ops->generation_get(s, user, name, digest, ret);
}

int store_generation_list(Store *s, const char *user, const char *name, StoreGenerationCallback callback,
                          void *userdata) {
        return s->ops->generation_list(s, user, name, callback, userdata);
}

int store_generation_walk(Store *s, const char *user, const char *name, StoreGenerationWalk callback, void *userdata) {
        return name && !user ? -EINVAL : s->ops->generation_walk(s, user, name, callback, userdata);
}

int store_generations_import(Store *s, const StoreAgent *agent, const StoreGeneration *generations, size_t n,
                             bool *ret_made) {
        bool made = false;
        int r;

        if (n == 0)
                return -EINVAL;
        for (size_t i = 0; i < n; i++)
                if (!digest_is_valid(generations[i].digest) || !generations[i].manifest)
                        return -EINVAL;
        r = s->ops->generations_import(s, agent, generations, n, &made);
        if (r >= 0)
                *ret_made = made;
        return agent_changed(s, r, made ? STORE_EVENT_AGENT_NEW : STORE_EVENT_AGENT_CHANGED, agent->user, agent->name);
}

int store_generation_remove(Store *s, const char *user, const char *name, char *const *digests) {
        return s->ops->generation_remove(s, user, name, digests);
}

/* ---- images, services, blobs ---- */

int store_image_add(Store *s, const StoreImage *image) {
        if (isempty(image->user) || isempty(image->name) || !digest_is_valid(image->digest))
                return -EINVAL;
        return s->ops->image_add(s, image);
}

int store_image_find(Store *s, const char *user, const char *name, StoreImage **ret) {
        return s->ops->image_find(s, user, name, ret);
}

int store_image_remove(Store *s, const char *user, const char *name) {
        return s->ops->image_remove(s, user, name);
}

int store_image_list(Store *s, const char *user, StoreImageCallback callback, void *userdata) {
        return s->ops->image_list(s, user, callback, userdata);
}

int store_runner_deploy(Store *s, const StoreRunner *runner) {
        if (!digest_is_valid(runner->digest) || isempty(runner->name) || !runner->version || !runner->manifest ||
            isempty(runner->author) || runner->state < 0 || runner->state >= _RUNNER_STATE_MAX || runner->percent > 100)
                return -EINVAL;
        return s->ops->runner_deploy(s, runner);
}

int store_runner_rollback(Store *s, const char *digest, char **ret_digest) {
        return s->ops->runner_rollback(s, digest, ret_digest);
}

int store_runner_promote(Store *s, char **ret_digest) {
        return s->ops->runner_promote(s, ret_digest);
}

int store_runner_withdraw(Store *s, char **ret_digest) {
        return s->ops->runner_withdraw(s, ret_digest);
}

int store_runner_remove(Store *s, const char *digest) {
        return s->ops->runner_remove(s, digest);
}

int store_runner_list(Store *s, StoreRunnerCallback callback, void *userdata) {
        return s->ops->runner_list(s, callback, userdata);
}

int store_verdict_add(Store *s, const char *runner, const char *node, bool ok, const char *reason) {
        return !digest_is_valid(node) || (!ok && isempty(reason)) ? -EINVAL :
                                                                   s->ops->verdict_add(s, runner, node, ok, reason);
}

int store_verdict_get(Store *s, const char *runner, const char *node, StoreVerdict **ret) {
        return s->ops->verdict_get(s, runner, node, ret);
}

int store_verdict_list(Store *s, const char *runner, StoreVerdictCallback callback, void *userdata) {
        return s->ops->verdict_list(s, runner, callback, userdata);
}

int store_node_put(Store *s, const char *environment, const char *own, const char *node) {
        return !digest_is_valid(environment) || !digest_is_valid(node) ? -EINVAL :
                                                                        s->ops->node_put(s, environment, own, node);
}

int store_node_get(Store *s, const char *environment, const char *own, char ret[static DIGEST_LEN + 1]) {
        return s->ops->node_get(s, environment, own, ret);
}

int store_service_add(Store *s, const char *user, const char *name, const char *definition) {
        return isempty(user) || isempty(name) || !definition ? -EINVAL : s->ops->service_add(s, user, name, definition);
}

int store_service_update(Store *s, const char *user, const char *name, const char *definition) {
        return !definition ? -EINVAL : s->ops->service_update(s, user, name, definition);
}

int store_service_remove(Store *s, const char *user, const char *name) {
        return s->ops->service_remove(s, user, name);
}

int store_service_get(Store *s, const char *user, const char *name, StoreService **ret) {
        return s->ops->service_get(s, user, name, ret);
}

int store_service_list(Store *s, const char *user, StoreServiceCallback callback, void *userdata) {
        return s->ops->service_list(s, user, callback, userdata);
}

int store_blob_put(Store *s, const void *data, size_t size, char ret_digest[static DIGEST_LEN + 1]) {
        char digest[DIGEST_LEN + 1];
        int r;

        if (size > STORE_BLOB_MAX)
                return -E2BIG;
        r = digest_bytes(data, size, digest);
        if (r < 0)
                return r;
        r = s->ops->blob_put(s, digest, data, size);
        if (r < 0)
                return r;
        memcpy(ret_digest, digest, sizeof digest);
        return 0;
}

int store_blob_get(Store *s, const char *digest, char **ret, size_t *ret_size) {
        char found[DIGEST_LEN + 1];
        _cleanup_free_ char *data = NULL;
        size_t size;
        int r;

        if (!digest_is_valid(digest))
                return -ENOENT;
        r = s->ops->blob_get(s, digest, &data, &size);
        if (r < 0)
                return r;
        r = digest_bytes(data, size, found);
        if (r < 0)
                return r;
        if (!streq(found, digest))
                return -EUCLEAN;
        *ret = TAKE_PTR(data);
        if (ret_size)
                *ret_size = size;
        return 0;
}

int store_blob_open(Store *s, const char *digest) {
        _cleanup_close_ int fd = -EBADF;
        _cleanup_free_ char *data = NULL;
        size_t size;
        int r;

        r = store_blob_get(s, digest, &data, &size);
        if (r < 0)
                return r;
        fd = memfd_create("agentd-blob", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        if (fd < 0)
                return -errno;
        r = write_full(fd, data, size);
        if (r < 0)
                return r;
        if (lseek(fd, 0, SEEK_SET) < 0 ||
            fcntl(fd, F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE) < 0)
                return -errno;
        return TAKE_FD(fd);
}
