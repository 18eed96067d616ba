/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* See redactor.h. Search for a handful of patterns at once: the last byte of a window as long as the shortest of them
 * says how far the next place is at which one could begin (Wu and Manber); most bytes are never looked at. */

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
        uint8_t skip[256];
        size_t window; /* 0: skip[] is to be made */
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
        r->window = 0;
        return 1;
}

static void make_skip(Redactor *r) {
        size_t window = UINT8_MAX;

        for (size_t i = 0; i < r->n; i++)
                window = MIN(window, r->patterns[i].size);
        memset(r->skip, (int) window, sizeof(r->skip));
        for (size_t i = 0; i < r->n; i++)
                for (size_t k = 0; k < window; k++) {
                        uint8_t *skip = r->skip + (unsigned char) r->patterns[i].data[k];

                        *skip = MIN(*skip, (uint8_t) (window - 1 - k));
                }
        r->window = window;
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
        size_t i = 0;

        if (r->n == 0)
                return size;
        if (r->window == 0)
                make_skip(r);
        while (i < size) {
                size_t found = 0, skip = size - i >= r->window ? r->skip[(unsigned char) data[i + r->window - 1]] : 0;

                if (skip > 0 || !r->first[(unsigned char) data[i]]) {
                        i += MAX(skip, (size_t) 1);
                        continue;
                }
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
                }
                i += MAX(found, (size_t) 1);
        }
        return size;
}

int redactor_feed(Redactor *r, const char *data, size_t size, HttpBuffer *out) {
        size_t held = r->held.size;
        char *p;

        if (held + size == 0)
                return 0;

        /* What was held and what came, in one piece, where it is to be. */
        int k = http_buffer_reserve(out, held + size, &p);
        if (k < 0)
                return k;
        memcpy(p, http_buffer_data(&r->held), held);
        memcpy(p + held, data, size);
        http_buffer_done(&r->held);
        size_t pass = scan(r, p, held + size, false);
        k = http_buffer_append(&r->held, p + pass, held + size - pass);
        explicit_bzero(p + pass, held + size - pass);
        if (k < 0)
                return k;
        http_buffer_add(out, pass);
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
