/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Proves, through the real worker, that a run's root is what its layers say, that its writable part keeps the image's
 * ids and its limit, that its listener is reached from inside its network namespace only, that a failing step undoes
 * the earlier ones, and that nothing is left after cleanup. Needs root, mounts and mkfs.erofs; skips (77) otherwise.
 * Works in a mount namespace of its own: the program is its own worker, called again with the worker's arguments.
 */
#include <arpa/inet.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <sys/xattr.h>

#include "basic/fs-util.h"
#include "basic/string-util.h"
#include "image/layer-store.h"
#include "sandbox/proc-files.h"
#include "sandbox/worker-protocol.h"
#include "sandbox/worker-server.h"

#define SKIP 77
#define UID 61234
#define RUN_A "0123456789abcdef0123456789abcdef"
#define RUN_B "fedcba9876543210fedcba9876543210"
#define DISK (UINT64_C(4) << 20)

static char top[] = "/var/tmp/test-sandbox-XXXXXX";
static char base[DIGEST_LEN + 1], delta[DIGEST_LEN + 1];

static const char *at(const char *format, ...) __attribute__((format(printf, 1, 2)));
static const char *at(const char *format, ...) {
        static char buf[8][PATH_MAX];
        static unsigned i;
        char *p = buf[i++ % ELEMENTSOF(buf)];
        va_list ap;
        int n = snprintf(p, PATH_MAX, "%s/", top);

        va_start(ap, format);
        vsnprintf(p + n, (size_t) (PATH_MAX - n), format, ap);
        va_end(ap);
        return p;
}

static void put(const char *path, const char *text) {
        assert(write_file_atomic(AT_FDCWD, path, text, strlen(text), 0644, (uid_t) -1, (gid_t) -1, 0) >= 0);
}

static bool has(const char *path, const char *text) {
        _cleanup_free_ char *found = NULL;

        return read_full_file_at(AT_FDCWD, path, 1 << 20, &found, NULL) >= 0 && streq(found, text);
}

