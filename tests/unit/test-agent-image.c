/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Proves that hostile archives are refused and write nothing outside, that an ordinary one becomes a base image with
 * the same digest each time, and that a run's changes survive freezing: whiteouts, opaque directories, hard links,
 * xattrs, odd names. Needs root (owners, trusted xattrs); skips (77) otherwise.
 */
#include <archive.h>
#include <archive_entry.h>
#include <fcntl.h>
#include <sched.h>
#include <stdarg.h>
#include <linux/mount.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <time.h>

#include "basic/digest.h"
#include "basic/fs-util.h"
#include "basic/string-util.h"
#include "erofs.h"
#include "finish.h"
#include "freeze.h"
#include "unpack.h"

#define SKIP 77

static char top[] = "/var/tmp/test-agent-image-XXXXXX";

static const char *at(const char *format, ...) __attribute__((format(printf, 1, 2)));
static const char *at(const char *format, ...) {
        static char buf[8][PATH_MAX];
        static unsigned i;
        char *p = buf[i++ % ELEMENTSOF(buf)];
        va_list ap;
        int n = snprintf(p, PATH_MAX, "%s/", top);

        va_start(ap, format);
        vsnprintf(p + n, (size_t) (PATH_MAX - n), format, ap);
        va_end(ap);
        return p;
}

typedef struct Member {
        const char *path;
        int type;
        const char *content; /* of a file; target of a symlink */
        const char *hardlink;
        int mode;
        int64_t uid;
        int64_t size;        /* without content: that many bytes, not in the archive */
} Member;

