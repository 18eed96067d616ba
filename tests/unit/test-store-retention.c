/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The contract of what is kept of finished runs: what is counted for a user, the bounds on it, and how it ends. */
#include "store-contract.h"

typedef struct Use {
        const char *name;
        StoreUser user;
} Use;

static int find_user(const StoreUser *u, void *userdata) {
        Use *use = userdata;

        if (streq(u->name, use->name))
                use->user = *u;
        return 0;
}

static StoreUser use_of(Store *s, const char *name) {
        Use use = { .name = name };

        assert(store_users(s, find_user, &use) >= 1);
        return use.user;
}

/* Runs one to its end, with N calls. */
static void run_once(Store *s, const char *user, const char *agent, unsigned n, char ret_id[static RUN_ID_LEN + 1]) {
        StoreRun *run;

        assert(enqueue(s, user, agent, 0, ret_id) == 1);
        run = claim(s, &no_caps);
        assert(run && streq(run->id, ret_id) && run->size == 0);
        for (unsigned i = 0; i < n; i++) {
                char call[16];

                snprintf(call, sizeof call, "c%u", i);
                assert(store_call_add(s, ret_id, 1, call, "{\"call\":1}") == 1);
        }
        assert(store_run_post_result(s, ret_id, 1, "{\"status\":\"success\"}") == 1);
        assert(store_run_finish(s, ret_id, run->fence, &success) == 0);
        store_run_free(run);
}

static int collect(const StoreRun *run, void *userdata) {
        return strv_extend(userdata, run->id);
}

static int note_seq(const StoreRun *run, void *userdata) {
        *(uint64_t *) userdata = run->seq;
        return 0;
}

/* What was in the run's rows, and what it takes, goes into its size; the user's sum is the sum of these. */
static void test_counted(void) {
        _cleanup_(store_freep) Store *s = open_store();
        _cleanup_(store_run_freep) StoreRun *first = NULL, *second = NULL;
        char a[RUN_ID_LEN + 1], b[RUN_ID_LEN + 1];
        StoreUser u;

        add_agent(s, "u", "x", 10);
        add_agent(s, "v", "x", 10);
        run_once(s, "u", "x", 0, a);
        run_once(s, "u", "x", 100, b);
        assert(store_run_get(s, a, &first) == 0 && store_run_get(s, b, &second) == 0);
        assert(first->size ==
               STORE_RUN_OVERHEAD + strlen("x") + strlen("{\"status\":\"success\"}") + strlen("{\"v\":1}"));
        assert(second->size == first->size + 100 * strlen("{\"call\":1}"));
        u = use_of(s, "u");
        assert(u.finished == 2 && u.finished_bytes == first->size + second->size);
        u = use_of(s, "v");
        assert(u.finished == 0 && u.finished_bytes == 0 && u.artifact_bytes == 0 && u.session_bytes == 0);
}

