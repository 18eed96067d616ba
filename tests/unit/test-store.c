/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The contract of the queue and of a run's way through it: admission, fairness, fencing, the end that happens once. */
#include <signal.h>
#include <sys/wait.h>

#include "store-contract.h"

/* One run's whole way, every column of it, over a reopening. */
static void test_life(void) {
        _cleanup_(store_freep) Store *s = open_store();
        _cleanup_(store_run_freep) StoreRun *run = NULL, *again = NULL;
        _cleanup_free_ char *input = NULL, *posted = NULL, *receipt = NULL;
        char id[RUN_ID_LEN + 1], parent[RUN_ID_LEN + 1];
        StoreRunRequest req = request("alice", "analyst", "{\"a\":1}");
        StoreRunPlan plan = {
                .unit = "agent-run-x.service", .boot_id = "b", .generation = D1, .environment = D2, .runner = D3,
                .policy = D1, .sandbox_uid = 61234, .deadline_usec = 99, .steps = "{\"compose\":1}",
        };
        RunState state;
        size_t size;

        assert(store_run_enqueue(s, &req, &no_bounds, id) == -ENOENT);
        add_agent(s, "alice", "analyst", 10);
        assert(enqueue(s, "alice", "analyst", -1, parent) == 1);
        req.session = "s1";
        req.labels = "{\"k\":\"v\"}";
        req.parent = parent;
        req.priority = 5;
        req.keep = req.verify = true;
        assert(store_run_enqueue(s, &req, &no_bounds, id) == 1);

        run = claim(s, &no_caps);
        assert(streq(run->id, id) && streq(run->user, "alice") && streq(run->agent, "analyst"));
        assert(run->state == RUN_PREPARING && run->attempt == 1 && run->fence == 1 && run->uid == 1000);
        assert(streq(run->session, "s1") && streq(run->labels, "{\"k\":\"v\"}") && streq(run->parent, parent));
        assert(run->priority == 5 && run->keep && run->verify && run->timeout_usec == 60 * USEC_PER_SEC &&
               !run->idempotency_key);
        assert(run->sandbox_uid == (uid_t) -1 && run->exit_code == -1 && run->result == _RUN_RESULT_INVALID);
        assert(run->created_usec > 0 && run->claimed_usec >= run->created_usec && run->finished_usec == 0);

        assert(store_run_set_prepared(s, id, 2, &plan) == -ESTALE);
        assert(store_run_set_prepared(s, id, 1, &plan) == 0);
        assert(store_run_post_result(s, id, 2, "{}") == -ESTALE);
        assert(store_run_set_running(s, id, 1, "inv", 77, 0, NULL) == 0);
        assert(store_run_set_running(s, id, 1, "inv", 77, 0, NULL) == 0);
        assert(store_run_post_result(s, id, 1, "{\"status\":\"success\"}") == 1);
        assert(store_run_post_result(s, id, 1, "{\"status\":\"failed\"}") == 0); /* the first one counts */
        assert(store_run_cancel_request(s, id, "bob", &state) == 1 && state == RUN_RUNNING);
        assert(store_run_cancel_request(s, id, "eve", &state) == 0);
        assert(store_run_finish(s, id, 0, &success) == -ESTALE);
        assert(store_run_finish(s, id, 1, &success) == 0);
        assert(store_run_finish(s, id, 1, &success) == -EALREADY);
        assert(store_run_requeue(s, id, 1, NULL, 0) == -EALREADY);
        assert(store_run_cancel_request(s, id, "bob", &state) == -EALREADY);
        assert(store_run_post_result(s, id, 1, "{}") == 0); /* a repeated report */
        assert(store_run_set_running(s, id, 1, "inv", 77, 0, NULL) == -EALREADY);

        s = store_free(s);
        s = open_store();
        assert(store_run_get(s, id, &again) == 0);
        assert(again->state == RUN_FINISHED && again->result == RUN_RESULT_SUCCESS && streq(again->message, "done"));
        assert(streq(again->unit, "agent-run-x.service") && streq(again->invocation_id, "inv"));
        assert(streq(again->environment, D2) && streq(again->runner, D3) && again->sandbox_uid == 61234);
        assert(again->started_usec == 77 && again->deadline_usec == 99 && streq(again->steps, "{\"compose\":1}"));
        assert(again->cancel_requested && streq(again->cancel_by, "bob") && again->has_posted);
        assert(again->exit_code == 0 && again->exit_signal == -1);
        assert(again->usage.memory_peak == 2 && again->usage.io_write_bytes == STORE_UNKNOWN);
        assert(store_run_get_input(s, id, &input, &size) == 0 && size == 7 && streq(input, "{\"a\":1}"));
        assert(store_run_get_posted(s, id, &posted) == 0 && streq(posted, "{\"status\":\"success\"}"));
        assert(store_run_get_receipt(s, id, &receipt) == 0 && streq(receipt, "{\"v\":1}"));
        assert(store_run_get_receipt(s, parent, &receipt) == -ENOENT);
        assert(store_run_get(s, "00000000000000000000000000000000", &again) == -ENOENT);
        assert(store_run_get(s, "../../etc/passwd", &again) == -ENOENT);
}

