/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * Proves that a live file says the same after writing and reading, that a file that is gone, broken or
 * named after another run speaks for nobody, and that the cache never outlives the file.
 */

#undef NDEBUG

#include <dirent.h>
#include <sys/stat.h>

#include "basic/fs-util.h"
#include "basic/string-util.h"
#include "service/live-run.h"

#define RUN "0123456789abcdef0123456789abcdef"
#define OTHER "11111111111111111111111111111111"
#define JTI "fedcba9876543210fedcba9876543210"
#define SERVICE                                                                                    \
        "{\"name\":\"market-data\",\"base_url\":\"https://localhost:8443/api\","                                    \
        "\"allow\":[{\"methods\":[\"GET\"],\"paths\":[\"/*\"]}],\"auth\":{\"kind\":\"bearer\"}}"

static char directory[] = "/tmp/test-live-XXXXXX";

static LiveRun *example(const char *session) {
        _cleanup_(service_unrefp) Service *s = NULL;
        LiveRun *l;

        assert(live_run_new(&l) == 0);
        strcpy(l->run, RUN);
        strcpy(l->jti, JTI);
        l->user = strdup("alice");
        l->uid = 1000;
        l->agent = strdup("analyst");
        l->session = session ? strdup(session) : NULL;
        l->attempt = 2;
        l->deadline_usec = UINT64_C(1800000000000000);
        l->limits.artifacts = 7;
        assert(service_parse(SERVICE, strlen(SERVICE), 0, &s, NULL) == 0);
        assert(live_run_add_service(l, s) == 0);
        assert(live_run_add_service(l, s) == -EEXIST);
        return l;
}

static void test_round_trip(const char *session) {
        _cleanup_(live_run_unrefp) LiveRun *l = example(session), *m = NULL;
        struct stat st;
        _cleanup_free_ char *path = strprintf("%s/%s.json", directory, RUN);

        assert(live_run_read(directory, RUN, &m, NULL) == -ENOENT);
        assert(live_run_write(directory, l, (gid_t) -1) == 0);
        assert(stat(path, &st) == 0 && (st.st_mode & 07777) == 0640);
        assert(live_run_read(directory, RUN, &m, NULL) == 0);
        assert(streq(m->run, RUN) && streq(m->jti, JTI) && streq(m->user, "alice") && streq(m->agent, "analyst"));
        assert(m->uid == 1000 && m->attempt == 2 && m->deadline_usec == l->deadline_usec &&
               streq_ptr(m->session, session));
        assert(memcmp(&m->limits, &l->limits, sizeof(LiveLimits)) == 0);
        assert(m->n_services == 1 && live_run_find_service(m, "market-data") && !live_run_find_service(m, "other"));

        assert(live_run_read(directory, "../" RUN, &m, NULL) == -ENOENT);
        assert(live_run_remove(directory, RUN) == 0);
        assert(live_run_remove(directory, RUN) == 0);
        assert(live_run_remove(directory, "../x") == -EINVAL);
}

static void test_task(void) {
        static const char text[] = "{\"v\":1,  \"input\": \"verbatim\"}";
        _cleanup_free_ char *got = NULL;
        size_t n;

        assert(live_task_read(directory, RUN, &got, &n) == -ENOENT);
        assert(live_task_write(directory, RUN, text, strlen(text), (gid_t) -1) == 0);
        assert(live_task_read(directory, RUN, &got, &n) == 0);
        assert(n == strlen(text) && streq(got, text));
        assert(live_run_remove(directory, RUN) == 0);
        assert(live_task_write(directory, "x", text, strlen(text), (gid_t) -1) == -EINVAL);
}

static void put(const char *run, const char *text) {
        _cleanup_free_ char *path = strprintf("%s/%s.json", directory, run);

        assert(write_file_atomic(AT_FDCWD, path, text, strlen(text), 0640, (uid_t) -1, (gid_t) -1, 0) == 0);
}

