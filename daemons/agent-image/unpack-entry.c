/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * One entry of an archive, written by hand below the root's fd (tree.h); libarchive has only parsed it. Directories
 * get their final mode and times at the end, else writing into them would change those.
 */
#include <dirent.h>
#include <sys/xattr.h>

#include "basic/fs-util.h"
#include "basic/string-util.h"
#include "report.h"
#include "tree.h"
#include "unpack-part.h"

#define XATTR_SIZE_MAX 65536

int unpack_refuse(const char *name, const char *why) {
        _cleanup_free_ char *shown = escape_name(name);

        return report_error(0, "InvalidImage", "The archive's entry \"%s\" is refused: %s", strempty(shown), why);
}

int unpack_failed(int r, const char *name) {
        _cleanup_free_ char *shown = escape_name(name), *doing = strprintf("Unpacking \"%s\"", strempty(shown));

        if (r == -ELOOP)
                return unpack_refuse(name, "its path leads through a symbolic link");
        if (r == -ENAMETOOLONG)
                return unpack_refuse(name, "its path is too long");
        if (r == -ENOTDIR)
                return unpack_refuse(name, "its path leads through something that is no directory");
        return report_errno(r, strempty(doing));
}

int unpack_normalize(const char *raw, char **ret) {
        _cleanup_free_ char *out = NULL;
        size_t o = 0;

        if (raw[0] == '/')
                return unpack_refuse(raw, "its path is absolute");
        if (strlen(raw) >= PATH_MAX)
                return unpack_refuse(raw, "its path is too long");
        out = malloc(strlen(raw) + 1);
        if (!out)
                return report_errno(-ENOMEM, "Unpacking");
        for (const char *p = raw; *p;) {
                size_t l = strcspn(p, "/");

                if (l == 2 && p[0] == '.' && p[1] == '.')
                        return unpack_refuse(raw, "its path contains \"..\"");
                if (l > NAME_MAX)
                        return unpack_refuse(raw, "its name is too long");
                if (l > 0 && !(l == 1 && p[0] == '.')) {
                        if (o > 0)
                                out[o++] = '/';
                        memcpy(out + o, p, l);
                        o += l;
                }
                p += l;
                p += strspn(p, "/");
        }
        out[o] = 0;
        *ret = TAKE_PTR(out);
        return 0;
}

struct timespec unpack_entry_mtime(struct archive_entry *e) {
        if (!archive_entry_mtime_is_set(e))
                return (struct timespec) {};
        return (struct timespec) { .tv_sec = archive_entry_mtime(e), .tv_nsec = archive_entry_mtime_nsec(e) };
}

static int entry_owner(struct archive_entry *e, const char *path, uid_t *ret_uid, gid_t *ret_gid) {
        int64_t uid = archive_entry_uid(e), gid = archive_entry_gid(e);

        /* (uid_t) -1 means "leave it" to chown(). */
        if (uid < 0 || uid >= UINT32_MAX || gid < 0 || gid >= UINT32_MAX)
                return unpack_refuse(path, "its owner is no valid id");
        *ret_uid = (uid_t) uid;
        *ret_gid = (gid_t) gid;
        return 0;
}

static int set_xattrs(int fd, struct archive_entry *e, const char *path) {
        const char *name;
        const void *value;
        size_t size;

        archive_entry_xattr_reset(e);
        while (archive_entry_xattr_next(e, &name, &value, &size) == ARCHIVE_OK) {
                /* trusted.* would be overlayfs' own marks, security.selinux the other host's policy. */
                if (!name || (!startswith(name, "user.") && !streq(name, "security.capability") &&
                              !streq(name, "system.posix_acl_access") && !streq(name, "system.posix_acl_default")))
                        continue;
                if (size > XATTR_SIZE_MAX)
                        return unpack_refuse(path, "it has an extended attribute that is too large");
                if (fsetxattr(fd, name, value, size, 0) < 0 && errno != EOPNOTSUPP)
                        return unpack_failed(-errno, path);
        }
        return 0;
}