static int run(const char *const *argv) {
        pid_t pid = fork();
        int status;

        if (pid == 0) {
                execvp(argv[0], (char *const *) argv);
                _exit(127);
        }
        assert(waitpid(pid, &status, 0) == pid);
        return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static bool publish(LayerStore *s, const char *tree, char digest[static DIGEST_LEN + 1]) {
        _cleanup_free_ char *staging = NULL, *image = NULL;
        int r;

        assert(layer_store_new_staging(s, &staging) >= 0);
        image = strprintf("%s/x.erofs", staging);
        r = run((const char *const[]) { "mkfs.erofs", "--quiet", "-T0", "--mkfs-time", "-U",
                                        "7d1f4a52-0000-4000-8000-000000000001", image, tree, NULL });
        if (r == 127)
                return false;
        assert(r == 0);
        assert(layer_store_publish(s, image, NULL, digest) >= 0);
        assert(layer_store_drop_staging(s, staging) >= 0);
        return true;
}

static bool make_layers(void) {
        _cleanup_(layer_store_freep) LayerStore *s = NULL;

        assert(layer_store_open(at("state"), &s) >= 0);
        assert(mkdir_parents(at("base/etc"), 0755) >= 0);
        assert(mkdir_parents(at("base/usr/bin"), 0755) >= 0);
        assert(mkdir_parents(at("base/d/opaque"), 0755) >= 0);
        assert(mkdir_parents(at("base/home/agent"), 0755) >= 0);
        put(at("base/etc/name"), "base");
        put(at("base/d/gone"), "x");
        put(at("base/d/stays"), "x");
        put(at("base/d/opaque/hidden"), "x");
        put(at("base/home/agent/mine"), "x");
        assert(chown(at("base/home/agent"), 1000, 1000) >= 0 && chmod(at("base/home/agent"), 0700) >= 0);
        assert(chown(at("base/home/agent/mine"), 1000, 1000) >= 0);

        assert(mkdir_parents(at("delta/etc"), 0755) >= 0);
        assert(mkdir_parents(at("delta/d/opaque"), 0755) >= 0);
        put(at("delta/etc/name"), "delta");
        put(at("delta/d/opaque/new"), "x");
        assert(mknod(at("delta/d/gone"), S_IFCHR, makedev(0, 0)) >= 0);
        assert(setxattr(at("delta/d/opaque"), "trusted.overlay.opaque", "y", 1, 0) >= 0);
        return publish(s, at("base"), base) && publish(s, at("delta"), delta);
}

/* --- the worker, called and waited for --- */

static sd_event *event;
static Worker *worker;

typedef struct Answer {
        bool done;
        int error, fd;
        char message[STEP_MESSAGE_MAX];
        WorkerRun runs[8];
        size_t n_runs;
} Answer;

static void on_plain(int error, const char *message, void *userdata) {
        Answer *a = userdata;

        a->done = true;
        a->error = error;
        snprintf(a->message, sizeof a->message, "%s", message);
}

static void on_prepare(int error, const char *message, int fd, void *userdata) {
        on_plain(error, message, userdata);
        ((Answer *) userdata)->fd = fd;
}

static void on_list(int error, const char *message, const WorkerRun *runs, size_t n, void *userdata) {
        Answer *a = userdata;

        on_plain(error, message, userdata);
        assert(n <= ELEMENTSOF(a->runs));
        if (n > 0)
                memcpy(a->runs, runs, n * sizeof *runs);
        a->n_runs = n;
}

static void await(Answer *a) {
        while (!a->done)
                assert(sd_event_run(event, UINT64_MAX) >= 0);
        if (a->error < 0)
                fprintf(stderr, "(%s)\n", a->message);
}

static Answer prepare(const char *id, const char *upper_layer) {
        const char *layers[] = { base, upper_layer, NULL };
        SandboxSpec spec = {
                .run = id, .layers = layers, .uid = UID, .disk_max = DISK, .memory_max = UINT64_C(256) << 20, .cpus = 1,
                .hostname = "box",
        };
        Answer a = { .fd = -EBADF };

        assert(worker_prepare(worker, &spec, on_prepare, &a, NULL) >= 0);
        await(&a);
        return a;
}

static int cleanup(const char *id, bool keep) {
        Answer a = {};

        assert(worker_cleanup(worker, id, keep, on_plain, &a, NULL) >= 0);
        await(&a);
        return a.error;
}

static Answer list(void) {
        Answer a = {};

        assert(worker_list(worker, on_list, &a, NULL) >= 0);
        await(&a);
        assert(a.error == 0);
        return a;
}

static int release_layers(void) {
        Answer a = {};

        assert(worker_release_layers(worker, on_plain, &a, NULL) >= 0);
        await(&a);
        return a.error;
}

/* Mounts whose line in the table names it. */
static size_t count_mounts(const char *what) {
        _cleanup_free_ char *text = NULL;
        char *save = NULL;
        size_t n = 0;

        assert(read_full_file_at(AT_FDCWD, "/proc/self/mountinfo", 16 << 20, &text, NULL) >= 0);
        for (char *l = strtok_r(text, "\n", &save); l; l = strtok_r(NULL, "\n", &save))
                n += strstr(l, what) != NULL;
        return n;
}

/* --- acts as somebody else --- */

static int as_user(int (*act)(const char *), const char *arg) {
        pid_t pid = fork();
        int status;

        if (pid == 0) {
                if (setgid(UID) < 0 || setuid(UID) < 0)
                        _exit(99);
                _exit(-act(arg));
        }
        assert(waitpid(pid, &status, 0) == pid && WIFEXITED(status));
        return -WEXITSTATUS(status);
}

static int act_write(const char *path) {
        _cleanup_close_ int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);

        return fd < 0 ? -errno : write_full(fd, "hello", 5);
}

