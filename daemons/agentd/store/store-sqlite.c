/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The SQLite back end: opening, statements, transactions, and the translation of SQLite's codes into errno.
 *
 * The database is in WAL mode with synchronous=FULL: a commit that returned survives a power cut, and one that did not
 * return leaves the state before it. Writers take the lock at BEGIN (IMMEDIATE), so that no transaction fails half way
 * because another process wrote in between. Nothing of a row that is read is trusted to be there: a missing row is
 * -ENOENT, a failed constraint -EINVAL or -EEXIST.
 */
#include <stdarg.h>
#include <sys/stat.h>
#include <fcntl.h>
#include <time.h>

#include "basic/string-util.h"

#include "store-sqlite.h"

#define BUSY_TIMEOUT_MSEC 5000

uint64_t sq_now(void) {
        struct timespec ts;

        clock_gettime(CLOCK_REALTIME, &ts);
        return (uint64_t) ts.tv_sec * USEC_PER_SEC + (uint64_t) ts.tv_nsec / NSEC_PER_USEC;
}

static int errno_from_sqlite(sqlite3 *db, int code) {
        switch (code & 0xff) {
        case SQLITE_OK:
        case SQLITE_ROW:
        case SQLITE_DONE:
                return 0;
        case SQLITE_NOMEM:
                return -ENOMEM;
        case SQLITE_FULL:
                return -ENOSPC;
        case SQLITE_BUSY:
        case SQLITE_LOCKED:
                return -EAGAIN;
        case SQLITE_CORRUPT:
        case SQLITE_NOTADB:
                return -EUCLEAN;
        case SQLITE_READONLY:
                return -EROFS;
        case SQLITE_TOOBIG:
                return -E2BIG;
        case SQLITE_CONSTRAINT:
                return code == SQLITE_CONSTRAINT_UNIQUE || code == SQLITE_CONSTRAINT_PRIMARYKEY ? -EEXIST : -EINVAL;
        case SQLITE_IOERR:
        case SQLITE_CANTOPEN:
                /* A full disk shows up here too, where it hits a file other than the log. */
                switch (db ? sqlite3_system_errno(db) : 0) {
                case ENOSPC:
                case EDQUOT:
                        return -ENOSPC;
                case EROFS:
                        return -EROFS;
                case EACCES:
                        return -EACCES;
                default:
                        return -EIO;
                }
        default:
                return -EIO;
        }
}

int sq_fail(SqliteStore *q, int code) {
        int r = errno_from_sqlite(q->db, sqlite3_extended_errcode(q->db) ?: code);

        if (r == 0)
                r = errno_from_sqlite(q->db, code) ?: -EIO;
        free(q->error);
        q->error = strprintf("%s: %s", q->path, sqlite3_errmsg(q->db));
        return r;
}

static int prepare(SqliteStore *q, const char *sql, sqlite3_stmt **ret) {
        sqlite3_stmt *st;
        int c;

        for (unsigned i = 0; i < q->n_cached; i++)
                if (q->cache[i].sql == sql) {
                        /* Only a row callback that calls the store gets here with a busy one. */
                        if (sqlite3_stmt_busy(q->cache[i].statement))
                                return -EDEADLK;
                        *ret = q->cache[i].statement;
                        return 0;
                }
        if (q->n_cached >= SQ_STATEMENTS_MAX)
                return -E2BIG;
        c = sqlite3_prepare_v3(q->db, sql, -1, SQLITE_PREPARE_PERSISTENT, &st, NULL);
        if (c != SQLITE_OK)
                return sq_fail(q, c);
        q->cache[q->n_cached].sql = sql;
        q->cache[q->n_cached++].statement = st;
        *ret = st;
        return 0;
}

static int bind_u64(sqlite3_stmt *st, int i, uint64_t v) {
        return v > INT64_MAX ? SQLITE_MISMATCH : sqlite3_bind_int64(st, i, (int64_t) v);
}

static int query(SqliteStore *q, sqlite3_stmt **ret, const char *sql, const char *types, va_list ap) {
        _cleanup_reset_ sqlite3_stmt *st = NULL;
        int i = 0, r;

        r = prepare(q, sql, &st);
        if (r < 0)
                return r;
        for (const char *t = types; *t; t++) {
                int c = SQLITE_OK;

                i++;
                switch (*t) {
                case 's':
                        c = sqlite3_bind_text(st, i, va_arg(ap, const char *), -1, SQLITE_STATIC);
                        break;
                case 't': {
                        const char *p = va_arg(ap, const char *);
                        c = sqlite3_bind_text64(st, i, p, va_arg(ap, size_t), SQLITE_STATIC, SQLITE_UTF8);
                        break;
                }
                case 'b': {
                        const void *p = va_arg(ap, const void *);
                        size_t n = va_arg(ap, size_t);
                        c = n > 0 ? sqlite3_bind_blob64(st, i, p, n, SQLITE_STATIC) : sqlite3_bind_zeroblob(st, i, 0);
                        break;
                }
                case 'i':
                        c = sqlite3_bind_int(st, i, va_arg(ap, int));
                        break;
                case 'I': {
                        int v = va_arg(ap, int);
                        c = v < 0 ? sqlite3_bind_null(st, i) : sqlite3_bind_int(st, i, v);
                        break;
                }
                case 'u':
                        c = bind_u64(st, i, va_arg(ap, uint64_t));
                        break;
                case 'n': {
                        uint64_t v = va_arg(ap, uint64_t);
                        c = v == STORE_UNKNOWN ? sqlite3_bind_null(st, i) : bind_u64(st, i, v);
                        break;
                }
                default:
                        assert(false);
                }
                if (c == SQLITE_MISMATCH)
                        return -EINVAL;
                if (c != SQLITE_OK)
                        return sq_fail(q, c);
        }
        assert(i == sqlite3_bind_parameter_count(st));
        *ret = TAKE_PTR(st);
        return 0;
}

