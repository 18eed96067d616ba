/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* A thread that looks at the clock while the other one waits. It sleeps for as long as the bound cannot be reached. */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "report.h"
#include "stall.h"

#define BLOCK_SIZE (256U * 1024U)
/* What is written in one go: nothing is known of how it moves before all of it has gone. */
#define WRITE_SIZE (64U * 1024U)

#define LOOK_USEC UINT64_C(20000)

static struct {
        pthread_mutex_t mutex;
        uint64_t limit;
        uint64_t since;  /* when the wait that goes on began, or 0 */
        uint64_t waited; /* since STALL_BYTES have gone through the last time, without that one */
        uint64_t moved;
        bool out;
} stall = { .mutex = PTHREAD_MUTEX_INITIALIZER };

static uint64_t now(void) {
        struct timespec t;

        clock_gettime(CLOCK_MONOTONIC, &t);
        return (uint64_t) t.tv_sec * 1000000 + (uint64_t) t.tv_nsec / 1000;
}

static void *watch(void *unused) {
        for (;;) {
                uint64_t spent, left;
                struct timespec t;

                pthread_mutex_lock(&stall.mutex);
                spent = stall.waited + (stall.since ? now() - stall.since : 0);
                if (spent >= stall.limit && stall.since) { /* so that nobody else is writing to stdout */
                        (void) report_error(0, "Stalled", stall.out ?
                                "The archive is not being read: less than %u KiB of it were taken in %" PRIu64
                                " s of waiting (IdleTimeout= in agentd.conf). Write it to a file, or try again." :
                                "The archive does not come: less than %u KiB of it came in %" PRIu64
                                " s of waiting (IdleTimeout= in agentd.conf). Make it a file first, or try again.",
                                STALL_BYTES / 1024, stall.limit / 1000000);
                        /* And not exit(): the other thread may be anywhere. */
                        fflush(stdout);
                        _exit(EXIT_FAILURE);
                }
                pthread_mutex_unlock(&stall.mutex);
                left = MAX(stall.limit - MIN(spent, stall.limit), LOOK_USEC);
                t = (struct timespec) { .tv_sec = (time_t) (left / 1000000),
                                        .tv_nsec = (long) (left % 1000000) * 1000 };
                (void) nanosleep(&t, NULL);
        }
        return NULL;
}

int stall_begin(uint64_t usec) {
        pthread_t thread;
        int r;

        stall.limit = usec;
        if (usec == 0)
                return 0;
        r = pthread_create(&thread, NULL, watch, NULL);
        if (r == 0)
                r = pthread_detach(thread);
        return r == 0 ? 0 : report_errno(-r, "Starting");
}

static void wait_begins(bool out) {
        pthread_mutex_lock(&stall.mutex);
        stall.since = now();
        stall.out = out;
        pthread_mutex_unlock(&stall.mutex);
}

static void wait_ends(ssize_t n) {
        pthread_mutex_lock(&stall.mutex);
        stall.waited += now() - stall.since;
        stall.since = 0;
        stall.moved += n > 0 ? (uint64_t) n : 0;
        if (stall.moved >= STALL_BYTES)
                stall.moved = stall.waited = 0;
        pthread_mutex_unlock(&stall.mutex);
}

/* Whether it is to be tried again: where the caller's end does not block, we do. */
static bool again(int fd, short events) {
        if (errno == EINTR)
                return true;
        return errno == EAGAIN && (poll(&(struct pollfd) { .fd = fd, .events = events }, 1, -1) >= 0 || errno == EINTR);
}

static la_ssize_t on_read(struct archive *a, void *userdata, const void **ret) {
        static char buffer[BLOCK_SIZE];
        int fd = (int) (intptr_t) userdata;
        ssize_t n;

        wait_begins(false);
        do
                n = read(fd, buffer, sizeof buffer);
        while (n < 0 && again(fd, POLLIN));
        if (n < 0)
                archive_set_error(a, errno, "it cannot be read: %s", strerror(errno));
        wait_ends(n);
        *ret = buffer;
        return n;
}

static la_ssize_t on_write(struct archive *a, void *userdata, const void *data, size_t size) {
        int fd = (int) (intptr_t) userdata;
        ssize_t n;

        wait_begins(true);
        do
                n = write(fd, data, MIN(size, (size_t) WRITE_SIZE));
        while (n < 0 && again(fd, POLLOUT));
        if (n < 0)
                archive_set_error(a, errno, "%s", strerror(errno));
        wait_ends(n);
        return n; /* libarchive comes with the rest */
}

int stall_open_reader(struct archive *a, int fd) {
        return archive_read_open(a, (void *) (intptr_t) fd, NULL, on_read, NULL);
}

int stall_open_writer(struct archive *a, int fd) {
        return archive_write_open(a, (void *) (intptr_t) fd, NULL, on_write, NULL);
}
