/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * Parsed live files, kept while the file stays what it was. The file itself is looked at on each
 * request, so a run that has ended is refused at once; only the parsing is saved. Entries whose
 * file is gone are dropped when it is noticed; a bound on their number covers the rest.
 */

#include <sys/stat.h>

#include "basic/string-util.h"
#include "service/live-run.h"

#define LIVE_CACHE_MAX 1024U

typedef struct LiveCacheEntry {
        LiveRun *live;
        ino_t inode;
        dev_t device;
        off_t size;
        struct timespec mtime, ctime;
} LiveCacheEntry;

struct LiveCache {
        char *dir;
        LiveCacheEntry entries[LIVE_CACHE_MAX];
        size_t n_entries;
};

int live_cache_new(const char *dir, LiveCache **ret) {
        _cleanup_(live_cache_freep) LiveCache *c = calloc(1, sizeof(LiveCache));

        if (!c)
                return -ENOMEM;
        c->dir = strdup(dir);
        if (!c->dir)
                return -ENOMEM;

        *ret = TAKE_PTR(c);
        return 0;
}

LiveCache *live_cache_free(LiveCache *c) {
        if (!c)
                return NULL;

        for (size_t i = 0; i < c->n_entries; i++)
                live_run_unref(c->entries[i].live);
        free(c->dir);
        return mfree(c);
}

static void live_cache_drop(LiveCache *c, size_t i) {
        live_run_unref(c->entries[i].live);
        c->entries[i] = c->entries[--c->n_entries];
}

static bool timespec_equal(const struct timespec *a, const struct timespec *b) {
        return a->tv_sec == b->tv_sec && a->tv_nsec == b->tv_nsec;
}

int live_cache_get(LiveCache *c, const char *run, LiveRun **ret) {
        _cleanup_(live_run_unrefp) LiveRun *l = NULL;
        _cleanup_free_ char *path = NULL;
        struct stat st;
        size_t i;
        int r;

        if (!run_id_is_valid(run))
                return -ENOENT;
        path = strprintf("%s/%s.json", c->dir, run);
        if (!path)
                return -ENOMEM;

        for (i = 0; i < c->n_entries; i++)
                if (streq(c->entries[i].live->run, run))
                        break;

        if (stat(path, &st) < 0) {
                r = -errno;
                if (i < c->n_entries)
                        live_cache_drop(c, i);
                return r;
        }

        if (i < c->n_entries) {
                LiveCacheEntry *e = c->entries + i;

                if (e->inode == st.st_ino && e->device == st.st_dev && e->size == st.st_size &&
                    timespec_equal(&e->mtime, &st.st_mtim) && timespec_equal(&e->ctime, &st.st_ctim)) {
                        *ret = live_run_ref(e->live);
                        return 0;
                }
                live_cache_drop(c, i);
        }

        r = live_run_read(c->dir, run, &l, NULL);
        if (r < 0)
                return r;

        /* The file may have been replaced after the stat(): then the entry does not fit next time, no harm done. */
        if (c->n_entries >= LIVE_CACHE_MAX)
                live_cache_drop(c, 0);
        c->entries[c->n_entries++] = (LiveCacheEntry) {
                .live = live_run_ref(l),
                .inode = st.st_ino,
                .device = st.st_dev,
                .size = st.st_size,
                .mtime = st.st_mtim,
                .ctime = st.st_ctim,
        };

        *ret = TAKE_PTR(l);
        return 0;
}
