/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * org.agentd1.Report: what the bridge tells about live runs. Only the bridge (and root) may call it; what it says comes
 * from a sandbox in the end, so all of it is bounded and checked here again. Every method may be repeated: the bridge
 * does so when agentd was restarted under its call.
 */
#include <fcntl.h>
#include <sys/stat.h>

#include "async-sync.h"
#include "basic/digest.h"
#include "basic/fs-util.h"
#include "basic/json-util.h"
#include "basic/string-util.h"
#include "bus-util.h"
#include "retention.h"
#include "run.h"

#define CONTENT_TYPE_MAX 255U

int report_check_bridge(Manager *m, sd_bus_message *msg, sd_bus_error *e) {
        uid_t uid;
        int r;

        r = bus_sender_euid(msg, &uid);
        if (r < 0)
                return r;
        if (uid != 0 && uid != m->bridge_uid)
                return sd_bus_error_set(e, SD_BUS_ERROR_ACCESS_DENIED, "Only the bridge may report.");
        return 0;
}

int report_error(Manager *m, sd_bus_error *e, int r, const char *id) {
        if (r == -ENOENT || r == -ESTALE || r == -EALREADY)
                return sd_bus_error_setf(e, BUS_ERROR_NO_SUCH_RUN, "Run %s is not live in this attempt.", id);
        if (r == -ENOBUFS)
                return sd_bus_error_set(
                        e, BUS_ERROR_QUOTA_EXCEEDED,
                        "What is kept for the owner of this run has reached its bound. It has room again when "
                        "finished runs are removed: agentctl prune-runs.");
        if (r == -E2BIG || r == -EDQUOT)
                return sd_bus_error_set(e, SD_BUS_ERROR_LIMITS_EXCEEDED, "The run has reached its limit for this.");
        return bus_store_error(m, e, r);
}

static int method_report_result(sd_bus_message *msg, void *userdata, sd_bus_error *e) {
        _cleanup_json_ sd_json_variant *v = NULL;
        _cleanup_free_ char *reason = NULL;
        Manager *m = userdata;
        const char *id, *text, *status;
        uint32_t attempt;
        int r;

        r = report_check_bridge(m, msg, e);
        if (r < 0)
                return r;
        r = sd_bus_message_read(msg, "sus", &id, &attempt, &text);
        if (r < 0)
                return r;
        if (!run_id_is_valid(id))
                return report_error(m, e, -ENOENT, "given");
        if (strlen(text) > STORE_RESULT_MAX)
                return sd_bus_error_set(e, BUS_ERROR_INPUT_TOO_LARGE, "The result is too large.");
        r = json_parse(text, strlen(text), &v, &reason);
        if (r < 0)
                return sd_bus_error_setf(e, BUS_ERROR_INVALID_INPUT, "The result is no valid JSON: %s",
                                         strempty(reason));
        status = json_string(v, "status");
        if (!status || !(streq(status, "success") || streq(status, "failed")))
                return sd_bus_error_set(e, BUS_ERROR_INVALID_INPUT, "The result's status must be success or failed.");
        r = store_run_post_result(m->store, id, attempt, text);
        if (r < 0)
                return report_error(m, e, r, id);
        return sd_bus_reply_method_return(msg, NULL);
}

#define CALLS_MAX 1024U /* in one message */

static bool call_text_is_valid(const char *text) {
        _cleanup_json_ sd_json_variant *v = NULL;

        return strlen(text) <= STORE_CALL_SIZE_MAX && json_parse(text, strlen(text), &v, NULL) >= 0 &&
               sd_json_variant_is_object(v);
}

