/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * What is reported about a run while it lives: bridged calls and artifacts. The bridge repeats a report when agentd
 * was restarted under it, so each of these may come twice; and each is bounded, because the sandbox causes them.
 */
#include "store-sqlite.h"

/* Reports are taken from the current attempt and, late, from earlier ones. */
static int guard_report(SqliteStore *q, const char *id, unsigned attempt, SqRunGuard *ret) {
        int r = sq_run_guard(q, id, ret);

        if (r < 0)
                return r;
        if (ret->state == RUN_FINISHED)
                return -EALREADY;
        return attempt == 0 || attempt > ret->attempt ? -ESTALE : 0;
}

static void synchronous_again(SqliteStore **q) {
        (void) sqlite3_exec((*q)->db, "PRAGMA synchronous = FULL", NULL, NULL, NULL);
}

/* How many calls the run has, and their bytes, without a look at each of them each time. Forgotten where a
 * transaction fails. */
static int call_count(SqliteStore *q, int64_t seq, uint64_t **ret_n, uint64_t **ret_size) {
        size_t i = (size_t) seq % SQ_CALL_COUNTS;
        uint64_t n, size;

        if (q->call_counts[i].seq != seq) {
                int r = sq_number(q, &n, "SELECT COUNT(*) FROM calls WHERE seq = ?", "u", (uint64_t) seq);
                if (r >= 0)
                        r = sq_number(q, &size, "SELECT COALESCE(SUM(OCTET_LENGTH(text)), 0) FROM calls WHERE seq = ?", "u",
                                      (uint64_t) seq);
                if (r < 0)
                        return r;
                q->call_counts[i].seq = seq;
                q->call_counts[i].n = n;
                q->call_counts[i].size = size;
        }
        *ret_n = &q->call_counts[i].n;
        *ret_size = &q->call_counts[i].size;
        return 0;
}

/* 1, 0, or the error that is this call's own. A fault of the store is told by *RET_FAULT. */
static int call_add(SqliteStore *q, const StoreCall *c, const SqRunGuard *g, int guarded, int *ret_fault) {
        uint64_t n, *count, *size, length = strlen(c->json);
        int r = guarded;

        if (r == -EALREADY) {
                /* A repeated report of a run that has ended meanwhile is no error. */
                r = sq_number(q, &n, "SELECT 1 FROM calls WHERE seq = ? AND attempt = ? AND call_id = ?", "uus",
                              (uint64_t) g->seq, (uint64_t) c->attempt, c->call_id);
                if (r == -ENOENT)
                        return -EALREADY;
                *ret_fault = r;
                return r;
        }
        if (r < 0)
                return r;
        r = call_count(q, g->seq, &count, &size);
        if (r >= 0 && (*count >= STORE_CALLS_MAX || *size + length > STORE_CALLS_SIZE_MAX))
                return -E2BIG;
        if (r >= 0)
                r = sq_run(q, "INSERT INTO calls (seq, attempt, call_id, text) VALUES (?, ?, ?, ?)", "uuss",
                           (uint64_t) g->seq, (uint64_t) c->attempt, c->call_id, c->json);
        if (r == -EEXIST)
                return 0;
        if (r < 0) {
                *ret_fault = r;
                return r;
        }
        ++*count;
        *size += length;
        return 1;
}

int sq_calls_add(Store *s, StoreCall *calls, size_t n) {
        /* Not worth a wait for the disk: where the power fails its run is lost as well, and every later commit of the
         * run (its end at the latest) takes this one to the disk with it. Put back last. */
        _cleanup_(synchronous_again) SqliteStore *q = SQLITE_STORE(s);
        _cleanup_rollback_ SqTransaction t = {};
        const StoreCall *last = NULL;
        SqRunGuard g = {};
        int guarded = 0, fault = 0, r;

        (void) sqlite3_exec(q->db, "PRAGMA synchronous = NORMAL", NULL, NULL, NULL);
        r = sq_begin(q, &t);
        for (size_t i = 0; r >= 0 && i < n; i++) {
                StoreCall *c = calls + i;

                if (c->result < 0)
                        continue;
                if (!last || last->attempt != c->attempt || !streq(last->id, c->id)) {
                        guarded = guard_report(q, c->id, c->attempt, &g);
                        if (guarded < 0 && guarded != -ENOENT && guarded != -ESTALE && guarded != -EALREADY)
                                fault = guarded;
                        last = c;
                }
                c->result = fault < 0 ? fault : call_add(q, c, &g, guarded, &fault);
                r = fault;
        }
        if (r >= 0)
                r = sq_commit(&t);
        if (r < 0)
                memset(q->call_counts, 0, sizeof(q->call_counts)); /* what was counted is undone */
        return r < 0 ? r : 0;
}

int sq_calls(Store *s, const char *id, StoreCallCallback callback, void *userdata) {
        SqliteStore *q = SQLITE_STORE(s);
        _cleanup_reset_ sqlite3_stmt *st = NULL;
        SqRunGuard g;
        int n = 0, r;

        r = sq_run_guard(q, id, &g);
        if (r < 0)
                return r;
        r = sq_query(q, &st, "SELECT attempt, call_id, text FROM calls WHERE seq = ? ORDER BY id", "u",
                     (uint64_t) g.seq);
        if (r < 0)
                return r;
        while ((r = sq_step(q, st)) > 0) {
                r = callback((unsigned) sqlite3_column_int64(st, 0), (const char *) sqlite3_column_text(st, 1),
                             (const char *) sqlite3_column_text(st, 2), userdata);
                if (r < 0)
                        return r;
                n++;
        }
        return r < 0 ? r : n;
}