/* Makes room for a new entry that is no directory. */
static int clear_place(const Unpack *u, int parent, const char *name, const char *path) {
        int r;

        if (unlinkat(parent, name, 0) >= 0 || errno == ENOENT)
                return 0;
        if (errno == EISDIR && unlinkat(parent, name, AT_REMOVEDIR) >= 0)
                return 0;
        if ((errno == ENOTEMPTY || errno == EEXIST) && u->layer && !strmap_get(u->seen, path)) {
                r = rm_rf_at(parent, name); /* of the layers below */
                return r < 0 ? unpack_failed(r, path) : 0;
        }
        if (errno == ENOTEMPTY || errno == EEXIST)
                return unpack_refuse(path, "a directory of that name has content already");
        return unpack_failed(-errno, path);
}

int unpack_data(struct archive *a, int fd, const char *path, const UnpackLimits *limits, uint64_t *bytes,
                uint64_t progress) {
        uint64_t size = 0;

        for (;;) {
                const void *block;
                la_int64_t offset;
                size_t n;
                int r;

                r = archive_read_data_block(a, &block, &n, &offset);
                if (r == ARCHIVE_EOF)
                        break;
                if (r == ARCHIVE_RETRY)
                        continue;
                if (r < ARCHIVE_WARN)
                        return report_error(0, "InvalidImage", "The archive is damaged: %s", archive_error_string(a));
                if (offset < 0)
                        return unpack_refuse(path, "its holes make no sense");
                if ((uint64_t) offset + n > limits->bytes_max - *bytes)
                        return report_error(0, "ImageTooLarge",
                                            "The image's files are larger than is allowed (%" PRIu64 " bytes)",
                                            limits->bytes_max);
                if (lseek(fd, offset, SEEK_SET) < 0)
                        return unpack_failed(-errno, path);
                r = write_full(fd, block, n);
                if (r < 0)
                        return unpack_failed(r, path);
                size = MAX(size, (uint64_t) offset + n);
                report_step("unpacking", progress);
        }
        *bytes += size;
        return 0;
}