static int method_report_calls(sd_bus_message *msg, void *userdata, sd_bus_error *e) {
        _cleanup_(sd_bus_message_unrefp) sd_bus_message *reply = NULL;
        _cleanup_free_ StoreCall *calls = NULL;
        Manager *m = userdata;
        StoreCall c = {};
        size_t n = 0;
        uint32_t attempt;
        int r;

        r = report_check_bridge(m, msg, e);
        if (r < 0)
                return r;
        calls = calloc(CALLS_MAX, sizeof(StoreCall));
        if (!calls)
                return -ENOMEM;
        r = sd_bus_message_enter_container(msg, 'a', "(suss)");
        if (r < 0)
                return r;
        while ((r = sd_bus_message_read(msg, "(suss)", &c.id, &attempt, &c.call_id, &c.json)) > 0) {
                if (n >= CALLS_MAX)
                        return sd_bus_error_setf(e, SD_BUS_ERROR_LIMITS_EXCEEDED, "More than %u calls at once.",
                                                 CALLS_MAX);
                c.attempt = attempt;
                calls[n++] = c;
        }
        if (r >= 0)
                r = sd_bus_message_exit_container(msg);
        if (r < 0)
                return r;
        for (size_t i = 0; i < n; i++)
                if (!call_text_is_valid(calls[i].json))
                        calls[i].call_id = ""; /* is refused as such */
        r = store_calls_add(m->store, calls, n);
        if (r < 0)
                return bus_store_error(m, e, r);

        r = sd_bus_message_new_method_return(msg, &reply);
        if (r >= 0)
                r = sd_bus_message_open_container(reply, 'a', "(us)");
        for (size_t i = 0; r >= 0 && i < n; i++) {
                int k = calls[i].result;

                if (k < 0 && k != -E2BIG) /* too many: the receipt says the first ones */
                        r = sd_bus_message_append(reply, "(us)", (uint32_t) i,
                                                  k == -EINVAL ? BUS_ERROR_INVALID_INPUT : BUS_ERROR_NO_SUCH_RUN);
        }
        if (r >= 0)
                r = sd_bus_message_close_container(reply);
        return r < 0 ? r : sd_bus_send(NULL, reply, NULL);
}

static int method_report_call(sd_bus_message *msg, void *userdata, sd_bus_error *e) {
        Manager *m = userdata;
        const char *id, *call, *text;
        uint32_t attempt;
        int r;

        r = report_check_bridge(m, msg, e);
        if (r < 0)
                return r;
        r = sd_bus_message_read(msg, "suss", &id, &attempt, &call, &text);
        if (r < 0)
                return r;
        if (!run_id_is_valid(id))
                return report_error(m, e, -ENOENT, "given");
        if (!token_name_is_valid(call) || !call_text_is_valid(text))
                return sd_bus_error_set(e, BUS_ERROR_INVALID_INPUT, "The call's record is not valid.");
        r = store_call_add(m->store, id, attempt, call, text);
        if (r < 0 && r != -E2BIG) /* too many: the receipt says the first ones */
                return report_error(m, e, r, id);
        return sd_bus_reply_method_return(msg, NULL);
}

/* --- artifacts -------------------------------------------------------------------------------------------------- */

static int artifact_path(const char *id, const char *name, char **ret) {
        char *p = strprintf(AGENTD_STATE_DIR "/artifacts/%s/%s", id, name);

        if (!p)
                return -ENOMEM;
        *ret = p;
        return 0;
}

/* While it is written it has a name that no artifact can have (they do not begin with a dot), and that is never too
 * long. */
static int artifact_part_path(const char *id, const char *name, char **ret) {
        char digest[DIGEST_LEN + 1];
        _cleanup_free_ char *part = NULL;
        int r;

        r = digest_bytes(name, strlen(name), digest);
        if (r < 0)
                return r;
        part = strprintf(".part-%.32s", digest + 7);
        return part ? artifact_path(id, part, ret) : -ENOMEM;
}

