/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * org.agentd1.Credentials: the way in. A secret comes as a file descriptor and is read in the event loop into
 * locked memory, with a bound on its size and on the time that its sender may take. No method and no error
 * ever holds one.
 */

#include <pwd.h>
#include <sys/stat.h>
#include <sys/uio.h>

#include "basic/fs-util.h"
#include "basic/log.h"
#include "basic/name-util.h"
#include "basic/string-util.h"
#include "bus/bus-error.h"
#include "credentiald.h"

#define BUS_NAME "org.agentd1.Credentials"
#define OBJECT_PATH "/org/agentd1/Credentials"

/* Each waits for its sender. Root's are counted apart. */
#define OPERATIONS_MAX 32U
#define OPERATIONS_MAX_PER_USER 4U
#define READ_USEC_MAX (30 * USEC_PER_SEC)

struct SetOperation {
        Credentiald *daemon; /* weak */
        SetOperation *next;

        sd_bus_message *message; /* replied to at the latest in set_operation_free() */
        uid_t sender;
        char *user, *service;
        int fd;
        Secret *buffer;
        size_t size;
        sd_event_source *io, *timer;
};

/* The delayed reply has one owner: whoever forgets to reply has replied with this. */
static SetOperation *set_operation_free(SetOperation *o) {
        if (!o)
                return NULL;

        if (o->message) {
                (void) sd_bus_reply_method_errorf(o->message, SD_BUS_ERROR_FAILED, "The credential was not stored.");
                sd_bus_message_unref(o->message);
        }
        if (o->daemon) {
                for (SetOperation **p = &o->daemon->operations; *p; p = &(*p)->next)
                        if (*p == o) {
                                *p = o->next;
                                o->daemon->n_operations--;
                                break;
                        }
        }
        sd_event_source_disable_unref(o->io);
        sd_event_source_disable_unref(o->timer);
        safe_close(o->fd);
        secret_free(o->buffer);
        free(o->user);
        free(o->service);
        return mfree(o);
}
DEFINE_CLEANUP(SetOperation *, set_operation_free);

static void set_operation_reply(SetOperation *o, const sd_bus_error *e) {
        sd_bus_message *m = TAKE_PTR(o->message);
        int r;

        r = e ? sd_bus_reply_method_error(m, e) : sd_bus_reply_method_return(m, NULL);
        if (r < 0)
                log_warning_errno(r, "Failed to reply to SetCredential: %m");
        sd_bus_message_unref(m);
        set_operation_free(o);
}

_printf_(3, 4) static void set_operation_fail(SetOperation *o, const char *name, const char *format, ...) {
        sd_bus_error e = SD_BUS_ERROR_NULL;
        va_list ap;

        va_start(ap, format);
        (void) sd_bus_error_setfv(&e, name, format, ap);
        va_end(ap);
        set_operation_reply(o, &e);
        sd_bus_error_free(&e);
}

static void set_operation_store(SetOperation *o) {
        const char *reason = "it cannot be read";
        SealForm form;
        int r;

        secret_truncate(o->buffer, o->size);
        r = credential_check(o->buffer, &form, &reason);
        if (r < 0) {
                set_operation_fail(o, BUS_ERROR_INVALID_CREDENTIAL, "The credential is not valid: %s.", reason);
                return;
        }

        r = credential_store_set(o->daemon->store, o->user, o->service, form, o->buffer);
        if (r == -EDQUOT) {
                set_operation_fail(o, SD_BUS_ERROR_LIMITS_EXCEEDED, "The user has too many credentials.");
                return;
        }
        if (r < 0) {
                log_error_errno(r, "Failed to store the credential of service %s of user %s: %m", o->service, o->user);
                set_operation_fail(o, SD_BUS_ERROR_FAILED, "The credential could not be stored.");
                return;
        }

        token_cache_forget(o->daemon->tokens, o->user, o->service);
        log_info("Stored the credential of service %s of user %s.", o->service, o->user);
        set_operation_reply(o, NULL);
}

/* O_NONBLOCK would be no help: who sent us the fd has it as well, and can take that off, and the bytes before we do. */
static ssize_t read_nowait(int fd, void *buf, size_t size) {
        const struct iovec iov = { .iov_base = buf, .iov_len = size };
        ssize_t n = preadv2(fd, &iov, 1, -1, RWF_NOWAIT);

        return n < 0 && errno == EOPNOTSUPP ? read(fd, buf, size) : n; /* an old kernel's */
}

