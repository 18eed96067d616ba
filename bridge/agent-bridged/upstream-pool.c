/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* See upstream-pool.h. */

#include "basic/strmap.h"
#include "basic/text.h"
#include "upstream-pool.h"

typedef struct Entry {
        char *key;
        CurlGlue *glue;
        uint64_t used; /* when, on a clock of our own */
} Entry;

struct UpstreamPool {
        sd_event *event;
        CurlGlueOptions options;
        StrMap *entries;
        uint64_t clock;
};

int upstream_pool_new(sd_event *event, const CurlGlueOptions *options, UpstreamPool **ret) {
        UpstreamPool *p = calloc(1, sizeof(UpstreamPool));
        if (!p)
                return -ENOMEM;

        *p = (UpstreamPool) { .event = sd_event_ref(event), .options = *options, .entries = strmap_new() };
        if (!p->entries) {
                upstream_pool_free(p);
                return -ENOMEM;
        }
        *ret = p;
        return 0;
}

static void entry_free(UpstreamPool *p, Entry *e) {
        (void) strmap_remove(p->entries, e->key);
        curl_glue_free(e->glue);
        free(e->key);
        free(e);
}

UpstreamPool *upstream_pool_free(UpstreamPool *p) {
        Entry *e;

        if (!p)
                return NULL;
        while (p->entries && (e = strmap_first(p->entries)))
                entry_free(p, e);
        strmap_free(p->entries);
        sd_event_unref(p->event);
        return mfree(p);
}

static void make_room(UpstreamPool *p) {
        while (strmap_size(p->entries) >= UPSTREAM_POOLS_MAX) {
                Entry *oldest = NULL;
                size_t i = 0;

                for (Entry *e; (e = strmap_next(p->entries, &i));)
                        if (curl_glue_is_idle(e->glue) && (!oldest || e->used < oldest->used))
                                oldest = e;
                if (!oldest)
                        return; /* all are at work: as many as there are calls */
                entry_free(p, oldest);
        }
}

size_t upstream_pool_size(const UpstreamPool *p) {
        return strmap_size(p->entries);
}

int upstream_pool_get(UpstreamPool *p, const char *user, const char *service, CurlGlue **ret) {
        char buf[1024];
        const char *key = text_key(buf, sizeof(buf), "", user, service);
        if (!key)
                return -ENAMETOOLONG;

        Entry *e = strmap_get(p->entries, key);
        if (!e) {
                make_room(p);
                e = calloc(1, sizeof(Entry));
                if (!e)
                        return -ENOMEM;
                e->key = strdup(key);
                int r = e->key ? curl_glue_new(p->event, &p->options, &e->glue) : -ENOMEM;
                if (r >= 0)
                        r = strmap_put(p->entries, e->key, e);
                if (r < 0) {
                        curl_glue_free(e->glue);
                        free(e->key);
                        free(e);
                        return r;
                }
        }
        e->used = ++p->clock;
        *ret = e->glue;
        return 0;
}
