/* SPDX-License-Identifier: LGPL-2.1-or-later */
#undef NDEBUG

/* Proves what the request parser takes and what it refuses: each input is given as a whole and byte by byte, and
 * both must come to the same end. */

#include <malloc.h>

#include "basic/string-util.h"
#include "http/http-parser.h"

typedef struct Result {
        int head;        /* 1, 0 or negative */
        unsigned status;
        int body;
        HttpBuffer data;
        size_t left;     /* bytes behind the message */
} Result;

static void feed(HttpParser *p, const char *in, size_t size, size_t step, Result *ret) {
        size_t off = 0;

        *ret = (Result) {};
        while (off < size && ret->head == 0) {
                size_t n = 0;

                ret->head = http_parser_feed_head(p, in + off, MIN(step, size - off), &n, &ret->status);
                off += n;
        }
        if (ret->head > 0 && http_parser_complete(p))
                ret->body = 1;
        while (ret->head > 0 && ret->body == 0 && off < size) {
                size_t n = 0;

                ret->body = http_parser_feed_body(p, in + off, MIN(step, size - off), &n, &ret->data);
                off += n;
        }
        ret->left = size - off;
}

static HttpParser *parse(const char *in, size_t size, Result *ret) {
        HttpParser *p, *q;
        Result other;

        assert(http_parser_new(&HTTP_PARSER_LIMITS_DEFAULT, &p) == 0);
        assert(http_parser_new(&HTTP_PARSER_LIMITS_DEFAULT, &q) == 0);
        feed(p, in, size, SIZE_MAX, ret);
        feed(q, in, size, 1, &other);
        if (ret->head != other.head || ret->status != other.status || ret->body != other.body)
                fprintf(stderr, "%.60s: %d/%d %u/%u %d/%d\n", in, ret->head, other.head, ret->status, other.status,
                        ret->body,
                        other.body);
        assert(ret->head == other.head);
        assert(ret->status == other.status);
        assert(ret->body == other.body);
        if (ret->body > 0) {
                assert(ret->left == other.left);
                assert(ret->data.size == other.data.size);
                assert(memcmp(http_buffer_data(&ret->data), http_buffer_data(&other.data), other.data.size) == 0);
        }
        http_buffer_done(&other.data);
        http_parser_free(q);
        return p;
}

static void refused_n(const char *in, size_t size, unsigned status) {
        Result r;
        HttpParser *p = parse(in, size, &r);

        if (r.head != -EBADMSG || r.status != status)
                fprintf(stderr, "%.80s: head %d status %u, want %u\n", in, r.head, r.status, status);
        assert(r.head == -EBADMSG);
        assert(r.status == status);
        http_buffer_done(&r.data);
        http_parser_free(p);
}

static void bad_body_n(const char *in, size_t size) {
        Result r;
        HttpParser *p = parse(in, size, &r);

        if (r.head != 1 || r.body != -EBADMSG)
                fprintf(stderr, "%.120s: head %d body %d\n", in, r.head, r.body);
        assert(r.head == 1);
        assert(r.body == -EBADMSG);
        http_buffer_done(&r.data);
        http_parser_free(p);
}

static void accepted_n(const char *in, size_t size, const char *body, size_t left) {
        Result r;
        HttpParser *p = parse(in, size, &r);

        if (r.head != 1 || r.body != 1)
                fprintf(stderr, "%.80s: head %d (%u) body %d\n", in, r.head, r.status, r.body);
        assert(r.head == 1);
        assert(r.body == 1);
        assert(r.data.size == strlen(body));
        assert(memcmp(http_buffer_data(&r.data), body, r.data.size) == 0);
        assert(r.left == left);
        http_buffer_done(&r.data);
        http_parser_free(p);
}

#define refused(s, status) refused_n(s, sizeof(s) - 1, status)
#define bad_body(s) bad_body_n(s, sizeof(s) - 1)
#define accepted(s, body, left) accepted_n(s, sizeof(s) - 1, body, left)

#define GET "GET /x HTTP/1.1\r\nHost: a\r\n"
#define POST "POST /x HTTP/1.1\r\nHost: a\r\n"
#define CHUNKED POST "Transfer-Encoding: chunked\r\n\r\n"

