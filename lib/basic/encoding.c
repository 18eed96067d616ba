/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Hex and base64. Decoders are strict: one spelling per value. Two spellings of one token would be two names
 * for one thing, and every list keyed by the text (revocations, caches) would have a hole.
 */
#include "basic/string-util.h"

static const char hexdigits[] = "0123456789abcdef";
static const char url_alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
static const char std_alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

char *hex_encode(const void *data, size_t size) {
        const uint8_t *d = data;
        char *s = malloc(size * 2 + 1);

        if (!s)
                return NULL;
        for (size_t i = 0; i < size; i++) {
                s[2 * i] = hexdigits[d[i] >> 4];
                s[2 * i + 1] = hexdigits[d[i] & 15];
        }
        s[size * 2] = 0;
        return s;
}

int hex_decode(const char *s, size_t len, void *buf, size_t size) {
        uint8_t *d = buf;

        if (len != size * 2)
                return -EINVAL;
        for (size_t i = 0; i < len; i++) {
                const char *p = s[i] ? strchr(hexdigits, s[i]) : NULL;

                if (!p)
                        return -EINVAL;
                d[i / 2] = (uint8_t) (i % 2 ? (d[i / 2] | (p - hexdigits)) : (p - hexdigits) << 4);
        }
        return 0;
}

static char *encode64(const void *data, size_t size, const char *alphabet, bool pad) {
        const uint8_t *d = data;
        char *s, *p;

        p = s = malloc((size + 2) / 3 * 4 + 1);
        if (!s)
                return NULL;
        for (size_t i = 0; i < size; i += 3) {
                size_t n = MIN((size_t) 3, size - i);
                uint32_t v = (uint32_t) d[i] << 16 | (n > 1 ? (uint32_t) d[i + 1] << 8 : 0) | (n > 2 ? d[i + 2] : 0);

                *p++ = alphabet[v >> 18 & 63];
                *p++ = alphabet[v >> 12 & 63];
                if (n > 1)
                        *p++ = alphabet[v >> 6 & 63];
                else if (pad)
                        *p++ = '=';
                if (n > 2)
                        *p++ = alphabet[v & 63];
                else if (pad)
                        *p++ = '=';
        }
        *p = 0;
        return s;
}

static int decode64(const char *s, size_t len, const char *alphabet, void **ret, size_t *ret_size) {
        _cleanup_free_ uint8_t *d = NULL;
        size_t n = 0;
        uint32_t v = 0;
        unsigned bits = 0;

        if (len % 4 == 1)
                return -EINVAL;
        d = malloc(len / 4 * 3 + 4);
        if (!d)
                return -ENOMEM;
        for (size_t i = 0; i < len; i++) {
                const char *p = s[i] ? strchr(alphabet, s[i]) : NULL;

                if (!p)
                        return -EINVAL;
                v = v << 6 | (uint32_t) (p - alphabet);
                bits += 6;
                if (bits >= 8) {
                        bits -= 8;
                        d[n++] = (uint8_t) (v >> bits);
                        v &= (1u << bits) - 1;
                }
        }
        if (v != 0) /* stray bits behind the last byte: another spelling of the same value */
                return -EINVAL;
        d[n] = 0;
        *ret = TAKE_PTR(d);
        *ret_size = n;
        return 0;
}

char *base64url_encode(const void *data, size_t size) {
        return encode64(data, size, url_alphabet, false);
}

int base64url_decode(const char *s, size_t len, void **ret, size_t *ret_size) {
        return decode64(s, len, url_alphabet, ret, ret_size);
}

char *base64_encode(const void *data, size_t size) {
        return encode64(data, size, std_alphabet, true);
}

int base64_decode(const char *s, size_t len, void **ret, size_t *ret_size) {
        if (len % 4 != 0)
                return -EINVAL;
        if (len > 0 && s[len - 1] == '=')
                len -= s[len - 2] == '=' ? 2 : 1;
        return decode64(s, len, std_alphabet, ret, ret_size);
}
