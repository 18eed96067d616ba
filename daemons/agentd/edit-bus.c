/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The Manager's methods about edits: sessions in a terminal or on pipes, and their end without a freeze. */
#include <fcntl.h>
#include <linux/major.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>

#include "basic/string-util.h"
#include "bus-util.h"
#include "edit-hosts.h"
#include "edit.h"
#include "operation.h"

#define COMMAND_ARGS_MAX 1024U

static bool term_is_valid(const char *s) {
        size_t n = strlen(s);

        return n > 0 && n <= 64 &&
                strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.+-_") == n;
}

typedef struct EditOptions {
        const char *term;
        char **asked; /* hosts */
        char **hosts; /* as resolved */
} EditOptions;

static void edit_options_done(EditOptions *o) {
        strv_free(o->asked);
        strv_free(o->hosts);
}

/* Where the session may go: what is given to each, and what its user asked for, if that is for the user to say. */
static int take_hosts(Manager *m, uid_t sender, EditOptions *o, sd_bus_error *e) {
        const char *bad = NULL;
        int r;

        r = edit_hosts_resolve(m->settings->edit_hosts, o->asked, &o->hosts, &bad);
        if (r == -EINVAL)
                return sd_bus_error_setf(e, BUS_ERROR_INVALID_OPTION,
                                         "\"%.253s\" is no HOST, HOST:PORT or *.DOMAIN (names only, no addresses).",
                                         bad);
        if (r == -E2BIG)
                return sd_bus_error_set(e, BUS_ERROR_INVALID_OPTION, "Too many hosts are named.");
        if (r < 0)
                return r;
        if (sender != 0 && !m->settings->edit_other_hosts) {
                const char *beyond = edit_hosts_beyond(o->hosts, m->settings->edit_hosts);

                if (beyond)
                        return sd_bus_error_setf(e, SD_BUS_ERROR_ACCESS_DENIED,
                                                 "The administrator does not let users name other hosts "
                                                 "(AllowOtherHosts=), and \"%s\" is not among those of AllowHosts=.",
                                                 beyond);
        }
        return 0;
}

static int read_options(Manager *m, sd_bus_message *msg, EditOptions *o, sd_bus_error *e) {
        static const BusOption options[] = {
                { "term", "the name of a type of terminal", bus_option_string, offsetof(EditOptions, term),
                  .is_valid = term_is_valid },
                { "allow-hosts", "an array of not too many strings", bus_option_strings,
                  offsetof(EditOptions, asked) },
                {}
        };
        _cleanup_free_ char *name = NULL;
        uid_t sender;
        int r;

        r = bus_read_options(msg, options, o, e);
        if (r >= 0)
                r = bus_sender_user(msg, &sender, &name);
        return r < 0 ? r : take_hosts(m, sender, o, e);
}

typedef struct EditCall {
        char *user, *name, *holder;
        uid_t uid; /* the agent's owner */
        bool fresh; /* its edit begins with this call */
        char **command;
        EditOptions options;
} EditCall;

static void edit_call_done(EditCall *c) {
        free(c->user);
        free(c->name);
        free(c->holder);
        strv_free(c->command);
        edit_options_done(&c->options);
}

int edit_in_use(const Edit *edit, sd_bus_error *e) {
        const Operation *o = edit->operation;
        time_t begun = (time_t) (o->begun_usec / USEC_PER_SEC);
        char since[32];
        struct tm tm;

        strftime(since, sizeof since, "%Y-%m-%d %H:%M:%S UTC", gmtime_r(&begun, &tm));
        if (o->kind == OPERATION_FREEZE)
                return sd_bus_error_setf(e, BUS_ERROR_EDIT_IN_USE,
                                         "The environment of \"%s\" is being frozen by %s since %s (operation %s).",
                                         edit->agent, strempty(o->holder), since, o->id);
        return sd_bus_error_setf(e, BUS_ERROR_EDIT_IN_USE,
                                 "The environment of \"%s\" is being edited by %s since %s (operation %s). "
                                 "\"agentctl env close\" ends that session; what it has changed stays.", edit->agent,
                                 strempty(o->holder), since, o->id);
}

/* An agent of which the sender may begin, or go on with, an edit. >0 go on. */
static int read_agent(Manager *m, sd_bus_message *msg, EditCall *c, sd_bus_error *e) {
        _cleanup_(store_agent_freep) StoreAgent *a = NULL;
        const char *agent;
        uid_t sender;
        Edit *edit;
        int r;

        r = sd_bus_message_read(msg, "s", &agent);
        if (r < 0)
                return r;
        r = bus_resolve_owned(m, msg, agent, POLKIT_ACTION_MANAGE, e, &c->user, &c->uid, &c->name);
        if (r <= 0)
                return r;
        r = bus_sender_user(msg, &sender, &c->holder);
        if (r < 0)
                return r;
        r = store_agent_get(m->store, c->user, c->name, &a);
        if (r == -ENOENT)
                return sd_bus_error_setf(e, BUS_ERROR_NO_SUCH_AGENT, "%s has no agent \"%s\".", c->user, c->name);
        if (r < 0)
                return bus_store_error(m, e, r);
        c->uid = a->uid;
        edit = edit_find(m, c->user, c->name);
        c->fresh = !edit;
        return edit && edit->operation ? edit_in_use(edit, e) : 1;
}

