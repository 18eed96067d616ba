/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The store's directory on disk. What comes in was made by somebody who is not trusted (a sandboxed unit that
 * unpacked a stranger's archive), so its path is resolved below tmp/ without symlinks, it must be a plain file with
 * one name, and nobody may have it open for writing any more when it is hashed.
 */
#include <dirent.h>
#include <linux/openat2.h>
#include <sys/random.h>
#include <sys/syscall.h>

#include "basic/fs-util.h"
#include "basic/name-util.h"
#include "basic/string-util.h"
#include "image/digest-names.h"
#include "image/layer-seal.h"
#include "image/layer-store.h"

struct LayerStore {
        char *root;
        int layers_fd;
        int generations_fd;
        int seals_fd;
        int tmp_fd;
};

/* "sha256:<hex>" ↔ "sha256-<hex>.erofs" */
#define LAYER_NAME_LEN (DIGEST_LEN + 6)

static int layer_name(const char *digest, char ret[static LAYER_NAME_LEN + 1]) {
        if (!digest || !digest_is_valid(digest))
                return -EINVAL;
        snprintf(ret, LAYER_NAME_LEN + 1, "sha256-%s.erofs", digest + 7);
        return 0;
}

static int open_dir(int at, const char *path) {
        int fd;

        if (mkdirat(at, path, 0700) < 0 && errno != EEXIST)
                return -errno;
        fd = openat(at, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
        return fd < 0 ? -errno : fd;
}

LayerStore *layer_store_free(LayerStore *s) {
        if (!s)
                return NULL;
        safe_close(s->layers_fd);
        safe_close(s->generations_fd);
        safe_close(s->seals_fd);
        safe_close(s->tmp_fd);
        free(s->root);
        return mfree(s);
}

int layer_store_open(const char *root, LayerStore **ret) {
        _cleanup_(layer_store_freep) LayerStore *s = NULL;
        _cleanup_close_ int fd = -EBADF;

        s = malloc(sizeof *s);
        if (!s)
                return -ENOMEM;
        *s = (LayerStore) { .layers_fd = -EBADF, .generations_fd = -EBADF, .seals_fd = -EBADF,
                            .tmp_fd = -EBADF };
        s->root = strdup(root);
        if (!s->root)
                return -ENOMEM;
        fd = open_dir(AT_FDCWD, root);
        if (fd < 0)
                return fd;
        s->layers_fd = open_dir(fd, "layers");
        if (s->layers_fd < 0)
                return s->layers_fd;
        s->generations_fd = open_dir(fd, "generations");
        if (s->generations_fd < 0)
                return s->generations_fd;
        s->seals_fd = open_dir(fd, "seals");
        if (s->seals_fd < 0)
                return s->seals_fd;
        s->tmp_fd = open_dir(fd, "tmp");
        if (s->tmp_fd < 0)
                return s->tmp_fd;
        *ret = TAKE_PTR(s);
        return 0;
}

int layer_store_generations_fd(LayerStore *s) {
        return s->generations_fd;
}

/* What follows "<root>/tmp/" in PATH, or NULL. */
static const char *below_tmp(LayerStore *s, const char *path) {
        const char *p = startswith(path, s->root);

        p = p ? startswith(p, "/tmp/") : NULL;
        return isempty(p) ? NULL : p;
}

int layer_store_new_staging(LayerStore *s, char **ret) {
        for (unsigned tries = 0; tries < 16; tries++) {
                _cleanup_free_ char *path = NULL;
                uint64_t rnd;

                if (getrandom(&rnd, sizeof rnd, 0) != sizeof rnd)
                        return -errno;
                path = strprintf("%s/tmp/%016" PRIx64, s->root, rnd);
                if (!path)
                        return -ENOMEM;
                if (mkdirat(s->tmp_fd, below_tmp(s, path), 0700) >= 0) {
                        *ret = TAKE_PTR(path);
                        return 0;
                }
                if (errno != EEXIST)
                        return -errno;
        }
        return -EEXIST;
}

int layer_store_drop_staging(LayerStore *s, const char *path) {
        const char *name;

        if (!path)
                return 0;
        name = below_tmp(s, path);
        if (!name || strchr(name, '/') || name[0] == '.')
                return -EINVAL;
        return rm_rf_at(s->tmp_fd, name);
}

static int open_listing(int at, const char *path, DIR **ret) {
        int fd, r;

        fd = openat(at, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
        if (fd < 0)
                return -errno;
        *ret = fdopendir(fd);
        if (!*ret) {
                r = -errno;
                close(fd);
                return r;
        }
        return 0;
}

/* What write_file_atomic() leaves when it is killed before its last step. */
static int remove_half_written(int at) {
        struct dirent *de;
        DIR *d;
        int r, k;

        r = open_listing(at, ".", &d);
        if (r < 0)
                return r;
        while ((de = readdir(d))) {
                if (!startswith(de->d_name, ".#"))
                        continue;
                k = unlink_noerrno(at, de->d_name, 0);
                if (k < 0)
                        r = k;
        }
        closedir(d);
        return r;
}

int layer_store_clean_staging(LayerStore *s, char *const *keep) {
        struct dirent *de;
        DIR *d;
        int r;

        (void) remove_half_written(s->generations_fd);
        r = open_listing(s->tmp_fd, ".", &d);
        if (r < 0)
                return r;
        while ((de = readdir(d))) {
                _cleanup_free_ char *path = NULL;
                int k;

                if (streq(de->d_name, ".") || streq(de->d_name, ".."))
                        continue;
                path = strprintf("%s/tmp/%s", s->root, de->d_name);
                if (!path) {
                        r = -ENOMEM;
                        break;
                }
                if (strv_contains(keep, path))
                        continue;
                /* One that cannot be removed must not keep the others. */
                k = rm_rf_at(s->tmp_fd, de->d_name);
                if (k < 0)
                        r = k;
        }
        closedir(d);
        return r;
}

#define NOTE_PREFIX "publishing-"

int layer_store_note(LayerStore *s, const char *staging, const char *digest) {
        char name[sizeof NOTE_PREFIX + LAYER_NAME_LEN];
        _cleanup_close_ int dir = -EBADF, fd = -EBADF;
        const char *tmp = below_tmp(s, staging);

        if (!digest_is_valid(digest) || !tmp || strchr(tmp, '/') || tmp[0] == '.')
                return -EINVAL;
        dir = openat(s->tmp_fd, tmp, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
        if (dir < 0)
                return -errno;
        snprintf(name, sizeof name, NOTE_PREFIX "%s", digest + strlen("sha256:"));
        fd = openat(dir, name, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
        if (fd < 0)
                return -errno;
        /* Both have to be there before the layer gets its name. */
        return fsync(dir) < 0 || fsync(s->tmp_fd) < 0 ? -errno : 0;
}

static int noted_in(int at, const char *name, char ***l) {
        struct dirent *de;
        DIR *d;
        int r;

        r = open_listing(at, name, &d);
        if (r < 0)
                return r == -ENOTDIR || r == -ELOOP || r == -ENOENT ? 0 : r;
        while (r >= 0 && (de = readdir(d))) {
                const char *hex = startswith(de->d_name, NOTE_PREFIX);
                _cleanup_free_ char *digest = hex ? strprintf("sha256:%s", hex) : NULL;

                if (hex && !digest)
                        r = -ENOMEM;
                else if (digest && digest_is_valid(digest) && !strv_contains(*l, digest))
                        r = strv_extend(l, digest);
        }
        closedir(d);
        return r;
}

int layer_store_noted(LayerStore *s, char ***ret) {
        _cleanup_strv_free_ char **l = calloc(1, sizeof(char *));
        struct dirent *de;
        DIR *d;
        int r;

        if (!l)
                return -ENOMEM;
        r = open_listing(s->tmp_fd, ".", &d);
        if (r < 0)
                return r;
        while (r >= 0 && (de = readdir(d)))
                if (de->d_name[0] != '.')
                        r = noted_in(s->tmp_fd, de->d_name, &l);
        closedir(d);
        if (r < 0)
                return r;
        *ret = TAKE_PTR(l);
        return 0;
}

static int open_below_tmp(LayerStore *s, const char *path, int *ret_dir, const char **ret_name) {
        struct open_how how = {
                .flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC,
                .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS,
        };
        const char *p = below_tmp(s, path), *slash;
        _cleanup_free_ char *parent = NULL;
        int fd;

        if (!p)
                return -EINVAL;
        slash = strrchr(p, '/');
        parent = slash ? strndup(p, (size_t) (slash - p)) : strdup(".");
        if (!parent)
                return -ENOMEM;
        fd = (int) syscall(SYS_openat2, s->tmp_fd, parent, &how, sizeof how);
        if (fd < 0)
                return -errno;
        *ret_dir = fd;
        *ret_name = slash ? slash + 1 : p;
        return 0;
}

/* --- seals: "<root>/seals/sha256-<hex>" holds the root hash ------------------------------------------------------- */

static int seal_name(const char *digest, char ret[static DIGEST_LEN + 1]) {
        if (!digest || !digest_is_valid(digest))
                return -EINVAL;
        snprintf(ret, DIGEST_LEN + 1, "sha256-%s", digest + 7);
        return 0;
}

/* 1 and what was found when DIGEST was sealed; 0: it was not. */
static int read_seal(LayerStore *s, const char *digest, char ret[static DIGEST_LEN + 1]) {
        _cleanup_free_ char *text = NULL;
        char name[DIGEST_LEN + 1];
        int r;

        r = seal_name(digest, name);
        if (r >= 0)
                r = read_full_file_at(s->seals_fd, name, DIGEST_LEN + 1, &text, NULL);
        if (r < 0)
                return r == -ENOENT ? 0 : r;
        text[strcspn(text, "\n")] = 0;
        if (!digest_is_valid(text))
                return -EBADMSG;
        memcpy(ret, text, DIGEST_LEN + 1);
        return 1;
}

static int remove_seal(LayerStore *s, const char *digest) {
        char name[DIGEST_LEN + 1];
        int r;

        r = seal_name(digest, name);
        return r < 0 ? r : unlink_noerrno(s->seals_fd, name, 0);
}

/* FD has DIGEST, as was just seen. Seals it where that can be had, and notes its root hash. */
static int seal(LayerStore *s, const char *digest, int fd) {
        char name[DIGEST_LEN + 1], root[DIGEST_LEN + 1], noted[DIGEST_LEN + 1], line[DIGEST_LEN + 2];
        int r;

        r = layer_seal(fd);
        if (r > 0)
                r = layer_seal_measure(fd, root);
        if (r < 0)
                return r;
        if (r == 0)
                return remove_seal(s, digest);
        if (read_seal(s, digest, noted) > 0 && streq(noted, root))
                return 0;
        r = seal_name(digest, name);
        if (r < 0)
                return r;
        snprintf(line, sizeof line, "%s\n", root);
        return write_file_atomic(s->seals_fd, name, line, strlen(line), 0444, (uid_t) -1, (gid_t) -1, WRITE_FILE_SYNC);
}

int layer_store_check_seal(LayerStore *s, const char *digest) {
        char root[DIGEST_LEN + 1], noted[DIGEST_LEN + 1];
        _cleanup_close_ int fd = -EBADF;
        int has, was, r;

        r = layer_store_open_layer(s, digest, &fd, NULL);
        if (r < 0)
                return r;
        has = layer_seal_measure(fd, root);
        was = has < 0 ? 0 : read_seal(s, digest, noted);
        if (has < 0 || was < 0)
                return has < 0 ? has : was == -EBADMSG ? LAYER_SEAL_LOST : was;
        if (has && was)
                return streq(root, noted) ? LAYER_SEALED : -EBADMSG;
        return was ? LAYER_SEAL_LOST : LAYER_UNSEALED;
}

static uint64_t changed_nsec(const struct stat *st) {
        return (uint64_t) st->st_ctim.tv_sec * UINT64_C(1000000000) + (uint64_t) st->st_ctim.tv_nsec;
}

/* A plain file with one name. */
static int open_in_tmp(LayerStore *s, const char *path, int *ret_dir, const char **ret_name, struct stat *ret_st) {
        _cleanup_close_ int dir = -EBADF, fd = -EBADF;
        int r;

        r = open_below_tmp(s, path, &dir, ret_name);
        if (r < 0)
                return r;
        fd = openat(dir, *ret_name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
        if (fd < 0 || fstat(fd, ret_st) < 0)
                return -errno;
        if (!S_ISREG(ret_st->st_mode) || ret_st->st_nlink != 1)
                return -EINVAL;
        *ret_dir = TAKE_FD(dir);
        return TAKE_FD(fd);
}

int layer_store_hash(LayerStore *s, const char *path, const char *expected, char ret_digest[static DIGEST_LEN + 1],
                     LayerIdentity *ret) {
        _cleanup_close_ int dir = -EBADF, fd = -EBADF;
        char digest[DIGEST_LEN + 1];
        const char *name = NULL;
        struct stat st;
        int r;

        if (expected && !digest_is_valid(expected))
                return -EINVAL;
        fd = open_in_tmp(s, path, &dir, &name, &st);
        if (fd < 0)
                return fd;
        if ((st.st_uid != geteuid() || st.st_gid != getegid()) && fchown(fd, geteuid(), getegid()) < 0)
                return -errno;
        if (fchmod(fd, 0444) < 0)
                return -errno;
        /* A read lease is refused while anybody could still write: what is hashed is what stays. */
        if (fcntl(fd, F_SETLEASE, F_RDLCK) < 0) {
                if (errno == EAGAIN)
                        return -ETXTBSY;
                if (errno != EINVAL && errno != EOPNOTSUPP)
                        return -errno;
        } else
                (void) fcntl(fd, F_SETLEASE, F_UNLCK);

        /* On its way to the disk while it is hashed. */
        (void) sync_file_range(fd, 0, 0, SYNC_FILE_RANGE_WRITE);
        r = digest_fd(fd, digest);
        if (r < 0)
                return r;
        if (expected && !streq(digest, expected))
                return -EBADMSG;
        if (fsync(fd) < 0)
                return -errno;
        r = seal(s, digest, fd);
        if (r < 0)
                return r;
        if (fstat(fd, &st) < 0)
                return -errno;
        *ret = (LayerIdentity) { .inode = st.st_ino, .size = (uint64_t) st.st_size, .changed_nsec = changed_nsec(&st) };
        memcpy(ret_digest, digest, sizeof digest);
        return 0;
}

int layer_store_take(LayerStore *s, const char *path, const char *digest, const LayerIdentity *identity) {
        _cleanup_close_ int dir = -EBADF, fd = -EBADF;
        char name[LAYER_NAME_LEN + 1];
        const char *tmp_name = NULL;
        struct stat st;
        int r;

        r = layer_name(digest, name);
        if (r < 0)
                return r;
        fd = open_in_tmp(s, path, &dir, &tmp_name, &st);
        if (fd < 0)
                return fd;
        if (st.st_ino != identity->inode || (uint64_t) st.st_size != identity->size ||
            changed_nsec(&st) != identity->changed_nsec)
                return -ESTALE;
        if (renameat2(dir, tmp_name, s->layers_fd, name, RENAME_NOREPLACE) >= 0)
                r = 1;
        else if (errno != EEXIST)
                return -errno;
        else {
                r = unlink_noerrno(dir, tmp_name, 0);
                if (r < 0)
                        return r;
                r = 0;
        }
        return fsync(s->layers_fd) < 0 ? -errno : r;
}

int layer_store_publish(LayerStore *s, const char *path, const char *expected, char ret_digest[static DIGEST_LEN + 1]) {
        LayerIdentity identity;
        int r;

        r = layer_store_hash(s, path, expected, ret_digest, &identity);
        return r < 0 ? r : layer_store_take(s, path, ret_digest, &identity);
}

int layer_store_path(LayerStore *s, const char *digest, char **ret) {
        char name[LAYER_NAME_LEN + 1];
        char *p;
        int r;

        r = layer_name(digest, name);
        if (r < 0)
                return r;
        p = strprintf("%s/layers/%s", s->root, name);
        if (!p)
                return -ENOMEM;
        *ret = p;
        return 0;
}

int layer_store_open_layer(LayerStore *s, const char *digest, int *ret_fd, uint64_t *ret_size) {
        char name[LAYER_NAME_LEN + 1];
        _cleanup_close_ int fd = -EBADF;
        struct stat st;
        int r;

        r = layer_name(digest, name);
        if (r < 0)
                return r;
        fd = openat(s->layers_fd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
        if (fd < 0)
                return -errno;
        if (fstat(fd, &st) < 0)
                return -errno;
        if (!S_ISREG(st.st_mode))
                return -EBADMSG;
        if (ret_size)
                *ret_size = (uint64_t) st.st_size;
        if (ret_fd)
                *ret_fd = TAKE_FD(fd);
        return 0;
}

int layer_store_verify(LayerStore *s, const char *digest) {
        char found[DIGEST_LEN + 1];
        _cleanup_close_ int fd = -EBADF;
        int r;

        r = layer_store_open_layer(s, digest, &fd, NULL);
        if (r < 0)
                return r;
        /* What the disk has, not what is still in memory of the time when it was written. */
        (void) posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
        r = digest_fd(fd, found);
        if (r == -EIO && layer_seal_measure(fd, (char[DIGEST_LEN + 1]) {}) > 0)
                return -EBADMSG; /* that is how the kernel says it */
        if (r < 0)
                return r;
        if (!streq(found, digest))
                return -EBADMSG;
        /* One that came here before its file system could do that, or that was brought back from a copy. */
        (void) seal(s, digest, fd);
        return 0;
}

int layer_store_remove(LayerStore *s, const char *digest) {
        char name[LAYER_NAME_LEN + 1];
        int r;

        r = layer_name(digest, name);
        if (r < 0)
                return r;
        r = unlink_noerrno(s->layers_fd, name, 0);
        if (r < 0)
                return r;
        (void) remove_seal(s, digest);
        return fsync(s->layers_fd) < 0 ? -errno : 0;
}

int layer_store_discard(LayerStore *s, const char *digest, const char *staging) {
        char name[LAYER_NAME_LEN + 1];
        _cleanup_close_ int dir = -EBADF;
        const char *tmp = below_tmp(s, staging);
        int r;

        r = layer_name(digest, name);
        if (r < 0)
                return r;
        if (!tmp || strchr(tmp, '/') || tmp[0] == '.')
                return -EINVAL;
        dir = openat(s->tmp_fd, tmp, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
        if (dir < 0)
                return -errno;
        if (renameat(s->layers_fd, name, dir, name) < 0)
                return errno == ENOENT ? 0 : -errno;
        (void) remove_seal(s, digest);
        return fsync(s->layers_fd) < 0 ? -errno : 0;
}

int layer_store_list(LayerStore *s, char ***ret) {
        return digest_names_list(s->layers_fd, ".erofs", ret);
}
