/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The Manager's methods about edits: sessions in a terminal or on pipes, and their end without a freeze. */
#include <fcntl.h>
#include <stdlib.h>

#include "basic/string-util.h"
#include "bus-util.h"
#include "edit.h"
#include "operation.h"

#define COMMAND_ARGS_MAX 1024U

static bool term_is_valid(const char *s) {
        size_t n = strlen(s);

        return n > 0 && n <= 64 &&
                strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.+-_") == n;
}

static int read_options(sd_bus_message *msg, const char **ret_term, sd_bus_error *e) {
        const char *key;
        int r;

        r = sd_bus_message_enter_container(msg, 'a', "{sv}");
        if (r < 0)
                return r;
        while ((r = sd_bus_message_enter_container(msg, 'e', "sv")) > 0) {
                r = sd_bus_message_read(msg, "s", &key);
                if (r < 0)
                        return r;
                if (!streq(key, "term"))
                        return sd_bus_error_setf(e, BUS_ERROR_INVALID_OPTION,
                                                 "There is no option \"%.64s\". The option is term.", key);
                if (sd_bus_message_read(msg, "v", "s", ret_term) < 0 || !term_is_valid(*ret_term))
                        return sd_bus_error_set(e, BUS_ERROR_INVALID_OPTION,
                                                "Option term must be the name of a type of terminal.");
                r = sd_bus_message_exit_container(msg);
                if (r < 0)
                        return r;
        }
        return r;
}

/* An agent of which the sender may begin, or go on with, an edit. >0 go on. */
static int resolve_edit(Manager *m, sd_bus_message *msg, char **ret_user, char **ret_name, Edit **ret, sd_bus_error *e) {
        _cleanup_free_ char *user = NULL, *name = NULL, *holder = NULL;
        _cleanup_(store_agent_freep) StoreAgent *a = NULL;
        const char *agent;
        uid_t uid, sender;
        Edit *edit;
        int r;

        r = sd_bus_message_read(msg, "s", &agent);
        if (r < 0)
                return r;
        r = bus_resolve_owned(m, msg, agent, POLKIT_ACTION_MANAGE, e, &user, &uid, &name);
        if (r <= 0)
                return r;
        r = bus_sender_user(msg, &sender, &holder);
        if (r < 0)
                return r;
        r = store_agent_get(m->store, user, name, &a);
        if (r == -ENOENT)
                return sd_bus_error_setf(e, BUS_ERROR_NO_SUCH_AGENT, "%s has no agent \"%s\".", user, name);
        if (r < 0)
                return bus_store_error(m, e, r);
        edit = edit_find(m, user, name);
        if (edit && edit->operation)
                return sd_bus_error_setf(e, BUS_ERROR_EDIT_IN_USE,
                                         "The environment of \"%s\" is being %s by %s already (operation %s).", name,
                                         edit->operation->kind == OPERATION_FREEZE ? "frozen" : "edited",
                                         strempty(edit->operation->holder), edit->operation->id);
        r = edit_open(m, user, name, holder, &edit);
        if (r < 0)
                return bus_store_error(m, e, r);
        *ret_user = TAKE_PTR(user);
        *ret_name = TAKE_PTR(holder);
        *ret = edit;
        return 1;
}

static int read_command(sd_bus_message *msg, char ***ret, sd_bus_error *e) {
        int r;

        r = sd_bus_message_read_strv(msg, ret);
        if (r < 0)
                return r;
        if (strv_length(*ret) > COMMAND_ARGS_MAX || (*ret && (*ret)[0] && isempty((*ret)[0])))
                return sd_bus_error_set(e, BUS_ERROR_INVALID_OPTION, "That is no command.");
        return 0;
}

static int uid_of(Manager *m, const Edit *edit, uid_t *ret) {
        _cleanup_(store_agent_freep) StoreAgent *a = NULL;
        int r;

        r = store_agent_get(m->store, edit->user, edit->agent, &a);
        if (r >= 0)
                *ret = a->uid;
        return r;
}

