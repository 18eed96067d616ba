/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * The store: everything that outlives agentd, and everything that several agentd would share. It is the
 * one narrow interface behind which the queue, the heads, the runs and small blobs live; SQLite is its
 * first back end. What a second back end has to keep is what tests/unit/test-store.c proves.
 *
 * Promises
 * - Each verb is one transaction: on failure nothing has changed, on success it is on disk (synchronous)
 *   before the verb returns and before the event hook is called. Full disk and I/O errors included.
 * - Verbs are synchronous. On a local disk a commit takes well below a millisecond to a few ms, bounded
 *   by the busy timeout (5 s) should another process hold the database.
 * - A run is handed out by claim() with a fencing number. Whoever holds an older number is refused
 *   (-ESTALE): a late finish cannot overwrite a newer attempt.
 * - Cost does not grow with the number of finished runs.
 *
 * Errors (negative errno, the same from every verb)
 *   -EINVAL    an argument or a transition that the caller should not have asked for
 *   -ENOENT    no such object
 *   -EEXIST    the name is taken; for enqueue: the idempotency key was used with another input
 *   -EBUSY     enqueue: the queue of this host is full; agent_remove: it has unfinished runs
 *   -EDQUOT    enqueue: the user's share of the queue is full
 *   -EUSERS    enqueue: the agent's share of the queue is full
 *   -ENOBUFS   what is kept for this user has reached its bound: of finished runs (enqueue), artifacts, sessions
 *   -ESTALE    fence, attempt or head revision is not the current one (somebody else was first)
 *   -EALREADY  the run is finished
 *   -E2BIG     a bound of this interface was hit (STORE_*_MAX)
 *   -ENOSPC    disk full            -EIO       I/O error
 *   -EUCLEAN   database corrupt     -EAGAIN    another process holds the lock for longer than 5 s
 *   -EROFS     not writable         -ENOMEM
 * store_error() has a sentence for the log about the last -EIO, -EUCLEAN, … .
 *
 * Times are µs of CLOCK_REALTIME, 0 = not yet. Strings in rows may be NULL where noted "or NULL".
 */

#include "basic/digest.h"
#include "basic/macro.h"
#include "basic/name-util.h"

#define STORE_INPUT_MAX (1024U * 1024U)
#define STORE_RESULT_MAX (1024U * 1024U)
#define STORE_BLOB_MAX (16U * 1024U * 1024U)
#define STORE_CALLS_MAX 10000U   /* bridged calls kept for one run */
#define STORE_CALLS_SIZE_MAX (8U * 1024U * 1024U) /* of all of them: they are in the receipt, which is one text */
#define STORE_CALL_SIZE_MAX 16384U
#define STORE_USAGES_MAX 1000U   /* deductions of one run */
#define STORE_SESSION_SIZE_MAX (1024U * 1024U)
#define STORE_SESSIONS_MAX 10000U /* of one agent */
#define STORE_LIST_MAX 1000U     /* rows of one page */
#define STORE_REMOVE_MAX 100U    /* runs of one removal */
#define STORE_NEWEST_MAX 1000000U
#define STORE_RUN_OVERHEAD 1024  /* of StoreRun.size: what a run takes beside its documents, about */

typedef struct Store Store;

/* Opens or creates. On failure *ret_error (allocated, may be NULL) is a sentence for the log; a corrupt
 * database is -EUCLEAN, one from a newer agentd -EPROTONOSUPPORT: refuse to start, touch nothing. */
int store_open_sqlite(const char *path, Store **ret, char **ret_error);
Store *store_free(Store *s);
DEFINE_CLEANUP(Store *, store_free);
/* A sentence about the last failure of the back end; never NULL. */
const char *store_error(Store *s);
/* -EBUSY, -EDQUOT and -EUSERS, as enqueue gives them. */
static inline bool store_error_is_queue_full(int r) {
        return r == -EBUSY || r == -EDQUOT || r == -EUSERS;
}

/* ---- events: called after the commit, once for each change, in the process that made it ---- */

typedef enum StoreEventType {
        STORE_EVENT_RUN_QUEUED,   /* enqueued, or queued again */
        STORE_EVENT_RUN_CHANGED,  /* preparing, prepared, running, cancel requested, result posted */
        STORE_EVENT_RUN_FINISHED,
        STORE_EVENT_RUN_REMOVED,
        STORE_EVENT_AGENT_NEW,
        STORE_EVENT_AGENT_CHANGED, /* definition or head */
        STORE_EVENT_AGENT_REMOVED,
        _STORE_EVENT_TYPE_MAX,
        _STORE_EVENT_TYPE_INVALID = -EINVAL,
} StoreEventType;

