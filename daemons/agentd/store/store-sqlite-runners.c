/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Runners and verdicts. Which one is current is a state of the rows, moved in one transaction, so that at any moment
 * (also after a power cut) there is one current runner or, before the first deploy, none.
 */
#include "store-sqlite.h"

static int next_turn(SqliteStore *q, uint64_t *ret) {
        return sq_number(q, ret, "SELECT COALESCE(MAX(turn), 0) + 1 FROM runners", "");
}

/* Room for a new current one. */
static int retire_current(SqliteStore *q, const char *but) {
        return sq_run(q, "UPDATE runners SET state = 1 WHERE state = 0 AND digest <> ?", "s", but);
}

static int retire_canary(SqliteStore *q, const char *but) {
        return sq_run(q, "UPDATE runners SET state = 3, percent = 0, agents = NULL WHERE state = 2 AND digest <> ?",
                      "s", but);
}

int sq_runner_deploy(Store *s, const StoreRunner *runner) {
        SqliteStore *q = SQLITE_STORE(s);
        _cleanup_rollback_ SqTransaction t = {};
        uint64_t state, turn = 0;
        int r;

        r = sq_begin(q, &t);
        if (r < 0)
                return r;
        r = sq_number(q, &state, "SELECT state FROM runners WHERE digest = ?", "s", runner->digest);
        if (r < 0 && r != -ENOENT)
                return r;
        if (r >= 0 && state == RUNNER_CURRENT && runner->state == RUNNER_CANARY)
                return -EEXIST; /* all have it already */
        if (runner->state == RUNNER_CURRENT)
                r = retire_current(q, runner->digest);
        else if (runner->state == RUNNER_CANARY)
                r = retire_canary(q, runner->digest);
        else
                r = 0;
        if (r >= 0 && runner->state == RUNNER_CURRENT)
                r = next_turn(q, &turn);
        if (r < 0)
                return r;
        r = sq_run(q,
                   "INSERT INTO runners (digest, name, version, manifest, source, author, note, created_usec, state, turn, "
                   "percent, agents) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) "
                   "ON CONFLICT (digest) DO UPDATE SET source = COALESCE(excluded.source, source), "
                   "author = excluded.author, note = excluded.note, created_usec = excluded.created_usec, "
                   "state = excluded.state, turn = MAX(turn, excluded.turn), percent = excluded.percent, "
                   "agents = excluded.agents",
                   "sssssssuiuus", runner->digest, runner->name, runner->version, runner->manifest, runner->source,
                   runner->author, runner->note, runner->created_usec > 0 ? runner->created_usec : sq_now(),
                   (int) runner->state, turn, runner->percent, runner->agents);
        if (r >= 0)
                r = sq_run(q, "DELETE FROM verdicts WHERE runner = ? AND ok = 0", "s", runner->digest);
        return r < 0 ? r : sq_commit(&t);
}

/* Digest of the one row that SQL finds; -ENOENT. */
static int find_digest(SqliteStore *q, const char *sql, const char *types, const char *arg, char **ret) {
        _cleanup_reset_ sqlite3_stmt *st = NULL;
        int r;

        r = sq_row(q, &st, sql, types, arg);
        if (r < 0)
                return r;
        return sq_column_dup(st, 0, ret);
}

int sq_runner_rollback(Store *s, const char *digest, char **ret_digest) {
        SqliteStore *q = SQLITE_STORE(s);
        _cleanup_rollback_ SqTransaction t = {};
        _cleanup_free_ char *to = NULL;
        uint64_t turn;
        int r;

        r = sq_begin(q, &t);
        if (r < 0)
                return r;
        if (digest)
                r = find_digest(q, "SELECT digest FROM runners WHERE digest = ? AND state <> 0 AND turn > 0", "s",
                                digest, &to);
        else
                /* Not one that no node has accepted, as long as there is another. */
                r = find_digest(q,
                                "SELECT digest FROM runners r WHERE state = 1 ORDER BY "
                                "EXISTS (SELECT 1 FROM verdicts v WHERE v.runner = r.digest AND ok = 0) AND "
                                "NOT EXISTS (SELECT 1 FROM verdicts v WHERE v.runner = r.digest AND ok = 1), "
                                "turn DESC LIMIT 1",
                                "", NULL, &to);
        if (r >= 0)
                r = sq_number(q, &turn, "SELECT turn FROM runners WHERE digest = ?", "s", to);
        if (r < 0)
                return r;
        r = sq_run(q, "UPDATE runners SET state = 3 WHERE state IN (0, 1) AND turn > ?", "u", turn);
        /* To one that had been rolled back itself: what is older than it is behind it again. */
        if (r >= 0)
                r = retire_current(q, to);
        if (r >= 0)
                r = sq_run(q, "UPDATE runners SET state = 0, percent = 0, agents = NULL WHERE digest = ?", "s", to);
        if (r >= 0)
                r = sq_commit(&t);
        if (r < 0)
                return r;
        *ret_digest = TAKE_PTR(to);
        return 0;
}

