/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>

#include "basic/fs-util.h"
#include "basic/json-util.h"
#include "basic/name-util.h"
#include "basic/string-util.h"
#include "credential-store.h"
#include "service/service.h"

#define OPEN_MAX 64U

typedef struct OpenCredential {
        char *user, *service;
        struct stat file;
        SealInfo info;
        Secret *secret; /* NULL: the place is free */
        bool used;      /* since the last credential_store_forget_unused() */
} OpenCredential;

struct CredentialStore {
        int dir;
        Secret *key;
        OpenCredential open[OPEN_MAX];
        size_t next_open; /* whose place is taken when there is none */
};

static void open_credential_done(OpenCredential *o) {
        secret_free(o->secret);
        free(o->user);
        free(o->service);
        *o = (OpenCredential) {};
}

static OpenCredential *find_open(CredentialStore *s, const char *user, const char *service) {
        for (size_t i = 0; i < OPEN_MAX; i++)
                if (s->open[i].secret && streq(s->open[i].service, service) && streq(s->open[i].user, user))
                        return s->open + i;
        return NULL;
}

static void forget_open(CredentialStore *s, const char *user, const char *service) {
        OpenCredential *o = find_open(s, user, service);

        if (o)
                open_credential_done(o);
}

int credential_store_open(const char *dir, Secret *key, CredentialStore **ret) {
        CredentialStore *s;
        int fd;

        if (secret_size(key) != SEAL_KEY_SIZE)
                return -EKEYREJECTED;

        fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd < 0)
                return -errno;

        s = calloc(1, sizeof(*s));
        if (!s) {
                safe_close(fd);
                return -ENOMEM;
        }
        *s = (CredentialStore) {
                .dir = fd,
                .key = key,
        };
        *ret = s;
        return 0;
}

CredentialStore *credential_store_free(CredentialStore *s) {
        if (!s)
                return NULL;

        for (size_t i = 0; i < OPEN_MAX; i++)
                open_credential_done(s->open + i);
        secret_free(s->key);
        safe_close(s->dir);
        return mfree(s);
}

