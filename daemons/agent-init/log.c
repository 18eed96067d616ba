/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The output of a command that has no runner, on its way to the journal: up to the run's limit, beyond which it is
 * taken and dropped, and one line says so. As in the bridge a line costs more than its bytes, since it does in the
 * journal.
 *
 * The journal itself bounds how many messages a unit may send in a time, and not their size; so one run could push
 * out all that other units have said.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "log.h"

#define LINE_OVERHEAD 128U
#define DRAIN_PATIENCE_MS 5000
#define BUFFER_SIZE 65536U

static char buffer[BUFFER_SIZE];

int log_open(Log *l, uint64_t limit) {
        int p[2];

        if (pipe2(p, O_CLOEXEC) < 0)
                return -errno;
        *l = (Log) { .in = p[0], .child = p[1], .left = limit, .buffer = buffer };
        return fcntl(l->in, F_SETFL, O_NONBLOCK) < 0 ? -errno : 0;
}

short log_events_out(const Log *l) {
        return l->at < l->used ? POLLOUT : 0;
}

short log_events_in(const Log *l) {
        return l->in >= 0 && l->at >= l->used ? POLLIN : 0;
}

/* How many of N bytes are still within the limit. */
static unsigned take_from_limit(Log *l, const char *data, unsigned n) {
        for (unsigned i = 0; i < n; i++) {
                uint64_t cost = data[i] == '\n' ? 1 + LINE_OVERHEAD : 1;

                if (cost > l->left)
                        return i;
                l->left -= cost;
        }
        return n;
}

/* Returns what read() does. */
static ssize_t take(Log *l, unsigned max) {
        static const char note[] = "\nThe run's log limit is reached; further lines are dropped.\n";
        unsigned room = BUFFER_SIZE - sizeof note;
        ssize_t n = read(l->in, l->buffer, max < room ? max : room);

        if (n <= 0)
                return n;
        l->at = l->used = 0;
        if (l->full || l->deaf)
                return n;
        l->used = take_from_limit(l, l->buffer, (unsigned) n);
        if (l->used < (unsigned) n) {
                memcpy(l->buffer + l->used, note, sizeof note - 1);
                l->used += sizeof note - 1;
                l->full = true;
        }
        return n;
}

static void give(Log *l) {
        while (l->at < l->used) {
                ssize_t n = send(STDOUT_FILENO, l->buffer + l->at, l->used - l->at, MSG_DONTWAIT | MSG_NOSIGNAL);

                if (n < 0 && errno == ENOTSOCK)
                        n = write(STDOUT_FILENO, l->buffer + l->at, l->used - l->at);
                if (n < 0 && (errno == EAGAIN || errno == EINTR))
                        return;
                if (n < 0) {
                        l->deaf = true;
                        l->at = l->used;
                        return;
                }
                l->at += (unsigned) n;
        }
}

void log_turn(Log *l) {
        ssize_t n;

        give(l);
        if (l->in < 0 || l->at < l->used)
                return;
        n = take(l, BUFFER_SIZE);
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) {
                close(l->in); /* nobody can say any more */
                l->in = -EBADF;
        }
        give(l);
}

void log_drain(Log *l) {
        int there = 0;

        /* Who outlives the command may go on writing; that is not waited for. */
        if (l->in >= 0 && ioctl(l->in, FIONREAD, &there) < 0)
                there = 0;
        for (;;) {
                struct pollfd p = { .fd = STDOUT_FILENO, .events = POLLOUT };
                ssize_t n;

                give(l);
                if (l->at < l->used) {
                        if (poll(&p, 1, DRAIN_PATIENCE_MS) <= 0)
                                return;
                        continue;
                }
                if (there <= 0)
                        return;
                n = take(l, (unsigned) there);
                if (n <= 0)
                        return;
                there -= (int) n;
        }
}
