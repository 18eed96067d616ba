/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The life of an operation: started (operation-start.c) → judged → committed (operation-commit.c) → told. */
#include <fcntl.h>

#include "async-remove.h"
#include "basic/fs-util.h"
#include "basic/string-util.h"
#include "edit-session.h"
#include "environment.h"
#include "operation.h"
#include "runner-deploy.h"

/* How long the object of a finished operation stays, for clients that ask late. */
#define OPERATION_EXPIRY_USEC (600 * USEC_PER_SEC)

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
        if (o->error && !o->canceled) /* a unit that was to be stopped while it began is told to have failed */
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

void operation_cancel(Operation *o) {
        if (o->state != OPERATION_RUNNING || o->canceled || o->committing)
                return; /* over, or past the point of return */
        o->canceled = true;
        if (o->unit)
                unit_stop(o->unit);
}