/* Bytes go in and come out as they are, up to the bound and not beyond it. */
static void test_input(void) {
        _cleanup_(store_freep) Store *s = open_store();
        _cleanup_free_ char *big = malloc(STORE_INPUT_MAX + 1), *out = NULL, *out2 = NULL;
        StoreRunRequest req = request("alice", "a", "");
        char id[RUN_ID_LEN + 1];
        size_t size;

        assert(big);
        add_agent(s, "alice", "a", 1);
        memset(big, 'x', STORE_INPUT_MAX + 1);
        big[5] = 0; /* not for the store to judge */
        big[6] = (char) 0xff;
        req.input = big;
        req.input_size = STORE_INPUT_MAX;
        assert(store_run_enqueue(s, &req, &no_bounds, id) == 1);
        assert(store_run_get_input(s, id, &out, &size) == 0);
        assert(size == STORE_INPUT_MAX && memcmp(out, big, size) == 0 && out[size] == 0);
        req.input_size++;
        assert(store_run_enqueue(s, &req, &no_bounds, id) == -E2BIG);
        req.input_size = 0;
        assert(store_run_enqueue(s, &req, &no_bounds, id) == 1);
        assert(store_run_get_input(s, id, &out2, &size) == 0 && size == 0 && streq(out2, ""));
        assert(counts(s, NULL, NULL).queued == 2);
}

static void test_idempotency(void) {
        _cleanup_(store_freep) Store *s = open_store();
        StoreRunRequest req = request("alice", "a", "input");
        const StoreQueueLimits one = { .queued = 1 };
        char id[RUN_ID_LEN + 1], other[RUN_ID_LEN + 1];
        _cleanup_(store_run_freep) StoreRun *run = NULL;

        add_agent(s, "alice", "a", 1);
        add_agent(s, "alice", "b", 1);
        add_agent(s, "bob", "a", 1);
        req.idempotency_key = "k";
        assert(store_run_enqueue(s, &req, &one, id) == 1);
        for (int i = 0; i < 100; i++) {
                other[0] = 0;
                assert(store_run_enqueue(s, &req, &one, other) == 0); /* although the queue is full */
                assert(streq(other, id));
        }
        assert(counts(s, NULL, NULL).queued == 1);

        req.input = "INPUT";
        assert(store_run_enqueue(s, &req, &no_bounds, other) == -EEXIST);
        req.input = "input";
        req.agent = "b"; /* a key belongs to an agent of a user */
        assert(store_run_enqueue(s, &req, &no_bounds, other) == 1 && !streq(other, id));
        req.agent = "a";
        req.user = "bob";
        assert(store_run_enqueue(s, &req, &no_bounds, other) == 1 && !streq(other, id));

        /* It holds on after the end. */
        run = claim(s, &no_caps);
        assert(streq(run->id, id));
        assert(store_run_finish(s, id, 1, &success) == 0);
        req.user = "alice";
        assert(store_run_enqueue(s, &req, &no_bounds, other) == 0 && streq(other, id));
}