typedef struct StoreEvent {
        StoreEventType type;
        const char *run;         /* id, for RUN_* */
        const char *user, *name; /* for AGENT_* */
} StoreEvent;

/* The hook must not call the store's changing verbs; note the event and act from the event loop. */
typedef void (*StoreEventHook)(const StoreEvent *event, void *userdata);
int store_subscribe(Store *s, StoreEventHook hook, void *userdata);
void store_unsubscribe(Store *s, StoreEventHook hook, void *userdata);

/* ---- runs ---- */

typedef enum RunState {
        RUN_QUEUED,
        RUN_PREPARING,
        RUN_RUNNING,
        RUN_FINISHED,
        _RUN_STATE_MAX,
        _RUN_STATE_INVALID = -EINVAL,
} RunState;

typedef enum RunResult {
        RUN_RESULT_SUCCESS,
        RUN_RESULT_FAILED,
        RUN_RESULT_EXIT_CODE,
        RUN_RESULT_SIGNAL,
        RUN_RESULT_TIMEOUT,
        RUN_RESULT_OOM_KILL,
        RUN_RESULT_CANCELED,
        RUN_RESULT_OUT_OF_CREDIT,
        RUN_RESULT_SANDBOX_FAILED,
        RUN_RESULT_LOST,
        _RUN_RESULT_MAX,
        _RUN_RESULT_INVALID = -EINVAL, /* not finished */
} RunResult;

const char *run_state_to_string(RunState s); /* NULL where invalid */
RunState run_state_from_string(const char *s);
const char *run_result_to_string(RunResult r);
RunResult run_result_from_string(const char *s);

#define STORE_UNKNOWN UINT64_MAX /* a measure that nobody took */

typedef struct StoreUsage {
        uint64_t cpu_usec;
        uint64_t memory_peak;
        uint64_t io_read_bytes, io_write_bytes;
} StoreUsage;
#define STORE_USAGE_UNKNOWN                                                                                            \
        (StoreUsage) {                                                                                                 \
                STORE_UNKNOWN, STORE_UNKNOWN, STORE_UNKNOWN, STORE_UNKNOWN                                             \
        }

/* A run as it is listed and worked on. The large parts (input, posted result, receipt) have verbs of their own. */
typedef struct StoreRun {
        uint64_t seq; /* age: grows with each enqueue */
        char id[RUN_ID_LEN + 1];
        char *user;
        uid_t uid;
        char *agent;
        char *trigger;
        char *caller;          /* who asked, or NULL: the owner */
        char *session;         /* or NULL */
        char *labels;          /* JSON object, or NULL */
        char *idempotency_key; /* or NULL */
        char *parent;          /* run id, or NULL */
        char *input_digest;
        int priority;
        bool keep, verify;
        uint64_t timeout_usec; /* of one attempt */

        RunState state;
        unsigned attempt;      /* 0 before the first claim */
        uint64_t fence;        /* grows with each claim */
        uint64_t lease_usec;   /* claimed until; 0 = without limit (one host: PID 1 knows) */
        uint64_t not_before_usec;

        char *unit;            /* or NULL; these belong to the current attempt and are cleared by requeue */
        char *invocation_id;   /* or NULL */
        char *boot_id;         /* or NULL */
        char *generation;      /* or NULL; digests */
        char *environment;
        char *runner;
        char *runner_before;   /* or NULL: what the generation ran with before */
        char *verdict;         /* or NULL: how the runner is known to suit, "cached" or "checked" */
        char *verified;        /* or NULL: how its layers were checked, "fs-verity" or "digest" */
        char *policy;
        uid_t sandbox_uid;     /* (uid_t) -1 = none */

        uint64_t created_usec, queued_usec, claimed_usec, prepared_usec, started_usec, finished_usec, deadline_usec;

        bool cancel_requested;
        char *cancel_by;       /* or NULL */

        RunResult result;
        char *message;         /* or NULL; while queued again: why the last attempt ended */
        int exit_code;         /* -1 = none */
        int exit_signal;       /* -1 = none */
        bool has_posted;       /* the runner posted a result in this attempt */
        StoreUsage usage;
        char *steps;           /* JSON object step → time, or NULL */
        uint64_t size; /* 0 until it is finished: bytes of its input, result, receipt and calls, with an overhead */
} StoreRun;