static int unpack_file(Unpack *u, struct archive *a, struct archive_entry *e, int parent, const char *name,
                       const char *path) {
        uint64_t size = archive_entry_size_is_set(e) && archive_entry_size(e) > 0 ?
                (uint64_t) archive_entry_size(e) : 0;
        struct timespec times[2] = { { .tv_nsec = UTIME_OMIT }, unpack_entry_mtime(e) };
        _cleanup_close_ int fd = -EBADF;
        uint64_t before = u->bytes;
        uid_t uid;
        gid_t gid;
        int r;

        r = entry_owner(e, path, &uid, &gid);
        if (r < 0)
                return r;
        if (size > u->limits->bytes_max - u->bytes)
                return report_error(0, "ImageTooLarge",
                                    "The image's files are larger than is allowed (%" PRIu64 " bytes)",
                                    u->limits->bytes_max);
        r = clear_place(u, parent, name, path);
        if (r < 0)
                return r;
        fd = openat(parent, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
        if (fd < 0)
                return unpack_failed(-errno, path);
        r = unpack_data(a, fd, path, u->limits, &u->bytes, u->entries);
        if (r < 0)
                return r;
        /* A hole at the end has no block of its own; it counts all the same, an image has no holes. */
        if (size > u->bytes - before) {
                if (ftruncate(fd, (off_t) size) < 0)
                        return unpack_failed(-errno, path);
                u->bytes = before + size;
        }
        /* In this order: chown() takes set-id bits and capabilities away. */
        if (fchown(fd, uid, gid) < 0 || fchmod(fd, archive_entry_perm(e) & 07777) < 0)
                return unpack_failed(-errno, path);
        r = set_xattrs(fd, e, path);
        if (r < 0)
                return r;
        return futimens(fd, times) < 0 ? unpack_failed(-errno, path) : 0;
}

static int no_target(int r, const char *path) {
        return r == -ENOENT ? unpack_refuse(path, "it is a link to something that is not there") :
                              unpack_failed(r, path);
}

static int unpack_hardlink(Unpack *u, struct archive_entry *e, int parent, const char *name, const char *path) {
        _cleanup_free_ char *target = NULL;
        _cleanup_close_ int from = -EBADF;
        const char *from_name = NULL;
        struct stat st, old;
        int r;

        r = unpack_normalize(archive_entry_hardlink(e), &target);
        if (r < 0)
                return r;
        if (isempty(target))
                return unpack_refuse(path, "it is a link to the root");
        from = tree_open_parent(u->root, target, false, &from_name);
        if (from < 0)
                return no_target(from, path);
        if (fstatat(from, from_name, &st, AT_SYMLINK_NOFOLLOW) < 0)
                return no_target(-errno, path);
        if (S_ISDIR(st.st_mode))
                return unpack_refuse(path, "it is a hard link to a directory");
        if (fstatat(parent, name, &old, AT_SYMLINK_NOFOLLOW) >= 0 && old.st_ino == st.st_ino && old.st_dev == st.st_dev)
                return 0; /* to itself */
        r = clear_place(u, parent, name, path);
        if (r < 0)
                return r;
        return linkat(from, from_name, parent, name, 0) < 0 ? unpack_failed(-errno, path) : 0;
}

/* Symlinks and FIFOs: no fd to be had without side effects, so by name. */
static int unpack_special(Unpack *u, struct archive_entry *e, int parent, const char *name, const char *path) {
        struct timespec times[2] = { { .tv_nsec = UTIME_OMIT }, unpack_entry_mtime(e) };
        const char *target = archive_entry_symlink(e);
        bool link = archive_entry_filetype(e) == AE_IFLNK;
        uid_t uid;
        gid_t gid;
        int r;

        if (link && (isempty(target) || strlen(target) >= PATH_MAX))
                return unpack_refuse(path, "it is a symbolic link to nowhere");
        r = entry_owner(e, path, &uid, &gid);
        if (r < 0)
                return r;
        r = clear_place(u, parent, name, path);
        if (r < 0)
                return r;
        if ((link ? symlinkat(target, parent, name) : mkfifoat(parent, name, 0600)) < 0)
                return unpack_failed(-errno, path);
        if (fchownat(parent, name, uid, gid, AT_SYMLINK_NOFOLLOW) < 0 ||
            (!link && fchmodat(parent, name, archive_entry_perm(e) & 07777, 0) < 0) ||
            utimensat(parent, name, times, AT_SYMLINK_NOFOLLOW) < 0)
                return unpack_failed(-errno, path);
        return 0;
}

static int remember_directory(Unpack *u, struct archive_entry *e, const char *path) {
        DirMeta *d;
        int r;

        if (u->n_dirs == u->dirs_room) {
                size_t room = MAX(u->dirs_room * 2, (size_t) 1024);

                d = reallocarray(u->dirs, room, sizeof *d);
                if (!d)
                        return report_errno(-ENOMEM, "Unpacking");
                u->dirs = d;
                u->dirs_room = room;
        }
        d = &u->dirs[u->n_dirs];
        *d = (DirMeta) { .mode = archive_entry_perm(e) & 07777, .mtime = unpack_entry_mtime(e) };
        r = entry_owner(e, path, &d->uid, &d->gid);
        if (r < 0)
                return r;
        d->path = strdup(path);
        if (!d->path)
                return report_errno(-ENOMEM, "Unpacking");
        u->n_dirs++;
        return 0;
}

static int unpack_directory(Unpack *u, struct archive_entry *e, const char *path) {
        _cleanup_close_ int parent = -EBADF, fd = -EBADF;
        const char *name = NULL;
        struct stat st;
        int r;

        if (!isempty(path)) {
                parent = tree_open_parent(u->root, path, true, &name);
                if (parent < 0)
                        return unpack_failed(parent, path);
                if (fstatat(parent, name, &st, AT_SYMLINK_NOFOLLOW) >= 0) {
                        if (S_ISLNK(st.st_mode) && !(u->layer && !strmap_get(u->seen, path)))
                                return unpack_failed(-ELOOP, path);
                        if (!S_ISDIR(st.st_mode) && unlinkat(parent, name, 0) < 0)
                                return unpack_failed(-errno, path);
                } else if (errno != ENOENT)
                        return unpack_failed(-errno, path);
                if (mkdirat(parent, name, 0700) < 0 && errno != EEXIST)
                        return unpack_failed(-errno, path);
        }
        fd = tree_open(u->root, path, O_RDONLY | O_DIRECTORY);
        if (fd < 0)
                return unpack_failed(fd, path);
        r = set_xattrs(fd, e, path);
        return r < 0 ? r : remember_directory(u, e, path);
}

static bool is_below_dev(const char *path) {
        return startswith(path, "dev/") != NULL;
}

int unpack_entry(Unpack *u, struct archive *a, struct archive_entry *e) {
        const char *raw = archive_entry_pathname(e), *name = NULL;
        _cleanup_close_ int parent = -EBADF;
        _cleanup_free_ char *path = NULL;
        int r;

        if (isempty(raw))
                return unpack_refuse("", "it has no name");
        r = unpack_normalize(raw, &path);
        if (r < 0)
                return r;
        if (u->layer) {
                r = unpack_whiteout(u, path);
                if (r != 0)
                        return MIN(r, 0);
        }
        if (!archive_entry_hardlink(e) && archive_entry_filetype(e) == AE_IFDIR)
                return unpack_directory(u, e, path);
        if (isempty(path))
                return unpack_refuse(raw, "the root must be a directory");
        if (!archive_entry_hardlink(e) && is_below_dev(path) && archive_entry_filetype(e) != AE_IFREG)
                return 0; /* a run gets its own /dev */

        parent = tree_open_parent(u->root, path, true, &name);
        if (parent < 0)
                return unpack_failed(parent, path);
        if (archive_entry_hardlink(e))
                return unpack_hardlink(u, e, parent, name, path);
        switch (archive_entry_filetype(e)) {
        case AE_IFREG:
                return unpack_file(u, a, e, parent, name, path);
        case AE_IFLNK:
        case AE_IFIFO:
                return unpack_special(u, e, parent, name, path);
        case AE_IFCHR:
        case AE_IFBLK:
                return unpack_refuse(path, "it is a device node outside of dev/");
        case AE_IFSOCK:
                return 0;
        default:
                return unpack_refuse(path, "it is of an unknown type");
        }
}

int unpack_finish_directories(Unpack *u) {
        /* Of two entries of one directory the last one counts. */
        for (size_t i = 0; i < u->n_dirs; i++) {
                const DirMeta *d = &u->dirs[i];
                struct timespec times[2] = { { .tv_nsec = UTIME_OMIT }, d->mtime };
                _cleanup_close_ int fd = tree_open(u->root, d->path, O_RDONLY | O_DIRECTORY);

                if (fd == -ENOENT || fd == -ENOTDIR || fd == -ELOOP)
                        continue; /* replaced by something else later on */
                if (fd < 0)
                        return unpack_failed(fd, d->path);
                if (fchown(fd, d->uid, d->gid) < 0 || fchmod(fd, d->mode) < 0 || futimens(fd, times) < 0)
                        return unpack_failed(-errno, d->path);
        }
        return 0;
}

void unpack_forget_directories(Unpack *u) {
        for (size_t i = 0; i < u->n_dirs; i++)
                free(u->dirs[i].path);
        u->dirs = mfree(u->dirs);
        u->n_dirs = u->dirs_room = 0;
}
