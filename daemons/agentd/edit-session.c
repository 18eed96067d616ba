/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* See the header. The files are runs/<id>/session.json (ours), runs/<id>/environment (for PID 1, with the token), and
 * the live file; all are in /run, and go with the session or with the machine. */
#include <dirent.h>
#include <strings.h>
#include <systemd/sd-journal.h>

#include "basic/fs-util.h"
#include "basic/json-util.h"
#include "basic/string-util.h"
#include "bus-util.h"
#include "edit-session.h"
#include "service/live-run.h"
#include "token/run-token.h"

#define SESSION_FILE AGENTD_RUNTIME_DIR "/runs/%s/session.json"
#define SESSION_FILE_MAX (1U << 20)
/* About as long as a token can be good for. Where the session is still open then, the bridge goes by its live file. */
#define SESSION_USEC (UINT64_C(30) * 24 * 3600 * USEC_PER_SEC)

#define BRIDGE_RETRY_USEC (200 * USEC_PER_MSEC)
#define BRIDGE_TRIES_MAX 50U

#define MESSAGE_EDIT_SESSION "b1f0a4d6c2954f5e8d7e0c1a9b3f6e20"

struct EditSession {
        char **hosts;
        int listener_fd;
        bool live; /* there is, or may be, a live file, and the bridge knows of it */
        sd_bus_slot *slot;
        sd_event_source *retry;
        unsigned tries;
};

int edit_session_new(char *const *hosts, EditSession **ret) {
        _cleanup_free_ EditSession *s = calloc(1, sizeof *s);
        int r;

        if (!s)
                return -ENOMEM;
        s->listener_fd = -EBADF;
        r = strv_copy(hosts, &s->hosts);
        if (r < 0)
                return r;
        *ret = TAKE_PTR(s);
        return 0;
}

int edit_session_resumed(Operation *o) {
        int r;

        r = edit_session_new(NULL, &o->session);
        if (r >= 0)
                o->session->live = true; /* whether it has a network is in its live file */
        return r;
}

EditSession *edit_session_free(EditSession *s) {
        if (!s)
                return NULL;
        sd_bus_slot_unref(s->slot);
        sd_event_source_disable_unref(s->retry);
        safe_close(s->listener_fd);
        strv_free(s->hosts);
        return mfree(s);
}

/* --- files ------------------------------------------------------------------------------------------------------- */

static int write_session(const Operation *o) {
        _cleanup_free_ char *path = strprintf(SESSION_FILE, o->views[0].id), *text = NULL;
        _cleanup_json_ sd_json_variant *v = NULL;
        int r;

        if (!path)
                return -ENOMEM;
        r = sd_json_buildo(&v, SD_JSON_BUILD_PAIR_STRING("operation", o->id),
                           SD_JSON_BUILD_PAIR_STRING("edit", o->edit->id), SD_JSON_BUILD_PAIR_STRING("user", o->user),
                           SD_JSON_BUILD_PAIR_STRING("agent", o->subject),
                           SD_JSON_BUILD_PAIR_STRING("holder", o->holder), SD_JSON_BUILD_PAIR_UNSIGNED("uid", o->uid),
                           SD_JSON_BUILD_PAIR_UNSIGNED("begun_usec", o->begun_usec),
                           SD_JSON_BUILD_PAIR_BOOLEAN("shell", !(o->command && o->command[0])));
        if (r >= 0)
                r = json_format_canonical(v, &text);
        return r < 0 ? r :
                write_file_atomic(AT_FDCWD, path, text, strlen(text), 0600, (uid_t) -1, (gid_t) -1, 0);
}

