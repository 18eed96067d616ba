/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include <systemd/sd-event.h>

#include "basic/string-util.h"
#include "bus/polkit.h"

/*
 * One BusPolkitQuery is one call message that waits for polkit. It lives in three states:
 *
 *   asked     the question is on its way; the handler has returned 1
 *   answered  the message was put back into the connection's read queue, and has not come out yet
 *   used      the second pass has had its verdict; freed when another message asks
 *
 * It is not freed by the second pass itself, because a handler may ask more than once. And the second pass may not come
 * at all: the object may have gone meanwhile, so that no handler is called. So an event source of idle priority
 * frees what is left.
 */

#define POLKIT_QUERIES_MAX 192U /* each is a message, with up to 253 descriptors */
#define POLKIT_QUERIES_MAX_PER_USER 48U

/* A person may have to be found and to type a password. */
#define POLKIT_TIMEOUT_USEC (5 * 60 * USEC_PER_SEC)

typedef struct BusPolkitQuery BusPolkitQuery;

struct BusPolkitQuery {
        BusPolkit *polkit; /* back pointer, weak */
        BusPolkitQuery *next;

        sd_bus_message *message; /* the call that waits */
        char *action;
        char **details;
        uid_t good_user;
        uid_t sender;

        sd_bus_slot *slot;
        sd_event_source *defer;
        bool answered;
        bool used;
        int verdict; /* >0 yes; VERDICT_INTERACTIVE; -EACCES no; else a fault */
        sd_bus_error error;
};

struct BusPolkit {
        sd_bus *bus;
        BusPolkitQuery *queries;
        size_t n_queries;
};

/* Not an errno of the kernel's; it stays within this file. */
#define VERDICT_INTERACTIVE (-4096)

static BusPolkitQuery *query_free(BusPolkitQuery *q) {
        if (!q)
                return NULL;

        if (q->polkit) {
                for (BusPolkitQuery **p = &q->polkit->queries; *p; p = &(*p)->next)
                        if (*p == q) {
                                *p = q->next;
                                q->polkit->n_queries--;
                                break;
                        }
        }

        sd_event_source_disable_unref(q->defer);
        sd_bus_slot_unref(q->slot);
        sd_bus_message_unref(q->message);
        sd_bus_error_free(&q->error);
        strv_free(q->details);
        free(q->action);
        return mfree(q);
}
DEFINE_CLEANUP(BusPolkitQuery *, query_free);

int bus_polkit_new(sd_bus *bus, BusPolkit **ret) {
        BusPolkit *p = calloc(1, sizeof(BusPolkit));

        if (!p)
                return -ENOMEM;

        p->bus = sd_bus_ref(bus);
        *ret = p;
        return 0;
}

BusPolkit *bus_polkit_free(BusPolkit *p) {
        if (!p)
                return NULL;

        while (p->queries) {
                BusPolkitQuery *q = p->queries;

                if (!q->answered)
                        (void) sd_bus_reply_method_errorf(q->message, SD_BUS_ERROR_ACCESS_DENIED,
                                                          "Access denied: the service is stopping.");
                query_free(q);
        }
        sd_bus_unref(p->bus);
        return mfree(p);
}

size_t bus_polkit_pending(const BusPolkit *p) {
        size_t n = 0;

        for (const BusPolkitQuery *q = p ? p->queries : NULL; q; q = q->next)
                n += !q->used;

        return n;
}

/*
 * Who asks the bus and waits for its answer has to read all that comes before it. On the connection on which we are
 * called that is whatever others have sent to us: it would be in our memory then, and no longer in the bus' queues,
 * where each user has a bound, and a user who sends faster than we answer would fill it. So there is a second
 * connection for these questions, to which nobody has anything to say. What is said to it all the same (anybody may
 * send a signal to anybody) is dropped.
 */
static int asking_connection(sd_bus *like, sd_bus **ret) {
        static sd_bus *asking = NULL;
        const char *address;
        sd_bus *b = NULL;
        int r;

        if (asking && sd_bus_is_open(asking) <= 0)
                asking = sd_bus_close_unref(asking);
        if (!asking) {
                r = sd_bus_get_address(like, &address);
                if (r >= 0)
                        r = sd_bus_new(&b);
                if (r >= 0)
                        r = sd_bus_set_address(b, address);
                if (r >= 0)
                        r = sd_bus_set_bus_client(b, true);
                if (r >= 0)
                        r = sd_bus_set_close_on_exit(b, false);
                if (r >= 0)
                        r = sd_bus_start(b);
                if (r < 0) {
                        sd_bus_unref(b);
                        return r;
                }
                asking = b;
        }
        *ret = asking;
        return 0;
}

static void drop_unasked(sd_bus *asking) {
        uint64_t n = 0;

        (void) sd_bus_get_n_queued_read(asking, &n);
        while (n-- > 0 && sd_bus_process(asking, NULL) > 0)
                ;
}

