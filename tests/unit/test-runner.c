/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Proves that a runner's manifest is read strictly; who gets the canary; which scripts a pattern names; what is no
 * UTF-8; what is made of the end of a check; that a node's identity changes with everything that is loaded with it, is
 * that of the environment where this cannot be told, and survives any damaged program; that the purge of compile caches
 * leaves the tree that they are in alone.
 */
#include <fcntl.h>
#include <sys/stat.h>

#include "../../daemons/agent-image/runner.h"
#include "basic/digest.h"
#include "basic/fs-util.h"
#include "basic/string-util.h"
#include "daemons/agentd/runner-check.h"
#include "daemons/agentd/runner.h"
#include "sandbox/node-identity.h"
#include "sandbox/runner-stage.h"

#define D1 "sha256:1111111111111111111111111111111111111111111111111111111111111111"
#define D2 "sha256:2222222222222222222222222222222222222222222222222222222222222222"
#define HEAD "{\"name\":\"n\",\"version\":\"1\",\"main\":\"main.cjs\","

static void test_manifest(void) {
        static const char *const bad[] = {
                "", "{}", "[]", HEAD "\"check\":[]}", HEAD "\"check\":[\"../x\"]}", HEAD "\"check\":[\"/x\"]}",
                HEAD "\"check\":[\"a//b\"]}", HEAD "\"check\":[\".x\"]}", HEAD "\"check\":[7]}", HEAD "\"check\":[\"a\"],\"other\":1}",
                HEAD "\"check\":[\"a\"],\"node\":\"bin/node\"}", HEAD "\"check\":[\"a\"],\"node_digest\":\"" D1 "\"}",
                HEAD "\"check\":[\"a\"],\"node\":\"bin/node\",\"node_digest\":\"x\"}", HEAD "\"check\":[\"a\"],\"invalid\":\"a\\nb\"}",
                "{\"name\":\"n\",\"version\":\"1\",\"main\":\"../main.cjs\",\"check\":[\"a\"]}",
        };
        _cleanup_(runner_unrefp) Runner *r = NULL;
        _cleanup_free_ char *path = NULL;

        for (size_t i = 0; i < ELEMENTSOF(bad); i++) {
                _cleanup_free_ char *error = NULL;

                assert(runner_from_manifest(D1, bad[i], &r, &error) < 0 && !r);
        }
        assert(runner_from_manifest("sha256:x", HEAD "\"check\":[\"a\"]}", &r, NULL) < 0);
        assert(runner_from_manifest(D1, HEAD "\"check\":[\"main.cjs\",\"lib/a.mjs\"]}", &r, NULL) == 0);
        assert(streq(r->digest, D1) && strv_length(r->check) == 2 && !r->node && !r->invalid);
        assert(runner_node_path(r, &path) == 0 && streq(path, "/usr/bin/node"));
        r = runner_unref(r);
        path = mfree(path);
        assert(runner_from_manifest(D2, HEAD "\"check\":[\"a\"],\"node\":\"bin/node\",\"node_digest\":\"" D1 "\"}", &r,
                                    NULL) == 0);
        assert(runner_node_path(r, &path) == 0 && streq(path, "/opt/agentd/runner/bin/node"));
}

static void test_canary(void) {
        Runner named = { .agents = (char *) "root/one alice/two" }, share = { .percent = 30 }, none = { .percent = 0 };
        unsigned n = 0;

        assert(runner_canary_takes(&named, "root", "one", "x") && runner_canary_takes(&named, "alice", "two", "x"));
        assert(!runner_canary_takes(&named, "root", "two", "x") && !runner_canary_takes(&named, "root", "on", "x"));
        assert(!runner_canary_takes(&named, "alice", "one", "x") && !runner_canary_takes(&named, "", "one", "x"));
        for (unsigned i = 0; i < 10000; i++) {
                char id[33];

                snprintf(id, sizeof id, "%032x", i);
                n += runner_canary_takes(&share, "root", "one", id);
                assert(!runner_canary_takes(&none, "root", "one", id));
                assert(runner_canary_takes(&share, "root", "one", id) == runner_canary_takes(&share, "bob", "x", id));
        }
        assert(n > 2700 && n < 3300);
}