static int mint_token(const Operation *o, const LiveRun *live, char **ret) {
        uint64_t now = now_realtime() / USEC_PER_SEC;
        RunClaims claims = {
                .user = live->user,
                .agent = live->agent,
                .iat = now,
                .nbf = now,
                .exp = live->deadline_usec / USEC_PER_SEC + RUN_TOKEN_GRACE_SEC,
        };

        memcpy(claims.run, live->run, sizeof claims.run);
        memcpy(claims.jti, live->jti, sizeof claims.jti);
        return run_token_mint(o->manager->key, &claims, ret);
}

const char *const *edit_session_variables(const Operation *o) {
        static const char *const names[] = { "HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy",
                                             "NO_PROXY",   "no_proxy",    NULL };

        return o->session->hosts[0] ? names : names + ELEMENTSOF(names) - 1;
}

/* Not in the unit's properties, which anybody can read. */
static int write_environment(const Operation *o, const LiveRun *live) {
        _cleanup_free_ char *path = strprintf(EDIT_ENVIRONMENT_FILE, o->views[0].id), *token = NULL, *text = NULL;
        size_t size = 0;
        FILE *f;
        int r;

        if (!path)
                return -ENOMEM;
        r = mint_token(o, live, &token);
        if (r < 0)
                return r;
        f = open_memstream(&text, &size);
        if (!f)
                return -ENOMEM;
        for (const char *const *v = edit_session_variables(o); *v; v++)
                if (strcasecmp(*v, "no_proxy") == 0)
                        fprintf(f, "%s=localhost,127.0.0.1,::1\n", *v);
                else
                        fprintf(f, "%s=http://edit:%s@127.0.0.1:%d\n", *v, token, SANDBOX_PROXY_PORT);
        explicit_bzero(token, strlen(token));
        if (fclose(f) != 0)
                return -ENOMEM;
        r = write_file_atomic(AT_FDCWD, path, text, size, 0400, (uid_t) -1, (gid_t) -1, 0);
        explicit_bzero(text, size);
        return r;
}

static int write_live(Operation *o) {
        _cleanup_(live_run_unrefp) LiveRun *live = NULL;
        int r;

        r = live_run_new(&live);
        if (r < 0)
                return r;
        memcpy(live->run, o->views[0].id, sizeof live->run);
        live->uid = o->uid;
        live->deadline_usec = now_realtime() + SESSION_USEC;
        if (free_and_strdup(&live->user, o->user) < 0 || free_and_strdup(&live->agent, o->subject) < 0 ||
            free_and_strdup(&live->holder, o->holder) < 0 || strv_copy(o->session->hosts, &live->proxy) < 0)
                return -ENOMEM;
        r = run_token_new_jti(live->jti);
        if (r >= 0)
                r = write_environment(o, live);
        if (r >= 0)
                r = live_run_write(LIVE_DIRECTORY, live, o->manager->bridge_gid);
        return r;
}

/* --- begin ------------------------------------------------------------------------------------------------------- */

static void fail(Operation *o, const char *what, int r, const char *message) {
        _cleanup_free_ char *text = strprintf("%s: %s.", what, message ?: strerror(-r));

        operation_end(o, OPERATION_FAILED, text ?: what);
}

static void start(Operation *o) {
        int r;

        o->session->listener_fd = safe_close(o->session->listener_fd); /* the bridge has its own */
        if (o->canceled) {
                operation_end(o, OPERATION_CANCELED, "Canceled.");
                return;
        }
        r = operation_begin_unit(o);
        if (r < 0)
                fail(o, "The session cannot be begun", r, NULL);
}

static void do_register(Operation *o);

static int on_retry(sd_event_source *source, uint64_t usec, void *userdata) {
        Operation *o = userdata;

        o->session->retry = sd_event_source_disable_unref(o->session->retry);
        do_register(o);
        return 0;
}

