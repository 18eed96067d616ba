/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>

#include "basic/fs-util.h"
#include "basic/strmap.h"
#include "basic/string-util.h"
#include "merge.h"
#include "report.h"

#define DEPTH_MAX 2048U
#define XATTRS_MAX 65536
#define BLOCK_SIZE (256 * 1024)

typedef struct Link {
        char key[48]; /* inode of the layer */
        char *path;   /* in the tree */
} Link;

typedef struct Merge {
        int tree; /* root */
        StrMap *links;
        uint64_t entries;
} Merge;

static int failed(int r, const char *path) {
        _cleanup_free_ char *shown = escape_name(path), *doing = strprintf("Merging \"%s\"", strempty(shown));

        return report_errno(r, strempty(doing));
}

static bool is_whiteout(const struct stat *st) {
        return S_ISCHR(st->st_mode) && st->st_rdev == makedev(0, 0);
}

static void by_fd(char buf[static 64 + NAME_MAX], int dir, const char *name) {
        snprintf(buf, 64 + NAME_MAX, "/proc/self/fd/%d/%s", dir, name);
}

static bool is_opaque(int dir, const char *name) {
        char path[64 + NAME_MAX], v;

        by_fd(path, dir, name);
        return lgetxattr(path, "trusted.overlay.opaque", &v, 1) == 1 && v == 'y';
}

static int set_opaque(int dir, const char *name) {
        char path[64 + NAME_MAX];

        by_fd(path, dir, name);
        return lsetxattr(path, "trusted.overlay.opaque", "y", 1, 0) < 0 ? -errno : 0;
}

/* All but overlayfs' own; those that the tree's inode had before go. */
static int copy_xattrs(int from_dir, int to_dir, const char *from_name, const char *to_name) {
        static char names[XATTRS_MAX], value[XATTRS_MAX];
        char from[64 + NAME_MAX], to[64 + NAME_MAX];
        ssize_t n, m;

        by_fd(from, from_dir, from_name);
        by_fd(to, to_dir, to_name);
        n = llistxattr(to, names, sizeof names);
        for (const char *x = names; n > 0 && x < names + n; x += strlen(x) + 1)
                if (!startswith(x, "trusted.overlay.") && lremovexattr(to, x) < 0 && errno != ENODATA)
                        return -errno;
        n = llistxattr(from, names, sizeof names);
        if (n < 0)
                return errno == EOPNOTSUPP ? 0 : -errno;
        for (const char *x = names; x < names + n; x += strlen(x) + 1) {
                if (startswith(x, "trusted.overlay."))
                        continue;
                m = lgetxattr(from, x, value, sizeof value);
                if (m < 0 || lsetxattr(to, x, value, (size_t) m, 0) < 0)
                        return -errno;
        }
        return 0;
}

static int copy_attributes(int from_dir, int to_dir, const char *from_name, const char *to_name,
                           const struct stat *st) {
        struct timespec times[2] = { st->st_mtim, st->st_mtim };
        int r;

        if (fchownat(to_dir, to_name, st->st_uid, st->st_gid, AT_SYMLINK_NOFOLLOW) < 0)
                return -errno;
        /* In this order: chown() takes set-id bits and capabilities away. */
        if (!S_ISLNK(st->st_mode) && fchmodat(to_dir, to_name, st->st_mode & 07777, 0) < 0)
                return -errno;
        r = copy_xattrs(from_dir, to_dir, from_name, to_name);
        if (r < 0)
                return r;
        return utimensat(to_dir, to_name, times, AT_SYMLINK_NOFOLLOW) < 0 ? -errno : 0;
}

