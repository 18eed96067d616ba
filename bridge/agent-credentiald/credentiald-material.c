/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * The way out, for the bridge alone: packets of material-wire.h on /run/agent-credential/material. A question names a
 * run, a service and the run's own token; all three are verified here for each question. Answers that have to wait for
 * a token endpoint come later, the others in the meantime. All buffers that a token or a secret passes through are
 * locked, and wiped after use.
 */

#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>

#include "basic/log.h"
#include "basic/string-util.h"
#include "credentiald.h"
#include "material.h"
#include "material/material-wire.h"

#define REQUESTS_MAX 8192U
#define CONNECTIONS_MAX 64U
#define FORGET_USEC (30 * USEC_PER_SEC) /* opened credentials that nobody asks for */
#define PACKETS_PER_TURN 8U /* then the loop's other sources have theirs */

/* An answer that the socket did not take yet. */
typedef struct Unsent {
        struct Unsent *next;
        Secret *packet;
} Unsent;

struct MaterialLink {
        Credentiald *daemon;
        MaterialLink *next;
        int fd;
        sd_event_source *io;
        Unsent *first, *last;
        bool broken;
};

/* One question that waits for an access token. */
struct MaterialRequest {
        Credentiald *daemon;
        MaterialRequest *next;
        MaterialLink *link;
        uint64_t cookie;
        LiveRun *live;
        Service *service;
        TokenWaiter *waiter;
};

static MaterialRequest *material_request_free(MaterialRequest *q) {
        if (!q)
                return NULL;

        for (MaterialRequest **p = &q->daemon->requests; *p; p = &(*p)->next)
                if (*p == q) {
                        *p = q->next;
                        q->daemon->n_requests--;
                        break;
                }
        token_waiter_free(q->waiter);
        live_run_unref(q->live);
        service_unref(q->service);
        return mfree(q);
}

/* Whoever waited has gone: the fetch itself goes on. */
static void link_free(MaterialLink *l) {
        Credentiald *c = l->daemon;

        for (MaterialRequest *q = c->requests, *next; q; q = next) {
                next = q->next;
                if (q->link == l)
                        material_request_free(q);
        }
        for (MaterialLink **p = &c->links; *p; p = &(*p)->next)
                if (*p == l) {
                        *p = l->next;
                        c->n_links--;
                        break;
                }
        for (Unsent *u; (u = l->first);) {
                l->first = u->next;
                secret_free(u->packet);
                free(u);
        }
        sd_event_source_disable_unref(l->io);
        safe_close(l->fd);
        free(l);
}

static void link_watch(MaterialLink *l) {
        /* While it does not take answers it gets none: no questions are read. */
        (void) sd_event_source_set_io_events(l->io, l->first ? EPOLLOUT : EPOLLIN);
}