/* One read. 1 at the end, 0 when there may be more later. */
static int set_operation_read(SetOperation *o) {
        char *p = secret_buffer(o->buffer) + o->size, more;
        size_t room = secret_size(o->buffer) - o->size;
        void *to = room > 0 ? p : &more;
        ssize_t n;

        n = o->io ? read_nowait(o->fd, to, MAX(room, (size_t) 1)) : read(o->fd, to, MAX(room, (size_t) 1));
        if (n < 0)
                return errno == EAGAIN || errno == EINTR ? 0 : -errno;
        if (n == 0)
                return 1;
        if (room == 0) {
                explicit_bzero(&more, sizeof(more));
                return -EFBIG;
        }
        o->size += (size_t) n;
        return 0;
}

static void set_operation_read_failed(SetOperation *o, int r) {
        if (r == -EFBIG)
                set_operation_fail(o, BUS_ERROR_INPUT_TOO_LARGE, "The credential is larger than %zu bytes.",
                                   SECRET_SIZE_MAX);
        else
                set_operation_fail(o, BUS_ERROR_INVALID_CREDENTIAL, "The credential could not be read: %s.",
                                   strerror(-r));
}

static int on_readable(sd_event_source *s, int fd, uint32_t revents, void *userdata) {
        SetOperation *o = userdata;
        int r;

        r = set_operation_read(o);
        if (r < 0)
                set_operation_read_failed(o, r);
        else if (r > 0)
                set_operation_store(o);
        return 0;
}

static int on_timeout(sd_event_source *s, uint64_t usec, void *userdata) {
        set_operation_fail(userdata, SD_BUS_ERROR_TIMEOUT,
                           "The credential did not end within %u seconds: close the pipe.",
                           (unsigned) (READ_USEC_MAX / USEC_PER_SEC));
        return 0;
}

/*
 * USER "" is the caller. The owner's uid is what may pass without polkit. Users are looked up and not only their
 * names' form: a credential for nobody would lie there for the first who gets that name.
 */
static int resolve_user(sd_bus_message *m, const char *user, char **ret_user, uid_t *ret_uid, sd_bus_error *e) {
        struct passwd *pw;
        uid_t uid;
        int r;

        if (isempty(user)) {
                r = bus_sender_euid(m, &uid);
                if (r < 0)
                        return sd_bus_error_setf(e, SD_BUS_ERROR_ACCESS_DENIED,
                                                 "Access denied: the caller cannot be identified.");
                pw = getpwuid(uid);
        } else {
                if (!user_name_is_safe(user))
                        return sd_bus_error_setf(e, BUS_ERROR_INVALID_NAME, "This is not the name of a user.");
                pw = getpwnam(user);
        }
        if (!pw || !user_name_is_safe(pw->pw_name))
                return sd_bus_error_setf(e, BUS_ERROR_INVALID_NAME, "There is no such user.");

        *ret_user = strdup(pw->pw_name);
        if (!*ret_user)
                return -ENOMEM;
        *ret_uid = pw->pw_uid;
        return 0;
}

static int check_service(const char *service, sd_bus_error *e) {
        if (!object_name_is_valid(service))
                return sd_bus_error_setf(e, BUS_ERROR_INVALID_NAME,
                                         "The name of a service has 1 to 63 of a-z, 0-9, '.', '_' and '-'.");
        return 0;
}

static int verify(Credentiald *c, sd_bus_message *m, const char *user, const char *service, uid_t uid,
                  sd_bus_error *e) {
        const char *details[] = { "user", user, "service", service, NULL };

        if (!service)
                details[2] = NULL;
        return bus_verify_async(c->polkit, m, POLKIT_ACTION_MANAGE_CREDENTIALS, details, uid, e);
}

