/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The worker's side. Single-threaded: a request of mounts and namespaces is a millisecond, so it is done on the spot;
 * hashing a layer is done in a child whose exit status is the answer. It keeps no state: a successor can go on from
 * what is on disk and in the mount table.
 */
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/wait.h>

#include "basic/fs-util.h"
#include "basic/string-util.h"
#include "image/layer-store.h"
#include "sandbox/edit-disk.h"
#include "sandbox/node-identity.h"
#include "sandbox/root.h"
#include "sandbox/run-dir.h"
#include "sandbox/worker-protocol.h"
#include "sandbox/worker-server.h"

#define JOBS_MAX 32
/* Freed at once below that, in a child above: some 50 ms for each 250 MB. */
#define UPPER_INLINE_MAX (UINT64_C(8) << 20)

typedef struct Job {
        pid_t pid;
        uint64_t id;
        uint32_t verb;
        int result_fd; /* node, edit disk: a memfd with the digest, or with what went wrong */
} Job;

typedef struct Server {
        int socket;
        int lock_fd;
        const char *state_dir, *runtime_dir;
        LayerStore *store;
        Job jobs[JOBS_MAX];
        size_t n_jobs;
        WorkerRequest request;
} Server;

static int send_reply(Server *s, const WorkerReply *reply, size_t size, int fd) {
        union {
                struct cmsghdr header;
                uint8_t buf[CMSG_SPACE(sizeof(int))];
        } control = {};
        struct iovec iov = { .iov_base = (void *) reply, .iov_len = size };
        struct msghdr mh = { .msg_iov = &iov, .msg_iovlen = 1 };

        if (fd >= 0) {
                struct cmsghdr *c;

                mh.msg_control = &control;
                mh.msg_controllen = sizeof control;
                c = CMSG_FIRSTHDR(&mh);
                c->cmsg_level = SOL_SOCKET;
                c->cmsg_type = SCM_RIGHTS;
                c->cmsg_len = CMSG_LEN(sizeof(int));
                memcpy(CMSG_DATA(c), &fd, sizeof fd);
        }
        while (sendmsg(s->socket, &mh, MSG_NOSIGNAL) < 0)
                if (errno != EINTR)
                        return -errno;
        return 0;
}

static int answer(Server *s, uint64_t id, int error, const char *message, int fd) {
        WorkerReply reply = { .version = WORKER_VERSION, .error = error, .id = id };

        if (error < 0)
                snprintf(reply.message, sizeof reply.message, "%s", isempty(message) ? strerror(-error) : message);
        return send_reply(s, &reply, sizeof reply, fd);
}

static bool is_string(const char *s, size_t size) {
        return memchr(s, 0, size) != NULL;
}

