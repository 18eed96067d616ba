/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Everything is built from detached mounts; only the finished tmpfs and the finished overlay are attached to a path. */
#include <linux/openat2.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include "basic/mount-points.h"
#include "basic/string-util.h"
#include "sandbox/mount-util.h"
#include "sandbox/root.h"
#include "sandbox/staging.h"
#include "sandbox/userns.h"

#define ROOT_LAYERS_MAX 32U /* as SANDBOX_LAYERS_MAX; the places of staging.h are that many and some */

/* What is on the way must be a directory (mount-points.h): no symbolic link is followed, none leads out of it. */
static int open_in_root(int root, const char *path, uint64_t flags) {
        struct open_how how = {
                .flags = flags | O_CLOEXEC | O_NOFOLLOW,
                .resolve = RESOLVE_IN_ROOT | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS,
        };
        int fd = (int) syscall(SYS_openat2, root, path, &how, sizeof how);

        return fd < 0 ? -errno : fd;
}

static int make_directory(int root, const char *path, mode_t mode, uid_t uid) {
        _cleanup_free_ char *p = strdup(path);
        _cleanup_close_ int parent = -EBADF;

        if (!p)
                return -ENOMEM;
        parent = open_in_root(root, "/", O_PATH | O_DIRECTORY);
        for (char *s = p, *next; parent >= 0 && s; s = next) {
                char *slash = strchr(s, '/');
                int fd;

                next = slash ? slash + 1 : NULL;
                if (slash)
                        *slash = 0;
                if (mkdirat(parent, s, slash ? 0755 : mode & 07777) < 0) {
                        if (errno != EEXIST)
                                return -errno;
                } else if (!slash && (fchownat(parent, s, uid, uid, AT_SYMLINK_NOFOLLOW) < 0 ||
                                      fchmodat(parent, s, mode & 07777, 0) < 0)) /* umask, sticky bit */
                        return -errno;
                if (!next)
                        return 0;
                fd = open_in_root(root, p, O_PATH | O_DIRECTORY);
                *slash = '/';
                close(parent);
                parent = fd;
        }
        return parent < 0 ? parent : 0;
}

static int make_file(int root, const char *path, mode_t mode) {
        const char *slash = strrchr(path, '/');
        _cleanup_free_ char *dir = strndup(path, (size_t) (slash - path));
        _cleanup_close_ int parent = -EBADF, fd = -EBADF;
        int r;

        if (!dir)
                return -ENOMEM;
        r = make_directory(root, dir, 0755, 0);
        if (r < 0)
                return r;
        parent = open_in_root(root, dir, O_PATH | O_DIRECTORY);
        if (parent < 0)
                return parent;
        fd = openat(parent, slash + 1, O_RDONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode & 07777);
        return fd < 0 ? -errno : 0;
}

/* Images have these from their import; one that lacks some gets them in the upper, and a freeze prunes them again. */
static int make_mount_points(int root, uid_t uid, char message[STEP_MESSAGE_MAX]) {
        for (const MountPoint *m = mount_points; m < mount_points + ELEMENTSOF(mount_points); m++) {
                const bool dir = S_ISDIR(m->mode);
                struct stat st = {};
                int fd, r;

                fd = open_in_root(root, m->path, O_PATH);
                r = fd >= 0 && fstat(fd, &st) < 0 ? -errno : MIN(fd, 0);
                safe_close(fd);
                if (r == -ENOENT)
                        r = dir ? make_directory(root, m->path, m->mode, m->agent ? uid : 0) :
                                  make_file(root, m->path, m->mode);
                else if (r >= 0 && S_ISLNK(st.st_mode))
                        r = -ELOOP;
                else if (r >= 0 && (st.st_mode & S_IFMT) != (m->mode & S_IFMT))
                        r = dir ? -ENOTDIR : -EINVAL;
                if (r < 0)
                        return step_fail(message, r, "Cannot have /%s in the environment%s", m->path,
                                         r == -ELOOP   ? ", it is, or is reached through, a symbolic link" :
                                         r == -ENOTDIR ? ", it is, or is reached through, what is no directory" :
                                         r == -EINVAL  ? ", it is no ordinary file" :
                                                         "");
        }
        return 0;
}