static int copy_data(int from_dir, int to_dir, const char *name) {
        static char buf[BLOCK_SIZE];
        _cleanup_close_ int from = openat(from_dir, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC),
                            to = openat(to_dir, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
        ssize_t n;
        int r;

        if (from < 0 || to < 0)
                return -errno;
        while ((n = read(from, buf, sizeof buf)) > 0) {
                r = write_full(to, buf, (size_t) n);
                if (r < 0)
                        return r;
        }
        return n < 0 ? -errno : 0;
}

/* 1: it was linked to one that is there already. */
static int copy_link(Merge *m, int to_dir, const char *name, const char *path, const struct stat *st) {
        Link *l, *found;
        int r;

        if (st->st_nlink < 2)
                return 0;
        l = calloc(1, sizeof *l);
        if (!l)
                return -ENOMEM;
        snprintf(l->key, sizeof l->key, "%" PRIu64, (uint64_t) st->st_ino);
        found = strmap_get(m->links, l->key);
        if (found) {
                free(l);
                return linkat(m->tree, found->path, to_dir, name, 0) < 0 ? -errno : 1;
        }
        l->path = strdup(path);
        r = l->path ? strmap_put(m->links, l->key, l) : -ENOMEM;
        if (r < 0) {
                free(l->path);
                free(l);
        }
        return r;
}

static int copy_other(Merge *m, int from_dir, int to_dir, const char *name, const char *path, const struct stat *st) {
        char target[PATH_MAX];
        ssize_t n;
        int r;

        r = rm_rf_at(to_dir, name);
        if (r < 0)
                return r;
        if (is_whiteout(st)) {
                if (mknodat(to_dir, name, S_IFCHR, makedev(0, 0)) < 0 ||
                    utimensat(to_dir, name, (struct timespec[2]) {}, AT_SYMLINK_NOFOLLOW) < 0)
                        return -errno;
                return fchownat(to_dir, name, st->st_uid, st->st_gid, AT_SYMLINK_NOFOLLOW) < 0 ? -errno : 0;
        }
        r = copy_link(m, to_dir, name, path, st);
        if (r != 0)
                return MIN(r, 0);
        if (S_ISREG(st->st_mode))
                r = copy_data(from_dir, to_dir, name);
        else if (S_ISLNK(st->st_mode)) {
                n = readlinkat(from_dir, name, target, sizeof target - 1);
                if (n < 0)
                        return -errno;
                target[n] = 0;
                r = symlinkat(target, to_dir, name) < 0 ? -errno : 0;
        } else if (S_ISFIFO(st->st_mode) || S_ISSOCK(st->st_mode))
                r = mknodat(to_dir, name, (st->st_mode & S_IFMT) | 0600, 0) < 0 ? -errno : 0;
        else
                r = -EINVAL; /* a freeze lets no other device through */
        return r < 0 ? r : copy_attributes(from_dir, to_dir, name, name, st);
}

static int merge_directory(Merge *m, int from, int to, const char *path, unsigned depth);

static int merge_entry(Merge *m, int from_dir, int to_dir, const char *name, const char *path, unsigned depth) {
        _cleanup_close_ int from = -EBADF, to = -EBADF;
        bool opaque, there;
        struct stat st, old;
        int r;

        report_step("merging", ++m->entries);
        if (fstatat(from_dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
                return failed(-errno, path);
        if (!S_ISDIR(st.st_mode)) {
                r = copy_other(m, from_dir, to_dir, name, path, &st);
                return r < 0 ? failed(r, path) : 0;
        }
        opaque = is_opaque(from_dir, name);
        there = fstatat(to_dir, name, &old, AT_SYMLINK_NOFOLLOW) >= 0;
        if (there && (opaque || !S_ISDIR(old.st_mode))) {
                /* What was not a directory hid the base's, and so does this one. */
                r = rm_rf_at(to_dir, name);
                if (r < 0)
                        return failed(r, path);
                opaque = true;
                there = false;
        }
        if (!there && mkdirat(to_dir, name, 0700) < 0)
                return failed(-errno, path);
        if (opaque) {
                r = set_opaque(to_dir, name);
                if (r < 0)
                        return failed(r, path);
        }
        from = openat(from_dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        to = openat(to_dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (from < 0 || to < 0)
                return failed(-errno, path);
        r = merge_directory(m, from, to, path, depth + 1);
        if (r < 0)
                return r;
        r = copy_attributes(from_dir, to_dir, name, name, &st);
        return r < 0 ? failed(r, path) : 0;
}

static int merge_directory(Merge *m, int from, int to, const char *path, unsigned depth) {
        struct dirent *de;
        int copy, r = 0;
        DIR *d;

        if (depth > DEPTH_MAX)
                return failed(-ELOOP, path);
        copy = openat(from, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        d = copy < 0 ? NULL : fdopendir(copy);
        if (!d) {
                r = -errno;
                safe_close(copy);
                return failed(r, path);
        }
        while (r >= 0 && (de = readdir(d))) {
                _cleanup_free_ char *child = NULL;

                if (streq(de->d_name, ".") || streq(de->d_name, ".."))
                        continue;
                child = isempty(path) ? strdup(de->d_name) : strprintf("%s/%s", path, de->d_name);
                r = child ? merge_entry(m, from, to, de->d_name, child, depth) : report_errno(-ENOMEM, "Merging");
        }
        closedir(d);
        return r;
}

int merge_layer(int layer, int tree) {
        Merge m = { .tree = tree, .links = strmap_new() };
        struct stat st;
        Link *l;
        int r;

        if (!m.links)
                return report_errno(-ENOMEM, "Merging");
        r = merge_directory(&m, layer, tree, "", 0);
        if (r >= 0) {
                r = fstat(layer, &st) < 0 ? -errno : copy_attributes(layer, tree, ".", ".", &st);
                if (r < 0)
                        r = failed(r, "/");
        }
        while ((l = strmap_first(m.links))) {
                strmap_remove(m.links, l->key);
                free(l->path);
                free(l);
        }
        strmap_free(m.links);
        return r;
}

static int finish_directory(int tree, int base, const char *path, unsigned depth) {
        bool changed = false;
        struct dirent *de;
        struct stat st;
        int copy, r = 0;
        DIR *d;

        if (depth > DEPTH_MAX)
                return failed(-ELOOP, path);
        copy = openat(tree, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        d = copy < 0 ? NULL : fdopendir(copy);
        if (!d || fstat(tree, &st) < 0) {
                r = -errno;
                if (!d)
                        safe_close(copy);
                else
                        closedir(d);
                return failed(r, path);
        }
        while (r >= 0 && (de = readdir(d))) {
                struct stat mine, below;
                bool there;

                if (streq(de->d_name, ".") || streq(de->d_name, ".."))
                        continue;
                if (fstatat(tree, de->d_name, &mine, AT_SYMLINK_NOFOLLOW) < 0) {
                        r = failed(-errno, de->d_name);
                        break;
                }
                there = base >= 0 && fstatat(base, de->d_name, &below, AT_SYMLINK_NOFOLLOW) >= 0;
                if (is_whiteout(&mine) && !there) {
                        changed = true;
                        r = unlinkat(tree, de->d_name, 0) < 0 ? failed(-errno, de->d_name) : 0;
                } else if (S_ISDIR(mine.st_mode)) {
                        _cleanup_close_ int sub = openat(tree, de->d_name,
                                                         O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC),
                                            base_sub = -EBADF;

                        if (there && S_ISDIR(below.st_mode) && !is_opaque(tree, de->d_name))
                                base_sub = openat(base, de->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
                        r = sub < 0 ? failed(-errno, de->d_name)
                                    : finish_directory(sub, base_sub, de->d_name, depth + 1);
                }
        }
        closedir(d);
        if (r >= 0 && changed && futimens(tree, (struct timespec[2]) { st.st_mtim, st.st_mtim }) < 0)
                r = failed(-errno, path);
        return r;
}

int merge_finish(int tree, int base) {
        return finish_directory(tree, base, "/", 0);
}
