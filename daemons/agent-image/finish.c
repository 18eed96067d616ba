/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* From a root file system to a base image. */
#include "basic/fs-util.h"
#include "basic/mount-points.h"
#include "basic/string-util.h"
#include "finish.h"
#include "report.h"
#include "tree.h"

#define DATABASE_SIZE_MAX (16U << 20)

static int failed(int r, const char *path) {
        _cleanup_free_ char *doing = strprintf("Preparing /%s", path);

        if (r == -ELOOP)
                return report_error(0, "InvalidImage", "/%s is, or is reached through, a symbolic link", path);
        if (r == -ENOTDIR)
                return report_error(0, "InvalidImage", "/%s is not a directory", path);
        return report_errno(r, strempty(doing));
}

static bool is_directory(int root, const char *path) {
        _cleanup_close_ int fd = tree_open(root, path, O_PATH | O_DIRECTORY);

        return fd >= 0;
}

static int check_is_root(int root) {
        if (!is_directory(root, "etc"))
                return report_error(0, "InvalidImage", "This is no root file system: it has no /etc");
        if (!is_directory(root, "usr/bin") && !is_directory(root, "bin"))
                return report_error(0, "InvalidImage", "This is no root file system: it has neither /usr/bin nor /bin");
        return 0;
}

/* A field of a line "a:b:c" without copying; false where there are not that many. */
static bool line_field(const char *line, unsigned n, const char **ret, size_t *ret_len) {
        for (; n > 0; n--) {
                line += strcspn(line, ":\n");
                if (*line != ':')
                        return false;
                line++;
        }
        *ret = line;
        *ret_len = strcspn(line, ":\n");
        return true;
}

static bool field_is(const char *line, unsigned n, const char *value) {
        const char *f;
        size_t l;

        return line_field(line, n, &f, &l) && l == strlen(value) && memcmp(f, value, l) == 0;
}

/* 1: the entry agent/1000 is there, 0: neither name nor id is taken. */
static int find_agent(const char *text, const char *what) {
        for (const char *l = text; *l; l += strcspn(l, "\n"), l += *l == '\n') {
                bool name = field_is(l, 0, "agent"), id = field_is(l, 2, "1000");
                const char *f;
                size_t n;

                if (name && id)
                        return 1;
                if (name && line_field(l, 2, &f, &n)) {
                        _cleanup_free_ char *other = strndup(f, MIN(n, (size_t) 32)),
                                *shown = escape_name(strempty(other));

                        return report_error(0, "InvalidImage",
                                            "The image has a %s \"agent\" whose number is %s, not 1000", what,
                                            strempty(shown));
                }
                if (id && line_field(l, 0, &f, &n)) {
                        _cleanup_free_ char *other = strndup(f, MIN(n, (size_t) 64)),
                                *shown = escape_name(strempty(other));

                        return report_error(0, "InvalidImage",
                                            "The image's %s number 1000 is \"%s\"; it has to be \"agent\": rename or "
                                            "remove that %s", what, strempty(shown), what);
                }
        }
        return 0;
}

static int append_line(int root, const char *path, const char *what, const char *if_missing, const char *line) {
        _cleanup_free_ char *text = NULL, *all = NULL;
        _cleanup_close_ int fd = -EBADF;
        struct stat st;
        size_t size = 0;
        int r;

        r = tree_touch(root, path, 0644);
        if (r < 0)
                return failed(r, path);
        fd = tree_open(root, path, O_RDWR | O_NONBLOCK);
        if (fd < 0)
                return failed(fd, path);
        if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || st.st_nlink != 1)
                return report_error(0, "InvalidImage", "/%s is not an ordinary file", path);
        r = read_full_fd(fd, DATABASE_SIZE_MAX, &text, &size);
        if (r < 0)
                return failed(r, path);
        if (strlen(text) != size)
                return report_error(0, "InvalidImage", "/%s is not a text file", path);
        r = find_agent(text, what);
        if (r != 0)
                return MIN(r, 0);
        all = strprintf("%s%s%s", size > 0 ? text : if_missing, size > 0 && text[size - 1] != '\n' ? "\n" : "", line);
        if (!all)
                return report_errno(-ENOMEM, "Preparing the image");
        if (lseek(fd, 0, SEEK_SET) < 0 || ftruncate(fd, 0) < 0)
                return failed(-errno, path);
        r = write_full(fd, all, strlen(all));
        return r < 0 ? failed(r, path) : 0;
}

