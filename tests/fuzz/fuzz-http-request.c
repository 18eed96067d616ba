/* SPDX-License-Identifier: LGPL-2.1-or-later */
#undef NDEBUG

/* Bytes as they would come from a client. Whatever they are: given as a whole and in pieces they mean the same,
 * decoded bytes are never more than what came in, and names and values that come out could be sent on as they are. */

#include "http/http-parser.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int run(const uint8_t *data, size_t size, size_t step, bool proxy, HttpBuffer *body, size_t *ret_used) {
        HttpParserLimits limits = HTTP_PARSER_LIMITS_DEFAULT;
        HttpParser *p;
        size_t off = 0, n = 0;
        unsigned status = 0;
        int r = 0, b = 0;

        limits.proxy = proxy;
        assert(http_parser_new(&limits, &p) == 0);
        while (off < size && r == 0) {
                n = 0;
                r = http_parser_feed_head(p, data + off, MIN(step, size - off), &n, &status);
                off += n;
        }
        if (r > 0) {
                const HttpHead *h = http_parser_head(p);

                assert(h->tunnel ? h->path[0] == 0 && h->authority : h->path[0] == '/');
                assert(proxy || !h->authority);
                for (size_t i = 0; i < h->n_fields; i++) {
                        assert(http_field_name_is_valid(h->fields[i].name));
                        assert(http_field_value_is_valid(h->fields[i].value));
                }
                b = http_parser_complete(p);
                while (off < size && b == 0) {
                        n = 0;
                        b = http_parser_feed_body(p, data + off, MIN(step, size - off), &n, body);
                        off += n;
                }
                assert(b < 0 || body->size <= off);
                if (b > 0 && h->length != HTTP_LENGTH_UNKNOWN)
                        assert(body->size == h->length);
        } else if (r == -EBADMSG)
                assert(status >= 400 && status < 600);

        *ret_used = off;
        http_parser_free(p);
        return r < 0 ? r : b;
}

static void try(const uint8_t *data, size_t size, bool proxy) {
        HttpBuffer a = {}, b = {};
        size_t used_a, used_b;

        int x = run(data, size, SIZE_MAX, proxy, &a, &used_a), y = run(data, size, 3, proxy, &b, &used_b);
        assert(x == y);
        if (x > 0) {
                assert(used_a == used_b && a.size == b.size);
                assert(memcmp(http_buffer_data(&a), http_buffer_data(&b), a.size) == 0);
        }
        http_buffer_done(&a);
        http_buffer_done(&b);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
        if (size > 256 * 1024)
                return 0;
        try(data, size, false);
        try(data, size, true);
        return 0;
}
