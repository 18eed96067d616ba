/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * One run's way from preparing to finished, and the lists. Every change first looks at the row's fence and state
 * within its own transaction (sq_run_guard), so that whoever comes late is told so and changes nothing.
 */
#include "basic/string-util.h"

#include "store-sqlite.h"

int sq_run_from_row(sqlite3_stmt *st, StoreRun *ret) {
        StoreRun run = {};
        const char *id;
        char **const strings[] = {
                /* by column; NULL where the column is a number */
                [2] = &run.user, [4] = &run.agent, [5] = &run.trigger, [6] = &run.session, [7] = &run.labels,
                [8] = &run.idempotency_key, [9] = &run.parent, [10] = &run.input_digest, [19] = &run.unit,
                [20] = &run.invocation_id, [21] = &run.boot_id, [22] = &run.generation, [23] = &run.environment,
                [24] = &run.runner, [25] = &run.policy, [34] = &run.cancel_by, [36] = &run.message, [44] = &run.steps,
                [45] = &run.caller, [46] = &run.runner_before, [47] = &run.verdict, [49] = &run.verified,
        };
        int r;

        id = (const char *) sqlite3_column_text(st, 1);
        if (!id || strlen(id) != RUN_ID_LEN)
                return -EUCLEAN;
        memcpy(run.id, id, sizeof run.id);
        for (size_t i = 0; i < ELEMENTSOF(strings); i++)
                if (strings[i]) {
                        r = sq_column_dup(st, (int) i, strings[i]);
                        if (r < 0) {
                                store_run_done(&run);
                                return r;
                        }
                }
        run.seq = sq_column_u64(st, 0);
        run.uid = (uid_t) sqlite3_column_int64(st, 3);
        run.priority = sqlite3_column_int(st, 11);
        run.keep = sqlite3_column_int(st, 12) != 0;
        run.verify = sqlite3_column_int(st, 48) != 0;
        run.timeout_usec = sq_column_u64(st, 13);
        run.state = (RunState) sqlite3_column_int(st, 14);
        run.attempt = (unsigned) sqlite3_column_int64(st, 15);
        run.fence = sq_column_u64(st, 16);
        run.lease_usec = sq_column_u64(st, 17);
        run.not_before_usec = sq_column_u64(st, 18);
        run.sandbox_uid = sqlite3_column_type(st, 26) == SQLITE_NULL ? (uid_t) -1 :
                                                                       (uid_t) sqlite3_column_int64(st, 26);
        run.created_usec = sq_column_u64(st, 27);
        run.queued_usec = sq_column_u64(st, 28);
        run.claimed_usec = sq_column_u64(st, 29);
        run.prepared_usec = sq_column_u64(st, 30);
        run.started_usec = sq_column_u64(st, 31);
        run.finished_usec = sq_column_u64(st, 32);
        run.deadline_usec = sq_column_u64(st, 33);
        run.cancel_requested = run.cancel_by;
        run.result = sqlite3_column_type(st, 35) == SQLITE_NULL ? _RUN_RESULT_INVALID :
                                                                  (RunResult) sqlite3_column_int(st, 35);
        run.exit_code = sqlite3_column_type(st, 37) == SQLITE_NULL ? -1 : sqlite3_column_int(st, 37);
        run.exit_signal = sqlite3_column_type(st, 38) == SQLITE_NULL ? -1 : sqlite3_column_int(st, 38);
        run.has_posted = sqlite3_column_int(st, 39) != 0;
        run.usage = (StoreUsage) {
                .cpu_usec = sq_column_measure(st, 40),
                .memory_peak = sq_column_measure(st, 41),
                .io_read_bytes = sq_column_measure(st, 42),
                .io_write_bytes = sq_column_measure(st, 43),
        };
        run.size = sq_column_u64(st, 50);
        *ret = run;
        return 0;
}

int sq_run_walk(SqliteStore *q, sqlite3_stmt *st, StoreRunCallback callback, void *userdata) {
        int n = 0, r;

        while ((r = sq_step(q, st)) > 0) {
                StoreRun run;

                r = sq_run_from_row(st, &run);
                if (r < 0)
                        return r;
                r = callback(&run, userdata);
                store_run_done(&run);
                if (r < 0)
                        return r;
                n++;
        }
        return r < 0 ? r : n;
}

int sq_run_guard(SqliteStore *q, const char *id, SqRunGuard *ret) {
        _cleanup_reset_ sqlite3_stmt *st = NULL;
        int r;

        r = sq_row(q, &st, "SELECT seq, state, attempt, fence FROM runs WHERE id = ?", "s", id);
        if (r < 0)
                return r;
        *ret = (SqRunGuard) {
                .seq = sqlite3_column_int64(st, 0),
                .state = (RunState) sqlite3_column_int(st, 1),
                .attempt = (unsigned) sqlite3_column_int64(st, 2),
                .fence = sq_column_u64(st, 3),
        };
        return 0;
}

