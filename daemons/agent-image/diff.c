/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Both trees are walked together, name by name in the same order, so that memory is bounded by the widest directories
 * on the way. Paths are written out as they are found; packages are collected and come last.
 */
#include <dirent.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>

#include "basic/fs-util.h"
#include "basic/json-util.h"
#include "basic/string-util.h"
#include "diff.h"
#include "packages.h"
#include "report.h"
#include "tree.h"

#define PATHS_MAX 200000U
#define DEPTH_MAX 2048U
#define BLOCK_SIZE (256 * 1024)
#define XATTRS_MAX 65536

typedef struct Diff {
        FILE *f;
        uint64_t paths, added, removed, changed;
        int64_t bytes; /* how much larger TO is */
        uint64_t looked_at;
        Packages *packages;
} Diff;

typedef struct Entry {
        char *name;
        struct stat st;
} Entry;

typedef struct Listing {
        Entry *entries;
        size_t n;
} Listing;

static void listing_done(Listing *l) {
        for (size_t i = 0; i < l->n; i++)
                free(l->entries[i].name);
        free(l->entries);
}

static int compare_entries(const void *a, const void *b) {
        return strcmp(((const Entry *) a)->name, ((const Entry *) b)->name);
}

static int list(int fd, Listing *ret) {
        struct dirent *de;
        int copy, r = 0;
        DIR *d;

        copy = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (copy < 0)
                return -errno;
        d = fdopendir(copy);
        if (!d) {
                r = -errno;
                close(copy);
                return r;
        }
        while ((de = readdir(d))) {
                Entry *e;

                if (streq(de->d_name, ".") || streq(de->d_name, ".."))
                        continue;
                if ((ret->n & (ret->n - 1)) == 0) { /* at each power of two */
                        e = reallocarray(ret->entries, ret->n ? ret->n * 2 : 1, sizeof *e);
                        if (!e) {
                                r = -ENOMEM;
                                break;
                        }
                        ret->entries = e;
                }
                e = &ret->entries[ret->n];
                *e = (Entry) { .name = strdup(de->d_name) };
                if (!e->name) {
                        r = -ENOMEM;
                        break;
                }
                ret->n++;
                if (fstatat(fd, de->d_name, &e->st, AT_SYMLINK_NOFOLLOW) < 0) {
                        r = -errno;
                        break;
                }
        }
        closedir(d);
        if (ret->n > 1)
                qsort(ret->entries, ret->n, sizeof *ret->entries, compare_entries);
        return r;
}

static const char *type_name(mode_t mode) {
        return S_ISREG(mode) ? "file" : S_ISDIR(mode) ? "directory" : S_ISLNK(mode) ? "symlink" :
               S_ISFIFO(mode) ? "fifo" : S_ISCHR(mode) || S_ISBLK(mode) ? "device" : "socket";
}

/* In full, unlike escape_name(); a name with odd bytes has its backslashes doubled. */
static char *shown_path(const char *path) {
        size_t n = strlen(path), o = 0;
        char *s;

        if (utf8_is_valid(path, n) && !string_has_cc(path))
                return strdup(path);
        s = malloc(n * 4 + 1);
        for (size_t i = 0; s && i < n; i++) {
                unsigned char c = (unsigned char) path[i];

                if (c >= 0x20 && c < 0x7f && c != '\\')
                        s[o++] = (char) c;
                else if (c == '\\')
                        s[o++] = '\\', s[o++] = '\\';
                else
                        o += (size_t) sprintf(s + o, "\\x%02x", c);
        }
        if (s)
                s[o] = 0;
        return s;
}

static uint64_t size_of(const struct stat *st) {
        return st && (S_ISREG(st->st_mode) || S_ISLNK(st->st_mode)) ? (uint64_t) st->st_size : 0;
}