static void test_patterns(void) {
        assert(runner_pattern_matches("*.js", "main.js") && runner_pattern_matches("*.js", "lib/deep/a.js"));
        assert(!runner_pattern_matches("*.js", "main.mjs") && !runner_pattern_matches("*.js", "node_modules/x/a.js"));
        assert(!runner_pattern_matches("*.js", "lib/node_modules/x/a.js") &&
               !runner_pattern_matches("*.js", ".hidden.js"));
        assert(runner_pattern_matches("node_modules/*/a.js", "node_modules/x/a.js"));
        assert(runner_pattern_matches("lib/*.js", "lib/a.js") && !runner_pattern_matches("lib/*.js", "lib/deep/a.js"));

        assert(utf8_bad_line("", 0) == 0 && utf8_bad_line("a\nä\n", 5) == 0);
        assert(utf8_bad_line("a\n\xff\n", 4) == 2 && utf8_bad_line("\xc3\n\xa4", 3) == 1 &&
               utf8_bad_line("a\nb\n\xc3", 5) == 3);
}

static void test_judge(void) {
        static const char syntax[] = "file:///opt/agentd/runner/lib/a.mjs:12\nlet x = ;\n        ^\n\n"
                                     "SyntaxError: Unexpected token ';'\n    at x\n\nNode.js v20.19.2\n";
        static const struct {
                const char *output, *result;
                int status;
                CheckVerdict verdict;
                const char *reason;
        } cases[] = {
                { "", "success", 0, CHECK_OK, NULL },
                { syntax, "exit-code", 1, CHECK_BROKEN,
                  "lib/a.mjs:12: SyntaxError: Unexpected token ';' (Node.js v20.19.2)" },
                { "/opt/agentd/runner/a.js:1\nx\n", "exit-code", 1, CHECK_BROKEN,
                  "a.js:1: node --check refuses it (node)" },
                { "rubbish \x01\xff", "exit-code", 1, CHECK_BROKEN,
                  "node --check refuses a script without saying why" },
                { syntax, "exit-code", CHECK_STATUS_BLIND, CHECK_ERROR, "node ends with 0 but does not check" },
                { "", "exit-code", CHECK_STATUS_TIMED_OUT, CHECK_ERROR, "did not end in time" },
                { "", "exit-code", CHECK_STATUS_KILLED, CHECK_ERROR, "killed" },
                { "", "exit-code", CHECK_STATUS_NOT_STARTED, CHECK_ERROR, "cannot be executed" },
                { "bad \x01\xff thing\nmore", "exit-code", CHECK_STATUS_ODD, CHECK_ERROR, "exit-code\": bad  ? thing" },
                { "", "oom-kill", 9, CHECK_ERROR, "oom-kill" },
                { "", "timeout", 15, CHECK_ERROR, "timeout" },
                { syntax, "signal", 1, CHECK_ERROR, "signal" },
                /* Nothing counts without agent-check's word; its word counts more than PID 1's. */
                { "", "success", CHECK_STATUS_NONE, CHECK_ERROR, "success" },
                { syntax, "success", 1, CHECK_BROKEN, "lib/a.mjs:12" },
                { "", "exit-code", 0, CHECK_OK, NULL },
        };

        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                _cleanup_free_ char *reason = NULL;

                assert(runner_check_judge(cases[i].output, cases[i].result, cases[i].status, &reason) ==
                       cases[i].verdict);
                assert(!cases[i].reason == !reason);
                if (reason && !strstr(reason, cases[i].reason))
                        fprintf(stderr, "%zu: %s\n", i, reason);
                assert(!reason || (strstr(reason, cases[i].reason) && utf8_is_valid(reason, strlen(reason)) &&
                                   !string_has_cc(reason)));
        }
}

static char top[] = "/tmp/test-runner-XXXXXX";

static const char *at(const char *path) {
        static char buf[4][PATH_MAX];
        static unsigned i;
        char *p = buf[i++ % ELEMENTSOF(buf)];

        snprintf(p, PATH_MAX, "%s/%s", top, path);
        return p;
}

static void put(const char *path, const void *data, size_t size, mode_t mode) {
        _cleanup_free_ char *parent = strdup(at(path));

        assert(parent);
        *strrchr(parent, '/') = 0;
        assert(mkdir_parents(parent, 0755) >= 0);
        assert(write_file_atomic(AT_FDCWD, at(path), data, size, mode, (uid_t) -1, (gid_t) -1, 0) >= 0);
}

static void identity(const char *environment, char ret[static DIGEST_LEN + 1]) {
        char message[STEP_MESSAGE_MAX];

        assert(node_identity(top, NULL, environment, ret, message) >= 0);
}

