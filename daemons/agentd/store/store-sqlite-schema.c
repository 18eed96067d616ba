/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The schema and its migrations. user_version is the number of migrations done; a step is appended, never changed.
 *
 * Users and lanes (an agent's name within a user) are rows of their own, with counters of queued and live runs that
 * triggers keep in the same transaction as the run's state. So admission and claim cost as much as there are users
 * and agents with work, not as there are runs. All work on unfinished runs goes over partial indexes that hold
 * nothing else; the lists of finished ones page by key (seq).
 */
#include "basic/string-util.h"

#include "store-sqlite.h"

#define APPLICATION_ID 0x61676431 /* "agd1" */

static const char schema_1[] =
        "CREATE TABLE users ("
        "  id INTEGER PRIMARY KEY,"
        "  name TEXT NOT NULL UNIQUE,"
        "  queued INTEGER NOT NULL DEFAULT 0 CHECK (queued >= 0),"
        "  live INTEGER NOT NULL DEFAULT 0 CHECK (live >= 0),"
        "  served INTEGER NOT NULL DEFAULT 0" /* the turn in which a run of this user was claimed last */
        ") STRICT;"
        "CREATE INDEX users_queued ON users (served) WHERE queued > 0;"
        "CREATE INDEX users_served ON users (served);"
        "CREATE INDEX users_active ON users (id) WHERE queued > 0 OR live > 0;"

        "CREATE TABLE lanes ("
        "  id INTEGER PRIMARY KEY,"
        "  user_id INTEGER NOT NULL REFERENCES users (id),"
        "  agent TEXT NOT NULL,"
        "  queued INTEGER NOT NULL DEFAULT 0 CHECK (queued >= 0),"
        "  live INTEGER NOT NULL DEFAULT 0 CHECK (live >= 0),"
        "  UNIQUE (user_id, agent)"
        ") STRICT;"
        "CREATE INDEX lanes_queued ON lanes (user_id) WHERE queued > 0;"

        "CREATE TABLE agents ("
        "  id INTEGER PRIMARY KEY,"
        "  lane_id INTEGER NOT NULL UNIQUE REFERENCES lanes (id),"
        "  uid INTEGER NOT NULL,"
        "  definition TEXT NOT NULL,"
        "  concurrency INTEGER NOT NULL CHECK (concurrency > 0),"
        "  created_usec INTEGER NOT NULL,"
        "  changed_usec INTEGER NOT NULL,"
        "  head TEXT NOT NULL,"
        "  head_rev INTEGER NOT NULL"
        ") STRICT;"

        "CREATE TABLE generations ("
        "  agent_id INTEGER NOT NULL REFERENCES agents (id) ON DELETE CASCADE,"
        "  number INTEGER NOT NULL,"
        "  digest TEXT NOT NULL,"
        "  parent TEXT,"
        "  created_usec INTEGER NOT NULL,"
        "  author TEXT NOT NULL,"
        "  note TEXT,"
        "  manifest TEXT NOT NULL,"
        "  PRIMARY KEY (agent_id, number),"
        "  UNIQUE (agent_id, digest)"
        ") STRICT;"

        "CREATE TABLE images ("
        "  user TEXT NOT NULL,"
        "  name TEXT NOT NULL,"
        "  digest TEXT NOT NULL,"
        "  size INTEGER NOT NULL,"
        "  created_usec INTEGER NOT NULL,"
        "  PRIMARY KEY (user, name)"
        ") STRICT;"

        "CREATE TABLE services ("
        "  user TEXT NOT NULL,"
        "  name TEXT NOT NULL,"
        "  definition TEXT NOT NULL,"
        "  created_usec INTEGER NOT NULL,"
        "  changed_usec INTEGER NOT NULL,"
        "  PRIMARY KEY (user, name)"
        ") STRICT;"

        "CREATE TABLE blobs ("
        "  digest TEXT PRIMARY KEY NOT NULL,"
        "  data BLOB NOT NULL,"
        "  created_usec INTEGER NOT NULL"
        ") STRICT;"

        "CREATE TABLE runs ("
        "  seq INTEGER PRIMARY KEY AUTOINCREMENT,"
        "  id TEXT NOT NULL UNIQUE,"
        "  user_id INTEGER NOT NULL REFERENCES users (id),"
        "  lane_id INTEGER NOT NULL REFERENCES lanes (id),"
        "  uid INTEGER NOT NULL,"
        "  trigger TEXT NOT NULL,"
        "  session TEXT,"
        "  labels TEXT,"
        "  idempotency_key TEXT,"
        "  parent TEXT,"
        "  input_digest TEXT NOT NULL,"
        "  priority INTEGER NOT NULL,"
        "  keep INTEGER NOT NULL,"
        "  timeout_usec INTEGER NOT NULL,"
        "  state INTEGER NOT NULL DEFAULT 0 CHECK (state BETWEEN 0 AND 3),"
        "  attempt INTEGER NOT NULL DEFAULT 0,"
        "  fence INTEGER NOT NULL DEFAULT 0,"
        "  lease_usec INTEGER NOT NULL DEFAULT 0,"
        "  not_before_usec INTEGER NOT NULL DEFAULT 0,"
        "  unit TEXT,"
        "  invocation_id TEXT,"
        "  boot_id TEXT,"
        "  generation TEXT,"
        "  environment TEXT,"
        "  runner TEXT,"
        "  policy TEXT,"
        "  sandbox_uid INTEGER,"
        "  created_usec INTEGER NOT NULL,"
        "  queued_usec INTEGER NOT NULL,"
        "  claimed_usec INTEGER NOT NULL DEFAULT 0,"
        "  prepared_usec INTEGER NOT NULL DEFAULT 0,"
        "  started_usec INTEGER NOT NULL DEFAULT 0,"
        "  finished_usec INTEGER NOT NULL DEFAULT 0,"
        "  deadline_usec INTEGER NOT NULL DEFAULT 0,"
        "  cancel_by TEXT," /* set: it is to be canceled */
        "  result INTEGER,"
        "  message TEXT,"
        "  exit_code INTEGER,"
        "  exit_signal INTEGER,"
        "  cpu_usec INTEGER,"
        "  memory_peak INTEGER,"
        "  io_read_bytes INTEGER,"
        "  io_write_bytes INTEGER,"
        "  steps TEXT,"
        "  caller TEXT," /* who asked, where it was not the owner */
        "  CHECK ((state = 3) = (result IS NOT NULL))"
        ") STRICT;"
        /* Unfinished runs only: these stay small. */
        "CREATE INDEX runs_queue ON runs (lane_id, priority DESC, seq) WHERE state = 0 AND cancel_by IS NULL;"
        "CREATE INDEX runs_unfinished ON runs (seq) WHERE state < 3;"
        "CREATE INDEX runs_user_unfinished ON runs (user_id) WHERE state < 3;"
        "CREATE INDEX runs_lane_unfinished ON runs (lane_id) WHERE state < 3;"
        "CREATE INDEX runs_delayed ON runs (not_before_usec) WHERE state = 0 AND not_before_usec > 0;"
        "CREATE INDEX runs_leased ON runs (lease_usec) WHERE state < 3 AND lease_usec > 0;"
        /* All runs: each ends with seq (the rowid), so that a list is read in its order and stops at its limit. */
        "CREATE UNIQUE INDEX runs_key ON runs (lane_id, idempotency_key) WHERE idempotency_key IS NOT NULL;"
        "CREATE INDEX runs_user ON runs (user_id);"
        "CREATE INDEX runs_lane ON runs (lane_id);"
        "CREATE INDEX runs_result ON runs (result) WHERE result IS NOT NULL;"
        "CREATE INDEX runs_user_result ON runs (user_id, result) WHERE result IS NOT NULL;"
        "CREATE INDEX runs_lane_result ON runs (lane_id, result) WHERE result IS NOT NULL;"
        "CREATE INDEX runs_parent ON runs (parent) WHERE parent IS NOT NULL;"

        /* Counters. A finished run never changes its state again. */
        "CREATE TRIGGER runs_insert AFTER INSERT ON runs BEGIN"
        "  UPDATE users SET queued = queued + (NEW.state = 0), live = live + (NEW.state IN (1, 2))"
        "    WHERE id = NEW.user_id;"
        "  UPDATE lanes SET queued = queued + (NEW.state = 0), live = live + (NEW.state IN (1, 2))"
        "    WHERE id = NEW.lane_id;"
        "END;"
        "CREATE TRIGGER runs_update AFTER UPDATE OF state ON runs WHEN OLD.state <> NEW.state BEGIN"
        "  SELECT RAISE(ABORT, 'a finished run cannot change its state') WHERE OLD.state = 3;"
        "  UPDATE users SET queued = queued + (NEW.state = 0) - (OLD.state = 0),"
        "    live = live + (NEW.state IN (1, 2)) - (OLD.state IN (1, 2)) WHERE id = NEW.user_id;"
        "  UPDATE lanes SET queued = queued + (NEW.state = 0) - (OLD.state = 0),"
        "    live = live + (NEW.state IN (1, 2)) - (OLD.state IN (1, 2)) WHERE id = NEW.lane_id;"
        "END;"
        "CREATE TRIGGER runs_delete AFTER DELETE ON runs BEGIN"
        "  UPDATE users SET queued = queued - (OLD.state = 0), live = live - (OLD.state IN (1, 2))"
        "    WHERE id = OLD.user_id;"
        "  UPDATE lanes SET queued = queued - (OLD.state = 0), live = live - (OLD.state IN (1, 2))"
        "    WHERE id = OLD.lane_id;"
        "END;"

        /* The large parts of a run, apart, so that a list reads none of them. */
        "CREATE TABLE run_inputs (seq INTEGER PRIMARY KEY REFERENCES runs (seq) ON DELETE CASCADE,"
        "  text TEXT NOT NULL) STRICT;"
        "CREATE TABLE run_results (seq INTEGER PRIMARY KEY REFERENCES runs (seq) ON DELETE CASCADE,"
        "  attempt INTEGER NOT NULL, text TEXT NOT NULL) STRICT;"
        "CREATE TABLE run_receipts (seq INTEGER PRIMARY KEY REFERENCES runs (seq) ON DELETE CASCADE,"
        "  text TEXT NOT NULL) STRICT;"

        "CREATE TABLE calls ("
        "  id INTEGER PRIMARY KEY,"
        "  seq INTEGER NOT NULL REFERENCES runs (seq) ON DELETE CASCADE,"
        "  attempt INTEGER NOT NULL,"
        "  call_id TEXT NOT NULL,"
        "  text TEXT NOT NULL,"
        "  UNIQUE (seq, attempt, call_id)"
        ") STRICT;"
        "CREATE INDEX calls_run ON calls (seq);"

        "CREATE TABLE artifacts ("
        "  seq INTEGER NOT NULL REFERENCES runs (seq) ON DELETE CASCADE,"
        "  name TEXT NOT NULL,"
        "  attempt INTEGER NOT NULL,"
        "  size INTEGER NOT NULL DEFAULT 0,"
        "  content_type TEXT NOT NULL DEFAULT '',"
        "  created_usec INTEGER NOT NULL,"
        "  committed INTEGER NOT NULL DEFAULT 0,"
        "  PRIMARY KEY (seq, name)"
        ") STRICT, WITHOUT ROWID;";

/* Runners, and what is known of how they suit which node. */
static const char schema_2[] =
        "ALTER TABLE runs ADD COLUMN runner_before TEXT;"
        "ALTER TABLE runs ADD COLUMN verdict TEXT;"

        "CREATE TABLE runners ("
        "  digest TEXT PRIMARY KEY NOT NULL,"
        "  name TEXT NOT NULL,"
        "  version TEXT NOT NULL,"
        "  manifest TEXT NOT NULL,"
        "  source TEXT,"
        "  author TEXT NOT NULL,"
        "  note TEXT,"
        "  created_usec INTEGER NOT NULL,"
        "  state INTEGER NOT NULL CHECK (state BETWEEN 0 AND 3),"
        "  turn INTEGER NOT NULL DEFAULT 0,"
        "  percent INTEGER NOT NULL DEFAULT 0,"
        "  agents TEXT"
        ") STRICT;"
        "CREATE UNIQUE INDEX runners_current ON runners (state) WHERE state = 0;"
        "CREATE UNIQUE INDEX runners_canary ON runners (state) WHERE state = 2;"

        "CREATE TABLE verdicts ("
        "  runner TEXT NOT NULL REFERENCES runners (digest) ON DELETE CASCADE,"
        "  node TEXT NOT NULL,"
        "  ok INTEGER NOT NULL,"
        "  reason TEXT,"
        "  created_usec INTEGER NOT NULL,"
        "  PRIMARY KEY (runner, node)"
        ") STRICT, WITHOUT ROWID;"

        "CREATE TABLE nodes ("
        "  environment TEXT NOT NULL,"
        "  own TEXT NOT NULL,"
        "  node TEXT NOT NULL,"
        "  PRIMARY KEY (environment, own)"
        ") STRICT, WITHOUT ROWID;";

/* What the bridge keeps for runs. */
static const char schema_3[] =
        "CREATE TABLE sessions ("
        "  id INTEGER PRIMARY KEY,"
        "  lane_id INTEGER NOT NULL REFERENCES lanes (id),"
        "  session TEXT NOT NULL,"
        "  rev INTEGER NOT NULL,"
        "  content_type TEXT NOT NULL,"
        "  data BLOB NOT NULL,"
        "  changed_usec INTEGER NOT NULL,"
        "  UNIQUE (lane_id, session)"
        ") STRICT;"
        "CREATE TABLE usages ("
        "  id INTEGER PRIMARY KEY,"
        "  seq INTEGER NOT NULL REFERENCES runs (seq) ON DELETE CASCADE,"
        "  key TEXT NOT NULL,"
        "  amount INTEGER NOT NULL CHECK (amount > 0),"
        "  description TEXT NOT NULL,"
        "  created_usec INTEGER NOT NULL,"
        "  UNIQUE (seq, key)"
        ") STRICT;";

/* Whether a run's layers are to be checked at its start, and how they were. */
static const char schema_4[] =
        "ALTER TABLE runs ADD COLUMN verify INTEGER NOT NULL DEFAULT 0;"
        "ALTER TABLE runs ADD COLUMN verified TEXT;";

/* What is kept for each user, counted by triggers as queued and live runs are. A run's artifacts have to be deleted
 * before the run is, so that their trigger still finds whose they are. */
#define ARTIFACT_BYTES(sign, row)                                                                                      \
        "UPDATE users SET artifact_bytes = artifact_bytes " sign " (" row ".size + " row ".reserved) "                 \
        "WHERE id = (SELECT user_id FROM runs WHERE seq = " row ".seq);"
#define SESSION_BYTES(sign, row)                                                                                       \
        "UPDATE users SET session_bytes = session_bytes " sign " octet_length(" row ".data) "                          \
        "WHERE id = (SELECT user_id FROM lanes WHERE id = " row ".lane_id);"

static const char schema_5[] =
        "ALTER TABLE users ADD COLUMN finished INTEGER NOT NULL DEFAULT 0 CHECK (finished >= 0);"
        "ALTER TABLE users ADD COLUMN finished_bytes INTEGER NOT NULL DEFAULT 0 CHECK (finished_bytes >= 0);"
        "ALTER TABLE users ADD COLUMN artifact_bytes INTEGER NOT NULL DEFAULT 0 CHECK (artifact_bytes >= 0);"
        "ALTER TABLE users ADD COLUMN session_bytes INTEGER NOT NULL DEFAULT 0 CHECK (session_bytes >= 0);"
        "ALTER TABLE runs ADD COLUMN size INTEGER NOT NULL DEFAULT 0;"
        "ALTER TABLE artifacts ADD COLUMN reserved INTEGER NOT NULL DEFAULT 0;"

        "UPDATE runs SET size = (" SQ_RUN_SIZE("runs.seq") ") WHERE state = 3;"
        "UPDATE users SET (finished, finished_bytes) = (SELECT COUNT(*), COALESCE(SUM(size), 0) FROM runs "
        "  WHERE user_id = users.id AND state = 3),"
        "  artifact_bytes = (SELECT COALESCE(SUM(a.size), 0) FROM artifacts a JOIN runs r ON r.seq = a.seq "
        "    WHERE r.user_id = users.id),"
        "  session_bytes = (SELECT COALESCE(SUM(octet_length(s.data)), 0) FROM sessions s JOIN lanes l ON l.id = s.lane_id "
        "    WHERE l.user_id = users.id);"

        "CREATE TRIGGER runs_insert_finished AFTER INSERT ON runs WHEN NEW.state = 3 BEGIN"
        "  UPDATE users SET finished = finished + 1, finished_bytes = finished_bytes + NEW.size WHERE id = NEW.user_id;"
        "END;"
        "CREATE TRIGGER runs_finish AFTER UPDATE OF state ON runs WHEN NEW.state = 3 AND OLD.state <> 3 BEGIN"
        "  UPDATE users SET finished = finished + 1, finished_bytes = finished_bytes + NEW.size WHERE id = NEW.user_id;"
        "END;"
        "CREATE TRIGGER runs_delete_finished AFTER DELETE ON runs WHEN OLD.state = 3 BEGIN"
        "  UPDATE users SET finished = finished - 1, finished_bytes = finished_bytes - OLD.size WHERE id = OLD.user_id;"
        "END;"
        "CREATE TRIGGER artifacts_insert AFTER INSERT ON artifacts BEGIN " ARTIFACT_BYTES("+", "NEW") "END;"
        "CREATE TRIGGER artifacts_update AFTER UPDATE OF size, reserved ON artifacts BEGIN "
        ARTIFACT_BYTES("-", "OLD") ARTIFACT_BYTES("+", "NEW") "END;"
        "CREATE TRIGGER artifacts_delete AFTER DELETE ON artifacts BEGIN " ARTIFACT_BYTES("-", "OLD") "END;"
        "CREATE TRIGGER sessions_insert AFTER INSERT ON sessions BEGIN " SESSION_BYTES("+", "NEW") "END;"
        "CREATE TRIGGER sessions_update AFTER UPDATE OF data ON sessions BEGIN "
        SESSION_BYTES("-", "OLD") SESSION_BYTES("+", "NEW") "END;"
        "CREATE TRIGGER sessions_delete AFTER DELETE ON sessions BEGIN " SESSION_BYTES("-", "OLD") "END;";

static const char *const migrations[] = {
        schema_1,
        schema_2,
        schema_3,
        schema_4,
        schema_5,
};

static int exec(SqliteStore *q, const char *sql) {
        int c = sqlite3_exec(q->db, sql, NULL, NULL, NULL);

        return c == SQLITE_OK ? 0 : sq_fail(q, c);
}

static int pragma_number(SqliteStore *q, const char *sql, int64_t *ret) {
        sqlite3_stmt *st;
        int c;

        c = sqlite3_prepare_v2(q->db, sql, -1, &st, NULL);
        if (c != SQLITE_OK)
                return sq_fail(q, c);
        c = sqlite3_step(st);
        if (c == SQLITE_ROW)
                *ret = sqlite3_column_int64(st, 0);
        sqlite3_finalize(st);
        return c == SQLITE_ROW ? 0 : sq_fail(q, c);
}

/* The structure of the small tables, whole; the large ones are checked page by page as they are read. A check of a
 * million runs would make every start wait for it. */
static int check_small_tables(SqliteStore *q, char **ret_error) {
        static const char *const tables[] = { "users",    "lanes",   "agents",   "generations", "images",
                                              "services", "runners", "verdicts", "nodes" };

        for (size_t i = 0; i < ELEMENTSOF(tables); i++) {
                _cleanup_free_ char *sql = strprintf("PRAGMA quick_check('%s')", tables[i]);
                _cleanup_free_ char *said = NULL;
                sqlite3_stmt *st;
                int c;

                if (!sql)
                        return -ENOMEM;
                c = sqlite3_prepare_v2(q->db, sql, -1, &st, NULL);
                if (c != SQLITE_OK)
                        return sq_fail(q, c);
                c = sqlite3_step(st);
                if (c == SQLITE_ROW)
                        said = strdup((const char *) sqlite3_column_text(st, 0) ?: "");
                sqlite3_finalize(st);
                if (c != SQLITE_ROW)
                        return sq_fail(q, c);
                if (!said)
                        return -ENOMEM;
                if (!streq(said, "ok")) {
                        if (ret_error)
                                *ret_error = strprintf("%s: the database is damaged (table %s: %s). agentd does not "
                                                       "touch it; restore a copy, or move it away to start with an "
                                                       "empty one.", q->path, tables[i], said);
                        return -EUCLEAN;
                }
        }
        return 0;
}

int sq_schema_setup(SqliteStore *q, char **ret_error) {
        _cleanup_free_ char *pragma = NULL;
        int64_t version, application, n_tables;
        int r;

        /* Reads the header: a file that is no database ends here, before anything is written. */
        r = pragma_number(q, "PRAGMA user_version", &version);
        if (r < 0)
                return r;
        r = pragma_number(q, "PRAGMA application_id", &application);
        if (r < 0)
                return r;
        r = pragma_number(q, "SELECT COUNT(*) FROM sqlite_schema", &n_tables);
        if (r < 0)
                return r;
        if (application != APPLICATION_ID && (application != 0 || n_tables > 0 || version != 0)) {
                if (ret_error)
                        *ret_error = strprintf("%s: is a database of some other program.", q->path);
                return -EUCLEAN;
        }
        if (version < 0 || version > (int64_t) ELEMENTSOF(migrations)) {
                if (ret_error)
                        *ret_error = strprintf("%s: was written by a newer agentd (schema %" PRIi64 ", this one knows "
                                               "%zu). Install that version again.",
                                               q->path, version, ELEMENTSOF(migrations));
                return -EPROTONOSUPPORT;
        }

        /* A database that begins gives its pages back to the file system when runs are removed; it has to be told
         * first. */
        if (n_tables == 0) {
                r = exec(q, "PRAGMA auto_vacuum = INCREMENTAL");
                if (r < 0)
                        return r;
        }
        r = exec(q, "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON;"
                    "PRAGMA cell_size_check = ON; PRAGMA temp_store = MEMORY; PRAGMA journal_size_limit = 67108864;");
        if (r < 0)
                return r;

        while (version < (int64_t) ELEMENTSOF(migrations)) {
                _cleanup_rollback_ SqTransaction t = {};

                r = sq_begin(q, &t);
                if (r < 0)
                        return r;
                /* Another process may have been first. */
                r = pragma_number(q, "PRAGMA user_version", &version);
                if (r < 0)
                        return r;
                if (version >= (int64_t) ELEMENTSOF(migrations))
                        break;
                r = exec(q, migrations[version]);
                if (r < 0)
                        return r;
                free(pragma);
                pragma = strprintf("PRAGMA user_version = %" PRIi64 "; PRAGMA application_id = %d", version + 1,
                                   APPLICATION_ID);
                if (!pragma)
                        return -ENOMEM;
                r = exec(q, pragma);
                if (r < 0)
                        return r;
                r = sq_commit(&t);
                if (r < 0)
                        return r;
                version++;
        }
        return check_small_tables(q, ret_error);
}

int sq_user_id(SqliteStore *q, const char *user, bool add, int64_t *ret) {
        uint64_t id;
        int r;

        r = sq_number(q, &id, "SELECT id FROM users WHERE name = ?", "s", user);
        if (r == -ENOENT && add) {
                r = sq_run(q, "INSERT INTO users (name) VALUES (?)", "s", user);
                id = (uint64_t) sqlite3_last_insert_rowid(q->db);
        }
        if (r < 0)
                return r;
        *ret = (int64_t) id;
        return 0;
}

int sq_lane_id(SqliteStore *q, const char *user, const char *agent, bool add, int64_t *ret) {
        int64_t user_id;
        uint64_t id;
        int r;

        r = sq_user_id(q, user, add, &user_id);
        if (r < 0)
                return r;
        r = sq_number(q, &id, "SELECT id FROM lanes WHERE user_id = ? AND agent = ?", "us", (uint64_t) user_id, agent);
        if (r == -ENOENT && add) {
                r = sq_run(q, "INSERT INTO lanes (user_id, agent) VALUES (?, ?)", "us", (uint64_t) user_id, agent);
                id = (uint64_t) sqlite3_last_insert_rowid(q->db);
        }
        if (r < 0)
                return r;
        *ret = (int64_t) id;
        return 0;
}

int sq_lane_drop(SqliteStore *q, uint64_t lane) {
        return sq_run(q,
                      "DELETE FROM lanes WHERE id = ?1 AND NOT EXISTS (SELECT 1 FROM runs WHERE lane_id = ?1) "
                      "AND NOT EXISTS (SELECT 1 FROM agents WHERE lane_id = ?1)",
                      "u", lane);
}