/* Oldest first, page by page, of all, of a user, of an agent; unfinished ones are not among them. */
static void test_oldest(void) {
        _cleanup_(store_freep) Store *s = open_store();
        char ids[6][RUN_ID_LEN + 1], queued[RUN_ID_LEN + 1];
        StoreOldest w = {};
        uint64_t seq;

        add_agent(s, "u", "x", 10);
        add_agent(s, "u", "y", 10);
        add_agent(s, "v", "x", 10);
        for (unsigned i = 0; i < 6; i++)
                run_once(s, i < 2 ? "v" : "u", i < 4 ? "x" : "y", 0, ids[i]); /* v/x v/x u/x u/x u/y u/y */
        assert(enqueue(s, "u", "x", 0, queued) == 1);

        struct {
                const char *user, *agent;
                unsigned first, n;
        } const cases[] = { { NULL, NULL, 0, 6 }, { "u", NULL, 2, 4 }, { "u", "x", 2, 2 }, { "u", "y", 4, 2 },
                            { "v", "x", 0, 2 },   { "w", NULL, 0, 0 }, { "u", "z", 0, 0 } };

        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                _cleanup_strv_free_ char **found = NULL;

                w = (StoreOldest) { .user = cases[i].user, .agent = cases[i].agent };
                assert(store_runs_oldest(s, &w, collect, &found) == (int) cases[i].n);
                for (unsigned k = 0; k < cases[i].n; k++)
                        assert(streq(found[k], ids[cases[i].first + k]));
                /* The same, one by one. */
                w.limit = 1;
                for (unsigned k = 0; k < cases[i].n; k++) {
                        _cleanup_strv_free_ char **one = NULL;

                        assert(store_runs_oldest(s, &w, collect, &one) == 1);
                        assert(streq(one[0], ids[cases[i].first + k]));
                        assert(store_runs_oldest(s, &w, note_seq, &w.after_seq) == 1);
                }
                assert(store_runs_oldest(s, &w, collect, &found) == 0);
                /* All but the newest one of these. */
                if (cases[i].n > 1) {
                        _cleanup_strv_free_ char **others = NULL;

                        assert(store_run_newest(s, w.user, w.agent, 1, &seq) == 0);
                        w = (StoreOldest) { .user = w.user, .agent = w.agent, .up_to_seq = seq };
                        assert(store_runs_oldest(s, &w, collect, &others) == (int) cases[i].n - 1);
                }
                assert(store_run_newest(s, w.user, w.agent, MAX(cases[i].n, 1U), &seq) == -ENOENT);
        }
        w = (StoreOldest) { .agent = "x" };
        assert(store_runs_oldest(s, &w, collect, NULL) == -EINVAL);
        assert(store_run_newest(s, NULL, "x", 1, &seq) == -EINVAL);
        assert(store_run_newest(s, "u", NULL, 0, &seq) == -E2BIG);
        assert(store_run_newest(s, "u", NULL, STORE_NEWEST_MAX + 1, &seq) == -E2BIG);
}

static void note_removed(const StoreEvent *e, void *userdata) {
        if (e->type == STORE_EVENT_RUN_REMOVED)
                assert(strv_extend(userdata, e->run) >= 0);
}