static void test_lines(void) {
        accepted(GET "\r\n", "", 0);
        accepted(GET "\r\nGET /y", "", 6);
        accepted(GET "X:\r\nY: \r\nZ:\t \r\n\r\n", "", 0);
        accepted("GET / HTTP/1.0\r\n\r\n", "", 0);

        refused("\r\n" GET "\r\n", 400);
        refused("GET /x HTTP/1.1\nHost: a\n\n", 400);
        refused(GET "X: y\n\r\n", 400);
        refused(GET "X: y\rZ: w\r\n\r\n", 400);
        refused(GET "X: y\0z\r\n\r\n", 400);
        refused(GET "X: y\x01z\r\n\r\n", 400);
        refused(GET "X: y\x7fz\r\n\r\n", 400);
        refused(GET "X: y\r\n z\r\n\r\n", 400);
        refused(GET "X: y\r\n\tz\r\n\r\n", 400);
        refused(GET " X: y\r\n\r\n", 400);
        refused(GET "X : y\r\n\r\n", 400);
        refused(GET "\x01X: y\r\n\r\n", 400);
        refused(GET "X\x80: y\r\n\r\n", 400);
        refused(GET "Authorization\0: y\r\n\r\n", 400);
        refused(GET ": y\r\n\r\n", 400);
        refused(GET "X\r\n\r\n", 400);
        refused(GET "X y\r\n\r\n", 400);

        refused("GET  /x HTTP/1.1\r\nHost: a\r\n\r\n", 400);
        refused("GET /x  HTTP/1.1\r\nHost: a\r\n\r\n", 400);
        refused("GET\t/x\tHTTP/1.1\r\nHost: a\r\n\r\n", 400);
        refused(" GET /x HTTP/1.1\r\nHost: a\r\n\r\n", 400);
        refused("GET /\xc3\xa9 HTTP/1.1\r\nHost: a\r\n\r\n", 400);
        refused("GET /x#y HTTP/1.1\r\nHost: a\r\n\r\n", 400);
        refused("GET /x?a#y HTTP/1.1\r\nHost: a\r\n\r\n", 400);
        refused("GET /x\r\n\r\n", 505);
        refused("GET /x HTTP/1.2\r\nHost: a\r\n\r\n", 505);
        refused("GET /x HTTP/2.0\r\nHost: a\r\n\r\n", 505);
        refused("GET /x HTTP/1.1 \r\nHost: a\r\n\r\n", 400);
        refused("get /x HTTP/1.1\r\nHost: a\r\n\r\n", 501);
        refused("BREW /x HTTP/1.1\r\nHost: a\r\n\r\n", 501);
        refused("TRACE /x HTTP/1.1\r\nHost: a\r\n\r\n", 501);

        refused("GET http://a/x HTTP/1.1\r\nHost: a\r\n\r\n", 400);
        refused("GET https://a/x HTTP/1.1\r\nHost: a\r\n\r\n", 400);
        refused("GET x HTTP/1.1\r\nHost: a\r\n\r\n", 400);
        refused("OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", 400);
        refused("CONNECT a:443 HTTP/1.1\r\nHost: a\r\n\r\n", 400);

        refused("GET /x HTTP/1.1\r\n\r\n", 400);
        refused(GET "Host: a\r\n\r\n", 400);
        refused("GET /x HTTP/1.1\r\nHost: a b\r\n\r\n", 400);
        refused("GET /x HTTP/1.1\r\nHost: a@b\r\n\r\n", 400);
        refused("GET /x HTTP/1.1\r\nHost:\r\n\r\n", 400);
}