static int act_fill(const char *path) {
        static const char zeros[1 << 16];
        _cleanup_close_ int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);

        for (size_t i = 0; i < 2 * DISK / sizeof zeros; i++) {
                int r = fd < 0 ? -errno : write_full(fd, zeros, sizeof zeros);

                if (r < 0)
                        return r;
        }
        return 0;
}

static int act_connect(void) {
        struct sockaddr_in sa = {
                .sin_family = AF_INET, .sin_port = htons(SANDBOX_LISTENER_PORT),
                .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
        };
        _cleanup_close_ int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

        return fd < 0 || connect(fd, (struct sockaddr *) &sa, sizeof sa) < 0 ? -errno : 0;
}

static int connect_inside(const char *netns) {
        pid_t pid = fork();
        int status;

        if (pid == 0) {
                int fd = open(netns, O_RDONLY | O_CLOEXEC);

                if (fd < 0 || setns(fd, CLONE_NEWNET) < 0)
                        _exit(99);
                _exit(-act_connect());
        }
        assert(waitpid(pid, &status, 0) == pid && WIFEXITED(status));
        return -WEXITSTATUS(status);
}

/* --- tests --- */

static void test_root(void) {
        Answer a = prepare(RUN_A, delta);
        struct stat st;
        int fd;

        assert(a.error == 0 && a.fd >= 0);
        assert(has(at("run/runs/%s/root/etc/name", RUN_A), "delta"));
        assert(access(at("run/runs/%s/root/d/gone", RUN_A), F_OK) < 0);
        assert(access(at("run/runs/%s/root/d/stays", RUN_A), F_OK) >= 0);
        assert(access(at("run/runs/%s/root/d/opaque/hidden", RUN_A), F_OK) < 0);
        assert(access(at("run/runs/%s/root/d/opaque/new", RUN_A), F_OK) >= 0);
        assert(stat(at("run/runs/%s/root/home/agent/mine", RUN_A), &st) >= 0 && st.st_uid == UID && st.st_gid == UID);
        assert(stat(at("run/runs/%s/root/etc/name", RUN_A), &st) >= 0 && st.st_uid == 0);
        /* Mount points that the image lacks. */
        assert(stat(at("run/runs/%s/root/opt/agentd/runner", RUN_A), &st) >= 0 && S_ISDIR(st.st_mode));
        assert(stat(at("run/runs/%s/root/etc/machine-id", RUN_A), &st) >= 0 && S_ISREG(st.st_mode));
        assert(stat(at("run/runs/%s/root/var/tmp", RUN_A), &st) >= 0 && (st.st_mode & 07777) == 01777);
        for (const ProcFile *p = proc_files; p->name; p++)
                assert(access(at("run/runs/%s/proc/%s", RUN_A, p->name), R_OK) >= 0);
        assert(has(at("run/runs/%s/proc/online", RUN_A), "0\n"));
        assert(has(at("run/runs/%s/proc/hostname", RUN_A), "box\n"));

        /* Writing as the run's user; the upper keeps the image's ids. */
        assert(chmod(top, 0711) >= 0 && chmod(at("run"), 0711) >= 0 && chmod(at("run/runs"), 0711) >= 0 &&
               chmod(at("run/runs/%s", RUN_A), 0711) >= 0);
        assert(as_user(act_write, at("run/runs/%s/root/home/agent/new", RUN_A)) == 0);
        assert(as_user(act_write, at("run/runs/%s/root/home/agent/mine", RUN_A)) == 0);
        assert(as_user(act_write, at("run/runs/%s/root/etc/name", RUN_A)) == -EACCES);
        assert(as_user(act_fill, at("run/runs/%s/root/home/agent/big", RUN_A)) == -ENOSPC);
        assert(stat(at("run/runs/%s/rw/upper/home/agent/new", RUN_A), &st) >= 0 && st.st_uid == 1000 &&
               st.st_gid == 1000);
        assert(stat(at("run/runs/%s/rw/upper/home/agent/mine", RUN_A), &st) >= 0 && st.st_uid == 1000);

        /* The listener. */
        assert(connect_inside(at("run/runs/%s/netns", RUN_A)) == 0);
        fd = accept4(a.fd, NULL, NULL, SOCK_CLOEXEC);
        assert(fd >= 0);
        close(fd);
        assert(act_connect() < 0);
        close(a.fd);
        assert(connect_inside(at("run/runs/%s/netns", RUN_A)) == -ECONNREFUSED);
}