static int on_registered(sd_bus_message *m, void *userdata, sd_bus_error *error) {
        const sd_bus_error *e = sd_bus_message_get_error(m);
        Operation *o = userdata;
        EditSession *s = o->session;

        s->slot = sd_bus_slot_unref(s->slot);
        if (!e)
                start(o);
        else if (!bus_bridge_is_away(e) || ++s->tries >= BRIDGE_TRIES_MAX ||
                 sd_event_add_time_relative(o->manager->event, &s->retry, CLOCK_MONOTONIC, BRIDGE_RETRY_USEC, 0,
                                            on_retry, o) < 0)
                fail(o, "The bridge does not take the session's listener", -EIO, e->message);
        return 0;
}

static void do_register(Operation *o) {
        _cleanup_(sd_bus_message_unrefp) sd_bus_message *m = NULL;
        EditSession *s = o->session;
        int r;

        r = sd_bus_message_new_method_call(o->manager->calls, &m, "org.agentd1.Bridge", "/org/agentd1/Bridge",
                                           "org.agentd1.Bridge", "RegisterRun");
        if (r >= 0)
                r = sd_bus_message_append(m, "sa(sh)", o->views[0].id, 1, "proxy", s->listener_fd);
        if (r >= 0)
                r = sd_bus_call_async(o->manager->calls, &s->slot, m, on_registered, o, 0);
        if (r < 0)
                fail(o, "The bridge cannot be told of the session", r, NULL);
}

static char *join(char *const *l) {
        char *text = strdup("");

        for (; text && *l; l++) {
                char *longer = strprintf("%s%s%s", text, *text ? " " : "", *l);

                free(text);
                text = longer;
        }
        return text;
}

void edit_session_begin(Operation *o, int listener_fd) {
        _cleanup_free_ char *hosts = NULL;
        EditSession *s = o->session;
        int r;

        s->listener_fd = listener_fd;
        r = write_session(o);
        if (r >= 0 && s->hosts[0]) {
                s->live = true;
                r = write_live(o);
        }
        if (r < 0) {
                fail(o, "The session's files cannot be written", r, NULL);
                return;
        }
        hosts = join(s->hosts);
        sd_journal_send("MESSAGE=Edit session %s of %s by %s begins; it may go to: %s", o->views[0].id, o->edit->key,
                        o->holder, isempty(hosts) ? "nowhere" : hosts, "MESSAGE_ID=" MESSAGE_EDIT_SESSION,
                        "PRIORITY=%i", LOG_INFO, "AGENT_EDIT_SESSION=%s", o->views[0].id, "AGENT_NAME=%s", o->subject,
                        "AGENT_USER=%s", o->user, "AGENT_HOLDER=%s", o->holder, "AGENT_HOSTS=%s", strempty(hosts),
                        NULL);
        if (s->hosts[0])
                do_register(o);
        else
                start(o);
}

/* --- end --------------------------------------------------------------------------------------------------------- */

void edit_session_end(Operation *o) {
        _cleanup_free_ char *path = strprintf(SESSION_FILE, o->views[0].id);
        EditSession *s = o->session;
        int r;

        if (!s)
                return;
        /* First: an agentd after us would take it for one that is still open. */
        r = path ? unlink_noerrno(AT_FDCWD, path, 0) : -ENOMEM;
        if (r < 0)
                log_warning_errno(r, "Edit session %s: its file cannot be removed: %m", o->views[0].id);
        s->slot = sd_bus_slot_unref(s->slot);
        s->retry = sd_event_source_disable_unref(s->retry);
        s->listener_fd = safe_close(s->listener_fd);
        if (!s->live)
                return;
        s->live = false;
        r = live_run_remove(LIVE_DIRECTORY, o->views[0].id);
        if (r < 0)
                log_error_errno(r, "Edit session %s: its live file cannot be removed, its token is still good: %m",
                                o->views[0].id);
        /* Nobody waits for the answer: without the live file a listener serves nobody. */
        r = sd_bus_call_method_async(o->manager->calls, NULL, "org.agentd1.Bridge", "/org/agentd1/Bridge",
                                     "org.agentd1.Bridge", "UnregisterRun", NULL, NULL, "s", o->views[0].id);
        if (r < 0)
                log_warning_errno(r, "Edit session %s: the bridge cannot be told of its end: %m", o->views[0].id);
}

