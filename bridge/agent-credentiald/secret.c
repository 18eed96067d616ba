/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include <sys/mman.h>

#include "secret.h"

struct Secret {
        size_t size;
        size_t mapped;
        char data[]; /* the whole object lies in its own mapping */
};

int secret_new(size_t size, Secret **ret) {
        size_t page = (size_t) sysconf(_SC_PAGESIZE), n;
        Secret *s;
        void *p;

        if (size > SECRET_SIZE_MAX)
                return -EFBIG;

        n = (sizeof(Secret) + size + 1 + page - 1) / page * page;
        p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED)
                return -ENOMEM;

        if (mlock(p, n) < 0) {
                munmap(p, n);
                return -ENOMEM;
        }
        (void) madvise(p, n, MADV_DONTDUMP);
        (void) madvise(p, n, MADV_DONTFORK);

        s = p;
        s->size = size;
        s->mapped = n;
        *ret = s;
        return 0;
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

        n = s->mapped;
        explicit_bzero(s, n);
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