/* A or B may be NULL: not there. WHAT is NULL-terminated, for those that are on both sides. */
static int put_path(Diff *d, const char *path, const struct stat *a, const struct stat *b, char *const *what) {
        _cleanup_json_ sd_json_variant *v = NULL, *w = NULL;
        _cleanup_free_ char *shown = NULL;
        int r = 0;

        *(a && b ? &d->changed : a ? &d->removed : &d->added) += 1;
        d->bytes += (int64_t) size_of(b) - (int64_t) size_of(a);
        if (d->paths++ >= PATHS_MAX)
                return 0;
        shown = shown_path(path);
        if (!shown)
                return -ENOMEM;
        if (a && b)
                r = sd_json_variant_new_array_strv(&w, (char **) what);
        if (r >= 0)
                r = sd_json_buildo(&v, SD_JSON_BUILD_PAIR_STRING("path", shown),
                                   SD_JSON_BUILD_PAIR_STRING("change", a && b ? "changed" : a ? "removed" : "added"),
                                   SD_JSON_BUILD_PAIR_STRING("type", type_name(b ? b->st_mode : a->st_mode)),
                                   SD_JSON_BUILD_PAIR_CONDITION(!!a, "from_size", SD_JSON_BUILD_UNSIGNED(size_of(a))),
                                   SD_JSON_BUILD_PAIR_CONDITION(!!b, "to_size", SD_JSON_BUILD_UNSIGNED(size_of(b))),
                                   SD_JSON_BUILD_PAIR_CONDITION(!!w, "what", SD_JSON_BUILD_VARIANT(w)));
        if (r < 0)
                return r;
        fputs(d->paths > 1 ? ",\n" : "\n", d->f);
        r = sd_json_variant_dump(v, 0, d->f, NULL);
        return r < 0 ? r : ferror(d->f) ? -ENOSPC : 0;
}