static void test_failures(void) {
        char missing[DIGEST_LEN + 1];
        Answer a;

        /* Twice the same run: refused, and the first one is untouched. */
        a = prepare(RUN_A, delta);
        assert(a.error == -EEXIST);
        assert(has(at("run/runs/%s/root/etc/name", RUN_A), "delta"));

        /* A layer that is not there: the steps before it are undone. */
        assert(digest_bytes("nothing", 7, missing) >= 0);
        a = prepare(RUN_B, missing);
        assert(a.error == -ENOENT && strstr(a.message, missing));
        assert(access(at("run/runs/%s", RUN_B), F_OK) < 0);
        assert(count_mounts(RUN_B) == 0);

        /* A layer that is no file system. */
        {
                _cleanup_(layer_store_freep) LayerStore *s = NULL;
                _cleanup_free_ char *staging = NULL, *path = NULL;
                char junk[DIGEST_LEN + 1];

                assert(layer_store_open(at("state"), &s) >= 0 && layer_store_new_staging(s, &staging) >= 0);
                path = strprintf("%s/junk", staging);
                put(path, "this is no file system");
                assert(layer_store_publish(s, path, NULL, junk) == 1);
                a = prepare(RUN_B, junk);
                assert(a.error < 0);
                assert(access(at("run/runs/%s", RUN_B), F_OK) < 0);
                assert(count_mounts(RUN_B) == 0 && count_mounts(junk + 7) == 0);
        }

        /* Nothing to clean is fine; a name that is no id is refused before it is sent. */
        assert(cleanup(RUN_B, false) == 0);
        assert(cleanup("00000000000000000000000000000000", false) == 0);
        assert(worker_cleanup(worker, "../../etc", false, on_plain, &a, NULL) == -EINVAL);
}

static void test_cleanup(void) {
        Answer l, a;

        a = prepare(RUN_B, delta);
        assert(a.error == 0);
        close(a.fd);
        l = list();
        assert(l.n_runs == 2 && l.runs[0].composed && l.runs[0].upper);
        put(at("run/runs/%s/token", RUN_B), "secret");

        assert(cleanup(RUN_B, true) == 0);
        assert(access(at("run/runs/%s/token", RUN_B), F_OK) < 0);
        assert(access(at("run/runs/%s/rw/upper", RUN_B), F_OK) >= 0);
        l = list();
        assert(l.n_runs == 2);
        for (size_t i = 0; i < l.n_runs; i++)
                assert(l.runs[i].upper && l.runs[i].composed == streq(l.runs[i].id, RUN_A));
        assert(cleanup(RUN_B, true) == 0);
        assert(cleanup(RUN_B, false) == 0);
        assert(cleanup(RUN_B, false) == 0);
        assert(access(at("run/runs/%s", RUN_B), F_OK) < 0);

        /* Layers stay as long as a run uses them. */
        assert(release_layers() == 0);
        assert(count_mounts(delta + 7) == 1 && count_mounts(base + 7) == 1);
        assert(has(at("run/runs/%s/root/etc/name", RUN_A), "delta"));
        assert(cleanup(RUN_A, false) == 0);
        assert(count_mounts(RUN_A) == 0);
        assert(count_mounts(delta + 7) == 1);
        assert(release_layers() == 0);
        assert(count_mounts(top) == 0);
        assert(list().n_runs == 0);
}

