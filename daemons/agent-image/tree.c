/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Resolution by openat2(): the kernel refuses what would lead out, there is no check that could race or be
 * forgotten. */
#include <dirent.h>
#include <linux/openat2.h>
#include <sys/syscall.h>

#include "basic/fs-util.h"
#include "basic/string-util.h"
#include "tree.h"

#define DEPTH_MAX 2048

int tree_open(int root, const char *path, uint64_t flags) {
        struct open_how how = {
                .flags = flags | O_CLOEXEC | O_NOFOLLOW,
                .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS | RESOLVE_NO_XDEV,
        };
        int fd = (int) syscall(SYS_openat2, root, isempty(path) ? "." : path, &how, sizeof how);

        return fd < 0 ? -errno : fd;
}

int tree_open_parent(int root, const char *path, bool make, const char **ret_name) {
        const char *slash = strrchr(path, '/');
        _cleanup_free_ char *dir = NULL;
        int fd;

        dir = slash ? strndup(path, (size_t) (slash - path)) : strdup(".");
        if (!dir)
                return -ENOMEM;
        fd = tree_open(root, dir, O_RDONLY | O_DIRECTORY);
        if (fd == -ENOENT && make) {
                int r = tree_mkdir(root, dir, 0755, 0, 0);

                if (r < 0)
                        return r;
                fd = tree_open(root, dir, O_RDONLY | O_DIRECTORY);
        }
        if (fd >= 0)
                *ret_name = slash ? slash + 1 : path;
        return fd;
}

int tree_mkdir(int root, const char *path, mode_t mode, uid_t uid, gid_t gid) {
        _cleanup_free_ char *p = strdup(path);

        if (!p)
                return -ENOMEM;
        for (char *s = strchr(p, '/');; s = strchr(s + 1, '/')) {
                _cleanup_close_ int parent = -EBADF;
                const char *name = NULL;
                struct stat st;

                if (s)
                        *s = 0;
                parent = tree_open_parent(root, p, false, &name);
                if (parent < 0)
                        return parent;
                if (mkdirat(parent, name, s ? 0755 : mode) >= 0) {
                        /* Whatever the umask. */
                        if (fchownat(parent, name, s ? 0 : uid, s ? 0 : gid, AT_SYMLINK_NOFOLLOW) < 0 ||
                            fchmodat(parent, name, s ? 0755 : mode, 0) < 0)
                                return -errno;
                } else if (errno != EEXIST)
                        return -errno;
                else if (fstatat(parent, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
                        return -errno;
                else if (!S_ISDIR(st.st_mode))
                        return S_ISLNK(st.st_mode) ? -ELOOP : -ENOTDIR;
                if (!s)
                        return 0;
                *s = '/';
        }
}

int tree_touch(int root, const char *path, mode_t mode) {
        _cleanup_close_ int parent = -EBADF, fd = -EBADF;
        const char *name = NULL;
        struct stat st;

        parent = tree_open_parent(root, path, true, &name);
        if (parent < 0)
                return parent;
        if (fstatat(parent, name, &st, AT_SYMLINK_NOFOLLOW) >= 0) {
                if (S_ISREG(st.st_mode))
                        return 0;
                if (unlinkat(parent, name, 0) < 0)
                        return -errno;
        } else if (errno != ENOENT)
                return -errno;
        fd = openat(parent, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
        if (fd < 0 || fchmod(fd, mode) < 0)
                return -errno;
        return 0;
}

int tree_empty(int root, const char *path) {
        struct timespec times[2];
        struct dirent *de;
        struct stat st;
        int fd, r = 0;
        DIR *d;

        fd = tree_open(root, path, O_RDONLY | O_DIRECTORY);
        if (fd < 0) /* a symlink there leads elsewhere: what it points to is emptied under its own name or not at all */
                return fd == -ENOENT || fd == -ELOOP || fd == -ENOTDIR ? 0 : fd;
        d = fdopendir(fd);
        if (!d) {
                r = -errno;
                close(fd);
                return r;
        }
        if (fstat(fd, &st) < 0)
                r = -errno;
        while (r >= 0 && (de = readdir(d)))
                if (!streq(de->d_name, ".") && !streq(de->d_name, ".."))
                        r = rm_rf_at(fd, de->d_name);
        if (r >= 0) {
                times[0] = st.st_atim;
                times[1] = st.st_mtim;
                if (futimens(fd, times) < 0)
                        r = -errno;
        }
        closedir(d);
        return r;
}

int tree_remove(int root, const char *path) {
        _cleanup_close_ int parent = -EBADF;
        const char *name = NULL;
        struct stat st;
        int r;

        parent = tree_open_parent(root, path, false, &name);
        if (parent < 0)
                return parent == -ENOENT || parent == -ELOOP || parent == -ENOTDIR ? 0 : parent;
        if (fstat(parent, &st) < 0)
                return -errno;
        r = rm_rf_at(parent, name);
        if (r < 0)
                return r;
        return futimens(parent, (struct timespec[2]) { st.st_atim, st.st_mtim }) < 0 ? -errno : 0;
}

static int64_t walk(int fd /* consumed */, tree_visit_t visit, void *userdata, unsigned depth, size_t length) {
        int64_t n = 0, r = 0;
        struct dirent *de;
        DIR *d;

        if (depth > DEPTH_MAX) {
                close(fd);
                return -ELOOP;
        }
        d = fdopendir(fd);
        if (!d) {
                r = -errno;
                close(fd);
                return r;
        }
        while (r >= 0 && (de = readdir(d))) {
                struct stat st;

                if (streq(de->d_name, ".") || streq(de->d_name, ".."))
                        continue;
                if (fstatat(fd, de->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0) {
                        r = -errno;
                        break;
                }
                n++;
                if (length + 1 + strlen(de->d_name) > TREE_PATH_MAX) {
                        r = -ENAMETOOLONG;
                        break;
                }
                if (S_ISDIR(st.st_mode)) {
                        int sub = openat(fd, de->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

                        r = sub < 0 ? -errno : walk(sub, visit, userdata, depth + 1, length + 1 + strlen(de->d_name));
                        if (r > 0)
                                n += r;
                }
                if (r >= 0)
                        r = visit(fd, de->d_name, &st, userdata);
        }
        closedir(d);
        return r < 0 ? r : n;
}

int64_t tree_walk(int root, tree_visit_t visit, void *userdata) {
        struct stat st;
        int64_t n;
        int fd, r;

        fd = openat(root, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd < 0)
                return -errno;
        n = walk(fd, visit, userdata, 0, 0);
        if (n < 0)
                return n;
        if (fstat(root, &st) < 0)
                return -errno;
        r = visit(root, ".", &st, userdata);
        return r < 0 ? r : n + 1;
}
