/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Owners need nothing done: the upper was written through an id-mapped mount, so it holds the image's own ids. All
 * the same they are checked, since a layer with a dynamic user's number in it would give files to whoever gets that
 * number next.
 */
#include <sys/sysmacros.h>
#include <sys/xattr.h>

#include "basic/mount-points.h"
#include "basic/string-util.h"
#include "finish.h"
#include "freeze.h"
#include "report.h"
#include "tree.h"

#define XATTR_LIST_MAX 65536
/* systemd's dynamic users. */
#define DYNAMIC_UID_MIN 61184
#define DYNAMIC_UID_MAX 65519

static int failed(int r, const char *name) {
        _cleanup_free_ char *shown = escape_name(name), *doing = strprintf("Freezing \"%s\"", strempty(shown));

        return report_errno(r, strempty(doing));
}

static int fix_xattrs(const char *path, const char *name) {
        char list[XATTR_LIST_MAX];
        ssize_t n;

        n = llistxattr(path, list, sizeof list);
        if (n < 0)
                return errno == EOPNOTSUPP ? 0 : failed(-errno, name);
        for (const char *x = list; x < list + n; x += strlen(x) + 1) {
                const char *k = startswith(x, "trusted.overlay.");

                if (!k || streq(k, "opaque"))
                        continue;
                /* Both are switched off when a root is composed; a layer with them would need its lower for ever. */
                if (streq(k, "redirect") || streq(k, "metacopy"))
                        return report_error(0, "NotFreezable",
                                            "The changes contain an overlay redirect, which cannot be frozen");
                if (lremovexattr(path, x) < 0)
                        return failed(-errno, name);
        }
        return 0;
}

typedef struct Room {
        uint64_t left, max;
} Room;

static int visit(int dir, const char *name, const struct stat *st, void *userdata) {
        Room *room = userdata;
        char path[64 + NAME_MAX];

        if ((st->st_uid >= DYNAMIC_UID_MIN && st->st_uid <= DYNAMIC_UID_MAX) ||
            (st->st_gid >= DYNAMIC_UID_MIN && st->st_gid <= DYNAMIC_UID_MAX)) {
                _cleanup_free_ char *shown = escape_name(name);

                return report_error(0, "NotFreezable", "\"%s\" belongs to a user number of this host (%u)",
                                    strempty(shown), (unsigned) st->st_uid);
        }
        /* A whiteout has no time of its own. */
        if (S_ISCHR(st->st_mode) && st->st_rdev == makedev(0, 0) &&
            utimensat(dir, name, (struct timespec[2]) {}, AT_SYMLINK_NOFOLLOW) < 0)
                return failed(-errno, name);
        if ((S_ISCHR(st->st_mode) && st->st_rdev != makedev(0, 0)) || S_ISBLK(st->st_mode)) {
                _cleanup_free_ char *shown = escape_name(name);

                return report_error(0, "NotFreezable", "\"%s\" is a device node", strempty(shown));
        }
        if (S_ISREG(st->st_mode)) {
                uint64_t size = (uint64_t) st->st_size / MAX(st->st_nlink, (nlink_t) 1);

                if (size > room->left)
                        return report_error(0, "NotFreezable",
                                            "The files that were changed have more than %" PRIu64 " bytes "
                                            "(MaxSize=); holes count",
                                            room->max);
                room->left -= size;
        }
        report_step("freezing", 0);
        snprintf(path, sizeof path, "/proc/self/fd/%d/%s", dir, name);
        return fix_xattrs(path, name);
}

static bool is_opaque(int fd) {
        char v;

        return fgetxattr(fd, "trusted.overlay.opaque", &v, 1) == 1 && v == 'y';
}

/* An empty directory that is there only because something was mounted on, or made below, it. */
static int prune_directory(int upper, const char *path) {
        _cleanup_close_ int fd = tree_open(upper, path, O_RDONLY | O_DIRECTORY), parent = -EBADF;
        const char *name = NULL;
        struct stat st;

        if (fd < 0 || is_opaque(fd))
                return 0;
        parent = tree_open_parent(upper, path, false, &name);
        if (parent < 0 || fstat(parent, &st) < 0)
                return 0;
        if (unlinkat(parent, name, AT_REMOVEDIR) < 0)
                return errno == ENOTEMPTY || errno == EEXIST ? 0 : failed(-errno, path);
        return futimens(parent, (struct timespec[2]) { st.st_atim, st.st_mtim }) < 0 ? failed(-errno, path) : 0;
}

