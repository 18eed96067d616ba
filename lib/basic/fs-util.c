/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Files: whole reads with a cap, atomic writes, and removal of trees that a hostile program may have built. */
#include <dirent.h>
#include <sys/random.h>

#include "basic/fs-util.h"
#include "basic/string-util.h"

int safe_close(int fd) {
        if (fd >= 0) {
                int saved = errno;

                close(fd);
                errno = saved;
        }
        return -EBADF;
}

int write_full(int fd, const void *data, size_t size) {
        const char *p = data;

        while (size > 0) {
                ssize_t n = write(fd, p, size);

                if (n < 0) {
                        if (errno == EINTR)
                                continue;
                        return -errno;
                }
                p += n;
                size -= (size_t) n;
        }
        return 0;
}

int read_full_fd(int fd, size_t max, char **ret, size_t *ret_size) {
        _cleanup_free_ char *buf = NULL;
        size_t size = 0, room = 0;

        for (;;) {
                ssize_t n;

                if (room - size < 2) {
                        char *k;

                        room = MIN(MAX(room * 2, (size_t) 4096), max + 2);
                        k = realloc(buf, room);
                        if (!k)
                                return -ENOMEM;
                        buf = k;
                }
                n = read(fd, buf + size, room - size - 1);
                if (n < 0) {
                        if (errno == EINTR)
                                continue;
                        return -errno;
                }
                if (n == 0)
                        break;
                size += (size_t) n;
                if (size > max)
                        return -EFBIG;
        }
        buf[size] = 0;
        *ret = TAKE_PTR(buf);
        if (ret_size)
                *ret_size = size;
        return 0;
}

int read_full_file_at(int dirfd, const char *path, size_t max, char **ret, size_t *ret_size) {
        _cleanup_close_ int fd = openat(dirfd, path, O_RDONLY | O_CLOEXEC | O_NOCTTY);

        if (fd < 0)
                return -errno;
        return read_full_fd(fd, max, ret, ret_size);
}

/* Opens the directory that holds PATH and gives the last component. */
static int open_parent(int dirfd, const char *path, const char **ret_name) {
        const char *slash = strrchr(path, '/');
        _cleanup_free_ char *dir = NULL;
        int fd;

        if (!slash)
                dir = strdup(".");
        else
                dir = slash == path ? strdup("/") : strndup(path, (size_t) (slash - path));
        if (!dir)
                return -ENOMEM;
        fd = openat(dirfd, dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd < 0)
                return -errno;
        *ret_name = slash ? slash + 1 : path;
        return fd;
}

