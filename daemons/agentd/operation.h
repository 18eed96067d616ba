/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * Long work on layers: importing or building an image, freezing a run's changes. The work itself is done by agent-image
 * in a transient unit of its own, sandboxed because what it reads is not trusted. agentd reads its progress from a
 * pipe, checks the digest of what it made, and only then changes anything (publish, then commit). When anything fails,
 * or agentd dies, the staging directory is all that is left, and it is removed.
 */

#include "async-sync.h"
#include "edit.h"
#include "image/generation.h"
#include "manager.h"

typedef enum OperationKind {
        OPERATION_IMPORT_IMAGE,
        OPERATION_BUILD_IMAGE,
        OPERATION_FREEZE,
        OPERATION_DIFF,
        OPERATION_FSCK,
        OPERATION_EXPORT,
        OPERATION_IMPORT_ENVIRONMENT,
        OPERATION_DEPLOY_RUNNER,
        OPERATION_EDIT,
        OPERATION_FLATTEN, /* ours, not asked for by anybody */
        _OPERATION_KIND_MAX,
        _OPERATION_KIND_INVALID = -EINVAL,
} OperationKind;

typedef enum OperationState {
        OPERATION_RUNNING,
        OPERATION_DONE,
        OPERATION_FAILED,
        OPERATION_CANCELED,
        _OPERATION_STATE_MAX,
        _OPERATION_STATE_INVALID = -EINVAL,
} OperationState;

const char *operation_kind_to_string(OperationKind k);
const char *operation_state_to_string(OperationState s);

#define OPERATION_VIEWS_MAX 2U

/* Layers, bottom first, that an operation looks at as one tree: mounted at runs/<id>/root while it works. */
typedef struct OperationView {
        char id[RUN_ID_LEN + 1];
        char **layers;
        const Edit *edit; /* the root of a session in it; without layers: its changes alone, for a freeze */
        bool disk;        /* its own is mounted */
        bool made;
} OperationView;

typedef struct EditSession EditSession;
typedef struct Fsck Fsck;
typedef struct Carry Carry;

/* What a runner becomes that is deployed. */
typedef struct OperationDeploy {
        StoreRunnerState state;
        uint64_t percent; /* canary */
        char *agents;     /* canary */
        char *from;       /* the shipped one: its directory */
        char *source;     /* and that directory's digest */
} OperationDeploy;

struct Operation {
        Manager *manager;
        char id[24];
        char *path; /* on the bus */
        OperationKind kind;
        OperationState state;
        char *subject; /* image or agent */
        char *user;
        uid_t uid;
        bool root; /* asked for by root, or by nobody */
        char *note, *run; /* freeze */
        uid_t sandbox_uid;
        char **packages; /* build */
        char *mirror;
        /* Digests that must not be pruned meanwhile. */
        char **generations, **holds;
        char **published; /* layers that were moved into the store */
        OperationView views[OPERATION_VIEWS_MAX];
        Fsck *fsck; /* this one has no unit */
        Carry *carry;
        OperationDeploy deploy;
        char *manifest; /* deploy: what agent-image told of the runner */

        char *step, *detail;
        uint64_t progress, begun_usec;

        int input_fd;          /* the unit's stdin: what is imported, or where the result goes to */
        int output_fd;         /* until the unit is started: where it tells its progress */
        int result_fd;         /* a document (memfd) that tells more than the digest, or -EBADF */
        char *staging, *image; /* directory, and the file in it that is to be made */
        Unit *unit;
        int pipe_fd;
        sd_event_source *pipe_source, *expiry;
        char *line; /* what was read of a line so far */
        size_t line_size;
        bool canceled, committing, unit_ended, unit_ok, pipe_ended, made;
        char *digest, *error, *error_name;
        uint64_t size;
        WorkerSlot *worker_slot;