static int make_upper(const RootSpec *spec, char message[STEP_MESSAGE_MAX]) {
        _cleanup_close_ int fs = -EBADF, mount_fd = -EBADF;
        char size[32], inodes[32];
        int r;

        snprintf(size, sizeof size, "%" PRIu64, spec->size_max);
        snprintf(inodes, sizeof inodes, "%" PRIu64, spec->inodes_max);
        fs = mount_fs_open("tmpfs");
        if (fs < 0)
                return step_fail(message, fs, "Cannot make a tmpfs");
        r = mount_fs_string(fs, "source", "agentd-run");
        if (r >= 0)
                r = mount_fs_string(fs, "size", size);
        if (r >= 0)
                r = mount_fs_string(fs, "nr_inodes", inodes);
        if (r >= 0)
                r = mount_fs_string(fs, "mode", "0755");
        if (r >= 0)
                r = mount_fd = mount_fs_create(fs, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV);
        if (r < 0)
                return step_fail(message, r, "Cannot make a tmpfs of %s bytes", size);
        if (mkdirat(mount_fd, "upper", 0755) < 0 || mkdirat(mount_fd, "work", 0700) < 0 ||
            fchmodat(mount_fd, "upper", 0755, 0) < 0)
                return step_fail(message, -errno, "Cannot make the writable part");
        r = mount_attach(mount_fd, spec->rw);
        return r < 0 ? step_fail(message, r, "Cannot attach the writable part") : 0;
}

/* Clones of the layers, the topmost first, as overlayfs wants them. USERNS negative: owners stay as they are. */
static int clone_layers(char *const *layers, int userns, int *fds, size_t n, char message[STEP_MESSAGE_MAX]) {
        for (size_t i = 0; i < n; i++) {
                const char *layer = layers[n - 1 - i];

                fds[i] = userns < 0 ? mount_clone(layer) : mount_clone_idmapped(layer, userns);
                if (fds[i] < 0)
                        return step_fail(message, fds[i], "Cannot map the owners of the layer %s", layer);
        }
        return 0;
}

/*
 * Makes a detached overlay of the clones in FDS, and of UPPER (negative: none), in which "upper" and "work" are used.
 * By fd would be nicer, but overlayfs of kernel 6.12 takes neither fds nor detached mounts (see staging.h).
 */
static int stage_overlay(int fs, const int *fds, size_t n, int upper, const char *const options[][2], size_t n_options,
                         unsigned attributes, int *ret, char message[STEP_MESSAGE_MAX]) {
        char path[64];
        int r, k;

        r = staging_enter();
        for (size_t i = 0; r >= 0 && i < n; i++) {
                r = staging_attach(fds[i], (unsigned) i);
                if (r < 0)
                        break;
                snprintf(path, sizeof path, STAGING_PATH, (unsigned) i);
                r = mount_fs_string(fs, "lowerdir+", path);
        }
        if (r >= 0 && upper >= 0) {
                r = staging_attach(upper, ROOT_LAYERS_MAX);
                if (r >= 0) {
                        snprintf(path, sizeof path, STAGING_PATH "/upper", ROOT_LAYERS_MAX);
                        r = mount_fs_string(fs, "upperdir", path);
                }
                if (r >= 0) {
                        snprintf(path, sizeof path, STAGING_PATH "/work", ROOT_LAYERS_MAX);
                        r = mount_fs_string(fs, "workdir", path);
                }
        }
        for (size_t i = 0; r >= 0 && i < n_options; i++)
                r = mount_fs_string(fs, options[i][0], options[i][1]);
        if (r >= 0)
                r = mount_fs_create(fs, attributes);
        k = staging_leave();
        if (r >= 0 && k < 0) {
                close(r);
                r = k;
        }
        if (r < 0)
                return step_fail(message, r, "Cannot mount the overlay");
        *ret = r;
        return 0;
}

static int make_overlay(const RootSpec *spec, int userns, int *fds, size_t n, int *ret,
                        char message[STEP_MESSAGE_MAX]) {
        static const char *const options[][2] = {
                { "index", "off" }, { "metacopy", "off" }, { "redirect_dir", "off" }, { "xino", "off" },
                { "uuid", "null" },
        };
        _cleanup_close_ int fs = -EBADF, upper = -EBADF;
        int r;

        fs = mount_fs_open("overlay");
        if (fs < 0)
                return step_fail(message, fs, "Cannot make an overlay");
        r = mount_fs_string(fs, "source", "agentd-run");
        if (r < 0)
                return step_fail(message, r, "Cannot name the overlay");
        r = clone_layers(spec->layers, userns, fds, n, message);
        if (r < 0)
                return r;
        upper = mount_clone_idmapped(spec->rw, userns);
        if (upper < 0)
                return step_fail(message, upper, "Cannot map the owners of the writable part");
        return stage_overlay(fs, fds, n, upper, options, ELEMENTSOF(options), MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV, ret,
                             message);
}