static int ask_euid(sd_bus_message *m, uid_t *ret) {
        const char *sender = sd_bus_message_get_sender(m);
        sd_bus_creds *creds = NULL;
        sd_bus *asking;
        int r;

        if (!sender)
                return -ENXIO;
        r = asking_connection(sd_bus_message_get_bus(m), &asking);
        if (r < 0)
                return r;
        r = sd_bus_get_name_creds(asking, sender, SD_BUS_CREDS_EUID, &creds);
        drop_unasked(asking);
        if (r < 0)
                return r;

        r = sd_bus_creds_get_euid(creds, ret);
        sd_bus_creds_unref(creds);
        return r < 0 ? r : 0;
}

int bus_sender_euid(sd_bus_message *m, uid_t *ret) {
        /* Who is asked for all objects looks once for each, and it is one message. */
        static char last_sender[256];
        static uint64_t last_cookie;
        static uid_t last_uid;
        const char *sender = sd_bus_message_get_sender(m);
        uint64_t cookie = 0;
        int r;

        if (sender && sd_bus_message_get_cookie(m, &cookie) >= 0 && cookie == last_cookie &&
            streq(sender, last_sender)) {
                *ret = last_uid;
                return 0;
        }
        r = ask_euid(m, ret);
        if (r >= 0 && strlen(sender) < sizeof last_sender) {
                strcpy(last_sender, sender);
                last_cookie = cookie;
                last_uid = *ret;
        }
        return r;
}

static bool strv_equal(char *const *a, char *const *b) {
        if (strv_length(a) != strv_length(b))
                return false;
        for (size_t i = 0; a && a[i]; i++)
                if (!streq(a[i], b[i]))
                        return false;
        return true;
}

static int query_defer_callback(sd_event_source *s, void *userdata) {
        query_free(userdata);
        return 0;
}

/* Reads the answer. A polkit that is not there, or that does not know the action, means no. */
static int query_read_verdict(BusPolkitQuery *q, sd_bus_message *reply) {
        const sd_bus_error *e;
        int authorized, challenge, r;

        e = sd_bus_message_get_error(reply);
        if (e) {
                if (sd_bus_error_has_name(e, SD_BUS_ERROR_SERVICE_UNKNOWN) ||
                    sd_bus_error_has_name(e, SD_BUS_ERROR_NAME_HAS_NO_OWNER) ||
                    startswith(e->name, "org.freedesktop.DBus.Error.Spawn.") ||
                    startswith(e->name, "org.freedesktop.systemd1.") ||
                    startswith(e->name, "org.freedesktop.PolicyKit1.Error."))
                        return -EACCES;

                /* No reply in time and the like: still no, but say so. */
                (void) sd_bus_error_copy(&q->error, e);
                return -EACCES;
        }

        r = sd_bus_message_enter_container(reply, 'r', "bba{ss}");
        if (r < 0)
                return r;
        r = sd_bus_message_read(reply, "bb", &authorized, &challenge);
        if (r < 0)
                return r;

        if (authorized)
                return 1;
        return challenge ? VERDICT_INTERACTIVE : -EACCES;
}

static int query_reply_callback(sd_bus_message *reply, void *userdata, sd_bus_error *ret_error) {
        BusPolkitQuery *q = userdata;
        sd_event *event;
        int r;

        q->slot = sd_bus_slot_unref(q->slot);
        q->answered = true;
        q->verdict = query_read_verdict(q, reply);

        /* Idle priority: everything in the read queue, our message included, is dispatched before. */
        event = sd_bus_get_event(sd_bus_message_get_bus(reply));
        if (!event) {
                r = -EINVAL;
                goto fail;
        }
        r = sd_event_add_defer(event, &q->defer, query_defer_callback, q);
        if (r < 0)
                goto fail;
        r = sd_event_source_set_priority(q->defer, SD_EVENT_PRIORITY_IDLE);
        if (r < 0)
                goto fail;
        r = sd_event_source_set_enabled(q->defer, SD_EVENT_ONESHOT);
        if (r < 0)
                goto fail;

        r = sd_bus_message_rewind(q->message, true);
        if (r < 0)
                goto fail;
        r = sd_bus_enqueue_for_read(sd_bus_message_get_bus(q->message), q->message);
        if (r < 0)
                goto fail;

        return 1;

fail:
        (void) sd_bus_reply_method_errno(q->message, r, NULL);
        query_free(q);
        return 1;
}

