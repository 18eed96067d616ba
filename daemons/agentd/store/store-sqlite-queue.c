/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The queue: admission, the choice of the next run, and the way back. Fairness is between users: users.served is the
 * turn in which a user was last served, and the next is the one with the lowest, so that a user with one run waits for
 * at most one run of each other user, however many those have queued.
 */
#include "store-sqlite.h"

static int find_by_key(SqliteStore *q, int64_t lane, const char *key, const char *input_digest,
                       char ret_id[static RUN_ID_LEN + 1]) {
        _cleanup_reset_ sqlite3_stmt *st = NULL;
        int r;

        r = sq_query(q, &st, "SELECT id, input_digest FROM runs WHERE lane_id = ? AND idempotency_key = ?", "us",
                     (uint64_t) lane, key);
        if (r < 0)
                return r;
        r = sq_step(q, st);
        if (r <= 0)
                return r;
        if (!streq((const char *) sqlite3_column_text(st, 1), input_digest))
                return -EEXIST;
        snprintf(ret_id, RUN_ID_LEN + 1, "%s", (const char *) sqlite3_column_text(st, 0));
        return 1;
}

/* The queue's bounds, of the host, of the user, and of the agent; and what is kept for the user. */
static int check_bounds(SqliteStore *q, int64_t lane, const StoreQueueLimits *limits) {
        uint64_t n;
        int r;

        if (limits->no_space)
                return -ENOSPC;
        if (limits->queued > 0) {
                r = sq_number(q, &n, "SELECT COALESCE(SUM(queued), 0) FROM users WHERE queued > 0", "");
                if (r < 0)
                        return r;
                if (n >= limits->queued)
                        return -EBUSY;
        }
        if (limits->queued_per_user > 0) {
                r = sq_number(q, &n, "SELECT queued FROM users WHERE id = (SELECT user_id FROM lanes WHERE id = ?)",
                              "u", (uint64_t) lane);
                if (r < 0)
                        return r;
                if (n >= limits->queued_per_user)
                        return -EDQUOT;
        }
        if (limits->queued_per_agent > 0) {
                r = sq_number(q, &n, "SELECT queued FROM lanes WHERE id = ?", "u", (uint64_t) lane);
                if (r < 0)
                        return r;
                if (n >= limits->queued_per_agent)
                        return -EUSERS;
        }
        if (limits->finished_bytes_per_user > 0) {
                r = sq_number(q, &n,
                              "SELECT finished_bytes FROM users WHERE id = (SELECT user_id FROM lanes WHERE id = ?)",
                              "u", (uint64_t) lane);
                if (r < 0)
                        return r;
                if (n >= limits->finished_bytes_per_user)
                        return -ENOBUFS;
        }
        return 0;
}

int sq_run_enqueue(Store *s, const StoreRunRequest *request, const char *id, const char *input_digest,
                   const StoreQueueLimits *limits, char ret_id[static RUN_ID_LEN + 1]) {
        SqliteStore *q = SQLITE_STORE(s);
        _cleanup_rollback_ SqTransaction t = {};
        uint64_t now = sq_now(), seq, agent;
        int64_t lane;
        int r;

        r = sq_begin(q, &t);
        if (r < 0)
                return r;
        r = sq_lane_id(q, request->user, request->agent, false, &lane);
        if (r < 0)
                return r;
        r = sq_number(q, &agent, "SELECT id FROM agents WHERE lane_id = ?", "u", (uint64_t) lane);
        if (r < 0)
                return r;

        if (request->idempotency_key) {
                r = find_by_key(q, lane, request->idempotency_key, input_digest, ret_id);
                if (r < 0)
                        return r;
                if (r > 0)
                        return 0;
        }
        r = check_bounds(q, lane, limits);
        if (r < 0)
                return r;

        r = sq_run(q,
                   "INSERT INTO runs (id, user_id, lane_id, uid, trigger, session, labels, idempotency_key, parent, "
                   "input_digest, priority, keep, timeout_usec, created_usec, queued_usec, caller, verify) "
                   "VALUES (?, (SELECT user_id FROM lanes WHERE id = ?2), ?2, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?13, ?, ?)",
                   "suussssssiiuusi", id, (uint64_t) lane, (uint64_t) request->uid, request->trigger, request->session,
                   request->labels, request->idempotency_key, request->parent, input_digest, request->priority,
                   (int) request->keep, request->timeout_usec, now, request->caller,
                   (int) request->verify);
        if (r < 0)
                return r;
        seq = (uint64_t) sqlite3_last_insert_rowid(q->db);
        r = sq_run(q, "INSERT INTO run_inputs (seq, text) VALUES (?, ?)", "ut", seq, request->input,
                   request->input_size);
        if (r < 0)
                return r;
        r = sq_commit(&t);
        if (r < 0)
                return r;
        memcpy(ret_id, id, RUN_ID_LEN + 1);
        return 1;
}