int sq_query(SqliteStore *q, sqlite3_stmt **ret, const char *sql, const char *types, ...) {
        va_list ap;
        int r;

        va_start(ap, types);
        r = query(q, ret, sql, types, ap);
        va_end(ap);
        return r;
}

int sq_step(SqliteStore *q, sqlite3_stmt *st) {
        int c = sqlite3_step(st);

        if (c == SQLITE_ROW)
                return 1;
        return c == SQLITE_DONE ? 0 : sq_fail(q, c);
}

static int row(SqliteStore *q, sqlite3_stmt **ret, const char *sql, const char *types, va_list ap) {
        _cleanup_reset_ sqlite3_stmt *st = NULL;
        int r;

        r = query(q, &st, sql, types, ap);
        if (r < 0)
                return r;
        r = sq_step(q, st);
        if (r <= 0)
                return r < 0 ? r : -ENOENT;
        *ret = TAKE_PTR(st);
        return 0;
}

int sq_row(SqliteStore *q, sqlite3_stmt **ret, const char *sql, const char *types, ...) {
        va_list ap;
        int r;

        va_start(ap, types);
        r = row(q, ret, sql, types, ap);
        va_end(ap);
        return r;
}

int sq_run(SqliteStore *q, const char *sql, const char *types, ...) {
        _cleanup_reset_ sqlite3_stmt *st = NULL;
        va_list ap;
        int r;

        va_start(ap, types);
        r = query(q, &st, sql, types, ap);
        va_end(ap);
        if (r < 0)
                return r;
        r = sq_step(q, st);
        if (r < 0)
                return r;
        return sqlite3_changes(q->db);
}

int sq_number(SqliteStore *q, uint64_t *ret, const char *sql, const char *types, ...) {
        _cleanup_reset_ sqlite3_stmt *st = NULL;
        va_list ap;
        int r;

        va_start(ap, types);
        r = row(q, &st, sql, types, ap);
        va_end(ap);
        if (r < 0)
                return r;
        *ret = sq_column_u64(st, 0);
        return 0;
}

int sq_begin(SqliteStore *q, SqTransaction *t) {
        int r;

        assert(sqlite3_get_autocommit(q->db)); /* no nesting */
        r = sq_run(q, "BEGIN IMMEDIATE", "");
        if (r < 0)
                return r;
        t->q = q;
        return 0;
}

int sq_commit(SqTransaction *t) {
        int r = sq_run(t->q, "COMMIT", "");

        if (r < 0)
                return r; /* the cleanup rolls back */
        t->q = NULL;
        return 0;
}

void sq_rollback(SqTransaction *t) {
        if (!t->q)
                return;
        /* After some faults SQLite has already rolled back by itself. Where even this fails, the next opening does. */
        if (!sqlite3_get_autocommit(t->q->db))
                (void) sqlite3_exec(t->q->db, "ROLLBACK", NULL, NULL, NULL);
        t->q = NULL;
}

int sq_column_dup_size(sqlite3_stmt *st, int column, char **ret, size_t *ret_size) {
        const void *p = sqlite3_column_blob(st, column); /* before _bytes(); the bytes as they are, also for TEXT */
        int n = sqlite3_column_bytes(st, column);
        char *copy;

        copy = malloc((size_t) n + 1);
        if (!copy)
                return -ENOMEM;
        if (n > 0)
                memcpy(copy, p, (size_t) n);
        copy[n] = 0;
        *ret = copy;
        *ret_size = (size_t) n;
        return 0;
}

int sq_column_dup(sqlite3_stmt *st, int column, char **ret) {
        size_t size;

        if (sqlite3_column_type(st, column) == SQLITE_NULL) {
                *ret = NULL;
                return 0;
        }
        return sq_column_dup_size(st, column, ret, &size);
}

static Store *sq_free(Store *s) {
        SqliteStore *q = SQLITE_STORE(s);

        for (unsigned i = 0; i < q->n_cached; i++)
                sqlite3_finalize(q->cache[i].statement);
        sqlite3_close(q->db);
        free(q->path);
        free(q->error);
        return mfree(q);
}

static const char *sq_error(Store *s) {
        return SQLITE_STORE(s)->error ?: "no error";
}