int method_edit_environment(sd_bus_message *msg, void *userdata, sd_bus_error *e) {
        _cleanup_free_ char *user = NULL, *holder = NULL;
        _cleanup_strv_free_ char **command = NULL;
        const char *term = NULL;
        Manager *m = userdata;
        Edit *edit;
        int fds[3], r;
        uid_t uid;

        r = resolve_edit(m, msg, &user, &holder, &edit, e);
        if (r <= 0)
                return r < 0 ? r : 1;
        r = read_command(msg, &command, e);
        if (r >= 0)
                r = sd_bus_message_read(msg, "hhh", &fds[0], &fds[1], &fds[2]);
        if (r >= 0)
                r = read_options(msg, &term, e);
        if (r >= 0)
                r = uid_of(m, edit, &uid);
        if (r < 0)
                return r;
        return operation_start_and_reply(m, msg,
                                         &(OperationRequest) { .kind = OPERATION_EDIT,
                                                               .subject = edit->agent,
                                                               .user = user,
                                                               .uid = uid,
                                                               .input_fd = -EBADF,
                                                               .sandbox_uid = (uid_t) -1,
                                                               .edit = edit,
                                                               .holder = holder,
                                                               .command = command,
                                                               .term = term,
                                                               .stdio = fds },
                                         e);
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
        _cleanup_free_ char *user = NULL, *holder = NULL, *path = NULL;
        _cleanup_close_ int master = -EBADF, slave = -EBADF;
        _cleanup_strv_free_ char **command = NULL;
        const char *term = NULL;
        Manager *m = userdata;
        Operation *o;
        Edit *edit;
        uid_t uid;
        int r;

        r = resolve_edit(m, msg, &user, &holder, &edit, e);
        if (r <= 0)
                return r < 0 ? r : 1;
        r = read_command(msg, &command, e);
        if (r >= 0)
                r = read_options(msg, &term, e);
        if (r >= 0)
                r = uid_of(m, edit, &uid);
        if (r >= 0)
                r = open_terminal(&master, &path, &slave);
        if (r < 0)
                return r;
        r = operation_start(m,
                            &(OperationRequest) { .kind = OPERATION_EDIT,
                                                  .subject = edit->agent,
                                                  .user = user,
                                                  .uid = uid,
                                                  .input_fd = slave,
                                                  .sandbox_uid = (uid_t) -1,
                                                  .edit = edit,
                                                  .holder = holder,
                                                  .command = command,
                                                  .term = term,
                                                  .tty = path },
                            &o);
        if (r == -EUSERS)
                return sd_bus_error_set(e, BUS_ERROR_TOO_MANY_OPERATIONS,
                                        "Too many operations are under way. Wait for one to end.");
        if (r < 0)
                return bus_store_error(m, e, r);
        return sd_bus_reply_method_return(msg, "oh", o->path, master);
}

int method_discard_edit(sd_bus_message *msg, void *userdata, sd_bus_error *e) {
        _cleanup_free_ char *user = NULL, *name = NULL;
        Manager *m = userdata;
        const char *agent;
        Edit *edit;
        int r;

        r = sd_bus_message_read(msg, "s", &agent);
        if (r < 0)
                return r;
        r = bus_resolve_owned(m, msg, agent, POLKIT_ACTION_MANAGE, e, &user, NULL, &name);
        if (r <= 0)
                return r < 0 ? r : 1;
        edit = edit_find(m, user, name);
        if (!edit)
                return sd_bus_error_setf(e, BUS_ERROR_NO_SUCH_EDIT, "The environment of \"%s\" is not being edited.", name);
        r = edit_discard(edit);
        if (r == -EBUSY)
                return sd_bus_error_setf(e, BUS_ERROR_EDIT_IN_USE,
                                         "The environment of \"%s\" is in use by %s (operation %s). End that first.", name,
                                         strempty(edit->operation->holder), edit->operation->id);
        return r < 0 ? bus_store_error(m, e, r) : sd_bus_reply_method_return(msg, NULL);
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