/* The best run of one user: of each agent that is below its bound the first in line, and of those the first. */
static int pick_of_user(SqliteStore *q, uint64_t user, uint64_t now, uint64_t *ret_seq) {
        return sq_number(q, ret_seq,
                         "SELECT r.seq FROM lanes l JOIN agents a ON a.lane_id = l.id JOIN runs r ON r.seq = ("
                         "  SELECT x.seq FROM runs x WHERE x.lane_id = l.id AND x.state = 0 AND x.cancel_by IS NULL"
                         "  AND x.not_before_usec <= ?2 ORDER BY x.priority DESC, x.seq LIMIT 1) "
                         "WHERE l.user_id = ?1 AND l.queued > 0 AND l.live < a.concurrency "
                         "ORDER BY r.priority DESC, r.seq LIMIT 1",
                         "uu", user, now);
}

static int pick(SqliteStore *q, const StoreLiveLimits *limits, uint64_t now, uint64_t *ret_user, uint64_t *ret_seq) {
        _cleanup_reset_ sqlite3_stmt *st = NULL;
        uint64_t live;
        int r;

        if (limits->live > 0) {
                r = sq_number(q, &live, "SELECT COALESCE(SUM(live), 0) FROM users WHERE queued > 0 OR live > 0", "");
                if (r < 0)
                        return r;
                if (live >= limits->live)
                        return -ENOENT;
        }
        r = sq_query(q, &st,
                     "SELECT id FROM users WHERE queued > 0 AND live < ? ORDER BY served, id", "u",
                     limits->live_per_user > 0 ? limits->live_per_user : INT64_MAX);
        if (r < 0)
                return r;
        while ((r = sq_step(q, st)) > 0) {
                uint64_t user = sq_column_u64(st, 0);

                r = pick_of_user(q, user, now, ret_seq);
                if (r == -ENOENT)
                        continue;
                if (r >= 0)
                        *ret_user = user;
                return r;
        }
        return r < 0 ? r : -ENOENT;
}

static int get_by_seq(SqliteStore *q, uint64_t seq, StoreRun **ret) {
        _cleanup_(store_run_freep) StoreRun *run = NULL;
        _cleanup_reset_ sqlite3_stmt *st = NULL;
        int r;

        run = calloc(1, sizeof(*run));
        if (!run)
                return -ENOMEM;
        r = sq_row(q, &st, SQ_RUN_SELECT "WHERE r.seq = ?", "u", seq);
        if (r < 0)
                return r;
        r = sq_run_from_row(st, run);
        if (r < 0)
                return r;
        *ret = TAKE_PTR(run);
        return 0;
}