int sq_run_guard_fence(SqliteStore *q, const char *id, uint64_t fence, SqRunGuard *ret) {
        int r = sq_run_guard(q, id, ret);

        if (r < 0)
                return r;
        if (ret->state == RUN_FINISHED)
                return -EALREADY;
        return ret->fence != fence || ret->state == RUN_QUEUED ? -ESTALE : 0;
}

int sq_run_set_prepared(Store *s, const char *id, uint64_t fence, const StoreRunPlan *plan) {
        SqliteStore *q = SQLITE_STORE(s);
        _cleanup_rollback_ SqTransaction t = {};
        SqRunGuard g;
        int r;

        r = sq_begin(q, &t);
        if (r < 0)
                return r;
        r = sq_run_guard_fence(q, id, fence, &g);
        if (r < 0)
                return r;
        if (g.state != RUN_PREPARING)
                return -EINVAL;
        r = sq_run(q,
                   "UPDATE runs SET unit = COALESCE(?, unit), boot_id = COALESCE(?, boot_id), "
                   "generation = COALESCE(?, generation), environment = COALESCE(?, environment), "
                   "runner = COALESCE(?, runner), runner_before = ?, verdict = ?, verified = ?, policy = COALESCE(?, policy), "
                   "sandbox_uid = ?, deadline_usec = ?, steps = COALESCE(?, steps), prepared_usec = ? WHERE seq = ?",
                   "sssssssssnusuu", plan->unit, plan->boot_id, plan->generation, plan->environment, plan->runner,
                   plan->runner_before, plan->verdict, plan->verified, plan->policy,
                   plan->sandbox_uid == (uid_t) -1 ? STORE_UNKNOWN : (uint64_t) plan->sandbox_uid,
                   plan->deadline_usec, plan->steps, sq_now(), (uint64_t) g.seq);
        if (r < 0)
                return r;
        return sq_commit(&t);
}

int sq_run_set_running(Store *s, const char *id, uint64_t fence, const char *invocation_id, uint64_t started_usec,
                       uint64_t deadline_usec, const char *steps) {
        SqliteStore *q = SQLITE_STORE(s);
        _cleanup_rollback_ SqTransaction t = {};
        SqRunGuard g;
        int r;

        r = sq_begin(q, &t);
        if (r < 0)
                return r;
        r = sq_run_guard_fence(q, id, fence, &g);
        if (r < 0)
                return r;
        r = sq_run(q,
                   "UPDATE runs SET state = 2, invocation_id = COALESCE(?, invocation_id), "
                   "started_usec = CASE WHEN ?2 > 0 THEN ?2 ELSE started_usec END, "
                   "deadline_usec = CASE WHEN ?3 > 0 THEN ?3 ELSE deadline_usec END, steps = COALESCE(?, steps) "
                   "WHERE seq = ?",
                   "suusu", invocation_id, started_usec, deadline_usec, steps, (uint64_t) g.seq);
        if (r < 0)
                return r;
        return sq_commit(&t);
}

int sq_run_cancel_request(Store *s, const char *id, const char *by, RunState *ret_state) {
        SqliteStore *q = SQLITE_STORE(s);
        _cleanup_rollback_ SqTransaction t = {};
        SqRunGuard g;
        int n, r;

        r = sq_begin(q, &t);
        if (r < 0)
                return r;
        r = sq_run_guard(q, id, &g);
        if (r < 0)
                return r;
        if (g.state == RUN_FINISHED)
                return -EALREADY;
        n = sq_run(q, "UPDATE runs SET cancel_by = ? WHERE seq = ? AND cancel_by IS NULL", "su", by, (uint64_t) g.seq);
        if (n < 0)
                return n;
        r = sq_commit(&t);
        if (r < 0)
                return r;
        *ret_state = g.state;
        return n > 0;
}

