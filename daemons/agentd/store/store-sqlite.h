/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * Inside of the SQLite back end: its object, transactions, and cached statements that are bound by a format string.
 * A statement's text must be a string literal, because the cache knows it by its address.
 */

#include <sqlite3.h>

#include "store-backend.h"

/* Large enough for every statement of this back end; a full cache is a programming error. */
#define SQ_STATEMENTS_MAX 160U

#define SQ_CALL_COUNTS 64U

typedef struct SqliteStore {
        Store store;
        sqlite3 *db;
        char *path;
        char *error;
        struct {
                const char *sql;
                sqlite3_stmt *statement;
        } cache[SQ_STATEMENTS_MAX];
        unsigned n_cached;
        struct {
                int64_t seq;
                uint64_t n, size;
        } call_counts[SQ_CALL_COUNTS]; /* of calls of the runs that were written last; seq 0: none */
} SqliteStore;

static inline SqliteStore *SQLITE_STORE(Store *s) {
        return (SqliteStore *) s; /* the first member */
}

uint64_t sq_now(void);

/* The errno for what SQLite just said; keeps its sentence for store_error(). */
int sq_fail(SqliteStore *q, int code);

/*
 * Prepares (cached) and binds. TYPES, one letter for each "?":
 *   s  const char *, NULL is NULL          t  const char *, size_t: text of that size
 *   b  const void *, size_t: blob          i  int
 *   I  int, negative is NULL               u  uint64_t (-EINVAL above INT64_MAX)
 *   n  uint64_t, STORE_UNKNOWN is NULL
 * The texts must stay until the statement is reset.
 */
int sq_query(SqliteStore *q, sqlite3_stmt **ret, const char *sql, const char *types, ...);
/* 1: a row is there; 0: no more. */
int sq_step(SqliteStore *q, sqlite3_stmt *st);
/* Both for a statement of which one row is wanted: that row is there, or -ENOENT. */
int sq_row(SqliteStore *q, sqlite3_stmt **ret, const char *sql, const char *types, ...);
/* sq_query() for a statement without rows; the number of rows it changed. */
int sq_run(SqliteStore *q, const char *sql, const char *types, ...);
/* One row with one number; -ENOENT without a row. */
int sq_number(SqliteStore *q, uint64_t *ret, const char *sql, const char *types, ...);

static inline void sq_resetp(sqlite3_stmt **st) {
        if (*st) {
                sqlite3_reset(*st);
                sqlite3_clear_bindings(*st);
                *st = NULL;
        }
}
#define _cleanup_reset_ _cleanup_(sq_resetp)

/* A writing transaction; rolled back by the cleanup unless sq_commit() has succeeded. */
typedef struct SqTransaction {
        SqliteStore *q;
} SqTransaction;

void sq_rollback(SqTransaction *t);
#define _cleanup_rollback_ _cleanup_(sq_rollback)
int sq_begin(SqliteStore *q, SqTransaction *t);
int sq_commit(SqTransaction *t);

/* Columns of the current row. */
int sq_column_dup(sqlite3_stmt *st, int column, char **ret); /* NULL stays NULL */
int sq_column_dup_size(sqlite3_stmt *st, int column, char **ret, size_t *ret_size);
static inline uint64_t sq_column_u64(sqlite3_stmt *st, int column) {
        return (uint64_t) sqlite3_column_int64(st, column);
}
static inline uint64_t sq_column_measure(sqlite3_stmt *st, int column) {
        return sqlite3_column_type(st, column) == SQLITE_NULL ? STORE_UNKNOWN : sq_column_u64(st, column);
}

/* store-sqlite-schema.c: makes the schema, migrates an older one, refuses a newer or damaged one. */
int sq_schema_setup(SqliteStore *q, char **ret_error);

/* Row ids of names. ADD makes them, inside the caller's transaction; else -ENOENT. */
int sq_user_id(SqliteStore *q, const char *user, bool add, int64_t *ret);
int sq_lane_id(SqliteStore *q, const char *user, const char *agent, bool add, int64_t *ret);
/* Forgets the name of an agent that is no more, when its last run is gone. */
int sq_lane_drop(SqliteStore *q, uint64_t lane);