static void test_broken(void) {
        _cleanup_(live_run_unrefp) LiveRun *l = example(NULL), *m = NULL;
        _cleanup_free_ char *json = NULL;
        static const char *const cuts[] = { "\"jti\"", "\"limits\"",  "\"services\"",
                                            "\"v\"",   "\"attempt\"", "\"session\"" };

        assert(live_run_to_json(l, &json) == 0);

        /* Under another name. */
        put(OTHER, json);
        assert(live_run_read(directory, OTHER, &m, NULL) == -EINVAL);
        assert(live_run_remove(directory, OTHER) == 0);

        /* Each member is needed. */
        for (size_t i = 0; i < ELEMENTSOF(cuts); i++) {
                _cleanup_free_ char *t = strdup(json), *error = NULL;
                char *p = strstr(t, cuts[i]);

                assert(p);
                p[1] = 'X';
                put(RUN, t);
                assert(live_run_read(directory, RUN, &m, &error) == -EINVAL);
                assert(error);
        }

        for (size_t n = 0; n < strlen(json); n += 7) {
                _cleanup_free_ char *t = strndup(json, n);

                put(RUN, t);
                assert(live_run_read(directory, RUN, &m, NULL) == -EINVAL);
        }
        assert(live_run_remove(directory, RUN) == 0);
        assert(!m);

        /* What would not be read is not written. */
        l->jti[0] = 'X';
        assert(live_run_write(directory, l, (gid_t) -1) == -EINVAL);
}

static void test_cache(void) {
        _cleanup_(live_cache_freep) LiveCache *c = NULL;
        _cleanup_(live_run_unrefp) LiveRun *l = example(NULL), *a = NULL, *b = NULL, *d = NULL;

        assert(live_cache_new(directory, &c) == 0);
        assert(live_cache_get(c, RUN, &a) == -ENOENT);
        assert(live_run_write(directory, l, (gid_t) -1) == 0);
        assert(live_cache_get(c, RUN, &a) == 0);
        assert(live_cache_get(c, RUN, &b) == 0);
        assert(a == b);

        /* The next attempt has another jti: seen at once. */
        l->attempt = 3;
        l->jti[0] = '0';
        assert(live_run_write(directory, l, (gid_t) -1) == 0);
        assert(live_cache_get(c, RUN, &d) == 0);
        assert(d != a && d->attempt == 3 && a->attempt == 2);

        assert(live_run_remove(directory, RUN) == 0);
        b = live_run_unref(b);
        assert(live_cache_get(c, RUN, &b) == -ENOENT);
        assert(d->attempt == 3); /* references of others live on */
}

static unsigned open_files(void) {
        DIR *d = opendir("/proc/self/fd");
        unsigned n = 0;

        assert(d);
        while (readdir(d))
                n++;
        closedir(d);
        return n;
}

static void get(LiveCache *c, const char *run, int expected) {
        _cleanup_(live_run_unrefp) LiveRun *l = NULL;

        assert(live_cache_get(c, run, &l) == expected);
}

/* Files of runs that are over, which nobody asks for again, are let go of when others come. */
static void test_cache_lets_go(void) {
        enum { N = 32 };
        _cleanup_(live_cache_freep) LiveCache *c = NULL;
        _cleanup_(live_run_unrefp) LiveRun *l = example(NULL);
        unsigned before = open_files();

        assert(live_cache_new(directory, &c) == 0);
        for (unsigned i = 0; i < 3 * N; i++) {
                snprintf(l->run, sizeof(l->run), "%032x", i);
                assert(live_run_write(directory, l, (gid_t) -1) == 0);
        }
        for (unsigned i = 0; i < 3 * N; i++) {
                snprintf(l->run, sizeof(l->run), "%032x", i);
                get(c, l->run, 0);
                if (i == N - 1) {
                        assert(open_files() == before + N);
                        for (unsigned k = 0; k < N; k++) {
                                snprintf(l->run, sizeof(l->run), "%032x", k);
                                assert(live_run_remove(directory, l->run) == 0);
                        }
                }
        }
        assert(open_files() == before + 2 * N);
        for (unsigned i = 0; i < 3 * N; i++) {
                snprintf(l->run, sizeof(l->run), "%032x", i);
                get(c, l->run, i < N ? -ENOENT : 0);
        }
        c = live_cache_free(c);
        assert(open_files() == before);
}

int main(void) {
        assert(mkdtemp(directory));
        test_round_trip(NULL);
        test_round_trip("monday:1");
        test_task();
        test_broken();
        test_cache();
        test_cache_lets_go();
        assert(rm_rf_at(AT_FDCWD, directory) == 0);
        return 0;
}