static int link_send(MaterialLink *l, const void *packet, size_t size) {
        Unsent *u;

        if (!l->first) {
                if (send(l->fd, packet, size, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0)
                        return 0;
                if (errno != EAGAIN && errno != ENOBUFS)
                        return -errno;
        }
                u = calloc(1, sizeof(Unsent));
        if (!u || secret_new_large(size, &u->packet) < 0) {
                free(u);
                return -ENOMEM;
        }
        memcpy(secret_buffer(u->packet), packet, size);
        if (l->last && l->first)
                l->last->next = u;
        else
                l->first = u;
        l->last = u;
        link_watch(l);
        return 0;
}

static void link_break(MaterialLink *l, int error) {
        log_debug_errno(error, "The bridge cannot be answered: %m");
        l->broken = true;
        (void) shutdown(l->fd, SHUT_RDWR); /* seen by the link's own handler, and by the bridge */
}

/* Answers that were gathered. */
static int link_send_answers(MaterialLink *l) {
        Credentiald *c = l->daemon;
        size_t size = c->packet_size;

        if (size == 0)
                return 0;
        int r = link_send(l, secret_data(c->packet), size);
        explicit_bzero(secret_buffer(c->packet), size);
        c->packet_size = c->packet_answers = 0;
        return r;
}

static int link_answer_alone(MaterialLink *l, const MaterialAnswer *a) {
        Credentiald *c = l->daemon;

        ssize_t n = material_answer_encode(a, secret_buffer(c->packet), secret_size(c->packet));
        if (n < 0)
                return (int) n;
        c->packet_size = (size_t) n;
        return link_send_answers(l);
}

/* To the others of the same packet, where it fits there. */
static void link_answer(MaterialLink *l, const MaterialAnswer *a) {
        Credentiald *c = l->daemon;

        if (c->answering && c->answering != l) {
                int r = link_send_answers(c->answering);
                if (r < 0)
                        link_break(c->answering, r);
        }
        ssize_t n = c->answering == l && c->packet_answers < MATERIAL_BATCH_MAX ?
                            material_answer_encode(a, secret_buffer(c->packet) + c->packet_size,
                                                   MATERIAL_BATCH_SIZE - c->packet_size) : -EMSGSIZE;
        if (n >= 0) {
                c->packet_size += (size_t) n;
                c->packet_answers++;
                return;
        }
        int r = link_send_answers(l);
        if (r >= 0)
                r = link_answer_alone(l, a);
        if (r == -EMSGSIZE && a->status == MATERIAL_OK) { /* of the packet, or of the socket (net.core.wmem_max) */
                log_warning("A credential is too large to be handed out.");
                r = link_answer_alone(l, &(MaterialAnswer) { .status = MATERIAL_UNUSABLE, .cookie = a->cookie });
        }
        if (r < 0)
                link_break(l, r);
}

static void answer_status(MaterialLink *l, uint64_t cookie, MaterialStatus status) {
        link_answer(l, &(MaterialAnswer) { .status = status, .cookie = cookie });
}

static uint64_t realtime_after(uint64_t usec) {
        struct timespec ts;

        clock_gettime(CLOCK_REALTIME, &ts);
        return (uint64_t) ts.tv_sec * USEC_PER_SEC + (uint64_t) ts.tv_nsec / NSEC_PER_USEC + usec;
}

/* EXPIRES 0: no end is known. GENERATION 0: there is nothing that could be refreshed. */
static void answer_material(MaterialLink *l, uint64_t cookie, const Material *m, uint64_t expires,
                            uint64_t generation) {
        MaterialAnswer a = {
                .status = MATERIAL_OK, .cookie = cookie, .expires_usec = expires, .generation = generation,
                .n_headers = m->n_headers, .n_redact = m->n_redact,
        };

        for (size_t i = 0; i < m->n_headers; i++) {
                a.headers[i].name = m->headers[i].name;
                a.headers[i].value = secret_data(m->headers[i].value);
        }
        for (size_t i = 0; i < m->n_redact; i++)
                a.redact[i] = secret_data(m->redact[i]);
        link_answer(l, &a);
}

static void answer_grant(MaterialLink *l, uint64_t cookie, const TokenGrant *grant) {
        Material m;

        if (grant->code != TOKEN_OK) {
                answer_status(l, cookie,
                              grant->code == TOKEN_CREDENTIAL ? MATERIAL_UNUSABLE : MATERIAL_NO_ACCESS_TOKEN);
                return;
        }
        if (material_from_token(grant->token, &m) < 0) {
                answer_status(l, cookie, MATERIAL_UNAVAILABLE);
                return;
        }
        answer_material(l, cookie, &m, realtime_after(grant->remaining_usec), grant->generation);
        material_done(&m);
}

static void on_token(const TokenGrant *grant, void *userdata) {
        MaterialRequest *q = userdata;

        q->waiter = NULL; /* it is freed by its caller */

        /* The run may have ended while we waited. */
        if (!credentiald_is_alive(q->daemon, q->live))
                answer_status(q->link, q->cookie, MATERIAL_TOKEN_REFUSED);
        else
                answer_grant(q->link, q->cookie, grant);
        material_request_free(q);
}

static void get_by_token(MaterialLink *l, uint64_t cookie, LiveRun *live, Service *s) {
        Credentiald *c = l->daemon;
        MaterialRequest *q;
        TokenGrant grant;
        TokenKey key;
        SealInfo info;
        int r;

        r = credential_store_peek(c->store, live->user, s->name, &info);
        if (r < 0) {
                answer_status(l, cookie, r == -ENOENT ? MATERIAL_NO_CREDENTIAL : MATERIAL_UNUSABLE);
                return;
        }
        key = (TokenKey) { .user = live->user, .service = s, .version = info.version };

        q = c->n_requests < REQUESTS_MAX ? calloc(1, sizeof(*q)) : NULL;
        if (!q) {
                answer_status(l, cookie, MATERIAL_UNAVAILABLE);
                return;
        }
        *q = (MaterialRequest) {
                .daemon = c, .next = c->requests, .link = l, .cookie = cookie, .live = live_run_ref(live),
                .service = service_ref(s),
        };
        c->requests = q;
        c->n_requests++;

        r = token_cache_get(c->tokens, &key, &grant, on_token, q, &q->waiter);
        if (r == 0)
                return; /* will be answered later */
        material_request_free(q);
        if (r < 0)
                answer_status(l, cookie, MATERIAL_UNAVAILABLE);
        else
                answer_grant(l, cookie, &grant);
}

static int on_forget(sd_event_source *source, uint64_t usec, void *userdata) {
        Credentiald *c = userdata;

        if (credential_store_forget_unused(c->store))
                (void) sd_event_source_set_time_relative(source, FORGET_USEC);
        else
                c->forget = sd_event_source_disable_unref(c->forget);
        return 0;
}

/* Without the timer nothing stays open. */
static void forget_later(Credentiald *c) {
        if (c->forget)
                return;
        if (sd_event_add_time_relative(c->event, &c->forget, CLOCK_MONOTONIC, FORGET_USEC, USEC_PER_SEC, on_forget, c) <
                    0 ||
            sd_event_source_set_enabled(c->forget, SD_EVENT_ON) < 0) {
                c->forget = sd_event_source_disable_unref(c->forget);
                (void) credential_store_forget_unused(c->store);
                (void) credential_store_forget_unused(c->store);
        }
}

static void get_by_credential(MaterialLink *l, uint64_t cookie, LiveRun *live, Service *s) {
        const Secret *credential;
        Material m;
        SealInfo info;
        int r;

        r = credential_store_open_one(l->daemon->store, live->user, s->name, &info, &credential);
        if (r == -ENOENT) {
                answer_status(l, cookie, MATERIAL_NO_CREDENTIAL);
                return;
        }
        if (r < 0) {
                log_error_errno(r, "The credential of service %s of user %s does not open: %m", s->name, live->user);
                answer_status(l, cookie, MATERIAL_UNUSABLE);
                return;
        }

        r = material_from_credential(s, info.form, credential, &m);
        if (r < 0) {
                log_warning_errno(r, "The credential of service %s of user %s does not fit auth kind %s.", s->name,
                                  live->user, service_auth_kind_to_string(s->auth.kind));
                answer_status(l, cookie, MATERIAL_UNUSABLE);
                return;
        }
        answer_material(l, cookie, &m, 0, 0);
        material_done(&m);
        forget_later(l->daemon);
}

static void invalidate(MaterialLink *l, const MaterialQuestion *p, LiveRun *live, Service *s) {
        Credentiald *c = l->daemon;
        SealInfo info;

        /* With a credential that is the secret itself there is nothing that we could renew. */
        if (material_source(s->auth.kind) == MATERIAL_TOKEN &&
            credential_store_peek(c->store, live->user, s->name, &info) >= 0)
                token_cache_invalidate(c->tokens,
                                       &(TokenKey) { .user = live->user, .service = s, .version = info.version },
                                       p->generation);
        answer_status(l, p->cookie, MATERIAL_OK);
}

static void answer_question(MaterialLink *l, const MaterialQuestion *p) {
        _cleanup_(live_run_unrefp) LiveRun *live = NULL;
        _cleanup_(service_unrefp) Service *s = NULL;

        int r = credentiald_authorize(l->daemon, p->run, p->service, p->token, &live, &s);
        if (r < 0) {
                answer_status(l, p->cookie, r == -EACCES ? MATERIAL_TOKEN_REFUSED :
                                            r == -ENXIO ? MATERIAL_NOT_IN_SCOPE : MATERIAL_UNAVAILABLE);
                return;
        }
        if (p->verb == MATERIAL_INVALIDATE) {
                invalidate(l, p, live, s);
                return;
        }
        switch (material_source(s->auth.kind)) {
        case MATERIAL_NOTHING:
                answer_status(l, p->cookie, MATERIAL_OK);
                return;
        case MATERIAL_CREDENTIAL:
                get_by_credential(l, p->cookie, live, s);
                return;
        case MATERIAL_TOKEN:
                get_by_token(l, p->cookie, live, s);
                return;
        }
}

static void answer_questions(MaterialLink *l, const MaterialQuestion *questions, size_t n) {
        l->daemon->answering = l;
        for (size_t i = 0; i < n && !l->broken; i++)
                answer_question(l, questions + i);
        l->daemon->answering = NULL;
        int r = link_send_answers(l);
        if (r < 0)
                link_break(l, r);
}

static void link_flush(MaterialLink *l) {
        for (Unsent *u; (u = l->first);) {
                if (send(l->fd, secret_data(u->packet), secret_size(u->packet), MSG_NOSIGNAL | MSG_DONTWAIT) < 0) {
                        l->broken = l->broken || (errno != EAGAIN && errno != ENOBUFS);
                        return;
                }
                l->first = u->next;
                secret_free(u->packet);
                free(u);
        }
        link_watch(l);
}

static int on_link(sd_event_source *source, int fd, uint32_t revents, void *userdata) {
        MaterialLink *l = userdata;
        char *buf = secret_buffer(l->daemon->question);

        if (l->first)
                link_flush(l);
        for (unsigned i = 0; i < PACKETS_PER_TURN && !l->first && !l->broken; i++) {
                MaterialQuestion questions[MATERIAL_BATCH_MAX];
                ssize_t n = recv(fd, buf, secret_size(l->daemon->question), MSG_DONTWAIT | MSG_TRUNC);

                if (n < 0 && (errno == EAGAIN || errno == EINTR))
                        break;
                if (n <= 0) { /* it has gone */
                        l->broken = true;
                        break;
                }
                int k = (size_t) n > secret_size(l->daemon->question) ?
                                -EBADMSG : material_questions_decode(buf, (size_t) n, questions);
                if (k < 0) {
                        log_warning("What the bridge asks makes no sense; its connection is closed.");
                        l->broken = true;
                } else
                        answer_questions(l, questions, (size_t) k);
                explicit_bzero(buf, MIN((size_t) n, secret_size(l->daemon->question)));
        }
        if (l->broken)
                link_free(l);
        return 0;
}

static int on_connect(sd_event_source *source, int fd, uint32_t revents, void *userdata) {
        _cleanup_close_ int link = accept4(fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        Credentiald *c = userdata;
        struct ucred peer = {};
        socklen_t size = sizeof(peer);

        if (link < 0)
                return 0; /* gone again, or tried again */
        if (getsockopt(link, SOL_SOCKET, SO_PEERCRED, &peer, &size) < 0 || size != sizeof(peer) ||
            peer.uid != c->bridge_uid) {
                log_warning("User %u connected to the material socket, refused.", (unsigned) peer.uid);
                return 0;
        }
        if (c->n_links >= CONNECTIONS_MAX) {
                log_warning("The bridge has too many connections to the material socket.");
                return 0;
        }
        (void) setsockopt(link, SOL_SOCKET, SO_SNDBUF, &(int) { MATERIAL_SNDBUF }, sizeof(int));

        MaterialLink *l = calloc(1, sizeof(MaterialLink));
        if (!l)
                return log_oom();
        *l = (MaterialLink) { .daemon = c, .next = c->links, .fd = TAKE_FD(link) };
        c->links = l;
        c->n_links++;
        int r = sd_event_add_io(c->event, &l->io, l->fd, EPOLLIN, on_link, l);
        if (r < 0) {
                link_free(l);
                log_warning_errno(r, "Failed to watch a connection of the bridge: %m");
        }
        return 0;
}

int credentiald_material_startup(Credentiald *c, int fd) {
        _cleanup_close_ int owned = fd;
        int r;

        r = secret_new_large(MATERIAL_QUESTION_MAX, &c->question);
        if (r >= 0)
                r = secret_new_large(MATERIAL_ANSWER_MAX, &c->packet);
        if (r < 0)
                return log_error_errno(r, "Failed to get locked memory: %m");
        r = sd_event_add_io(c->event, &c->listener, owned, EPOLLIN, on_connect, c);
        if (r >= 0)
                r = sd_event_source_set_io_fd_own(c->listener, true);
        if (r < 0)
                return log_error_errno(r, "Failed to listen on the material socket: %m");
        TAKE_FD(owned);
        return 0;
}

void credentiald_material_stop(Credentiald *c) {
        c->listener = sd_event_source_disable_unref(c->listener);
        c->forget = sd_event_source_disable_unref(c->forget);
        while (c->links)
                link_free(c->links);
        c->question = secret_free(c->question);
        c->packet = secret_free(c->packet);
}
