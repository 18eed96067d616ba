/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The contract of the store about runners: one current and one canary at most, in every order of deploys, rollbacks,
 * promotions and withdrawals; verdicts are facts that stay until the runner is deployed anew or removed; which node an
 * environment has is remembered. All of it survives the store being closed.
 */
#include "store-contract.h"

#define D4 "sha256:4444444444444444444444444444444444444444444444444444444444444444"

static int deploy(Store *s, const char *digest, StoreRunnerState state, const char *agents) {
        return store_runner_deploy(s, &(StoreRunner){ .digest = (char *) digest,
                                                      .name = (char *) "n",
                                                      .version = (char *) "1",
                                                      .manifest = (char *) "{}",
                                                      .author = (char *) "root",
                                                      .state = state,
                                                      .percent = state == RUNNER_CANARY && !agents ? 10 : 0,
                                                      .agents = (char *) agents });
}

static int write_one(const StoreRunner *r, void *userdata) {
        char *text = userdata;

        /* The digit of the digest and the first letter of the state. */
        snprintf(text + strlen(text), 8, "%c%c ", r->digest[7], store_runner_state_to_string(r->state)[0]);
        return 0;
}

static void is(Store *s, const char *expected) {
        char text[128] = "";

        assert(store_runner_list(s, write_one, text) >= 0);
        if (!streq(text, expected))
                fprintf(stderr, "%s instead of %s\n", text, expected);
        assert(streq(text, expected));
}

static void rolled_back(Store *s, const char *digest, const char *to) {
        _cleanup_free_ char *got = NULL;

        assert(store_runner_rollback(s, digest, &got) == 0 && streq(got, to));
}

static void test_moves(void) {
        _cleanup_free_ char *digest = NULL, *withdrawn = NULL;
        Store *s = open_store();

        is(s, "");
        assert(store_runner_rollback(s, NULL, &digest) == -ENOENT && !digest);
        assert(store_runner_promote(s, &digest) == -ENOENT && store_runner_withdraw(s, &digest) == -ENOENT);
        assert(deploy(s, D1, RUNNER_CURRENT, NULL) == 0);
        assert(deploy(s, D2, RUNNER_CURRENT, NULL) == 0);
        is(s, "2c 1p ");
        assert(deploy(s, D2, RUNNER_CURRENT, NULL) == 0); /* again: nothing new */
        is(s, "2c 1p ");
        assert(deploy(s, D2, RUNNER_CANARY, NULL) == -EEXIST);
        is(s, "2c 1p ");

        assert(deploy(s, D3, RUNNER_CANARY, NULL) == 0);
        is(s, "3c 2c 1p ");
        assert(deploy(s, D4, RUNNER_CANARY, "root/a") == 0); /* takes the canary's place */
        is(s, "4c 2c 1p 3s ");
        assert(store_runner_remove(s, D4) == -EBUSY && store_runner_remove(s, D2) == -EBUSY);
        assert(store_runner_promote(s, &digest) == 0 && streq(digest, D4));
        is(s, "4c 2p 1p 3s ");

        s = store_free(s);
        s = open_store();
        is(s, "4c 2p 1p 3s ");
        rolled_back(s, NULL, D2);
        is(s, "2c 1p 4s 3s ");
        rolled_back(s, NULL, D1);
        is(s, "1c 4s 2s 3s ");
        rolled_back(s, D4, D4); /* forward again */
        is(s, "4c 1p 2s 3s ");
        digest = mfree(digest);
        assert(store_runner_rollback(s, D3, &digest) == -ENOENT); /* was never current */
        assert(store_runner_rollback(s, D4, &digest) == -ENOENT); /* is current */

        assert(deploy(s, D2, RUNNER_CANARY, NULL) == 0);
        assert(store_runner_withdraw(s, &withdrawn) == 0 && streq(withdrawn, D2));
        is(s, "4c 1p 2s 3s ");
        assert(store_runner_remove(s, D1) == 0 && store_runner_remove(s, D1) == -ENOENT);
        is(s, "4c 2s 3s ");
        store_free(s);
}

static int count_one(const StoreVerdict *v, void *userdata) {
        unsigned *n = userdata;

        n[v->ok]++;
        return 0;
}