/* The root directory is the upper's, which is as old as the run: it gets the layer's time, as all else has. */
static int take_root_times(int overlay, const char *layer, char message[STEP_MESSAGE_MAX]) {
        struct stat st;

        if (stat(layer, &st) < 0)
                return step_fail(message, -errno, "Cannot read the layer %s", layer);
        if (utimensat(overlay, "", (struct timespec[]) { st.st_mtim, st.st_mtim }, AT_EMPTY_PATH) < 0)
                return step_fail(message, -errno, "Cannot set the time of the root");
        return 0;
}

static int compose_overlay(const RootSpec *spec, char message[STEP_MESSAGE_MAX]) {
        _cleanup_close_ int userns = -EBADF, overlay = -EBADF;
        int fds[ROOT_LAYERS_MAX], r;
        size_t n = strv_length(spec->layers);

        if (n == 0 || n > ROOT_LAYERS_MAX)
                return step_fail(message, -E2BIG, "An environment has 1 to %u layers", ROOT_LAYERS_MAX);
        for (size_t i = 0; i < n; i++)
                fds[i] = -EBADF;
        userns = userns_open_for_uid(spec->uid);
        if (userns < 0)
                return step_fail(message, userns, "Cannot make the id map of user %u", (unsigned) spec->uid);

        r = make_overlay(spec, userns, fds, n, &overlay, message);
        for (size_t i = 0; i < n; i++)
                safe_close(fds[i]);
        if (r < 0)
                return r;
        r = make_mount_points(overlay, spec->uid, message);
        if (r < 0)
                return r;
        r = take_root_times(overlay, spec->layers[n - 1], message);
        if (r < 0)
                return r;
        r = mount_attach(overlay, spec->root);
        return r < 0 ? step_fail(message, r, "Cannot attach the root") : 0;
}

int root_compose(const RootSpec *spec, char message[STEP_MESSAGE_MAX]) {
        int r;

        r = make_upper(spec, message);
        if (r < 0)
                return r;
        r = compose_overlay(spec, message);
        if (r < 0)
                (void) umount2(spec->rw, MNT_DETACH | UMOUNT_NOFOLLOW);
        return r;
}

int root_compose_view(char *const *layers, const char *root, char message[STEP_MESSAGE_MAX]) {
        static const char *const options[][2] = {
                { "index", "off" }, { "metacopy", "off" }, { "redirect_dir", "off" }, { "xino", "off" },
        };
        int fds[ROOT_LAYERS_MAX], r;
        _cleanup_close_ int fs = -EBADF, view = -EBADF;
        size_t n = strv_length(layers);

        if (n == 0 || n > ROOT_LAYERS_MAX)
                return step_fail(message, -E2BIG, "An environment has 1 to %u layers", ROOT_LAYERS_MAX);
        if (n == 1) { /* overlayfs wants two */
                view = mount_clone(layers[0]);
                if (view < 0)
                        return step_fail(message, view, "Cannot open the layer %s", layers[0]);
        } else {
                for (size_t i = 0; i < n; i++)
                        fds[i] = -EBADF;
                fs = mount_fs_open("overlay");
                r = fs < 0 ? fs : mount_fs_string(fs, "source", "agentd-view");
                if (r < 0)
                        return step_fail(message, r, "Cannot make an overlay");
                r = clone_layers(layers, -EBADF, fds, n, message);
                if (r >= 0)
                        r = stage_overlay(fs, fds, n, -EBADF, options, ELEMENTSOF(options),
                                          MOUNT_ATTR_RDONLY | MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV, &view, message);
                for (size_t i = 0; i < n; i++)
                        safe_close(fds[i]);
                if (r < 0)
                        return r;
        }
        r = mount_attach(view, root);
        return r < 0 ? step_fail(message, r, "Cannot attach the view") : 0;
}

/* --- edit sessions ---------------------------------------------------------------------------------------------- */

