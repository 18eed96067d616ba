/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include <grp.h>
#include <pwd.h>

#include "basic/name-util.h"
#include "basic/string-util.h"
#include "bus-util.h"
#include "retention.h"

int user_name_from_uid(uid_t uid, char **ret) {
        struct passwd pw, *p = NULL;
        char buf[4096], *name;

        if (getpwuid_r(uid, &pw, buf, sizeof buf, &p) == 0 && p && token_name_is_valid(p->pw_name))
                name = strdup(p->pw_name);
        else
                name = strprintf("%u", (unsigned) uid);
        if (!name)
                return -ENOMEM;
        *ret = name;
        return 0;
}

int uid_from_user_name(const char *name, uid_t *ret) {
        struct passwd pw, *p = NULL;
        char buf[4096];
        uint64_t n;

        if (!token_name_is_valid(name))
                return -ENOENT;
        if (getpwnam_r(name, &pw, buf, sizeof buf, &p) == 0 && p) {
                *ret = p->pw_uid;
                return 0;
        }
        if (parse_uint64(name, &n) >= 0 && n < UINT32_MAX) {
                *ret = (uid_t) n;
                return 0;
        }
        return -ENOENT;
}

int bus_sender_user(sd_bus_message *m, uid_t *ret_uid, char **ret_name) {
        uid_t uid;
        int r;

        r = bus_sender_euid(m, &uid);
        if (r < 0)
                return r;
        r = user_name_from_uid(uid, ret_name);
        if (r < 0)
                return r;
        *ret_uid = uid;
        return 0;
}

int bus_list_open(sd_bus_message *msg, const char *contents, sd_bus_message **ret) {
        _cleanup_(sd_bus_message_unrefp) sd_bus_message *reply = NULL;
        int r;

        r = sd_bus_message_new_method_return(msg, &reply);
        if (r < 0)
                return r;
        r = sd_bus_message_open_container(reply, 'a', contents);
        if (r < 0)
                return r;
        *ret = TAKE_PTR(reply);
        return 0;
}

int bus_list_send(sd_bus_message *reply) {
        int r = sd_bus_message_close_container(reply);

        return r < 0 ? r : sd_bus_send(NULL, reply, NULL);
}

int bus_resolve_owned(Manager *m, sd_bus_message *msg, const char *ref, const char *action, sd_bus_error *e,
                      char **ret_user, uid_t *ret_uid, char **ret_name) {
        _cleanup_free_ char *user = NULL, *name = NULL;
        const char *slash = strchr(ref, '/');
        uid_t uid;
        int r;

        name = strdup(slash ? slash + 1 : ref);
        if (!name)
                return -ENOMEM;
        if (!object_name_is_valid(name))
                return sd_bus_error_set(
                        e, BUS_ERROR_INVALID_NAME,
                        "Not a valid name. Names are 1 to 63 of a-z 0-9 . _ - and begin with a letter or "
                        "digit; another user's are written USER/NAME.");
        if (slash) {
                user = strndup(ref, (size_t) (slash - ref));
                if (!user)
                        return -ENOMEM;
                if (!token_name_is_valid(user))
                        return sd_bus_error_set(e, BUS_ERROR_INVALID_NAME,
                                                "What is before the \"/\" is no user's name.");
                r = uid_from_user_name(user, &uid);
                if (r < 0)
                        uid = (uid_t) -1; /* to be told only to those who may ask about anybody */
        } else {
                r = bus_sender_user(msg, &uid, &user);
                if (r < 0)
                        return r;
        }
        {
                const char *const details[] = { "user", user, "name", name, NULL };

                r = bus_verify_async(m->polkit, msg, action, details, uid, e);
                if (r <= 0)
                        return r;
        }
        if (uid == (uid_t) -1)
                return sd_bus_error_setf(e, BUS_ERROR_NO_SUCH_AGENT, "There is no user \"%s\".", user);
        if (ret_user)
                *ret_user = TAKE_PTR(user);
        if (ret_uid)
                *ret_uid = uid;
        if (ret_name)
                *ret_name = TAKE_PTR(name);
        return 1;
}

int bus_resolve_one_or_all(Manager *m, sd_bus_message *msg, const char *ref, const char *action, sd_bus_error *e,
                           char **ret_user, char **ret_name) {
        _cleanup_free_ char *user = NULL;
        uid_t uid;
        int r;

        if (!isempty(ref))
                return bus_resolve_owned(m, msg, ref, action, e, ret_user, NULL, ret_name);
        r = bus_sender_user(msg, &uid, &user);
        if (r < 0)
                return r;
        r = bus_verify_async(m->polkit, msg, action, NULL, uid, e);
        if (r > 0)
                *ret_user = uid == 0 ? NULL : TAKE_PTR(user);
        return r;
}

int bus_resolve_run(Manager *m, sd_bus_message *msg, const char *id, const char *action, sd_bus_error *e,
                    StoreRun **ret) {
        _cleanup_(store_run_freep) StoreRun *row = NULL;
        int r;

        if (!run_id_is_valid(id))
                return sd_bus_error_set(e, BUS_ERROR_NO_SUCH_RUN, "Not a run's id, which has 32 hexadecimal digits.");
        r = store_run_get(m->store, id, &row);
        if (r == -ENOENT)
                return sd_bus_error_setf(e, BUS_ERROR_NO_SUCH_RUN, "There is no run %s.", id);
        if (r < 0)
                return bus_store_error(m, e, r);
        {
                const char *const details[] = { "user", row->user, "agent", row->agent, "run", row->id, NULL };

                r = bus_verify_owner(m, msg, action, details, row->uid, row->user, e);
                if (r <= 0)
                        return r;
        }
        *ret = TAKE_PTR(row);
        return 1;
}