        AsyncSync *sync; /* a session's changes are on their way to the disk */
        EditSession *session; /* kind edit (edit-session.h) */
        bool shell;           /* no command was named */
        Edit *edit;    /* of a session, or that is frozen; it knows us, too */
        Edit *done_edit; /* that was frozen, and is to be removed */
        char *holder;  /* who asked */
        char **command;
        char *term, *tty; /* session in a terminal, of which input_fd is the inner end */
        int stdio[3];     /* else */
};

typedef struct OperationRequest {
        OperationKind kind;
        const char *subject, *user;
        uid_t uid;
        bool root;             /* who asks */
        int input_fd;          /* duplicated */
        const char *note, *run;
        uid_t sandbox_uid;
        char *const *packages;
        const char *mirror;
        char *const *generations; /* those that the operation stands on */
        char *const *views[OPERATION_VIEWS_MAX];
        OperationDeploy deploy;
        Edit *edit;
        const char *holder, *term, *tty;
        char *const *command, *const *hosts; /* those as resolved (edit-hosts.h) */
        const int *stdio; /* three, duplicated */
        char *const *layers;  /* export: what goes into the archive */
        const char *document; /* export: its configuration; also the name of a file in staging */
} OperationRequest;

/* operation-start.c. -EUSERS: too many at once, where those of root and of all others are counted apart, so that others cannot be in
 * root's way; -EALREADY: one on the same subject is under way; -ENOSPC: it would write, and the disk has less room
 * than KeepFree= leaves to others; -ENOBUFS: it would make a layer, and its user has as many as MaxLayersPerUser=
 * allows. */
int operation_start(Manager *m, const OperationRequest *request, Operation **ret);
/* The end comes by OperationFinished. */
void operation_cancel(Operation *o);
Operation *operation_free(Operation *o);

/* Answers the call with the operation's path, or refuses it in words. */
int operation_start_and_reply(Manager *m, sd_bus_message *msg, const OperationRequest *request, sd_bus_error *e);

/* A session that an earlier agentd began: the same object again. */
int operation_resume_edit(Manager *m, const char *view, const char *id, Edit *edit, const char *holder, uid_t uid,
                          uint64_t begun_usec, bool shell);
/* Where upper/ of the edit is that it works on. */
char *operation_edit_place(const Operation *o);
/* All that it needs is there: starts its unit. */
int operation_begin_unit(Operation *o);

/* For operations that work without a unit (fsck.c). */
void operation_end(Operation *o, OperationState state, const char *detail);
/* Ends it, with what to do about it, where R says that the disk is full. */
bool operation_no_space(Operation *o, int r);
void operation_set_step(Operation *o, const char *step, uint64_t progress);
int fsck_start(Operation *o);
Fsck *fsck_free(Fsck *f);

/* Moves what the unit made into the store; when the operation comes to nothing it is taken away again. */
int operation_publish(Operation *o, const char *path, const char *digest, const LayerIdentity *identity,
                      worker_handler_t handler);
/* operation-commit.c: its layer goes into the store, and counts from then on; ends the operation. */
void operation_commit(Operation *o);
/* operation-report.c */
int operation_on_pipe(sd_event_source *s, int fd, uint32_t revents, void *userdata);
/* Unmounts what it looked at. */
void operation_drop_views(Operation *o);
/* Once unit and pipe are both over. */
void operation_judge(Operation *o);

/* environment-carry.c: after the unit of an import; ends the operation. */
void carry_take(Operation *o);
Carry *carry_free(Carry *c);

/* flatten.c: starts one where the stack is tall. */
bool flatten_maybe(Manager *m, const char *user, const char *agent);
/* After a start: what an earlier agentd did not come to the end of. */
void flatten_all(Manager *m);
int flatten_commit(Operation *o, char **ret_error);

/* edit-unit.c */
int edit_unit_properties(sd_bus_message *m, void *userdata);
/* operation-unit.c */
int operation_unit_properties(sd_bus_message *m, void *userdata);
/* operation-bus.c */
void operation_signal_changed(Operation *o);
void operation_signal_finished(Operation *o);
