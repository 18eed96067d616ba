/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * agentd's side of the worker. A slot is the request itself: it stays in the worker's list until its answer is there,
 * whether or not anybody still wants to hear it, so that answers and requests are matched by id alone.
 */
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <systemd/sd-event.h>

#include "basic/fs-util.h"
#include "basic/string-util.h"
#include "sandbox/worker-protocol.h"

#define RESTART_DELAY_USEC (1 * USEC_PER_SEC)
/* To how many workers a cleanup is given: it may be what they die of. */
#define CLEANUP_TRIES_MAX 3U

struct WorkerSlot {
        WorkerSlot *next;       /* in the worker's list, oldest first */
        WorkerRequest *request; /* until it is sent */
        WorkerRequest *sent;    /* of a cleanup, for another worker should this one die */
        unsigned tries;
        uint64_t id;
        uint32_t verb;
        bool held;              /* the caller has a reference */
        bool open;              /* in the worker's list */
        bool calling;
        bool lost;              /* was sent to a worker that died */
        union {
                worker_handler_t plain;
                worker_prepare_handler_t prepare;
                worker_list_handler_t list;
        } handler;              /* NULL: dropped */
        void *userdata;
};

struct Worker {
        sd_event *event;
        sd_event_source *io;
        sd_event_source *timer;
        char *program, *state_arg, *runtime_arg;
        bool stay;
        int socket;
        pid_t pid;
        uint64_t started_usec;
        uint64_t last_id;
        WorkerSlot *slots;
        WorkerReply *reply; /* receive buffer */
};

#define REPLY_SIZE_MAX (sizeof(WorkerReply) + WORKER_RUNS_MAX * sizeof(WorkerRun))

static WorkerSlot *slot_free(WorkerSlot *slot) {
        free(slot->request);
        free(slot->sent);
        return mfree(slot);
}

WorkerSlot *worker_slot_unref(WorkerSlot *slot) {
        if (!slot)
                return NULL;
        slot->held = false;
        slot->handler.plain = NULL;
        if (!slot->open && !slot->calling)
                slot_free(slot);
        return NULL;
}

static void slot_complete(Worker *w, WorkerSlot *slot, int error, const char *message, const WorkerReply *reply,
                          int fd) {
        _cleanup_close_ int listener = fd;

        for (WorkerSlot **p = &w->slots; *p; p = &(*p)->next)
                if (*p == slot) {
                        *p = slot->next;
                        break;
                }
        slot->open = false;
        if (slot->handler.plain) {
                slot->calling = true;
                switch (slot->verb) {
                case WORKER_PREPARE:
                case WORKER_EDIT:
                case WORKER_MAP_EDIT:
                        slot->handler.prepare(error, message, TAKE_FD(listener), slot->userdata);
                        break;
                case WORKER_LIST:
                        slot->handler.list(error, message, reply ? reply->runs : NULL, reply ? reply->n_runs : 0,
                                           slot->userdata);
                        break;
                default:
                        slot->handler.plain(error, message, slot->userdata);
                }
                slot->calling = false;
                slot->handler.plain = NULL;
        }
        if (!slot->held)
                slot_free(slot);
}

static void worker_stop(Worker *w) {
        w->io = sd_event_source_unref(w->io);
        w->socket = safe_close(w->socket);
        if (w->pid > 0) {
                (void) kill(w->pid, SIGKILL);
                while (waitpid(w->pid, NULL, 0) < 0 && errno == EINTR)
                        ;
                w->pid = 0;
        }
}

static int on_io(sd_event_source *source, int fd, uint32_t revents, void *userdata);