/* Many processes with the same key at the same time: one run. */
static void test_idempotency_concurrent(void) {
        Store *s = open_store();
        pid_t children[8];
        int status;

        add_agent(s, "alice", "a", 1);
        s = store_free(s);
        for (size_t i = 0; i < ELEMENTSOF(children); i++) {
                children[i] = fork();
                assert(children[i] >= 0);
                if (children[i] == 0) {
                        StoreRunRequest req = request("alice", "a", "input");
                        char id[RUN_ID_LEN + 1];
                        int made = 0;

                        s = open_store();
                        req.idempotency_key = "k";
                        for (int k = 0; k < 13; k++) {
                                int r = store_run_enqueue(s, &req, &no_bounds, id);

                                assert(r == 0 || r == 1);
                                made += r;
                        }
                        _exit(made);
                }
        }
        for (size_t i = 0, made = 0; i < ELEMENTSOF(children); i++) {
                assert(waitpid(children[i], &status, 0) == children[i] && WIFEXITED(status));
                made += (size_t) WEXITSTATUS(status);
                assert(made <= 1);
                assert(i < ELEMENTSOF(children) - 1 || made == 1);
        }
        s = open_store();
        assert(counts(s, NULL, NULL).queued == 1);
        store_free(s);
}

static void test_bounds(void) {
        _cleanup_(store_freep) Store *s = open_store();
        StoreRunRequest req = request("alice", "a", "x");
        StoreQueueLimits bounds = { .queued = 4, .queued_per_user = 3, .queued_per_agent = 2 };
        char id[RUN_ID_LEN + 1];
        _cleanup_(store_run_freep) StoreRun *run = NULL;

        add_agent(s, "alice", "a", 1);
        add_agent(s, "alice", "b", 1);
        add_agent(s, "bob", "a", 1);
        assert(store_run_enqueue(s, &req, &bounds, id) == 1);
        assert(store_run_enqueue(s, &req, &bounds, id) == 1);
        assert(store_run_enqueue(s, &req, &bounds, id) == -EUSERS);
        req.agent = "b";
        assert(store_run_enqueue(s, &req, &bounds, id) == 1);
        assert(store_run_enqueue(s, &req, &bounds, id) == -EDQUOT);
        req.user = "bob";
        req.agent = "a";
        assert(store_run_enqueue(s, &req, &bounds, id) == 1);
        assert(store_run_enqueue(s, &req, &bounds, id) == -EBUSY);
        assert(store_error_is_queue_full(-EBUSY) && !store_error_is_queue_full(-EIO));
        assert(counts(s, NULL, NULL).queued == 4 && counts(s, "alice", NULL).queued == 3);
        assert(counts(s, "alice", "a").queued == 2 && counts(s, "nobody", NULL).queued == 0);
        run = claim(s, &no_caps); /* what is live does not wait */
        assert(store_run_enqueue(s, &req, &bounds, id) == 1);
        assert(counts(s, NULL, NULL).queued == 4 && counts(s, NULL, NULL).live == 1);
}

static void test_fairness(void) {
        _cleanup_(store_freep) Store *s = open_store();
        char id[RUN_ID_LEN + 1], low[RUN_ID_LEN + 1], high[RUN_ID_LEN + 1], first[RUN_ID_LEN + 1];

        add_agent(s, "a", "x", 1000);
        add_agent(s, "b", "x", 1000);
        add_agent(s, "c", "x", 1000);
        assert(enqueue(s, "a", "x", 0, first) == 1);
        for (int i = 1; i < 1000; i++)
                assert(enqueue(s, "a", "x", 100, id) == 1);
        assert(enqueue(s, "b", "x", -100, id) == 1);
        static const char *const order[] = { "a", "b", "a", "a" };
        for (size_t i = 0; i < ELEMENTSOF(order); i++) {
                _cleanup_(store_run_freep) StoreRun *run = claim(s, &no_caps);

                assert(streq(run->user, order[i]));
                assert(!streq(run->id, first)); /* the urgent ones come before */
        }

        /* Within a user: priority, then age. Between users the turn stays, whatever the priority. */
        assert(enqueue(s, "c", "x", 0, low) == 1);
        assert(enqueue(s, "c", "x", 0, id) == 1);
        assert(enqueue(s, "c", "x", 7, high) == 1);
        const char *const expected[] = { high, NULL, low, NULL, id };
        for (size_t i = 0; i < ELEMENTSOF(expected); i++) {
                _cleanup_(store_run_freep) StoreRun *run = claim(s, &no_caps);

                assert(expected[i] ? streq(run->id, expected[i]) : streq(run->user, "a"));
        }
}

