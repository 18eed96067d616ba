/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>

#include "async-remove.h"
#include "basic/fs-util.h"
#include "basic/string-util.h"

typedef struct Job {
        char **paths;
        char *directory, *prefix;
} Job;

static void remove_prefix(const char *directory, const char *prefix) {
        DIR *d = opendir(directory);
        struct dirent *de;

        if (!d)
                return;
        while ((de = readdir(d)))
                if (startswith(de->d_name, prefix))
                        (void) unlinkat(dirfd(d), de->d_name, 0);
        closedir(d);
}

static void *job_run(void *p) {
        Job *j = p;

        for (char **path = j->paths; path && *path; path++)
                rm_rf_at(AT_FDCWD, *path);
        if (j->directory)
                remove_prefix(j->directory, j->prefix);
        strv_free(j->paths);
        free(j->directory);
        free(j->prefix);
        return mfree(j);
}

static void job_start(Job *j) {
        pthread_attr_t attr;
        sigset_t all, old;
        pthread_t thread;
        int r;

        /* Signals are the event loop's business (signalfd), so the thread takes none. */
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &old);
        pthread_attr_init(&attr);
        pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
        r = pthread_create(&thread, &attr, job_run, j);
        pthread_attr_destroy(&attr);
        pthread_sigmask(SIG_SETMASK, &old, NULL);
        if (r != 0)
                job_run(j);
}

void async_remove_trees(char *const *paths) {
        Job *j = calloc(1, sizeof *j);

        for (char *const *path = paths; path && *path; path++)
                if (!j || strv_extend(&j->paths, *path) < 0)
                        rm_rf_at(AT_FDCWD, *path);
        if (j)
                job_start(j);
}

void async_remove_tree(const char *path) {
        async_remove_trees((char *const[]) { (char *) path, NULL });
}

void async_remove_prefix(const char *directory, const char *prefix) {
        Job *j = calloc(1, sizeof *j);

        if (j) {
                j->directory = strdup(directory);
                j->prefix = strdup(prefix);
        }
        if (!j || !j->directory || !j->prefix) {
                remove_prefix(directory, prefix);
                if (j) {
                        free(j->directory);
                        free(j->prefix);
                        free(j);
                }
                return;
        }
        job_start(j);
}
