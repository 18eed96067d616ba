/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* See secret.h for what is promised. */

#include "secret.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <termios.h>

#include "report.h"

#define BUFFER_SIZE (SECRET_MAX + 3) /* one byte too many and a line's end can be seen */

enum { KEY_INTERRUPT = 3, KEY_END = 4, KEY_BACKSPACE = 8, KEY_KILL = 21, KEY_DELETE = 127 };

static int read_terminal(int fd, const char *prompt, char *buf, size_t max, size_t *ret_size) {
        struct termios old, silent;
        size_t n = 0;
        int r = 0;

        if (tcgetattr(fd, &old) < 0)
                return -errno;
        /* Not canonical: that mode cuts lines at 4095 bytes, and keys may be longer. Without ISIG, Ctrl-C arrives as a
         * byte, so that the settings are always put back. */
        silent = old;
        silent.c_lflag &= ~(tcflag_t) (ECHO | ICANON | ISIG);
        silent.c_cc[VMIN] = 1;
        silent.c_cc[VTIME] = 0;
        if (tcsetattr(fd, TCSAFLUSH, &silent) < 0)
                return -errno;
        fputs(prompt, stderr);
        fflush(stderr);

        for (;;) {
                char c;
                ssize_t l = read(fd, &c, 1);

                if (l < 0 && errno == EINTR)
                        continue;
                if (l < 0)
                        r = -errno;
                if (l <= 0 || c == '\n' || c == '\r' || c == KEY_END)
                        break;
                if (c == KEY_INTERRUPT) {
                        r = -ECANCELED;
                        break;
                }
                if (c == KEY_KILL)
                        n = 0;
                else if (c == KEY_DELETE || c == KEY_BACKSPACE)
                        n -= n > 0;
                else if (n == max) {
                        r = -EFBIG;
                        break;
                } else
                        buf[n++] = c;
        }

        (void) tcsetattr(fd, TCSAFLUSH, &old);
        fputc('\n', stderr);
        *ret_size = n;
        return r;
}

static int read_stream(int fd, char *buf, size_t max, size_t *ret_size) {
        size_t n = 0;

        while (n < max) {
                ssize_t l = read(fd, buf + n, max - n);

                if (l < 0 && errno == EINTR)
                        continue;
                if (l < 0)
                        return -errno;
                if (l == 0)
                        break;
                n += (size_t) l;
        }
        if (n > 0 && buf[n - 1] == '\n')
                n--;
        if (n > 0 && buf[n - 1] == '\r')
                n--;
        *ret_size = n;
        return 0;
}

/* Puts all of it into a pipe's buffer and closes the writing end. */
static int fill_pipe(const char *buf, size_t size, int *ret_fd) {
        _cleanup_close_ int read_end = -EBADF, write_end = -EBADF;
        int fds[2];
        ssize_t l;

        if (pipe2(fds, O_CLOEXEC) < 0)
                return -errno;
        read_end = fds[0];
        write_end = fds[1];
        if (fcntl(write_end, F_SETFL, O_NONBLOCK) < 0)
                return -errno;
        l = write(write_end, buf, size);
        if (l < 0)
                return -errno;
        if ((size_t) l != size)
                return -ENOBUFS;
        *ret_fd = TAKE_FD(read_end);
        return 0;
}

int secret_read(int fd, const char *prompt, int *ret_pipe) {
        size_t size = 0;
        char *buf;
        int r;

        if (fd < 0)
                fd = STDIN_FILENO;
        if (fcntl(fd, F_GETFL) < 0)
                return fail_errno(-errno, "Cannot read from file descriptor %d", fd);

        (void) prctl(PR_SET_DUMPABLE, 0);
        buf = mmap(NULL, BUFFER_SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (buf == MAP_FAILED)
                return fail_oom();
        (void) mlock(buf, BUFFER_SIZE);
        (void) madvise(buf, BUFFER_SIZE, MADV_DONTDUMP);

        r = isatty(fd) ? read_terminal(fd, prompt, buf, BUFFER_SIZE, &size) : read_stream(fd, buf, BUFFER_SIZE, &size);
        if (r == -ECANCELED)
                r = fail("Canceled; nothing was changed.");
        else if (r == -EFBIG || (r == 0 && size > SECRET_MAX))
                r = fail("The secret is too long: at most %zu bytes.", SECRET_MAX);
        else if (r < 0)
                r = fail_errno(r, "Cannot read the secret");
        else if (size == 0)
                r = fail("The secret is empty; nothing was changed.");
        else {
                r = fill_pipe(buf, size, ret_pipe);
                if (r < 0)
                        r = fail_errno(r, "Cannot hand over the secret");
        }

        explicit_bzero(buf, BUFFER_SIZE);
        (void) munmap(buf, BUFFER_SIZE);
        return r;
}