static int method_begin_artifact(sd_bus_message *msg, void *userdata, sd_bus_error *e) {
        _cleanup_(store_run_freep) StoreRun *row = NULL;
        _cleanup_free_ char *part = NULL, *dir = NULL;
        _cleanup_close_ int fd = -EBADF;
        Manager *m = userdata;
        const char *id, *name;
        uint32_t attempt;
        const RunLimits *limits;
        uint64_t max;
        Run *run;
        int r;

        r = report_check_bridge(m, msg, e);
        if (r < 0)
                return r;
        r = sd_bus_message_read(msg, "sust", &id, &attempt, &name, &max);
        if (r < 0)
                return r;
        if (!run_id_is_valid(id))
                return report_error(m, e, -ENOENT, "given");
        if (!artifact_name_is_valid(name))
                return sd_bus_error_set(
                        e, BUS_ERROR_INVALID_NAME,
                        "Not a valid name of an artifact: at most 255 bytes, no \"/\", no leading dot.");
        if (retention_check_space(m) < 0)
                return sd_bus_error_set(e, BUS_ERROR_NO_SPACE, "The disk of this host has no room for artifacts.");
        run = strmap_get(m->runs, id);
        limits = run && run->definition ? &run->definition->limits : &m->settings->defaults;
        r = store_artifact_begin(m->store, id, attempt, name,
                                 &(StoreArtifactLimits) { .max = (unsigned) limits->artifacts,
                                                          .bytes = MIN(max, limits->artifact_size),
                                                          .bytes_per_user = m->settings->max_artifacts_per_user });
        if (r < 0)
                return report_error(m, e, r, id);
        r = artifact_path(id, "", &dir);
        if (r >= 0)
                r = mkdir_parents(dir, 0700);
        if (r >= 0)
                r = artifact_part_path(id, name, &part);
        if (r < 0)
                return sd_bus_error_set_errnof(e, r, "The artifact cannot be made: %s", strerror(-r));
        /* A file of its own each time: another writer of the same name keeps the one before, which nobody commits then.
         */
        if (unlink(part) < 0 && errno != ENOENT)
                return sd_bus_error_set_errnof(e, errno, "The artifact cannot be made: %m");
        fd = open(part, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
        if (fd < 0)
                return sd_bus_error_set_errnof(e, errno, "The artifact cannot be made: %m");
        return sd_bus_reply_method_return(msg, "h", fd);
}

/* The reply to a commit is owed until the bytes are on disk. */
typedef struct Commit {
        Manager *manager;
        sd_bus_message *msg;
        AsyncSync *sync;
        char *id, *name, *part, *type;
        uint32_t attempt;
        uint64_t size;
        ino_t inode; /* of what was synced; 0: it was in place already */
} Commit;

static void commit_free(Commit *c) {
        async_sync_free(c->sync);
        sd_bus_message_unref(c->msg);
        free(c->id);
        free(c->name);
        free(c->part);
        free(c->type);
        free(c);
}

/* EXCHANGED: what was there before is PART now. */
static int put_in_place(const char *part, const char *path, bool *ret_exchanged) {
        *ret_exchanged = renameat2(AT_FDCWD, part, AT_FDCWD, path, RENAME_EXCHANGE) >= 0;
        if (*ret_exchanged)
                return 0;
        if (errno != ENOENT)
                return -errno;
        return renameat2(AT_FDCWD, part, AT_FDCWD, path, RENAME_NOREPLACE) < 0 ? -errno : 0;
}

/* LATE: nobody will commit it any more. */
static void take_back(const char *part, const char *path, bool exchanged, bool late) {
        int r = renameat2(AT_FDCWD, path, AT_FDCWD, part, exchanged ? RENAME_EXCHANGE : RENAME_NOREPLACE) < 0 ? -errno : 0;

        if (r >= 0 && late)
                r = unlink_noerrno(AT_FDCWD, part, 0);
        if (r < 0)
                log_warning_errno(r, "%s, which was not stored, cannot be taken away again: %m", path);
}

static int commit_finish(Commit *c, sd_bus_error *e) {
        _cleanup_free_ char *path = NULL;
        bool part, exchanged = false;
        struct stat st;
        int r;

        r = artifact_path(c->id, c->name, &path);
        if (r < 0)
                return r;
        /* While it was synced another request of the run may have begun, or committed, the same name. */
        part = c->inode != 0 && stat(c->part, &st) >= 0 && st.st_ino == c->inode;
        if ((!part && (stat(path, &st) < 0 || (c->inode != 0 && st.st_ino != c->inode))) ||
            (uint64_t) st.st_size != c->size)
                return sd_bus_error_set(e, BUS_ERROR_INVALID_INPUT, "The artifact was written anew meanwhile.");
        /* First the bytes under their name, then the row that says so: a row never names what is not there. Where the
         * store refuses, because the run is over by now, what was there before comes back. */
        if (part) {
                r = put_in_place(c->part, path, &exchanged);
                if (r < 0)
                        return sd_bus_error_set_errnof(e, r, "The artifact cannot be stored: %s", strerror(-r));
        }
        r = store_artifact_commit(c->manager->store, c->id, c->attempt, c->name, c->size, c->type);
        if (r < 0 && part)
                take_back(c->part, path, exchanged, r == -EALREADY || r == -ESTALE);
        if (r >= 0 && exchanged)
                (void) unlink_noerrno(AT_FDCWD, c->part, 0);
        return r < 0 ? report_error(c->manager, e, r, c->id) : 0;
}

static void on_synced(int error, void *userdata) {
        _cleanup_(sd_bus_error_free) sd_bus_error e = SD_BUS_ERROR_NULL;
        Commit *c = userdata;
        int r = error;

        if (r < 0)
                sd_bus_error_set_errnof(&e, r, "The artifact cannot be stored: %s", strerror(-r));
        else
                r = commit_finish(c, &e);
        if (r < 0)
                sd_bus_reply_method_errno(c->msg, r, &e);
        else
                sd_bus_reply_method_return(c->msg, NULL);
        commit_free(c);
}

static int method_commit_artifact(sd_bus_message *msg, void *userdata, sd_bus_error *e) {
        _cleanup_close_ int fd = -EBADF;
        Manager *m = userdata;
        const char *id, *name, *type;
        uint32_t attempt;
        uint64_t size;
        struct stat st;
        Commit *c;
        int r;

        r = report_check_bridge(m, msg, e);
        if (r < 0)
                return r;
        r = sd_bus_message_read(msg, "susts", &id, &attempt, &name, &size, &type);
        if (r < 0)
                return r;
        if (!run_id_is_valid(id))
                return report_error(m, e, -ENOENT, "given");
        if (!artifact_name_is_valid(name) || strlen(type) > CONTENT_TYPE_MAX || string_has_cc(type))
                return sd_bus_error_set(e, BUS_ERROR_INVALID_NAME, "Not a valid name or content type of an artifact.");
        c = calloc(1, sizeof *c);
        if (!c)
                return -ENOMEM;
        *c = (Commit) { .manager = m, .msg = sd_bus_message_ref(msg), .attempt = attempt, .size = size };
        if (free_and_strdup(&c->id, id) < 0 || free_and_strdup(&c->name, name) < 0 ||
            free_and_strdup(&c->type, type) < 0 || artifact_part_path(id, name, &c->part) < 0) {
                commit_free(c);
                return -ENOMEM;
        }
        fd = open(c->part, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
        if (fd < 0 && errno == ENOENT) { /* repeated: it may be in place already */
                r = commit_finish(c, e);
                commit_free(c);
                return r < 0 ? r : sd_bus_reply_method_return(msg, NULL);
        }
        if (fd < 0 || fstat(fd, &st) < 0)
                r = sd_bus_error_set_errnof(e, errno, "The artifact cannot be read: %m");
        else if ((uint64_t) st.st_size != size)
                r = sd_bus_error_setf(e, BUS_ERROR_INVALID_INPUT, "The artifact has %jd bytes, not %" PRIu64 ".",
                                      (intmax_t) st.st_size, size);
        else {
                c->inode = st.st_ino;
                r = async_sync_start(m->event, TAKE_FD(fd), false, on_synced, c, &c->sync);
        }
        if (r < 0) {
                commit_free(c);
                return r;
        }
        return 1; /* on_synced() replies */
}

typedef struct FindArtifact {
        const char *name;
        char *content_type;
        uint64_t size;
        bool found;
} FindArtifact;

static int find_artifact(const StoreArtifact *a, void *userdata) {
        FindArtifact *f = userdata;

        if (!streq(a->name, f->name))
                return 0;
        f->found = true;
        f->size = a->size;
        return free_and_strdup(&f->content_type, a->content_type);
}

/* For the run itself: what it has committed. */
static int method_report_open_artifact(sd_bus_message *msg, void *userdata, sd_bus_error *e) {
        _cleanup_free_ char *path = NULL, *content_type = NULL;
        _cleanup_close_ int fd = -EBADF;
        FindArtifact f = {};
        Manager *m = userdata;
        const char *id;
        uint32_t attempt;
        struct stat st;
        int r;

        r = report_check_bridge(m, msg, e);
        if (r < 0)
                return r;
        r = sd_bus_message_read(msg, "sus", &id, &attempt, &f.name);
        if (r < 0)
                return r;
        if (!run_id_is_valid(id))
                return report_error(m, e, -ENOENT, "given");
        r = store_artifacts(m->store, id, find_artifact, &f);
        content_type = f.content_type;
        if (r < 0)
                return report_error(m, e, r, id);
        if (f.found && artifact_name_is_valid(f.name)) {
                r = artifact_path(id, f.name, &path);
                if (r < 0)
                        return r;
                fd = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
        }
        if (fd < 0 || fstat(fd, &st) < 0)
                return sd_bus_error_set(e, BUS_ERROR_NO_SUCH_ARTIFACT, "The run has no artifact of that name.");
        /* What is there: another commit may be between its file and its row. */
        return sd_bus_reply_method_return(msg, "hts", fd, (uint64_t) st.st_size, strempty(content_type));
}

const sd_bus_vtable report_vtable[] = {
        SD_BUS_VTABLE_START(0),
        SD_BUS_METHOD_WITH_ARGS("ReportResult", SD_BUS_ARGS("s", run, "u", attempt, "s", result), SD_BUS_NO_RESULT,
                                method_report_result, SD_BUS_VTABLE_UNPRIVILEGED),
        SD_BUS_METHOD_WITH_ARGS("ReportCall", SD_BUS_ARGS("s", run, "u", attempt, "s", call_id, "s", call),
                                SD_BUS_NO_RESULT, method_report_call, SD_BUS_VTABLE_UNPRIVILEGED),
        SD_BUS_METHOD_WITH_ARGS("ReportCalls", SD_BUS_ARGS("a(suss)", calls), SD_BUS_RESULT("a(us)", refused),
                                method_report_calls, SD_BUS_VTABLE_UNPRIVILEGED),
        SD_BUS_METHOD_WITH_ARGS("BeginArtifact", SD_BUS_ARGS("s", run, "u", attempt, "s", name, "t", max_bytes),
                                SD_BUS_RESULT("h", fd), method_begin_artifact, SD_BUS_VTABLE_UNPRIVILEGED),
        SD_BUS_METHOD_WITH_ARGS("CommitArtifact",
                                SD_BUS_ARGS("s", run, "u", attempt, "s", name, "t", size, "s", content_type),
                                SD_BUS_NO_RESULT, method_commit_artifact, SD_BUS_VTABLE_UNPRIVILEGED),
        SD_BUS_METHOD_WITH_ARGS("OpenArtifact", SD_BUS_ARGS("s", run, "u", attempt, "s", name),
                                SD_BUS_RESULT("h", fd, "t", size, "s", content_type), method_report_open_artifact,
                                SD_BUS_VTABLE_UNPRIVILEGED),
        SD_BUS_METHOD_WITH_ARGS("ReportUsage",
                                SD_BUS_ARGS("s", run, "u", attempt, "s", key, "t", amount, "s", description),
                                SD_BUS_RESULT("b", fresh), method_report_usage, SD_BUS_VTABLE_UNPRIVILEGED),
        SD_BUS_METHOD_WITH_ARGS("GetSession", SD_BUS_ARGS("s", run, "u", attempt),
                                SD_BUS_RESULT("s", content_type, "s", tag, "ay", data), method_get_session,
                                SD_BUS_VTABLE_UNPRIVILEGED),
        SD_BUS_METHOD_WITH_ARGS("PutSession",
                                SD_BUS_ARGS("s", run, "u", attempt, "s", content_type, "s", match, "ay", data),
                                SD_BUS_RESULT("s", tag), method_put_session, SD_BUS_VTABLE_UNPRIVILEGED),
        SD_BUS_METHOD_WITH_ARGS("GetRun", SD_BUS_ARGS("s", run, "u", attempt, "s", id), SD_BUS_RESULT("s", document),
                                method_get_run_document, SD_BUS_VTABLE_UNPRIVILEGED),
        SD_BUS_METHOD_WITH_ARGS("RequestApproval",
                                SD_BUS_ARGS("s", run, "u", attempt, "s", id, "s", service, "s", method, "s", path, "t",
                                            timeout_usec),
                                SD_BUS_RESULT("b", granted), method_request_approval, SD_BUS_VTABLE_UNPRIVILEGED),
        SD_BUS_VTABLE_END
};

int report_export(Manager *m) {
        return sd_bus_add_object_vtable(m->bus, NULL, BUS_PATH "/report", "org.agentd1.Report", report_vtable, m);
}

/* --- the owner's side ------------------------------------------------------------------------------------------- */

static int append_artifact(const StoreArtifact *a, void *userdata) {
        return sd_bus_message_append(userdata, "(sts)", a->name, a->size, strempty(a->content_type));
}

int method_list_artifacts(sd_bus_message *msg, void *userdata, sd_bus_error *e) {
        _cleanup_(sd_bus_message_unrefp) sd_bus_message *reply = NULL;
        _cleanup_(store_run_freep) StoreRun *row = NULL;
        Manager *m = userdata;
        const char *id;
        int r;

        r = sd_bus_message_read(msg, "s", &id);
        if (r < 0)
                return r;
        r = bus_resolve_run(m, msg, id, POLKIT_ACTION_EXECUTE, e, &row);
        if (r <= 0)
                return r < 0 ? r : 1;
        r = bus_list_open(msg, "(sts)", &reply);
        if (r < 0)
                return r;
        r = store_artifacts(m->store, id, append_artifact, reply);
        if (r < 0)
                return bus_store_error(m, e, r);
        return bus_list_send(reply);
}

int method_open_artifact(sd_bus_message *msg, void *userdata, sd_bus_error *e) {
        _cleanup_(store_run_freep) StoreRun *row = NULL;
        _cleanup_free_ char *path = NULL;
        _cleanup_close_ int fd = -EBADF;
        Manager *m = userdata;
        const char *id, *name;
        int r;

        r = sd_bus_message_read(msg, "ss", &id, &name);
        if (r < 0)
                return r;
        r = bus_resolve_run(m, msg, id, POLKIT_ACTION_EXECUTE, e, &row);
        if (r <= 0)
                return r < 0 ? r : 1;
        if (artifact_name_is_valid(name)) {
                r = artifact_path(id, name, &path);
                if (r < 0)
                        return r;
                fd = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
        }
        if (fd < 0)
                return sd_bus_error_setf(e, BUS_ERROR_NO_SUCH_ARTIFACT, "Run %s has no artifact \"%.255s\".", id, name);
        return sd_bus_reply_method_return(msg, "h", fd);
}
