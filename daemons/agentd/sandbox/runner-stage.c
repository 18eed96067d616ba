/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The environment belongs to whoever made it, so every path in it is resolved as the run would: by openat2() with the
 * run's root as the root.
 */
#include <dirent.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "basic/fs-util.h"
#include "basic/string-util.h"
#include "sandbox/layer-mount.h"
#include "sandbox/runner-stage.h"

static int open_directory(int root, const char *path) {
        struct open_how how = {
                .flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC,
                .resolve = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS,
        };
        int fd = (int) syscall(SYS_openat2, root, path, &how, sizeof how);

        return fd < 0 ? -errno : fd;
}

static bool is_missing(int r) {
        return r == -ENOENT || r == -ENOTDIR || r == -ELOOP;
}

/* Removes NAME from the directory at PATH, whatever it is. */
static int remove_entry(int root, const char *path, const char *name) {
        _cleanup_close_ int dir = open_directory(root, path);

        if (dir < 0)
                return is_missing(dir) ? 0 : dir;
        return rm_rf_at(dir, name);
}

/* Node keeps its bytecode in directories such as "v20.19.2-x64-0e4f5a3c-1000"; nothing else is touched, whatever the
 * variable says. */
static int remove_node_caches(int root, const char *path) {
        _cleanup_close_ int dir = open_directory(root, path);
        struct dirent *de;
        int r = 0, fd;
        DIR *d;

        if (dir < 0)
                return is_missing(dir) ? 0 : dir;
        fd = fcntl(dir, F_DUPFD_CLOEXEC, 3);
        if (fd < 0)
                return -errno;
        d = fdopendir(fd);
        if (!d) {
                r = -errno;
                close(fd);
                return r;
        }
        while (r >= 0 && (de = readdir(d)))
                if (fnmatch("v[0-9]*.*-*-*", de->d_name, 0) == 0)
                        r = rm_rf_at(dir, de->d_name);
        closedir(d);
        return r;
}

int compile_cache_purge(const char *root, const char *compile_cache, char message[STEP_MESSAGE_MAX]) {
        static const char *const caches[] = { "v8-compile-cache", "node-compile-cache" };
        _cleanup_close_ int fd = open(root, O_PATH | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
        int r;

        if (fd < 0)
                return step_fail(message, -errno, "purge: Cannot open the root");
        for (size_t i = 0; i < ELEMENTSOF(caches); i++) {
                r = remove_entry(fd, "home/agent/.cache", caches[i]);
                if (r < 0)
                        return step_fail(message, r, "purge: Cannot empty /home/agent/.cache/%s", caches[i]);
        }
        if (!isempty(compile_cache)) {
                r = remove_node_caches(fd, compile_cache);
                if (r < 0)
                        return step_fail(message, r, "purge: Cannot empty the directory of NODE_COMPILE_CACHE");
        }
        return 0;
}

/* Before it is mounted: from now on layer_mount_release() leaves it alone. */
static int note_layer(const char *runtime_dir, const char *run, const char *digest) {
        _cleanup_free_ char *path = strprintf("%s/runs/%s/layers", runtime_dir, run), *line = strprintf("%s\n", digest);
        _cleanup_close_ int fd = -EBADF;

        if (!path || !line)
                return -ENOMEM;
        fd = open(path, O_WRONLY | O_APPEND | O_CLOEXEC | O_NOFOLLOW);
        return fd < 0 ? -errno : write_full(fd, line, strlen(line));
}

int runner_stage(const char *runtime_dir, LayerStore *store, const SandboxSpec *spec, char message[STEP_MESSAGE_MAX]) {
        _cleanup_free_ char *point = NULL, *root = NULL;
        char why[STEP_MESSAGE_MAX] = "";
        int r;

        r = note_layer(runtime_dir, spec->run, spec->runner);
        if (r < 0)
                return step_fail(message, r, "stage: Cannot note the runner's layer");
        r = layer_mount_ensure(runtime_dir, store, spec->runner, &point, why);
        if (r < 0) {
                snprintf(message, STEP_MESSAGE_MAX, "stage: %.*s", STEP_MESSAGE_MAX - 16, why);
                return r;
        }
        if (!spec->purge)
                return 0;
        root = strprintf("%s/runs/%s/root", runtime_dir, spec->run);
        if (!root)
                return -ENOMEM;
        return compile_cache_purge(root, spec->compile_cache, message);
}