static int write_archive(const Member *m, int filter, size_t cut) {
        static char buf[1 << 20];
        static const char zeros[100000];
        struct archive *a = archive_write_new();
        size_t used = 0;
        int fd;

        assert(archive_write_set_format_pax(a) == ARCHIVE_OK);
        assert(archive_write_add_filter(a, filter) == ARCHIVE_OK);
        assert(archive_write_set_bytes_per_block(a, 0) == ARCHIVE_OK);
        assert(archive_write_open_memory(a, buf, sizeof buf, &used) == ARCHIVE_OK);
        for (; m->path; m++) {
                struct archive_entry *e = archive_entry_new();

                archive_entry_set_pathname(e, m->path);
                archive_entry_set_filetype(e, m->type ? (unsigned) m->type : AE_IFREG);
                archive_entry_set_perm(e, (mode_t) (m->mode ?: 0755));
                archive_entry_set_uid(e, m->uid);
                archive_entry_set_gid(e, m->uid);
                archive_entry_set_mtime(e, 1700000000, 123456789);
                if (m->hardlink)
                        archive_entry_set_hardlink(e, m->hardlink);
                else if (m->type == AE_IFLNK)
                        archive_entry_set_symlink(e, m->content);
                else if (m->type == AE_IFCHR)
                        archive_entry_set_rdev(e, makedev(1, 3));
                else if (m->content)
                        archive_entry_set_size(e, (la_int64_t) strlen(m->content));
                else if (m->size) {
                        archive_entry_set_size(e, m->size);
                        /* One hole but for the last byte: a small archive of a large file. */
                        archive_entry_sparse_add_entry(e, m->size - 1, 1);
                }
                assert(archive_write_header(a, e) >= ARCHIVE_WARN);
                if (m->content && !m->hardlink && m->type != AE_IFLNK)
                        assert(archive_write_data(a, m->content, strlen(m->content)) >= 0);
                if (m->size > 0 && m->size <= (int64_t) sizeof zeros)
                        assert(archive_write_data(a, zeros, (size_t) m->size) >= 0);
                archive_entry_free(e);
        }
        archive_write_free(a);
        fd = open(at("archive"), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
        assert(fd >= 0 && write_full(fd, buf, cut > 0 ? cut : used) >= 0 && lseek(fd, 0, SEEK_SET) == 0);
        return fd;
}

#define ROOT_MEMBERS { "./", AE_IFDIR }, { "./etc/", AE_IFDIR }, { "./usr/bin/", AE_IFDIR }, \
        { "./etc/passwd", 0, "root:x:0:0::/root:/bin/sh\n", .mode = 0644 }, \
        { "./etc/group", 0, "root:x:0:\n", .mode = 0644 }

static int unpack_into(const char *dir, const Member *m, int filter, size_t cut, const UnpackLimits *limits,
                       int64_t *newest) {
        _cleanup_close_ int fd = write_archive(m, filter, cut), root = -EBADF;

        assert(rm_rf_at(AT_FDCWD, at("%s", dir)) >= 0 && mkdir(at("%s", dir), 0700) >= 0);
        root = open(at("%s", dir), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        assert(root >= 0);
        return unpack_tar(fd, root, limits, newest);
}

static const UnpackLimits normal = { .bytes_max = 1 << 20, .entries_max = 100 };

static int64_t import(const char *dir, const Member *m, int filter) {
        int64_t newest, started = time(NULL);
        _cleanup_close_ int root = -EBADF;

        if (unpack_into(dir, m, filter, 0, &normal, &newest) < 0)
                return -EINVAL;
        root = open(at("%s", dir), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        return finish_image(root, started, newest);
}

static int make_layer(const char *tree, const char *out, char ret_digest[static DIGEST_LEN + 1], uint64_t *ret_size) {
        _cleanup_close_ int fd = -EBADF;
        int r;

        r = erofs_make(tree, out, ret_size);
        if (r < 0)
                return r;
        fd = open(out, O_RDONLY | O_CLOEXEC);
        assert(fd >= 0);
        return digest_fd(fd, ret_digest);
}

static void test_ordinary(void) {
        static const Member m[] = {
                ROOT_MEMBERS,
                { "./usr/bin/tool", 0, "#!/bin/sh\n", .mode = 04755 },
                { "./usr/bin/alias", .hardlink = "./usr/bin/tool" },
                { "./bin", AE_IFLNK, "usr/bin" },
                { "./abs", AE_IFLNK, "/etc/passwd" },
                { "./dev/null", AE_IFCHR },
                { "./tmp/", AE_IFDIR, .mode = 01777 },
                { "./tmp/x", 0, "x" },
                { "./odd \n\xff name", 0, "x", .uid = 33 },
                { "./etc/resolv.conf", AE_IFLNK, "../run/x" },
                { "./etc/machine-id", 0, "0123456789abcdef0123456789abcdef\n" },
                { "./sparse", .size = 100000 },
                {}
        };
        char a[DIGEST_LEN + 1], b[DIGEST_LEN + 1], mark[4];
        _cleanup_free_ char *passwd = NULL;
        struct stat st, other;
        uint64_t size;

        assert(import("one", m, ARCHIVE_FILTER_NONE) > 10);
        assert(stat(at("one/usr/bin/tool"), &st) >= 0 && (st.st_mode & 07777) == 04755 &&
               st.st_mtim.tv_nsec == 123456789);
        assert(stat(at("one/usr/bin/alias"), &other) >= 0 && other.st_ino == st.st_ino && st.st_nlink == 2);
        assert(lstat(at("one/dev/null"), &st) < 0 && lstat(at("one/tmp/x"), &st) < 0);
        assert(stat(at("one/odd \n\xff name"), &st) >= 0 && st.st_uid == 33);
        assert(lstat(at("one/etc/resolv.conf"), &st) >= 0 && S_ISREG(st.st_mode) && st.st_size == 0);
        assert(lstat(at("one/etc/machine-id"), &st) >= 0 && st.st_size == 0);
        assert(stat(at("one/sparse"), &st) >= 0 && st.st_size == 100000);
        assert(stat(at("one/home/agent"), &st) >= 0 && st.st_uid == 1000 && (st.st_mode & 07777) == 0700);
        assert(stat(at("one/opt/agentd/runner"), &st) >= 0 && S_ISDIR(st.st_mode) && st.st_mtim.tv_sec == 1700000000);
        assert(stat(at("one/tmp"), &st) >= 0 && (st.st_mode & 07777) == 01777);
        assert(read_full_file_at(AT_FDCWD, at("one/etc/passwd"), 4096, &passwd, NULL) >= 0);
        assert(startswith(passwd, "root:x:0:0:") && strstr(passwd, "\nagent:x:1000:1000:agent:/home/agent:/bin/sh\n"));
        assert(getxattr(at("one/usr/bin/tool"), "user.mark", mark, sizeof mark) < 0);

        /* Another time, another compression, another place: the same bytes. */
        assert(make_layer(at("one"), at("one.erofs"), a, &size) >= 0 && size > 4096);
        assert(import("two", m, ARCHIVE_FILTER_GZIP) > 10);
        assert(make_layer(at("two"), at("two.erofs"), b, &size) >= 0);
        assert(streq(a, b));
        assert(import("two", m, ARCHIVE_FILTER_ZSTD) > 10);
}

static void test_hostile(void) {
        static const Member bad[][8] = {
                { ROOT_MEMBERS, { "../outside", 0, "x" } },
                { ROOT_MEMBERS, { "a/../../outside", 0, "x" } },
                { ROOT_MEMBERS, { "/outside", 0, "x" } },
                { ROOT_MEMBERS, { "link", AE_IFLNK, ".." }, { "link/outside", 0, "x" } },
                { ROOT_MEMBERS, { "link", AE_IFLNK, "/var/tmp" }, { "link/", AE_IFDIR } },
                { ROOT_MEMBERS, { "link", AE_IFLNK, ".." }, { "link/sub/", AE_IFDIR } },
                { ROOT_MEMBERS, { "hard", .hardlink = "../outside-file" } },
                { ROOT_MEMBERS, { "hard", .hardlink = "/etc/passwd" } },
                { ROOT_MEMBERS, { "link", AE_IFLNK, ".." }, { "hard", .hardlink = "link/outside-file" } },
                { ROOT_MEMBERS, { "hard", .hardlink = "nothing" } },
                { ROOT_MEMBERS, { "hard", .hardlink = "etc" } },
                { ROOT_MEMBERS, { "etc/kmem", AE_IFCHR } },
                { ROOT_MEMBERS, { "etc/passwd/x", 0, "x" } },
                { ROOT_MEMBERS, { "owner", 0, "x", .uid = INT64_C(4294967295) } },
                { ROOT_MEMBERS, { "big", .size = 10 << 20 } },
                { ROOT_MEMBERS, { "huge", .size = INT64_C(1) << 40 } },
                { { "oci-layout", 0, "{}" } },
                { { "usr/bin/x", 0, "x" } },  /* no /etc */
                { { "etc/x", 0, "x" } },      /* no /bin */
                { ROOT_MEMBERS, { "etc/passwd", 0, "u:x:1000:1000::/:/bin/sh\n" } },
                { ROOT_MEMBERS, { "etc/passwd", 0, "agent:x:7:7::/:/bin/sh\n" } },
                { ROOT_MEMBERS, { "etc/group", 0, "u:x:1000:\n" } },
                { ROOT_MEMBERS, { "home", AE_IFLNK, "/var/tmp" } },
                { ROOT_MEMBERS, { "home/agent", AE_IFLNK, "/var/tmp" } },
                { ROOT_MEMBERS, { "opt", 0, "a file" } },
                { ROOT_MEMBERS, { "etc/passwd", AE_IFLNK, "../../outside-file" },
                  { "etc/hosts", AE_IFLNK, "/etc/hosts" } },
        };
        /* The last one is refused or contained: the symlink is replaced by a file of the image's own. */
        const size_t contained = ELEMENTSOF(bad) - 1;
        _cleanup_free_ char *text = NULL;
        UnpackLimits few = { .bytes_max = 1 << 20, .entries_max = 3 };
        static const Member good[] = { ROOT_MEMBERS, { "big", 0, "0123456789" }, {} };
        int64_t newest;
        int fd, root;

        assert(write_file_atomic(AT_FDCWD, at("outside-file"), "untouched", 9, 0600, (uid_t) -1, (gid_t) -1, 0) >= 0);
        for (size_t i = 0; i < ELEMENTSOF(bad); i++) {
                int64_t r = import("bad", bad[i], ARCHIVE_FILTER_NONE);

                if (i != contained && r >= 0)
                        fprintf(stderr, "hostile archive %zu was taken\n", i);
                assert(i == contained || r < 0);
                assert(access(at("outside"), F_OK) < 0 && access(at("sub"), F_OK) < 0 && access("/outside", F_OK) < 0);
        }
        assert(read_full_file_at(AT_FDCWD, at("outside-file"), 100, &text, NULL) >= 0 && streq(text, "untouched"));

        assert(unpack_into("bad", good, ARCHIVE_FILTER_NONE, 0, &few, &newest) < 0);
        few = (UnpackLimits) { .bytes_max = 5, .entries_max = 100 };
        assert(unpack_into("bad", good, ARCHIVE_FILTER_NONE, 0, &few, &newest) < 0);
        assert(unpack_into("bad", good, ARCHIVE_FILTER_NONE, 3000, &normal, &newest) < 0); /* truncated */
        assert(unpack_into("bad", good, ARCHIVE_FILTER_GZIP, 100, &normal, &newest) < 0);
        assert(unpack_into("bad", good, ARCHIVE_FILTER_NONE, 0, &normal, &newest) >= 0);

        /* No archive at all. */
        root = open(at("bad"), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        fd = open(at("outside-file"), O_RDONLY | O_CLOEXEC);
        assert(unpack_tar(fd, root, &normal, &newest) < 0);
        close(fd);
        fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
        assert(unpack_tar(fd, root, &normal, &newest) < 0);
        close(fd);
        close(root);
}

static bool mount_image(const char *image, const char *dir) {
        int fs = (int) syscall(SYS_fsopen, "erofs", 0), m;

        if (fs < 0 || syscall(SYS_fsconfig, fs, FSCONFIG_SET_STRING, "source", image, 0) < 0 ||
            syscall(SYS_fsconfig, fs, FSCONFIG_SET_FLAG, "ro", NULL, 0) < 0 ||
            syscall(SYS_fsconfig, fs, FSCONFIG_CMD_CREATE, NULL, NULL, 0) < 0)
                return false;
        m = (int) syscall(SYS_fsmount, fs, 0, MOUNT_ATTR_RDONLY);
        close(fs);
        assert(m >= 0 && syscall(SYS_move_mount, m, "", AT_FDCWD, dir, MOVE_MOUNT_F_EMPTY_PATH) >= 0);
        close(m);
        return true;
}

static void put(const char *path) {
        assert(write_file_atomic(AT_FDCWD, path, "x", 1, 0640, 1000, 1000, 0) >= 0);
}

static void make_upper(void) {
        const struct timespec times[2] = { { .tv_sec = 1, .tv_nsec = 5 }, { .tv_sec = 1, .tv_nsec = 987654321 } };

        assert(mkdir_parents(at("upper/home/agent/replaced"), 0755) >= 0);
        assert(mkdir_parents(at("upper/tmp/junk"), 0755) >= 0);
        assert(mkdir_parents(at("upper/opt/agentd/runner"), 0755) >= 0);
        assert(mkdir_parents(at("upper/var/lib/apt/lists/partial"), 0755) >= 0);
        assert(mkdir_parents(at("upper/etc"), 0755) >= 0);
        put(at("upper/home/agent/kept"));
        put(at("upper/home/agent/replaced/new"));
        put(at("upper/home/agent/odd \n\xfe"));
        assert(link(at("upper/home/agent/kept"), at("upper/home/agent/second")) >= 0);
        assert(symlink("/nowhere", at("upper/home/agent/link")) >= 0);
        assert(mknod(at("upper/home/agent/gone"), S_IFCHR, makedev(0, 0)) >= 0);
        assert(mknod(at("upper/etc/machine-id"), S_IFREG | 0444, 0) >= 0);
        assert(setxattr(at("upper/home/agent/kept"), "user.note", "hello", 5, 0) >= 0);
        assert(setxattr(at("upper/home/agent/kept"), "trusted.overlay.origin", "handle", 6, 0) >= 0);
        assert(setxattr(at("upper/home/agent"), "trusted.overlay.impure", "y", 1, 0) >= 0);
        assert(setxattr(at("upper/home/agent/replaced"), "trusted.overlay.opaque", "y", 1, 0) >= 0);
        assert(setxattr(at("upper"), "trusted.overlay.uuid", "0123456789abcdef", 16, 0) >= 0);
        assert(utimensat(AT_FDCWD, at("upper/home/agent/kept"), times, 0) >= 0);
}

static void test_freeze(void) {
        char a[DIGEST_LEN + 1], b[DIGEST_LEN + 1], value[64];
        _cleanup_close_ int upper = -EBADF;
        struct stat st, other;
        uint64_t size;
        int64_t n;

        make_upper();
        upper = open(at("upper"), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        n = freeze_upper(upper, UINT64_C(1) << 40);
        assert(n > 0);
        assert(freeze_upper(upper, UINT64_C(1) << 40) == n); /* may be repeated */
        assert(access(at("upper/tmp"), F_OK) < 0 && access(at("upper/opt"), F_OK) < 0);
        assert(access(at("upper/etc/machine-id"), F_OK) < 0 && access(at("upper/var/lib/apt/lists/partial"), F_OK) < 0);
        assert(make_layer(at("upper"), at("u1.erofs"), a, &size) >= 0);
        assert(make_layer(at("upper"), at("u2.erofs"), b, &size) >= 0);
        assert(streq(a, b));

        assert(mkdir(at("m"), 0700) >= 0);
        if (!mount_image(at("u1.erofs"), at("m"))) {
                fprintf(stderr, "Cannot mount the layer here; its content is not looked at.\n");
                return;
        }
        assert(stat(at("m/home/agent/kept"), &st) >= 0 && st.st_uid == 1000 && (st.st_mode & 07777) == 0640);
        assert(st.st_mtim.tv_sec == 1 && st.st_mtim.tv_nsec == 987654321);
        assert(stat(at("m/home/agent/second"), &other) >= 0 && other.st_ino == st.st_ino && st.st_nlink == 2);
        assert(lstat(at("m/home/agent/gone"), &st) >= 0 && S_ISCHR(st.st_mode) && st.st_rdev == 0);
        assert(lstat(at("m/home/agent/link"), &st) >= 0 && S_ISLNK(st.st_mode));
        assert(access(at("m/home/agent/odd \n\xfe"), F_OK) >= 0);
        assert(getxattr(at("m/home/agent/kept"), "user.note", value, sizeof value) == 5);
        assert(getxattr(at("m/home/agent/kept"), "trusted.overlay.origin", value, sizeof value) < 0);
        assert(getxattr(at("m/home/agent"), "trusted.overlay.impure", value, sizeof value) < 0);
        assert(getxattr(at("m"), "trusted.overlay.uuid", value, sizeof value) < 0);
        assert(getxattr(at("m/home/agent/replaced"), "trusted.overlay.opaque", value, sizeof value) == 1);
        assert(umount2(at("m"), MNT_DETACH) >= 0);
}

static void test_not_freezable(void) {
        _cleanup_close_ int upper = open(at("upper"), O_RDONLY | O_DIRECTORY | O_CLOEXEC);

        assert(setxattr(at("upper/home/agent/replaced"), "trusted.overlay.redirect", "/x", 2, 0) >= 0);
        assert(freeze_upper(upper, UINT64_C(1) << 40) < 0);
        assert(removexattr(at("upper/home/agent/replaced"), "trusted.overlay.redirect") >= 0);
        assert(chown(at("upper/home/agent/kept"), 61200, 61200) >= 0);
        assert(freeze_upper(upper, UINT64_C(1) << 40) < 0);
        assert(chown(at("upper/home/agent/kept"), 1000, 1000) >= 0);
        assert(mknod(at("upper/home/agent/device"), S_IFCHR, makedev(1, 3)) >= 0);
        assert(freeze_upper(upper, UINT64_C(1) << 40) < 0);
}

int main(void) {
        if (geteuid() != 0 || unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0) {
                fprintf(stderr, "Needs root: skipped.\n");
                return SKIP;
        }
        if (access("/usr/bin/mkfs.erofs", X_OK) < 0) {
                fprintf(stderr, "There is no mkfs.erofs: skipped.\n");
                return SKIP;
        }
        umask(0022);
        assert(mkdtemp(top));
        test_ordinary();
        test_hostile();
        test_freeze();
        test_not_freezable();
        assert(rm_rf_at(AT_FDCWD, top) >= 0);
        return 0;
}
