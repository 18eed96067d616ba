/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "basic/string-util.h"
#include "environment.h"
#include "layer-quota.h"

typedef struct Count {
        Manager *manager;
        const char *user;
        StrMap *seen; /* digests, as keys of themselves */
        uint64_t bytes;
} Count;

static int count_layer(Count *c, const char *digest) {
        uint64_t size = 0;
        char *k;
        int r;

        if (strmap_get(c->seen, digest))
                return 0;
        k = strdup(digest);
        r = k ? strmap_put(c->seen, k, k) : -ENOMEM;
        if (r < 0) {
                free(k);
                return r;
        }
        r = layer_store_open_layer(c->manager->layers, digest, NULL, &size);
        c->bytes += size;
        return r == -ENOENT ? 0 : r; /* fsck tells of it */
}

static int count_generation(const char *user, const char *name, const StoreGeneration *g, void *userdata) {
        _cleanup_(generation_freep) Generation *d = NULL;
        int r;

        r = environment_manifest(g, &d);
        if (r >= 0)
                r = count_layer(userdata, d->base);
        for (char **e = r >= 0 ? d->env : NULL; r >= 0 && e && *e; e++)
                r = count_layer(userdata, *e);
        return r;
}

static int count_image(const StoreImage *i, void *userdata) {
        Count *c = userdata;

        return streq(i->user, c->user) ? count_layer(c, i->digest) : 0; /* the list has root's, too */
}

static int count(Manager *m, const char *user, char *const *more, uint64_t *ret) {
        Count c = { .manager = m, .user = user, .seen = strmap_new() };
        char *k;
        int r;

        r = c.seen ? store_generation_walk(m->store, user, NULL, count_generation, &c) : -ENOMEM;
        if (r >= 0)
                r = store_image_list(m->store, user, count_image, &c);
        for (; r >= 0 && more && *more; more++)
                r = count_layer(&c, *more);
        while (c.seen && (k = strmap_first(c.seen))) {
                strmap_remove(c.seen, k);
                free(k);
        }
        strmap_free(c.seen);
        *ret = c.bytes;
        return MIN(r, 0);
}

int layer_quota_check(Manager *m, const char *user, uid_t uid, char *const *more, char **ret_error) {
        const uint64_t max = m->settings->max_layers_per_user;
        uint64_t bytes;
        int r;

        if (uid == 0 || max == UINT64_MAX)
                return 0;
        r = count(m, user, more, &bytes);
        if (r < 0 || (more ? bytes <= max : bytes < max))
                return r;
        if (ret_error)
                *ret_error = strprintf("the layers of %s's images and environments %s %" PRIu64 " bytes, and one user "
                                       "may keep %" PRIu64 " (MaxLayersPerUser= in agentd.conf); make room, for "
                                       "example with \"agentctl image remove\" or \"agentctl env prune AGENT "
                                       "--keep=N\", and try again",
                                       user, more ? "would take" : "take", bytes, max);
        return -ENOBUFS;
}