static int read_command(sd_bus_message *msg, char ***ret, sd_bus_error *e) {
        int r;

        r = bus_read_strings(msg, ret);
        if (r == -E2BIG)
                return sd_bus_error_set(e, BUS_ERROR_INVALID_OPTION, "The command is too long.");
        if (r < 0)
                return r;
        if (strv_length(*ret) > COMMAND_ARGS_MAX || (*ret && (*ret)[0] && isempty((*ret)[0])))
                return sd_bus_error_set(e, BUS_ERROR_INVALID_OPTION, "That is no command.");
        return 0;
}

/* When all of the call is known to be right: nothing is begun by a call that is refused. */
static int request(Manager *m, EditCall *c, OperationRequest *ret, sd_bus_error *e) {
        Edit *edit;
        int r = 0;

        if (c->fresh)
                r = bus_check_number(m, e, c->uid, (int) edits_count(m, c->user), (int) m->settings->edit_max_per_user,
                                     "edits (agentctl env freeze, or discard)");
        if (r < 0)
                return r;
        r = edit_open(m, c->user, c->name, c->holder, &edit);
        if (r < 0)
                return bus_store_error(m, e, r);
        *ret = (OperationRequest) { .kind = OPERATION_EDIT, .subject = edit->agent, .user = c->user, .uid = c->uid,
                                    .input_fd = -EBADF, .sandbox_uid = (uid_t) -1, .edit = edit, .holder = c->holder,
                                    .command = c->command, .term = c->options.term, .hosts = c->options.hosts };
        return 0;
}

static void take_back(const EditCall *c, Edit *edit) {
        if (c->fresh && edit_discard(edit) < 0)
                log_warning("The edit of %s, in which no session could be opened, stays.", edit->key);
}

/*
 * Nothing by which root of the session could give away what it has open in there: whoever holds a directory of it could
 * change the tree under a freeze or under the next session, when those who look at it are more than root of a session.
 * So no Unix sockets, no directories (sockets may be in them), no devices but terminals and those of memory, nothing
 * without a type. The fd may be of a file system that does not answer, and then we must not ask it.
 */
static int check_stdio(int fd, sd_bus_error *e) {
        int flags = fcntl(fd, F_GETFL);
        struct statx st;

        if (flags < 0 || (flags & O_PATH) ||
            statx(fd, "", AT_EMPTY_PATH | AT_NO_AUTOMOUNT | AT_STATX_DONT_SYNC, STATX_TYPE, &st) < 0)
                goto refuse;
        switch (st.stx_mode & S_IFMT) {
        case S_IFIFO:
        case S_IFREG:
                return 0;
        case S_IFCHR:
                if (st.stx_rdev_major == MEM_MAJOR || st.stx_rdev_major == TTY_MAJOR ||
                    st.stx_rdev_major == TTYAUX_MAJOR || (st.stx_rdev_major >= UNIX98_PTY_SLAVE_MAJOR &&
                     st.stx_rdev_major < UNIX98_PTY_SLAVE_MAJOR + UNIX98_PTY_MAJOR_COUNT))
                        return 0;
                break;
        }
refuse:
        return sd_bus_error_set(e, SD_BUS_ERROR_INVALID_ARGS,
                                "A session takes pipes, files and terminals, and neither sockets nor directories.");
}

int method_edit_environment(sd_bus_message *msg, void *userdata, sd_bus_error *e) {
        _cleanup_(edit_call_done) EditCall c = {};
        OperationRequest q;
        Manager *m = userdata;
        int fds[3], r;

        r = read_agent(m, msg, &c, e);
        if (r <= 0)
                return r < 0 ? r : 1;
        r = read_command(msg, &c.command, e);
        if (r >= 0)
                r = sd_bus_message_read(msg, "hhh", &fds[0], &fds[1], &fds[2]);
        for (size_t i = 0; r >= 0 && i < ELEMENTSOF(fds); i++)
                r = check_stdio(fds[i], e);
        if (r >= 0)
                r = read_options(m, msg, &c.options, e);
        if (r >= 0)
                r = request(m, &c, &q, e);
        if (r < 0)
                return r;
        q.stdio = fds;
        r = operation_start_and_reply(m, msg, &q, e);
        if (r < 0)
                take_back(&c, q.edit);
        return r;
}

