/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The life of an operation: staging → unit → publish → commit → told. See the header. */
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "async-remove.h"
#include "basic/fs-util.h"
#include "basic/json-util.h"
#include "basic/string-util.h"
#include "edit-session.h"
#include "environment.h"
#include "layer-quota.h"
#include "operation.h"
#include "retention.h"
#include "run.h"
#include "runner-deploy.h"

/* How long the object of a finished operation stays, for clients that ask late. */
#define OPERATION_EXPIRY_USEC (600 * USEC_PER_SEC)
/* And how many of one user's stay, each with a document that may be large. */
#define OPERATION_FINISHED_MAX 32U
/* Sessions in environments that one user may have open; each may have its share of memory. */
#define OPERATION_EDITS_MAX 8U

static const char *const kind_table[_OPERATION_KIND_MAX] = {
        [OPERATION_IMPORT_IMAGE] = "import-image",
        [OPERATION_BUILD_IMAGE] = "build-image",
        [OPERATION_FREEZE] = "freeze",
        [OPERATION_DIFF] = "diff",
        [OPERATION_FSCK] = "fsck",
        [OPERATION_EXPORT] = "export",
        [OPERATION_IMPORT_ENVIRONMENT] = "import-environment",
        [OPERATION_DEPLOY_RUNNER] = "deploy-runner",
        [OPERATION_EDIT] = "edit",
        [OPERATION_FLATTEN] = "flatten",
};

static const char *const state_table[_OPERATION_STATE_MAX] = {
        [OPERATION_RUNNING] = "running",
        [OPERATION_DONE] = "done",
        [OPERATION_FAILED] = "failed",
        [OPERATION_CANCELED] = "canceled",
};

const char *operation_kind_to_string(OperationKind k) {
        return k >= 0 && k < _OPERATION_KIND_MAX ? kind_table[k] : NULL;
}

const char *operation_state_to_string(OperationState s) {
        return s >= 0 && s < _OPERATION_STATE_MAX ? state_table[s] : NULL;
}

static void on_view_gone(int error, const char *message, void *userdata) {
        if (error < 0)
                log_error_errno(error, "What an operation looked at cannot be unmounted: %s", message);
}

void operation_drop_views(Operation *o) {
        for (size_t i = 0; i < OPERATION_VIEWS_MAX; i++) {
                OperationView *v = &o->views[i];

                if ((v->made || v->disk) &&
                    worker_cleanup(o->manager->worker, v->id, false, on_view_gone, NULL, NULL) < 0)
                        log_oom();
                v->made = v->disk = false;
        }
}

Operation *operation_free(Operation *o) {
        if (!o)
                return NULL;
        if (o->path)
                strmap_remove(o->manager->operations, o->id);
        sd_event_source_disable_unref(o->pipe_source);
        sd_event_source_disable_unref(o->expiry);
        worker_slot_unref(o->worker_slot);
        async_sync_free(o->sync);
        if (o->session)
                unit_forget(o->unit); /* whoever comes next may need it */
        else
                unit_free(o->unit);
        safe_close(o->pipe_fd);
        safe_close(o->input_fd);
        safe_close(o->output_fd);
        safe_close(o->result_fd);
        fsck_free(o->fsck);
        carry_free(o->carry);
        edit_session_free(o->session);
        if (o->edit && o->edit->operation == o)
                o->edit->operation = NULL;
        for (size_t i = 0; i < ELEMENTSOF(o->stdio); i++)
                safe_close(o->stdio[i]);
        free(o->holder);
        strv_free(o->command);
        free(o->term);
        free(o->tty);
        for (size_t i = 0; i < OPERATION_VIEWS_MAX; i++)
                strv_free(o->views[i].layers);
        strv_free(o->generations);
        strv_free(o->holds);
        strv_free(o->published);
        if (o->staging)
                layer_store_drop_staging(o->manager->layers, o->staging);
        free(o->path);
        free(o->subject);
        free(o->user);
        free(o->note);
        free(o->run);
        strv_free(o->packages);
        free(o->mirror);
        free(o->deploy.agents);
        free(o->deploy.from);
        free(o->deploy.source);
        free(o->manifest);
        free(o->step);
        free(o->detail);
        free(o->staging);
        free(o->image);
        free(o->line);
        free(o->digest);
        free(o->error);
        free(o->error_name);
        return mfree(o);
}
DEFINE_CLEANUP(Operation *, operation_free);

static int on_expiry(sd_event_source *s, uint64_t usec, void *userdata) {
        operation_free(userdata);
        return 0;
}

/* Usually agent-image has taken its tree away itself, and what is left is a file or two: gone before the end is told.
 * Where it was killed the tree may have millions of files. */
static void drop_staging(Operation *o) {
        _cleanup_free_ char *tree = strprintf("%s/tree", o->staging), *blobs = strprintf("%s/blobs", o->staging);

        if (tree && blobs && access(tree, F_OK) < 0 && access(blobs, F_OK) < 0)
                layer_store_drop_staging(o->manager->layers, o->staging);
        else
                async_remove_tree(o->staging);
}

/* What was moved into the store for something that then could not be stored. */
static void drop_published(Operation *o) {
        int r = 0;

        if (o->published)
                r = environment_drop_layers(o->manager, o->published);
        if (r >= 0 && o->published)
                r = environment_drop_documents(o->manager);
        if (r < 0)
                log_warning_errno(
                        r, "What operation %s had in the store already cannot be removed, the next prune does: %m",
                        o->id);
}

