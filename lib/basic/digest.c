/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* SHA-256 names of bytes, files and trees. */
#include <dirent.h>
#include <openssl/evp.h>

#include "basic/digest.h"
#include "basic/fs-util.h"
#include "basic/string-util.h"

DEFINE_CLEANUP_VOID(EVP_MD_CTX *, EVP_MD_CTX_free);

static int digest_begin(EVP_MD_CTX **ret) {
        EVP_MD_CTX *c = EVP_MD_CTX_new();

        if (!c)
                return -ENOMEM;
        if (EVP_DigestInit_ex(c, EVP_sha256(), NULL) != 1) {
                EVP_MD_CTX_free(c);
                return -EIO;
        }
        *ret = c;
        return 0;
}

static int digest_end(EVP_MD_CTX *c, char ret[static DIGEST_LEN + 1]) {
        uint8_t md[EVP_MAX_MD_SIZE];
        unsigned n = 0;

        if (EVP_DigestFinal_ex(c, md, &n) != 1 || n != 32)
                return -EIO;
        memcpy(ret, "sha256:", 7);
        for (unsigned i = 0; i < n; i++)
                snprintf(ret + 7 + 2 * i, 3, "%02x", md[i]);
        return 0;
}

int digest_bytes(const void *data, size_t size, char ret[static DIGEST_LEN + 1]) {
        _cleanup_(EVP_MD_CTX_freep) EVP_MD_CTX *c = NULL;
        int r;

        r = digest_begin(&c);
        if (r < 0)
                return r;
        if (EVP_DigestUpdate(c, data, size) != 1)
                return -EIO;
        return digest_end(c, ret);
}

static int digest_update_fd(EVP_MD_CTX *c, int fd) {
        _cleanup_free_ char *buf = malloc(1 << 18);

        if (!buf)
                return -ENOMEM;
        for (off_t o = 0;;) {
                ssize_t n = pread(fd, buf, 1 << 18, o);

                if (n < 0) {
                        if (errno == EINTR)
                                continue;
                        return -errno;
                }
                if (n == 0)
                        return 0;
                if (EVP_DigestUpdate(c, buf, (size_t) n) != 1)
                        return -EIO;
                o += n;
        }
}

int digest_fd(int fd, char ret[static DIGEST_LEN + 1]) {
        _cleanup_(EVP_MD_CTX_freep) EVP_MD_CTX *c = NULL;
        int r;

        r = digest_begin(&c);
        if (r >= 0)
                r = digest_update_fd(c, fd);
        return r < 0 ? r : digest_end(c, ret);
}

static int name_compare(const void *a, const void *b) {
        return strcmp(*(char *const *) a, *(char *const *) b);
}

static int digest_update_entry(EVP_MD_CTX *c, int dir, const char *name, const char *path);

static int digest_update_dir(EVP_MD_CTX *c, int fd, const char *path) {
        _cleanup_strv_free_ char **names = NULL;
        DIR *d = fdopendir(fd);
        struct dirent *de;
        int r = 0;

        if (!d) {
                r = -errno;
                close(fd);
                return r;
        }
        while (r >= 0 && (de = readdir(d)))
                if (!streq(de->d_name, ".") && !streq(de->d_name, ".."))
                        r = strv_extend(&names, de->d_name);
        if (names)
                qsort(names, strv_length(names), sizeof(char *), name_compare);
        for (char **n = names; r >= 0 && n && *n; n++) {
                _cleanup_free_ char *sub = strprintf("%s/%s", path, *n);

                r = sub ? digest_update_entry(c, dirfd(d), *n, sub) : -ENOMEM;
        }
        closedir(d);
        return r;
}

static int digest_update_entry(EVP_MD_CTX *c, int dir, const char *name, const char *path) {
        _cleanup_free_ char *head = NULL;
        char target[PATH_MAX];
        ssize_t n = 0;
        struct stat st;
        int fd;

        if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
                return -errno;
        if (S_ISLNK(st.st_mode)) {
                n = readlinkat(dir, name, target, sizeof target);
                if (n < 0)
                        return -errno;
        }
        /* Name, then mode (with type), then size, each ended by NUL: no two trees give the same bytes. */
        head = strprintf("%s%c%o%c%jd", path, 0, (unsigned) st.st_mode, 0,
                         S_ISDIR(st.st_mode) ? (intmax_t) 0 : (intmax_t) st.st_size);
        if (!head)
                return -ENOMEM;
        if (EVP_DigestUpdate(c, path, strlen(path) + 1) != 1 ||
            EVP_DigestUpdate(c, head + strlen(path) + 1, strlen(head + strlen(path) + 1) + 1) != 1)
                return -EIO;
        {
                const char *size = head + strlen(path) + 1;
                size += strlen(size) + 1;
                if (EVP_DigestUpdate(c, size, strlen(size) + 1) != 1)
                        return -EIO;
        }
        if (S_ISLNK(st.st_mode))
                return EVP_DigestUpdate(c, target, (size_t) n) == 1 ? 0 : -EIO;
        if (!S_ISDIR(st.st_mode) && !S_ISREG(st.st_mode))
                return 0;
        fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
        if (fd < 0)
                return -errno;
        if (S_ISDIR(st.st_mode))
                return digest_update_dir(c, fd, path);
        {
                int r = digest_update_fd(c, fd);

                close(fd);
                return r;
        }
}

int digest_tree(int dir, const char *path, char ret[static DIGEST_LEN + 1]) {
        _cleanup_(EVP_MD_CTX_freep) EVP_MD_CTX *c = NULL;
        int fd, r;

        fd = openat(dir, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd < 0)
                return -errno;
        r = digest_begin(&c);
        if (r < 0) {
                close(fd);
                return r;
        }
        r = digest_update_dir(c, fd, "");
        return r < 0 ? r : digest_end(c, ret);
}