static void test_caps(void) {
        _cleanup_(store_freep) Store *s = open_store();
        StoreLiveLimits caps = { .live = 3, .live_per_user = 2 };
        char id[RUN_ID_LEN + 1], delayed[RUN_ID_LEN + 1];
        StoreRun *run[3], *none;
        uint64_t next;

        add_agent(s, "a", "single", 1);
        add_agent(s, "a", "many", 100);
        add_agent(s, "b", "many", 100);
        for (int i = 0; i < 3; i++) {
                assert(enqueue(s, "a", "single", 50, id) == 1);
                assert(enqueue(s, "a", "many", 0, id) == 1);
                assert(enqueue(s, "b", "many", 0, id) == 1);
        }
        run[0] = claim(s, &caps);
        run[1] = claim(s, &caps);
        run[2] = claim(s, &caps);
        assert(streq(run[0]->user, "a") && streq(run[0]->agent, "single"));
        assert(streq(run[1]->user, "b"));
        assert(streq(run[2]->user, "a") && streq(run[2]->agent, "many")); /* "single" is busy */
        assert(!claim(s, &caps));                                         /* the host is */
        caps.live = 100;
        none = claim(s, &caps);
        assert(streq(none->user, "b"));
        store_run_free(none);
        assert(!claim(s, &caps)); /* both users are */
        assert(store_run_finish(s, run[0]->id, 1, &success) == 0);
        assert(store_run_finish(s, run[2]->id, 1, &success) == 0);
        for (int i = 0; i < 3; i++)
                store_run_free(run[i]);

        /* A run that is to wait is passed over, and when is known; it keeps its place by age. */
        none = claim(s, &caps);
        assert(streq(none->agent, "single"));
        memcpy(delayed, none->id, sizeof delayed);
        store_run_free(none);
        assert(store_run_requeue(s, delayed, 1, "sandbox failed", UINT64_C(1) << 60) == 0);
        assert(store_queue_next(s, &next) == 0 && next == UINT64_C(1) << 60);
        none = claim(s, &caps);
        assert(streq(none->agent, "single") && !streq(none->id, delayed));
        store_run_free(none);
        assert(counts(s, "a", "single").queued == 1 && counts(s, "a", "single").live == 1);
}

static void test_retry(void) {
        _cleanup_(store_freep) Store *s = open_store();
        _cleanup_(store_run_freep) StoreRun *first = NULL, *second = NULL, *row = NULL;
        StoreRunPlan plan = { .unit = "u1", .sandbox_uid = 61200, .boot_id = "b" };
        char id[RUN_ID_LEN + 1], younger[RUN_ID_LEN + 1];
        _cleanup_free_ char *text = NULL;

        add_agent(s, "a", "x", 1);
        assert(enqueue(s, "a", "x", 0, id) == 1);
        assert(enqueue(s, "a", "x", 0, younger) == 1);
        first = claim(s, &no_caps);
        assert(store_run_set_prepared(s, id, 1, &plan) == 0);
        assert(store_run_post_result(s, id, 1, "{}") == 1);
        assert(store_run_requeue(s, id, 1, "step compose failed", 0) == 0);
        assert(store_run_requeue(s, id, 1, "step compose failed", 0) == -ESTALE);
        assert(store_run_get(s, id, &row) == 0);
        assert(row->state == RUN_QUEUED && !row->unit && row->sandbox_uid == (uid_t) -1 && !row->has_posted);
        assert(streq(row->message, "step compose failed") && row->attempt == 1);

        second = claim(s, &no_caps);
        assert(streq(second->id, id) && second->attempt == 2 && second->fence == 2);
        /* Whoever still holds the first attempt changes nothing any more. */
        assert(store_run_set_prepared(s, id, 1, &plan) == -ESTALE);
        assert(store_run_set_running(s, id, 1, "i", 1, 1, NULL) == -ESTALE);
        assert(store_run_finish(s, id, 1, &success) == -ESTALE);
        assert(store_run_requeue(s, id, 1, NULL, 0) == -ESTALE);
        assert(store_run_extend(s, id, 1, 5) == -ESTALE);
        assert(store_run_post_result(s, id, 1, "{\"late\":1}") == -ESTALE);
        assert(store_run_get_posted(s, id, &text) == -ENOENT);
        assert(store_run_finish(s, id, 2, &success) == 0);
}

