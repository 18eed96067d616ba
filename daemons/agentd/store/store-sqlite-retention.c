/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * What is kept of finished runs, and its end. The walk is by seq, the order of age, over the indexes that the lists
 * use: a page costs as much as it has rows, and the unfinished runs that it passes over are few.
 */
#include "basic/string-util.h"

#include "store-sqlite.h"

/* Pages that are given back to the file system after each removal, at most; what is left is used again, or given back
 * the next time. */
#define VACUUM_PAGES "64"

int sq_runs_oldest(Store *s, const StoreOldest *w, StoreRunCallback callback, void *userdata) {
        SqliteStore *q = SQLITE_STORE(s);
        _cleanup_reset_ sqlite3_stmt *st = NULL;
        uint64_t up_to = w->up_to_seq > 0 ? w->up_to_seq : INT64_MAX;
        int64_t id;
        int r;

        if (w->agent) {
                r = sq_lane_id(q, w->user, w->agent, false, &id);
                if (r >= 0)
                        r = sq_query(q, &st,
                                     SQ_RUN_SELECT_BY("INDEXED BY runs_lane")
                                     "WHERE r.lane_id = ? AND r.seq > ? AND r.seq <= ? AND r.state = 3 "
                                     "ORDER BY r.seq LIMIT ?",
                                     "uuuu", (uint64_t) id, w->after_seq, up_to, (uint64_t) w->limit);
        } else if (w->user) {
                r = sq_user_id(q, w->user, false, &id);
                if (r >= 0)
                        r = sq_query(q, &st,
                                     SQ_RUN_SELECT_BY("INDEXED BY runs_user")
                                     "WHERE r.user_id = ? AND r.seq > ? AND r.seq <= ? AND r.state = 3 "
                                     "ORDER BY r.seq LIMIT ?",
                                     "uuuu", (uint64_t) id, w->after_seq, up_to, (uint64_t) w->limit);
        } else
                r = sq_query(q, &st,
                             SQ_RUN_SELECT_BY("NOT INDEXED")
                             "WHERE r.seq > ? AND r.seq <= ? AND r.state = 3 ORDER BY r.seq LIMIT ?",
                             "uuu", w->after_seq, up_to, (uint64_t) w->limit);
        if (r < 0)
                return r == -ENOENT ? 0 : r; /* a name that never had a run */
        return sq_run_walk(q, st, callback, userdata);
}

int sq_run_newest(Store *s, const char *user, const char *agent, uint64_t n, uint64_t *ret_seq) {
        SqliteStore *q = SQLITE_STORE(s);
        int64_t id;
        int r;

        if (agent) {
                r = sq_lane_id(q, user, agent, false, &id);
                return r < 0 ? r : sq_number(q, ret_seq,
                                             "SELECT seq FROM runs INDEXED BY runs_lane WHERE lane_id = ? "
                                             "AND state = 3 ORDER BY seq DESC LIMIT 1 OFFSET ?",
                                             "uu", (uint64_t) id, n);
        }
        if (user) {
                r = sq_user_id(q, user, false, &id);
                return r < 0 ? r : sq_number(q, ret_seq,
                                             "SELECT seq FROM runs INDEXED BY runs_user WHERE user_id = ? "
                                             "AND state = 3 ORDER BY seq DESC LIMIT 1 OFFSET ?",
                                             "uu", (uint64_t) id, n);
        }
        return sq_number(q, ret_seq,
                         "SELECT seq FROM runs NOT INDEXED WHERE state = 3 ORDER BY seq DESC LIMIT 1 OFFSET ?", "u", n);
}

static int remove_one(SqliteStore *q, const char *id) {
        SqRunGuard g;
        uint64_t lane;
        int r;

        r = sq_run_guard(q, id, &g);
        if (r < 0)
                return r;
        if (g.state != RUN_FINISHED)
                return -EBUSY;
        /* First, see schema_5. The rest goes by its foreign keys. */
        r = sq_run(q, "DELETE FROM artifacts WHERE seq = ?", "u", (uint64_t) g.seq);
        if (r < 0)
                return r;
        r = sq_number(q, &lane, "SELECT lane_id FROM runs WHERE seq = ?", "u", (uint64_t) g.seq);
        if (r >= 0)
                r = sq_run(q, "DELETE FROM runs WHERE seq = ?", "u", (uint64_t) g.seq);
        if (r >= 0)
                r = sq_lane_drop(q, lane);
        return r < 0 ? r : 1;
}

int sq_runs_remove(Store *s, char *const *ids) {
        SqliteStore *q = SQLITE_STORE(s);
        _cleanup_rollback_ SqTransaction t = {};
        int n = 0, r;

        r = sq_begin(q, &t);
        if (r < 0)
                return r;
        for (char *const *id = ids; id && *id; id++) {
                r = remove_one(q, *id);
                if (r < 0 && r != -ENOENT)
                        return r;
                n += r > 0;
        }
        r = sq_commit(&t);
        if (r < 0)
                return r;
        /* Not worth a wait for the disk. */
        if (n > 0) {
                (void) sqlite3_exec(q->db, "PRAGMA synchronous = NORMAL", NULL, NULL, NULL);
                (void) sqlite3_exec(q->db, "PRAGMA incremental_vacuum(" VACUUM_PAGES ")", NULL, NULL, NULL);
                (void) sqlite3_exec(q->db, "PRAGMA synchronous = FULL", NULL, NULL, NULL);
        }
        return n;
}

int sq_users(Store *s, StoreUserCallback callback, void *userdata) {
        SqliteStore *q = SQLITE_STORE(s);
        _cleanup_reset_ sqlite3_stmt *st = NULL;
        int n = 0, r;

        r = sq_query(q, &st,
                     "SELECT name, finished, finished_bytes, artifact_bytes, session_bytes FROM users ORDER BY name",
                     "");
        if (r < 0)
                return r;
        while ((r = sq_step(q, st)) > 0) {
                r = callback(&(StoreUser) { .name = (const char *) sqlite3_column_text(st, 0),
                                            .finished = sq_column_u64(st, 1),
                                            .finished_bytes = sq_column_u64(st, 2),
                                            .artifact_bytes = sq_column_u64(st, 3),
                                            .session_bytes = sq_column_u64(st, 4) },
                             userdata);
                if (r < 0)
                        return r;
                n++;
        }
        return r < 0 ? r : n;
}