static int prune_empty_file(int upper, const char *path) {
        _cleanup_close_ int fd = tree_open(upper, path, O_PATH);
        struct stat st;
        int r;

        if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || st.st_size > 0)
                return 0;
        r = tree_remove(upper, path);
        return r < 0 ? failed(r, path) : 0;
}

static int prune(int upper) {
        static const char *const gone[] = {
                "run", "proc", "sys", "dev", "tmp", "var/tmp", "etc/resolv.conf",
        };
        static const char *const empty[] = {
                "var/lib/apt/lists", "var/cache/apt", "var/cache/ldconfig",
                "home/agent/.cache/v8-compile-cache", "home/agent/.cache/node-compile-cache",
                "home/agent/.cache/pip", "home/agent/.npm/_cacache", "home/agent/.npm/_logs", "root/.cache/pip",
                "root/.npm/_cacache", "root/.npm/_logs",
        };
        static const char *const dirs[] = { "opt/agentd/runner", "opt/agentd", "opt", "var/tmp", "home/agent/.cache" };
        static const char *const files[] = { "etc/machine-id", "etc/hostname", "etc/hosts" };
        int r;

        for (size_t i = 0; i < ELEMENTSOF(gone); i++) {
                r = tree_remove(upper, gone[i]);
                if (r < 0)
                        return failed(r, gone[i]);
        }
        for (size_t i = 0; i < ELEMENTSOF(empty); i++) {
                r = tree_empty(upper, empty[i]);
                if (r < 0)
                        return failed(r, empty[i]);
        }
        for (size_t i = 0; i < ELEMENTSOF(dirs); i++) {
                r = prune_directory(upper, dirs[i]);
                if (r < 0)
                        return r;
        }
        for (size_t i = 0; i < ELEMENTSOF(files); i++) {
                r = prune_empty_file(upper, files[i]);
                if (r < 0)
                        return r;
        }
        return 0;
}

/* What is mounted over in a run is what it is to be (mount-points.h); a whiteout is made good when a root is composed. */
static int check_mount_points(int upper) {
        for (size_t i = 0; i < ELEMENTSOF(mount_points); i++) {
                const MountPoint *m = &mount_points[i];

                for (const char *end = m->path; end; end = *end ? end : NULL) {
                        _cleanup_free_ char *path = NULL;
                        _cleanup_close_ int fd = -EBADF;
                        mode_t wanted;
                        struct stat st;

                        end += strspn(end, "/");
                        end += strcspn(end, "/");
                        path = strndup(m->path, (size_t) (end - m->path));
                        if (!path)
                                return failed(-ENOMEM, m->path);
                        wanted = *end ? S_IFDIR : m->mode & S_IFMT;
                        fd = tree_open(upper, path, O_PATH);
                        if (fd == -ENOENT)
                                break;
                        if (fd < 0 || fstat(fd, &st) < 0)
                                return failed(fd < 0 ? fd : -errno, path);
                        if (S_ISCHR(st.st_mode) && st.st_rdev == makedev(0, 0))
                                break;
                        if ((st.st_mode & S_IFMT) != wanted)
                                return report_error(0, "NotFreezable", "/%s is no %s any more, and in runs something is "
                                                    "mounted %s it; make it one again", path,
                                                    wanted == S_IFDIR ? "directory" : "ordinary file",
                                                    *end ? "below" : "on");
                }
        }
        return 0;
}

static int64_t walked(int64_t n) {
        if (n == -ELOOP)
                return report_error(0, "NotFreezable",
                                    "The changes have more directories inside one another than can be "
                                    "frozen");
        if (n == -ENAMETOOLONG)
                return report_error(0, "NotFreezable",
                                    "The changes contain a path that is longer than %d bytes; remove it first",
                                    TREE_PATH_MAX);
        return n < 0 ? report_errno((int) n, "Freezing the changes") : n;
}

int64_t freeze_upper(int upper, uint64_t bytes_max) {
        Room room = { bytes_max, bytes_max };
        int r;

        r = prune(upper);
        if (r >= 0)
                r = check_mount_points(upper);
        if (r < 0)
                return r;
        return walked(tree_walk(upper, visit, &room));
}

static int own_whiteout(int dir, const char *name, const struct stat *st, void *userdata) {
        uid_t base = *(const uid_t *) userdata;

        if (!S_ISCHR(st->st_mode) || st->st_rdev != makedev(0, 0) || (st->st_uid == base && st->st_gid == base))
                return 0;
        return fchownat(dir, name, base, base, AT_SYMLINK_NOFOLLOW) < 0 ? -errno : 0;
}

int64_t freeze_own_whiteouts(int raw, uid_t base) {
        return walked(tree_walk(raw, own_whiteout, &base));
}