static void never(int error, const char *message, int fd, void *userdata) {
        abort();
}

static void test_cancel(void) {
        const char *layers[] = { base, NULL };
        SandboxSpec spec = { .run = RUN_A, .layers = layers, .uid = UID, .disk_max = DISK };
        WorkerSlot *slot = NULL;
        Answer a = { .fd = -EBADF };

        assert(worker_prepare(worker, &spec, never, NULL, &slot) >= 0);
        slot = worker_slot_unref(slot);
        assert(cleanup(RUN_A, false) == 0);
        assert(count_mounts(RUN_A) == 0 && list().n_runs == 0);
        spec.uid = 0;
        assert(worker_prepare(worker, &spec, on_prepare, &a, NULL) >= 0);
        await(&a);
        assert(a.error == -EINVAL && list().n_runs == 0);
}

static pid_t worker_pid(void) {
        _cleanup_free_ char *text = NULL, *path = strprintf("/proc/self/task/%d/children", (int) getpid());

        assert(read_full_file_at(AT_FDCWD, path, 4096, &text, NULL) >= 0);
        return (pid_t) atoi(text);
}

/* What was asked of a worker that dies is answered with an error; what it leaves can be cleaned by the next one. */
static void test_death(void) {
        const char *layers[] = { base, delta, NULL };
        SandboxSpec spec = { .run = RUN_B, .layers = layers, .uid = UID, .disk_max = DISK };
        Answer a = prepare(RUN_A, delta), b = { .fd = -EBADF };
        pid_t pid = worker_pid();

        assert(a.error == 0 && pid > 0);
        close(a.fd);
        assert(kill(pid, SIGSTOP) >= 0);
        assert(worker_prepare(worker, &spec, on_prepare, &b, NULL) >= 0);
        assert(kill(pid, SIGKILL) >= 0);
        await(&b);
        assert(b.error == -EIO && b.fd < 0);
        assert(list().n_runs == 1); /* by the new worker */
        assert(cleanup(RUN_A, false) == 0);
        assert(cleanup(RUN_B, false) == 0);
        assert(release_layers() == 0);
        assert(count_mounts(top) == 0);
}

/* What is to be taken away is taken away, by whichever worker; unless it is what they die of. */
static void test_death_in_a_cleanup(void) {
        for (unsigned deaths = 1; deaths <= 3; deaths++) {
                Answer a = prepare(RUN_A, delta), b = {};

                assert(a.error == 0);
                close(a.fd);
                for (unsigned i = 0; i < deaths; i++) {
                        pid_t pid = worker_pid();

                        assert(pid > 0 && kill(pid, SIGSTOP) >= 0);
                        if (i == 0)
                                assert(worker_cleanup(worker, RUN_A, false, on_plain, &b, NULL) >= 0);
                        assert(kill(pid, SIGKILL) >= 0);
                        /* Until there is another one, which is a second later where this one lived shorter than that. */
                        while (!b.done && (worker_pid() == pid || worker_pid() == 0))
                                assert(sd_event_run(event, UINT64_MAX) > 0);
                        if (b.done)
                                break;
                }
                await(&b);
                assert(b.error == 0 || (deaths == 3 && b.error == -EIO));
                if (b.error < 0)
                        assert(cleanup(RUN_A, false) == 0);
                assert(count_mounts(RUN_A) == 0 && list().n_runs == 0);
        }
        assert(release_layers() == 0);
}