StoreRun *store_run_free(StoreRun *run);
DEFINE_CLEANUP(StoreRun *, store_run_free);

/* What a caller of ExecuteAgent asked for. Names must have been checked (name-util.h). */
typedef struct StoreRunRequest {
        const char *id;              /* NULL: the store makes one */
        const char *user;
        uid_t uid;
        const char *agent;
        const char *trigger;
        const char *caller;          /* NULL = the owner */
        const char *session;         /* NULL = none, as in the following */
        const char *labels;
        const char *idempotency_key;
        const char *parent;
        int priority;
        bool keep, verify;
        uint64_t timeout_usec;
        const char *input;
        size_t input_size;           /* ≤ STORE_INPUT_MAX, else -E2BIG */
} StoreRunRequest;

typedef struct StoreQueueLimits {
        uint64_t queued, queued_per_user, queued_per_agent; /* bounds of enqueue; 0 = none */
        uint64_t finished_bytes_per_user;                   /* the same: StoreUser.finished_bytes */
        bool no_space;                                      /* nothing new: -ENOSPC */
} StoreQueueLimits;

/*
 * Admission, all or nothing. 1: queued as a new run; 0: the idempotency key was used before with the same
 * input, *ret_id is that run. -ENOENT: no such agent. -EEXIST, -EBUSY, -EDQUOT, -EUSERS: see above. The key
 * comes before the bounds: a repeated call gets its run even where the queue is full by now.
 */
int store_run_enqueue(Store *s, const StoreRunRequest *request, const StoreQueueLimits *limits,
                      char ret_id[static RUN_ID_LEN + 1]);

typedef struct StoreLiveLimits {
        uint64_t live, live_per_user; /* 0 = none; an agent's own bound is StoreAgent.concurrency */
        uint64_t lease_usec;          /* length of the claim; 0 = without limit */
} StoreLiveLimits;

/*
 * Takes the next run: users in turn (the one that was served longest ago first), then the highest
 * priority, then the oldest. Live means preparing or running. Runs with a cancel request or a later
 * not_before are passed over. 1: *ret_run is preparing, with attempt and fence one higher; 0: nothing to do now.
 */
int store_run_claim(Store *s, const StoreLiveLimits *limits, StoreRun **ret_run);
/* When a run whose not_before is later than now may be claimed: *ret_usec; 0 where there is none. */
int store_queue_next(Store *s, uint64_t *ret_usec);
/* Prolongs a claim of a live run to now + LEASE_USEC. */
int store_run_extend(Store *s, const char *id, uint64_t fence, uint64_t lease_usec);

/* What was chosen and made in prepare. To be stored BEFORE the unit is started, so that a restart finds it. */
typedef struct StoreRunPlan {
        const char *unit;
        const char *boot_id;
        const char *generation, *environment, *runner, *policy; /* NULL leaves the column as it is */
        const char *runner_before, *verdict, *verified;         /* NULL is NULL */
        uid_t sandbox_uid;
        uint64_t deadline_usec;
        const char *steps; /* or NULL */
} StoreRunPlan;

/* preparing → preparing. May be called more than once. */
int store_run_set_prepared(Store *s, const char *id, uint64_t fence, const StoreRunPlan *plan);
/* preparing → running; STEPS may be NULL; DEADLINE_USEC 0 keeps the plan's. Repeating it is no error. */
int store_run_set_running(Store *s, const char *id, uint64_t fence, const char *invocation_id, uint64_t started_usec,
                          uint64_t deadline_usec, const char *steps);
/* preparing or running → queued, at its old place by age, not before NOT_BEFORE_USEC. The next claim is a new
 * attempt; a result that the ended attempt posted is dropped. */
int store_run_requeue(Store *s, const char *id, uint64_t fence, const char *message, uint64_t not_before_usec);

/* Notes who wants it gone; the first one counts. *ret_state tells what is left to do (queued: finish it at once with
 * the fence from store_run_get(); claim passes such runs over). -EALREADY where it is finished. 1: noted, 0: it was
 * noted before. */
int store_run_cancel_request(Store *s, const char *id, const char *by, RunState *ret_state);