int sq_artifacts_settle(SqliteStore *q, int64_t seq) {
        int r;

        r = sq_run(q, "DELETE FROM artifacts WHERE seq = ? AND committed = 0", "u", (uint64_t) seq);
        if (r < 0)
                return r;
        return sq_run(q, "UPDATE artifacts SET reserved = 0 WHERE seq = ? AND reserved > 0", "u", (uint64_t) seq);
}

/* Room for LIMITS->bytes more of this name; what was reserved for it before is given back. */
static int reserve(SqliteStore *q, int64_t seq, const char *name, const StoreArtifactLimits *limits) {
        uint64_t used, mine = 0;
        int r;

        if (limits->bytes_per_user == 0)
                return 0;
        r = sq_number(q, &used, "SELECT artifact_bytes FROM users WHERE id = (SELECT user_id FROM runs WHERE seq = ?)",
                      "u", (uint64_t) seq);
        if (r < 0)
                return r;
        r = sq_number(q, &mine, "SELECT reserved FROM artifacts WHERE seq = ? AND name = ?", "us", (uint64_t) seq,
                      name);
        if (r < 0 && r != -ENOENT)
                return r;
        return used - MIN(used, mine) + limits->bytes > limits->bytes_per_user ? -ENOBUFS : 0;
}

int sq_artifact_begin(Store *s, const char *id, unsigned attempt, const char *name, const StoreArtifactLimits *limits) {
        SqliteStore *q = SQLITE_STORE(s);
        _cleanup_rollback_ SqTransaction t = {};
        bool known;
        uint64_t n;
        SqRunGuard g;
        int r;

        r = sq_begin(q, &t);
        if (r < 0)
                return r;
        r = guard_report(q, id, attempt, &g);
        if (r < 0)
                return r;
        if (g.attempt != attempt || g.state == RUN_QUEUED)
                return -ESTALE; /* bytes of a former attempt must not replace the current one's */
        r = sq_number(q, &n, "SELECT 1 FROM artifacts WHERE seq = ? AND name = ?", "us", (uint64_t) g.seq, name);
        if (r < 0 && r != -ENOENT)
                return r;
        known = r >= 0;
        if (!known) {
                r = sq_number(q, &n, "SELECT COUNT(*) FROM artifacts WHERE seq = ?", "u", (uint64_t) g.seq);
                if (r < 0)
                        return r;
                if (n >= limits->max)
                        return -EDQUOT;
        }
        r = reserve(q, g.seq, name, limits);
        if (r < 0)
                return r;
        if (known)
                r = sq_run(q, "UPDATE artifacts SET reserved = ? WHERE seq = ? AND name = ?", "uus", limits->bytes,
                           (uint64_t) g.seq, name);
        else
                r = sq_run(q,
                           "INSERT INTO artifacts (seq, name, attempt, created_usec, reserved) VALUES (?, ?, ?, ?, ?)",
                           "usuuu", (uint64_t) g.seq, name, (uint64_t) attempt, sq_now(), limits->bytes);
        if (r < 0)
                return r;
        return sq_commit(&t);
}

int sq_artifact_commit(Store *s, const char *id, unsigned attempt, const char *name, uint64_t size,
                       const char *content_type) {
        SqliteStore *q = SQLITE_STORE(s);
        _cleanup_rollback_ SqTransaction t = {};
        uint64_t n;
        SqRunGuard g;
        int r;

        r = sq_begin(q, &t);
        if (r < 0)
                return r;
        r = guard_report(q, id, attempt, &g);
        if (r == -EALREADY) {
                r = sq_number(q, &n,
                              "SELECT 1 FROM artifacts WHERE seq = ? AND name = ? AND attempt = ? AND size = ? "
                              "AND committed = 1",
                              "usuu", (uint64_t) g.seq, name, (uint64_t) attempt, size);
                return r == -ENOENT ? -EALREADY : r;
        }
        if (r < 0)
                return r;
        if (g.attempt != attempt || g.state == RUN_QUEUED)
                return -ESTALE;
        r = sq_run(
                q,
                "UPDATE artifacts SET attempt = ?, size = ?, content_type = ?, created_usec = ?, committed = 1, reserved = 0 "
                "WHERE seq = ? AND name = ?",
                "uusuus", (uint64_t) attempt, size, content_type, sq_now(), (uint64_t) g.seq, name);
        if (r <= 0)
                return r < 0 ? r : -ENOENT;
        return sq_commit(&t);
}

int sq_artifacts(Store *s, const char *id, StoreArtifactCallback callback, void *userdata) {
        SqliteStore *q = SQLITE_STORE(s);
        _cleanup_reset_ sqlite3_stmt *st = NULL;
        SqRunGuard g;
        int n = 0, r;

        r = sq_run_guard(q, id, &g);
        if (r < 0)
                return r;
        r = sq_query(q, &st,
                     "SELECT name, size, content_type, attempt, created_usec FROM artifacts "
                     "WHERE seq = ? AND committed = 1 ORDER BY name",
                     "u", (uint64_t) g.seq);
        if (r < 0)
                return r;
        while ((r = sq_step(q, st)) > 0) {
                _cleanup_free_ char *name = NULL, *content_type = NULL;

                r = sq_column_dup(st, 0, &name);
                if (r >= 0)
                        r = sq_column_dup(st, 2, &content_type);
                if (r < 0)
                        return r;
                r = callback(
                        &(StoreArtifact) {
                                .name = name,
                                .size = sq_column_u64(st, 1),
                                .content_type = content_type,
                                .attempt = (unsigned) sqlite3_column_int64(st, 3),
                                .created_usec = sq_column_u64(st, 4),
                        },
                        userdata);
                if (r < 0)
                        return r;
                n++;
        }
        return r < 0 ? r : n;
}
