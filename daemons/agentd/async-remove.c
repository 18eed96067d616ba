/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>

#include "async-remove.h"
#include "basic/fs-util.h"

static void *remove_thread(void *p) {
        rm_rf_at(AT_FDCWD, p);
        free(p);
        return NULL;
}

void async_remove_tree(const char *path) {
        char *copy = strdup(path);
        pthread_attr_t attr;
        sigset_t all, old;
        pthread_t thread;
        int r = ENOMEM;

        if (copy) {
                /* Signals are the event loop's business (signalfd), so the thread takes none. */
                sigfillset(&all);
                pthread_sigmask(SIG_SETMASK, &all, &old);
                pthread_attr_init(&attr);
                pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
                r = pthread_create(&thread, &attr, remove_thread, copy);
                pthread_attr_destroy(&attr);
                pthread_sigmask(SIG_SETMASK, &old, NULL);
        }
        if (r != 0) {
                rm_rf_at(AT_FDCWD, path);
                free(copy);
        }
}