static void test_verdicts(void) {
        _cleanup_(store_verdict_freep) StoreVerdict *v = NULL;
        _cleanup_free_ char *digest = NULL;
        unsigned n[2] = {};
        Store *s = open_store();

        assert(store_verdict_add(s, D1, D2, true, NULL) == -ENOENT);
        assert(deploy(s, D1, RUNNER_CURRENT, NULL) == 0);
        assert(store_verdict_get(s, D1, D2, &v) == -ENOENT);
        assert(store_verdict_add(s, D1, D2, false, NULL) == -EINVAL &&
               store_verdict_add(s, D1, "x", true, NULL) == -EINVAL);
        assert(store_verdict_add(s, D1, D2, false, "a.js:1: no") == 1);
        assert(store_verdict_add(s, D1, D2, true, NULL) == 0); /* the first one counts */
        assert(store_verdict_add(s, D1, D3, true, NULL) == 1);
        s = store_free(s);
        s = open_store();
        assert(store_verdict_get(s, D1, D2, &v) == 0 && !v->ok && streq(v->reason, "a.js:1: no") &&
               v->created_usec > 0);
        assert(store_verdict_list(s, D1, count_one, n) == 2 && n[0] == 1 && n[1] == 1);

        /* Going back passes over what no node accepts. */
        assert(deploy(s, D2, RUNNER_CURRENT, NULL) == 0 && deploy(s, D3, RUNNER_CURRENT, NULL) == 0);
        assert(store_verdict_add(s, D2, D4, false, "no") == 1);
        assert(store_runner_rollback(s, NULL, &digest) == 0 && streq(digest, D1));

        /* Deployed again, it is tried again; what is known to its favour stays. */
        v = store_verdict_free(v);
        assert(deploy(s, D1, RUNNER_CURRENT, NULL) == 0);
        assert(store_verdict_get(s, D1, D2, &v) == -ENOENT && store_verdict_get(s, D1, D3, &v) == 0 && v->ok);
        assert(deploy(s, D4, RUNNER_CURRENT, NULL) == 0 && store_runner_remove(s, D1) == 0);
        v = store_verdict_free(v);
        assert(store_verdict_get(s, D1, D3, &v) == -ENOENT);
        store_free(s);
}

static void test_nodes(void) {
        char node[DIGEST_LEN + 1] = "";
        Store *s = open_store();

        assert(store_node_get(s, D1, "", node) == -ENOENT);
        assert(store_node_put(s, "x", "", D2) == -EINVAL && store_node_put(s, D1, "", "x") == -EINVAL);
        assert(store_node_put(s, D1, "", D2) == 0 && store_node_put(s, D1, D4, D3) == 0);
        assert(store_node_get(s, D1, "", node) == 0 && streq(node, D2));
        assert(store_node_get(s, D1, D4, node) == 0 && streq(node, D3));
        assert(store_node_put(s, D1, "", D3) == 0);
        assert(store_node_get(s, D1, "", node) == 0 && streq(node, D3));
        store_free(s);
}

static void test_run_columns(void) {
        _cleanup_(store_run_freep) StoreRun *run = NULL, *again = NULL;
        char id[RUN_ID_LEN + 1];
        Store *s = open_store();

        add_agent(s, "a", "x", 1);
        assert(enqueue(s, "a", "x", 0, id) == 1);
        run = claim(s, &no_caps);
        assert(!run->runner_before && !run->verdict);
        assert(store_run_set_prepared(s, id, run->fence,
                                      &(StoreRunPlan){ .unit = "u",
                                                       .boot_id = "b",
                                                       .runner = D2,
                                                       .runner_before = D1,
                                                       .verdict = "cached",
                                                       .verified = "digest",
                                                       .sandbox_uid = 61234 }) == 0);
        assert(store_run_get(s, id, &again) == 0);
        assert(streq(again->runner, D2) && streq(again->runner_before, D1) && streq(again->verdict, "cached"));
        assert(streq(again->verified, "digest") && !again->verify);
        store_free(s);
}

int main(void) {
        static const ContractCase cases[] = {
                { "moves", test_moves },
                { "verdicts", test_verdicts },
                { "nodes", test_nodes },
                { "columns of runs", test_run_columns },
        };

        return run_contract(cases, ELEMENTSOF(cases));
}
