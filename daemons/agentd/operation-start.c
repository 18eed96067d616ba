/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* An operation begins: may it, what it needs (staging, pipe, views of layers), and then its unit. */
#include <fcntl.h>
#include <sys/mman.h>

#include "basic/fs-util.h"
#include "basic/string-util.h"
#include "edit-session.h"
#include "layer-quota.h"
#include "operation.h"
#include "retention.h"

/* How many finished ones of one user stay, each with a document that may be large. */
#define OPERATION_FINISHED_MAX 32U
/* Sessions in environments that one user may have open; each may have its share of memory. */
#define OPERATION_EDITS_MAX 8U

DEFINE_CLEANUP(Operation *, operation_free);

/* --- its unit ---------------------------------------------------------------------------------------------------- */

static void on_unit(Unit *u, UnitEvent event, const char *message, void *userdata) {
        Operation *o = userdata;
        const UnitResult *result = unit_result(u);

        switch (event) {
        case UNIT_RUNNING:
        case UNIT_ADRIFT:
                return;
        case UNIT_ENDED:
                o->unit_ok = streq(result->result, "success") && result->status == 0;
                if (streq(result->result, "timeout") && !o->error)
                        o->error = strdup("It took longer than is allowed (ImageTimeout=).");
                if (streq(result->result, "oom-kill") && !o->error)
                        o->error = strdup("It needed more memory than is allowed.");
                break;
        case UNIT_START_FAILED:
        case UNIT_GONE:
                if (!o->error)
                        o->error = strprintf("Its unit could not be started: %s.", strempty(message));
                o->pipe_ended = true;
                break;
        }
        o->unit_ended = true;
        operation_judge(o);
}

/* --- begin ------------------------------------------------------------------------------------------------------ */

typedef enum Makes {
        MAKES_NOTHING,
        MAKES_IMAGE,
        MAKES_GENERATION,
} Makes;

static Makes kind_makes(OperationKind k) {
        switch (k) {
        case OPERATION_IMPORT_IMAGE:
        case OPERATION_BUILD_IMAGE:
                return MAKES_IMAGE;
        case OPERATION_FREEZE:
        case OPERATION_IMPORT_ENVIRONMENT:
                return MAKES_GENERATION;
        default:
                return MAKES_NOTHING;
        }
}

static int check_bounds(Manager *m, const OperationRequest *request) {
        uint64_t all = 0, of_user = 0, edits = 0;
        Operation *o;

        for (size_t i = 0; (o = strmap_next(m->operations, &i));) {
                if (o->state != OPERATION_RUNNING)
                        continue;
                if (o->kind == OPERATION_FLATTEN && request->kind == OPERATION_FLATTEN &&
                    streq(o->user, request->user) && streq(o->subject, request->subject))
                        return -EALREADY;
                edits += o->kind == OPERATION_EDIT && streq(o->user, request->user);
                if (o->kind == OPERATION_EDIT || o->kind == OPERATION_FLATTEN)
                        continue; /* of these there is one an agent */
                all += o->root == request->root;
                if (streq(o->user, request->user)) {
                        of_user += o->root == request->root;
                        /* Those that look do not get in anybody's way. */
                        if (kind_makes(o->kind) == kind_makes(request->kind) && kind_makes(o->kind) != MAKES_NOTHING &&
                            streq(o->subject, request->subject))
                                return -EALREADY;
                }
        }
        if (request->kind == OPERATION_EDIT && request->uid != 0 && edits >= OPERATION_EDITS_MAX)
                return -EUSERS;
        if (request->kind == OPERATION_EDIT || request->kind == OPERATION_FLATTEN)
                return 0;
        return all >= m->settings->max_operations || of_user >= m->settings->max_operations_per_user ? -EUSERS : 0;
}

/* Room for one more: the oldest of those that are over goes. */
static void expire_surplus(Manager *m, const char *user) {
        Operation *o, *oldest = NULL;
        unsigned n = 0;

        for (size_t i = 0; (o = strmap_next(m->operations, &i));) {
                if (o->state == OPERATION_RUNNING || !streq(o->user, user))
                        continue;
                n++;
                if (!oldest || strtoull(o->id, NULL, 10) < strtoull(oldest->id, NULL, 10))
                        oldest = o;
        }
        if (n >= OPERATION_FINISHED_MAX)
                operation_free(oldest);
}