int write_file_atomic(int dirfd, const char *path, const void *data, size_t size, mode_t mode, uid_t uid, gid_t gid,
                      WriteFileFlags flags) {
        _cleanup_close_ int dir = -EBADF, fd = -EBADF;
        _cleanup_free_ char *tmp = NULL;
        const char *name = NULL;
        uint64_t rnd;
        int r;

        dir = open_parent(dirfd, path, &name);
        if (dir < 0)
                return dir;
        if (getrandom(&rnd, sizeof rnd, 0) != sizeof rnd)
                return -errno;
        tmp = strprintf(".#%.64s.%016" PRIx64, name, rnd);
        if (!tmp)
                return -ENOMEM;
        fd = openat(dir, tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (fd < 0)
                return -errno;
        r = write_full(fd, data, size);
        if (r >= 0 && (uid != (uid_t) -1 || gid != (gid_t) -1) && fchown(fd, uid, gid) < 0)
                r = -errno;
        if (r >= 0 && fchmod(fd, mode) < 0)
                r = -errno;
        if (r >= 0 && (flags & WRITE_FILE_SYNC) && fsync(fd) < 0)
                r = -errno;
        if (r >= 0 && renameat2(dir, tmp, dir, name, flags & WRITE_FILE_NOREPLACE ? RENAME_NOREPLACE : 0) < 0)
                r = -errno;
        if (r < 0) {
                unlinkat(dir, tmp, 0);
                return r;
        }
        if ((flags & WRITE_FILE_SYNC) && fsync(dir) < 0)
                return -errno;
        return 0;
}

int mkdir_parents(const char *path, mode_t mode) {
        _cleanup_free_ char *p = strdup(path);

        if (!p)
                return -ENOMEM;
        for (char *s = strchr(p + 1, '/');; s = strchr(s + 1, '/')) {
                if (s)
                        *s = 0;
                if (mkdir(p, mode) < 0 && errno != EEXIST)
                        return -errno;
                if (!s)
                        return 0;
                *s = '/';
        }
}

int unlink_noerrno(int dirfd, const char *path, int flags) {
        if (unlinkat(dirfd, path, flags) < 0 && errno != ENOENT)
                return -errno;
        return 0;
}

/* Levels of which each has an fd and a frame of ours. What is deeper is moved up to the top first. */
#define RM_RF_DEPTH 64U
/* And as many where it cannot be moved, as some directories of an overlay. */
#define RM_RF_DEPTH_MAX 512U

typedef struct RmRf {
        int top; /* of the whole tree */
        dev_t dev;
        uint64_t moved;
} RmRf;

/* To a name of its own at the top, from where it is removed later. Where that cannot be: <0. */
static int rm_rf_move_up(RmRf *t, int dir, const char *name) {
        char to[32];

        do {
                snprintf(to, sizeof to, ".deep-%" PRIu64, t->moved++);
                if (renameat2(dir, name, t->top, to, RENAME_NOREPLACE) >= 0)
                        return 0;
        } while (errno == EEXIST);
        return -errno;
}

/* Whoever made the tree chose its depth: it costs a bounded number of fds and frames. */
static int rm_rf_dir(RmRf *t, int fd /* consumed */, unsigned depth) {
        DIR *d = fdopendir(fd);
        uint64_t moved;
        struct dirent *de;
        int r = 0;

        if (!d) {
                r = -errno;
                close(fd);
                return r;
        }
again:
        moved = t->moved;
        while (r >= 0 && (de = readdir(d))) {
                struct stat st;
                int k;

                if (streq(de->d_name, ".") || streq(de->d_name, ".."))
                        continue;
                if (fstatat(dirfd(d), de->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0) {
                        r = errno == ENOENT ? 0 : -errno;
                        continue;
                }
                if (!S_ISDIR(st.st_mode)) {
                        r = unlink_noerrno(dirfd(d), de->d_name, 0);
                        continue;
                }
                if (st.st_dev != t->dev) { /* a mount: not ours to empty */
                        r = -EXDEV;
                        continue;
                }
                if (depth >= RM_RF_DEPTH) {
                        if (unlink_noerrno(dirfd(d), de->d_name, AT_REMOVEDIR) >= 0 ||
                            rm_rf_move_up(t, dirfd(d), de->d_name) >= 0)
                                continue;
                        if (depth >= RM_RF_DEPTH_MAX) {
                                r = -ELOOP;
                                continue;
                        }
                }
                k = openat(dirfd(d), de->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
                if (k < 0) {
                        r = -errno;
                        continue;
                }
                r = rm_rf_dir(t, k, depth + 1);
                if (r >= 0)
                        r = unlink_noerrno(dirfd(d), de->d_name, AT_REMOVEDIR);
        }
        if (r >= 0 && depth == 0 && t->moved > moved) { /* what came up meanwhile may have been passed by already */
                rewinddir(d);
                goto again;
        }
        closedir(d);
        return r;
}

int rm_rf_at(int dirfd, const char *path) {
        int fd = openat(dirfd, path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        struct stat st;
        int r;

        if (fd < 0) {
                if (errno == ENOENT)
                        return 0;
                if (errno == ENOTDIR || errno == ELOOP)
                        return unlink_noerrno(dirfd, path, 0);
                return -errno;
        }
        if (fstat(fd, &st) < 0) {
                r = -errno;
                close(fd);
                return r;
        }
        r = rm_rf_dir(&(RmRf) { .top = fd, .dev = st.st_dev }, fd, 0);
        return r < 0 ? r : unlink_noerrno(dirfd, path, AT_REMOVEDIR);
}
