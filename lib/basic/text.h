/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * Text that is put together in a buffer of a known size, without printf() and without memory of its own: for what is
 * built for every request. Nothing is written beyond the end; a piece that does not fit is left out as a whole, and
 * CUT says so.
 */

#include "basic/macro.h"

typedef struct Text {
        char *start, *at, *end; /* one byte is kept for a NUL */
        bool cut;
} Text;

/* SIZE at least 1. */
static inline Text text_in(char *buf, size_t size) {
        return (Text) { .start = buf, .at = buf, .end = buf + size - 1 };
}

static inline void text_add_n(Text *t, const char *s, size_t n) {
        if (n > (size_t) (t->end - t->at)) {
                t->cut = true;
                return;
        }
        memcpy(t->at, s, n);
        t->at += n;
}

static inline void text_add(Text *t, const char *s) {
        text_add_n(t, s, strlen(s));
}

static inline void text_add_u64(Text *t, uint64_t v) {
        char digits[20];
        size_t n = sizeof(digits);

        do
                digits[--n] = (char) ('0' + v % 10);
        while ((v /= 10) > 0);
        text_add_n(t, digits + n, sizeof(digits) - n);
}

static inline size_t text_size(const Text *t) {
        return (size_t) (t->at - t->start);
}

/* PREFIX, FIRST, and then SECOND (may be NULL) behind a '/', in BUF: keys that are looked up again and again. NULL: it
 * does not fit. */
static inline const char *text_key(char *buf, size_t size, const char *prefix, const char *first, const char *second) {
        Text t = text_in(buf, size);

        text_add(&t, prefix);
        text_add(&t, first);
        if (second) {
                text_add(&t, "/");
                text_add(&t, second);
        }
        *t.at = 0;
        return t.cut ? NULL : buf;
}

/* What there is, with a NUL at its end. */
static inline char *text_end(Text *t) {
        *t->at = 0;
        return t->start;
}