/* The time keeps names apart from those of an agentd before us, which may still be ending; sessions are found by
 * theirs. */
static char *unit_name_of(const Operation *o) {
        return o->kind == OPERATION_EDIT ? strprintf("agent-op-%s-%s.service", o->id, o->views[0].id) :
                                           strprintf("agent-op-%s-%" PRIx64 ".service", o->id, now_realtime());
}

int operation_begin_unit(Operation *o) {
        _cleanup_free_ char *unit = unit_name_of(o);
        int r;

        if (!unit)
                return -ENOMEM;
        r = unit_start(o->manager->systemd, unit,
                       o->kind == OPERATION_EDIT ? edit_unit_properties : operation_unit_properties, on_unit, o,
                       &o->unit);
        /* sd-bus has duplicated what it put into the message. */
        o->output_fd = safe_close(o->output_fd);
        for (size_t i = 0; i < ELEMENTSOF(o->stdio); i++)
                o->stdio[i] = safe_close(o->stdio[i]);
        /* A terminal's inner end is held until the session is over, so that its outer end sees no hang-up before. */
        if (!o->tty)
                o->input_fd = safe_close(o->input_fd);
        if (r >= 0 && o->session)
                unit_hold(o->unit); /* its processes are those of one container, and end with it */
        return r;
}

static int make_next_view(Operation *o);

static void on_view(int error, const char *message, void *userdata) {
        Operation *o = userdata;
        _cleanup_free_ char *text = NULL;
        int r = error;

        o->worker_slot = worker_slot_unref(o->worker_slot);
        if (r == -ENOSPC && o->session) /* what is in its way are the sessions' own bounds, which MESSAGE tells */
                (void) free_and_strdup(&o->error_name, "NoSpace");
        else if (operation_no_space(o, r))
                return;
        if (r < 0)
                text = strprintf("The environment cannot be opened: %s.", message);
        else if (o->canceled) {
                operation_end(o, OPERATION_CANCELED, "Canceled.");
                return;
        } else {
                r = make_next_view(o);
                if (r < 0)
                        text = strprintf("It cannot be begun: %s.", strerror(-r));
        }
        if (r < 0)
                operation_end(o, OPERATION_FAILED, strempty(text));
}

static void on_edit_view(int error, const char *message, int listener_fd, void *userdata) {
        Operation *o = userdata;

        if (error < 0 || o->canceled || !o->session) {
                safe_close(listener_fd);
                on_view(error, message, userdata);
                return;
        }
        o->worker_slot = worker_slot_unref(o->worker_slot);
        edit_session_begin(o, listener_fd);
}

/* Those views that are still to be made, one after the other, then the unit. */
static int make_next_view(Operation *o) {
        for (size_t i = 0; i < OPERATION_VIEWS_MAX; i++) {
                OperationView *v = &o->views[i];

                if ((!v->layers && !v->edit) || v->made)
                        continue;
                if (v->edit && v->edit->size > 0 && !v->disk) {
                        v->disk = true; /* and then here again */
                        return worker_edit_disk(o->manager->worker, v->id, v->edit->dir, v->edit->size,
                                                o->session != NULL, on_view, o, &o->worker_slot);
                }
                v->made = true;
                if (v->edit)
                        return worker_edit(o->manager->worker, v->id, v->layers, v->edit->dir, v->edit->size,
                                           v->edit->base, on_edit_view, o, &o->worker_slot);
                return worker_view(o->manager->worker, v->id, v->layers, on_view, o, &o->worker_slot);
        }
        return operation_begin_unit(o);
}