static void test_layers(void) {
        char other[DIGEST_LEN + 1];
        Answer a = {};

        assert(worker_verify_layer(worker, base, on_plain, &a, NULL) >= 0);
        await(&a);
        assert(a.error == 0);
        assert(digest_bytes("q", 1, other) >= 0);
        a = (Answer) {};
        assert(mkdir(at("state/tmp/s"), 0700) >= 0);
        put(at("state/tmp/s/f"), "p");
        assert(worker_publish_layer(worker, at("state/tmp/s/f"), other, on_plain, &a, NULL) >= 0);
        await(&a);
        assert(a.error == -EBADMSG);
        a = (Answer) {};
        put(at("state/tmp/s/g"), "q");
        assert(worker_publish_layer(worker, at("state/tmp/s/g"), other, on_plain, &a, NULL) >= 0);
        await(&a);
        assert(a.error == 0);
        a = (Answer) {};
        assert(worker_verify_layer(worker, other, on_plain, &a, NULL) >= 0);
        await(&a);
        assert(a.error == 0);
}

/* Many at once: more than the socket takes, answered all. */
static void test_burst(void) {
        enum { N = 200 };
        static Answer a[N];
        const char *layers[] = { base, delta, NULL };

        for (unsigned i = 0; i < N; i++) {
                char id[RUN_ID_LEN + 1];
                SandboxSpec spec = { .run = id, .layers = layers, .uid = UID, .disk_max = DISK };

                snprintf(id, sizeof id, "%032x", i + 1);
                a[i].fd = -EBADF;
                assert(worker_prepare(worker, &spec, on_prepare, &a[i], NULL) >= 0);
        }
        for (unsigned i = 0; i < N; i++) {
                await(&a[i]);
                assert(a[i].error == 0 && a[i].fd >= 0);
                close(a[i].fd);
        }
        for (unsigned i = 0; i < N; i++) {
                char id[RUN_ID_LEN + 1];

                snprintf(id, sizeof id, "%032x", i + 1);
                a[i] = (Answer) {};
                assert(worker_cleanup(worker, id, false, on_plain, &a[i], NULL) >= 0);
        }
        for (unsigned i = 0; i < N; i++) {
                await(&a[i]);
                assert(a[i].error == 0);
        }
        assert(release_layers() == 0);
        assert(count_mounts(top) == 0 && list().n_runs == 0);
}

int main(int argc, char *argv[]) {
        WorkerOptions options = { .program = "/proc/self/exe", .stay = true };

        if (argc == 4 && streq(argv[3], "--stay"))
                return worker_serve(WORKER_SOCKET_FD, argv[1] + strlen("--state="), argv[2] + strlen("--runtime="),
                                    true) < 0;

        if (geteuid() != 0 || unshare(CLONE_NEWNS | CLONE_NEWNET) < 0 ||
            mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0) {
                fprintf(stderr, "Cannot mount here: skipped.\n");
                return SKIP;
        }
        assert(mkdtemp(top));
        assert(mkdir(at("state"), 0700) >= 0);
        if (!make_layers()) {
                fprintf(stderr, "There is no mkfs.erofs: skipped.\n");
                (void) rm_rf_at(AT_FDCWD, top);
                return SKIP;
        }
        options.state_dir = strdup(at("state"));
        options.runtime_dir = strdup(at("run"));
        assert(sd_event_new(&event) >= 0);
        assert(worker_new(event, &options, &worker) >= 0);
        {
                Answer a = prepare(RUN_A, delta);

                if (a.error == -EPERM || a.error == -ENODEV || a.error == -ENOSYS) {
                        fprintf(stderr, "The kernel refuses to compose a root here: skipped.\n");
                        worker = worker_free(worker);
                        sd_event_unref(event);
                        free((char *) options.state_dir);
                        free((char *) options.runtime_dir);
                        (void) rm_rf_at(AT_FDCWD, top);
                        return SKIP;
                }
                assert(a.error == 0);
                close(a.fd);
                assert(cleanup(RUN_A, false) == 0);
        }
        test_root();
        test_failures();
        test_cleanup();
        test_cancel();
        test_layers();
        test_burst();
        test_death();
        test_death_in_a_cleanup();
        worker = worker_free(worker);
        sd_event_unref(event);
        free((char *) options.state_dir);
        free((char *) options.runtime_dir);
        assert(rm_rf_at(AT_FDCWD, top) >= 0);
        return 0;
}