/* A pipe or socket is read when it is readable. A memfd is read at once. Anything else could block us. */
static int take_secret_fd(int fd, bool *ret_poll, sd_bus_error *e) {
        _cleanup_close_ int copy = -EBADF;
        struct statx st;
        int flags;

        /* It may be of a file system that does not answer, and then we must not ask it. */
        flags = fcntl(fd, F_GETFL);
        if (flags < 0 || (flags & O_ACCMODE) == O_WRONLY || (flags & O_PATH) ||
            statx(fd, "", AT_EMPTY_PATH | AT_NO_AUTOMOUNT | AT_STATX_DONT_SYNC, STATX_TYPE, &st) < 0)
                return sd_bus_error_setf(e, BUS_ERROR_INVALID_CREDENTIAL, "The file descriptor is not readable.");

        if (S_ISREG(st.stx_mode)) {
                if (fcntl(fd, F_GET_SEALS) < 0)
                        return sd_bus_error_setf(e, BUS_ERROR_INVALID_CREDENTIAL,
                                                 "The file descriptor must be a pipe, a socket or a memfd.");
                copy = fcntl(fd, F_DUPFD_CLOEXEC, 3);
                if (copy < 0)
                        return -errno;
                /* Writers leave the offset at the end. */
                if (lseek(copy, 0, SEEK_SET) < 0)
                        return -errno;
                *ret_poll = false;
                return TAKE_FD(copy);
        }

        if (!S_ISFIFO(st.stx_mode) && !S_ISSOCK(st.stx_mode))
                return sd_bus_error_setf(e, BUS_ERROR_INVALID_CREDENTIAL,
                                         "The file descriptor must be a pipe, a socket or a memfd.");
        copy = fcntl(fd, F_DUPFD_CLOEXEC, 3);
        if (copy < 0)
                return -errno;
        *ret_poll = true;
        return TAKE_FD(copy);
}

static bool has_room(const Credentiald *c, uid_t sender) {
        unsigned n_all = 0, n_own = 0;

        for (const SetOperation *o = c->operations; o; o = o->next) {
                n_own += o->sender == sender;
                n_all += (o->sender == 0) == (sender == 0);
        }
        return n_all < OPERATIONS_MAX && (sender == 0 || n_own < OPERATIONS_MAX_PER_USER);
}

static int method_set_credential(sd_bus_message *m, void *userdata, sd_bus_error *e) {
        _cleanup_(set_operation_freep) SetOperation *o = NULL;
        _cleanup_free_ char *owner = NULL;
        const char *user, *service;
        Credentiald *c = userdata;
        uid_t uid, sender;
        bool poll;
        int fd, r;

        r = sd_bus_message_read(m, "ssh", &user, &service, &fd);
        if (r < 0)
                return r;
        r = check_service(service, e);
        if (r < 0)
                return r;
        r = resolve_user(m, user, &owner, &uid, e);
        if (r < 0)
                return r;
        r = verify(c, m, owner, service, uid, e);
        if (r < 0)
                return r;
        if (r == 0)
                return 1; /* will be called again */

        r = bus_sender_euid(m, &sender);
        if (r < 0)
                return r;
        if (!has_room(c, sender))
                return sd_bus_error_setf(e, SD_BUS_ERROR_LIMITS_EXCEEDED,
                                         "Too many credentials are being set, try again later.");

        o = calloc(1, sizeof(*o));
        if (!o)
                return -ENOMEM;
        o->fd = -EBADF;
        o->sender = sender;
        o->user = TAKE_PTR(owner);
        o->service = strdup(service);
        if (!o->service)
                return -ENOMEM;
        r = secret_new(SECRET_SIZE_MAX, &o->buffer);
        if (r < 0)
                return r;
        o->fd = take_secret_fd(fd, &poll, e);
        if (o->fd < 0)
                return o->fd;

        if (poll) {
                r = sd_event_add_io(c->event, &o->io, o->fd, EPOLLIN, on_readable, o);
                if (r < 0)
                        return r;
                r = sd_event_add_time_relative(c->event, &o->timer, CLOCK_MONOTONIC, READ_USEC_MAX, 0, on_timeout, o);
                if (r < 0)
                        return r;
        }

        o->daemon = c;
        o->next = c->operations;
        c->operations = o;
        c->n_operations++;
        o->message = sd_bus_message_ref(m);

        if (!poll) {
                SetOperation *p = TAKE_PTR(o);

                do
                        r = set_operation_read(p);
                while (r == 0);
                if (r < 0)
                        set_operation_read_failed(p, r);
                else
                        set_operation_store(p);
                return 1;
        }

        TAKE_PTR(o); /* owned by the list until its reply */
        return 1;
}

