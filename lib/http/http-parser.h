/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * Turns bytes into one request: first its head, then its body. Pure: no socket, no event loop, so that it can be
 * fuzzed.
 *
 * The head is read twice, by two readers that must agree: a scanner of our own, which lets through nothing but lines
 * that end with CRLF and finds the head's end, and llhttp with all lenient flags off. What the scanner took to be the
 * head is given to llhttp as a whole; one that llhttp finds longer or shorter is refused. Bodies are decoded by
 * llhttp alone. Trailers and chunk extensions are counted and dropped.
 *
 * All memory is bounded by HttpLimits. After an error or a complete message only reset and free are allowed.
 */

#include "http/http-buffer.h"
#include "http/http-field.h"

#define HTTP_LENGTH_UNKNOWN UINT64_MAX

typedef struct HttpParserLimits {
        size_t target_max;    /* bytes of the request target: 414 */
        size_t line_max;      /* bytes of one header line: 431 */
        size_t head_max;      /* bytes of the whole head: 431 */
        unsigned fields_max;  /* header lines: 431 */
        size_t chunk_ext_max; /* bytes of chunk extensions and trailers in a whole body */
        bool proxy;           /* also CONNECT, and targets in absolute form */
} HttpParserLimits;

#define HTTP_PARSER_LIMITS_DEFAULT                                                                                     \
        (HttpParserLimits) {                                                                                           \
                .target_max = 8192, .line_max = 16384, .head_max = 65536, .fields_max = 128, .chunk_ext_max = 4096,    \
        }

/* Valid until the parser is reset or freed. */
typedef struct HttpHead {
        const char *method;
        const char *authority; /* of CONNECT and of a target in absolute form (whose scheme is http), else NULL */
        const char *path;  /* as it came, starts with '/', not canonical; "" with CONNECT */
        const char *query; /* what follows '?', NULL where there is none */
        unsigned minor;    /* of HTTP/1.x */
        HttpField *fields; /* names and values as they came, blanks around values cut */
        size_t n_fields;
        uint64_t length; /* of the body; 0: no body; HTTP_LENGTH_UNKNOWN: chunked, or all until the end (CONNECT) */
        bool tunnel; /* CONNECT */
        bool keep_alive, expect_continue, upgrade_websocket;
} HttpHead;

/* First value with that name, or NULL. */
const char *http_head_get(const HttpHead *h, const char *name);

typedef struct HttpParser HttpParser;

int http_parser_new(const HttpParserLimits *limits, HttpParser **ret);
HttpParser *http_parser_free(HttpParser *p);
DEFINE_CLEANUP(HttpParser *, http_parser_free);
void http_parser_reset(HttpParser *p);

/*
 * Takes bytes of the head: 0 more is needed (all was consumed), 1 the head is complete, -EBADMSG it is to be refused
 * with *ret_status, -EPROTO somebody speaks HTTP/2 to us. Only as much is consumed as belongs to the head.
 */
int http_parser_feed_head(HttpParser *p, const void *data, size_t size, size_t *ret_consumed, unsigned *ret_status);
/* True where bytes of a head were seen that is not complete yet. */
bool http_parser_in_head(const HttpParser *p);
const HttpHead *http_parser_head(const HttpParser *p);

/* Takes bytes of the body and appends what they decode to: 0 more is needed, 1 the body is complete, -EBADMSG
 * malformed. Also 1, with nothing consumed, where there is no body. Decoded bytes are never more than bytes
 * consumed. */
int http_parser_feed_body(HttpParser *p, const void *data, size_t size, size_t *ret_consumed, HttpBuffer *out);
bool http_parser_complete(const HttpParser *p);
/* Of a tunnel: the client has sent all. */
void http_parser_end_tunnel(HttpParser *p);