static int copy_request(Operation *o, const OperationRequest *request) {
        if (free_and_strdup(&o->subject, request->subject) < 0 || free_and_strdup(&o->user, request->user) < 0 ||
            free_and_strdup(&o->note, request->note) < 0 || free_and_strdup(&o->run, request->run) < 0 ||
            free_and_strdup(&o->mirror, request->mirror) < 0 || free_and_strdup(&o->step, "starting") < 0 ||
            free_and_strdup(&o->detail, "") < 0 || strv_copy(request->packages, &o->packages) < 0 ||
            strv_copy(request->generations, &o->generations) < 0 ||
            free_and_strdup(&o->deploy.agents, request->deploy.agents) < 0 ||
            free_and_strdup(&o->deploy.from, request->deploy.from) < 0 ||
            free_and_strdup(&o->deploy.source, request->deploy.source) < 0)
                return -ENOMEM;
        o->deploy.state = request->deploy.state;
        o->deploy.percent = request->deploy.percent;
        for (char *const *l = request->layers; l && *l; l++)
                if (strv_extend(&o->holds, *l) < 0)
                        return -ENOMEM;
        if (request->edit) {
                OperationView *v = &o->views[0];

                if (free_and_strdup(&o->holder, request->holder) < 0 || free_and_strdup(&o->term, request->term) < 0 ||
                    free_and_strdup(&o->tty, request->tty) < 0 || strv_copy(request->command, &o->command) < 0 ||
                    run_id_new(v->id) < 0 ||
                    (request->kind == OPERATION_EDIT && strv_copy(request->edit->layers, &v->layers) < 0) ||
                    strv_extend(&o->generations, request->edit->generation) < 0)
                        return -ENOMEM;
                v->edit = o->edit = request->edit;
                o->edit->operation = o;
        }
        for (size_t i = 0; request->stdio && i < ELEMENTSOF(o->stdio); i++) {
                o->stdio[i] = fcntl(request->stdio[i], F_DUPFD_CLOEXEC, 3);
                if (o->stdio[i] < 0)
                        return -errno;
        }
        for (size_t i = 0; i < OPERATION_VIEWS_MAX; i++) {
                if (!request->views[i])
                        continue;
                if (strv_copy(request->views[i], &o->views[i].layers) < 0 || run_id_new(o->views[i].id) < 0)
                        return -ENOMEM;
                for (char *const *l = request->views[i]; *l; l++)
                        if (strv_extend(&o->holds, *l) < 0)
                                return -ENOMEM;
        }
        if (request->input_fd >= 0) {
                o->input_fd = fcntl(request->input_fd, F_DUPFD_CLOEXEC, 3);
                if (o->input_fd < 0)
                        return -errno;
        }
        return 0;
}

/* A document beside the digest: the unit writes it to its stdin, clients get it by OpenResult(). */
static int make_result(Operation *o) {
        o->result_fd = memfd_create("agentd-result", MFD_CLOEXEC);
        if (o->result_fd < 0)
                return -errno;
        o->input_fd = fcntl(o->result_fd, F_DUPFD_CLOEXEC, 3);
        return o->input_fd < 0 ? -errno : 0;
}

static int make_pipe(Operation *o) {
        int p[2];

        if (pipe2(p, O_CLOEXEC | O_NONBLOCK) < 0)
                return -errno;
        o->pipe_fd = p[0];
        o->output_fd = p[1];
        if (fcntl(o->output_fd, F_SETFL, 0) < 0) /* the unit's end blocks, ours does not */
                return -errno;
        return sd_event_add_io(o->manager->event, &o->pipe_source, o->pipe_fd, EPOLLIN, operation_on_pipe, o);
}

/* Whether it takes room in the store: not the looks, not an export, whose place is the caller's, and not the runner
 * that is shipped, which is part of agentd. */
static bool request_writes(const OperationRequest *request) {
        switch (request->kind) {
        case OPERATION_DIFF:
        case OPERATION_FSCK:
        case OPERATION_EXPORT:
                return false;
        default:
                return !request->deploy.from;
        }
}

