/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* See material-wire.h. A question or answer is a header of fixed size, which says how long the whole is, then strings:
 * their length with the NUL, the bytes, the NUL. */

#include "material/material-wire.h"

#define MAGIC 0x324d4741U /* "AGM2" */

typedef struct Header {
        uint32_t magic, what; /* verb, or status */
        uint32_t size;
        uint16_t n_headers, n_redact;
        uint64_t cookie, generation, expires_usec;
} Header;

typedef struct Cursor {
        char *p;
        size_t left;
        bool bad;
} Cursor;

static void put(Cursor *c, const char *s) {
        size_t n = strlen(s) + 1;
        uint32_t length = (uint32_t) n;

        if (c->bad || n > UINT32_MAX || c->left < sizeof(length) || c->left - sizeof(length) < n) {
                c->bad = true;
                return;
        }
        memcpy(c->p, &length, sizeof(length));
        memcpy(c->p + sizeof(length), s, n);
        c->p += sizeof(length) + n;
        c->left -= sizeof(length) + n;
}

static const char *get(Cursor *c) {
        uint32_t length;

        if (!c->bad && c->left >= sizeof(length)) {
                const char *s = c->p + sizeof(length);

                memcpy(&length, c->p, sizeof(length));
                if (length > 0 && length <= c->left - sizeof(length) && s[length - 1] == 0 && strlen(s) == length - 1) {
                        c->p += sizeof(length) + length;
                        c->left -= sizeof(length) + length;
                        return s;
                }
        }
        c->bad = true;
        return "";
}

static Cursor encode_begin(void *buf, size_t size) {
        if (size < sizeof(Header))
                return (Cursor) { .bad = true };
        return (Cursor) { .p = (char *) buf + sizeof(Header), .left = size - sizeof(Header) };
}

static ssize_t encode_end(const Cursor *c, void *buf, Header *h) {
        if (c->bad)
                return -EMSGSIZE;
        h->size = (uint32_t) (c->p - (char *) buf);
        memcpy(buf, h, sizeof(*h));
        return (ssize_t) h->size;
}

static Cursor decode_header(const void *buf, size_t size, Header *ret) {
        if (size < sizeof(*ret))
                return (Cursor) { .bad = true };
        memcpy(ret, buf, sizeof(*ret));
        if (ret->magic != MAGIC || ret->size < sizeof(*ret) || ret->size > size)
                return (Cursor) { .bad = true };
        return (Cursor) { .p = (char *) buf + sizeof(*ret), .left = ret->size - sizeof(*ret) };
}

ssize_t material_question_encode(const MaterialQuestion *q, void *buf, size_t size) {
        Header h = { .magic = MAGIC, .what = q->verb, .cookie = q->cookie, .generation = q->generation };
        Cursor c = encode_begin(buf, MIN(size, MATERIAL_QUESTION_MAX));

        put(&c, q->run);
        put(&c, q->service);
        put(&c, q->token);
        return encode_end(&c, buf, &h);
}

/* The first that is there: its size. */
static ssize_t question_decode(const char *buf, size_t size, MaterialQuestion *ret) {
        MaterialQuestion q;
        Header h = {};
        Cursor c = decode_header(buf, size, &h);

        q = (MaterialQuestion) { .verb = (MaterialVerb) h.what, .cookie = h.cookie, .generation = h.generation };
        q.run = get(&c);
        q.service = get(&c);
        q.token = get(&c);
        if (c.bad || c.left > 0 || (h.what != MATERIAL_GET && h.what != MATERIAL_INVALIDATE) || h.expires_usec != 0 ||
            h.n_headers != 0 || h.n_redact != 0)
                return -EBADMSG;
        *ret = q;
        return (ssize_t) h.size;
}

int material_questions_decode(const void *buf, size_t size, MaterialQuestion ret[static MATERIAL_BATCH_MAX]) {
        const char *p = buf, *end = p + size;
        int n = 0;

        if (size == 0 || size > MATERIAL_QUESTION_MAX)
                return -EBADMSG;
        while (p < end) {
                ssize_t k = n < (int) MATERIAL_BATCH_MAX ? question_decode(p, (size_t) (end - p), ret + n) : -EBADMSG;
                if (k < 0)
                        return (int) k;
                p += k;
                n++;
        }
        return n;
}

ssize_t material_answer_encode(const MaterialAnswer *a, void *buf, size_t size) {
        Header h = {
                .magic = MAGIC, .what = a->status, .cookie = a->cookie, .generation = a->generation,
                .expires_usec = a->expires_usec, .n_headers = (uint16_t) a->n_headers,
                .n_redact = (uint16_t) a->n_redact,
        };
        Cursor c = encode_begin(buf, MIN(size, MATERIAL_ANSWER_MAX));

        for (size_t i = 0; i < a->n_headers; i++) {
                put(&c, a->headers[i].name);
                put(&c, a->headers[i].value);
        }
        for (size_t i = 0; i < a->n_redact; i++)
                put(&c, a->redact[i]);
        return encode_end(&c, buf, &h);
}

static ssize_t answer_decode(const char *buf, size_t size, MaterialAnswer *ret) {
        MaterialAnswer a;
        Header h = {};
        Cursor c = decode_header(buf, size, &h);

        if (c.bad || h.what >= _MATERIAL_STATUS_MAX || h.n_headers > MATERIAL_HEADERS_MAX ||
            h.n_redact > MATERIAL_REDACT_MAX || (h.what != MATERIAL_OK && (h.n_headers > 0 || h.n_redact > 0)))
                return -EBADMSG;
        a = (MaterialAnswer) {
                .status = (MaterialStatus) h.what, .cookie = h.cookie, .expires_usec = h.expires_usec,
                .generation = h.generation, .n_headers = h.n_headers, .n_redact = h.n_redact,
        };
        for (size_t i = 0; i < a.n_headers; i++) {
                a.headers[i].name = get(&c);
                a.headers[i].value = get(&c);
        }
        for (size_t i = 0; i < a.n_redact; i++)
                a.redact[i] = get(&c);
        if (c.bad || c.left > 0)
                return -EBADMSG;
        *ret = a;
        return (ssize_t) h.size;
}

int material_answers_decode(const void *buf, size_t size, MaterialAnswer ret[static MATERIAL_BATCH_MAX]) {
        const char *p = buf, *end = p + size;
        int n = 0;

        if (size == 0 || size > MATERIAL_ANSWER_MAX)
                return -EBADMSG;
        while (p < end) {
                ssize_t k = n < (int) MATERIAL_BATCH_MAX ? answer_decode(p, (size_t) (end - p), ret + n) : -EBADMSG;
                if (k < 0)
                        return (int) k;
                p += k;
                n++;
        }
        return n;
}
