/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* See material-client.h. Answers are told apart by cookies, which are numbers that are never used again. */

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "basic/log.h"
#include "basic/string-util.h"
#include "material-client.h"

/* The strong room may have to fetch an access token first. */
#define TIMEOUT_USEC (60 * USEC_PER_SEC)
#define ANSWERS_PER_TURN 8U /* packets of them */
#define FLUSH_AT 8U         /* questions that wait for others of the same turn */
#define BUCKETS 256U

struct MaterialCall {
        MaterialClient *client;
        MaterialCall *next, *previous; /* of all, in the order of their questions */
        MaterialCall *chain;           /* of the same bucket */
        uint64_t cookie, asked_usec;
        material_callback_t callback;
        void *userdata;
        char *unsent; /* a question that the socket did not take yet */
        size_t unsent_size;
};

struct MaterialClient {
        Bridge *bridge;
        int fd;
        HubWatch io;
        sd_event_source *timer;
        MaterialCall *first, *last, *buckets[BUCKETS];
        MaterialCall *first_unsent; /* and all behind it */
        size_t n, n_unsent;
        bool blocked; /* the socket takes no more at the moment */
        HubTask flush;
        uint64_t cookie;
        char *buf; /* an answer that is being read */
};

void material_done(Material *m) {
        http_field_list_done(&m->headers);
        for (char **s = m->redact; s && *s; s++)
                explicit_bzero(*s, strlen(*s));
        strv_free(m->redact);
        *m = (Material) {};
}

static void on_flush(void *userdata);

int material_client_new(Bridge *b, MaterialClient **ret) {
        MaterialClient *c = calloc(1, sizeof(MaterialClient));
        if (!c)
                return -ENOMEM;
        *c = (MaterialClient) {
                .bridge = b, .fd = -EBADF, .buf = malloc(MATERIAL_ANSWER_MAX),
                .flush = { .callback = on_flush, .userdata = c },
        };
        if (!c->buf) {
                free(c);
                return -ENOMEM;
        }
        *ret = c;
        return 0;
}

static void client_close(MaterialClient *c) {
        hub_watch_remove(&c->io);
        hub_task_cancel(c->bridge->hub, &c->flush);
        c->fd = safe_close(c->fd);
        c->blocked = false;
}

MaterialClient *material_client_free(MaterialClient *c) {
        if (!c)
                return NULL;

        assert(c->n == 0);
        client_close(c);
        sd_event_source_disable_unref(c->timer);
        free(c->buf);
        return mfree(c);
}

static void drop_unsent(MaterialCall *q) {
        if (!q->unsent)
                return;
        explicit_bzero(q->unsent, q->unsent_size);
        q->unsent = mfree(q->unsent);
        q->client->n_unsent--;
        if (q->client->first_unsent == q)
                q->client->first_unsent = q->next;
}

MaterialCall *material_call_free(MaterialCall *q) {
        if (!q)
                return NULL;

        MaterialClient *c = q->client;

        drop_unsent(q);
        for (MaterialCall **p = c->buckets + q->cookie % BUCKETS; *p; p = &(*p)->chain)
                if (*p == q) {
                        *p = q->chain;
                        break;
                }
        if (q->previous)
                q->previous->next = q->next;
        else
                c->first = q->next;
        if (q->next)
                q->next->previous = q->previous;
        else
                c->last = q->previous;
        c->n--;
        return mfree(q);
}

static MaterialCall *find_call(MaterialClient *c, uint64_t cookie) {
        MaterialCall *q = c->buckets[cookie % BUCKETS];

        while (q && q->cookie != cookie)
                q = q->chain;
        return q;
}

/* The callback may free the call, and ask the next question. */
static void call_end(MaterialCall *q, MaterialStatus status, Material *m) {
        q->callback(status, m, q->userdata);
}

/* Everything that was asked up to now goes unanswered. */
static void client_fail(MaterialClient *c) {
        uint64_t last = c->cookie;
        Material none = {};

        client_close(c);
        /* Each callback frees its call, or asks anew, over a new connection. */
        for (MaterialCall *q; (q = c->first) && q->cookie <= last;)
                call_end(q, MATERIAL_UNAVAILABLE, &none);
}

static int material_read(const MaterialAnswer *a, Material *ret) {
        int r = 0;

        for (size_t i = 0; r >= 0 && i < a->n_headers; i++)
                r = http_field_name_is_valid(a->headers[i].name) && http_field_value_is_valid(a->headers[i].value) ?
                            http_field_list_add(&ret->headers, a->headers[i].name, a->headers[i].value) : -EBADMSG;
        for (size_t i = 0; r >= 0 && i < a->n_redact; i++)
                r = strv_extend(&ret->redact, a->redact[i]);
        ret->generation = a->generation;
        return r;
}

