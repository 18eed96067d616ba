/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* See http-buffer.h. Memory grows by doubling from 4 KB and is given back when the last byte was taken. */

#include "http/http-buffer.h"

static int buffer_resize(HttpBuffer *b, size_t allocated) {
        char *n = malloc(allocated);
        if (!n)
                return -ENOMEM;
        if (b->size > 0)
                memcpy(n, b->data + b->start, b->size);
        if (b->data)
                explicit_bzero(b->data, b->allocated);
        free(b->data);
        b->data = n;
        b->allocated = allocated;
        b->start = 0;
        return 0;
}

int http_buffer_reserve(HttpBuffer *b, size_t size, char **ret) {
        if (size > SIZE_MAX / 4 - b->size)
                return -ENOMEM;

        if (b->start + b->size + size > b->allocated) {
                size_t want = MAX(b->allocated, (size_t) 4096);

                while (want < b->size + size)
                        want *= 2;
                int r = buffer_resize(b, want);
                if (r < 0)
                        return r;
        }

        *ret = b->data ? b->data + b->start + b->size : NULL;
        return 0;
}

void http_buffer_add(HttpBuffer *b, size_t size) {
        assert(size <= b->allocated - b->start - b->size);
        b->size += size;
}

int http_buffer_append(HttpBuffer *b, const void *data, size_t size) {
        char *p;

        if (size == 0)
                return 0;

        int r = http_buffer_reserve(b, size, &p);
        if (r < 0)
                return r;
        memcpy(p, data, size);
        http_buffer_add(b, size);
        return 0;
}

int http_buffer_append_last(HttpBuffer *b, const void *data, size_t size) {
        if (size > SIZE_MAX / 4 - b->size)
                return -ENOMEM;
        if (b->size + size > 0 && (b->start > 0 || b->size + size != b->allocated)) {
                int r = buffer_resize(b, b->size + size);
                if (r < 0)
                        return r;
        }
        return http_buffer_append(b, data, size);
}

void http_buffer_consume(HttpBuffer *b, size_t size) {
        assert(size <= b->size);

        b->start += size;
        b->size -= size;
        if (b->size == 0)
                http_buffer_done(b);
}

void http_buffer_done(HttpBuffer *b) {
        if (b->data)
                explicit_bzero(b->data, b->allocated);
        free(b->data);
        *b = (HttpBuffer) {};
}
