/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * A live run: from the claim to the end, in the words of the pipeline: prepare, start, watch, settle. The row in the
 * store is the truth; a Run is what agentd has in hand meanwhile (sandbox, listener, unit). When agentd dies, a new
 * one makes it again from the row and from PID 1's unit.
 *
 * Order that everything relies on: a state is committed before it is signalled; the plan (unit name, uid) is
 * committed before the unit is started; the live file is there before the listener, and gone before the namespace is.
 */

#include "definition.h"
#include "image/generation.h"
#include "manager.h"
#include "service/live-run.h"

typedef enum RunPhase {
        RUN_PHASE_SANDBOX,  /* worker composes root and namespace */
        RUN_PHASE_RUNNER,   /* which runner suits the sandbox's node? */
        RUN_PHASE_REGISTER, /* bridge takes the listener */
        RUN_PHASE_START,    /* PID 1 sets the unit up */
        RUN_PHASE_RUN,
        RUN_PHASE_SETTLE,   /* unit is over; token, listener, mounts are taken away */
} RunPhase;

/* Why it ends, as found so far. */
typedef struct RunEnd {
        RunResult result;
        bool retry; /* the platform's fault, and nothing of the agent's ran: a new attempt may follow */
        char *message;
        int exit_code, exit_signal;
        StoreUsage usage;
} RunEnd;

typedef struct RunnerCheck RunnerCheck;
typedef struct LayerCheck LayerCheck;
typedef struct Run Run;

struct Run {
        Manager *manager;
        StoreRun *row;
        StoreAgent *agent;
        Definition *definition;
        Generation *generation;
        LiveRun *live; /* what bridge and strong room see */
        char policy[DIGEST_LEN + 1], environment[DIGEST_LEN + 1];
        Runner *candidates[RUNNER_CANDIDATES_MAX + 1]; /* as of its claim: a deploy is for the next run */
        Runner *runner;            /* one of them; NULL: none is needed (kind exec), or it was taken over */
        char node[DIGEST_LEN + 1]; /* identity of the node that RUNNER runs on; "" not known yet */
        bool swapped;              /* RUNNER is not what the generation last ran with */
        char *folded;              /* the generation that was made because of it */
        bool checked;              /* its verdict was found for this run, not remembered */
        RunnerCheck *check;        /* whose verdict is awaited */
        Run *next_waiting;
        char **to_verify;          /* layers that are read in full now, and how many of them have been */
        size_t n_verified;
        char **right_layers;       /* that were found right in this attempt */
        LayerCheck *layer_check;   /* whose end is awaited */
        Run *next_verifying;
        unsigned composed;         /* sandboxes made in this attempt */
        char *unit_name;
        uid_t uid;
        uint64_t deadline_usec;

        RunPhase phase;
        bool resumed; /* taken over from an earlier agentd */
        WorkerSlot *worker_slot;
        sd_bus_slot *bridge_slot;
        sd_event_source *retry; /* of the call to the bridge, or of storing the end */
        sd_event_source *limit; /* of a unit whose time PID 1 does not keep any more */
        bool out_of_time;       /* that has come */
        unsigned bridge_tries;
        int listener_fd;
        Unit *unit;

        RunEnd end;
        bool bridge_done, cleanup_done;
        /* µs of CLOCK_MONOTONIC at the borders of the steps; 0 not reached */
        uint64_t t_claimed, t_sandbox, t_checked, t_registered, t_started, t_ended;
};

/* Takes over ROW (claimed: state preparing). Never fails to the caller: a run that cannot go on ends with its reason.
 */
void run_begin(Manager *m, StoreRun *row);
/* Takes over a row that was live under an earlier agentd in this boot. */
void run_resume(Manager *m, StoreRun *row);
/* The cancel request is in the store already. */
void run_cancel(Run *run);
Run *run_free(Run *run);
DEFINE_CLEANUP(Run *, run_free);

/* run.c and run-settle.c, for each other and for the parts of a run below. */
void run_register(Run *run);
void run_set_end(Run *run, RunResult result, bool retry, const char *format, ...)
        _printf_(4, 5);                                                        /* the first one counts */