void operation_end(Operation *o, OperationState state, const char *detail) {
        int r;

        if (o->state != OPERATION_RUNNING)
                return;
        o->state = state;
        if (state != OPERATION_FAILED)
                o->error_name = mfree(o->error_name);
        free_and_strdup(&o->detail, detail);
        free_and_strdup(&o->step, "");
        o->pipe_source = sd_event_source_disable_unref(o->pipe_source);
        edit_session_end(o);
        o->unit = unit_free(o->unit);
        o->output_fd = safe_close(o->output_fd);
        o->input_fd = safe_close(o->input_fd);
        /* Where it came to no unit, whoever waits for the end of what they passed would wait as long as our object
         * lives. */
        for (size_t i = 0; i < ELEMENTSOF(o->stdio); i++)
                o->stdio[i] = safe_close(o->stdio[i]);
        operation_drop_views(o);
        if (o->edit) {
                o->edit->operation = NULL;
                o->edit = NULL;
        }
        if (state != OPERATION_DONE)
                drop_published(o);
        if (o->staging) {
                drop_staging(o);
                o->staging = mfree(o->staging);
        }
        if (state == OPERATION_FAILED && !o->error_name)
                (void) free_and_strdup(&o->error_name, "Failed");
        if (state == OPERATION_FAILED)
                log_warning("Operation %s (%s %s) failed: %s", o->id, kind_table[o->kind], o->subject, detail);
        operation_signal_finished(o);
        if (o->deploy.from)
                runner_shipped_done(o);
        r = sd_event_add_time_relative(o->manager->event, &o->expiry, CLOCK_MONOTONIC, OPERATION_EXPIRY_USEC,
                                       60 * USEC_PER_SEC, on_expiry, o);
        if (r < 0)
                operation_free(o);
}

bool operation_no_space(Operation *o, int r) {
        if (r != -ENOSPC && r != -EDQUOT)
                return false;
        (void) free_and_strdup(&o->error_name, "NoSpace");
        operation_end(o, OPERATION_FAILED,
                      "The disk of the store is full; nothing was changed. Make room, for example with \"agentctl env "
                      "prune\", and try again.");
        return true;
}

void operation_set_step(Operation *o, const char *step, uint64_t progress) {
        if (free_and_strdup(&o->step, step) < 0)
                return;
        o->progress = progress;
        operation_signal_changed(o);
}

/* A session is over; what it changed stays for the next one, or for a freeze. */
static void on_session_synced(int error, void *userdata) {
        Operation *o = userdata;
        const UnitResult *result = o->unit ? unit_result(o->unit) : NULL;
        _cleanup_free_ char *text = NULL;

        o->sync = async_sync_free(o->sync);
        if (o->error)
                operation_end(o, OPERATION_FAILED, o->error);
        else if (error < 0) {
                if (error == -ENOSPC || error == -EDQUOT)
                        (void) free_and_strdup(&o->error_name, "NoSpace");
                text = strprintf("The session is over, but not all of its changes are on the disk: %s.",
                                 strerror(-error));
                operation_end(o, OPERATION_FAILED, strempty(text));
        } else if (o->canceled)
                operation_end(o, OPERATION_CANCELED, "Canceled.");
        else if (o->unit_ok || (result && streq(result->result, "exit-code") && o->shell))
                operation_end(o, OPERATION_DONE, "");
        else {
                text = result && streq(result->result, "exit-code") ?
                        strprintf("The command ended with exit status %d.", result->status) :
                        strprintf("The session was ended (%s).", result ? result->result : "unknown");
                operation_end(o, OPERATION_FAILED, strempty(text));
        }
}

char *operation_edit_place(const Operation *o) {
        return o->edit->size == 0 ? strdup(o->edit->dir) :
                                    strprintf(AGENTD_RUNTIME_DIR "/runs/%s/disk", o->views[0].id);
}

/* Its end is told when a power cut can take nothing of it away any more. */
static void judge_session(Operation *o) {
        _cleanup_free_ char *place = operation_edit_place(o);
        int fd = place ? open(place, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -ENOMEM, r;

        r = !place ? -ENOMEM : fd < 0 ? -errno :
                async_sync_start(o->manager->event, fd, true, on_session_synced, o, &o->sync);
        if (r < 0)
                on_session_synced(r, o);
}

/* Unit and pipe are both over: what came out of it? */
void operation_judge(Operation *o) {
        if (!o->unit_ended || !o->pipe_ended || o->state != OPERATION_RUNNING || o->sync)
                return;
        if (o->kind == OPERATION_EDIT) {
                judge_session(o);
                return;
        }
        if (o->canceled) {
                operation_end(o, OPERATION_CANCELED, "Canceled.");
                return;
        }
        if (!o->unit_ok || (!o->made && o->kind != OPERATION_DIFF && o->kind != OPERATION_EXPORT)) {
                operation_end(o, OPERATION_FAILED, o->error ?: "It ended without a result.");
                return;
        }
        if (o->kind == OPERATION_DIFF || o->kind == OPERATION_EXPORT) {
                operation_end(o, OPERATION_DONE, o->kind == OPERATION_EXPORT ? o->generations[0] : "");
                return;
        }
        operation_set_step(o, "publishing", 0);
        o->committing = true;
        if (o->kind == OPERATION_IMPORT_ENVIRONMENT)
                carry_take(o);
        else
                operation_commit(o);
}

/* --- its unit ---------------------------------------------------------------------------------------------------- */

static void on_unit(Unit *u, UnitEvent event, const char *message, void *userdata) {
        Operation *o = userdata;
        const UnitResult *result = unit_result(u);

        switch (event) {
        case UNIT_RUNNING:
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

void operation_cancel(Operation *o) {
        if (o->state != OPERATION_RUNNING || o->canceled || o->committing)
                return; /* over, or past the point of return */
        o->canceled = true;
        if (o->unit)
                unit_stop(o->unit);
}