int sq_run_post_result(Store *s, const char *id, unsigned attempt, const char *json) {
        SqliteStore *q = SQLITE_STORE(s);
        _cleanup_rollback_ SqTransaction t = {};
        uint64_t posted;
        SqRunGuard g;
        int r;

        r = sq_begin(q, &t);
        if (r < 0)
                return r;
        r = sq_run_guard(q, id, &g);
        if (r < 0)
                return r;
        r = sq_number(q, &posted, "SELECT attempt FROM run_results WHERE seq = ?", "u", (uint64_t) g.seq);
        if (r < 0 && r != -ENOENT)
                return r;
        if (r >= 0 && posted == attempt)
                return 0; /* a repeated report, also after the end */
        if (g.state == RUN_FINISHED)
                return -EALREADY;
        if (g.state == RUN_QUEUED || g.attempt != attempt)
                return -ESTALE;
        r = sq_run(q, "INSERT INTO run_results (seq, attempt, text) VALUES (?, ?, ?)", "uus", (uint64_t) g.seq,
                   (uint64_t) attempt, json);
        if (r < 0)
                return r;
        r = sq_commit(&t);
        return r < 0 ? r : 1;
}

int sq_run_finish(Store *s, const char *id, uint64_t fence, const StoreRunEnd *end) {
        SqliteStore *q = SQLITE_STORE(s);
        _cleanup_rollback_ SqTransaction t = {};
        uint64_t size;
        SqRunGuard g;
        int r;

        r = sq_begin(q, &t);
        if (r < 0)
                return r;
        r = sq_run_guard(q, id, &g);
        if (r < 0)
                return r;
        if (g.state == RUN_FINISHED)
                return -EALREADY;
        if (g.fence != fence)
                return -ESTALE;
        /* Before the state, because the trigger that counts it for the user looks at the size. */
        if (end->receipt) {
                r = sq_run(q, "INSERT INTO run_receipts (seq, text) VALUES (?, ?)", "us", (uint64_t) g.seq,
                           end->receipt);
                if (r < 0)
                        return r;
        }
        r = sq_number(q, &size, SQ_RUN_SIZE("?1"), "u", (uint64_t) g.seq);
        if (r < 0)
                return r;
        r = sq_run(q,
                   "UPDATE runs SET state = 3, result = ?, message = ?, exit_code = ?, exit_signal = ?, cpu_usec = ?, "
                   "memory_peak = ?, io_read_bytes = ?, io_write_bytes = ?, steps = COALESCE(?, steps), "
                   "finished_usec = ?, size = ?, lease_usec = 0, not_before_usec = 0 WHERE seq = ?",
                   "isIInnnnsuuu", (int) end->result, end->message, end->exit_code, end->exit_signal,
                   end->usage.cpu_usec, end->usage.memory_peak, end->usage.io_read_bytes, end->usage.io_write_bytes,
                   end->steps, end->finished_usec > 0 ? end->finished_usec : sq_now(), size, (uint64_t) g.seq);
        if (r < 0)
                return r;
        r = sq_artifacts_settle(q, g.seq);
        if (r < 0)
                return r;
        return sq_commit(&t);
}

int sq_run_get(Store *s, const char *id, StoreRun **ret) {
        SqliteStore *q = SQLITE_STORE(s);
        _cleanup_(store_run_freep) StoreRun *run = NULL;
        _cleanup_reset_ sqlite3_stmt *st = NULL;
        int r;

        run = calloc(1, sizeof(*run));
        if (!run)
                return -ENOMEM;
        r = sq_row(q, &st, SQ_RUN_SELECT "WHERE r.id = ?", "s", id);
        if (r < 0)
                return r;
        r = sq_run_from_row(st, run);
        if (r < 0)
                return r;
        *ret = TAKE_PTR(run);
        return 0;
}

/* The first column of the only row. */
static int get_document(SqliteStore *q, sqlite3_stmt *st, char **ret, size_t *ret_size) {
        size_t size;
        int r;

        r = sq_step(q, st);
        if (r <= 0)
                return r < 0 ? r : -ENOENT;
        return sq_column_dup_size(st, 0, ret, ret_size ?: &size);
}

int sq_run_get_input(Store *s, const char *id, char **ret, size_t *ret_size) {
        _cleanup_reset_ sqlite3_stmt *st = NULL;
        int r;

        r = sq_query(SQLITE_STORE(s), &st,
                     "SELECT d.text FROM runs r JOIN run_inputs d ON d.seq = r.seq WHERE r.id = ?", "s", id);
        return r < 0 ? r : get_document(SQLITE_STORE(s), st, ret, ret_size);
}

int sq_run_get_posted(Store *s, const char *id, char **ret) {
        _cleanup_reset_ sqlite3_stmt *st = NULL;
        int r;

        r = sq_query(SQLITE_STORE(s), &st,
                     "SELECT d.text FROM runs r JOIN run_results d ON d.seq = r.seq WHERE r.id = ?", "s", id);
        return r < 0 ? r : get_document(SQLITE_STORE(s), st, ret, NULL);
}

