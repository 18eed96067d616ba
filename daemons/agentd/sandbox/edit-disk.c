/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* See the header. ext4, because every host can make and mount it, and id-map it; with a journal, since edits outlive
 * power cuts. One hundredth is kept for the host's root: a full one can still be opened and frozen. */
#include <linux/fs.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>

#include "basic/fs-util.h"
#include "basic/string-util.h"
#include "sandbox/edit-disk.h"
#include "sandbox/loop-device.h"
#include "sandbox/mount-util.h"

/* What sessions leave free on the disk: a twentieth, and at most this. */
#define LEFT_MAX (UINT64_C(1) << 30)
#define LOCK_TRIES 50
#define LOCK_WAIT_MSEC 100

static int run_program(char *const *argv) {
        int status;
        pid_t pid;

        pid = fork();
        if (pid < 0)
                return -errno;
        if (pid == 0) {
                int null = open("/dev/null", O_RDWR);
                sigset_t none;

                sigemptyset(&none);
                (void) sigprocmask(SIG_SETMASK, &none, NULL);
                if (null < 0 || dup2(null, STDIN_FILENO) < 0 || dup2(null, STDOUT_FILENO) < 0)
                        _exit(EXIT_FAILURE);
                execv(argv[0], argv);
                _exit(127);
        }
        while (waitpid(pid, &status, 0) < 0)
                if (errno != EINTR)
                        return -errno;
        if (!WIFEXITED(status))
                return -EIO;
        return WEXITSTATUS(status) == 0 ? 0 : WEXITSTATUS(status) == 127 ? -ENOENT : -EIO;
}

static int make_file_system(const char *path) {
        /* The file is new, so that what is not written is zero. */
        const char *const argv[] = {
                "/usr/sbin/mkfs.ext4", "-q", "-F", "-m", "1", "-i", "16384", "-J", "size=16", "-L", "agentd-edit",
                "-E", "assume_storage_prezeroed=1,nodiscard,root_owner=0:0", path, NULL
        };

        return run_program((char *const *) argv);
}

