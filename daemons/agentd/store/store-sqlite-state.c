/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * What a run leaves for others by way of the bridge: the state of its session, and deductions. Reports may come twice
 * here as well, see store-sqlite-records.c.
 */
#include <string.h>

#include "basic/string-util.h"
#include "store-sqlite.h"

/* The run must be live in this attempt. */
static int guard_live(SqliteStore *q, const char *id, unsigned attempt, SqRunGuard *ret) {
        int r = sq_run_guard(q, id, ret);

        if (r < 0)
                return r;
        if (ret->state == RUN_FINISHED)
                return -EALREADY;
        return ret->attempt != attempt || ret->state == RUN_QUEUED ? -ESTALE : 0;
}

int sq_usage_add(Store *s, const char *id, unsigned attempt, const char *key, uint64_t amount, const char *description,
                 uint64_t max) {
        SqliteStore *q = SQLITE_STORE(s);
        _cleanup_rollback_ SqTransaction t = {};
        uint64_t known, n, sum;
        SqRunGuard g;
        int r;

        r = sq_begin(q, &t);
        if (r < 0)
                return r;
        r = guard_live(q, id, attempt, &g);
        if (r < 0 && r != -EALREADY && r != -ESTALE)
                return r;
        /* What is known stays known, also when it is repeated late. */
        int late = r;
        r = g.seq > 0 ? sq_number(q, &known, "SELECT amount FROM usages WHERE seq = ? AND key = ?", "us",
                                  (uint64_t) g.seq, key) : -ENOENT;
        if (r >= 0)
                return known == amount ? 0 : -EEXIST;
        if (r != -ENOENT)
                return r;
        if (late < 0)
                return late;
        r = sq_number(q, &n, "SELECT COUNT(*) FROM usages WHERE seq = ?", "u", (uint64_t) g.seq);
        if (r >= 0)
                r = sq_number(q, &sum, "SELECT COALESCE(SUM(amount), 0) FROM usages WHERE seq = ?", "u",
                              (uint64_t) g.seq);
        if (r < 0)
                return r;
        if (n >= STORE_USAGES_MAX || amount > max || sum > max - amount)
                return -EDQUOT;
        r = sq_run(q, "INSERT INTO usages (seq, key, amount, description, created_usec) VALUES (?, ?, ?, ?, ?)", "usus"
                   "u", (uint64_t) g.seq, key, amount, description, sq_now());
        if (r < 0)
                return r;
        r = sq_commit(&t);
        return r < 0 ? r : 1;
}

int sq_usages(Store *s, const char *id, StoreUsageCallback callback, void *userdata) {
        SqliteStore *q = SQLITE_STORE(s);
        _cleanup_reset_ sqlite3_stmt *st = NULL;
        SqRunGuard g;
        int n = 0, r;

        r = sq_run_guard(q, id, &g);
        if (r < 0)
                return r;
        r = sq_query(q, &st, "SELECT key, amount, description, created_usec FROM usages WHERE seq = ? ORDER BY id", "u",
                     (uint64_t) g.seq);
        if (r < 0)
                return r;
        while ((r = sq_step(q, st)) > 0) {
                r = callback((const char *) sqlite3_column_text(st, 0), sq_column_u64(st, 1),
                             (const char *) sqlite3_column_text(st, 2), sq_column_u64(st, 3), userdata);
                if (r < 0)
                        return r;
                n++;
        }
        return r < 0 ? r : n;
}

int sq_session_get(Store *s, const char *user, const char *agent, const char *session, StoreSession **ret) {
        SqliteStore *q = SQLITE_STORE(s);
        _cleanup_reset_ sqlite3_stmt *st = NULL;
        _cleanup_(store_session_freep) StoreSession *v = NULL;
        int64_t lane;
        int r;

        r = sq_lane_id(q, user, agent, false, &lane);
        if (r < 0)
                return r;
        r = sq_row(q, &st, "SELECT rev, content_type, data FROM sessions WHERE lane_id = ? AND session = ?", "us",
                   (uint64_t) lane, session);
        if (r < 0)
                return r;

        v = calloc(1, sizeof(*v));
        if (!v)
                return -ENOMEM;
        v->rev = sq_column_u64(st, 0);
        v->size = (size_t) sqlite3_column_bytes(st, 2);
        v->data = malloc(v->size ?: 1);
        r = sq_column_dup(st, 1, &v->content_type);
        if (r < 0 || !v->data)
                return -ENOMEM;
        if (v->size > 0)
                memcpy(v->data, sqlite3_column_blob(st, 2), v->size);
        *ret = TAKE_PTR(v);
        return 0;
}

int sq_session_put(Store *s, const char *user, const char *agent, const char *session, const StoreSession *state,
                   uint64_t expected_rev, uint64_t max_bytes, uint64_t *ret_rev) {
        SqliteStore *q = SQLITE_STORE(s);
        _cleanup_rollback_ SqTransaction t = {};
        _cleanup_(store_session_freep) StoreSession *old = NULL;
        uint64_t n, rev;
        int64_t lane;
        int r;

        r = sq_begin(q, &t);
        if (r < 0)
                return r;
        r = sq_lane_id(q, user, agent, false, &lane);
        if (r < 0)
                return r;
        r = sq_session_get(s, user, agent, session, &old);
        if (r < 0 && r != -ENOENT)
                return r;
        rev = old ? old->rev : 0;
        /* The same again: a report that was repeated, and whose first try we had taken. */
        if (old && old->size == state->size && memcmp(old->data, state->data, old->size) == 0 &&
            streq(old->content_type, strempty(state->content_type)) &&
            (expected_rev == STORE_UNKNOWN || expected_rev == rev || expected_rev + 1 == rev)) {
                *ret_rev = rev;
                return 0;
        }
        if (expected_rev != STORE_UNKNOWN && expected_rev != rev)
                return -EEXIST;
        if (!old) {
                r = sq_number(q, &n, "SELECT COUNT(*) FROM sessions WHERE lane_id = ?", "u", (uint64_t) lane);
                if (r < 0)
                        return r;
                if (n >= STORE_SESSIONS_MAX)
                        return -EDQUOT;
        }
        if (max_bytes > 0) {
                r = sq_number(q, &n, "SELECT session_bytes FROM users WHERE name = ?", "s", user);
                if (r < 0)
                        return r;
                if (n - MIN(n, old ? old->size : 0) + state->size > max_bytes)
                        return -ENOBUFS;
        }
        r = sq_run(q,
                   "INSERT INTO sessions (lane_id, session, rev, content_type, data, changed_usec) "
                   "VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (lane_id, session) DO UPDATE SET rev = excluded.rev, "
                   "content_type = excluded.content_type, data = excluded.data, changed_usec = excluded.changed_usec",
                   "ususbu", (uint64_t) lane, session, rev + 1, strempty(state->content_type), state->data, state->size,
                   sq_now());
        if (r < 0)
                return r;
        r = sq_commit(&t);
        if (r < 0)
                return r;
        *ret_rev = rev + 1;
        return 1;
}