static int worker_start(Worker *w) {
        _cleanup_close_ int ours = -EBADF, theirs = -EBADF;
        char *argv[] = { w->program, w->state_arg, w->runtime_arg, w->stay ? (char *) "--stay" : NULL, NULL };
        int size = WORKER_BUFFER_SIZE, pair[2], r;
        posix_spawn_file_actions_t actions;
        posix_spawnattr_t attr;
        sigset_t none, all;

        if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
                return -errno;
        ours = pair[0];
        theirs = pair[1];
        /* A whole list of runs must fit into one message. */
        (void) setsockopt(theirs, SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
        if (fcntl(ours, F_SETFL, O_NONBLOCK) < 0)
                return -errno;

        sigemptyset(&none);
        sigfillset(&all);
        r = -posix_spawn_file_actions_init(&actions);
        if (r < 0)
                return r;
        r = -posix_spawnattr_init(&attr);
        if (r < 0) {
                posix_spawn_file_actions_destroy(&actions);
                return r;
        }
        /* dup2() onto itself only clears close-on-exec, which is what is wanted then. */
        r = -posix_spawn_file_actions_adddup2(&actions, theirs, WORKER_SOCKET_FD);
        if (r >= 0)
                r = -posix_spawnattr_setsigmask(&attr, &none);
        if (r >= 0)
                r = -posix_spawnattr_setsigdefault(&attr, &all);
        if (r >= 0)
                r = -posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
        if (r >= 0)
                r = -posix_spawn(&w->pid, w->program, &actions, &attr, argv, environ);
        posix_spawn_file_actions_destroy(&actions);
        posix_spawnattr_destroy(&attr);
        if (r < 0) {
                w->pid = 0;
                return r;
        }
        w->socket = TAKE_FD(ours);
        (void) sd_event_now(w->event, CLOCK_MONOTONIC, &w->started_usec);
        r = sd_event_add_io(w->event, &w->io, w->socket, EPOLLIN, on_io, w);
        if (r < 0)
                worker_stop(w);
        return r;
}

/* Sends what is waiting, as far as the socket takes it. */
static int worker_flush(Worker *w) {
        bool waiting = false;

        for (WorkerSlot *s = w->slots; s; s = s->next) {
                if (!s->request)
                        continue;
                if (send(w->socket, s->request, sizeof *s->request, MSG_NOSIGNAL) < 0) {
                        if (errno == EINTR || errno == EAGAIN) {
                                waiting = true;
                                break;
                        }
                        return -errno;
                }
                if (s->verb == WORKER_CLEANUP && ++s->tries < CLEANUP_TRIES_MAX)
                        s->sent = TAKE_PTR(s->request);
                else
                        s->request = mfree(s->request);
        }
        return sd_event_source_set_io_events(w->io, EPOLLIN | (waiting ? EPOLLOUT : 0));
}

static int on_timer(sd_event_source *source, uint64_t usec, void *userdata);

/* After the worker died. One that dies at once, again and again, is not started more than once a second. */
static void worker_restart(Worker *w) {
        uint64_t now = 0;

        (void) sd_event_now(w->event, CLOCK_MONOTONIC, &now);
        if (now >= w->started_usec + RESTART_DELAY_USEC && worker_start(w) >= 0)
                return;
        w->timer = sd_event_source_unref(w->timer);
        (void) sd_event_add_time_relative(w->event, &w->timer, CLOCK_MONOTONIC, RESTART_DELAY_USEC, 0, on_timer, w);
}

static int on_timer(sd_event_source *source, uint64_t usec, void *userdata) {
        Worker *w = userdata;

        w->timer = sd_event_source_unref(w->timer);
        if (worker_start(w) < 0 || worker_flush(w) < 0) {
                worker_stop(w);
                worker_restart(w);
        }
        return 0;
}

/* Fails what was sent; what was not, or is to be taken away whatever there is of it, stays in the list for the next worker.
 */
static void worker_died(Worker *w) {
        WorkerSlot *s;

        worker_stop(w);
        /* Marked beforehand: handlers may add requests, and the new worker may get what was still waiting. */
        for (s = w->slots; s; s = s->next) {
                if (s->sent)
                        s->request = TAKE_PTR(s->sent);
                s->lost = !s->request;
        }
        worker_restart(w);
        for (;;) {
                for (s = w->slots; s && !s->lost; s = s->next)
                        ;
                if (!s)
                        break;
                slot_complete(w, s, -EIO, "The sandbox worker died in the middle of it", NULL, -EBADF);
        }
        if (w->socket >= 0 && worker_flush(w) < 0) {
                worker_stop(w);
                worker_restart(w);
        }
}

/* The fd of a message, or -EBADF; closes what should not be there. */
static int take_fd(struct msghdr *mh) {
        int fd = -EBADF;

        for (struct cmsghdr *c = CMSG_FIRSTHDR(mh); c; c = CMSG_NXTHDR(mh, c)) {
                size_t n;

                if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
                        continue;
                n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
                for (size_t i = 0; i < n; i++) {
                        int k;

                        memcpy(&k, CMSG_DATA(c) + i * sizeof(int), sizeof k);
                        safe_close(fd);
                        fd = k;
                }
        }
        return fd;
}

/* 1: a reply was handled, 0: none is there, else the worker is no use any more. */
static int worker_receive(Worker *w) {
        union {
                struct cmsghdr header;
                uint8_t buf[CMSG_SPACE(sizeof(int))];
        } control;
        struct iovec iov = { .iov_base = w->reply, .iov_len = REPLY_SIZE_MAX };
        struct msghdr mh = {
                .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control,
        };
        const WorkerReply *reply = w->reply;
        _cleanup_close_ int fd = -EBADF;
        WorkerSlot *s;
        ssize_t n;

        n = recvmsg(w->socket, &mh, MSG_CMSG_CLOEXEC);
        if (n < 0)
                return errno == EAGAIN || errno == EINTR ? 0 : -errno;
        fd = take_fd(&mh);
        if (n == 0)
                return -ECONNRESET;
        if ((mh.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) || (size_t) n < sizeof *reply ||
            reply->version != WORKER_VERSION ||
            reply->n_runs > WORKER_RUNS_MAX || (size_t) n != sizeof *reply + reply->n_runs * sizeof(WorkerRun) ||
            reply->error > 0 || !memchr(reply->message, 0, sizeof reply->message))
                return -EPROTO;
        for (s = w->slots; s; s = s->next)
                if (s->id == reply->id)
                        break;
        if (!s || s->request)
                return -EPROTO;
        if ((fd >= 0) != ((s->verb == WORKER_PREPARE || s->verb == WORKER_EDIT) && reply->error == 0))
                return -EPROTO;
        slot_complete(w, s, reply->error, reply->message, reply, TAKE_FD(fd));
        return 1;
}

static int on_io(sd_event_source *source, int fd, uint32_t revents, void *userdata) {
        Worker *w = userdata;
        int r = 0;

        if (revents & EPOLLOUT)
                r = worker_flush(w);
        /* One reply a turn: other sources of the loop get their share. */
        if (r >= 0 && (revents & (EPOLLIN | EPOLLHUP | EPOLLERR)))
                r = worker_receive(w);
        if (r < 0)
                worker_died(w);
        return 0;
}

Worker *worker_free(Worker *w) {
        if (!w)
                return NULL;
        while (w->slots) {
                w->slots->handler.plain = NULL;
                slot_complete(w, w->slots, -ECANCELED, "", NULL, -EBADF);
        }
        worker_stop(w);
        sd_event_source_unref(w->timer);
        sd_event_unref(w->event);
        free(w->program);
        free(w->state_arg);
        free(w->runtime_arg);
        free(w->reply);
        return mfree(w);
}

int worker_new(sd_event *event, const WorkerOptions *options, Worker **ret) {
        static const WorkerOptions defaults = {};
        _cleanup_(worker_freep) Worker *w = NULL;
        int r;

        options = options ?: &defaults;
        w = malloc(sizeof *w);
        if (!w)
                return -ENOMEM;
        *w = (Worker) { .socket = -EBADF, .stay = options->stay, .event = sd_event_ref(event) };
        w->program = strdup(options->program ?: LIBEXECDIR "/agentd-worker");
        w->state_arg = strprintf("--state=%s", options->state_dir ?: "/var/lib/agentd");
        w->runtime_arg = strprintf("--runtime=%s", options->runtime_dir ?: "/run/agentd");
        w->reply = malloc(REPLY_SIZE_MAX);
        if (!w->program || !w->state_arg || !w->runtime_arg || !w->reply)
                return -ENOMEM;
        r = worker_start(w);
        if (r < 0)
                return r;
        *ret = TAKE_PTR(w);
        return 0;
}

static int request_new(WorkerVerb verb, WorkerRequest **ret) {
        WorkerRequest *q = calloc(1, sizeof *q);

        if (!q)
                return -ENOMEM;
        q->version = WORKER_VERSION;
        q->verb = verb;
        *ret = q;
        return 0;
}

static int request_set_run(WorkerRequest *q, const char *run) {
        if (!run || !run_id_is_valid(run))
                return -EINVAL;
        memcpy(q->run, run, RUN_ID_LEN + 1);
        return 0;
}

static int request_add_layer(WorkerRequest *q, const char *digest) {
        if (!digest_is_valid(digest))
                return -EINVAL;
        if (q->n_layers >= SANDBOX_LAYERS_MAX)
                return -E2BIG;
        memcpy(q->layers[q->n_layers++], digest, DIGEST_LEN + 1);
        return 0;
}

/* Takes the request. The slot has no handler yet. */
static int worker_send(Worker *w, WorkerRequest **q, void *userdata, WorkerSlot **ret_slot, WorkerSlot **ret) {
        WorkerSlot *s, **tail;

        s = malloc(sizeof *s);
        if (!s)
                return -ENOMEM;
        *s = (WorkerSlot) {
                .id = ++w->last_id, .verb = (*q)->verb, .open = true, .held = ret_slot, .userdata = userdata,
        };
        (*q)->id = s->id;
        s->request = TAKE_PTR(*q);
        for (tail = &w->slots; *tail; tail = &(*tail)->next)
                ;
        *tail = s;
        if (ret_slot)
                *ret_slot = s;
        *ret = s;
        /* A broken socket is noticed by the event loop, which restarts the worker and sends this to the new one. */
        if (w->socket >= 0)
                (void) worker_flush(w);
        return 0;
}

int worker_prepare(Worker *w, const SandboxSpec *spec, worker_prepare_handler_t handler, void *userdata,
                   WorkerSlot **ret_slot) {
        _cleanup_free_ WorkerRequest *q = NULL;
        WorkerSlot *s;
        int r;

        r = request_new(WORKER_PREPARE, &q);
        if (r >= 0)
                r = request_set_run(q, spec->run);
        for (const char *const *l = spec->layers; r >= 0 && *l; l++)
                r = request_add_layer(q, *l);
        if (r < 0)
                return r;
        if (q->n_layers == 0 || strlen(strempty(spec->hostname)) >= sizeof q->hostname)
                return -EINVAL;
        snprintf(q->hostname, sizeof q->hostname, "%s", strempty(spec->hostname));
        q->uid = spec->uid;
        q->cpus = spec->cpus;
        q->disk_max = spec->disk_max;
        q->inodes_max = spec->inodes_max;
        q->memory_max = spec->memory_max;
        if (spec->runner) {
                if (!digest_is_valid(spec->runner))
                        return -EINVAL;
                memcpy(q->runner, spec->runner, DIGEST_LEN + 1);
                q->purge = spec->purge;
                if (spec->compile_cache && strlen(spec->compile_cache) < sizeof q->path)
                        snprintf(q->path, sizeof q->path, "%s", spec->compile_cache);
        }
        r = worker_send(w, &q, userdata, ret_slot, &s);
        if (r >= 0)
                s->handler.prepare = handler;
        return r;
}

static int send_plain(Worker *w, WorkerRequest **q, worker_handler_t handler, void *userdata, WorkerSlot **ret_slot) {
        WorkerSlot *s;
        int r;

        r = worker_send(w, q, userdata, ret_slot, &s);
        if (r >= 0)
                s->handler.plain = handler;
        return r;
}

int worker_view(Worker *w, const char *id, char *const *layers, worker_handler_t handler, void *userdata,
                WorkerSlot **ret_slot) {
        _cleanup_free_ WorkerRequest *q = NULL;
        int r;

        r = request_new(WORKER_VIEW, &q);
        if (r >= 0)
                r = request_set_run(q, id);
        for (char *const *l = layers; r >= 0 && *l; l++)
                r = request_add_layer(q, *l);
        if (r < 0)
                return r;
        return send_plain(w, &q, handler, userdata, ret_slot);
}

int worker_edit(Worker *w, const char *id, char *const *layers, const char *dir, uint64_t size, uid_t base,
                worker_prepare_handler_t handler, void *userdata, WorkerSlot **ret_slot) {
        _cleanup_free_ WorkerRequest *q = NULL;
        WorkerSlot *s;
        int r;

        r = request_new(layers ? WORKER_EDIT : WORKER_MAP_EDIT, &q);
        if (r >= 0)
                r = request_set_run(q, id);
        for (char *const *l = layers; r >= 0 && l && *l; l++)
                r = request_add_layer(q, *l);
        if (r < 0)
                return r;
        if (strlen(dir) >= sizeof q->path)
                return -ENAMETOOLONG;
        snprintf(q->path, sizeof q->path, "%s", dir);
        q->uid = base;
        q->disk_max = size;
        r = worker_send(w, &q, userdata, ret_slot, &s);
        if (r >= 0)
                s->handler.prepare = handler;
        return r;
}

int worker_edit_disk(Worker *w, const char *id, const char *dir, uint64_t size, bool reserve, worker_handler_t handler,
                     void *userdata, WorkerSlot **ret_slot) {
        _cleanup_free_ WorkerRequest *q = NULL;
        int r;

        r = request_new(WORKER_EDIT_DISK, &q);
        if (r >= 0)
                r = request_set_run(q, id);
        if (r < 0)
                return r;
        if (strlen(dir) >= sizeof q->path)
                return -ENAMETOOLONG;
        snprintf(q->path, sizeof q->path, "%s", dir);
        q->disk_max = size;
        q->reserve = reserve;
        return send_plain(w, &q, handler, userdata, ret_slot);
}

int worker_cleanup(Worker *w, const char *run, bool keep_upper, worker_handler_t handler, void *userdata,
                   WorkerSlot **ret_slot) {
        _cleanup_free_ WorkerRequest *q = NULL;
        int r;

        r = request_new(WORKER_CLEANUP, &q);
        if (r >= 0)
                r = request_set_run(q, run);
        if (r < 0)
                return r;
        q->keep_upper = keep_upper;
        return send_plain(w, &q, handler, userdata, ret_slot);
}

int worker_list(Worker *w, worker_list_handler_t handler, void *userdata, WorkerSlot **ret_slot) {
        _cleanup_free_ WorkerRequest *q = NULL;
        WorkerSlot *s;
        int r;

        r = request_new(WORKER_LIST, &q);
        if (r >= 0)
                r = worker_send(w, &q, userdata, ret_slot, &s);
        if (r >= 0)
                s->handler.list = handler;
        return r;
}

int worker_release_layers(Worker *w, worker_handler_t handler, void *userdata, WorkerSlot **ret_slot) {
        _cleanup_free_ WorkerRequest *q = NULL;
        int r;

        r = request_new(WORKER_RELEASE_LAYERS, &q);
        return r < 0 ? r : send_plain(w, &q, handler, userdata, ret_slot);
}

static int layer_request(Worker *w, WorkerVerb verb, const char *path, const char *digest, worker_handler_t handler,
                         void *userdata, WorkerSlot **ret_slot) {
        _cleanup_free_ WorkerRequest *q = NULL;
        int r;

        r = request_new(verb, &q);
        if (r >= 0)
                r = request_add_layer(q, digest);
        if (r < 0)
                return r;
        if (strlen(path) >= sizeof q->path)
                return -ENAMETOOLONG;
        snprintf(q->path, sizeof q->path, "%s", path);
        return send_plain(w, &q, handler, userdata, ret_slot);
}

int worker_publish_layer(Worker *w, const char *path, const char *digest, worker_handler_t handler, void *userdata,
                         WorkerSlot **ret_slot) {
        return layer_request(w, WORKER_PUBLISH_LAYER, path, digest, handler, userdata, ret_slot);
}

int worker_hash_layer(Worker *w, const char *path, worker_handler_t handler, void *userdata, WorkerSlot **ret_slot) {
        _cleanup_free_ WorkerRequest *q = NULL;
        int r;

        if (strlen(path) >= sizeof q->path)
                return -ENAMETOOLONG;
        r = request_new(WORKER_HASH_LAYER, &q);
        if (r < 0)
                return r;
        snprintf(q->path, sizeof q->path, "%s", path);
        return send_plain(w, &q, handler, userdata, ret_slot);
}

int worker_hash_parse(const char *message, char ret_digest[static DIGEST_LEN + 1], LayerIdentity *ret) {
        if (sscanf(message, "%71s %" SCNu64 " %" SCNu64 " %" SCNu64, ret_digest, &ret->inode, &ret->size,
                   &ret->changed_nsec) != 4 || !digest_is_valid(ret_digest))
                return -EBADMSG;
        return 0;
}

int worker_take_layer(Worker *w, const char *path, const char *digest, const LayerIdentity *identity,
                      worker_handler_t handler, void *userdata, WorkerSlot **ret_slot) {
        _cleanup_free_ WorkerRequest *q = NULL;
        int r;

        if (strlen(path) >= sizeof q->path)
                return -ENAMETOOLONG;
        r = request_new(WORKER_TAKE_LAYER, &q);
        if (r >= 0)
                r = request_add_layer(q, digest);
        if (r < 0)
                return r;
        snprintf(q->path, sizeof q->path, "%s", path);
        q->identity = *identity;
        return send_plain(w, &q, handler, userdata, ret_slot);
}

int worker_verify_layer(Worker *w, const char *digest, worker_handler_t handler, void *userdata,
                        WorkerSlot **ret_slot) {
        return layer_request(w, WORKER_VERIFY_LAYER, "", digest, handler, userdata, ret_slot);
}

int worker_node(Worker *w, const char *run, const char *runner, const char *own, const char *environment,
                worker_handler_t handler, void *userdata, WorkerSlot **ret_slot) {
        _cleanup_free_ WorkerRequest *q = NULL;
        int r;

        r = request_new(WORKER_NODE, &q);
        if (r >= 0)
                r = request_set_run(q, run);
        if (r >= 0)
                r = request_add_layer(q, environment);
        if (r < 0)
                return r;
        if (own) {
                if (!runner || !digest_is_valid(runner) || strlen(own) >= sizeof q->path)
                        return -EINVAL;
                memcpy(q->runner, runner, DIGEST_LEN + 1);
                snprintf(q->path, sizeof q->path, "%s", own);
        }
        return send_plain(w, &q, handler, userdata, ret_slot);
}
