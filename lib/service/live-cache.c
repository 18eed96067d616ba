/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * Parsed live files, each kept open while it stays what it was. An open file says by itself whether it still has its
 * name: agentd unlinks it when the run is over, and puts another one in its place for the next attempt; either takes
 * the last link away. So one fstat() on each request, without a walk along a path, refuses a run that has ended at
 * once; only the parsing is saved. (True of tmpfs, which /run is, and of all file systems but overlayfs' lower layers.)
 *
 * Those that nobody asks for any more are looked at when others come, two for each, so that files of runs that are
 * over are not held for long; a bound on the number covers the rest.
 */

#include <fcntl.h>
#include <sys/stat.h>

#include "basic/string-util.h"
#include "basic/strmap.h"
#include "service/live-run.h"

#define LIVE_CACHE_MAX 1024U

typedef struct LiveCacheEntry {
        struct LiveCacheEntry *next, *previous; /* the one that was looked at last comes first */
        LiveRun *live;
        int fd;
        struct stat st;
} LiveCacheEntry;

struct LiveCache {
        char *dir;
        StrMap *entries; /* by run */
        LiveCacheEntry *first, *last;
};

int live_cache_new(const char *dir, LiveCache **ret) {
        _cleanup_(live_cache_freep) LiveCache *c = calloc(1, sizeof(LiveCache));

        if (!c)
                return -ENOMEM;
        c->dir = strdup(dir);
        c->entries = strmap_new();
        if (!c->dir || !c->entries)
                return -ENOMEM;

        *ret = TAKE_PTR(c);
        return 0;
}

static void entry_unlist(LiveCache *c, LiveCacheEntry *e) {
        if (e->previous)
                e->previous->next = e->next;
        else
                c->first = e->next;
        if (e->next)
                e->next->previous = e->previous;
        else
                c->last = e->previous;
        e->next = e->previous = NULL;
}

static void entry_list_first(LiveCache *c, LiveCacheEntry *e) {
        e->next = c->first;
        if (e->next)
                e->next->previous = e;
        else
                c->last = e;
        c->first = e;
}

static void entry_drop(LiveCache *c, LiveCacheEntry *e) {
        (void) strmap_remove(c->entries, e->live->run);
        entry_unlist(c, e);
        live_run_unref(e->live);
        safe_close(e->fd);
        free(e);
}

LiveCache *live_cache_free(LiveCache *c) {
        if (!c)
                return NULL;

        while (c->first)
                entry_drop(c, c->first);
        strmap_free(c->entries);
        free(c->dir);
        return mfree(c);
}

static bool timespec_equal(const struct timespec *a, const struct timespec *b) {
        return a->tv_sec == b->tv_sec && a->tv_nsec == b->tv_nsec;
}

static bool entry_is_good(const LiveCacheEntry *e) {
        struct stat st;

        return fstat(e->fd, &st) >= 0 && st.st_nlink > 0 && st.st_size == e->st.st_size &&
               timespec_equal(&st.st_mtim, &e->st.st_mtim) && timespec_equal(&st.st_ctim, &e->st.st_ctim);
}

static void make_room(LiveCache *c) {
        for (unsigned i = 0; i < 2 && c->last; i++) {
                LiveCacheEntry *e = c->last;

                if (!entry_is_good(e) || strmap_size(c->entries) >= LIVE_CACHE_MAX)
                        entry_drop(c, e);
                else {
                        entry_unlist(c, e);
                        entry_list_first(c, e);
                }
        }
}

int live_cache_get(LiveCache *c, const char *run, LiveRun **ret) {
        LiveCacheEntry *e;
        int r;

        if (!run_id_is_valid(run))
                return -ENOENT;

        e = strmap_get(c->entries, run);
        if (e && entry_is_good(e)) {
                *ret = live_run_ref(e->live);
                return 0;
        }
        if (e)
                entry_drop(c, e);

        make_room(c);
        e = calloc(1, sizeof(LiveCacheEntry));
        if (!e)
                return -ENOMEM;
        e->fd = -EBADF;
        r = live_run_open(c->dir, run, &e->fd, &e->st, &e->live);
        if (r >= 0)
                r = strmap_put(c->entries, e->live->run, e);
        if (r < 0) {
                live_run_unref(e->live);
                safe_close(e->fd);
                free(e);
                return r;
        }
        entry_list_first(c, e);
        *ret = live_run_ref(e->live);
        return 0;
}