static void take_answer(MaterialClient *c, const MaterialAnswer *a) {
        MaterialCall *q = find_call(c, a->cookie); /* NULL: it was given up */
        MaterialStatus status = a->status;
        Material m = {};

        if (q && status == MATERIAL_OK) {
                int r = material_read(a, &m);
                if (r < 0) {
                        log_warning_errno(r, "The strong room's answer cannot be used: %m");
                        status = MATERIAL_UNAVAILABLE;
                        material_done(&m);
                }
        }
        if (q)
                call_end(q, status, &m);
        material_done(&m);
}

/* 0: nothing there. */
static int read_answers(MaterialClient *c) {
        MaterialAnswer answers[MATERIAL_BATCH_MAX];

        ssize_t n = recv(c->fd, c->buf, MATERIAL_ANSWER_MAX, MSG_DONTWAIT | MSG_TRUNC);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
                return 0;
        if (n <= 0)
                return n < 0 ? -errno : -ECONNRESET;
        int k = (size_t) n > MATERIAL_ANSWER_MAX ? -EBADMSG : material_answers_decode(c->buf, (size_t) n, answers);
        if (k < 0) {
                log_warning("The strong room's answer makes no sense.");
                explicit_bzero(c->buf, MIN((size_t) n, MATERIAL_ANSWER_MAX));
                return -EBADMSG;
        }

        for (int i = 0; i < k; i++)
                take_answer(c, answers + i);
        explicit_bzero(c->buf, (size_t) n);
        return 1;
}

/* One packet. 1: it went out. 0: it has to wait, or nobody is there any more to take it; the loop finds out at once, and
 * all who wait ask anew. */
static int send_packet(MaterialClient *c, const void *packet, size_t size) {
        if (send(c->fd, packet, size, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0)
                return 1;
        if (errno == EPIPE || errno == ECONNRESET || errno == ENOTCONN)
                return 0;
        if (errno != EAGAIN && errno != ENOBUFS)
                return -errno;
        c->blocked = true;
        return hub_watch_set(&c->io, EPOLLIN | EPOLLOUT);
}

/* As many in one packet as it takes. */
static int send_unsent(MaterialClient *c) {
        char packet[MATERIAL_BATCH_SIZE];
        int r = 1;

        while (r > 0 && c->first_unsent) {
                size_t size = 0, n = 0;

                for (MaterialCall *q = c->first_unsent; q && n < MATERIAL_BATCH_MAX; q = q->next, n++) {
                        if (q->unsent_size > sizeof(packet) - size)
                                break;
                        memcpy(packet + size, q->unsent, q->unsent_size);
                        size += q->unsent_size;
                }
                r = send_packet(c, packet, size);
                for (; r > 0 && n > 0; n--)
                        drop_unsent(c->first_unsent);
                explicit_bzero(packet, size);
        }
        return MIN(r, 0);
}

static void on_flush(void *userdata) {
        MaterialClient *c = userdata;

        if (c->fd >= 0 && !c->blocked && send_unsent(c) < 0)
                client_fail(c);
}

static void on_io(uint32_t revents, void *userdata) {
        MaterialClient *c = userdata;
        int r = 0;

        if (c->blocked && (revents & EPOLLOUT)) {
                c->blocked = false;
                r = hub_watch_set(&c->io, EPOLLIN);
                if (r >= 0)
                        r = send_unsent(c);
        }
        for (unsigned i = 0; r >= 0 && i < ANSWERS_PER_TURN && c->fd >= 0; i++) {
                r = read_answers(c);
                if (r == 0 || c->n == 0) /* nobody waits for another */
                        break;
        }
        if (r < 0)
                client_fail(c);
}

static int client_connect(MaterialClient *c) {
        struct sockaddr_un sa = { .sun_family = AF_UNIX };

        if (c->fd >= 0)
                return 0;
        if (strlen(c->bridge->paths.material) >= sizeof(sa.sun_path))
                return -ENAMETOOLONG;
        strcpy(sa.sun_path, c->bridge->paths.material);

        _cleanup_close_ int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        if (fd < 0)
                return -errno;
        /* Our questions are short, but there may be many. Non-blocking from the start: a full backlog is an error. */
        (void) setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &(int) { MATERIAL_SNDBUF }, sizeof(int));
        if (fcntl(fd, F_SETFL, O_NONBLOCK) < 0 || connect(fd, (struct sockaddr *) &sa, sizeof(sa)) < 0)
                return -errno;
        int r = hub_watch_add(c->bridge->hub, &c->io, fd, EPOLLIN, on_io, c);
        if (r < 0)
                return r;
        c->fd = TAKE_FD(fd);
        return 0;
}