/* 1 the same, 0 not. */
static int same_bytes(int a_dir, int b_dir, const char *name) {
        static char a_buf[BLOCK_SIZE], b_buf[BLOCK_SIZE];
        _cleanup_close_ int a = openat(a_dir, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK),
                            b = openat(b_dir, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
        ssize_t n, m;

        if (a < 0 || b < 0)
                return -errno;
        do {
                n = read(a, a_buf, sizeof a_buf);
                m = n < 0 ? -1 : read(b, b_buf, sizeof b_buf);
                if (n < 0 || m < 0)
                        return -errno;
                if (n != m || memcmp(a_buf, b_buf, (size_t) n) != 0)
                        return 0;
        } while (n > 0);
        return 1;
}

static int same_target(int a_dir, int b_dir, const char *name) {
        char a[PATH_MAX], b[PATH_MAX];
        ssize_t n = readlinkat(a_dir, name, a, sizeof a), m = readlinkat(b_dir, name, b, sizeof b);

        if (n < 0 || m < 0)
                return -errno;
        return n == m && memcmp(a, b, (size_t) n) == 0;
}

/* Sums over names and values, whatever their order. */
static uint64_t xattr_sum(int dir, const char *name) {
        static char names[XATTRS_MAX], value[XATTRS_MAX];
        char path[64 + NAME_MAX];
        uint64_t sum = 0;
        ssize_t n, m;

        snprintf(path, sizeof path, "/proc/self/fd/%d/%s", dir, name);
        n = llistxattr(path, names, sizeof names);
        for (const char *x = names; n > 0 && x < names + n; x += strlen(x) + 1) {
                uint64_t h = UINT64_C(14695981039346656037);

                if (startswith(x, "trusted.overlay."))
                        continue;
                m = lgetxattr(path, x, value, sizeof value);
                for (const char *p = x; *p; p++)
                        h = (h ^ (unsigned char) *p) * UINT64_C(1099511628211);
                for (ssize_t i = 0; i < m; i++)
                        h = (h ^ (unsigned char) value[i]) * UINT64_C(1099511628211);
                sum += h;
        }
        return sum;
}

static int compare_inode(Diff *d, int a_dir, int b_dir, const Entry *a, const Entry *b, const char *path) {
        const struct stat *x = &a->st, *y = &b->st;
        const char *what[8];
        size_t n = 0;
        int r = 1;

        if ((x->st_mode & S_IFMT) != (y->st_mode & S_IFMT))
                what[n++] = "type";
        else if (S_ISREG(x->st_mode))
                r = x->st_size != y->st_size ? 0 : same_bytes(a_dir, b_dir, a->name);
        else if (S_ISLNK(x->st_mode))
                r = same_target(a_dir, b_dir, a->name);
        else if (S_ISCHR(x->st_mode) || S_ISBLK(x->st_mode))
                r = x->st_rdev == y->st_rdev;
        if (r < 0)
                return r;
        if (r == 0)
                what[n++] = "content";
        if ((x->st_mode & 07777) != (y->st_mode & 07777))
                what[n++] = "mode";
        if (x->st_uid != y->st_uid || x->st_gid != y->st_gid)
                what[n++] = "owner";
        /* A directory's time changes with what is in it. */
        if (!S_ISDIR(x->st_mode) &&
            (x->st_mtim.tv_sec != y->st_mtim.tv_sec || x->st_mtim.tv_nsec != y->st_mtim.tv_nsec))
                what[n++] = "time";
        if (xattr_sum(a_dir, a->name) != xattr_sum(b_dir, b->name))
                what[n++] = "xattr";
        what[n] = NULL;
        return n > 0 ? put_path(d, path, x, y, (char *const *) what) : 0;
}

static int walk(Diff *d, int a_fd, int b_fd, const char *path, unsigned depth);

static int walk_below(Diff *d, int a_dir, int b_dir, const Entry *a, const Entry *b, const char *path, unsigned depth) {
        _cleanup_close_ int a_fd = -EBADF, b_fd = -EBADF;

        if (a && S_ISDIR(a->st.st_mode)) {
                a_fd = openat(a_dir, a->name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
                if (a_fd < 0)
                        return -errno;
        }
        if (b && S_ISDIR(b->st.st_mode)) {
                b_fd = openat(b_dir, b->name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
                if (b_fd < 0)
                        return -errno;
        }
        return a_fd >= 0 || b_fd >= 0 ? walk(d, a_fd, b_fd, path, depth + 1) : 0;
}

static int visit(Diff *d, int a_dir, int b_dir, const Entry *a, const Entry *b, const char *dir, unsigned depth) {
        _cleanup_free_ char *path = strprintf("%s/%s", dir, a ? a->name : b->name);
        bool differs;
        uint64_t before = d->added + d->removed + d->changed;
        int r;

        if (!path)
                return -ENOMEM;
        report_step("comparing", ++d->looked_at);
        r = a && b ? compare_inode(d, a_dir, b_dir, a, b, path)
                   : put_path(d, path, a ? &a->st : NULL, b ? &b->st : NULL, NULL);
        differs = d->added + d->removed + d->changed > before;
        if (r >= 0 && differs)
                r = packages_notice(d->packages, a ? a_dir : -EBADF, b ? b_dir : -EBADF, path);
        return r < 0 ? r : walk_below(d, a_dir, b_dir, a, b, path, depth);
}

/* One of the two may be negative: then all of the other one is new, or gone. */
static int walk(Diff *d, int a_fd, int b_fd, const char *path, unsigned depth) {
        _cleanup_(listing_done) Listing a = {}, b = {};
        size_t i = 0, k = 0;
        int r = 0;

        if (depth > DEPTH_MAX)
                return -ELOOP;
        if (a_fd >= 0)
                r = list(a_fd, &a);
        if (r >= 0 && b_fd >= 0)
                r = list(b_fd, &b);
        while (r >= 0 && (i < a.n || k < b.n)) {
                int c = i >= a.n ? 1 : k >= b.n ? -1 : strcmp(a.entries[i].name, b.entries[k].name);
                const Entry *x = c <= 0 ? &a.entries[i++] : NULL, *y = c >= 0 ? &b.entries[k++] : NULL;

                r = visit(d, a_fd, b_fd, x, y, path, depth);
        }
        return r;
}

int diff_trees(int from, int to, int out) {
        _cleanup_json_ sd_json_variant *packages = NULL, *totals = NULL;
        _cleanup_(packages_freep) Packages *p = NULL;
        Diff d = {};
        int r;

        r = packages_new(from, to, &p);
        if (r < 0)
                return report_errno(r, "Starting");
        d.packages = p;
        d.f = fdopen(out, "w");
        if (!d.f)
                return report_errno(-errno, "Writing the result");
        fputs("{\"paths\":[", d.f);
        r = walk(&d, from, to, "", 0);
        if (r >= 0)
                r = packages_compare(p, &packages);
        if (r >= 0)
                r = sd_json_buildo(&totals, SD_JSON_BUILD_PAIR_UNSIGNED("added", d.added),
                                   SD_JSON_BUILD_PAIR_UNSIGNED("removed", d.removed),
                                   SD_JSON_BUILD_PAIR_UNSIGNED("changed", d.changed),
                                   SD_JSON_BUILD_PAIR_INTEGER("bytes", d.bytes));
        if (r >= 0) {
                fprintf(d.f, "],\n\"truncated\":%s,\n\"packages\":", d.paths > PATHS_MAX ? "true" : "false");
                r = sd_json_variant_dump(packages, 0, d.f, NULL);
        }
        if (r >= 0) {
                fputs(",\n\"totals\":", d.f);
                r = sd_json_variant_dump(totals, 0, d.f, NULL);
        }
        fputs("}\n", d.f);
        if (fclose(d.f) != 0 && r >= 0)
                r = -errno;
        return r < 0 ? report_errno(r, "Comparing the environments") : 0;
}
