/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * What the store's contract tests share: a fresh store for each case in each back end, and short ways to fill it. A
 * second back end is added to run_contract() and has to pass all of them.
 */

#include "basic/fs-util.h"
#include "basic/string-util.h"

#include "store/store.h"

#define D1 "sha256:1111111111111111111111111111111111111111111111111111111111111111"
#define D2 "sha256:2222222222222222222222222222222222222222222222222222222222222222"
#define D3 "sha256:3333333333333333333333333333333333333333333333333333333333333333"

typedef int (*OpenFunction)(const char *dir, Store **ret);

static OpenFunction open_backend;
static char *dir;

static inline Store *open_store(void) {
        Store *s = NULL;

        assert(open_backend(dir, &s) == 0);
        return s;
}

static inline void add_agent(Store *s, const char *user, const char *name, uint64_t concurrency) {
        StoreAgent a = { .user = (char *) user, .uid = 1000, .name = (char *) name, .definition = (char *) "{}",
                         .concurrency = concurrency };
        StoreGeneration g = { .digest = (char *) D1, .author = (char *) user, .manifest = (char *) "{\"v\":1}" };

        assert(store_agent_add(s, &a, &g) == 0);
}

static inline StoreRunRequest request(const char *user, const char *agent, const char *input) {
        return (StoreRunRequest) {
                .user = user,
                .uid = 1000,
                .agent = agent,
                .trigger = "dbus",
                .timeout_usec = 60 * USEC_PER_SEC,
                .input = input,
                .input_size = strlen(input),
        };
}

static _unused_ const StoreQueueLimits no_bounds = {};
static _unused_ const StoreLiveLimits no_caps = {};
static _unused_ const StoreRunEnd success = {
        .result = RUN_RESULT_SUCCESS, .message = "done", .exit_code = 0, .exit_signal = -1,
        .usage = { 1, 2, 3, STORE_UNKNOWN }, .receipt = "{\"v\":1}",
};

static inline int enqueue(Store *s, const char *user, const char *agent, int priority,
                          char ret_id[static RUN_ID_LEN + 1]) {
        StoreRunRequest r = request(user, agent, "x");

        r.priority = priority;
        return store_run_enqueue(s, &r, &no_bounds, ret_id);
}

static inline StoreRun *claim(Store *s, const StoreLiveLimits *caps) {
        StoreRun *run = NULL;
        int r = store_run_claim(s, caps, &run);

        assert(r >= 0);
        assert((r == 1) == !!run);
        return run;
}

static inline StoreCounts counts(Store *s, const char *user, const char *agent) {
        StoreCounts c;

        assert(store_counts(s, user, agent, &c) == 0);
        return c;
}

static inline int open_sqlite(const char *where, Store **ret) {
        _cleanup_free_ char *path = strprintf("%s/store.db", where), *error = NULL;
        int r;

        assert(path);
        r = store_open_sqlite(path, ret, &error);
        if (r < 0)
                fprintf(stderr, "%s\n", strempty(error));
        return r;
}

typedef struct ContractCase {
        const char *name;
        void (*run)(void);
} ContractCase;

/* Each case in an empty directory of its own, for each back end. */
static inline int run_contract(const ContractCase *cases, size_t n) {
        static const struct {
                const char *name;
                OpenFunction open;
        } backends[] = {
                { "sqlite", open_sqlite },
        };

        for (size_t b = 0; b < ELEMENTSOF(backends); b++)
                for (size_t i = 0; i < n; i++) {
                        char template[] = "/tmp/test-store-XXXXXX";

                        printf("%s: %s\n", backends[b].name, cases[i].name);
                        fflush(stdout);
                        dir = mkdtemp(template);
                        assert(dir);
                        open_backend = backends[b].open;
                        cases[i].run();
                        assert(rm_rf_at(AT_FDCWD, dir) >= 0);
                }
        return 0;
}