static uint64_t client_now(const MaterialClient *c) {
        uint64_t t = 0;

        (void) sd_event_now(c->bridge->event, CLOCK_MONOTONIC, &t);
        return t;
}

/* Whoever asked first is also the first to have waited too long. */
static int on_timer(sd_event_source *source, uint64_t usec, void *userdata) {
        MaterialClient *c = userdata;
        uint64_t now = client_now(c), last = c->cookie;
        Material none = {};

        for (MaterialCall *q; (q = c->first) && q->cookie <= last && q->asked_usec + TIMEOUT_USEC <= now;)
                call_end(q, MATERIAL_UNAVAILABLE, &none);
        if (c->first && (sd_event_source_set_time(source, c->first->asked_usec + TIMEOUT_USEC) < 0 ||
                         sd_event_source_set_enabled(source, SD_EVENT_ONESHOT) < 0))
                client_fail(c);
        return 0;
}

/* Fires too early most of the time, and looks again. */
static int arm_timer(MaterialClient *c) {
        int enabled = SD_EVENT_OFF;

        if (!c->timer)
                return sd_event_add_time_relative(c->bridge->event, &c->timer, CLOCK_MONOTONIC, TIMEOUT_USEC,
                                                  USEC_PER_SEC, on_timer, c);
        int r = sd_event_source_get_enabled(c->timer, &enabled);
        if (r < 0 || enabled != SD_EVENT_OFF)
                return r;
        r = sd_event_source_set_time_relative(c->timer, TIMEOUT_USEC);
        return r < 0 ? r : sd_event_source_set_enabled(c->timer, SD_EVENT_ONESHOT);
}

static int keep_unsent(MaterialCall *q, const void *packet, size_t size) {
        MaterialClient *c = q->client;

        q->unsent = malloc(size);
        if (!q->unsent)
                return -ENOMEM;
        memcpy(q->unsent, packet, size);
        q->unsent_size = size;
        if (c->n_unsent++ == 0)
                c->first_unsent = q;
        if (c->blocked)
                return 0;
        if (c->n_unsent >= FLUSH_AT)
                return send_unsent(c);
        hub_task_queue(c->bridge->hub, &c->flush);
        return 0;
}

static int ask(Bridge *b, MaterialVerb verb, const LiveRun *live, const Service *service, const char *token,
               uint64_t generation, material_callback_t callback, void *userdata, MaterialCall **ret) {
        MaterialClient *c = b->material;
        char packet[MATERIAL_QUESTION_MAX];

        int r = client_connect(c);
        if (r >= 0)
                r = arm_timer(c);
        if (r < 0)
                return r;

        MaterialCall *q = calloc(1, sizeof(MaterialCall));
        if (!q)
                return -ENOMEM;
        *q = (MaterialCall) {
                .client = c, .cookie = ++c->cookie, .asked_usec = client_now(c), .callback = callback,
                .userdata = userdata, .previous = c->last, .chain = c->buckets[c->cookie % BUCKETS],
        };
        c->buckets[q->cookie % BUCKETS] = q;
        if (c->last)
                c->last->next = q;
        else
                c->first = q;
        c->last = q;
        c->n++;

        ssize_t n = material_question_encode(
                        &(MaterialQuestion) {
                                .verb = verb, .cookie = q->cookie, .generation = generation, .run = live->run,
                                .service = service->name, .token = token,
                        },
                        packet, sizeof(packet));
        /* At once where it is the only one. Where more is being looked at in this turn, there may be more to ask. */
        if (n < 0)
                r = (int) n;
        else {
                r = c->n_unsent == 0 && !event_hub_has_more(b->hub) ? send_packet(c, packet, (size_t) n) : 0;
                if (r == 0)
                        r = keep_unsent(q, packet, (size_t) n);
                explicit_bzero(packet, (size_t) n);
        }
        if (r < 0) {
                material_call_free(q);
                return r;
        }
        *ret = q;
        return 0;
}

int material_get(Bridge *b, const LiveRun *live, const Service *service, const char *token,
                 material_callback_t callback, void *userdata, MaterialCall **ret) {
        return ask(b, MATERIAL_GET, live, service, token, 0, callback, userdata, ret);
}

int material_invalidate(Bridge *b, const LiveRun *live, const Service *service, const char *token, uint64_t generation,
                        material_callback_t callback, void *userdata, MaterialCall **ret) {
        return ask(b, MATERIAL_INVALIDATE, live, service, token, generation, callback, userdata, ret);
}
