/* SPDX-License-Identifier: LGPL-2.1-or-later */
#undef NDEBUG

/* First byte: how large pieces are; second: the length of the first secret, which follows; then one more length and
 * secret; the rest is a text, in which the bytes 1 to 6 stand for the first secret in different spellings. In pieces
 * and as a whole the same comes out, as long as what went in, and the secret is not in it. */

#include "basic/string-util.h"
#include "redactor.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static size_t take_secret(const uint8_t **data, size_t *size, const char **ret) {
        if (*size < 1)
                return 0;
        size_t n = MIN((size_t) **data, *size - 1);

        *ret = (const char *) *data + 1;
        *data += n + 1;
        *size -= n + 1;
        return n;
}

static void append(HttpBuffer *b, const void *data, size_t size) {
        assert(http_buffer_append(b, data, size) == 0);
}

static void append_spelling(HttpBuffer *b, unsigned kind, const char *secret, size_t n) {
        static const char digits[2][17] = { "0123456789ABCDEF", "0123456789abcdef" };

        if (kind == 1)
                append(b, secret, n);
        else if (kind <= 4) {
                /* In the middle of what is encoded, at each offset. */
                _cleanup_free_ char *plain = malloc(n + 7), *text = NULL;

                assert(plain);
                memcpy(plain, "abcabc", 6);
                memcpy(plain + kind + 1, secret, n);
                plain[kind + 1 + n] = 'x';
                text = base64_encode(plain, kind + 2 + n);
                assert(text);
                append(b, text, strlen(text));
        } else
                for (size_t i = 0; i < n; i++) {
                        unsigned char c = (unsigned char) secret[i];
                        char text[4];
                        bool bare = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
                                    (c && strchr("-._~", c));

                        snprintf(text, sizeof(text), "%%%c%c", digits[kind - 5][c >> 4], digits[kind - 5][c & 15]);
                        append(b, bare ? secret + i : text, bare ? 1 : 3);
                }
}

static void run(const char *const secrets[2], const size_t n[2], const HttpBuffer *in, size_t piece, HttpBuffer *out) {
        _cleanup_(redactor_freep) Redactor *r = NULL;

        assert(redactor_new(&r) == 0);
        for (unsigned i = 0; i < 2; i++)
                assert(redactor_add(r, secrets[i], n[i]) >= 0);
        for (size_t at = 0; at < in->size; at += piece) {
                size_t k = MIN(piece, in->size - at);

                assert(redactor_feed(r, http_buffer_data(in) + at, k, out) == 0);
                assert(out->size <= at + k && at + k - out->size < 3 * 256 + 8); /* no more is held than one secret */
        }
        assert(redactor_flush(r, out) == 0);
        assert(out->size == in->size);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
        HttpBuffer in = {}, whole = {}, pieces = {};
        const char *secrets[2] = { "", "" };
        size_t n[2], piece;

        if (size < 1 || size > 4096)
                return 0;
        piece = *data % 32 + 1;
        data++;
        size--;
        n[0] = take_secret(&data, &size, &secrets[0]);
        n[1] = take_secret(&data, &size, &secrets[1]);

        for (size_t i = 0; i < size && in.size < 65536; i++)
                if (data[i] >= 1 && data[i] <= 6 && n[0] > 0)
                        append_spelling(&in, data[i], secrets[0], n[0]);
                else
                        append(&in, data + i, 1);

        run(secrets, n, &in, SIZE_MAX / 2, &whole);
        run(secrets, n, &in, piece, &pieces);
        assert(whole.size == pieces.size);
        assert(memcmp(http_buffer_data(&whole), http_buffer_data(&pieces), whole.size) == 0);
        /* Stars are what is put there. */
        for (unsigned i = 0; i < 2; i++)
                if (n[i] >= REDACTOR_SECRET_MIN && !memchr(secrets[i], '*', n[i]))
                        assert(!memmem(http_buffer_data(&whole), whole.size, secrets[i], n[i]));

        http_buffer_done(&in);
        http_buffer_done(&whole);
        http_buffer_done(&pieces);
        return 0;
}