/* Complete before it has its name. */
static int make_image(const char *dir, const char *path, uint64_t size, char message[STEP_MESSAGE_MAX]) {
        _cleanup_free_ char *fresh = strprintf("%s/.disk", dir);
        _cleanup_close_ int fd = -EBADF, parent = -EBADF;
        int r;

        if (!fresh)
                return -ENOMEM;
        (void) unlink(fresh);
        fd = open(fresh, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (fd < 0)
                return step_fail(message, -errno, "Cannot make %s", fresh);
        if (ftruncate(fd, (off_t) size) < 0)
                r = step_fail(message, -errno, "Cannot make %s as large as %" PRIu64 " bytes", fresh, size);
        else {
                r = make_file_system(fresh);
                if (r == -ENOENT)
                        (void) step_fail(message, r, "There is no mkfs.ext4 (package e2fsprogs)");
                else if (r < 0)
                        (void) step_fail(message, r, "mkfs.ext4 cannot make %s", fresh);
        }
        if (r >= 0) {
                parent = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
                if (fsync(fd) < 0 || rename(fresh, path) < 0 || parent < 0 || fsync(parent) < 0)
                        r = step_fail(message, -errno, "Cannot keep %s", path);
        }
        if (r < 0)
                (void) unlink(fresh);
        return r;
}

/* The one before is taken away by us as well, but its last user may be a moment behind. */
static int lock_image(int fd) {
        for (unsigned i = 0; flock(fd, LOCK_EX | LOCK_NB) < 0; i++) {
                if (errno != EWOULDBLOCK)
                        return -errno;
                if (i >= LOCK_TRIES)
                        return -EBUSY;
                (void) poll(NULL, 0, LOCK_WAIT_MSEC);
        }
        return 0;
}

static int mount_image(int loop, const char *point) {
        _cleanup_close_ int fs = -EBADF, mount_fd = -EBADF;
        char source[64];
        int r;

        snprintf(source, sizeof source, "/proc/self/fd/%d", loop);
        r = fs = mount_fs_open("ext4");
        if (r >= 0)
                r = mount_fs_string(fs, "source", source);
        if (r >= 0)
                r = mount_fs_string(fs, "errors", "remount-ro");
        if (r >= 0)
                r = mount_fd = mount_fs_create(fs, MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOATIME);
        return r < 0 ? r : mount_attach(mount_fd, point);
}

/* Looked at before: an fallocate() that fails has filled the disk by then. Some is left for everybody else. */
static int check_room(const char *dir, uint64_t size, const struct stat *st, char message[STEP_MESSAGE_MAX]) {
        uint64_t have = st ? (uint64_t) st->st_blocks * 512 : 0, free, left;
        struct statvfs vfs;

        if (have >= size)
                return 0;
        if (statvfs(dir, &vfs) < 0)
                return step_fail(message, -errno, "Cannot look at the disk of %s", dir);
        free = (uint64_t) vfs.f_bavail * vfs.f_frsize;
        left = MIN((uint64_t) vfs.f_blocks * vfs.f_frsize / 20, LEFT_MAX);
        if (free < left || free - left < size - have)
                return step_fail(message, -ENOSPC, "An edit session sets aside %" PRIu64
                                 " MiB more (SizeMax=), the disk has %" PRIu64 " MiB for it", (size - have) >> 20,
                                 free < left ? 0 : (free - left) >> 20);
        return 0;
}

/* Holes and what was set aside but never written look the same. */
static void give_back(int fd, off_t size) {
        for (off_t at = 0, end; at < size; at = end) {
                at = lseek(fd, at, SEEK_HOLE);
                if (at < 0 || at >= size)
                        return;
                end = lseek(fd, at, SEEK_DATA);
                if (end < 0)
                        end = size;
                if (fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, at, end - at) < 0)
                        return;
        }
}

int edit_disk_mount(const char *dir, uint64_t size, bool reserve, const char *point, char message[STEP_MESSAGE_MAX]) {
        _cleanup_free_ char *path = strprintf("%s/disk", dir);
        _cleanup_close_ int fd = -EBADF, loop = -EBADF;
        struct stat st;
        int r;

        if (!path)
                return -ENOMEM;
        fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
        if (fd < 0 && errno == ENOENT) {
                r = reserve ? check_room(dir, size, NULL, message) : 0;
                if (r >= 0)
                        r = make_image(dir, path, size, message);
                if (r < 0)
                        return r;
                fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
        }
        if (fd < 0 || fstat(fd, &st) < 0)
                return step_fail(message, -errno, "Cannot open %s", path);
        r = lock_image(fd);
        if (r < 0)
                return step_fail(message, r, "%s is still in use", path);
        if (reserve) {
                r = check_room(dir, (uint64_t) st.st_size, &st, message);
                if (r < 0)
                        return r;
        }
        if (reserve && fallocate(fd, 0, 0, st.st_size) < 0 && errno != EOPNOTSUPP) {
                r = -errno;
                give_back(fd, st.st_size);
                return step_fail(message, r, "The disk has no room for %" PRIu64 " MiB of changes (SizeMax=)",
                                 (uint64_t) st.st_size >> 20);
        }
        r = loop_device_attach(path, fd, false, &loop);
        if (r < 0)
                return step_fail(message, r, "Cannot have a loop device for %s", path);
        r = mount_image(loop, point);
        return r < 0 ? step_fail(message, r, "Cannot mount %s", path) : 0;
}

int edit_disk_unmount(const char *point) {
        struct fstrim_range range = { .len = UINT64_MAX };
        int fd;

        if (mount_point_is(point) > 0) {
                fd = open(point, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
                if (fd >= 0) {
                        (void) ioctl(fd, FITRIM, &range);
                        close(fd);
                }
        }
        return mount_point_clear(point);
}