/* --- after a restart --------------------------------------------------------------------------------------------- */

typedef struct SessionFile {
        char *operation, *edit, *user, *agent, *holder;
        uint64_t uid, begun_usec;
        bool shell;
} SessionFile;

static void session_file_done(SessionFile *f) {
        free(f->operation);
        free(f->edit);
        free(f->user);
        free(f->agent);
        free(f->holder);
}

static int read_session(const char *id, SessionFile *f) {
        static const JsonField table[] = {
                { "agent", SD_JSON_VARIANT_STRING, json_field_string, offsetof(SessionFile, agent), true },
                { "begun_usec", SD_JSON_VARIANT_UNSIGNED, json_field_uint64, offsetof(SessionFile, begun_usec), true },
                { "edit", SD_JSON_VARIANT_STRING, json_field_string, offsetof(SessionFile, edit), true },
                { "holder", SD_JSON_VARIANT_STRING, json_field_string, offsetof(SessionFile, holder), true },
                { "operation", SD_JSON_VARIANT_STRING, json_field_string, offsetof(SessionFile, operation), true },
                { "shell", SD_JSON_VARIANT_BOOLEAN, json_field_bool, offsetof(SessionFile, shell), true },
                { "uid", SD_JSON_VARIANT_UNSIGNED, json_field_uint64, offsetof(SessionFile, uid), true },
                { "user", SD_JSON_VARIANT_STRING, json_field_string, offsetof(SessionFile, user), true },
                {}
        };
        _cleanup_free_ char *path = strprintf(SESSION_FILE, id), *text = NULL, *error = NULL;
        _cleanup_json_ sd_json_variant *v = NULL;
        size_t size;
        int r;

        if (!path)
                return -ENOMEM;
        r = read_full_file_at(AT_FDCWD, path, SESSION_FILE_MAX, &text, &size);
        if (r >= 0)
                r = json_parse(text, size, &v, &error);
        if (r >= 0)
                r = json_read_object(v, "", table, f, &error);
        return r;
}

static int resume_one(Manager *m, const char *id) {
        _cleanup_(session_file_done) SessionFile f = {};
        Edit *edit;
        int r;

        r = read_session(id, &f);
        if (r < 0)
                return r == -ENOENT ? 0 : log_warning_errno(r, "Edit session %s: its file cannot be read: %m", id);
        edit = edit_find(m, f.user, f.agent);
        if (!edit || !streq(edit->id, f.edit) || edit->operation)
                return 0; /* what it worked on is gone; the unit goes as all strange ones do */
        return operation_resume_edit(m, id, f.operation, edit, f.holder, (uid_t) f.uid, f.begun_usec, f.shell);
}

int edit_sessions_resume(Manager *m) {
        DIR *d = opendir(AGENTD_RUNTIME_DIR "/runs");
        struct dirent *de;
        int r = 0, k;

        if (!d)
                return errno == ENOENT ? 0 : -errno;
        while ((de = readdir(d))) {
                if (!run_id_is_valid(de->d_name))
                        continue;
                k = resume_one(m, de->d_name);
                if (k == -ENOMEM)
                        r = k;
        }
        closedir(d);
        return r;
}

bool edit_session_has_id(Manager *m, const char *id) {
        Operation *o;

        for (size_t i = 0; (o = strmap_next(m->operations, &i));)
                if (o->session && o->state == OPERATION_RUNNING && streq(o->views[0].id, id))
                        return true;
        return false;
}

bool edit_session_has_unit(Manager *m, const char *unit) {
        Operation *o;

        for (size_t i = 0; (o = strmap_next(m->operations, &i));)
                if (o->session && o->state == OPERATION_RUNNING && o->unit && streq(unit_name(o->unit), unit))
                        return true;
        return false;
}
