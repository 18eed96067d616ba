/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Reading, checking and copying a runner directory. */
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>

#include "basic/fs-util.h"
#include "basic/json-util.h"
#include "basic/string-util.h"
#include "runner.h"

#define RUNNER_JSON_MAX 65536U
#define RUNNER_DEPTH_MAX 32U

Runner *runner_free(Runner *r) {
        if (!r)
                return NULL;
        free(r->directory);
        free(r->name);
        free(r->version);
        free(r->main);
        free(r->node);
        return mfree(r);
}

/* A path inside the runner: relative, no empty or dot components. */
static bool inner_path_is_valid(const char *p) {
        if (isempty(p) || p[0] == '/' || string_has_cc(p) || strlen(p) > 255)
                return false;
        for (const char *s = p; s; s = strchr(s, '/') ? strchr(s, '/') + 1 : NULL)
                if (s[0] == 0 || s[0] == '/' || s[0] == '.')
                        return false;
        return true;
}

static int field_inner_path(sd_json_variant *v, void *field, char **ret_reason) {
        if (!inner_path_is_valid(sd_json_variant_string(v))) {
                *ret_reason = strdup("must be a path inside the runner");
                return -EINVAL;
        }
        return json_field_string(v, field, ret_reason);
}

static int field_ignored(sd_json_variant *v, void *field, char **ret_reason) {
        return 0;
}

static int copy_file(int src_dir, int dst_dir, const char *name, mode_t mode) {
        _cleanup_close_ int in = -EBADF, out = -EBADF;
        char buf[65536];

        in = openat(src_dir, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
        if (in < 0)
                return -errno;
        out = openat(dst_dir, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        if (out < 0)
                return -errno;
        for (;;) {
                ssize_t n = read(in, buf, sizeof buf);
                int r;

                if (n < 0)
                        return -errno;
                if (n == 0)
                        break;
                r = write_full(out, buf, (size_t) n);
                if (r < 0)
                        return r;
        }
        if (fchmod(out, mode & 0555) < 0 || fsync(out) < 0)
                return -errno;
        return 0;
}

static int copy_tree(int src, int dst, unsigned depth) {
        _cleanup_close_ int dup = openat(src, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        struct dirent *de;
        int r = 0;
        DIR *d;

        if (dup < 0)
                return -errno;
        if (depth > RUNNER_DEPTH_MAX)
                return -ELOOP;
        d = fdopendir(dup);
        if (!d)
                return -errno;
        TAKE_FD(dup);
        while (r >= 0 && (de = readdir(d))) {
                struct stat st;

                if (streq(de->d_name, ".") || streq(de->d_name, ".."))
                        continue;
                if (fstatat(src, de->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0) {
                        r = -errno;
                } else if (S_ISREG(st.st_mode)) {
                        r = copy_file(src, dst, de->d_name, st.st_mode);
                } else if (S_ISDIR(st.st_mode)) {
                        _cleanup_close_ int s = -EBADF, t = -EBADF;

                        if (mkdirat(dst, de->d_name, 0755) < 0) {
                                r = -errno;
                                break;
                        }
                        s = openat(src, de->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
                        t = openat(dst, de->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
                        /* Our umask keeps others out; the run's user has to get in. */
                        r = s < 0 || t < 0 || fchmod(t, 0755) < 0 ? -errno : copy_tree(s, t, depth + 1);
                } else if (S_ISLNK(st.st_mode)) {
                        char target[PATH_MAX];
                        ssize_t n = readlinkat(src, de->d_name, target, sizeof target - 1);

                        if (n < 0) {
                                r = -errno;
                                break;
                        }
                        target[n] = 0;
                        /* A link that leads out would show the run something else than what was deployed. */
                        r = !inner_path_is_valid(target) ? -ELOOP : symlinkat(target, dst, de->d_name) < 0 ? -errno : 0;
                } else
                        r = -EINVAL;
        }
        closedir(d);
        return r;
}

/* What a copy's digest is computed over has the modes of the copy, so it is made first and named afterwards. */
static int copy_to_store(const char *source, const char *store, char ret_digest[static DIGEST_LEN + 1], char **ret_path) {
        _cleanup_free_ char *tmp = NULL, *final = NULL;
        _cleanup_close_ int src = -EBADF, dst = -EBADF, dir = -EBADF;
        int r;

        r = mkdir_parents(store, 0700);
        if (r < 0)
                return r;
        tmp = strprintf("%s/.new-XXXXXX", store);
        if (!tmp)
                return -ENOMEM;
        if (!mkdtemp(tmp))
                return -errno;
        src = open(source, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        dst = open(tmp, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        r = src < 0 || dst < 0 ? -errno : copy_tree(src, dst, 0);
        if (r >= 0 && fchmod(dst, 0755) < 0)
                r = -errno;
        if (r >= 0)
                r = digest_tree(AT_FDCWD, tmp, ret_digest);
        if (r >= 0) {
                final = strprintf("%s/sha256-%s", store, ret_digest + 7);
                r = final ? 0 : -ENOMEM;
        }
        if (r >= 0 && renameat2(AT_FDCWD, tmp, AT_FDCWD, final, RENAME_NOREPLACE) < 0)
                r = errno == EEXIST ? 1 : -errno;
        if (r == 0) {
                dir = open(store, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
                if (dir < 0 || fsync(dir) < 0)
                        r = -errno;
        } else
                rm_rf_at(AT_FDCWD, tmp);
        if (r < 0)
                return r;
        *ret_path = TAKE_PTR(final);
        return 0;
}

int runner_load(const char *source, const char *store, Runner **ret, char **ret_error) {
        static const JsonField fields[] = {
                { "name", SD_JSON_VARIANT_STRING, json_field_string, offsetof(Runner, name), true },
                { "version", SD_JSON_VARIANT_STRING, json_field_string, offsetof(Runner, version), true },
                { "main", SD_JSON_VARIANT_STRING, field_inner_path, offsetof(Runner, main), true },
                { "node", SD_JSON_VARIANT_STRING, field_inner_path, offsetof(Runner, node), false },
                { "check", SD_JSON_VARIANT_ARRAY, field_ignored, 0, true },
                {},
        };
        _cleanup_(runner_freep) Runner *n = calloc(1, sizeof *n);
        _cleanup_free_ char *text = NULL, *path = NULL, *reason = NULL;
        _cleanup_json_ sd_json_variant *v = NULL;
        size_t size;
        int r;

        if (!n)
                return -ENOMEM;
        path = strprintf("%s/runner.json", source);
        if (!path)
                return -ENOMEM;
        r = read_full_file_at(AT_FDCWD, path, RUNNER_JSON_MAX, &text, &size);
        if (r < 0) {
                *ret_error = strprintf("%s: cannot be read: %s", path, strerror(-r));
                return r;
        }
        r = json_parse(text, size, &v, &reason);
        if (r >= 0)
                r = json_read_object(v, "", fields, n, &reason);
        if (r < 0) {
                *ret_error = strprintf("%s: %s", path, strempty(reason));
                return r;
        }
        r = copy_to_store(source, store, n->digest, &n->directory);
        if (r < 0) {
                *ret_error = strprintf("%s: cannot be copied to %s: %s", source, store, strerror(-r));
                return r;
        }
        *ret = TAKE_PTR(n);
        return 0;
}