static void test_identity(void) {
        char a[DIGEST_LEN + 1], b[DIGEST_LEN + 1], message[STEP_MESSAGE_MAX];
        _cleanup_free_ char *self = NULL;
        size_t size;

        assert(mkdir_parents(at("usr/bin"), 0755) >= 0);
        assert(node_identity(top, NULL, D1, a, message) == -ENOENT);
        put("usr/bin/node", "#!/bin/sh\n", 10, 0644);
        assert(node_identity(top, NULL, D1, a, message) == -ENOEXEC);

        /* A script could run anything: its identity is that of the environment. */
        put("usr/bin/node", "#!/bin/sh\n", 10, 0755);
        identity(D1, a);
        identity(D2, b);
        assert(!streq(a, b));

        /* A program of this machine whose libraries are all missing is not known any better. */
        assert(read_full_file_at(AT_FDCWD, "/proc/self/exe", 256U << 20, &self, &size) >= 0);
        put("usr/bin/node", self, size, 0755);
        identity(D1, a);
        identity(D2, b);
        assert(!streq(a, b));

        /* Damaged in every way: some answer, and no crash. */
        for (size_t n = 0; n < 2000; n += 37) {
                put("usr/bin/node", self, n, 0755);
                identity(D1, a);
        }
        for (size_t n = 0; n < 4096; n += 5) {
                char old = self[n];

                self[n] = (char) (old ^ (char) (1 << (n % 8)) ^ (n % 3 ? 0 : -1));
                put("usr/bin/node", self, MIN(size, (size_t) 65536), 0755);
                identity(D1, a);
                self[n] = old;
        }
        /* A link that leads out does not. */
        assert(unlink(at("usr/bin/node")) >= 0 &&
               symlink("../../../../../../../../proc/self/exe", at("usr/bin/node")) >= 0);
        assert(node_identity(top, NULL, D1, a, message) == -ENOENT);
        assert(rm_rf_at(AT_FDCWD, at("usr")) >= 0);
}

/* With the test's own libraries beside it, a program is known whatever the environment. */
static void test_identity_of_a_whole(void) {
        char a[DIGEST_LEN + 1], b[DIGEST_LEN + 1], c[DIGEST_LEN + 1], message[STEP_MESSAGE_MAX];

        if (access("/usr/bin/true", X_OK) < 0 || access("/lib64", F_OK) < 0)
                return;
        assert(node_identity("/", "/usr/bin/true", D1, a, message) >= 0);
        assert(node_identity("/", "/usr/bin/true", D2, b, message) >= 0);
        assert(streq(a, b));
        assert(node_identity("/", "/usr/bin/env", D1, c, message) >= 0 && !streq(a, c));
}

static void test_purge(void) {
        char message[STEP_MESSAGE_MAX];

        put("etc/passwd", "x", 1, 0644);
        put("home/agent/.cache/v8-compile-cache/a/b", "x", 1, 0644);
        put("home/agent/.cache/node-compile-cache/v20-x-y/b", "x", 1, 0644);
        put("home/agent/.cache/other", "x", 1, 0644);
        put("cc/v20.1.0-x64-12345678-1000/b", "x", 1, 0644);
        put("cc/mine/b", "x", 1, 0644);
        assert(compile_cache_purge(top, "/cc", message) == 0);
        assert(access(at("home/agent/.cache/v8-compile-cache"), F_OK) < 0 &&
               access(at("home/agent/.cache/node-compile-cache"), F_OK) < 0);
        assert(access(at("home/agent/.cache/other"), F_OK) == 0 && access(at("cc/mine/b"), F_OK) == 0);
        assert(access(at("cc/v20.1.0-x64-12345678-1000"), F_OK) < 0);

        assert(symlink("/etc", at("home/agent/.cache/v8-compile-cache")) >= 0);
        assert(symlink("/nowhere", at("loop")) >= 0);
        assert(compile_cache_purge(top, "/loop", message) == 0 && compile_cache_purge(top, NULL, message) == 0);
        assert(access(at("home/agent/.cache/v8-compile-cache"), F_OK) < 0 && access(at("etc/passwd"), F_OK) == 0);
        assert(rm_rf_at(AT_FDCWD, at("home")) >= 0);
        assert(compile_cache_purge(top, "../../..", message) == 0);
        assert(access(at("etc/passwd"), F_OK) == 0);
}

int main(void) {
        test_manifest();
        test_canary();
        test_patterns();
        test_judge();
        assert(mkdtemp(top));
        test_identity();
        test_identity_of_a_whole();
        test_purge();
        assert(rm_rf_at(AT_FDCWD, top) >= 0);
        return 0;
}