int sq_runner_promote(Store *s, char **ret_digest) {
        SqliteStore *q = SQLITE_STORE(s);
        _cleanup_rollback_ SqTransaction t = {};
        _cleanup_free_ char *canary = NULL;
        uint64_t turn;
        int r;

        r = sq_begin(q, &t);
        if (r >= 0)
                r = find_digest(q, "SELECT digest FROM runners WHERE state = 2", "", NULL, &canary);
        if (r >= 0)
                r = retire_current(q, canary);
        if (r >= 0)
                r = next_turn(q, &turn);
        if (r >= 0)
                r = sq_run(q, "UPDATE runners SET state = 0, turn = ?, percent = 0, agents = NULL WHERE digest = ?",
                           "us", turn, canary);
        if (r >= 0)
                r = sq_commit(&t);
        if (r < 0)
                return r;
        *ret_digest = TAKE_PTR(canary);
        return 0;
}

int sq_runner_withdraw(Store *s, char **ret_digest) {
        SqliteStore *q = SQLITE_STORE(s);
        _cleanup_rollback_ SqTransaction t = {};
        _cleanup_free_ char *canary = NULL;
        int r;

        r = sq_begin(q, &t);
        if (r >= 0)
                r = find_digest(q, "SELECT digest FROM runners WHERE state = 2", "", NULL, &canary);
        if (r >= 0)
                r = retire_canary(q, "");
        if (r >= 0)
                r = sq_commit(&t);
        if (r < 0)
                return r;
        *ret_digest = TAKE_PTR(canary);
        return 0;
}

int sq_runner_remove(Store *s, const char *digest) {
        SqliteStore *q = SQLITE_STORE(s);
        _cleanup_rollback_ SqTransaction t = {};
        uint64_t state;
        int r;

        r = sq_begin(q, &t);
        if (r >= 0)
                r = sq_number(q, &state, "SELECT state FROM runners WHERE digest = ?", "s", digest);
        if (r < 0)
                return r;
        if (state == RUNNER_CURRENT || state == RUNNER_CANARY)
                return -EBUSY;
        r = sq_run(q, "DELETE FROM runners WHERE digest = ?", "s", digest);
        return r < 0 ? r : sq_commit(&t);
}

static int runner_from_row(sqlite3_stmt *st, StoreRunner *ret) {
        StoreRunner x = {
                .created_usec = sq_column_u64(st, 7),
                .state = (StoreRunnerState) sqlite3_column_int(st, 8),
                .turn = sq_column_u64(st, 9),
                .percent = sq_column_u64(st, 10),
        };
        char **const strings[] = { &x.digest, &x.name, &x.version, &x.manifest, &x.source, &x.author, &x.note };
        int r = 0;

        for (size_t i = 0; r >= 0 && i < ELEMENTSOF(strings); i++)
                r = sq_column_dup(st, (int) i, strings[i]);
        if (r >= 0)
                r = sq_column_dup(st, 11, &x.agents);
        if (r < 0) {
                store_runner_done(&x);
                return r;
        }
        *ret = x;
        return 0;
}

int sq_runner_list(Store *s, StoreRunnerCallback callback, void *userdata) {
        SqliteStore *q = SQLITE_STORE(s);
        _cleanup_reset_ sqlite3_stmt *st = NULL;
        int n = 0, r;

        r = sq_query(
                q, &st,
                "SELECT digest, name, version, manifest, source, author, note, created_usec, state, turn, percent, "
                "agents FROM runners ORDER BY CASE state WHEN 2 THEN 0 WHEN 0 THEN 1 WHEN 1 THEN 2 ELSE 3 END, "
                "turn DESC, created_usec DESC, digest",
                "");
        if (r < 0)
                return r;
        while ((r = sq_step(q, st)) > 0) {
                StoreRunner x;

                r = runner_from_row(st, &x);
                if (r < 0)
                        return r;
                r = callback(&x, userdata);
                store_runner_done(&x);
                if (r < 0)
                        return r;
                n++;
        }
        return r < 0 ? r : n;
}