/* store-sqlite-runs.c: a run's columns in the order that sq_run_from_row() expects. */
#define SQ_RUN_SELECT_BY(index)                                                                                        \
        "SELECT r.seq, r.id, u.name, r.uid, l.agent, r.trigger, r.session, r.labels, r.idempotency_key, r.parent, "    \
        "r.input_digest, r.priority, r.keep, r.timeout_usec, r.state, r.attempt, r.fence, r.lease_usec, "              \
        "r.not_before_usec, r.unit, r.invocation_id, r.boot_id, r.generation, r.environment, r.runner, r.policy, "     \
        "r.sandbox_uid, r.created_usec, r.queued_usec, r.claimed_usec, r.prepared_usec, r.started_usec, "              \
        "r.finished_usec, r.deadline_usec, r.cancel_by, r.result, r.message, r.exit_code, r.exit_signal, "             \
        "EXISTS (SELECT 1 FROM run_results p WHERE p.seq = r.seq), r.cpu_usec, r.memory_peak, r.io_read_bytes, "       \
        "r.io_write_bytes, r.steps, r.caller, r.runner_before, r.verdict, r.verify, r.verified, r.size "               \
        "FROM runs r " index " JOIN users u ON u.id = r.user_id JOIN lanes l ON l.id = r.lane_id "
#define SQ_RUN_SELECT SQ_RUN_SELECT_BY("")
int sq_run_from_row(sqlite3_stmt *st, StoreRun *ret);
/* Walks all rows of a SQ_RUN_SELECT; the number of rows or the callback's error. */
int sq_run_walk(SqliteStore *q, sqlite3_stmt *st, StoreRunCallback callback, void *userdata);

/* What the guards of all run verbs ask; -ENOENT. */
typedef struct SqRunGuard {
        int64_t seq;
        RunState state;
        unsigned attempt;
        uint64_t fence;
} SqRunGuard;
int sq_run_guard(SqliteStore *q, const char *id, SqRunGuard *ret);
/* The same for who holds a claim: -EALREADY where the run is finished, -ESTALE where the claim is not FENCE's (any
 * more). */
int sq_run_guard_fence(SqliteStore *q, const char *id, uint64_t fence, SqRunGuard *ret);

/* store-sqlite-retention.c: what a run's documents take, as a scalar; SEQ is an expression. */
#define SQ_TEXT_OF_(x) #x
#define SQ_TEXT_OF(x) SQ_TEXT_OF_(x)
#define SQ_RUN_SIZE(seq)                                                                                               \
        "SELECT " SQ_TEXT_OF(STORE_RUN_OVERHEAD)                                                                       \
        " + COALESCE((SELECT octet_length(text) FROM run_inputs WHERE run_inputs.seq = " seq "), 0)"                   \
        " + COALESCE((SELECT octet_length(text) FROM run_results WHERE run_results.seq = " seq "), 0)"                 \
        " + COALESCE((SELECT octet_length(text) FROM run_receipts WHERE run_receipts.seq = " seq "), 0)"               \
        " + COALESCE((SELECT SUM(octet_length(text)) FROM calls WHERE calls.seq = " seq "), 0)"
/* store-sqlite-records.c: at the end of an attempt, what was begun and not committed is none. */
int sq_artifacts_settle(SqliteStore *q, int64_t seq);

/* The verbs, by file. */
int sq_run_enqueue(Store *s, const StoreRunRequest *request, const char *id, const char *input_digest,
                   const StoreQueueLimits *limits, char ret_id[static RUN_ID_LEN + 1]);
int sq_run_claim(Store *s, const StoreLiveLimits *limits, StoreRun **ret_run);
int sq_queue_next(Store *s, uint64_t *ret_usec);
int sq_run_extend(Store *s, const char *id, uint64_t fence, uint64_t lease_usec);
int sq_run_requeue(Store *s, const char *id, uint64_t fence, const char *message, uint64_t not_before_usec);
int sq_counts(Store *s, const char *user, const char *agent, StoreCounts *ret);

int sq_run_set_prepared(Store *s, const char *id, uint64_t fence, const StoreRunPlan *plan);
int sq_run_set_running(Store *s, const char *id, uint64_t fence, const char *invocation_id, uint64_t started_usec,
                       uint64_t deadline_usec, const char *steps);
int sq_run_cancel_request(Store *s, const char *id, const char *by, RunState *ret_state);
int sq_run_post_result(Store *s, const char *id, unsigned attempt, const char *json);
int sq_run_finish(Store *s, const char *id, uint64_t fence, const StoreRunEnd *end);
int sq_run_get(Store *s, const char *id, StoreRun **ret);
int sq_run_get_input(Store *s, const char *id, char **ret, size_t *ret_size);
int sq_run_get_posted(Store *s, const char *id, char **ret);
int sq_run_get_receipt(Store *s, const char *id, char **ret);
int sq_run_list(Store *s, const StoreRunFilter *filter, StoreRunCallback callback, void *userdata);
int sq_runs_unfinished(Store *s, StoreRunCallback callback, void *userdata);
int sq_runs_expired(Store *s, uint64_t now_usec, StoreRunCallback callback, void *userdata);