static const StoreOps sqlite_ops = {
        .free = sq_free,
        .error = sq_error,

        .run_enqueue = sq_run_enqueue,
        .run_claim = sq_run_claim,
        .queue_next = sq_queue_next,
        .run_extend = sq_run_extend,
        .run_set_prepared = sq_run_set_prepared,
        .run_set_running = sq_run_set_running,
        .run_requeue = sq_run_requeue,
        .run_cancel_request = sq_run_cancel_request,
        .run_post_result = sq_run_post_result,
        .run_finish = sq_run_finish,
        .run_get = sq_run_get,
        .run_get_input = sq_run_get_input,
        .run_get_posted = sq_run_get_posted,
        .run_get_receipt = sq_run_get_receipt,
        .run_list = sq_run_list,
        .runs_unfinished = sq_runs_unfinished,
        .runs_expired = sq_runs_expired,
        .counts = sq_counts,

        .calls_add = sq_calls_add,
        .calls = sq_calls,
        .artifact_begin = sq_artifact_begin,
        .artifact_commit = sq_artifact_commit,
        .artifacts = sq_artifacts,
        .usage_add = sq_usage_add,
        .usages = sq_usages,
        .session_get = sq_session_get,
        .session_put = sq_session_put,

        .runs_oldest = sq_runs_oldest,
        .run_newest = sq_run_newest,
        .runs_remove = sq_runs_remove,
        .users = sq_users,

        .owned = sq_owned,

        .agent_add = sq_agent_add,
        .agent_update = sq_agent_update,
        .agent_remove = sq_agent_remove,
        .agent_get = sq_agent_get,
        .agent_list = sq_agent_list,
        .head_swap = sq_head_swap,
        .generation_get = sq_generation_get,
        .generation_list = sq_generation_list,
        .generation_walk = sq_generation_walk,
        .generations_import = sq_generations_import,
        .generation_remove = sq_generation_remove,

        .image_add = sq_image_add,
        .image_find = sq_image_find,
        .image_remove = sq_image_remove,
        .image_list = sq_image_list,

        .runner_deploy = sq_runner_deploy,
        .runner_rollback = sq_runner_rollback,
        .runner_promote = sq_runner_promote,
        .runner_withdraw = sq_runner_withdraw,
        .runner_remove = sq_runner_remove,
        .runner_list = sq_runner_list,
        .verdict_add = sq_verdict_add,
        .verdict_get = sq_verdict_get,
        .verdict_list = sq_verdict_list,
        .node_put = sq_node_put,
        .node_get = sq_node_get,

        .service_add = sq_service_add,
        .service_update = sq_service_update,
        .service_remove = sq_service_remove,
        .service_get = sq_service_get,
        .service_list = sq_service_list,

        .blob_put = sq_blob_put,
        .blob_get = sq_blob_get,
};

int store_open_sqlite(const char *path, Store **ret, char **ret_error) {
        _cleanup_(store_freep) Store *s = NULL;
        SqliteStore *q;
        int fd, r;

        /* The database's mode is ours, whatever the umask; SQLite gives its log the same one. */
        fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (fd < 0) {
                r = -errno;
                if (ret_error)
                        *ret_error = strprintf("%s: cannot be opened: %s", path, strerror(-r));
                return r;
        }
        safe_close(fd);

        q = calloc(1, sizeof(*q));
        if (!q)
                return -ENOMEM;
        q->store.ops = &sqlite_ops;
        s = &q->store;
        q->path = strdup(path);
        if (!q->path)
                return -ENOMEM;

        r = sqlite3_open_v2(path, &q->db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_PRIVATECACHE |
                            SQLITE_OPEN_EXRESCODE, NULL);
        if (r != SQLITE_OK) {
                r = q->db ? sq_fail(q, r) : -ENOMEM;
                goto fail;
        }
        sqlite3_busy_timeout(q->db, BUSY_TIMEOUT_MSEC);
        sqlite3_db_config(q->db, SQLITE_DBCONFIG_DEFENSIVE, 1, NULL);
        sqlite3_db_config(q->db, SQLITE_DBCONFIG_DQS_DML, 0, NULL);
        sqlite3_db_config(q->db, SQLITE_DBCONFIG_DQS_DDL, 0, NULL);
        sqlite3_db_config(q->db, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, NULL);
        sqlite3_limit(q->db, SQLITE_LIMIT_LENGTH, 2 * (int) STORE_BLOB_MAX);

        r = sq_schema_setup(q, ret_error);
        if (r < 0)
                goto fail;
        *ret = TAKE_PTR(s);
        return 0;

fail:
        if (ret_error && !*ret_error) {
                if (r == -EUCLEAN)
                        *ret_error = strprintf("%s: the database is damaged (%s). agentd does not touch it; restore a "
                                               "copy, or move it away to start with an empty one.",
                                               path, sqlite3_errmsg(q->db));
                else
                        *ret_error = strprintf("%s: %s", path, q->error ? sqlite3_errmsg(q->db) : strerror(-r));
        }
        return r;
}