/* The runner's own result. First one wins: 1 stored, 0 there is one already. -ESTALE: not the current attempt, or
 * not live; -EALREADY: finished without one. */
int store_run_post_result(Store *s, const char *id, unsigned attempt, const char *json);

typedef struct StoreRunEnd {
        RunResult result;
        const char *message;
        int exit_code, exit_signal; /* -1 = none */
        StoreUsage usage;
        const char *steps;          /* NULL keeps what is there */
        const char *receipt;        /* JSON */
        uint64_t finished_usec;     /* 0 = now */
} StoreRunEnd;

/* The end, once. FENCE as held by the caller; from queued too (a canceled run). */
int store_run_finish(Store *s, const char *id, uint64_t fence, const StoreRunEnd *end);

int store_run_get(Store *s, const char *id, StoreRun **ret);
/* Each: -ENOENT where the run or the document is not there. The text has a NUL behind it. */
int store_run_get_input(Store *s, const char *id, char **ret, size_t *ret_size);
int store_run_get_posted(Store *s, const char *id, char **ret);
int store_run_get_receipt(Store *s, const char *id, char **ret);

/* Row callbacks: a negative return ends the walk and is returned by the verb. The row is the callback's only for
 * the call, and it must not call the store. */
typedef int (*StoreRunCallback)(const StoreRun *run, void *userdata);

typedef struct StoreRunFilter {
        const char *user, *agent, *parent; /* NULL = any; agent needs user */
        RunState state;                    /* _RUN_STATE_INVALID = any */
        RunResult result;                  /* _RUN_RESULT_INVALID = any */
        const char *before;                /* run id: only older ones; -ENOENT where unknown */
        unsigned limit;                    /* 0 = 100; at most STORE_LIST_MAX */
} StoreRunFilter;
#define STORE_RUN_FILTER_ANY                                                                                           \
        (StoreRunFilter) {                                                                                             \
                .state = _RUN_STATE_INVALID, .result = _RUN_RESULT_INVALID                                             \
        }

/* Newest first. Returns the number of rows. */
int store_run_list(Store *s, const StoreRunFilter *filter, StoreRunCallback callback, void *userdata);
/* All that are not finished, oldest first: what a start has to reconcile with PID 1. */
int store_runs_unfinished(Store *s, StoreRunCallback callback, void *userdata);
/* Those live ones whose lease ended before NOW_USEC: their holder is gone. */
int store_runs_expired(Store *s, uint64_t now_usec, StoreRunCallback callback, void *userdata);

typedef struct StoreCounts {
        uint64_t queued, live;
} StoreCounts;
/* USER NULL: of the host; AGENT NULL: of the user. Cheap. */
int store_counts(Store *s, const char *user, const char *agent, StoreCounts *ret);

/* Bridged calls, one JSON document each. 1 stored; 0 this call_id is there already. -ESTALE: the attempt is not
 * there yet; -EALREADY: the run is finished; -E2BIG: STORE_CALLS_MAX,
 * STORE_CALLS_SIZE_MAX. */
int store_call_add(Store *s, const char *id, unsigned attempt, const char *call_id, const char *json);
/* Many of them, of any runs, in one transaction: what store_call_add() would say of each is in its RESULT. Negative
 * where none was stored. */
typedef struct StoreCall {
        const char *id, *call_id, *json;
        unsigned attempt;
        int result;
} StoreCall;
int store_calls_add(Store *s, StoreCall *calls, size_t n);
typedef int (*StoreCallCallback)(unsigned attempt, const char *call_id, const char *json, void *userdata);
int store_calls(Store *s, const char *id, StoreCallCallback callback, void *userdata); /* in order of arrival */

typedef struct StoreArtifact {
        char *name;
        uint64_t size;
        char *content_type;
        unsigned attempt;
        uint64_t created_usec;
} StoreArtifact;

typedef struct StoreArtifactLimits {
        unsigned max;            /* names of one run */
        uint64_t bytes;          /* what this one may get; reserved until its commit, or the run's end */
        uint64_t bytes_per_user; /* 0 = none */
} StoreArtifactLimits;

/* Reserves a name, at most MAX names a run (-EDQUOT), and room for it (-ENOBUFS). A name that was begun or committed
 * may be begun again: the earlier bytes count until the commit. -ESTALE, -EALREADY as above. */
int store_artifact_begin(Store *s, const char *id, unsigned attempt, const char *name,
                         const StoreArtifactLimits *limits);