static const char *pick_shell(int root) {
        static const char *const shells[] = { "bin/bash", "usr/bin/bash" };

        for (size_t i = 0; i < ELEMENTSOF(shells); i++) {
                _cleanup_close_ int fd = tree_open(root, shells[i], O_PATH);

                if (fd >= 0)
                        return "/bin/bash";
        }
        return "/bin/sh";
}

static int ensure_agent(int root) {
        _cleanup_free_ char *line = strprintf("agent:x:%d:%d:agent:/home/agent:%s\n", AGENT_ID, AGENT_ID,
                                              pick_shell(root));
        _cleanup_close_ int home = -EBADF;
        int r;

        if (!line)
                return report_errno(-ENOMEM, "Preparing the image");
        r = append_line(root, "etc/passwd", "user", "root:x:0:0:root:/root:/bin/sh\n", line);
        if (r >= 0)
                r = append_line(root, "etc/group", "group", "root:x:0:\n", "agent:x:1000:\n");
        if (r < 0)
                return r;
        r = tree_mkdir(root, "home/agent", 0700, AGENT_ID, AGENT_ID);
        if (r < 0)
                return failed(r, "home/agent");
        /* One that was there already: the home itself is made right, what is in it is left alone. */
        home = tree_open(root, "home/agent", O_RDONLY | O_DIRECTORY);
        if (home < 0)
                return failed(home, "home/agent");
        return fchown(home, AGENT_ID, AGENT_ID) < 0 || fchmod(home, 0700) < 0 ? failed(-errno, "home/agent") : 0;
}

static int ensure_mount_points(int root) {
        int r;

        for (size_t i = 0; i < ELEMENTSOF(mount_points); i++) {
                const MountPoint *m = &mount_points[i];

                if (m->agent) /* its owner is there later */
                        continue;
                r = S_ISDIR(m->mode) ? tree_mkdir(root, m->path, m->mode & 07777, 0, 0) : tree_touch(root, m->path, 0644);
                if (r < 0)
                        return failed(r, m->path);
        }
        r = tree_touch(root, "etc/resolv.conf", 0644);
        return r < 0 ? failed(r, "etc/resolv.conf") : 0;
}

static int empty_file(int root, const char *path) {
        int r = tree_remove(root, path);

        if (r >= 0)
                r = tree_touch(root, path, 0644);
        return r < 0 ? failed(r, path) : 0;
}

/* What is of a host, or of the moment, not of an environment. */
static int drop_leftovers(int root) {
        static const char *const empty[] = {
                "run", "tmp", "var/tmp", "dev", "proc", "sys", "var/lib/apt/lists", "var/cache/apt",
                "var/cache/ldconfig",
        };
        static const char *const gone[] = {
                ".dockerenv", "var/log/dpkg.log", "var/log/apt", "var/log/alternatives.log", "var/log/bootstrap.log",
                "var/log/faillog", "var/log/lastlog", "var/lib/dbus/machine-id", "etc/.pwd.lock",
                "var/lib/systemd/random-seed",
        };
        int r;

        for (size_t i = 0; i < ELEMENTSOF(empty); i++) {
                r = tree_empty(root, empty[i]);
                if (r < 0)
                        return failed(r, empty[i]);
        }
        for (size_t i = 0; i < ELEMENTSOF(gone); i++) {
                r = tree_remove(root, gone[i]);
                if (r < 0)
                        return failed(r, gone[i]);
        }
        r = empty_file(root, "etc/resolv.conf");
        return r < 0 ? r : empty_file(root, "etc/machine-id");
}

typedef struct Times {
        int64_t started, newest;
} Times;

static int clamp_time(int dir, const char *name, const struct stat *st, void *userdata) {
        const Times *t = userdata;
        struct timespec times[2] = { { .tv_nsec = UTIME_OMIT }, { .tv_sec = t->newest } };

        if (st->st_mtim.tv_sec < t->started)
                return 0;
        return utimensat(dir, name, times, AT_SYMLINK_NOFOLLOW) < 0 ? -errno : 0;
}

int64_t finish_image(int root, int64_t started, int64_t newest) {
        Times times = { .started = started, .newest = newest < started ? newest : 0 };
        int64_t n;
        int r;

        report_step("preparing", 0);
        r = check_is_root(root);
        if (r >= 0)
                r = drop_leftovers(root);
        if (r >= 0)
                r = ensure_mount_points(root);
        if (r >= 0)
                r = ensure_agent(root);
        if (r < 0)
                return r;
        if (fchown(root, 0, 0) < 0 || fchmod(root, 0755) < 0)
                return failed(-errno, "");
        n = tree_walk(root, clamp_time, &times);
        return n < 0 ? report_errno((int) n, "Preparing the image") : n;
}