/* A removal takes all of a run with it, and is told; it is refused, whole, where one of them is not finished. */
static void test_remove(void) {
        _cleanup_(store_freep) Store *s = open_store();
        _cleanup_strv_free_ char **told = NULL;
        const StoreArtifactLimits limits = { .max = 5, .bytes = 100 };
        char a[RUN_ID_LEN + 1], b[RUN_ID_LEN + 1], live[RUN_ID_LEN + 1];
        StoreRunRequest keyed = request("u", "x", "x");
        _cleanup_free_ char *text = NULL;
        char *many[STORE_REMOVE_MAX + 2] = {};
        StoreRun *run;
        uint64_t n = 0;

        add_agent(s, "u", "x", 10);
        keyed.idempotency_key = "k";
        assert(store_run_enqueue(s, &keyed, &no_bounds, a) == 1);
        run = claim(s, &no_caps);
        assert(store_artifact_begin(s, a, 1, "f", &limits) == 0);
        assert(store_artifact_commit(s, a, 1, "f", 7, "") == 0);
        assert(store_usage_add(s, a, 1, "k", 1, "d", 10) == 1);
        assert(store_call_add(s, a, 1, "c", "{}") == 1);
        assert(store_run_post_result(s, a, 1, "{}") == 1);
        assert(store_run_finish(s, a, run->fence, &success) == 0);
        store_run_free(run);
        run_once(s, "u", "x", 1, b);
        assert(enqueue(s, "u", "x", 0, live) == 1);
        assert(use_of(s, "u").finished == 2 && use_of(s, "u").artifact_bytes == 7);

        store_subscribe(s, note_removed, &told);
        assert(store_runs_remove(s, (char *[]) { a, live, NULL }) == -EBUSY);
        assert(store_runs_remove(s, (char *[]) { a, (char *) "../x", NULL }) == -EINVAL);
        for (unsigned i = 0; i <= STORE_REMOVE_MAX; i++)
                many[i] = a;
        assert(store_runs_remove(s, many) == -E2BIG);
        assert(use_of(s, "u").finished == 2 && strv_length(told) == 0);
        assert(store_run_get_receipt(s, a, &text) == 0);
        text = mfree(text);

        assert(store_runs_remove(s, (char *[]) { a, (char *) "00000000000000000000000000000000", NULL }) == 1);
        assert(strv_contains(told, a));
        assert(store_run_get(s, a, &run) == -ENOENT && store_run_get_receipt(s, a, &text) == -ENOENT &&
               store_run_get_posted(s, a, &text) == -ENOENT && store_run_get_input(s, a, &text, &n) == -ENOENT);
        assert(store_artifacts(s, a, NULL, NULL) == -ENOENT && store_calls(s, a, NULL, NULL) == -ENOENT &&
               store_usages(s, a, NULL, NULL) == -ENOENT);
        assert(use_of(s, "u").finished == 1 && use_of(s, "u").artifact_bytes == 0);
        assert(store_runs_remove(s, (char *[]) { a, NULL }) == 0);
        assert(store_runs_remove(s, NULL) == 0);
        /* Its key is free again. */
        assert(store_run_enqueue(s, &keyed, &no_bounds, a) == 1);
        assert(store_runs_remove(s, (char *[]) { b, NULL }) == 1);
        assert(use_of(s, "u").finished == 0 && use_of(s, "u").finished_bytes == 0);
        assert(counts(s, "u", NULL).queued == 2);
        store_unsubscribe(s, note_removed, &told);
}

/* A user whose finished runs take too much gets no new ones; a repeated call still gets its run. */
static void test_bound_of_runs(void) {
        _cleanup_(store_freep) Store *s = open_store();
        StoreQueueLimits bounds = { .finished_bytes_per_user = 2 * STORE_RUN_OVERHEAD };
        StoreRunRequest req = request("u", "x", "x"), other = request("v", "x", "x");
        char a[RUN_ID_LEN + 1], b[RUN_ID_LEN + 1], id[RUN_ID_LEN + 1];

        add_agent(s, "u", "x", 10);
        add_agent(s, "v", "x", 10);
        run_once(s, "u", "x", 0, a);
        req.idempotency_key = "k";
        assert(store_run_enqueue(s, &req, &bounds, b) == 1);
        run_once(s, "v", "x", 0, id); /* served first, being another user */
        StoreRun *run = claim(s, &no_caps);
        assert(streq(run->id, b) && store_run_finish(s, b, run->fence, &success) == 0);
        store_run_free(run);
        assert(use_of(s, "u").finished_bytes >= bounds.finished_bytes_per_user);
        assert(store_run_enqueue(s, &req, &bounds, id) == 0 && streq(id, b));
        req.idempotency_key = "l";
        assert(store_run_enqueue(s, &req, &bounds, id) == -ENOBUFS);
        assert(store_run_enqueue(s, &other, &bounds, id) == 1);
        assert(store_runs_remove(s, (char *[]) { a, NULL }) == 1);
        assert(store_run_enqueue(s, &req, &bounds, id) == 1);

        /* The host's disk is nobody's share: nothing new for anybody. */
        bounds.no_space = true;
        assert(store_run_enqueue(s, &other, &bounds, a) == -ENOSPC);
        assert(store_run_enqueue(s, &req, &bounds, a) == 0 && streq(a, id));
}