bool user_name_is_safe(const char *s) {
        size_t n = s ? strlen(s) : 0;

        if (n == 0 || n > 64 || s[0] == '-' || s[0] == '.')
                return false;
        return strspn(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-") == n;
}

const char *seal_form_to_string(SealForm f) {
        switch (f) {
        case SEAL_FORM_TEXT:
                return "text";
        case SEAL_FORM_JSON:
                return "json";
        default:
                return NULL;
        }
}

static int check_json(const Secret *secret, const char **ret_reason) {
        _cleanup_json_ sd_json_variant *v = NULL;
        int r;

        /* The parser's own words could quote the text, so they are not passed on. */
        r = json_parse(secret_data(secret), secret_size(secret), &v, NULL);
        if (r == -ENOMEM)
                return r;
        if (v)
                sd_json_variant_sensitive(v);
        if (r < 0 || !sd_json_variant_is_object(v)) {
                *ret_reason = "it starts like a JSON object but is none, or has a key twice";
                return -EINVAL;
        }

        for (size_t i = 0; i < sd_json_variant_elements(v); i += 2) {
                const char *name = sd_json_variant_string(sd_json_variant_by_index(v, i));

                if (strspn(name, "abcdefghijklmnopqrstuvwxyz_0123456789") != strlen(name) ||
                    !sd_json_variant_is_string(sd_json_variant_by_index(v, i + 1))) {
                        *ret_reason = "a JSON credential must be an object with lower-case keys and strings as values";
                        return -EINVAL;
                }
        }
        if (sd_json_variant_elements(v) == 0) {
                *ret_reason = "the JSON object is empty";
                return -EINVAL;
        }

        return 0;
}

int credential_check(Secret *secret, SealForm *ret_form, const char **ret_reason) {
        size_t n = secret_size(secret);
        const char *p = secret_data(secret);
        int r;

        if (n > 0 && p[n - 1] == '\n')
                secret_truncate(secret, --n);
        if (n == 0) {
                *ret_reason = "it is empty";
                return -EINVAL;
        }

        if (p[0] == '{') {
                r = check_json(secret, ret_reason);
                if (r < 0)
                        return r;
                *ret_form = SEAL_FORM_JSON;
                return 0;
        }

        if (!header_value_is_safe(p, n) || memchr(p, '\t', n)) {
                *ret_reason = "it must be one line of printable ASCII without blanks at its ends, or a JSON object";
                return -EINVAL;
        }
        *ret_form = SEAL_FORM_TEXT;
        return 0;
}

static int names_check(const char *user, const char *service) {
        return user_name_is_safe(user) && (!service || object_name_is_valid(service)) ? 0 : -EINVAL;
}

static int user_dir_open(CredentialStore *s, const char *user) {
        int fd = openat(s->dir, user, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        return fd < 0 ? -errno : fd;
}

static uint64_t now_realtime(void) {
        struct timespec ts;

        clock_gettime(CLOCK_REALTIME, &ts);
        return (uint64_t) ts.tv_sec * USEC_PER_SEC + (uint64_t) ts.tv_nsec / NSEC_PER_USEC;
}

int credential_store_set(CredentialStore *s, const char *user, const char *service, SealForm form,
                         const Secret *secret) {
        _cleanup_close_ int dir = -EBADF;
        _cleanup_free_ void *sealed = NULL;
        SealInfo old, info = { .version = now_realtime(), .form = form };
        size_t size;
        int r;

        r = names_check(user, service);
        if (r < 0)
                return r;

        if (mkdirat(s->dir, user, 0700) < 0) {
                if (errno != EEXIST)
                        return -errno;
        } else if (fsync(s->dir) < 0)
                return -errno;
        dir = user_dir_open(s, user);
        if (dir < 0)
                return dir;

        r = credential_store_peek(s, user, service, &old);
        if (r == -ENOENT) {
                CredentialEntry *l = NULL;
                size_t n = 0;

                r = credential_store_list(s, user, &l, &n);
                credential_entries_free(l, n);
                if (r < 0)
                        return r;
                if (n >= CREDENTIALS_PER_USER_MAX)
                        return -EDQUOT;
        } else if (r >= 0 && old.version >= info.version) /* the clock was set back */
                info.version = old.version + 1;

        r = seal_encrypt(s->key, user, service, &info, secret, &sealed, &size);
        if (r < 0)
                return r;

        forget_open(s, user, service);
        return write_file_atomic(dir, service, sealed, size, 0600, (uid_t) -1, (gid_t) -1, WRITE_FILE_SYNC);
}

int credential_store_remove(CredentialStore *s, const char *user, const char *service) {
        _cleanup_close_ int dir = -EBADF;
        int r;

        r = names_check(user, service);
        if (r < 0)
                return r;
        dir = user_dir_open(s, user);
        if (dir < 0)
                return dir;

        forget_open(s, user, service);
        if (unlinkat(dir, service, 0) < 0 || fsync(dir) < 0)
                return -errno;
        return 0;
}

static int read_sealed(CredentialStore *s, const char *user, const char *service, char **ret, size_t *ret_size) {
        _cleanup_close_ int dir = -EBADF, fd = -EBADF;
        int r;

        r = names_check(user, service);
        if (r < 0)
                return r;
        dir = user_dir_open(s, user);
        if (dir < 0)
                return dir;
        fd = openat(dir, service, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
        if (fd < 0)
                return -errno;

        return read_full_fd(fd, SEALED_SIZE_MAX, ret, ret_size);
}

int credential_store_load(CredentialStore *s, const char *user, const char *service, SealInfo *ret_info, Secret **ret) {
        _cleanup_free_ char *data = NULL;
        size_t size;
        int r;

        r = read_sealed(s, user, service, &data, &size);
        if (r < 0)
                return r;

        return seal_decrypt(s->key, user, service, data, size, ret_info, ret);
}

static bool same_file(const struct stat *a, const struct stat *b) {
        return a->st_ino == b->st_ino && a->st_dev == b->st_dev && a->st_size == b->st_size &&
               a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec &&
               a->st_ctim.tv_sec == b->st_ctim.tv_sec && a->st_ctim.tv_nsec == b->st_ctim.tv_nsec;
}

static int stat_sealed(CredentialStore *s, const char *user, const char *service, struct stat *ret) {
        char path[64 + 1 + 256];
        int r = names_check(user, service);

        if (r < 0)
                return r;
        if ((size_t) snprintf(path, sizeof(path), "%s/%s", user, service) >= sizeof(path))
                return -ENAMETOOLONG;
        return fstatat(s->dir, path, ret, AT_SYMLINK_NOFOLLOW) < 0 ? -errno : 0;
}

int credential_store_open_one(CredentialStore *s, const char *user, const char *service, SealInfo *ret_info,
                              const Secret **ret) {
        OpenCredential *o = find_open(s, user, service);
        struct stat st;
        int r;

        /* Whoever replaces or removes the file, the next question sees it. */
        r = stat_sealed(s, user, service, &st);
        if (o && (r < 0 || !same_file(&o->file, &st))) {
                open_credential_done(o);
                o = NULL;
        }
        if (r < 0)
                return r;
        if (!o) {
                OpenCredential new = { .file = st };

                r = credential_store_load(s, user, service, &new.info, &new.secret);
                if (r < 0)
                        return r;
                new.user = strdup(user);
                new.service = strdup(service);
                if (!new.user || !new.service) {
                        open_credential_done(&new);
                        return -ENOMEM;
                }
                for (size_t i = 0; i < OPEN_MAX && !o; i++)
                        o = s->open[i].secret ? NULL : s->open + i;
                if (!o) {
                        o = s->open + s->next_open++ % OPEN_MAX;
                        open_credential_done(o);
                }
                *o = new;
        }
        o->used = true;
        *ret_info = o->info;
        *ret = o->secret;
        return 0;
}

bool credential_store_forget_unused(CredentialStore *s) {
        bool left = false;

        for (size_t i = 0; i < OPEN_MAX; i++) {
                if (!s->open[i].used)
                        open_credential_done(s->open + i);
                s->open[i].used = false;
                left = left || s->open[i].secret;
        }
        return left;
}

int credential_store_peek(CredentialStore *s, const char *user, const char *service, SealInfo *ret) {
        _cleanup_free_ char *data = NULL;
        size_t size;
        int r;

        r = read_sealed(s, user, service, &data, &size);
        if (r < 0)
                return r;

        return seal_peek(data, size, ret);
}

void credential_entries_free(CredentialEntry *l, size_t n) {
        for (size_t i = 0; i < n; i++)
                free(l[i].service);
        free(l);
}

static int entry_compare(const void *a, const void *b) {
        return strcmp(((const CredentialEntry *) a)->service, ((const CredentialEntry *) b)->service);
}

int credential_store_list(CredentialStore *s, const char *user, CredentialEntry **ret, size_t *ret_n) {
        CredentialEntry *l = NULL;
        size_t n = 0;
        struct dirent *de;
        int fd, r;
        DIR *d;

        r = names_check(user, NULL);
        if (r < 0)
                return r;

        fd = user_dir_open(s, user);
        if (fd == -ENOENT) {
                *ret = NULL;
                *ret_n = 0;
                return 0;
        }
        if (fd < 0)
                return fd;
        d = fdopendir(fd);
        if (!d) {
                r = -errno;
                safe_close(fd);
                return r;
        }

        while ((de = readdir(d))) {
                CredentialEntry *k;
                SealInfo info;

                if (!object_name_is_valid(de->d_name)) /* temporary files begin with a dot */
                        continue;
                if (credential_store_peek(s, user, de->d_name, &info) < 0)
                        continue;

                k = reallocarray(l, n + 1, sizeof(*l));
                if (!k) {
                        r = -ENOMEM;
                        break;
                }
                l = k;
                l[n] = (CredentialEntry) {
                        .service = strdup(de->d_name),
                        .info = info,
                };
                if (!l[n].service) {
                        r = -ENOMEM;
                        break;
                }
                n++;
        }
        closedir(d);
        if (r < 0) {
                credential_entries_free(l, n);
                return r;
        }

        if (n > 0)
                qsort(l, n, sizeof(*l), entry_compare);
        *ret = l;
        *ret_n = n;
        return 0;
}