int sq_run_get_receipt(Store *s, const char *id, char **ret) {
        _cleanup_reset_ sqlite3_stmt *st = NULL;
        int r;

        r = sq_query(SQLITE_STORE(s), &st,
                     "SELECT d.text FROM runs r JOIN run_receipts d ON d.seq = r.seq WHERE r.id = ?", "s", id);
        return r < 0 ? r : get_document(SQLITE_STORE(s), st, ret, NULL);
}

/*
 * The list's statement is put together from the filter's parts; values are bound, never pasted. Lists of unfinished
 * runs name their index, because the planner, which knows no numbers, may take the one over all runs for as good.
 */
int sq_run_list(Store *s, const StoreRunFilter *f, StoreRunCallback callback, void *userdata) {
        SqliteStore *q = SQLITE_STORE(s);
        bool unfinished = f->state != _RUN_STATE_INVALID && f->state != RUN_FINISHED;
        _cleanup_free_ char *sql = NULL;
        int64_t user = 0, lane = 0;
        uint64_t before = 0;
        sqlite3_stmt *st;
        int c, r;

        /* A name that never had a run has an empty list. */
        if (f->agent) {
                r = sq_lane_id(q, f->user, f->agent, false, &lane);
                if (r < 0)
                        return r == -ENOENT ? 0 : r;
        } else if (f->user) {
                r = sq_user_id(q, f->user, false, &user);
                if (r < 0)
                        return r == -ENOENT ? 0 : r;
        }
        if (f->before) {
                r = sq_number(q, &before, "SELECT seq FROM runs WHERE id = ?", "s", f->before);
                if (r < 0)
                        return r;
        }
        if (unfinished && f->result != _RUN_RESULT_INVALID)
                return 0;

        sql = strprintf("%s WHERE 1%s%s%s%s%s ORDER BY r.seq DESC LIMIT ?6",
                        !unfinished || f->parent ? SQ_RUN_SELECT :
                        f->agent                 ? SQ_RUN_SELECT_BY("INDEXED BY runs_lane_unfinished") :
                        f->user                  ? SQ_RUN_SELECT_BY("INDEXED BY runs_user_unfinished") :
                                                   SQ_RUN_SELECT_BY("INDEXED BY runs_unfinished"),
                        f->agent ? " AND r.lane_id = ?1" :
                        f->user  ? " AND r.user_id = ?1" :
                                   "",
                        f->parent ? " AND r.parent = ?2" : "",
                        f->state == _RUN_STATE_INVALID ? "" :
                        unfinished                     ? " AND r.state = ?3 AND r.state < 3" :
                                                         " AND r.state = ?3",
                        f->result == _RUN_RESULT_INVALID ? "" : " AND r.result = ?4 AND r.result IS NOT NULL",
                        f->before ? " AND r.seq < ?5" : "");
        if (!sql)
                return -ENOMEM;
        c = sqlite3_prepare_v2(q->db, sql, -1, &st, NULL);
        if (c != SQLITE_OK)
                return sq_fail(q, c);
        /* Those that this statement does not have are out of range or unused, which is no fault. */
        (void) sqlite3_bind_int64(st, 1, f->agent ? lane : user);
        (void) sqlite3_bind_text(st, 2, f->parent, -1, SQLITE_STATIC);
        (void) sqlite3_bind_int(st, 3, (int) f->state);
        (void) sqlite3_bind_int(st, 4, (int) f->result);
        (void) sqlite3_bind_int64(st, 5, (int64_t) before);
        c = sqlite3_bind_int64(st, 6, f->limit);
        r = c == SQLITE_OK ? sq_run_walk(q, st, callback, userdata) : sq_fail(q, c);
        sqlite3_finalize(st);
        return r;
}

int sq_runs_unfinished(Store *s, StoreRunCallback callback, void *userdata) {
        _cleanup_reset_ sqlite3_stmt *st = NULL;
        int r;

        r = sq_query(SQLITE_STORE(s), &st, SQ_RUN_SELECT "WHERE r.state < 3 ORDER BY r.seq", "");
        return r < 0 ? r : sq_run_walk(SQLITE_STORE(s), st, callback, userdata);
}

int sq_runs_expired(Store *s, uint64_t now_usec, StoreRunCallback callback, void *userdata) {
        _cleanup_reset_ sqlite3_stmt *st = NULL;
        int r;

        r = sq_query(SQLITE_STORE(s), &st,
                     SQ_RUN_SELECT "WHERE r.state < 3 AND r.lease_usec > 0 AND r.lease_usec < ? AND r.state > 0 "
                                   "ORDER BY r.lease_usec",
                     "u", now_usec);
        return r < 0 ? r : sq_run_walk(SQLITE_STORE(s), st, callback, userdata);
}
