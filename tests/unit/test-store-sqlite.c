/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * What only the SQLite back end can be asked: that its work does not grow with the finished runs (by plan and by
 * counted steps of SQLite's machine, never by the clock), that a power cut leaves a whole transaction or none of it,
 * what a full disk does, and that a damaged, foreign or newer database is refused and left as it is.
 */
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "store-contract.h"
#include "store/store-sqlite.h"

#define N_FINISHED 100000

static char *db_path(void) {
        static char path[PATH_MAX];

        snprintf(path, sizeof path, "%s/store.db", dir);
        return path;
}

static uint64_t number(sqlite3 *db, const char *sql) {
        sqlite3_stmt *st;
        uint64_t n;

        assert(sqlite3_prepare_v2(db, sql, -1, &st, NULL) == SQLITE_OK);
        assert(sqlite3_step(st) == SQLITE_ROW);
        n = (uint64_t) sqlite3_column_int64(st, 0);
        sqlite3_finalize(st);
        return n;
}

static void check_whole(sqlite3 *db) {
        sqlite3_stmt *st;

        assert(sqlite3_prepare_v2(db, "PRAGMA integrity_check", -1, &st, NULL) == SQLITE_OK);
        assert(sqlite3_step(st) == SQLITE_ROW);
        assert(streq((const char *) sqlite3_column_text(st, 0), "ok"));
        sqlite3_finalize(st);
        /* The counters say what is there. */
        assert(number(db,
               "SELECT COUNT(*) FROM users u WHERE queued <> (SELECT COUNT(*) FROM runs WHERE user_id = u.id "
                          "AND state = 0) OR live <> (SELECT COUNT(*) FROM runs WHERE user_id = u.id AND "
                          "state IN (1, 2))") == 0);
        assert(number(db,
               "SELECT COUNT(*) FROM lanes l WHERE queued <> (SELECT COUNT(*) FROM runs WHERE lane_id = l.id "
                          "AND state = 0) OR live <> (SELECT COUNT(*) FROM runs WHERE lane_id = l.id AND "
                          "state IN (1, 2))") == 0);
        assert(number(db,
                      "SELECT COUNT(*) FROM users u WHERE finished <> (SELECT COUNT(*) FROM runs WHERE user_id = u.id "
                      "AND state = 3) OR finished_bytes <> (SELECT COALESCE(SUM(size), 0) FROM runs WHERE "
                      "user_id = u.id AND state = 3) OR artifact_bytes <> (SELECT COALESCE(SUM(a.size + reserved), 0) "
                      "FROM artifacts a JOIN runs r USING (seq) WHERE r.user_id = u.id)") == 0);
        /* No name of an agent without an agent or a run of it. */
        assert(number(db,
               "SELECT COUNT(*) FROM lanes l WHERE NOT EXISTS (SELECT 1 FROM agents WHERE lane_id = l.id) AND "
                          "NOT EXISTS (SELECT 1 FROM runs WHERE lane_id = l.id)") == 0);
        assert(number(db,
               "SELECT COUNT(*) FROM runs r WHERE NOT EXISTS (SELECT 1 FROM run_inputs i WHERE i.seq = r.seq)"
                          " AND r.trigger <> 'bulk'") == 0);
}

/* ---- cost ---- */

typedef struct Cost {
        uint64_t steps;      /* of SQLite's virtual machine */
        uint64_t most;       /* of one statement */
        char *dearest;
        char **statements;
} Cost;

static int on_profile(unsigned type, void *userdata, void *p, void *x _unused_) {
        Cost *c = userdata;

        if (type == SQLITE_TRACE_STMT) {
                const char *sql = sqlite3_sql(p);

                if (!strv_contains(c->statements, sql))
                        assert(strv_extend(&c->statements, sql) >= 0);
        } else {
                uint64_t steps = (uint64_t) sqlite3_stmt_status(p, SQLITE_STMTSTATUS_VM_STEP, 1);

                if (steps > c->most) {
                        c->most = steps;
                        assert(free_and_strdup(&c->dearest, sqlite3_sql(p)) >= 0);
                }
                c->steps += steps;
        }
        return 0;
}

static int ignore_run(const StoreRun *run _unused_, void *userdata _unused_) {
        return 0;
}

static int ignore_user(const StoreUser *user _unused_, void *userdata _unused_) {
        return 0;
}

/* Every verb that agentd calls while it works, once or more. */
static void exercise(Store *s) {
        StoreRunFilter f = STORE_RUN_FILTER_ANY;
        StoreRunRequest req = request("alice", "x", "1");
        StoreQueueLimits bounds = { .queued = 1000, .queued_per_user = 1000, .queued_per_agent = 1000,
                                    .finished_bytes_per_user = INT64_MAX };
        StoreLiveLimits caps = { .live = 1000, .live_per_user = 1000, .lease_usec = USEC_PER_SEC };
        const StoreArtifactLimits artifacts = { .max = 10, .bytes = 1, .bytes_per_user = 1000000 };
        StoreOldest oldest = { .limit = 10 };
        char id[RUN_ID_LEN + 1], before[RUN_ID_LEN + 1];
        static char key[32];
        static int n;
        uint64_t next;
        RunState state;

        for (int i = 0; i < 3; i++) {
                StoreRun *run;

                snprintf(key, sizeof key, "key-%d", n++);
                req.idempotency_key = key;
                assert(store_run_enqueue(s, &req, &bounds, id) == 1);
                assert(store_run_enqueue(s, &req, &bounds, before) == 0);
                run = claim(s, &caps);
                assert(run && streq(run->id, id));
                assert(store_run_set_prepared(s, id, run->fence, &(StoreRunPlan) { .unit = "u" }) == 0);
                assert(store_run_set_running(s, id, run->fence, "i", 1, 1, NULL) == 0);
                assert(store_run_extend(s, id, run->fence, 1) == 0);
                assert(store_run_post_result(s, id, 1, "{}") == 1);
                assert(store_call_add(s, id, 1, "c", "{}") == 1);
                assert(store_artifact_begin(s, id, 1, "a", &artifacts) == 0);
                assert(store_artifact_commit(s, id, 1, "a", 1, "") == 0);
                if (i == 0)
                        assert(store_run_requeue(s, id, run->fence, NULL, UINT64_C(1) << 60) == 0);
                assert(store_run_cancel_request(s, id, "a", &state) == 1);
                assert(store_run_finish(s, id, run->fence, &success) == 0);
                store_run_free(run);
        }
        assert(store_queue_next(s, &next) == 0);
        assert(store_runs_unfinished(s, ignore_run, NULL) == 0);
        assert(store_runs_expired(s, UINT64_C(1) << 60, ignore_run, NULL) == 0);
        (void) counts(s, NULL, NULL);
        (void) counts(s, "alice", NULL);
        (void) counts(s, "alice", "x");

        for (int i = 0; i < 3; i++) {
                oldest.user = i > 0 ? "alice" : NULL;
                oldest.agent = i > 1 ? "x" : NULL;
                oldest.after_seq = 0;
                assert(store_runs_oldest(s, &oldest, ignore_run, NULL) > 0);
                oldest.after_seq = 2;
                assert(store_runs_oldest(s, &oldest, ignore_run, NULL) > 0);
                assert(store_run_newest(s, oldest.user, oldest.agent, 2, &next) == 0);
        }
        assert(store_users(s, ignore_user, NULL) > 0);

        /* All combinations of the filter, first page and a later one. */
        for (unsigned mask = 0; mask < 32; mask++) {
                f = STORE_RUN_FILTER_ANY;
                f.limit = 10;
                if (mask & 1)
                        f.user = "alice";
                if (mask & 2) {
                        f.user = "alice";
                        f.agent = "x";
                }
                if (mask & 4)
                        f.state = mask & 8 ? RUN_FINISHED : RUN_QUEUED;
                if (mask & 8)
                        f.result = RUN_RESULT_OOM_KILL;
                if (mask & 16)
                        f.before = id;
                assert(store_run_list(s, &f, ignore_run, NULL) >= 0);
        }
        f = STORE_RUN_FILTER_ANY;
        f.result = RUN_RESULT_LOST; /* nobody has one */
        assert(store_run_list(s, &f, ignore_run, NULL) == 0);
        f = STORE_RUN_FILTER_ANY;
        f.parent = id;
        assert(store_run_list(s, &f, ignore_run, NULL) == 0);
        assert(store_runs_remove(s, (char *[]) { id, NULL }) == 1);
}

static uint64_t measure(Store *s, char ***ret_statements) {
        Cost c = {};

        assert(sqlite3_trace_v2(SQLITE_STORE(s)->db, SQLITE_TRACE_STMT | SQLITE_TRACE_PROFILE, on_profile, &c) ==
               SQLITE_OK);
        exercise(s);
        assert(sqlite3_trace_v2(SQLITE_STORE(s)->db, 0, NULL, NULL) == SQLITE_OK);
        printf("  %" PRIu64 " steps; the dearest statement, with %" PRIu64 ": %.60s … %s\n", c.steps, c.most, c.dearest,
               strstr(c.dearest, "WHERE") ?: "");
        fflush(stdout);
        free(c.dearest);
        if (ret_statements)
                *ret_statements = c.statements;
        else
                strv_free(c.statements);
        return c.steps;
}

/* No statement reads the whole of a table that grows with the number of runs, or sorts what it read. */
static void check_plan(sqlite3 *db, const char *sql) {
        static const char *const growing[] = {
                "runs", "run_inputs", "run_results", "run_receipts", "calls", "artifacts", "r", "x", "d", "p",
        };
        _cleanup_free_ char *explain = strprintf("EXPLAIN QUERY PLAN %s", sql);
        sqlite3_stmt *st;

        assert(explain);
        if (sqlite3_prepare_v2(db, explain, -1, &st, NULL) != SQLITE_OK)
                return; /* "-- trigger" and the like */
        while (sqlite3_step(st) == SQLITE_ROW) {
                const char *detail = (const char *) sqlite3_column_text(st, 3), *rest = startswith(detail, "SCAN ");

                for (size_t i = 0; rest && i < ELEMENTSOF(growing); i++) {
                        const char *after = startswith(rest, growing[i]);

                        if (!after || (*after && *after != ' '))
                                continue;
                        /* In order of age with a limit, or over an index that holds unfinished runs only. */
                        if ((strstr(sql, "LIMIT ?6") || strstr(sql, "OFFSET ?")) && !*after)
                                continue;
                        if (strstr(rest, "runs_unfinished") || strstr(rest, "runs_delayed") ||
                            strstr(rest, "runs_leased") || strstr(rest, "runs_queue"))
                                continue;
                        fprintf(stderr, "%s\n  in: %s\n", detail, sql);
                        assert(false);
                }
                if (strstr(detail, "TEMP B-TREE") && !strstr(sql, "FROM lanes l JOIN agents")) {
                        fprintf(stderr, "%s\n  in: %s\n", detail, sql);
                        assert(false);
                }
        }
        sqlite3_finalize(st);
}

static void add_finished(sqlite3 *db, const char *user, RunResult result) {
        _cleanup_free_ char *sql = strprintf(
                "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < %d) "
                "INSERT INTO runs (id, user_id, lane_id, uid, trigger, input_digest, priority, keep, timeout_usec, "
                "state, result, created_usec, queued_usec, finished_usec) SELECT "
                "printf('%%06x%%026x', u.id, i), u.id, l.id, 1000, 'bulk', '" D1 "', 0, 0, 1, 3, %d, i, i, i "
                "FROM n JOIN users u JOIN lanes l ON l.user_id = u.id "
                "WHERE u.name = '%s' AND l.agent = 'x'", N_FINISHED, (int) result, user);

        assert(sql && sqlite3_exec(db, sql, NULL, NULL, NULL) == SQLITE_OK);
        assert(number(db, "SELECT COUNT(*) FROM runs WHERE state = 3") >= N_FINISHED);
}

static void test_cost(void) {
        _cleanup_(store_freep) Store *s = open_store();
        _cleanup_strv_free_ char **statements = NULL;
        sqlite3 *db = SQLITE_STORE(s)->db;
        uint64_t few, many;

        add_agent(s, "alice", "x", 100);
        add_agent(s, "bob", "x", 100);
        exercise(s); /* prepares */
        few = measure(s, &statements);
        /* Others may have many of the result that alice asks for and has never had. */
        add_finished(db, "alice", RUN_RESULT_SUCCESS);
        add_finished(db, "bob", RUN_RESULT_OOM_KILL);
        many = measure(s, NULL);
        /* A list has more rows to show now, up to its limit; beyond that nothing may grow. */
        assert(few > 0 && many < 2 * few);
        assert(strv_length(statements) > 40);
        for (char **sql = statements; *sql; sql++)
                check_plan(db, *sql);
        check_whole(db);
}

/* ---- power cut ---- */

static void copy_file(const char *from, const char *to, size_t max) {
        _cleanup_free_ char *data = NULL;
        size_t size;

        assert(read_full_file_at(AT_FDCWD, from, 64 << 20, &data, &size) == 0);
        assert(write_file_atomic(AT_FDCWD, to, data, MIN(size, max), 0600, (uid_t) -1, (gid_t) -1, 0) >= 0);
}

/* The files as a cut leaves them: the database and any part of its log. What each commit made is there as a whole or
 * not at all, in order; with the whole log everything is. */
static void test_power_cut(void) {
        _cleanup_(store_freep) Store *s = open_store();
        _cleanup_free_ char *wal = strprintf("%s-wal", db_path());
        _cleanup_free_ char *cut = strprintf("%s/cut.db", dir), *cut_wal = strprintf("%s/cut.db-wal", dir);
        char ids[20][RUN_ID_LEN + 1];
        unsigned most = 0;
        struct stat st;

        assert(wal && cut && cut_wal);
        add_agent(s, "a", "x", 100);
        assert(sqlite3_wal_checkpoint_v2(SQLITE_STORE(s)->db, NULL, SQLITE_CHECKPOINT_TRUNCATE, NULL, NULL) ==
               SQLITE_OK);
        for (unsigned i = 0; i < ELEMENTSOF(ids); i++) {
                assert(enqueue(s, "a", "x", 0, ids[i]) == 1);
                if (i % 2 == 1) {
                        _cleanup_(store_run_freep) StoreRun *run = claim(s, &no_caps);

                        assert(store_run_finish(s, run->id, 1, &success) == 0);
                }
        }
        assert(stat(wal, &st) == 0 && st.st_size > 4096);
        for (size_t keep = 0;; keep += 4096 + 1237) {
                Store *c = NULL;
                unsigned n = 0;
                bool gap = false;

                keep = MIN(keep, (size_t) st.st_size);
                copy_file(db_path(), cut, SIZE_MAX);
                copy_file(wal, cut_wal, keep);
                assert(store_open_sqlite(cut, &c, NULL) == 0);
                for (unsigned i = 0; i < ELEMENTSOF(ids); i++) {
                        _cleanup_(store_run_freep) StoreRun *run = NULL;
                        _cleanup_free_ char *text = NULL;
                        int r = store_run_get(c, ids[i], &run);

                        assert(r == 0 || r == -ENOENT);
                        assert(r < 0 || !gap);
                        gap = gap || r < 0;
                        n += r == 0;
                        if (r == 0)
                                assert((run->state == RUN_FINISHED) ==
                                       (store_run_get_receipt(c, ids[i], &text) == 0));
                }
                check_whole(SQLITE_STORE(c)->db);
                store_free(c);
                assert(n >= most);
                most = n;
                if (keep == (size_t) st.st_size)
                        break;
        }
        assert(most == ELEMENTSOF(ids));
}

/* ---- full disk, failing writes ---- */

static int fill(Store *s, char ret_last[static RUN_ID_LEN + 1], unsigned *ret_n) {
        static char input[32768];
        StoreRunRequest req = request("a", "x", input);

        memset(input, 'x', sizeof input);
        req.input_size = sizeof input;
        for (*ret_n = 0; *ret_n < 10000; ++*ret_n) {
                int r = store_run_enqueue(s, &req, &no_bounds, ret_last);

                if (r < 0)
                        return r;
        }
        return 0;
}

static void full_disk(void) {
        _cleanup_free_ char *filler = strprintf("%s/filler", dir);
        _cleanup_(store_run_freep) StoreRun *run = NULL, *same = NULL;
        _cleanup_free_ char *leavings = strprintf("%s/rest", dir);
        _cleanup_close_ int fd = -EBADF, rest = -EBADF;
        _cleanup_(store_freep) Store *s = NULL;
        static char receipt[100000];
        StoreRunEnd end = success;
        sqlite3 *reader = NULL;
        char id[RUN_ID_LEN + 1];
        unsigned n;
        int r;

        rest = open(leavings, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
        assert(rest >= 0);
        fd = open(filler, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
        assert(fd >= 0 && posix_fallocate(fd, 0, 1 << 20) == 0);
        s = open_store();
        add_agent(s, "a", "x", 100);
        assert(enqueue(s, "a", "x", 0, id) == 1);
        run = claim(s, &no_caps);
        assert(fill(s, id, &n) == -ENOSPC);
        printf("  %u enqueued, then: %s\n", n, store_error(s));
        assert(counts(s, NULL, NULL).queued == n && counts(s, NULL, NULL).live == 1);
        /* Fill the rest, so that not even the end of a run fits: and let somebody read, so that the log is not begun
         * anew in room that it has. */
        assert(sqlite3_open_v2(db_path(), &reader, SQLITE_OPEN_READONLY, NULL) == SQLITE_OK);
        assert(sqlite3_exec(reader, "BEGIN; SELECT COUNT(*) FROM runs", NULL, NULL, NULL) == SQLITE_OK);
        while ((r = store_run_post_result(s, run->id, 1, "{}")) == 0 || r == 1)
                if (enqueue(s, "a", "x", 0, id) < 0)
                        break;
        while (enqueue(s, "a", "x", 0, id) == 1)
                n++;
        n = (unsigned) counts(s, NULL, NULL).queued;
        while (write(rest, id, sizeof id) > 0)
                ;
        /* Larger than what a failed call may have left room for at the end of the log. */
        memset(receipt, ' ', sizeof receipt - 1);
        end.receipt = receipt;
        r = store_run_finish(s, run->id, run->fence, &end);
        assert(r == -ENOSPC);
        assert(sqlite3_close(reader) == SQLITE_OK);
        assert(store_run_get(s, run->id, &same) == 0 && same->state == RUN_PREPARING);
        /* Room again, and it goes on as if nothing had been, also for one who comes anew. */
        assert(ftruncate(fd, 0) == 0 && ftruncate(rest, 0) == 0);
        assert(store_run_finish(s, run->id, run->fence, &end) == 0);
        assert(enqueue(s, "a", "x", 0, id) == 1);
        check_whole(SQLITE_STORE(s)->db);
        s = store_free(s);
        s = open_store();
        assert(counts(s, NULL, NULL).queued == n + 1 && counts(s, NULL, NULL).live == 0);
}

static void in_child(void (*f)(void)) {
        pid_t child = fork();
        int status;

        assert(child >= 0);
        if (child == 0) {
                f();
                fflush(NULL);
                _exit(0);
        }
        assert(waitpid(child, &status, 0) == child);
        assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void mount_and_fill(void) {
        if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
            mount("tmpfs", dir, "tmpfs", 0, "size=3m") < 0) {
                printf("  skipped: cannot mount a tmpfs: %m\n");
                return;
        }
        full_disk();
}

static void test_full_disk(void) {
        in_child(mount_and_fill);
}

/* Writes that fail for another reason: the same promise. */
static void fail_writes(void) {
        struct rlimit limit;
        _cleanup_(store_freep) Store *s = open_store();
        char id[RUN_ID_LEN + 1];
        unsigned n;

        signal(SIGXFSZ, SIG_IGN);
        add_agent(s, "a", "x", 100);
        assert(getrlimit(RLIMIT_FSIZE, &limit) == 0);
        limit.rlim_cur = 1 << 20;
        assert(setrlimit(RLIMIT_FSIZE, &limit) == 0);
        assert(fill(s, id, &n) == -EIO && n > 0);
        assert(counts(s, NULL, NULL).queued == n);
        limit.rlim_cur = limit.rlim_max;
        assert(setrlimit(RLIMIT_FSIZE, &limit) == 0);
        assert(enqueue(s, "a", "x", 0, id) == 1);
        assert(counts(s, NULL, NULL).queued == n + 1);
        check_whole(SQLITE_STORE(s)->db);
}

static void test_failing_writes(void) {
        in_child(fail_writes);
}

/* ---- what is refused ---- */

static void refused(int expected, const char *part) {
        _cleanup_free_ char *error = NULL, *before = NULL, *after = NULL;
        size_t size_before, size_after;
        Store *s = NULL;
        int r;

        assert(read_full_file_at(AT_FDCWD, db_path(), 64 << 20, &before, &size_before) == 0);
        r = store_open_sqlite(db_path(), &s, &error);
        printf("  %s\n", strempty(error));
        assert(r == expected && !s && error && strstr(error, part) && strstr(error, db_path()));
        assert(read_full_file_at(AT_FDCWD, db_path(), 64 << 20, &after, &size_after) == 0);
        assert(size_before == size_after && memcmp(before, after, size_after) == 0);
}

static void execute(const char *sql) {
        sqlite3 *db;

        assert(sqlite3_open(db_path(), &db) == SQLITE_OK);
        assert(sqlite3_exec(db, sql, NULL, NULL, NULL) == SQLITE_OK);
        sqlite3_close(db);
}

/* A store of before the sizes were counted has them counted. */
static void test_upgrade(void) {
        static const char *const triggers[] = {
                "runs_insert_finished", "runs_finish", "runs_delete_finished", "artifacts_insert", "artifacts_update",
                "artifacts_delete", "sessions_insert", "sessions_update", "sessions_delete",
        };
        static const char *const columns[] = {
                "users DROP COLUMN finished", "users DROP COLUMN finished_bytes", "users DROP COLUMN artifact_bytes",
                "users DROP COLUMN session_bytes", "runs DROP COLUMN size", "artifacts DROP COLUMN reserved",
        };
        Store *s = open_store();
        const StoreArtifactLimits limits = { .max = 1 };
        StoreSession state = { .data = (char *) "12345", .size = 5 };
        char id[RUN_ID_LEN + 1];
        uint64_t rev, sizes;

        add_agent(s, "a", "x", 1);
        assert(enqueue(s, "a", "x", 0, id) == 1);
        store_run_free(claim(s, &no_caps));
        assert(store_artifact_begin(s, id, 1, "f", &limits) == 0 && store_artifact_commit(s, id, 1, "f", 7, "") == 0);
        assert(store_run_finish(s, id, 1, &success) == 0);
        assert(store_session_put(s, "a", "x", "1", &state, STORE_UNKNOWN, 0, &rev) == 1);
        sizes = number(SQLITE_STORE(s)->db, "SELECT finished_bytes FROM users");
        assert(sizes > STORE_RUN_OVERHEAD);
        store_free(s);
        for (size_t i = 0; i < ELEMENTSOF(triggers); i++) {
                _cleanup_free_ char *sql = strprintf("DROP TRIGGER %s", triggers[i]);

                execute(sql);
        }
        for (size_t i = 0; i < ELEMENTSOF(columns); i++) {
                _cleanup_free_ char *sql = strprintf("ALTER TABLE %s", columns[i]);

                execute(sql);
        }
        execute("PRAGMA user_version = 4");
        s = open_store();
        check_whole(SQLITE_STORE(s)->db);
        assert(number(SQLITE_STORE(s)->db, "SELECT finished_bytes FROM users") == sizes);
        assert(number(SQLITE_STORE(s)->db, "SELECT artifact_bytes FROM users") == 7);
        assert(number(SQLITE_STORE(s)->db, "SELECT session_bytes FROM users") == 5);
        assert(store_runs_remove(s, (char *[]) { id, NULL }) == 1);
        check_whole(SQLITE_STORE(s)->db);

        /* An agent, then its last run, and the other way round. */
        assert(enqueue(s, "a", "x", 0, id) == 1);
        store_run_free(claim(s, &no_caps));
        assert(store_run_finish(s, id, 1, &success) == 0);
        assert(store_agent_remove(s, "a", "x") == 0);
        assert(number(SQLITE_STORE(s)->db, "SELECT COUNT(*) FROM lanes") == 1);
        assert(store_runs_remove(s, (char *[]) { id, NULL }) == 1);
        assert(number(SQLITE_STORE(s)->db, "SELECT COUNT(*) FROM lanes") == 0);
        add_agent(s, "a", "x", 1);
        assert(store_agent_remove(s, "a", "x") == 0);
        check_whole(SQLITE_STORE(s)->db);
        store_free(s);
}

static void test_refused(void) {
        static char rubbish[8192];
        Store *s = open_store();
        char id[RUN_ID_LEN + 1];
        uint64_t current;
        char version[64];
        struct stat st;
        int fd;

        assert(stat(db_path(), &st) == 0 && (st.st_mode & 07777) == 0600);
        assert(sq_number(SQLITE_STORE(s), &current, "PRAGMA user_version", "") == 0);
        snprintf(version, sizeof version, "PRAGMA user_version = %" PRIu64, current);
        for (int i = 0; i < 200; i++) {
                char name[32];

                snprintf(name, sizeof name, "agent-%d", i);
                add_agent(s, "a", name, 1);
        }
        assert(enqueue(s, "a", "agent-0", 0, id) == 1);
        s = store_free(s);
        assert(stat(db_path(), &st) == 0 && st.st_size > 65536);

        execute("PRAGMA user_version = 999");
        refused(-EPROTONOSUPPORT, "newer agentd");
        execute(version);
        store_free(open_store());

        /* Pages in the middle overwritten. */
        memset(rubbish, 0xa5, sizeof rubbish);
        fd = open(db_path(), O_WRONLY | O_CLOEXEC);
        assert(fd >= 0);
        for (off_t o = 40 * 1024; o + (off_t) sizeof rubbish < st.st_size; o += 2 * (off_t) sizeof rubbish)
                assert(pwrite(fd, rubbish, sizeof rubbish, o) == (ssize_t) sizeof rubbish);
        safe_close(fd);
        refused(-EUCLEAN, "damaged");

        assert(write_file_atomic(AT_FDCWD, db_path(), rubbish, sizeof rubbish, 0600, (uid_t) -1, (gid_t) -1, 0) >= 0);
        refused(-EUCLEAN, "damaged");

        assert(unlink(db_path()) == 0);
        execute("CREATE TABLE other (x)");
        refused(-EUCLEAN, "some other program");

        assert(unlink(db_path()) == 0 && mkdir(db_path(), 0700) == 0);
        assert(store_open_sqlite(db_path(), &s, NULL) == -EISDIR);
        assert(rmdir(db_path()) == 0 && symlink("/nowhere", db_path()) == 0);
        assert(store_open_sqlite(db_path(), &s, NULL) == -ELOOP);
        assert(store_open_sqlite("/nowhere/store.db", &s, NULL) == -ENOENT);
}

int main(void) {
        static const ContractCase cases[] = {
                { "cost", test_cost },
                { "power-cut", test_power_cut },
                { "full-disk", test_full_disk },
                { "failing-writes", test_failing_writes },
                { "upgrade", test_upgrade },
                { "refused", test_refused },
        };

        return run_contract(cases, ELEMENTSOF(cases));
}