/* ---- verdicts ---- */

int sq_verdict_add(Store *s, const char *runner, const char *node, bool ok, const char *reason) {
        SqliteStore *q = SQLITE_STORE(s);
        _cleanup_rollback_ SqTransaction t = {};
        uint64_t state;
        int n, r;

        r = sq_begin(q, &t);
        if (r >= 0)
                r = sq_number(q, &state, "SELECT state FROM runners WHERE digest = ?", "s", runner);
        if (r < 0)
                return r;
        n = sq_run(q, "INSERT OR IGNORE INTO verdicts (runner, node, ok, reason, created_usec) VALUES (?, ?, ?, ?, ?)",
                   "ssisu", runner, node, (int) ok, ok ? NULL : reason, sq_now());
        if (n < 0)
                return n;
        r = sq_commit(&t);
        return r < 0 ? r : n > 0;
}

static int verdict_from_row(sqlite3_stmt *st, StoreVerdict *ret) {
        StoreVerdict v = { .ok = sqlite3_column_int(st, 2) != 0, .created_usec = sq_column_u64(st, 4) };
        int r;

        r = sq_column_dup(st, 0, &v.runner);
        if (r >= 0)
                r = sq_column_dup(st, 1, &v.node);
        if (r >= 0)
                r = sq_column_dup(st, 3, &v.reason);
        if (r < 0) {
                store_verdict_done(&v);
                return r;
        }
        *ret = v;
        return 0;
}

int sq_verdict_get(Store *s, const char *runner, const char *node, StoreVerdict **ret) {
        SqliteStore *q = SQLITE_STORE(s);
        _cleanup_(store_verdict_freep) StoreVerdict *v = NULL;
        _cleanup_reset_ sqlite3_stmt *st = NULL;
        int r;

        v = calloc(1, sizeof *v);
        if (!v)
                return -ENOMEM;
        r = sq_row(q, &st, "SELECT runner, node, ok, reason, created_usec FROM verdicts WHERE runner = ? AND node = ?",
                   "ss", runner, node);
        if (r < 0)
                return r;
        r = verdict_from_row(st, v);
        if (r < 0)
                return r;
        *ret = TAKE_PTR(v);
        return 0;
}

int sq_verdict_list(Store *s, const char *runner, StoreVerdictCallback callback, void *userdata) {
        SqliteStore *q = SQLITE_STORE(s);
        _cleanup_reset_ sqlite3_stmt *st = NULL;
        int n = 0, r;

        r = sq_query(q, &st,
                     "SELECT runner, node, ok, reason, created_usec FROM verdicts WHERE runner = ? "
                     "ORDER BY created_usec, node",
                     "s", runner);
        if (r < 0)
                return r;
        while ((r = sq_step(q, st)) > 0) {
                StoreVerdict v;

                r = verdict_from_row(st, &v);
                if (r < 0)
                        return r;
                r = callback(&v, userdata);
                store_verdict_done(&v);
                if (r < 0)
                        return r;
                n++;
        }
        return r < 0 ? r : n;
}

int sq_node_put(Store *s, const char *environment, const char *own, const char *node) {
        int r = sq_run(SQLITE_STORE(s), "INSERT OR REPLACE INTO nodes (environment, own, node) VALUES (?, ?, ?)", "sss",
                       environment, own, node);

        return r < 0 ? r : 0;
}

int sq_node_get(Store *s, const char *environment, const char *own, char ret[static DIGEST_LEN + 1]) {
        _cleanup_free_ char *node = NULL;
        SqliteStore *q = SQLITE_STORE(s);
        _cleanup_reset_ sqlite3_stmt *st = NULL;
        int r;

        r = sq_row(q, &st, "SELECT node FROM nodes WHERE environment = ? AND own = ?", "ss", environment, own);
        if (r < 0)
                return r;
        r = sq_column_dup(st, 0, &node);
        if (r < 0)
                return r;
        if (!node || !digest_is_valid(node))
                return -EUCLEAN;
        memcpy(ret, node, DIGEST_LEN + 1);
        return 0;
}