static int keep_id(const StoreRun *run, void *userdata) {
        memcpy(userdata, run->id, RUN_ID_LEN + 1);
        return 0;
}

static void test_cancel_and_lease(void) {
        _cleanup_(store_freep) Store *s = open_store();
        _cleanup_(store_run_freep) StoreRun *run = NULL;
        const StoreLiveLimits leased = { .lease_usec = USEC_PER_SEC };
        StoreRunEnd end = success;
        char id[RUN_ID_LEN + 1], canceled[RUN_ID_LEN + 1], seen[RUN_ID_LEN + 1] = "";
        RunState state;

        add_agent(s, "a", "x", 10);
        assert(enqueue(s, "a", "x", 9, canceled) == 1);
        assert(enqueue(s, "a", "x", 0, id) == 1);
        assert(store_run_cancel_request(s, canceled, "a", &state) == 1 && state == RUN_QUEUED);
        run = claim(s, &leased);
        assert(streq(run->id, id)); /* a canceled one is not handed out */
        end.result = RUN_RESULT_CANCELED;
        assert(store_run_finish(s, canceled, 0, &end) == 0);
        assert(!claim(s, &leased));

        assert(run->lease_usec > run->claimed_usec);
        assert(store_runs_expired(s, run->lease_usec, keep_id, seen) == 0);
        assert(store_runs_expired(s, run->lease_usec + 1, keep_id, seen) == 1 && streq(seen, id));
        assert(store_run_extend(s, id, 1, 3600 * USEC_PER_SEC) == 0);
        assert(store_runs_expired(s, run->lease_usec + 1, keep_id, seen) == 0);
        assert(store_run_finish(s, id, 1, &success) == 0);
        assert(store_run_extend(s, id, 1, 1) == -EALREADY);
        assert(store_runs_expired(s, UINT64_C(1) << 60, keep_id, seen) == 0);
}