/* -ENOENT where it was not begun. The bytes must be in place and synced before. Repeating it is no error. */
int store_artifact_commit(Store *s, const char *id, unsigned attempt, const char *name, uint64_t size,
                          const char *content_type);
typedef int (*StoreArtifactCallback)(const StoreArtifact *artifact, void *userdata);
int store_artifacts(Store *s, const char *id, StoreArtifactCallback callback, void *userdata); /* committed, by name */

/* A deduction by the agent's own code, in micro-credits. 1 stored; 0 this key is there already with this amount,
 * -EEXIST with another. -EDQUOT: the run's sum would exceed MAX, or STORE_USAGES_MAX. -ESTALE, -EALREADY as above. */
int store_usage_add(Store *s, const char *id, unsigned attempt, const char *key, uint64_t amount,
                    const char *description, uint64_t max);
typedef int (*StoreUsageCallback)(const char *key, uint64_t amount, const char *description, uint64_t created_usec,
                                  void *userdata);
int store_usages(Store *s, const char *id, StoreUsageCallback callback, void *userdata); /* in order of arrival */

/* What a session's next run can read. It goes with its agent. */
typedef struct StoreSession {
        uint64_t rev; /* from 1 */
        char *content_type;
        char *data;
        size_t size;
} StoreSession;

StoreSession *store_session_free(StoreSession *v);
DEFINE_CLEANUP(StoreSession *, store_session_free);
/* -ENOENT where nothing was put yet. */
int store_session_get(Store *s, const char *user, const char *agent, const char *session, StoreSession **ret);
/* EXPECTED_REV: what it is to replace (0: nothing), STORE_UNKNOWN: whatever there is; -EEXIST where that is not so.
 * -E2BIG beyond STORE_SESSION_SIZE_MAX, -EDQUOT beyond STORE_SESSIONS_MAX of one agent, -ENOBUFS where all sessions of
 * the user would have more than MAX_BYTES (0 = no bound). Repeating it is no error. */
int store_session_put(Store *s, const char *user, const char *agent, const char *session, const StoreSession *state,
                      uint64_t expected_rev, uint64_t max_bytes, uint64_t *ret_rev);

/* ---- what is kept of finished runs ---- */

typedef struct StoreOldest {
        const char *user, *agent; /* NULL = any; agent needs user */
        uint64_t after_seq;       /* only those after this StoreRun.seq: where the last page ended */
        uint64_t up_to_seq;       /* 0 = any */
        unsigned limit;           /* 0 = 100; at most STORE_LIST_MAX */
} StoreOldest;

/* Finished runs, oldest first. Returns the number of rows. */
int store_runs_oldest(Store *s, const StoreOldest *which, StoreRunCallback callback, void *userdata);
/* The seq of the run of which N newer ones are finished: it and all before it are beyond the N newest. N is at most
 * STORE_NEWEST_MAX. -ENOENT: there are no more than N. */
int store_run_newest(Store *s, const char *user, const char *agent, uint64_t n, uint64_t *ret_seq);
/* Forgets finished runs with all that belongs to them, at most STORE_REMOVE_MAX; their artifacts' files are the
 * caller's. Those that are not there any more are no fault, but -EBUSY where one is not finished. Returns their number.
 */
int store_runs_remove(Store *s, char *const *ids);

/* What is kept for a user. */
typedef struct StoreUser {
        const char *name;
        uint64_t finished, finished_bytes; /* runs, and the sum of their sizes */
        uint64_t artifact_bytes;           /* of all runs, with what is reserved */
        uint64_t session_bytes;
} StoreUser;
typedef int (*StoreUserCallback)(const StoreUser *user, void *userdata);
/* All users that ever had something here, by name. Cheap. */
int store_users(Store *s, StoreUserCallback callback, void *userdata);

/* What a user keeps until it is removed by hand: how many, and bytes of their definitions. */
typedef struct StoreOwned {
        uint64_t agents, agents_size;
        uint64_t services, services_size;
} StoreOwned;
int store_owned(Store *s, const char *user, StoreOwned *ret);

/* ---- agents, generations, heads ---- */

typedef struct StoreAgent {
        char *user;
        uid_t uid;
        char *name;
        char *definition;      /* JSON text; NULL in lists */
        uint64_t concurrency;  /* live runs at most */
        uint64_t created_usec, changed_usec;
        char *head;            /* digest of the generation that the next run boots from */
        uint64_t head_rev;     /* for the compare-and-swap; grows with each move */
} StoreAgent;