/* Whether SENDER, a uid, still has the name under which something was made: numbers are given to others when their user
 * has gone, those of dynamic users within a day. */
static bool is_still(uid_t sender, const char *user) {
        _cleanup_free_ char *name = NULL;

        return user_name_from_uid(sender, &name) >= 0 && streq_ptr(name, user);
}

int bus_verify_owner(Manager *m, sd_bus_message *msg, const char *action, const char *const *details, uid_t uid,
                     const char *user, sd_bus_error *e) {
        uid_t sender;
        int r;

        r = bus_sender_euid(msg, &sender);
        if (r >= 0 && sender == uid && uid != 0 && !is_still(sender, user))
                uid = (uid_t) -1;
        return bus_verify_async(m->polkit, msg, action, details, uid, e);
}

bool bus_may_read(sd_bus *bus, uid_t uid, const char *user) {
        sd_bus_message *m = sd_bus_get_current_message(bus);
        uid_t sender;
        uint8_t type;

        /* Our own signals are put together outside of a call: they name properties, values are not in them. */
        if (!m || sd_bus_message_get_type(m, &type) < 0 || type != SD_BUS_MESSAGE_METHOD_CALL ||
            !sd_bus_message_get_sender(m))
                return true;
        if (bus_sender_euid(m, &sender) < 0)
                return false;
        return sender == 0 || (sender == uid && is_still(sender, user));
}

int bus_check_number(Manager *m, sd_bus_error *e, uid_t uid, int n, int max, const char *what) {
        if (n < 0)
                return bus_store_error(m, e, n);
        if (uid != 0 && n >= max)
                return sd_bus_error_setf(e, SD_BUS_ERROR_LIMITS_EXCEEDED,
                                         "One user may keep %d %s. Remove some that are not needed.", max, what);
        return 0;
}

int bus_check_room(Manager *m, sd_bus_error *e, uid_t uid, const char *user, BusDefined what, const char *text,
                   const char *old) {
        const size_t before = old ? strlen(old) : 0, after = strlen(text);
        const char *name = what == BUS_AGENTS ? "agents" : "services";
        const unsigned max = what == BUS_AGENTS ? BUS_AGENTS_MAX : BUS_SERVICES_MAX;
        uint64_t n, size;
        StoreOwned o;
        int r;

        r = store_owned(m->store, user, &o);
        if (r < 0)
                return bus_store_error(m, e, r);
        if (uid == 0)
                return 0;
        n = what == BUS_AGENTS ? o.agents : o.services;
        size = what == BUS_AGENTS ? o.agents_size : o.services_size;
        if (!old && n >= max)
                return sd_bus_error_setf(e, SD_BUS_ERROR_LIMITS_EXCEEDED,
                                         "One user may keep %u %s. Remove some that are not needed.", max, name);
        /* Who is beyond it already may make it less. */
        if (after > before && size + (after - before) > BUS_DEFINITIONS_SIZE_MAX)
                return sd_bus_error_setf(e, SD_BUS_ERROR_LIMITS_EXCEEDED,
                                         "The definitions of one user's %s may have %u MiB together. Remove some that "
                                         "are not needed; what is large belongs in the environment.",
                                         name, BUS_DEFINITIONS_SIZE_MAX >> 20);
        return 0;
}

int bus_store_error(Manager *m, sd_bus_error *e, int r) {
        switch (r) {
        case -ENOSPC:
        case -EDQUOT:
                retention_look(m);
                return sd_bus_error_set(
                        e, BUS_ERROR_NO_SPACE, retention_check_space(m) < 0 ?
                        "The disk of this host has less free space than agentd leaves to others (KeepFree= in "
                        "agentd.conf); nothing was changed. Make room, for example with \"agentctl env prune\" "
                        "or \"agentctl prune-runs\", and try again." :
                        "The disk of the store is full; nothing was changed. Make room, for example with "
                        "\"agentctl env prune\", and try again.");
        case -EIO:
        case -EUCLEAN:
        case -EROFS:
                log_error_errno(r, "Store: %s", store_error(m->store));
                return sd_bus_error_setf(e, SD_BUS_ERROR_FAILED, "The store cannot be used: %s", store_error(m->store));
        case -EAGAIN:
                return sd_bus_error_set(e, SD_BUS_ERROR_TIMEOUT, "The store is locked by another process; try again.");
        default:
                return sd_bus_error_set_errno(e, r);
        }
}

int agent_object_path(const char *user, const char *name, char **ret) {
        return sd_bus_path_encode_many(ret, BUS_PATH "/agent/%/%", user, name);
}

int run_object_path(const char *id, char **ret) {
        char *p = strprintf(BUS_PATH "/run/%s", id);

        if (!p)
                return -ENOMEM;
        *ret = p;
        return 0;
}

bool bus_note_is_valid(const char *s) {
        return strlen(s) <= 1024 && !string_has_cc(s);
}

bool bus_bridge_is_away(const sd_bus_error *e) {
        return sd_bus_error_has_names(e, SD_BUS_ERROR_NO_REPLY, SD_BUS_ERROR_DISCONNECTED, SD_BUS_ERROR_TIMEOUT,
                                      SD_BUS_ERROR_SERVICE_UNKNOWN, SD_BUS_ERROR_NAME_HAS_NO_OWNER,
                                      "org.freedesktop.systemd1.ShuttingDown",
                                      "org.freedesktop.DBus.Error.Spawn.ChildExited",
                                      "org.freedesktop.DBus.Error.NoReply") > 0;
}
