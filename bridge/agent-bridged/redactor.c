/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* See redactor.h. Plain search over a handful of patterns, with a table of their first bytes to step over the rest
 * quickly. */

#include "basic/string-util.h"
#include "redactor.h"

typedef struct Pattern {
        char *data;
        size_t size;
} Pattern;

struct Redactor {
        Pattern *patterns;
        size_t n;
        bool first[256];
        HttpBuffer held; /* may be the start of a pattern */
        unsigned hits;
};

int redactor_new(Redactor **ret) {
        Redactor *r = calloc(1, sizeof(Redactor));
        if (!r)
                return -ENOMEM;
        *ret = r;
        return 0;
}

Redactor *redactor_free(Redactor *r) {
        if (!r)
                return NULL;

        for (size_t i = 0; i < r->n; i++) {
                explicit_bzero(r->patterns[i].data, r->patterns[i].size);
                free(r->patterns[i].data);
        }
        free(r->patterns);
        http_buffer_done(&r->held);
        return mfree(r);
}

static int add_pattern(Redactor *r, const char *data, size_t size) {
        if (size < REDACTOR_SECRET_MIN)
                return 0;
        for (size_t i = 0; i < r->n; i++)
                if (r->patterns[i].size == size && memcmp(r->patterns[i].data, data, size) == 0)
                        return 0;

        Pattern *n = reallocarray(r->patterns, r->n + 1, sizeof(Pattern));
        if (!n)
                return -ENOMEM;
        r->patterns = n;

        char *copy = malloc(size);
        if (!copy)
                return -ENOMEM;
        memcpy(copy, data, size);
        r->patterns[r->n++] = (Pattern) { .data = copy, .size = size };
        r->first[(unsigned char) *data] = true;
        return 1;
}

/* Base64 of a text that SECRET stands in the middle of: which characters its bytes become depends on their offset
 * modulo three. The characters at both ends that neighbours have a part in are left out. */
static int add_base64(Redactor *r, const char *secret, size_t size, size_t offset) {
        _cleanup_free_ char *padded = calloc(1, size + offset), *text = NULL;
        int k;

        if (!padded)
                return -ENOMEM;
        memcpy(padded + offset, secret, size);
        text = base64_encode(padded, size + offset);
        explicit_bzero(padded, size + offset);
        if (!text)
                return -ENOMEM;

        size_t start = offset == 0 ? 0 : offset == 1 ? 2 : 3, end = (size + offset) * 8 / 6;
        k = end > start ? add_pattern(r, text + start, end - start) : 0;
        if (k > 0) {
                for (char *p = text; *p; p++)
                        *p = *p == '+' ? '-' : *p == '/' ? '_' : *p;
                k = add_pattern(r, text + start, end - start);
        }
        explicit_bzero(text, strlen(text));
        return k < 0 ? k : 0;
}

static int add_percent(Redactor *r, const char *secret, size_t size, const char *digits) {
        _cleanup_free_ char *text = malloc(size * 3);
        size_t n = 0;

        if (!text)
                return -ENOMEM;
        for (size_t i = 0; i < size; i++) {
                unsigned char c = (unsigned char) secret[i];

                if ((c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
                    (c && strchr("-._~", c)))
                        text[n++] = (char) c;
                else {
                        text[n++] = '%';
                        text[n++] = digits[c >> 4];
                        text[n++] = digits[c & 15];
                }
        }
        int k = add_pattern(r, text, n);
        explicit_bzero(text, n);
        return k < 0 ? k : 0;
}

int redactor_add(Redactor *r, const char *secret, size_t size) {
        if (size < REDACTOR_SECRET_MIN || size > REDACTOR_SECRET_MAX)
                return 0;

        int k = add_pattern(r, secret, size);
        if (k >= 0)
                k = add_percent(r, secret, size, "0123456789ABCDEF");
        if (k >= 0)
                k = add_percent(r, secret, size, "0123456789abcdef");
        for (size_t offset = 0; k >= 0 && offset < 3; offset++)
                k = add_base64(r, secret, size, offset);
        return k < 0 ? k : 0;
}

/* Replaces what is found in DATA. Returns where bytes begin that may be the start of a pattern whose rest is yet
 * to come; they stay as they are until it is known. FINAL: nothing comes any more. */
static size_t scan(Redactor *r, char *data, size_t size, bool final) {
        for (size_t i = 0; i < size; i++) {
                if (!r->first[(unsigned char) data[i]])
                        continue;

                size_t found = 0;
                for (size_t k = 0; k < r->n; k++) {
                        const Pattern *p = r->patterns + k;

                        if (p->size <= size - i) {
                                if (p->size > found && memcmp(data + i, p->data, p->size) == 0)
                                        found = p->size;
                        } else if (!final && memcmp(data + i, p->data, size - i) == 0)
                                return i; /* a longer one may begin here, also where a shorter one is complete */
                }
                if (found > 0) {
                        memset(data + i, '*', found);
                        r->hits++;
                        i += found - 1;
                }
        }
        return size;
}

int redactor_feed(Redactor *r, const char *data, size_t size, HttpBuffer *out) {
        if (r->n == 0)
                return http_buffer_append(out, data, size);

        int k = http_buffer_append(&r->held, data, size);
        if (k < 0)
                return k;
        if (r->held.size == 0)
                return 0;

        char *p = r->held.data + r->held.start;
        size_t pass = scan(r, p, r->held.size, false);
        k = http_buffer_append(out, p, pass);
        if (k < 0)
                return k;
        http_buffer_consume(&r->held, pass);
        return 0;
}

int redactor_flush(Redactor *r, HttpBuffer *out) {
        if (r->held.size == 0)
                return 0;

        char *p = r->held.data + r->held.start;
        (void) scan(r, p, r->held.size, true);
        int k = http_buffer_append(out, p, r->held.size);
        http_buffer_done(&r->held);
        return k;
}

void redactor_apply(Redactor *r, char *s, size_t size) {
        (void) scan(r, s, size, true);
}

unsigned redactor_hits(const Redactor *r) {
        return r->hits;
}