StoreAgent *store_agent_free(StoreAgent *a);
DEFINE_CLEANUP(StoreAgent *, store_agent_free);

typedef struct StoreGeneration {
        char *digest;
        char *parent;          /* or NULL */
        uint64_t number;       /* 1, 2, … per agent */
        uint64_t created_usec;
        char *author;
        char *note;            /* or NULL */
        char *manifest;        /* canonical JSON; NULL in lists */
        bool is_head;
} StoreGeneration;

StoreGeneration *store_generation_free(StoreGeneration *g);
DEFINE_CLEANUP(StoreGeneration *, store_generation_free);

/* Makes the agent and its first generation (digest, author, note, manifest are read). -EEXIST. */
int store_agent_add(Store *s, const StoreAgent *agent, const StoreGeneration *first);
int store_agent_update(Store *s, const char *user, const char *name, const char *definition, uint64_t concurrency);
int store_agent_remove(Store *s, const char *user, const char *name); /* -EBUSY while it has unfinished runs */
int store_agent_get(Store *s, const char *user, const char *name, StoreAgent **ret);
typedef int (*StoreAgentCallback)(const StoreAgent *agent, void *userdata);
int store_agent_list(Store *s, const char *user, StoreAgentCallback callback, void *userdata); /* NULL = all; by name */

/* Moves the head from revision EXPECTED_REV to TO, which is made a generation of the agent where it is not one yet
 * (with manifest), or found by its digest (manifest NULL: a rollback). -ESTALE where the head moved meanwhile. */
int store_head_swap(Store *s, const char *user, const char *name, uint64_t expected_rev, const StoreGeneration *to,
                    uint64_t *ret_rev);
int store_generation_get(Store *s, const char *user, const char *name, const char *digest, StoreGeneration **ret);
typedef int (*StoreGenerationCallback)(const StoreGeneration *generation, void *userdata);
int store_generation_list(Store *s, const char *user, const char *name, StoreGenerationCallback callback,
                          void *userdata); /* newest first */
/* With their manifests: all that the store knows, or those of USER's agents, or of one agent. By agent, newest first.
 */
typedef int (*StoreGenerationWalk)(const char *user, const char *name, const StoreGeneration *generation,
                                   void *userdata);
int store_generation_walk(Store *s, const char *user, const char *name, StoreGenerationWalk callback, void *userdata);
/*
 * Makes all N of GENERATIONS (oldest first, with their manifests) generations of AGENT, those that it has already
 * excepted, and the last one its head: all or nothing. AGENT is made where there is none of that user and name
 * (*ret_made); of one that is there nothing else is changed.
 */
int store_generations_import(Store *s, const StoreAgent *agent, const StoreGeneration *generations, size_t n,
                             bool *ret_made);
/* Forgets those of DIGESTS that the agent has, all or none; -EBUSY where one is its head. Gives their number. */
int store_generation_remove(Store *s, const char *user, const char *name, char *const *digests);

/* ---- images: owned by a user; those of root are for all ---- */

typedef struct StoreImage {
        char *user;
        char *name;
        char *digest; /* of the layer */
        uint64_t size;
        uint64_t created_usec; /* 0 in store_image_add(): now */
} StoreImage;

StoreImage *store_image_free(StoreImage *i);
DEFINE_CLEANUP(StoreImage *, store_image_free);

int store_image_add(Store *s, const StoreImage *image); /* -EEXIST */
/* The user's own, else root's of that name. */
int store_image_find(Store *s, const char *user, const char *name, StoreImage **ret);
int store_image_remove(Store *s, const char *user, const char *name);
typedef int (*StoreImageCallback)(const StoreImage *image, void *userdata);
/* Those that USER may use (own and root's); NULL = all. By name. */
int store_image_list(Store *s, const char *user, StoreImageCallback callback, void *userdata);

/* ---- runners ---- */

typedef enum StoreRunnerState {
        RUNNER_CURRENT,  /* what new runs get; one at most */
        RUNNER_PREVIOUS, /* was current; what runs fall back to, the latest first */
        RUNNER_CANARY,   /* what some runs get; one at most */
        RUNNER_STORED,   /* there, and used by nobody: rolled back, withdrawn, or never in use */
        _RUNNER_STATE_MAX,
        _RUNNER_STATE_INVALID = -EINVAL,
} StoreRunnerState;