/* As take_root_times(), for an upper that is about to be made: else the same changes would not be the same layer. */
static int begin_upper(const char *layer, const char *upper) {
        struct stat st;

        if (stat(layer, &st) < 0 || chmod(upper, st.st_mode & 07777) < 0 ||
            utimensat(AT_FDCWD, upper, (struct timespec[2]) { st.st_mtim, st.st_mtim }, AT_SYMLINK_NOFOLLOW) < 0)
                return -errno;
        return 0;
}

static int make_edit_dirs(const char *dir, uid_t base, const char *layer, char message[STEP_MESSAGE_MAX]) {
        _cleanup_free_ char *upper = strprintf("%s/upper", dir);
        _cleanup_close_ int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
        bool made;

        if (!upper)
                return -ENOMEM;
        if (fd < 0)
                return step_fail(message, -errno, "Cannot open %s", dir);
        made = mkdirat(fd, "upper", 0755) >= 0;
        if (!made && errno != EEXIST)
                return step_fail(message, -errno, "Cannot make %s/upper", dir);
        if (made && (fchownat(fd, "upper", base, base, AT_SYMLINK_NOFOLLOW) < 0 || begin_upper(layer, upper) < 0))
                return step_fail(message, -errno, "Cannot give %s to the session", upper);
        if (mkdirat(fd, "work", 0700) < 0 && errno != EEXIST)
                return step_fail(message, -errno, "Cannot make %s/work", dir);
        return 0;
}

int root_compose_edit(char *const *layers, const char *dir, uid_t base, const char *root,
                      char message[STEP_MESSAGE_MAX]) {
        static const char *const options[][2] = {
                { "index", "off" }, { "metacopy", "off" }, { "redirect_dir", "off" }, { "xino", "off" },
                { "uuid", "null" },
        };
        _cleanup_close_ int userns = -EBADF, fs = -EBADF, upper = -EBADF, overlay = -EBADF;
        int fds[ROOT_LAYERS_MAX], r;
        size_t n = strv_length(layers);

        if (n == 0 || n > ROOT_LAYERS_MAX)
                return step_fail(message, -E2BIG, "An environment has 1 to %u layers", ROOT_LAYERS_MAX);
        r = make_edit_dirs(dir, base, layers[n - 1], message);
        if (r < 0)
                return r;
        userns = userns_open_for_range(0, base, ROOT_EDIT_IDS);
        if (userns < 0)
                return step_fail(message, userns, "Cannot make the id map from %u", (unsigned) base);
        fs = mount_fs_open("overlay");
        r = fs < 0 ? fs : mount_fs_string(fs, "source", "agentd-edit");
        if (r < 0)
                return step_fail(message, r, "Cannot make an overlay");
        for (size_t i = 0; i < n; i++)
                fds[i] = -EBADF;
        r = clone_layers(layers, userns, fds, n, message);
        if (r >= 0) {
                upper = mount_clone(dir);
                if (upper < 0)
                        r = step_fail(message, upper, "Cannot open %s", dir);
        }
        /* Not nosuid: su and the like are to work, inside the session's user namespace. */
        if (r >= 0)
                r = stage_overlay(fs, fds, n, upper, options, ELEMENTSOF(options), MOUNT_ATTR_NODEV, &overlay, message);
        for (size_t i = 0; i < n; i++)
                safe_close(fds[i]);
        if (r >= 0) {
                r = mount_attach(overlay, root);
                if (r < 0)
                        (void) step_fail(message, r, "Cannot attach the root");
        }
        return r < 0 ? r : 0;
}

int root_map_edit(const char *dir, uid_t base, const char *root, char message[STEP_MESSAGE_MAX]) {
        _cleanup_free_ char *upper = strprintf("%s/upper", dir);
        _cleanup_close_ int userns = -EBADF, view = -EBADF;
        int r;

        if (!upper)
                return -ENOMEM;
        userns = userns_open_for_range(base, 0, ROOT_EDIT_IDS);
        if (userns < 0)
                return step_fail(message, userns, "Cannot make the id map from %u", (unsigned) base);
        view = mount_clone_idmapped(upper, userns);
        if (view < 0)
                return step_fail(message, view, "Cannot map the owners of %s", upper);
        r = mount_attach(view, root);
        return r < 0 ? step_fail(message, r, "Cannot attach the view of %s", upper) : 0;
}
