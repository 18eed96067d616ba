/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Open addressing with FNV-1a; a removed entry moves its followers up, so there are no tombstones. */
#include "basic/strmap.h"

typedef struct Entry {
        const char *key;
        void *value;
} Entry;

struct StrMap {
        Entry *entries;
        size_t n, room; /* room is a power of two */
};

StrMap *strmap_new(void) {
        StrMap *m = calloc(1, sizeof *m);

        if (!m)
                return NULL;
        m->room = 16;
        m->entries = calloc(m->room, sizeof(Entry));
        if (!m->entries)
                return mfree(m);
        return m;
}

StrMap *strmap_free(StrMap *m) {
        if (!m)
                return NULL;
        free(m->entries);
        return mfree(m);
}

static size_t hash(const char *s) {
        uint64_t h = UINT64_C(0xcbf29ce484222325);

        for (; *s; s++)
                h = (h ^ (uint8_t) *s) * UINT64_C(0x100000001b3);
        return (size_t) (h ^ h >> 32);
}

static size_t find(StrMap *m, const char *key) {
        size_t i = hash(key) & (m->room - 1);

        while (m->entries[i].key && !streq(m->entries[i].key, key))
                i = (i + 1) & (m->room - 1);
        return i;
}

static int grow(StrMap *m) {
        Entry *old = m->entries, *new = calloc(m->room * 2, sizeof(Entry));
        size_t old_room = m->room;

        if (!new)
                return -ENOMEM;
        m->entries = new;
        m->room *= 2;
        for (size_t i = 0; i < old_room; i++)
                if (old[i].key)
                        m->entries[find(m, old[i].key)] = old[i];
        free(old);
        return 0;
}

int strmap_put(StrMap *m, const char *key, void *value) {
        size_t i = find(m, key);
        int r;

        if (m->entries[i].key)
                return -EEXIST;
        if ((m->n + 1) * 4 > m->room * 3) {
                r = grow(m);
                if (r < 0)
                        return r;
                i = find(m, key);
        }
        m->entries[i] = (Entry) { key, value };
        m->n++;
        return 0;
}

void *strmap_get(StrMap *m, const char *key) {
        return key ? m->entries[find(m, key)].value : NULL;
}

void *strmap_remove(StrMap *m, const char *key) {
        size_t i = find(m, key), hole = i;
        void *value = m->entries[i].value;

        if (!m->entries[i].key)
                return NULL;
        m->entries[hole] = (Entry) {};
        m->n--;
        for (i = (i + 1) & (m->room - 1); m->entries[i].key; i = (i + 1) & (m->room - 1)) {
                size_t home = hash(m->entries[i].key) & (m->room - 1);

                /* May the entry move into the hole, or would that put it before its home? */
                if (((i - home) & (m->room - 1)) >= ((i - hole) & (m->room - 1))) {
                        m->entries[hole] = m->entries[i];
                        m->entries[i] = (Entry) {};
                        hole = i;
                }
        }
        return value;
}

size_t strmap_size(StrMap *m) {
        return m->n;
}

void *strmap_first(StrMap *m) {
        size_t i = 0;

        return strmap_next(m, &i);
}

void *strmap_next(StrMap *m, size_t *i) {
        for (; *i < m->room; (*i)++)
                if (m->entries[*i].key)
                        return m->entries[(*i)++].value;
        return NULL;
}
