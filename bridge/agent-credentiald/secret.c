/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include <sys/mman.h>

#include "secret.h"

struct Secret {
        size_t size;
        size_t room; /* of the whole object: its own mapping, or a slot */
        Secret *next; /* of the free slots */
        char data[];
};

#define CHUNK_SIZE ((size_t) 64 * 1024)

static struct {
        size_t room;
        Secret *free;
} slots[] = { { .room = 256 }, { .room = 1024 }, { .room = 4096 } };

static void *map_locked(size_t size) {
        void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED)
                return NULL;

        if (mlock(p, size) < 0) {
                munmap(p, size);
                return NULL;
        }
        (void) madvise(p, size, MADV_DONTDUMP);
        (void) madvise(p, size, MADV_DONTFORK);
        return p;
}

static Secret *take_slot(size_t i) {
        if (!slots[i].free) {
                char *chunk = map_locked(CHUNK_SIZE);
                if (!chunk)
                        return NULL;
                for (size_t at = 0; at < CHUNK_SIZE; at += slots[i].room) {
                        Secret *s = (Secret *) (chunk + at);

                        s->next = slots[i].free;
                        slots[i].free = s;
                }
        }

        Secret *s = slots[i].free;
        slots[i].free = TAKE_PTR(s->next);
        s->room = slots[i].room;
        return s;
}

static int secret_allocate(size_t size, Secret **ret) {
        size_t page = (size_t) sysconf(_SC_PAGESIZE), n = sizeof(Secret) + size + 1;
        Secret *s = NULL;

        for (size_t i = 0; i < ELEMENTSOF(slots); i++)
                if (n <= slots[i].room) {
                        s = take_slot(i);
                        if (!s)
                                return -ENOMEM;
                        break;
                }
        if (!s) {
                n = (n + page - 1) / page * page;
                s = map_locked(n);
                if (!s)
                        return -ENOMEM;
                s->room = n;
        }
        s->size = size;
        *ret = s;
        return 0;
}

int secret_new(size_t size, Secret **ret) {
        return size > SECRET_SIZE_MAX ? -EFBIG : secret_allocate(size, ret);
}

int secret_new_large(size_t size, Secret **ret) {
        return size > SECRET_LARGE_MAX ? -EFBIG : secret_allocate(size, ret);
}

int secret_new_from(const void *data, size_t size, Secret **ret) {
        Secret *s;
        int r;

        r = secret_new(size, &s);
        if (r < 0)
                return r;
        if (size > 0)
                memcpy(s->data, data, size);

        *ret = s;
        return 0;
}

Secret *secret_free(Secret *s) {
        size_t n;

        if (!s)
                return NULL;

        n = s->room;
        explicit_bzero(s, n);
        for (size_t i = 0; i < ELEMENTSOF(slots); i++)
                if (n == slots[i].room) {
                        s->next = slots[i].free;
                        slots[i].free = s;
                        return NULL;
                }
        munmap(s, n);
        return NULL;
}

size_t secret_size(const Secret *s) {
        return s->size;
}

const char *secret_data(const Secret *s) {
        return s->data;
}

char *secret_buffer(Secret *s) {
        return s->data;
}

void secret_truncate(Secret *s, size_t size) {
        assert(size <= s->size);
        explicit_bzero(s->data + size, s->size - size + 1);
        s->size = size;
}

char *secret_string_free(char *s) {
        if (s)
                explicit_bzero(s, strlen(s));
        free(s);
        return NULL;
}
