/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A run's directory on the host. Cleaning goes by names, not by records: whatever was made, or half made, is below
 * one of a few fixed names.
 */
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>

#include "basic/fs-util.h"
#include "basic/string-util.h"
#include "sandbox/edit-disk.h"
#include "sandbox/layer-mount.h"
#include "sandbox/mount-util.h"
#include "sandbox/netns.h"
#include "sandbox/proc-files.h"
#include "sandbox/root.h"
#include "sandbox/run-dir.h"
#include "sandbox/runner-stage.h"

#define LAYERS_FILE_MAX (64U << 10)

int run_dir_setup(const char *runtime_dir, char message[STEP_MESSAGE_MAX]) {
        static const char *const names[] = { "runs", "layers" };

        if (mkdir(runtime_dir, 0755) < 0 && errno != EEXIST)
                return step_fail(message, -errno, "Cannot make %s", runtime_dir);
        for (size_t i = 0; i < ELEMENTSOF(names); i++) {
                _cleanup_free_ char *p = strprintf("%s/%s", runtime_dir, names[i]);

                if (!p)
                        return -ENOMEM;
                /* 0700: what an image holds, set-uid files among them, is nothing for the host's other users. */
                if (mkdir(p, 0700) < 0 && errno != EEXIST)
                        return step_fail(message, -errno, "Cannot make %s", p);
        }
        return 0;
}

static char *run_path(const char *runtime_dir, const char *run, const char *name) {
        return name ? strprintf("%s/runs/%s/%s", runtime_dir, run, name) : strprintf("%s/runs/%s", runtime_dir, run);
}

/* Before the layers are mounted: from now on release_layers() leaves them alone. */
static int write_layers(int dirfd, const char *dir, const char *const *layers, char message[STEP_MESSAGE_MAX]) {
        _cleanup_free_ char *list = NULL;
        size_t size = 0;
        FILE *f;
        int r;

        f = open_memstream(&list, &size);
        if (!f)
                return -ENOMEM;
        for (const char *const *l = layers; *l; l++)
                fprintf(f, "%s\n", *l);
        if (fclose(f) != 0)
                return -ENOMEM;
        r = write_file_atomic(dirfd, "layers", list, size, 0600, (uid_t) -1, (gid_t) -1, 0);
        return r < 0 ? step_fail(message, r, "Cannot write %s/layers", dir) : 0;
}

