/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* See material-wire.h. A packet is a header of fixed size, then strings: their length with the NUL, the bytes, the NUL.
 */

#include "material/material-wire.h"

#define MAGIC 0x314d4741U /* "AGM1" */

typedef struct Header {
        uint32_t magic, what; /* verb, or status */
        uint64_t cookie, generation, expires_usec;
        uint32_t n_headers, n_redact;
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
        const char *s = c->p + sizeof(uint32_t);
        uint32_t length;

        if (!c->bad && c->left >= sizeof(length)) {
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

static Cursor encode_header(const Header *h, void *buf, size_t size) {
        if (size < sizeof(*h))
                return (Cursor) { .bad = true };
        memcpy(buf, h, sizeof(*h));
        return (Cursor) { .p = (char *) buf + sizeof(*h), .left = size - sizeof(*h) };
}

static Cursor decode_header(const void *buf, size_t size, Header *ret) {
        if (size < sizeof(*ret))
                return (Cursor) { .bad = true };
        memcpy(ret, buf, sizeof(*ret));
        return (Cursor) {
                .p = (char *) buf + sizeof(*ret), .left = size - sizeof(*ret), .bad = ret->magic != MAGIC,
        };
}

ssize_t material_question_encode(const MaterialQuestion *q, void *buf, size_t size) {
        Header h = { .magic = MAGIC, .what = q->verb, .cookie = q->cookie, .generation = q->generation };
        Cursor c = encode_header(&h, buf, MIN(size, MATERIAL_QUESTION_MAX));

        put(&c, q->run);
        put(&c, q->service);
        put(&c, q->token);
        return c.bad ? -EMSGSIZE : c.p - (char *) buf;
}

int material_question_decode(const void *buf, size_t size, MaterialQuestion *ret) {
        MaterialQuestion q;
        Header h = {};
        Cursor c = decode_header(buf, size, &h);

        q = (MaterialQuestion) { .verb = (MaterialVerb) h.what, .cookie = h.cookie, .generation = h.generation };
        q.run = get(&c);
        q.service = get(&c);
        q.token = get(&c);
        if (c.bad || c.left > 0 || (h.what != MATERIAL_GET && h.what != MATERIAL_INVALIDATE) || h.expires_usec != 0 ||
            h.n_headers != 0 || h.n_redact != 0 || size > MATERIAL_QUESTION_MAX)
                return -EBADMSG;
        *ret = q;
        return 0;
}

ssize_t material_answer_encode(const MaterialAnswer *a, void *buf, size_t size) {
        Header h = {
                .magic = MAGIC, .what = a->status, .cookie = a->cookie, .generation = a->generation,
                .expires_usec = a->expires_usec, .n_headers = (uint32_t) a->n_headers,
                .n_redact = (uint32_t) a->n_redact,
        };
        Cursor c = encode_header(&h, buf, MIN(size, MATERIAL_ANSWER_MAX));

        for (size_t i = 0; i < a->n_headers; i++) {
                put(&c, a->headers[i].name);
                put(&c, a->headers[i].value);
        }
        for (size_t i = 0; i < a->n_redact; i++)
                put(&c, a->redact[i]);
        return c.bad ? -EMSGSIZE : c.p - (char *) buf;
}

int material_answer_decode(const void *buf, size_t size, MaterialAnswer *ret) {
        MaterialAnswer a;
        Header h = {};
        Cursor c = decode_header(buf, size, &h);

        if (c.bad || h.what >= _MATERIAL_STATUS_MAX || h.n_headers > MATERIAL_HEADERS_MAX ||
            h.n_redact > MATERIAL_REDACT_MAX || (h.what != MATERIAL_OK && (h.n_headers > 0 || h.n_redact > 0)) ||
            size > MATERIAL_ANSWER_MAX)
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
        return 0;
}