int sq_calls_add(Store *s, StoreCall *calls, size_t n);
int sq_calls(Store *s, const char *id, StoreCallCallback callback, void *userdata);
int sq_artifact_begin(Store *s, const char *id, unsigned attempt, const char *name, const StoreArtifactLimits *limits);
int sq_artifact_commit(Store *s, const char *id, unsigned attempt, const char *name, uint64_t size,
                       const char *content_type);
int sq_artifacts(Store *s, const char *id, StoreArtifactCallback callback, void *userdata);

int sq_usage_add(Store *s, const char *id, unsigned attempt, const char *key, uint64_t amount, const char *description,
                 uint64_t max);
int sq_usages(Store *s, const char *id, StoreUsageCallback callback, void *userdata);
int sq_session_get(Store *s, const char *user, const char *agent, const char *session, StoreSession **ret);
int sq_session_put(Store *s, const char *user, const char *agent, const char *session, const StoreSession *state,
                   uint64_t expected_rev, uint64_t max_bytes, uint64_t *ret_rev);

int sq_runs_oldest(Store *s, const StoreOldest *which, StoreRunCallback callback, void *userdata);
int sq_run_newest(Store *s, const char *user, const char *agent, uint64_t n, uint64_t *ret_seq);
int sq_runs_remove(Store *s, char *const *ids);
int sq_users(Store *s, StoreUserCallback callback, void *userdata);

int sq_agent_add(Store *s, const StoreAgent *agent, const StoreGeneration *first);
int sq_agent_update(Store *s, const char *user, const char *name, const char *definition, uint64_t concurrency);
int sq_agent_remove(Store *s, const char *user, const char *name);
int sq_agent_get(Store *s, const char *user, const char *name, StoreAgent **ret);
int sq_owned(Store *s, const char *user, StoreOwned *ret);
int sq_agent_list(Store *s, const char *user, StoreAgentCallback callback, void *userdata);
int sq_head_swap(Store *s, const char *user, const char *name, uint64_t expected_rev, const StoreGeneration *to,
                 uint64_t *ret_rev);
int sq_generation_get(Store *s, const char *user, const char *name, const char *digest, StoreGeneration **ret);
int sq_generation_list(Store *s, const char *user, const char *name, StoreGenerationCallback callback,
                       void *userdata);
int sq_generation_walk(Store *s, const char *user, const char *name, StoreGenerationWalk callback, void *userdata);
int sq_generations_import(Store *s, const StoreAgent *agent, const StoreGeneration *generations, size_t n,
                          bool *ret_made);
int sq_generation_remove(Store *s, const char *user, const char *name, char *const *digests);

int sq_image_add(Store *s, const StoreImage *image);
int sq_image_find(Store *s, const char *user, const char *name, StoreImage **ret);
int sq_image_remove(Store *s, const char *user, const char *name);
int sq_image_list(Store *s, const char *user, StoreImageCallback callback, void *userdata);
int sq_runner_deploy(Store *s, const StoreRunner *runner);
int sq_runner_rollback(Store *s, const char *digest, char **ret_digest);
int sq_runner_promote(Store *s, char **ret_digest);
int sq_runner_withdraw(Store *s, char **ret_digest);
int sq_runner_remove(Store *s, const char *digest);
int sq_runner_list(Store *s, StoreRunnerCallback callback, void *userdata);
int sq_verdict_add(Store *s, const char *runner, const char *node, bool ok, const char *reason);
int sq_verdict_get(Store *s, const char *runner, const char *node, StoreVerdict **ret);
int sq_verdict_list(Store *s, const char *runner, StoreVerdictCallback callback, void *userdata);
int sq_node_put(Store *s, const char *environment, const char *own, const char *node);
int sq_node_get(Store *s, const char *environment, const char *own, char ret[static DIGEST_LEN + 1]);
int sq_service_add(Store *s, const char *user, const char *name, const char *definition);
int sq_service_update(Store *s, const char *user, const char *name, const char *definition);
int sq_service_remove(Store *s, const char *user, const char *name);
int sq_service_get(Store *s, const char *user, const char *name, StoreService **ret);
int sq_service_list(Store *s, const char *user, StoreServiceCallback callback, void *userdata);
int sq_blob_put(Store *s, const char *digest, const void *data, size_t size);
int sq_blob_get(Store *s, const char *digest, char **ret, size_t *ret_size);