int sq_run_claim(Store *s, const StoreLiveLimits *limits, StoreRun **ret_run) {
        SqliteStore *q = SQLITE_STORE(s);
        _cleanup_(store_run_freep) StoreRun *run = NULL;
        _cleanup_rollback_ SqTransaction t = {};
        uint64_t now = sq_now(), user, seq;
        int r;

        r = sq_begin(q, &t);
        if (r < 0)
                return r;
        r = pick(q, limits, now, &user, &seq);
        if (r == -ENOENT)
                return 0;
        if (r < 0)
                return r;
        r = sq_run(q,
                   "UPDATE runs SET state = 1, attempt = attempt + 1, fence = fence + 1, claimed_usec = ?, "
                   "lease_usec = ?, not_before_usec = 0, prepared_usec = 0, started_usec = 0, deadline_usec = 0 "
                   "WHERE seq = ? AND state = 0",
                   "uuu", now, limits->lease_usec > 0 ? now + limits->lease_usec : UINT64_C(0), seq);
        if (r < 0)
                return r;
        r = sq_run(q, "UPDATE users SET served = (SELECT MAX(served) FROM users) + 1 WHERE id = ?", "u", user);
        if (r < 0)
                return r;
        r = get_by_seq(q, seq, &run);
        if (r < 0)
                return r;
        r = sq_commit(&t);
        if (r < 0)
                return r;
        *ret_run = TAKE_PTR(run);
        return 1;
}

int sq_queue_next(Store *s, uint64_t *ret_usec) {
        uint64_t usec = 0;
        int r;

        r = sq_number(SQLITE_STORE(s), &usec,
                      "SELECT not_before_usec FROM runs WHERE state = 0 AND not_before_usec > 0 "
                      "AND not_before_usec > ? AND cancel_by IS NULL ORDER BY not_before_usec LIMIT 1",
                      "u", sq_now());
        if (r < 0 && r != -ENOENT)
                return r;
        *ret_usec = usec;
        return 0;
}

int sq_run_extend(Store *s, const char *id, uint64_t fence, uint64_t lease_usec) {
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
        r = sq_run(q, "UPDATE runs SET lease_usec = ? WHERE seq = ?", "uu", sq_now() + lease_usec, (uint64_t) g.seq);
        if (r < 0)
                return r;
        return sq_commit(&t);
}

int sq_run_requeue(Store *s, const char *id, uint64_t fence, const char *message, uint64_t not_before_usec) {
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
                   "UPDATE runs SET state = 0, message = ?, not_before_usec = ?, queued_usec = ?, lease_usec = 0, "
                   "claimed_usec = 0, prepared_usec = 0, started_usec = 0, deadline_usec = 0, unit = NULL, "
                   "invocation_id = NULL, boot_id = NULL, sandbox_uid = NULL WHERE seq = ?",
                   "suuu", message, not_before_usec, sq_now(), (uint64_t) g.seq);
        if (r < 0)
                return r;
        r = sq_run(q, "DELETE FROM run_results WHERE seq = ?", "u", (uint64_t) g.seq);
        if (r < 0)
                return r;
        r = sq_artifacts_settle(q, g.seq);
        if (r < 0)
                return r;
        return sq_commit(&t);
}

int sq_counts(Store *s, const char *user, const char *agent, StoreCounts *ret) {
        SqliteStore *q = SQLITE_STORE(s);
        _cleanup_reset_ sqlite3_stmt *st = NULL;
        int r;

        if (agent)
                r = sq_query(q, &st,
                             "SELECT queued, live FROM lanes WHERE user_id = (SELECT id FROM users WHERE name = ?) "
                             "AND agent = ?",
                             "ss", user, agent);
        else if (user)
                r = sq_query(q, &st, "SELECT queued, live FROM users WHERE name = ?", "s", user);
        else
                r = sq_query(q, &st,
                             "SELECT COALESCE(SUM(queued), 0), COALESCE(SUM(live), 0) FROM users "
                             "WHERE queued > 0 OR live > 0",
                             "");
        if (r < 0)
                return r;
        r = sq_step(q, st);
        if (r < 0)
                return r;
        *ret = (StoreCounts) {
                .queued = r > 0 ? sq_column_u64(st, 0) : 0,
                .live = r > 0 ? sq_column_u64(st, 1) : 0,
        };
        return 0;
}