static void test_length(void) {
        accepted(POST "Content-Length: 5\r\n\r\nhello", "hello", 0);
        accepted(POST "content-length:5\r\n\r\nhelloGET", "hello", 3);
        accepted(POST "Content-Length: 0\r\n\r\nx", "", 1);
        accepted(POST "Connection: close\r\nContent-Length: 5\r\n\r\nhelloxxx", "hello", 3);
        accepted(POST "\r\nhello", "", 5);

        refused(POST "Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello", 400);
        refused(POST "Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello", 400);
        refused(POST "Content-Length: 5, 5\r\n\r\nhello", 400);
        refused(POST "Content-Length: +5\r\n\r\nhello", 400);
        refused(POST "Content-Length:  5\r\n\r\nhello", 400);
        refused(POST "Content-Length:\t5\r\n\r\nhello", 400);
        refused(POST "Content-Length: 5 \r\n\r\nhello", 400);
        refused(POST "Content-Length: 0x5\r\n\r\nhello", 400);
        refused(POST "Content-Length: 5\0\r\n\r\nhello", 400);
        refused(POST "Content-Length: -5\r\n\r\nhello", 400);
        refused(POST "Content-Length: 5.0\r\n\r\nhello", 400);
        refused(POST "Content-Length: 18446744073709551621\r\n\r\nhello", 400);
        refused(POST "Content-Length: 9223372036854775808\r\n\r\nhello", 400);
        refused(POST "Content-Length: 00000000000000000005\r\n\r\nhello", 400);
        refused(POST "Content-Length:\r\n\r\nhello", 400);
        refused(POST "Content-Length : 5\r\n\r\nhello", 400);

        refused(POST "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400);
        refused(POST "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n", 400);
        refused(POST "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400);
        refused(POST "Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n", 400);
        refused(POST "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 400);
        refused(POST "Transfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n", 400);
        refused(POST "Transfer-Encoding: identity\r\n\r\n", 400);
        refused(POST "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", 400);
        refused(POST "Transfer-Encoding: \x0b" "chunked\r\n\r\n0\r\n\r\n", 400);
        refused(POST "Transfer-Encoding: \"chunked\"\r\n\r\n0\r\n\r\n", 400);
        refused(POST "Transfer-Encoding:\r\n\r\n0\r\n\r\n", 400);
        refused(POST "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n", 400);
        refused("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400);
}

static void test_chunks(void) {
        accepted(CHUNKED "5\r\nhello\r\n0\r\n\r\nxx", "hello", 2);
        accepted(CHUNKED "5;a=b;c=\"d\"\r\nhello\r\n1\r\n!\r\n0\r\n\r\n", "hello!", 0);
        accepted(CHUNKED "0\r\n\r\n", "", 0);
        accepted(CHUNKED "5\r\nhello\r\n0\r\nAuthorization: x\r\n\r\n", "hello", 0);

        bad_body(CHUNKED "5\nhello\r\n0\r\n\r\n");
        bad_body(CHUNKED "5\r\nhello\n0\r\n\r\n");
        bad_body(CHUNKED "5\r\nhello\r0\r\n\r\n");
        bad_body(CHUNKED "5\r\nhello\r\n0\r\n\n");
        bad_body(CHUNKED "5;a\nb\r\nhello\r\n0\r\n\r\n");
        bad_body(CHUNKED "5;a\rb\r\nhello\r\n0\r\n\r\n");
        bad_body(CHUNKED "10000000000000005\r\nhello\r\n0\r\n\r\n");
        bad_body(CHUNKED "-5\r\nhello\r\n0\r\n\r\n");
        bad_body(CHUNKED "+5\r\nhello\r\n0\r\n\r\n");
        bad_body(CHUNKED "0x5\r\nhello\r\n0\r\n\r\n");
        bad_body(CHUNKED "5 \r\nhello\r\n0\r\n\r\n");
        bad_body(CHUNKED " 5\r\nhello\r\n0\r\n\r\n");
        bad_body(CHUNKED "\r\nhello\r\n0\r\n\r\n");
        bad_body(CHUNKED "5\r\nhello!\r\n0\r\n\r\n");
        bad_body(CHUNKED "g\r\n");
        bad_body(CHUNKED "0\r\nA: b\nC: d\r\n\r\n");
        bad_body(CHUNKED "0\r\n A: b\r\n\r\n");

        /* Without the last line the body is not complete. */
        Result r;
        HttpParser *p = parse(CHUNKED "5\r\nhello\r\n0\r\n", strlen(CHUNKED "5\r\nhello\r\n0\r\n"), &r);
        assert(r.head == 1 && r.body == 0);
        http_buffer_done(&r.data);
        http_parser_free(p);

        /* Extensions and trailers cannot be had without end. */
        _cleanup_free_ char *ext = malloc(1 << 20);
        assert(ext);
        memset(ext, 'x', 1 << 20);
        memcpy(ext, CHUNKED "5;", strlen(CHUNKED "5;"));
        bad_body_n(ext, 1 << 20);

        _cleanup_free_ char *many = NULL;
        size_t size;
        FILE *f = open_memstream(&many, &size);
        assert(f);
        fputs(CHUNKED "0\r\n", f);
        for (unsigned i = 0; i < 2000; i++)
                fprintf(f, "T%u: value\r\n", i);
        fputs("\r\n", f);
        fclose(f);
        bad_body_n(many, size);
}

static void test_floods(void) {
        _cleanup_free_ char *s = NULL;
        size_t size;
        FILE *f = open_memstream(&s, &size);

        assert(f);
        fputs(GET, f);
        for (unsigned i = 0; i < 2000; i++)
                fprintf(f, "H%u: v\r\n", i);
        fputs("\r\n", f);
        fclose(f);
        refused_n(s, size, 431);

        _cleanup_free_ char *line = malloc(1 << 20);
        assert(line);
        memset(line, 'x', 1 << 20);
        memcpy(line, GET "X: ", strlen(GET "X: "));
        refused_n(line, 1 << 20, 431);
        memset(line, 'x', 1 << 20);
        memcpy(line, GET, strlen(GET));
        refused_n(line, 1 << 20, 431); /* a name without end */
        memset(line, 'x', 1 << 20);
        memcpy(line, "GET /", 5);
        refused_n(line, 1 << 20, 414);
}

static void test_semantics(void) {
        Result r;
        HttpParser *p;
        static const char ws[] = GET "Connection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n\r\n";
        static const char h2c[] = GET "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: "
                                      "A\r\n\r\nGET";
        static const char expect[] = POST "Expect: 100-Continue\r\nContent-Length: 5\r\n\r\n";
        static const char query[] = "GET /a%2Fb?c=%zz&d=1?2 HTTP/1.1\r\nHost: a\r\nX-One:  two words "
                                    "\r\nConnection: x, Close\r\n\r\n";
        static const char pri[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

        p = parse(ws, sizeof(ws) - 1, &r);
        assert(r.head == 1 && http_parser_head(p)->upgrade_websocket && http_parser_head(p)->keep_alive);
        http_parser_free(p);

        p = parse(h2c, sizeof(h2c) - 1, &r);
        assert(r.head == 1 && r.body == 1 && r.left == 3 && !http_parser_head(p)->upgrade_websocket);
        http_parser_free(p);

        p = parse(expect, sizeof(expect) - 1, &r);
        assert(r.head == 1 && r.body == 0 && http_parser_head(p)->expect_continue && http_parser_head(p)->length == 5);
        http_parser_free(p);

        p = parse(query, sizeof(query) - 1, &r);
        assert(r.head == 1);
        assert(streq(http_parser_head(p)->path, "/a%2Fb"));
        assert(streq(http_parser_head(p)->query, "c=%zz&d=1?2"));
        assert(streq(http_head_get(http_parser_head(p), "x-ONE"), "two words"));
        assert(!http_parser_head(p)->keep_alive);
        assert(http_parser_head(p)->n_fields == 3);
        http_parser_free(p);

        p = parse(pri, sizeof(pri) - 1, &r);
        assert(r.head == -EPROTO);
        http_parser_free(p);

        static const char empty[] = GET "X:\r\nY: \r\nZ:\t\r\nW: v\r\n\r\n";
        p = parse(empty, sizeof(empty) - 1, &r);
        assert(r.head == 1 && http_parser_head(p)->n_fields == 5);
        assert(streq(http_head_get(http_parser_head(p), "x"), "") && streq(http_head_get(http_parser_head(p), "y"),
                                                                           "") &&
               streq(http_head_get(http_parser_head(p), "z"), "") && streq(http_head_get(http_parser_head(p), "w"),
                                                                           "v"));
        http_parser_free(p);

        refused(POST "Expect: x\r\nContent-Length: 5\r\n\r\nhello", 417);
        refused(POST "Expect: 100-continue, x\r\nContent-Length: 5\r\n\r\nhello", 417);

        assert(http_field_name_is_valid("X-Api-Key"));
        assert(!http_field_name_is_valid("X Api"));
        assert(!http_field_name_is_valid(""));
        assert(!http_field_name_is_valid("X:"));
        assert(http_field_value_is_valid("a b\tc\xc3\xa9"));
        assert(http_field_value_is_valid(""));
        assert(!http_field_value_is_valid("a\r\nb"));
        assert(!http_field_value_is_valid("a\n"));
        assert(!http_field_value_is_valid(" a"));
        assert(http_field_name_folds_to("X_API_Key", "x-api-key"));
        assert(!http_field_name_folds_to("X_API_Keys", "x-api-key"));
        assert(http_value_has_token("a, Close ,b", "close"));
        assert(!http_value_has_token("closed, not-close", "close"));
}

/* A head stays for as long as its request, which may be a stream that lasts for hours, one of thousands. */
static void test_memory(void) {
        static const char head[] = GET "A: 1\r\nB: 2\r\nC: 3\r\nD: 4\r\nE: 5\r\nF: 6\r\nG: 7\r\nH: 8\r\n\r\n";
        HttpParser *parsers[64];
        Result r;

        size_t before = mallinfo2().uordblks;
        for (size_t i = 0; i < ELEMENTSOF(parsers); i++) {
                assert(http_parser_new(&HTTP_PARSER_LIMITS_DEFAULT, parsers + i) == 0);
                feed(parsers[i], head, sizeof(head) - 1, i % 2 ? SIZE_MAX : 7, &r);
                assert(r.head == 1);
        }
        size_t each = (mallinfo2().uordblks - before) / ELEMENTSOF(parsers); /* none is known under sanitizers */
        assert(each <= 1024);
        for (size_t i = 0; i < ELEMENTSOF(parsers); i++) {
                assert(http_parser_head(parsers[i])->n_fields == 9);
                assert(streq(http_head_get(http_parser_head(parsers[i]), "h"), "8"));
                http_parser_free(parsers[i]);
        }
}

int main(void) {
        test_lines();
        test_memory();
        test_length();
        test_chunks();
        test_floods();
        test_semantics();
        return 0;
}