int operation_start(Manager *m, const OperationRequest *request, Operation **ret) {
        _cleanup_(operation_freep) Operation *o = NULL;
        int r;

        r = check_bounds(m, request);
        if (r >= 0 && request_writes(request))
                r = retention_check_space(m);
        if (r >= 0 && kind_makes(request->kind) != MAKES_NOTHING)
                r = layer_quota_check(m, request->user, request->uid, NULL, NULL);
        if (r < 0)
                return r;
        expire_surplus(m, request->user);
        o = calloc(1, sizeof *o);
        if (!o)
                return -ENOMEM;
        *o = (Operation) {
                .manager = m,
                .kind = request->kind,
                .begun_usec = now_realtime(),
                .shell = !(request->command && request->command[0]),
                .uid = request->uid,
                .root = request->root,
                .sandbox_uid = request->sandbox_uid,
                .input_fd = -EBADF,
                .output_fd = -EBADF,
                .result_fd = -EBADF,
                .pipe_fd = -EBADF,
                .stdio = { -EBADF, -EBADF, -EBADF },
        };
        r = copy_request(o, request);
        if (r >= 0 && (o->kind == OPERATION_DIFF || o->kind == OPERATION_FSCK))
                r = make_result(o);
        if (r >= 0 && o->kind == OPERATION_EDIT)
                r = edit_session_new(request->hosts, &o->session);
        if (r >= 0 && o->kind == OPERATION_EDIT) {
                o->pipe_ended = true; /* it has the output to itself */
                r = free_and_strdup(&o->step, "");
        } else if (r >= 0 && o->kind != OPERATION_FSCK) {
                r = layer_store_new_staging(m->layers, &o->staging);
                if (r >= 0)
                        r = make_pipe(o);
                if (r >= 0 && request->document) {
                        _cleanup_free_ char *path = strprintf("%s/config.json", o->staging);

                        r = path ? write_file_atomic(AT_FDCWD, path, request->document, strlen(request->document), 0600,
                                                     (uid_t) -1, (gid_t) -1, 0) : -ENOMEM;
                }
                if (r >= 0) {
                        o->image = strprintf("%s/layer.erofs", o->staging);
                        r = o->image ? 0 : -ENOMEM;
                }
        }
        if (r < 0)
                return r;
        snprintf(o->id, sizeof o->id, "%" PRIu64, ++m->last_operation);
        o->path = strprintf(BUS_PATH "/operation/%s", o->id);
        if (!o->path)
                return -ENOMEM;
        r = strmap_put(m->operations, o->id, o);
        if (r < 0) {
                o->path = mfree(o->path);
                return r;
        }
        r = o->kind == OPERATION_FSCK ? fsck_start(o) : make_next_view(o);
        if (r < 0)
                return r;
        *ret = TAKE_PTR(o);
        return 0;
}

int operation_resume_edit(Manager *m, const char *view, const char *id, Edit *edit, const char *holder, uid_t uid,
                          uint64_t begun_usec, bool shell) {
        _cleanup_(operation_freep) Operation *o = calloc(1, sizeof *o);
        _cleanup_free_ char *unit = NULL;
        int r;

        if (!o)
                return -ENOMEM;
        *o = (Operation) { .manager = m, .kind = OPERATION_EDIT, .uid = uid, .sandbox_uid = (uid_t) -1,
                           .begun_usec = begun_usec, .shell = shell, .pipe_ended = true, .input_fd = -EBADF,
                           .output_fd = -EBADF, .result_fd = -EBADF, .pipe_fd = -EBADF,
                           .stdio = { -EBADF, -EBADF, -EBADF } };
        r = copy_request(o, &(OperationRequest) { .kind = OPERATION_EDIT, .subject = edit->agent, .user = edit->user,
                                                  .input_fd = -EBADF, .edit = edit, .holder = holder });
        if (r >= 0)
                r = free_and_strdup(&o->step, "");
        if (r >= 0)
                r = edit_session_resumed(o);
        if (r < 0)
                return r;
        snprintf(o->id, sizeof o->id, "%s", id);
        memcpy(o->views[0].id, view, RUN_ID_LEN + 1);
        o->views[0].made = true;
        o->views[0].disk = edit->size > 0;
        o->path = strprintf(BUS_PATH "/operation/%s", o->id);
        unit = unit_name_of(o);
        if (!o->path || !unit)
                return -ENOMEM;
        r = strmap_put(m->operations, o->id, o);
        if (r < 0) {
                o->path = mfree(o->path);
                return r;
        }
        r = unit_attach(m->systemd, unit, on_unit, o, &o->unit);
        if (r < 0)
                return r;
        unit_hold(o->unit);
        log_info("The session of %s in the edit of %s goes on.", holder, edit->key);
        TAKE_PTR(o);
        return 0;
}