const char *store_runner_state_to_string(StoreRunnerState s);

typedef struct StoreRunner {
        char *digest;          /* of the layer */
        char *name, *version;
        char *manifest;        /* JSON: what agentd has to know of it */
        char *source;          /* or NULL: digest of the directory it was made of, for the one that is shipped */
        char *author;
        char *note;            /* or NULL */
        uint64_t created_usec; /* 0 in store_runner_deploy(): now */
        StoreRunnerState state;
        uint64_t turn;         /* when it became current last: a count */
        uint64_t percent;      /* canary: of the runs */
        char *agents;          /* canary: or NULL; "USER/NAME USER/NAME" */
} StoreRunner;

StoreRunner *store_runner_free(StoreRunner *r);
DEFINE_CLEANUP(StoreRunner *, store_runner_free);

/* Adds it, or takes the one of that digest, and gives it RUNNER's state: as current one it pushes the current one to
 * the previous ones, as canary it takes the canary's place. What was known to its disadvantage is forgotten: it is
 * tried again. */
int store_runner_deploy(Store *s, const StoreRunner *runner);
/* Makes DIGEST (NULL: the latest previous one that some node accepts, or that was not tried) current; what became
 * current after it is stored only. *ret_digest is the one. -ENOENT: there is none. */
int store_runner_rollback(Store *s, const char *digest, char **ret_digest);
/* The canary becomes current, or stored. -ENOENT: there is none. */
int store_runner_promote(Store *s, char **ret_digest);
int store_runner_withdraw(Store *s, char **ret_digest);
/* With its verdicts. -EBUSY: it is the current one or the canary. */
int store_runner_remove(Store *s, const char *digest);
typedef int (*StoreRunnerCallback)(const StoreRunner *runner, void *userdata);
/* Canary, current, previous (latest first), stored. */
int store_runner_list(Store *s, StoreRunnerCallback callback, void *userdata);

typedef struct StoreVerdict {
        char *runner, *node;   /* digests */
        bool ok;
        char *reason;          /* NULL where ok */
        uint64_t created_usec;
} StoreVerdict;

StoreVerdict *store_verdict_free(StoreVerdict *v);
DEFINE_CLEANUP(StoreVerdict *, store_verdict_free);

/* The first one counts: 1 stored, 0 there is one already. -ENOENT: no such runner. */
int store_verdict_add(Store *s, const char *runner, const char *node, bool ok, const char *reason);
int store_verdict_get(Store *s, const char *runner, const char *node, StoreVerdict **ret);
typedef int (*StoreVerdictCallback)(const StoreVerdict *verdict, void *userdata);
int store_verdict_list(Store *s, const char *runner, StoreVerdictCallback callback, void *userdata);

/* Which node an environment (digest) has; OWN is the digest of a runner's own interpreter, "" the image's. */
int store_node_put(Store *s, const char *environment, const char *own, const char *node);
int store_node_get(Store *s, const char *environment, const char *own, char ret[static DIGEST_LEN + 1]);

/* ---- services ---- */

typedef struct StoreService {
        char *user;
        char *name;
        char *definition;
        uint64_t created_usec, changed_usec;
} StoreService;

StoreService *store_service_free(StoreService *v);
DEFINE_CLEANUP(StoreService *, store_service_free);

int store_service_add(Store *s, const char *user, const char *name, const char *definition); /* -EEXIST */
int store_service_update(Store *s, const char *user, const char *name, const char *definition);
int store_service_remove(Store *s, const char *user, const char *name);
int store_service_get(Store *s, const char *user, const char *name, StoreService **ret);
typedef int (*StoreServiceCallback)(const StoreService *service, void *userdata);
int store_service_list(Store *s, const char *user, StoreServiceCallback callback, void *userdata);

/* ---- small blobs (policies, manifests), by digest; layers are files beside the store ---- */

/* Putting the same bytes again is no error. At most STORE_BLOB_MAX. */
int store_blob_put(Store *s, const void *data, size_t size, char ret_digest[static DIGEST_LEN + 1]);
/* The bytes, checked against the digest (-EUCLEAN), with a NUL behind them. */
int store_blob_get(Store *s, const char *digest, char **ret, size_t *ret_size);
/* The same as a sealed, read-only memfd. */
int store_blob_open(Store *s, const char *digest);