/* Two claimers at once never get the same run, and together get all. */
static void test_two_claimers(void) {
        Store *s = open_store();
        char id[RUN_ID_LEN + 1];
        int pipes[2], status, total = 0;
        pid_t children[2];

        add_agent(s, "a", "x", 1000);
        add_agent(s, "b", "x", 1000);
        for (int i = 0; i < 50; i++) {
                assert(enqueue(s, "a", "x", 0, id) == 1);
                assert(enqueue(s, "b", "x", 0, id) == 1);
        }
        s = store_free(s);
        assert(pipe(pipes) == 0);
        for (int i = 0; i < 2; i++) {
                children[i] = fork();
                assert(children[i] >= 0);
                if (children[i] == 0) {
                        StoreRun *run;

                        s = open_store();
                        while ((run = claim(s, &no_caps))) {
                                assert(run->fence == 1);
                                assert(write(pipes[1], run->id, RUN_ID_LEN) == RUN_ID_LEN);
                                store_run_free(run);
                        }
                        _exit(0);
                }
        }
        close(pipes[1]);
        _cleanup_strv_free_ char **seen = NULL;
        while (read(pipes[0], id, RUN_ID_LEN) == RUN_ID_LEN) {
                id[RUN_ID_LEN] = 0;
                assert(!strv_contains(seen, id));
                assert(strv_extend(&seen, id) >= 0);
                total++;
        }
        close(pipes[0]);
        assert(total == 100);
        for (int i = 0; i < 2; i++)
                assert(waitpid(children[i], &status, 0) > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* kill -9 at any point: what was claimed is found, still claimed, and can be finished or given back once. */
static void test_killed(void) {
        Store *s = open_store();
        _cleanup_(store_run_freep) StoreRun *run = NULL;
        char id[RUN_ID_LEN + 1], seen[RUN_ID_LEN + 1] = "";
        pid_t child;

        add_agent(s, "a", "x", 1);
        assert(enqueue(s, "a", "x", 0, id) == 1);
        s = store_free(s);
        child = fork();
        assert(child >= 0);
        if (child == 0) {
                s = open_store();
                (void) claim(s, &no_caps);
                raise(SIGKILL);
        }
        assert(waitpid(child, NULL, 0) == child);

        s = open_store();
        assert(store_runs_unfinished(s, keep_id, seen) == 1 && streq(seen, id));
        assert(store_run_get(s, id, &run) == 0 && run->state == RUN_PREPARING && run->fence == 1);
        assert(!claim(s, &no_caps));
        assert(store_run_requeue(s, id, 1, "agentd was killed", 0) == 0);
        run = store_run_free(run);
        run = claim(s, &no_caps);
        assert(run->fence == 2 && run->attempt == 2);
        assert(store_run_finish(s, id, 1, &success) == -ESTALE);
        assert(store_run_finish(s, id, 2, &success) == 0);
        assert(store_runs_unfinished(s, keep_id, seen) == 0);
        store_free(s);
}

static int collect(const StoreRun *run, void *userdata) {
        return strv_extend(userdata, run->id);
}

static int refuse_second(const StoreRun *run _unused_, void *userdata) {
        return ++*(int *) userdata == 2 ? -ECANCELED : 0;
}

static void test_list(void) {
        _cleanup_(store_freep) Store *s = open_store();
        char ids[25][RUN_ID_LEN + 1];
        StoreRunFilter f = STORE_RUN_FILTER_ANY;
        _cleanup_strv_free_ char **page = NULL;
        int n = 0, calls = 0;

        add_agent(s, "a", "x", 100);
        add_agent(s, "a", "y", 100);
        add_agent(s, "b", "x", 100);
        for (int i = 0; i < 25; i++)
                assert(enqueue(s, i % 5 == 4 ? "b" : "a", i % 5 == 3 ? "y" : "x", 0, ids[i]) == 1);

        /* Page by page, newest first, nothing twice, nothing left out. */
        f.limit = 10;
        for (int got; (got = store_run_list(s, &f, collect, &page)) > 0; n += got)
                f.before = page[strv_length(page) - 1];
        assert(n == 25);
        for (int i = 0; i < 25; i++)
                assert(streq(page[i], ids[24 - i]));

        f = STORE_RUN_FILTER_ANY;
        f.user = "b";
        page = strv_free(page);
        assert(store_run_list(s, &f, collect, &page) == 5 && streq(page[0], ids[24]));
        f.user = "a";
        f.agent = "y";
        assert(store_run_list(s, &f, refuse_second, &calls) == -ECANCELED);
        assert(store_run_list(s, &f, collect, &page) == 5);
        f.agent = "zzz";
        assert(store_run_list(s, &f, collect, &page) == 0);
        f.user = NULL;
        assert(store_run_list(s, &f, collect, &page) == -EINVAL);

        for (int i = 0; i < 3; i++) {
                _cleanup_(store_run_freep) StoreRun *run = claim(s, &no_caps);
                StoreRunEnd end = success;

                end.result = i == 2 ? RUN_RESULT_OOM_KILL : RUN_RESULT_SUCCESS;
                assert(store_run_finish(s, run->id, 1, &end) == 0);
        }
        f = STORE_RUN_FILTER_ANY;
        f.state = RUN_FINISHED;
        assert(store_run_list(s, &f, collect, &page) == 3);
        f.state = RUN_QUEUED;
        assert(store_run_list(s, &f, collect, &page) == 22);
        f.state = _RUN_STATE_INVALID;
        f.result = RUN_RESULT_OOM_KILL;
        assert(store_run_list(s, &f, collect, &page) == 1);
        f.before = "00000000000000000000000000000000";
        assert(store_run_list(s, &f, collect, &page) == -ENOENT);
}

int main(void) {
        static const ContractCase cases[] = {
                { "life", test_life },
                { "input", test_input },
                { "idempotency", test_idempotency },
                { "idempotency-concurrent", test_idempotency_concurrent },
                { "bounds", test_bounds },
                { "fairness", test_fairness },
                { "caps", test_caps },
                { "retry", test_retry },
                { "cancel-and-lease", test_cancel_and_lease },
                { "two-claimers", test_two_claimers },
                { "killed", test_killed },
                { "list", test_list },
        };

        return run_contract(cases, ELEMENTSOF(cases));
}