static int method_remove_credential(sd_bus_message *m, void *userdata, sd_bus_error *e) {
        _cleanup_free_ char *owner = NULL;
        const char *user, *service;
        Credentiald *c = userdata;
        uid_t uid;
        int r;

        r = sd_bus_message_read(m, "ss", &user, &service);
        if (r < 0)
                return r;
        r = check_service(service, e);
        if (r < 0)
                return r;
        r = resolve_user(m, user, &owner, &uid, e);
        if (r < 0)
                return r;
        r = verify(c, m, owner, service, uid, e);
        if (r < 0)
                return r;
        if (r == 0)
                return 1; /* will be called again */

        r = credential_store_remove(c->store, owner, service);
        token_cache_forget(c->tokens, owner, service);
        if (r == -ENOENT)
                return sd_bus_error_setf(e, BUS_ERROR_NO_SUCH_CREDENTIAL, "User %s has no credential for service %s.",
                                         owner, service);
        if (r < 0) {
                log_error_errno(r, "Failed to remove the credential of service %s of user %s: %m", service, owner);
                return r;
        }

        log_info("Removed the credential of service %s of user %s.", service, owner);
        return sd_bus_reply_method_return(m, NULL);
}

static int reply_list(sd_bus_message *m, const CredentialEntry *l, size_t n) {
        sd_bus_message *reply = NULL;
        int r;

        r = sd_bus_message_new_method_return(m, &reply);
        if (r < 0)
                return r;
        r = sd_bus_message_open_container(reply, 'a', "(sst)");
        for (size_t i = 0; r >= 0 && i < n; i++)
                r = sd_bus_message_append(reply, "(sst)", l[i].service, seal_form_to_string(l[i].info.form),
                                          l[i].info.version);
        if (r >= 0)
                r = sd_bus_message_close_container(reply);
        if (r >= 0)
                r = sd_bus_send(NULL, reply, NULL);
        sd_bus_message_unref(reply);
        return r;
}

static int method_list_credentials(sd_bus_message *m, void *userdata, sd_bus_error *e) {
        _cleanup_free_ char *owner = NULL;
        CredentialEntry *l = NULL;
        Credentiald *c = userdata;
        const char *user;
        size_t n = 0;
        uid_t uid;
        int r;

        r = sd_bus_message_read(m, "s", &user);
        if (r < 0)
                return r;
        r = resolve_user(m, user, &owner, &uid, e);
        if (r < 0)
                return r;
        r = verify(c, m, owner, NULL, uid, e);
        if (r < 0)
                return r;
        if (r == 0)
                return 1; /* will be called again */

        r = credential_store_list(c->store, owner, &l, &n);
        if (r < 0)
                return r;
        r = reply_list(m, l, n);
        credential_entries_free(l, n);
        return r;
}

static const sd_bus_vtable vtable[] = {
        SD_BUS_VTABLE_START(0),
        SD_BUS_METHOD_WITH_ARGS("SetCredential", SD_BUS_ARGS("s", user, "s", service, "h", fd), SD_BUS_NO_RESULT,
                                method_set_credential, SD_BUS_VTABLE_UNPRIVILEGED),
        SD_BUS_METHOD_WITH_ARGS("RemoveCredential", SD_BUS_ARGS("s", user, "s", service), SD_BUS_NO_RESULT,
                                method_remove_credential, SD_BUS_VTABLE_UNPRIVILEGED),
        SD_BUS_METHOD_WITH_ARGS("ListCredentials", SD_BUS_ARGS("s", user), SD_BUS_RESULT("a(sst)", credentials),
                                method_list_credentials, SD_BUS_VTABLE_UNPRIVILEGED),
        SD_BUS_VTABLE_END,
};

int credentiald_bus_startup(Credentiald *c) {
        int r;

        r = sd_bus_open_system(&c->bus);
        if (r < 0)
                return log_error_errno(r, "Failed to connect to the system bus: %m");
        r = bus_polkit_new(c->bus, &c->polkit);
        if (r < 0)
                return log_oom();
        r = sd_bus_add_object_vtable(c->bus, NULL, OBJECT_PATH, BUS_NAME, vtable, c);
        if (r < 0)
                return log_error_errno(r, "Failed to add the object %s: %m", OBJECT_PATH);
        r = sd_bus_attach_event(c->bus, c->event, SD_EVENT_PRIORITY_NORMAL);
        if (r < 0)
                return log_error_errno(r, "Failed to attach the bus: %m");
        r = sd_bus_set_exit_on_disconnect(c->bus, true);
        if (r < 0)
                return log_error_errno(r, "Failed to set up the bus: %m");
        r = sd_bus_request_name(c->bus, BUS_NAME, 0);
        if (r < 0)
                return log_error_errno(r, "Failed to acquire the name %s: %m", BUS_NAME);

        return 0;
}

void credentiald_bus_stop(Credentiald *c) {
        while (c->operations)
                set_operation_free(c->operations);
        c->polkit = bus_polkit_free(c->polkit);
        c->bus = sd_bus_flush_close_unref(c->bus);
}