void run_settle(Run *run);                                                     /* the end must be set */
bool run_bridge_try_again(Run *run, const sd_bus_error *e);                    /* true where another try was arranged */
void run_fail(Run *run, const char *step, int error,
              const char *message); /* the platform's fault; a retry may follow */
void run_end(Run *run, RunResult result, const char *message);             /* for good */
void run_compose(Run *run);            /* makes the sandbox, of layers that are right: run-verify.c */
void run_compose_now(Run *run);        /* the second half of it */
void run_compose_again(Run *run);      /* throws it away, makes a fresh one */
void run_go_on(Run *run);              /* the runner is settled */

/* run-verify.c */
bool run_verify_end(Run *run);         /* true where the layers are read once more before the run is settled */
void run_verify_leave(Run *run);       /* does not wait any more */
void run_verify_done(Run *run);
void layer_checks_free_all(Manager *m);

/* run-runner.c: which runner a run gets. */
int run_runner_load(Run *run, char **ret_reason);
int run_runner_select(Run *run, char **ret_reason);
void run_runner_settle(Run *run);      /* after compose; ends in one of the above */
void run_runner_done(Run *run);
int run_fold(Run *run, char **ret_generation);

/* runner-check.c: `node --check` of all scripts of a runner, in the sandbox of one of the runs that wait for the
 * verdict. */
int runner_check_join(Run *run);
/* The run does not wait any more; another one's sandbox takes its place. */
void runner_check_leave(Run *run);
void runner_checks_free_all(Manager *m);
int run_check_properties(sd_bus_message *m, Run *run, int output_fd, int record_fd); /* run-unit.c */
int run_unit_properties(sd_bus_message *m, void *userdata);      /* run-unit.c */
int run_write_files(Run *run, char **ret_error);                 /* run-files.c: input, token, live and task file */
int run_open_exit_record(const Run *run);                        /* run-files.c: a file that agent-init writes to */
#define ENDED_DIRECTORY AGENTD_RUNTIME_DIR "/ended"
void run_read_exit_record(const Run *run, UnitResult *u);        /* run-files.c: corrects PID 1's word, see there */
void run_keep_exit_record(const Run *run);                       /* run-files.c: until the end is stored */
void run_drop_exit_record(const char *id);
bool run_never_began(const Run *run, const UnitResult *u);       /* run-files.c: though PID 1 says that it ended well */
void run_remove_live(Manager *m, const char *id);                /* run-files.c */
/* run-socket.c: the listeners beside the one that the worker makes, each listening; negative where there is none. */
int run_open_socket(const Run *run, int *ret);
int run_open_proxy(const Run *run, int *ret);
int run_receipt(Manager *m, const StoreRun *row, const Run *run, const RunEnd *end, uint64_t finished_usec,
                char **ret);                                     /* receipt.c */
/* run-judge.c; DEFINITION is NULL where it cannot be read any more */
void run_judge(const StoreRun *row, const Definition *definition, const char *posted, const UnitResult *u, RunEnd *ret);
int run_steps(const Run *run, char **ret);                       /* receipt.c: JSON object of step times */
/* Ends a run that is not live (queued, or not to be resumed) at once. */
int run_finish_row(Manager *m, StoreRun *row, const RunEnd *end);
void run_end_done(RunEnd *end);
#define RUN_END_NULL                                                                                                   \
        (RunEnd) {                                                                                                     \
                .result = _RUN_RESULT_INVALID, .exit_code = -1, .exit_signal = -1, .usage = STORE_USAGE_UNKNOWN        \
        }

/* The writable part of a finished run that was started with "keep"; dropped after a while (kept.c). */
int kept_add(Manager *m, const StoreRun *run, uint64_t finished_usec);
bool kept_has(Manager *m, const char *run);
/* The runs whose changes are kept. */
int kept_walk(Manager *m, StoreRunCallback callback, void *userdata);
/* Unmounts and forgets it. */
void kept_drop(Manager *m, const char *run);
/* The same for all of an agent that is gone: nothing can be frozen any more. */
void kept_drop_of_agent(Manager *m, const char *user, const char *agent);
void kept_free_all(Manager *m);

/* Signals (run-bus.c). Called after the commit. */
void run_signal_new(Manager *m, const char *id);
void run_signal_changed(Manager *m, const char *id);
void run_signal_finished(Manager *m, const StoreRun *row, RunResult result, const char *message);
