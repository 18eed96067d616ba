/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * A queue of bytes in one piece of memory: append at the end, consume at the start. It holds no limit of its own, its
 * users ask for the size before they add. An empty one holds no memory. Freed memory is wiped: bodies carry secrets.
 */

#include "basic/macro.h"

typedef struct HttpBuffer {
        char *data;
        size_t start, size, allocated; /* the bytes are data[start … start+size) */
} HttpBuffer;

static inline const char *http_buffer_data(const HttpBuffer *b) {
        return b->data ? b->data + b->start : "";
}

/* Room for SIZE more bytes at the end, to be written there; *ret is NULL only where SIZE is 0. http_buffer_add() says
 * how many there were. */
int http_buffer_reserve(HttpBuffer *b, size_t size, char **ret);
void http_buffer_add(HttpBuffer *b, size_t size);
int http_buffer_append(HttpBuffer *b, const void *data, size_t size);
/* The same where nothing more is to come: no more memory is held than the bytes need. */
int http_buffer_append_last(HttpBuffer *b, const void *data, size_t size);
void http_buffer_consume(HttpBuffer *b, size_t size);
void http_buffer_done(HttpBuffer *b);
