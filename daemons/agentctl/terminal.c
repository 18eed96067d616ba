/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "terminal.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <termios.h>

#include "basic/fs-util.h"
#include "report.h"

#define BUFFER_SIZE 16384

static struct termios saved;
static bool is_raw;

static void restore(void) {
        if (is_raw)
                (void) tcsetattr(STDIN_FILENO, TCSADRAIN, &saved);
        is_raw = false;
}

static int make_raw(void) {
        struct termios raw;

        if (tcgetattr(STDIN_FILENO, &saved) < 0)
                return -errno;
        raw = saved;
        cfmakeraw(&raw);
        if (tcsetattr(STDIN_FILENO, TCSADRAIN, &raw) < 0)
                return -errno;
        is_raw = true;
        (void) atexit(restore);
        return 0;
}

static void copy_size(int master) {
        struct winsize ws;

        if (ioctl(STDIN_FILENO, TIOCGWINSZ, &ws) >= 0)
                (void) ioctl(master, TIOCSWINSZ, &ws);
}

/* 0: more may come; 1: over. */
static int copy(int from, int to) {
        char buf[BUFFER_SIZE];
        ssize_t n;

        n = read(from, buf, sizeof buf);
        if (n < 0)
                /* EIO: nobody has the terminal's other end open any more. */
                return errno == EAGAIN || errno == EINTR ? 0 : errno == EIO ? 1 : -errno;
        if (n == 0)
                return 1;
        return write_full(to, buf, (size_t) n) < 0 ? 1 : 0;
}

static int loop(int master, int signals) {
        for (;;) {
                struct pollfd p[] = {
                        { .fd = master, .events = POLLIN },
                        { .fd = STDIN_FILENO, .events = POLLIN },
                        { .fd = signals, .events = POLLIN },
                };
                int r;

                if (poll(p, ELEMENTSOF(p), -1) < 0) {
                        if (errno == EINTR)
                                continue;
                        return -errno;
                }
                if (p[2].revents) {
                        struct signalfd_siginfo si;

                        if (read(signals, &si, sizeof si) == sizeof si && si.ssi_signo != SIGWINCH)
                                return -EINTR;
                        copy_size(master);
                }
                if (p[0].revents) {
                        r = copy(master, STDOUT_FILENO);
                        if (r != 0)
                                return r < 0 ? r : 0;
                }
                if (p[1].revents) {
                        r = copy(STDIN_FILENO, master);
                        if (r != 0)
                                return r < 0 ? r : -EINTR; /* ours is gone */
                }
        }
}

int terminal_run(int master) {
        _cleanup_close_ int signals = -EBADF;
        sigset_t set, old;
        int r;

        sigemptyset(&set);
        sigaddset(&set, SIGWINCH);
        sigaddset(&set, SIGTERM);
        sigaddset(&set, SIGHUP);
        if (sigprocmask(SIG_BLOCK, &set, &old) < 0)
                return fail_errno(-errno, "Cannot block signals");
        signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
        r = signals < 0 ? -errno : make_raw();
        if (r >= 0) {
                copy_size(master);
                r = loop(master, signals);
        }
        restore();
        (void) sigprocmask(SIG_SETMASK, &old, NULL);
        return r < 0 && r != -EINTR ? fail_errno(r, "The terminal cannot be used") : r;
}