/* What may still be written counts as what was: writers at the same time cannot pass the bound together. */
static void test_bound_of_artifacts(void) {
        _cleanup_(store_freep) Store *s = open_store();
        StoreArtifactLimits limits = { .max = 10, .bytes = 40, .bytes_per_user = 100 };
        char a[RUN_ID_LEN + 1], b[RUN_ID_LEN + 1];
        StoreRun *run;

        add_agent(s, "u", "x", 10);
        assert(enqueue(s, "u", "x", 0, a) == 1 && enqueue(s, "u", "x", 0, b) == 1);
        run = claim(s, &no_caps);
        store_run_free(claim(s, &no_caps));
        assert(store_artifact_begin(s, a, 1, "1", &limits) == 0);
        assert(store_artifact_begin(s, b, 1, "1", &limits) == 0);
        assert(use_of(s, "u").artifact_bytes == 80);
        assert(store_artifact_begin(s, b, 1, "2", &limits) == -ENOBUFS);
        assert(store_artifact_begin(s, b, 1, "1", &limits) == 0); /* anew, in its own place */
        assert(use_of(s, "u").artifact_bytes == 80);
        assert(store_artifact_commit(s, b, 1, "1", 5, "") == 0);
        assert(use_of(s, "u").artifact_bytes == 45);
        assert(store_artifact_begin(s, b, 1, "1", &limits) == 0); /* until its commit the former one is there as well */
        assert(use_of(s, "u").artifact_bytes == 85);
        assert(store_artifact_commit(s, b, 1, "1", 15, "") == 0);
        assert(use_of(s, "u").artifact_bytes == 55);
        assert(store_artifact_begin(s, b, 1, "2", &limits) == 0);
        limits.bytes = 6;
        assert(store_artifact_begin(s, b, 1, "3", &limits) == -ENOBUFS);
        limits.bytes_per_user = 0;
        assert(store_artifact_begin(s, b, 1, "3", &limits) == 0);
        assert(use_of(s, "u").artifact_bytes == 101);

        /* What was begun only is given back at the end of the run, and of an attempt. */
        assert(store_run_requeue(s, a, run->fence, NULL, 0) == 0);
        assert(use_of(s, "u").artifact_bytes == 61);
        assert(store_run_finish(s, b, 1, &success) == 0);
        assert(use_of(s, "u").artifact_bytes == 15);
        assert(store_runs_remove(s, (char *[]) { b, NULL }) == 1);
        assert(use_of(s, "u").artifact_bytes == 0);
        store_run_free(run);
}

static void test_bound_of_sessions(void) {
        _cleanup_(store_freep) Store *s = open_store();
        StoreSession state = { .data = (char *) "0123456789", .size = 10 };
        uint64_t rev;

        add_agent(s, "u", "x", 1);
        add_agent(s, "u", "y", 1);
        assert(store_session_put(s, "u", "x", "1", &state, STORE_UNKNOWN, 25, &rev) == 1);
        assert(store_session_put(s, "u", "y", "1", &state, STORE_UNKNOWN, 25, &rev) == 1);
        assert(use_of(s, "u").session_bytes == 20);
        assert(store_session_put(s, "u", "y", "2", &state, STORE_UNKNOWN, 25, &rev) == -ENOBUFS);
        state.size = 9;
        assert(store_session_put(s, "u", "y", "1", &state, STORE_UNKNOWN, 25, &rev) == 1); /* in its own place */
        state.size = 6;
        assert(store_session_put(s, "u", "y", "2", &state, STORE_UNKNOWN, 25, &rev) == 1);
        assert(use_of(s, "u").session_bytes == 25);
        assert(store_agent_remove(s, "u", "y") == 0);
        assert(use_of(s, "u").session_bytes == 10);
}

int main(void) {
        static const ContractCase cases[] = {
                { "what is kept is counted", test_counted },
                { "the oldest, page by page", test_oldest },
                { "removal", test_remove },
                { "bound of finished runs", test_bound_of_runs },
                { "bound of artifacts", test_bound_of_artifacts },
                { "bound of sessions", test_bound_of_sessions },
        };

        return run_contract(cases, ELEMENTSOF(cases));
}