static int make_skeleton(const char *dir, const SandboxSpec *spec, char message[STEP_MESSAGE_MAX]) {
        static const struct { const char *name; mode_t mode; } dirs[] = {
                { "root", 0755 }, { "rw", 0700 }, { "proc", 0755 }, { "pts", 0755 },
        };
        _cleanup_close_ int fd = -EBADF, proc = -EBADF;
        int r;

        fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
        if (fd < 0)
                return step_fail(message, -errno, "Cannot open %s", dir);
        for (size_t i = 0; i < ELEMENTSOF(dirs); i++)
                if (mkdirat(fd, dirs[i].name, dirs[i].mode) < 0)
                        return step_fail(message, -errno, "Cannot make %s/%s", dir, dirs[i].name);

        r = write_layers(fd, dir, spec->layers, message);
        if (r < 0)
                return r;

        proc = openat(fd, "proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
        if (proc < 0)
                return step_fail(message, -errno, "Cannot open %s/proc", dir);
        r = proc_files_write(proc, spec->run, spec->cpus, spec->memory_max, spec->hostname);
        return r < 0 ? step_fail(message, r, "Cannot write the run's own /proc files") : 0;
}

static int mount_layers(const char *runtime_dir, LayerStore *store, const char *const *digests, char ***ret,
                        char message[STEP_MESSAGE_MAX]) {
        _cleanup_strv_free_ char **points = NULL;

        for (const char *const *l = digests; *l; l++) {
                _cleanup_free_ char *point = NULL;
                int r;

                r = layer_mount_ensure(runtime_dir, store, *l, &point, message);
                if (r >= 0)
                        r = strv_extend(&points, point);
                if (r < 0)
                        return r;
        }
        *ret = TAKE_PTR(points);
        return 0;
}

static int compose(const char *runtime_dir, LayerStore *store, const SandboxSpec *spec,
                   char message[STEP_MESSAGE_MAX]) {
        _cleanup_free_ char *root = run_path(runtime_dir, spec->run, "root"),
                *rw = run_path(runtime_dir, spec->run, "rw");
        _cleanup_strv_free_ char **layers = NULL;
        RootSpec rs = {
                .root = root, .rw = rw, .uid = spec->uid, .size_max = spec->disk_max,
                .inodes_max = spec->inodes_max ?: MIN(MAX(spec->disk_max / 4096, UINT64_C(1024)), UINT64_C(1) << 20),
        };
        int r;

        if (!root || !rw)
                return -ENOMEM;
        r = mount_layers(runtime_dir, store, spec->layers, &layers, message);
        if (r < 0)
                return r;
        rs.layers = layers;
        return root_compose(&rs, message);
}

/* PrivateDevices= leaves the host's /dev/pts in place: a run would see the host's terminals, and could take all the
 * numbers that there are for them. */
static int mount_terminals(const char *path, char message[STEP_MESSAGE_MAX]) {
        static const char *const options[][2] = { { "mode", "0600" }, { "ptmxmode", "0666" }, { "max", "64" } };
        _cleanup_close_ int fs = -EBADF, mount_fd = -EBADF;
        int r;

        r = fs = mount_fs_open("devpts");
        for (size_t i = 0; r >= 0 && i < ELEMENTSOF(options); i++)
                r = mount_fs_string(fs, options[i][0], options[i][1]);
        if (r >= 0)
                r = mount_fd = mount_fs_create(fs, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NOEXEC);
        if (r >= 0)
                r = mount_attach(mount_fd, path);
        return r < 0 ? step_fail(message, r, "Cannot make the run's own terminals") : 0;
}

int run_dir_prepare(const char *runtime_dir, LayerStore *store, const SandboxSpec *spec, int *ret_listener,
                    char message[STEP_MESSAGE_MAX]) {
        _cleanup_free_ char *dir = run_path(runtime_dir, spec->run, NULL),
                *netns = run_path(runtime_dir, spec->run, "netns"), *pts = run_path(runtime_dir, spec->run, "pts");
        _cleanup_close_ int listener = -EBADF;
        int r;

        if (!dir || !netns || !pts)
                return -ENOMEM;
        if (mkdir(dir, 0700) < 0)
                return step_fail(message, -errno, "Cannot make %s", dir);
        r = make_skeleton(dir, spec, message);
        if (r >= 0)
                r = compose(runtime_dir, store, spec, message);
        if (r >= 0)
                r = mount_terminals(pts, message);
        if (r >= 0 && spec->runner)
                r = runner_stage(runtime_dir, store, spec, message);
        if (r >= 0) {
                r = netns_make(netns, SANDBOX_LISTENER_PORT, &listener);
                if (r < 0)
                        (void) step_fail(message, r, "Cannot make the network namespace");
        }
        if (r < 0) {
                char ignored[STEP_MESSAGE_MAX];

                (void) run_dir_cleanup(runtime_dir, spec->run, false, NULL, ignored);
                return r;
        }
        *ret_listener = TAKE_FD(listener);
        return 0;
}

/* runs/<run>/ with an empty root/, and the layers (may be NULL) mounted. THERE: run_dir_edit_disk() has made it
 * already. */
static int make_place(const char *runtime_dir, LayerStore *store, const char *run, bool there,
                      const char *const *layers, char **ret_root, char ***ret_points, char message[STEP_MESSAGE_MAX]) {
        _cleanup_free_ char *dir = run_path(runtime_dir, run, NULL), *root = run_path(runtime_dir, run, "root");
        _cleanup_strv_free_ char **points = NULL;
        _cleanup_close_ int fd = -EBADF;
        int r = 0;

        if (!dir || !root)
                return -ENOMEM;
        if (!there && mkdir(dir, 0700) < 0)
                return step_fail(message, -errno, "Cannot make %s", dir);
        fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
        if (fd < 0 || mkdirat(fd, "root", 0755) < 0)
                return step_fail(message, -errno, "Cannot make %s", root);
        if (layers)
                r = write_layers(fd, dir, layers, message);
        if (r >= 0 && layers)
                r = mount_layers(runtime_dir, store, layers, &points, message);
        if (r < 0)
                return r;
        *ret_root = TAKE_PTR(root);
        if (ret_points)
                *ret_points = TAKE_PTR(points);
        return 0;
}

/* All or nothing. */
static int done_or_cleaned(const char *runtime_dir, const char *run, int r) {
        char ignored[STEP_MESSAGE_MAX];

        if (r < 0 && r != -EEXIST)
                (void) run_dir_cleanup(runtime_dir, run, false, NULL, ignored);
        return r;
}

int run_dir_view(const char *runtime_dir, LayerStore *store, const char *run, const char *const *layers,
                 char message[STEP_MESSAGE_MAX]) {
        _cleanup_strv_free_ char **points = NULL;
        _cleanup_free_ char *root = NULL;
        int r;

        r = make_place(runtime_dir, store, run, false, layers, &root, &points, message);
        if (r >= 0)
                r = root_compose_view(points, root, message);
        return done_or_cleaned(runtime_dir, run, r);
}

int run_dir_edit_disk(const char *runtime_dir, const char *run, const char *dir, uint64_t size, bool reserve,
                      char message[STEP_MESSAGE_MAX]) {
        _cleanup_free_ char *place = run_path(runtime_dir, run, NULL), *point = run_path(runtime_dir, run, "disk");
        int r;

        if (!place || !point)
                return -ENOMEM;
        if (mkdir(place, 0700) < 0)
                return step_fail(message, -errno, "Cannot make %s", place);
        r = mkdir(point, 0700) < 0 ? step_fail(message, -errno, "Cannot make %s", point) :
                                     edit_disk_mount(dir, size, reserve, point, message);
        return done_or_cleaned(runtime_dir, run, r);
}

bool run_dir_has_disk(const char *runtime_dir, const char *run) {
        _cleanup_free_ char *point = run_id_is_valid(run) ? run_path(runtime_dir, run, "disk") : NULL;

        return point && mount_point_is(point) > 0;
}

int run_dir_edit(const char *runtime_dir, LayerStore *store, const char *run, const char *const *layers,
                 const char *dir, bool disk, uid_t base, int *ret_listener, char message[STEP_MESSAGE_MAX]) {
        _cleanup_free_ char *root = NULL, *netns = run_path(runtime_dir, run, "netns"),
                *point = run_path(runtime_dir, run, "disk");
        _cleanup_strv_free_ char **points = NULL;
        int r;

        if (!netns || !point)
                return -ENOMEM;
        r = make_place(runtime_dir, store, run, disk, layers, &root, &points, message);
        if (r >= 0)
                r = root_compose_edit(points, disk ? point : dir, base, root, message);
        if (r >= 0) {
                r = netns_make(netns, SANDBOX_PROXY_PORT, ret_listener);
                if (r < 0)
                        (void) step_fail(message, r, "Cannot make the network namespace");
        }
        return done_or_cleaned(runtime_dir, run, r);
}

int run_dir_map_edit(const char *runtime_dir, const char *run, const char *dir, bool disk, uid_t base,
                     char message[STEP_MESSAGE_MAX]) {
        _cleanup_free_ char *root = NULL, *point = run_path(runtime_dir, run, "disk");
        int r;

        if (!point)
                return -ENOMEM;
        r = make_place(runtime_dir, NULL, run, disk, NULL, &root, NULL, message);
        if (r >= 0)
                r = root_map_edit(disk ? point : dir, base, root, message);
        return done_or_cleaned(runtime_dir, run, r);
}

static int remove_all_but(int at, const char *name, const char *keep) {
        struct dirent *de;
        int fd, r = 0;
        DIR *d;

        fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
        if (fd < 0)
                return -errno;
        d = fdopendir(fd);
        if (!d) {
                r = -errno;
                close(fd);
                return r;
        }
        while (r >= 0 && (de = readdir(d)))
                if (!streq(de->d_name, ".") && !streq(de->d_name, "..") && !streq(de->d_name, keep))
                        r = rm_rf_at(dirfd(d), de->d_name);
        closedir(d);
        return r;
}

/* What systemd-nspawn leaves of an edit session's container when it is killed. */
static void clear_machine(const char *run) {
        static const char *const places[] = { "/run/systemd/nspawn/unix-export", "/run/systemd/nspawn/propagate" };

        for (size_t i = 0; i < ELEMENTSOF(places); i++) {
                _cleanup_free_ char *path = strprintf("%s/" SANDBOX_EDIT_MACHINE "%s", places[i], run);

                if (path && mount_point_clear(path) >= 0)
                        (void) rmdir(path);
        }
}

int run_dir_cleanup(const char *runtime_dir, const char *run, bool keep_upper, int *ret_upper_fd,
                    char message[STEP_MESSAGE_MAX]) {
        _cleanup_free_ char *root = run_path(runtime_dir, run, "root"), *rw = run_path(runtime_dir, run, "rw"),
                *netns = run_path(runtime_dir, run, "netns"), *pts = run_path(runtime_dir, run, "pts"),
                *disk = run_path(runtime_dir, run, "disk"), *runs = strprintf("%s/runs", runtime_dir);
        _cleanup_close_ int runs_fd = -EBADF, upper = -EBADF;
        int r;

        if (ret_upper_fd)
                *ret_upper_fd = -EBADF;
        if (!root || !rw || !netns || !pts || !disk || !runs)
                return -ENOMEM;
        clear_machine(run);
        r = mount_point_clear(root);
        if (r >= 0)
                r = mount_point_clear(netns);
        if (r >= 0)
                r = mount_point_clear(pts);
        if (r >= 0)
                r = edit_disk_unmount(disk);
        if (r < 0)
                return step_fail(message, r, "Cannot unmount the root or the namespace of run %s", run);
        if (!keep_upper) {
                if (ret_upper_fd && mount_point_is(rw) > 0)
                        upper = open(rw, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
                r = mount_point_clear(rw);
                if (r < 0)
                        return step_fail(message, r, "Cannot unmount the writable part of run %s", run);
        }
        runs_fd = open(runs, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
        if (runs_fd < 0)
                return errno == ENOENT ? 0 : step_fail(message, -errno, "Cannot open %s", runs);
        if (keep_upper && mount_point_is(rw) > 0) {
                r = remove_all_but(runs_fd, run, "rw");
                return r < 0 ? step_fail(message, r, "Cannot clear the directory of run %s", run) : 0;
        }
        r = rm_rf_at(runs_fd, run);
        if (r < 0)
                return step_fail(message, r, "Cannot remove the directory of run %s", run);
        if (ret_upper_fd)
                *ret_upper_fd = TAKE_FD(upper);
        return 0;
}

int run_dir_list(const char *runtime_dir, size_t max, WorkerRun **ret, size_t *ret_n, char message[STEP_MESSAGE_MAX]) {
        _cleanup_free_ char *runs = strprintf("%s/runs", runtime_dir);
        _cleanup_free_ WorkerRun *l = NULL;
        struct dirent *de;
        size_t n = 0;
        int r = 0;
        DIR *d;

        if (!runs)
                return -ENOMEM;
        d = opendir(runs);
        if (!d && errno != ENOENT)
                return step_fail(message, -errno, "Cannot read %s", runs);
        while (d && n < max && (de = readdir(d))) {
                _cleanup_free_ char *root = NULL, *rw = NULL;
                WorkerRun *k;

                if (!run_id_is_valid(de->d_name))
                        continue;
                root = run_path(runtime_dir, de->d_name, "root");
                rw = run_path(runtime_dir, de->d_name, "rw");
                k = reallocarray(l, n + 1, sizeof *l);
                if (!k || !root || !rw) {
                        l = k ?: l;
                        r = -ENOMEM;
                        break;
                }
                l = k;
                l[n] = (WorkerRun) { .composed = mount_point_is(root) > 0, .upper = mount_point_is(rw) > 0 };
                memcpy(l[n].id, de->d_name, RUN_ID_LEN + 1);
                n++;
        }
        if (d)
                closedir(d);
        if (r < 0)
                return r;
        *ret = TAKE_PTR(l);
        *ret_n = n;
        return 0;
}

int run_dir_release_layers(const char *runtime_dir, char message[STEP_MESSAGE_MAX]) {
        _cleanup_strv_free_ char **in_use = NULL;
        _cleanup_free_ WorkerRun *runs = NULL;
        size_t n = 0;
        int r;

        r = run_dir_list(runtime_dir, SIZE_MAX, &runs, &n, message);
        if (r < 0)
                return r;
        for (size_t i = 0; i < n; i++) {
                _cleanup_free_ char *path = run_path(runtime_dir, runs[i].id, "layers"), *text = NULL;
                char *save = NULL;

                if (!path)
                        return -ENOMEM;
                r = read_full_file_at(AT_FDCWD, path, LAYERS_FILE_MAX, &text, NULL);
                if (r == -ENOENT)
                        continue;
                if (r < 0)
                        return step_fail(message, r, "Cannot read %s", path);
                for (char *t = strtok_r(text, "\n", &save); t; t = strtok_r(NULL, "\n", &save)) {
                        r = strv_contains(in_use, t) ? 0 : strv_extend(&in_use, t);
                        if (r < 0)
                                return r;
                }
        }
        return layer_mount_release(runtime_dir, in_use, message);
}