static int open_terminal(int *ret_master, char **ret_path, int *ret_slave) {
        _cleanup_close_ int master = -EBADF, slave = -EBADF;
        char path[64];

        master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
        if (master < 0 || unlockpt(master) < 0 || ptsname_r(master, path, sizeof path) != 0)
                return -errno;
        slave = open(path, O_RDWR | O_NOCTTY | O_CLOEXEC);
        if (slave < 0)
                return -errno;
        *ret_path = strdup(path);
        if (!*ret_path)
                return -ENOMEM;
        *ret_master = TAKE_FD(master);
        *ret_slave = TAKE_FD(slave);
        return 0;
}

int method_open_edit_terminal(sd_bus_message *msg, void *userdata, sd_bus_error *e) {
        _cleanup_close_ int master = -EBADF, slave = -EBADF;
        _cleanup_(edit_call_done) EditCall c = {};
        _cleanup_free_ char *path = NULL;
        OperationRequest q;
        Manager *m = userdata;
        Operation *o;
        int r;

        r = read_agent(m, msg, &c, e);
        if (r <= 0)
                return r < 0 ? r : 1;
        r = read_command(msg, &c.command, e);
        if (r >= 0)
                r = read_options(m, msg, &c.options, e);
        if (r >= 0)
                r = open_terminal(&master, &path, &slave);
        if (r >= 0)
                r = request(m, &c, &q, e);
        if (r < 0)
                return r;
        q.input_fd = slave;
        q.tty = path;
        r = operation_start(m, &q, &o);
        if (r < 0)
                take_back(&c, q.edit);
        if (r == -EUSERS)
                return sd_bus_error_set(e, BUS_ERROR_TOO_MANY_OPERATIONS,
                                        "Too many operations are under way. Wait for one to end.");
        if (r < 0)
                return bus_store_error(m, e, r);
        return sd_bus_reply_method_return(msg, "oh", o->path, master);
}

/* The agent's edit, which the sender may manage. >0 go on. */
static int resolve_edit(Manager *m, sd_bus_message *msg, Edit **ret, sd_bus_error *e) {
        _cleanup_free_ char *user = NULL, *name = NULL;
        const char *agent;
        int r;

        r = sd_bus_message_read(msg, "s", &agent);
        if (r < 0)
                return r;
        r = bus_resolve_owned(m, msg, agent, POLKIT_ACTION_MANAGE, e, &user, NULL, &name);
        if (r <= 0)
                return r;
        *ret = edit_find(m, user, name);
        if (!*ret)
                return sd_bus_error_setf(e, BUS_ERROR_NO_SUCH_EDIT, "The environment of \"%s\" is not being edited.",
                                         name);
        return 1;
}

int method_discard_edit(sd_bus_message *msg, void *userdata, sd_bus_error *e) {
        Manager *m = userdata;
        Edit *edit;
        int r;

        r = resolve_edit(m, msg, &edit, e);
        if (r <= 0)
                return r < 0 ? r : 1;
        r = edit_discard(edit);
        if (r == -EBUSY)
                return edit_in_use(edit, e);
        return r < 0 ? bus_store_error(m, e, r) : sd_bus_reply_method_return(msg, NULL);
}

int method_close_edit(sd_bus_message *msg, void *userdata, sd_bus_error *e) {
        _cleanup_free_ char *sender = NULL;
        Manager *m = userdata;
        uid_t uid;
        Edit *edit;
        int r;

        r = resolve_edit(m, msg, &edit, e);
        if (r <= 0)
                return r < 0 ? r : 1;
        if (!edit->operation || edit->operation->kind != OPERATION_EDIT)
                return sd_bus_error_setf(e, BUS_ERROR_NO_SUCH_EDIT, "No session is open in the edit of \"%s\".",
                                         edit->agent);
        r = bus_sender_user(msg, &uid, &sender);
        if (r < 0)
                return r;
        log_info("The session of %s in the edit of %s is closed by %s.", strempty(edit->operation->holder), edit->key,
                 sender);
        operation_cancel(edit->operation);
        return sd_bus_reply_method_return(msg, "o", edit->operation->path);
}

int method_list_edits(sd_bus_message *msg, void *userdata, sd_bus_error *e) {
        _cleanup_(sd_bus_message_unrefp) sd_bus_message *reply = NULL;
        _cleanup_free_ char *user = NULL;
        Manager *m = userdata;
        Edit *edit;
        uid_t uid;
        int r;

        r = bus_sender_user(msg, &uid, &user);
        if (r >= 0)
                r = bus_list_open(msg, "(ssstsb)", &reply);
        for (size_t i = 0; r >= 0 && (edit = strmap_next(m->edits, &i));)
                if (uid == 0 || streq(edit->user, user))
                        r = sd_bus_message_append(reply, "(ssstsb)", edit->user, edit->agent, edit->holder,
                                                  edit->created_usec, edit->generation, edit->operation != NULL);
        return r < 0 ? r : bus_list_send(reply);
}