static int query_second_pass(BusPolkitQuery *q, const char *action, char *const *details, uid_t good_user,
                             sd_bus_error *e) {
        /* Not answered: somebody put the message back besides us. Answered, but another question: what the first
         * pass looked at has changed in between, and the verdict says nothing about it. */
        if (!q->answered || !streq(q->action, action) || q->good_user != good_user || !strv_equal(q->details, details))
                return sd_bus_error_setf(
                        e, SD_BUS_ERROR_ACCESS_DENIED,
                        "Access denied: the object changed while authorization was asked for, try again.");

        q->used = true;
        if (q->verdict > 0)
                return 1;

        if (q->verdict == VERDICT_INTERACTIVE)
                return sd_bus_error_setf(e, SD_BUS_ERROR_INTERACTIVE_AUTHORIZATION_REQUIRED,
                                         "Interactive authentication required for action %s.", action);
        if (q->verdict != -EACCES)
                return sd_bus_error_set_errno(e, q->verdict);
        if (sd_bus_error_is_set(&q->error))
                return sd_bus_error_setf(e, SD_BUS_ERROR_ACCESS_DENIED, "Access denied: polkit gave no answer (%s).",
                                         q->error.name);
        return sd_bus_error_setf(e, SD_BUS_ERROR_ACCESS_DENIED, "Access denied: polkit action %s is needed.", action);
}

static int query_send(BusPolkitQuery *q, const char *sender, bool interactive) {
        sd_bus_message *m = NULL;
        int r;

        r = sd_bus_message_new_method_call(q->polkit->bus, &m, "org.freedesktop.PolicyKit1",
                                           "/org/freedesktop/PolicyKit1/Authority",
                                           "org.freedesktop.PolicyKit1.Authority", "CheckAuthorization");
        if (r < 0)
                return r;

        r = sd_bus_message_append(m, "(sa{sv})s", "system-bus-name", 1, "name", "s", sender, q->action);
        if (r >= 0)
                r = sd_bus_message_open_container(m, 'a', "{ss}");
        for (char **d = q->details; r >= 0 && d && d[0]; d += 2)
                r = sd_bus_message_append(m, "{ss}", d[0], d[1]);
        if (r >= 0)
                r = sd_bus_message_close_container(m);
        if (r >= 0)
                r = sd_bus_message_append(m, "us", (uint32_t) interactive, NULL);
        if (r >= 0)
                r = sd_bus_call_async(q->polkit->bus, &q->slot, m, query_reply_callback, q, POLKIT_TIMEOUT_USEC);

        sd_bus_message_unref(m);
        return r;
}

int bus_verify_async(BusPolkit *p, sd_bus_message *m, const char *action, const char *const *details, uid_t good_user,
                     sd_bus_error *e) {
        _cleanup_(query_freep) BusPolkitQuery *q = NULL;
        const char *sender;
        size_t n_own = 0;
        int r, interactive;
        uid_t euid;

        /* The privileged and the owner need no polkit. Asked of the bus in each pass: the sender may have gone, and then
         * nobody is speaking. */
        r = ask_euid(m, &euid);
        if (r < 0)
                return sd_bus_error_setf(e, SD_BUS_ERROR_ACCESS_DENIED,
                                         "Access denied: the caller cannot be identified.");
        if (euid == 0 || (good_user != (uid_t) -1 && euid == good_user))
                return 1;

        for (BusPolkitQuery *i = p->queries, *next; i; i = next) {
                next = i->next;
                if (i->message == m)
                        return query_second_pass(i, action, (char *const *) details, good_user, e);
                /* Another message is being handled, so its handler has returned. A connection that is never idle must
                 * not gather these. */
                if (i->used)
                        query_free(i);
                else
                        n_own += i->sender == euid;
        }

        sender = sd_bus_message_get_sender(m);
        if (!sender)
                return sd_bus_error_setf(e, SD_BUS_ERROR_ACCESS_DENIED,
                                         "Access denied: the caller cannot be identified.");
        if (p->n_queries >= POLKIT_QUERIES_MAX || n_own >= POLKIT_QUERIES_MAX_PER_USER)
                return sd_bus_error_setf(e, SD_BUS_ERROR_LIMITS_EXCEEDED,
                                         "Too many authorization questions are waiting, try again later.");

        interactive = sd_bus_message_get_allow_interactive_authorization(m);
        if (interactive < 0)
                return sd_bus_error_set_errno(e, interactive);

        q = calloc(1, sizeof(*q));
        if (!q)
                return -ENOMEM;
        q->good_user = good_user;
        q->sender = euid;
        q->action = strdup(action);
        if (!q->action)
                return -ENOMEM;
        if (details) {
                r = strv_copy((char *const *) details, &q->details);
                if (r < 0)
                        return r;
                assert(strv_length(q->details) % 2 == 0);
        }

        q->message = sd_bus_message_ref(m);
        q->polkit = p;
        q->next = p->queries;
        p->queries = q;
        p->n_queries++;

        r = query_send(q, sender, interactive);
        if (r < 0)
                return sd_bus_error_setf(e, SD_BUS_ERROR_ACCESS_DENIED, "Access denied: polkit cannot be asked.");

        TAKE_PTR(q); /* now owned by the list, until its answer */
        return 0;
}