static bool hostname_is_valid(const char *s) {
        return s[strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")] == 0;
}

static int take_layers(const WorkerRequest *q, const char *ret[static SANDBOX_LAYERS_MAX + 1]) {
        for (uint32_t i = 0; i < q->n_layers; i++) {
                if (!is_string(q->layers[i], sizeof q->layers[i]) || !digest_is_valid(q->layers[i]))
                        return -EINVAL;
                ret[i] = q->layers[i];
        }
        return 0;
}

static int do_prepare(Server *s, const WorkerRequest *q) {
        const char *layers[SANDBOX_LAYERS_MAX + 1] = {};
        char message[STEP_MESSAGE_MAX] = "";
        SandboxSpec spec = {
                .run = q->run, .layers = layers, .uid = q->uid, .cpus = q->cpus, .disk_max = q->disk_max,
                .inodes_max = q->inodes_max, .memory_max = q->memory_max,
                .hostname = q->hostname[0] ? q->hostname : NULL, .runner = q->runner[0] ? q->runner : NULL,
                .purge = q->purge, .compile_cache = q->path[0] ? q->path : NULL,
        };
        _cleanup_close_ int listener = -EBADF;
        int r;

        if (!run_id_is_valid(q->run) || q->uid < SANDBOX_UID_MIN || q->uid > SANDBOX_UID_MAX || q->cpus > 4096 ||
            q->n_layers < 1 || q->n_layers > SANDBOX_LAYERS_MAX || q->disk_max < 4096 ||
            !hostname_is_valid(q->hostname) || (q->runner[0] && !digest_is_valid(q->runner)))
                return answer(s, q->id, -EINVAL, "The request for a sandbox is not valid", -EBADF);
        if (take_layers(q, layers) < 0)
                return answer(s, q->id, -EINVAL, "A layer's name is no digest", -EBADF);
        r = run_dir_prepare(s->runtime_dir, s->store, &spec, &listener, message);
        return answer(s, q->id, r, message, r < 0 ? -EBADF : listener);
}

static int do_view(Server *s, const WorkerRequest *q) {
        const char *layers[SANDBOX_LAYERS_MAX + 1] = {};
        char message[STEP_MESSAGE_MAX] = "";
        int r;

        if (!run_id_is_valid(q->run) || q->n_layers < 1 || q->n_layers > SANDBOX_LAYERS_MAX ||
            take_layers(q, layers) < 0)
                return answer(s, q->id, -EINVAL, "The request for a view is not valid", -EBADF);
        r = run_dir_view(s->runtime_dir, s->store, q->run, layers, message);
        return answer(s, q->id, r, message, -EBADF);
}

static bool edit_is_valid(const Server *s, const WorkerRequest *q) {
        const char *p = startswith(q->path, s->state_dir);

        p = p ? startswith(p, "/edits/") : NULL;
        return run_id_is_valid(q->run) && p && run_id_is_valid(p);
}

static int do_edit(Server *s, const WorkerRequest *q) {
        const char *layers[SANDBOX_LAYERS_MAX + 1] = {};
        char message[STEP_MESSAGE_MAX] = "";
        _cleanup_close_ int listener = -EBADF;
        int r;

        if (!edit_is_valid(s, q) || q->uid < SANDBOX_EDIT_BASE_MIN ||
            q->uid > SANDBOX_EDIT_BASE_MAX || q->uid % ROOT_EDIT_IDS != 0 || q->n_layers > SANDBOX_LAYERS_MAX ||
            (q->verb == WORKER_EDIT && q->n_layers < 1) || take_layers(q, layers) < 0)
                return answer(s, q->id, -EINVAL, "The request for an edit session is not valid", -EBADF);
        r = q->verb == WORKER_EDIT ?
                run_dir_edit(s->runtime_dir, s->store, q->run, layers, q->path, q->disk_max > 0, q->uid, &listener,
                             message) :
                run_dir_map_edit(s->runtime_dir, q->run, q->path, q->disk_max > 0, q->uid, message);
        return answer(s, q->id, r, message, listener);
}

/* Gives an unmounted tmpfs' memory back without letting the next request wait: whoever closes the last fd does the
 * work. */
static void release_upper(Server *s, int *fd) {
        struct statfs sf;
        int gate[2];
        pid_t pid;
        char c;

        if (*fd < 0)
                return;
        if (fstatfs(*fd, &sf) >= 0 &&
            (uint64_t) (sf.f_blocks - sf.f_bfree) * (uint64_t) sf.f_bsize > UPPER_INLINE_MAX &&
            pipe2(gate, O_CLOEXEC) >= 0) {
                pid = fork();
                if (pid == 0) {
                        /* The lock belongs to the open file, not to the process: a copy must not outlive the worker. */
                        close(s->lock_fd);
                        close(s->socket);
                        close(gate[1]);
                        (void) !read(gate[0], &c, 1); /* until the parent has let go of its copy */
                        _exit(EXIT_SUCCESS);
                }
                *fd = safe_close(*fd);
                close(gate[0]);
                close(gate[1]);
        }
        *fd = safe_close(*fd);
}

static int do_cleanup(Server *s, const WorkerRequest *q) {
        char message[STEP_MESSAGE_MAX] = "";
        _cleanup_close_ int upper = -EBADF;
        int r;

        if (!run_id_is_valid(q->run))
                return answer(s, q->id, -EINVAL, "The run's id is not valid", -EBADF);
        r = run_dir_cleanup(s->runtime_dir, q->run, q->keep_upper, &upper, message);
        release_upper(s, &upper);
        return answer(s, q->id, r, message, -EBADF);
}

static int do_list(Server *s, const WorkerRequest *q) {
        _cleanup_free_ WorkerRun *runs = NULL;
        _cleanup_free_ WorkerReply *reply = NULL;
        char message[STEP_MESSAGE_MAX] = "";
        size_t n = 0, size;
        int r;

        r = run_dir_list(s->runtime_dir, WORKER_RUNS_MAX, &runs, &n, message);
        if (r < 0)
                return answer(s, q->id, r, message, -EBADF);
        size = sizeof *reply + n * sizeof *runs;
        reply = calloc(1, size);
        if (!reply)
                return answer(s, q->id, -ENOMEM, NULL, -EBADF);
        *reply = (WorkerReply) { .version = WORKER_VERSION, .id = q->id, .n_runs = (uint32_t) n };
        if (n > 0)
                memcpy(reply->runs, runs, n * sizeof *runs);
        return send_reply(s, reply, size, -EBADF);
}

static int do_release(Server *s, const WorkerRequest *q) {
        char message[STEP_MESSAGE_MAX] = "";
        int r;

        r = run_dir_release_layers(s->runtime_dir, message);
        return answer(s, q->id, r, message, -EBADF);
}

static int run_node_job(Server *s, const WorkerRequest *q, int result_fd) {
        char digest[DIGEST_LEN + 1] = "", message[STEP_MESSAGE_MAX] = "";
        _cleanup_free_ char *root = strprintf("%s/runs/%s/root", s->runtime_dir, q->run), *own = NULL;
        int r, k;

        if (q->runner[0])
                own = strprintf("%s/layers/%s/runner/%s", s->runtime_dir, q->runner + 7, q->path);
        if (!root || (q->runner[0] && !own))
                return -ENOMEM;
        r = node_identity(root, own, q->layers[0], digest, message);
        k = write_full(result_fd, r < 0 ? message : digest, strlen(r < 0 ? message : digest));
        return r < 0 ? r : k;
}

/* Answers with what went wrong. */
static int run_disk_job(Server *s, const WorkerRequest *q, int result_fd) {
        char message[STEP_MESSAGE_MAX] = "";
        int r, k;

        r = q->verb == WORKER_CLEANUP ?
                run_dir_cleanup(s->runtime_dir, q->run, false, NULL, message) :
                run_dir_edit_disk(s->runtime_dir, q->run, q->path, q->disk_max, q->reserve, message);
        k = write_full(result_fd, message, strlen(message));
        return r < 0 ? r : k;
}

/* The answer is "<digest> <inode> <size> <changed>". */
static int run_hash_job(Server *s, const WorkerRequest *q, int result_fd) {
        char digest[DIGEST_LEN + 1], text[STEP_MESSAGE_MAX];
        LayerIdentity id;
        int r;

        r = layer_store_hash(s->store, q->path, NULL, digest, &id);
        if (r < 0)
                return r;
        snprintf(text, sizeof text, "%s %" PRIu64 " %" PRIu64 " %" PRIu64, digest, id.inode, id.size, id.changed_nsec);
        return write_full(result_fd, text, strlen(text));
}

static int run_job(Server *s, const WorkerRequest *q, int result_fd) {
        char digest[DIGEST_LEN + 1];

        switch (q->verb) {
        case WORKER_NODE:
                return run_node_job(s, q, result_fd);
        case WORKER_EDIT_DISK:
        case WORKER_CLEANUP:
                return run_disk_job(s, q, result_fd);
        case WORKER_VERIFY_LAYER:
                return layer_store_verify(s->store, q->layers[0]);
        case WORKER_HASH_LAYER:
                return run_hash_job(s, q, result_fd);
        case WORKER_TAKE_LAYER:
                return layer_store_take(s->store, q->path, q->layers[0], &q->identity);
        default:
                return layer_store_publish(s->store, q->path, q->layers[0], digest);
        }
}

/* Whether it has more to say than its exit status. */
static bool job_answers(uint32_t verb) {
        return verb == WORKER_NODE || verb == WORKER_HASH_LAYER || verb == WORKER_EDIT_DISK || verb == WORKER_CLEANUP;
}

static int do_job(Server *s, const WorkerRequest *q) {
        _cleanup_close_ int result_fd = -EBADF;
        pid_t pid;

        if (q->verb == WORKER_EDIT_DISK) {
                if (!edit_is_valid(s, q) || q->disk_max < EDIT_DISK_SIZE_MIN || q->disk_max > INT64_MAX)
                        return answer(s, q->id, -EINVAL, "The request for an edit's disk is not valid", -EBADF);
        } else if (q->verb == WORKER_CLEANUP) {
                if (!run_id_is_valid(q->run))
                        return answer(s, q->id, -EINVAL, "The run's id is not valid", -EBADF);
        } else if (q->verb != WORKER_HASH_LAYER &&
                   (!is_string(q->layers[0], sizeof q->layers[0]) || !digest_is_valid(q->layers[0])))
                return answer(s, q->id, -EINVAL, "The layer's name is no digest", -EBADF);
        if (s->n_jobs >= JOBS_MAX)
                return answer(s, q->id, -EAGAIN, "Too many layers are being checked; try again", -EBADF);
        if (q->verb == WORKER_NODE && (!run_id_is_valid(q->run) || (q->runner[0] && !digest_is_valid(q->runner))))
                return answer(s, q->id, -EINVAL, "The question for a node is not valid", -EBADF);
        if (job_answers(q->verb)) {
                result_fd = memfd_create("agentd-job", MFD_CLOEXEC);
                if (result_fd < 0)
                        return answer(s, q->id, -errno, "Cannot start a child", -EBADF);
        }
        pid = fork();
        if (pid < 0)
                return answer(s, q->id, -errno, "Cannot start a child", -EBADF);
        if (pid == 0) {
                int r;

                close(s->lock_fd);
                close(s->socket);
                (void) prctl(PR_SET_PDEATHSIG, SIGKILL); /* what it would go on to make is looked for only now */
                r = run_job(s, q, result_fd);
                _exit(r < 0 ? MIN(-r, 254) : 0);
        }
        s->jobs[s->n_jobs++] = (Job) { .pid = pid, .id = q->id, .verb = q->verb, .result_fd = TAKE_FD(result_fd) };
        return 0;
}

/* The answer of a job that has more to say than its exit status. */
static int answer_words(Server *s, const Job *job, int error) {
        WorkerReply reply = { .version = WORKER_VERSION, .error = error, .id = job->id };
        ssize_t n = pread(job->result_fd, reply.message, sizeof reply.message - 1, 0);
        char digest[DIGEST_LEN + 1];

        if (error < 0 && job->verb == WORKER_HASH_LAYER)
                return answer(s, job->id, error, error == -ETXTBSY ? "The layer is still being written" : NULL, -EBADF);
        if (n <= 0 && error < 0)
                snprintf(reply.message, sizeof reply.message, "The %s",
                         job->verb == WORKER_NODE      ? "node cannot be read"
                         : job->verb == WORKER_CLEANUP ? "disk cannot be taken away"
                                                       : "disk cannot be made");
        snprintf(digest, sizeof digest, "%.*s", DIGEST_LEN, reply.message);
        if ((job->verb == WORKER_NODE || job->verb == WORKER_HASH_LAYER) && error >= 0 && !digest_is_valid(digest))
                reply.error = -EIO;
        return send_reply(s, &reply, sizeof reply, -EBADF);
}

static int reap(Server *s) {
        for (;;) {
                siginfo_t si = {};
                int error, r;
                size_t i;

                if (waitid(P_ALL, 0, &si, WEXITED | WNOHANG) < 0)
                        return errno == ECHILD ? 0 : -errno;
                if (si.si_pid == 0)
                        return 0;
                for (i = 0; i < s->n_jobs && s->jobs[i].pid != si.si_pid; i++)
                        ;
                if (i == s->n_jobs)
                        continue;
                error = si.si_code == CLD_EXITED ? -si.si_status : -EIO;
                if (s->jobs[i].result_fd >= 0) {
                        r = answer_words(s, &s->jobs[i], error);
                        safe_close(s->jobs[i].result_fd);
                } else
                        r = answer(s, s->jobs[i].id, error,
                                   error == -EBADMSG   ? "The layer's bytes do not have the digest of its name"
                                   : error == -ENOENT  ? "There is no such layer"
                                   : error == -ETXTBSY ? "The layer is still being written"
                                   : s->jobs[i].verb != WORKER_VERIFY_LAYER && error != -EIO
                                           ? NULL
                                           : "The layer cannot be read",
                                   -EBADF);
                s->jobs[i] = s->jobs[--s->n_jobs];
                if (r < 0)
                        return r;
        }
}

static int dispatch(Server *s, const WorkerRequest *q) {
        if (q->version != WORKER_VERSION)
                return -EPROTO;
        if (!is_string(q->run, sizeof q->run) || !is_string(q->hostname, sizeof q->hostname) ||
            !is_string(q->path, sizeof q->path) || !is_string(q->runner, sizeof q->runner))
                return -EPROTO;
        switch (q->verb) {
        case WORKER_PREPARE:
                return do_prepare(s, q);
        case WORKER_VIEW:
                return do_view(s, q);
        case WORKER_EDIT:
        case WORKER_MAP_EDIT:
                return do_edit(s, q);
        case WORKER_CLEANUP:
                /* To give back what is free on a disk takes as long as the disk below it likes. */
                return s->n_jobs < JOBS_MAX && run_dir_has_disk(s->runtime_dir, q->run) ? do_job(s, q)
                                                                                        : do_cleanup(s, q);
        case WORKER_LIST:
                return do_list(s, q);
        case WORKER_RELEASE_LAYERS:
                return do_release(s, q);
        case WORKER_PUBLISH_LAYER:
        case WORKER_HASH_LAYER:
        case WORKER_TAKE_LAYER:
        case WORKER_VERIFY_LAYER:
        case WORKER_NODE:
        case WORKER_EDIT_DISK:
                return do_job(s, q);
        default:
                return answer(s, q->id, -EOPNOTSUPP, "Unknown request", -EBADF);
        }
}

static int loop(Server *s, int signal_fd) {
        for (;;) {
                struct pollfd p[] = {
                        { .fd = s->socket, .events = POLLIN },
                        { .fd = signal_fd, .events = POLLIN },
                };
                struct signalfd_siginfo ssi;
                ssize_t n;
                int r;

                if (poll(p, ELEMENTSOF(p), -1) < 0) {
                        if (errno == EINTR)
                                continue;
                        return -errno;
                }
                if (p[1].revents & POLLIN) {
                        (void) !read(signal_fd, &ssi, sizeof ssi);
                        r = reap(s);
                        if (r < 0)
                                return r;
                }
                if (!p[0].revents)
                        continue;
                n = recv(s->socket, &s->request, sizeof s->request, MSG_TRUNC);
                if (n < 0) {
                        if (errno == EINTR || errno == EAGAIN)
                                continue;
                        return -errno;
                }
                if (n == 0)
                        return 0; /* agentd is gone; whoever comes next finds what is there */
                if ((size_t) n != sizeof s->request)
                        return -EPROTO;
                r = dispatch(s, &s->request);
                if (r == -EPIPE || r == -ECONNRESET)
                        return 0;
                if (r < 0)
                        return r;
        }
}

static int join_init(void) {
        _cleanup_close_ int ns = open("/proc/1/ns/mnt", O_RDONLY | O_CLOEXEC);

        if (ns < 0 || setns(ns, CLONE_NEWNS) < 0)
                return -errno;
        return 0;
}

static int take_lock(const char *runtime_dir) {
        _cleanup_free_ char *path = strprintf("%s/worker.lock", runtime_dir);
        _cleanup_close_ int fd = -EBADF;

        if (!path)
                return -ENOMEM;
        fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (fd < 0)
                return -errno;
        while (flock(fd, LOCK_EX) < 0)
                if (errno != EINTR)
                        return -errno;
        return TAKE_FD(fd);
}

/*
 * systemd-nspawn masks boot_id with a mount of a file that it then deletes, and PID 1 cannot bind a run's own over
 * such a one. Where it is so, a file that exists, with the same content, is laid over it.
 */
static int mend_boot_id(const char *runtime_dir) {
        static const char boot_id[] = "/proc/sys/kernel/random/boot_id";
        _cleanup_free_ char *mounts = NULL, *content = NULL, *path = NULL, *mine = NULL;
        bool masked = false;
        char *save = NULL;
        size_t size;
        int r;

        r = read_full_file_at(AT_FDCWD, "/proc/self/mountinfo", 16U << 20, &mounts, NULL);
        if (r < 0)
                return r;
        path = strprintf("%s/boot_id", runtime_dir);
        mine = strprintf(" %s ", boot_id);
        if (!path || !mine)
                return -ENOMEM;
        /* Later lines are on top of earlier ones. */
        for (char *l = strtok_r(mounts, "\n", &save); l; l = strtok_r(NULL, "\n", &save)) {
                char *at = strstr(l, mine);

                if (at) {
                        *at = 0;
                        masked = endswith(l, "//deleted") != NULL;
                }
        }
        if (!masked)
                return 0;
        r = read_full_file_at(AT_FDCWD, boot_id, 4096, &content, &size);
        if (r >= 0)
                r = write_file_atomic(AT_FDCWD, path, content, size, 0444, (uid_t) -1, (gid_t) -1, 0);
        if (r < 0)
                return r;
        /* Nothing can be mounted on a deleted file, so nspawn's own mask has to go first. */
        while (umount2(boot_id, MNT_DETACH) >= 0)
                ;
        return mount(path, boot_id, NULL, MS_BIND, NULL) < 0 ? -errno : 0;
}

int worker_serve(int socket, const char *state_dir, const char *runtime_dir, bool stay) {
        _cleanup_close_ int lock_fd = -EBADF, signal_fd = -EBADF;
        _cleanup_(layer_store_freep) LayerStore *store = NULL;
        char message[STEP_MESSAGE_MAX] = "";
        Server *s;
        sigset_t ss;
        int r;

        if (!stay) {
                r = join_init();
                if (r < 0)
                        return r;
        }
        umask(0022);
        sigemptyset(&ss);
        sigaddset(&ss, SIGCHLD);
        if (sigprocmask(SIG_BLOCK, &ss, NULL) < 0)
                return -errno;
        signal_fd = signalfd(-1, &ss, SFD_CLOEXEC | SFD_NONBLOCK);
        if (signal_fd < 0)
                return -errno;
        r = run_dir_setup(runtime_dir, message);
        if (r < 0)
                return r;
        lock_fd = take_lock(runtime_dir);
        if (lock_fd < 0)
                return lock_fd;
        if (!stay) {
                r = mend_boot_id(runtime_dir);
                if (r < 0)
                        return r;
        }
        r = layer_store_open(state_dir, &store);
        if (r < 0)
                return r;
        s = calloc(1, sizeof *s);
        if (!s)
                return -ENOMEM;
        *s = (Server) { .socket = socket, .lock_fd = lock_fd, .state_dir = state_dir, .runtime_dir = runtime_dir,
                         .store = store };
        r = loop(s, signal_fd);
        free(s);
        return r;
}
