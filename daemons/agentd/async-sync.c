/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The thread and the loop share only the small Job, which the last of the two frees. */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>

#include "async-sync.h"

typedef struct Job {
        int fd, pipe_fd;
        bool whole;
} Job;

struct AsyncSync {
        int pipe_fd;
        sd_event_source *source;
        async_sync_handler_t handler;
        void *userdata;
};

static void *sync_thread(void *p) {
        Job *job = p;
        int error = (job->whole ? syncfs(job->fd) : fsync(job->fd)) < 0 ? -errno : 0;
        ssize_t n;

        close(job->fd);
        n = write(job->pipe_fd, &error, sizeof error); /* nobody reads any more: nobody wants to know */
        (void) n;
        close(job->pipe_fd);
        free(job);
        return NULL;
}

static int on_done(sd_event_source *s, int fd, uint32_t revents, void *userdata) {
        AsyncSync *a = userdata;
        int error = -EIO;

        if (read(fd, &error, sizeof error) != sizeof error)
                error = -EIO;
        a->source = sd_event_source_disable_unref(a->source);
        a->handler(error, a->userdata);
        return 0;
}

int async_sync_start(sd_event *event, int fd, bool whole, async_sync_handler_t handler, void *userdata,
                     AsyncSync **ret) {
        AsyncSync *a = calloc(1, sizeof *a);
        Job *job = malloc(sizeof *job);
        pthread_attr_t attr;
        sigset_t all, old;
        pthread_t thread;
        int p[2], r;

        if (!a || !job || pipe2(p, O_CLOEXEC | O_NONBLOCK) < 0) {
                r = a && job ? -errno : -ENOMEM;
                close(fd);
                free(a);
                free(job);
                return r;
        }
        *a = (AsyncSync) { .pipe_fd = p[0], .handler = handler, .userdata = userdata };
        *job = (Job) { .fd = fd, .pipe_fd = p[1], .whole = whole };
        r = sd_event_add_io(event, &a->source, a->pipe_fd, EPOLLIN, on_done, a);
        if (r >= 0) {
                /* Signals are the event loop's business (signalfd), so the thread takes none. */
                sigfillset(&all);
                pthread_sigmask(SIG_SETMASK, &all, &old);
                pthread_attr_init(&attr);
                pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
                r = -pthread_create(&thread, &attr, sync_thread, job);
                pthread_attr_destroy(&attr);
                pthread_sigmask(SIG_SETMASK, &old, NULL);
        }
        if (r < 0) {
                close(fd);
                close(p[1]);
                free(job);
                async_sync_free(a);
                return r;
        }
        *ret = a;
        return 0;
}

AsyncSync *async_sync_free(AsyncSync *a) {
        if (!a)
                return NULL;
        sd_event_source_disable_unref(a->source);
        safe_close(a->pipe_fd);
        return mfree(a);
}
