/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* See http-parser.h. */

#include <llhttp.h>
#include <strings.h>

#include "http/http-parser.h"
#include "http/http-path.h"

/* How far the scanner is in the line that it reads. */
typedef enum ScanState {
        SCAN_REQUEST_LINE,
        SCAN_LINE_START,
        SCAN_NAME,
        SCAN_VALUE,
        SCAN_CR, /* a CR was seen, only LF may follow */
} ScanState;

struct HttpParser {
        HttpParserLimits limits;
        llhttp_t llhttp;

        HttpBuffer head_bytes;
        ScanState scan, scan_before_cr;
        size_t line_start; /* of the line that is being scanned */
        unsigned n_lines, n_blanks;
        bool head_complete, message_complete, failed;

        HttpHead head;
        size_t fields_allocated;
        char *method_text, *target;
        size_t target_len;
        struct HttpSpan {
                char *name, *value;
                size_t name_len, value_len;
        } *spans;
        size_t n_spans;
        bool llhttp_head_complete, in_value;

        HttpBuffer *body_out;
        size_t overhead; /* bytes of chunk extensions and trailers so far */
        int body_error;
};

static const char *const methods_allowed[] = { "GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS" };

const char *http_head_get(const HttpHead *h, const char *name) {
        for (size_t i = 0; i < h->n_fields; i++)
                if (strcasecmp(h->fields[i].name, name) == 0)
                        return h->fields[i].value;
        return NULL;
}

/* Callbacks of llhttp. The head arrives in one piece, so that each span of it comes in one call; a second call for
 * the same thing would mean that llhttp sees a fold that the scanner did not, and is refused. */

static int on_url(llhttp_t *l, const char *at, size_t length) {
        HttpParser *p = l->data;

        if (p->target)
                return HPE_USER;
        p->target = (char *) at;
        p->target_len = length;
        return 0;
}

static int overhead_add(HttpParser *p, size_t n) {
        p->overhead += n;
        return p->overhead > p->limits.chunk_ext_max ? HPE_USER : 0;
}

static int on_header_field(llhttp_t *l, const char *at, size_t length) {
        HttpParser *p = l->data;

        if (p->llhttp_head_complete)
                return overhead_add(p, length); /* may be a piece: its line is counted when it ends */
        if (p->n_spans > 0 && !p->in_value)
                return HPE_USER;
        if (p->n_spans >= p->n_lines)
                return HPE_USER;
        p->spans[p->n_spans++] = (struct HttpSpan) { .name = (char *) at, .name_len = length };
        p->in_value = false;
        return 0;
}

static int on_header_value(llhttp_t *l, const char *at, size_t length) {
        HttpParser *p = l->data;

        if (p->llhttp_head_complete)
                return overhead_add(p, length);
        if (p->n_spans == 0)
                return HPE_USER;

        struct HttpSpan *s = p->spans + p->n_spans - 1;
        if (s->value)
                return HPE_USER;
        s->value = (char *) at;
        s->value_len = length;
        return 0;
}

static int on_header_value_complete(llhttp_t *l) {
        HttpParser *p = l->data;

        if (p->llhttp_head_complete)
                return overhead_add(p, strlen(": \r\n"));
        p->in_value = true;
        return 0;
}

static int on_headers_complete(llhttp_t *l) {
        HttpParser *p = l->data;

        p->llhttp_head_complete = true;
        /* We never switch protocols: what follows the head is the body that the head announces, or the next request. */
        l->upgrade = 0;
        return 0;
}

static int on_chunk_extension(llhttp_t *l, const char *at, size_t length) {
        return overhead_add(l->data, length);
}

static int on_chunk_extension_complete(llhttp_t *l) {
        return overhead_add(l->data, 1);
}

static int on_body(llhttp_t *l, const char *at, size_t length) {
        HttpParser *p = l->data;

        /* No body byte can be there before feed_body(): the head was given to llhttp exactly. */
        if (!p->body_out)
                return HPE_USER;
        p->body_error = http_buffer_append(p->body_out, at, length);
        return p->body_error < 0 ? HPE_USER : 0;
}

static int on_message_complete(llhttp_t *l) {
        HttpParser *p = l->data;

        p->message_complete = true;
        return HPE_PAUSED; /* the next request waits until this one is answered */
}

static const llhttp_settings_t parser_settings = {
        .on_url = on_url,
        .on_header_field = on_header_field,
        .on_header_value = on_header_value,
        .on_header_value_complete = on_header_value_complete,
        .on_headers_complete = on_headers_complete,
        .on_chunk_extension_name = on_chunk_extension,
        .on_chunk_extension_value = on_chunk_extension,
        .on_chunk_extension_name_complete = on_chunk_extension_complete,
        .on_chunk_extension_value_complete = on_chunk_extension_complete,
        .on_body = on_body,
        .on_message_complete = on_message_complete,
};

int http_parser_new(const HttpParserLimits *limits, HttpParser **ret) {
        HttpParser *p = calloc(1, sizeof(HttpParser));
        if (!p)
                return -ENOMEM;

        p->limits = *limits;
        http_parser_reset(p);
        *ret = p;
        return 0;
}

void http_parser_reset(HttpParser *p) {
        http_buffer_done(&p->head_bytes);
        free(p->head.fields);
        free(p->spans);
        *p = (HttpParser) { .limits = p->limits };
        llhttp_init(&p->llhttp, HTTP_REQUEST, &parser_settings); /* all lenient flags are off */
        p->llhttp.data = p;
}

HttpParser *http_parser_free(HttpParser *p) {
        if (!p)
                return NULL;

        http_buffer_done(&p->head_bytes);
        free(p->head.fields);
        free(p->spans);
        return mfree(p);
}

bool http_parser_in_head(const HttpParser *p) {
        return !p->head_complete && p->head_bytes.size > 0;
}

const HttpHead *http_parser_head(const HttpParser *p) {
        assert(p->head_complete);
        return &p->head;
}

bool http_parser_complete(const HttpParser *p) {
        return p->message_complete;
}

/* Looks at one byte of the head at offset POS of it. 1: that was the last one. Negative: the status to refuse
 * with, negated. */
static int scan_byte(HttpParser *p, unsigned char c, size_t pos) {
        if (pos >= p->limits.head_max)
                return -431;

        if (p->scan == SCAN_CR) {
                if (c != '\n')
                        return -400;

                bool empty = pos - p->line_start == 1; /* just the CR */
                p->line_start = pos + 1;
                if (empty)
                        return p->scan_before_cr == SCAN_LINE_START ? 1 : -400;
                p->scan = SCAN_LINE_START;
                return 0;
        }

        if (c == '\r') {
                if (p->scan == SCAN_NAME)
                        return -400; /* a line without colon */
                p->scan_before_cr = p->scan;
                p->scan = SCAN_CR;
                return 0;
        }

        /* LF alone, NUL, other control characters; tab only inside values. */
        if ((c < 0x20 && (c != '\t' || p->scan != SCAN_VALUE)) || c == 0x7f)
                return -400;

        switch (p->scan) {
        case SCAN_REQUEST_LINE:
                /* Exactly two blanks: llhttp would skip more. */
                if (c >= 0x80 || (c == ' ' && ++p->n_blanks > 2))
                        return -400;
                if (pos > p->limits.target_max + strlen("OPTIONS  HTTP/1.1"))
                        return -414;
                return 0;

        case SCAN_LINE_START:
                if (++p->n_lines > p->limits.fields_max)
                        return -431;
                p->scan = SCAN_NAME;
                if (!http_token_char(c)) /* obsolete folding begins with a blank */
                        return -400;
                return 0;

        case SCAN_NAME:
                if (c == ':')
                        p->scan = SCAN_VALUE;
                else if (!http_token_char(c))
                        return -400;
                else if (pos - p->line_start >= 256)
                        return -431;
                return 0;

        case SCAN_VALUE:
                return pos - p->line_start > p->limits.line_max ? -431 : 0;

        default:
                assert(false);
                return -400;
        }
}

/* How many of the bytes from I on scan_byte() would let pass as plain parts of a value, which are most of a head. */
static size_t scan_plain(const HttpParser *p, const unsigned char *d, size_t size, size_t i, size_t base) {
        size_t pos = base + i, line_end = p->line_start + p->limits.line_max;

        if (p->scan != SCAN_VALUE || pos > line_end || pos >= p->limits.head_max)
                return i;
        size = MIN(size, i + MIN(line_end + 1 - pos, p->limits.head_max - pos));
        while (i < size && d[i] >= 0x20 && d[i] != 0x7f)
                i++;
        return i;
}

/* "PRI * HTTP/2.0" opens a connection of HTTP/2 with prior knowledge. */
static bool is_h2_preface(const HttpBuffer *b) {
        static const char preface[] = "PRI * HTTP/2.0\r\n";

        return b->size >= strlen(preface) && memcmp(http_buffer_data(b), preface, strlen(preface)) == 0;
}

static int head_content_length(HttpParser *p, const struct HttpSpan *s, uint64_t *ret) {
        uint64_t v = 0;

        /* One blank after the colon, digits, nothing else: all other forms are read differently by somebody. */
        const char *after = s->name + s->name_len + 1;
        if (s->value_len == 0 || s->value_len > 19 || s->value[s->value_len] != '\r' ||
            !(s->value == after || (s->value == after + 1 && *after == ' ')))
                return -400;
        for (size_t i = 0; i < s->value_len; i++) {
                if (s->value[i] < '0' || s->value[i] > '9')
                        return -400;
                v = v * 10 + (uint64_t) (s->value[i] - '0');
        }
        if (v > INT64_MAX)
                return -400;
        *ret = v;
        return 0;
}

static bool span_is(const struct HttpSpan *s, const char *name) {
        return s->name_len == strlen(name) && strncasecmp(s->name, name, s->name_len) == 0;
}

static bool host_is_valid(const char *s) {
        size_t n = strlen(s);

        return n > 0 && n <= 259 &&
               strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_:[]") == n;
}

/* The target into its parts: origin form, for a proxy also the two others. 0 or the negated status. */
static int head_target(HttpParser *p) {
        HttpHead *h = &p->head;
        char *path = p->target;

        if (p->target_len > p->limits.target_max)
                return -414;
        p->target[p->target_len] = 0;

        h->tunnel = streq(h->method, "CONNECT");
        if (h->tunnel) {
                /* A server that is no proxy does not know the method; what it sees is a target that is none. */
                if (!p->limits.proxy || !host_is_valid(p->target))
                        return -400;
                h->authority = p->target;
                h->path = "";
                return 0;
        }

        const char *rest = startswith(p->target, "http://");
        if (p->limits.proxy && rest) {
                /* Room for the end of the authority: it moves over the scheme. */
                size_t n = strcspn(rest, "/?#");

                memmove(p->target, rest, n);
                path = p->target + (rest - p->target) + n;
                p->target[n] = 0;
                h->authority = p->target;
                if (!host_is_valid(h->authority))
                        return -400;
        }
        if (path[0] != '/')
                return -400; /* absolute, authority or asterisk form; a proxy's client that leaves the path off */

        char *q = strchr(path, '?');
        if (q)
                *q++ = 0;
        if (strchr(path, '#') || (q && !http_query_is_valid(q)))
                return -400;
        h->path = path;
        h->query = q;
        return 0;
}

/* Checks what llhttp found and fills p->head. 0 or the negated status. */
static int head_finish(HttpParser *p) {
        HttpHead *h = &p->head;
        unsigned n_host = 0, n_length = 0, n_coding = 0;

        if (p->llhttp.http_major != 1 || p->llhttp.http_minor > 1)
                return -505;
        h->minor = p->llhttp.http_minor;

        h->method = llhttp_method_name(p->llhttp.method);
        bool known = false;
        for (size_t i = 0; i < ELEMENTSOF(methods_allowed); i++)
                known = known || streq(h->method, methods_allowed[i]);

        if (!p->target || p->target_len == 0)
                return -400;
        int k = head_target(p);
        if (k < 0)
                return k;
        if (!known && !h->tunnel)
                return -501;

        h->fields = calloc(p->n_spans ?: 1, sizeof(HttpField));
        if (!h->fields)
                return -500;

        for (size_t i = 0; i < p->n_spans; i++) {
                struct HttpSpan *s = p->spans + i;
                int r;

                if (span_is(s, "content-length")) {
                        n_length++;
                        r = head_content_length(p, s, &h->length);
                        if (r < 0)
                                return r;
                }

                while (s->value_len > 0 && (s->value[0] == ' ' || s->value[0] == '\t'))
                        s->value++, s->value_len--;
                while (s->value_len > 0 && (s->value[s->value_len - 1] == ' ' || s->value[s->value_len - 1] == '\t'))
                        s->value_len--;
        }

        /* Terminating comes after all look-ups in the raw bytes. */
        for (size_t i = 0; i < p->n_spans; i++) {
                struct HttpSpan *s = p->spans + i;

                s->name[s->name_len] = 0;
                if (s->value_len > 0)
                        s->value[s->value_len] = 0;
                else
                        s->value = (char *) ""; /* where an empty one "is" may well be the next line */
                h->fields[h->n_fields++] = (HttpField) { .name = s->name, .value = s->value };

                if (span_is(s, "transfer-encoding")) {
                        n_coding++;
                        if (strcasecmp(s->value, "chunked") != 0)
                                return -400;
                } else if (span_is(s, "host")) {
                        n_host++;
                        if (!host_is_valid(s->value))
                                return -400;
                } else if (span_is(s, "expect")) {
                        if (strcasecmp(s->value, "100-continue") != 0)
                                return -417;
                        h->expect_continue = true;
                } else if (span_is(s, "upgrade")) {
                        if (http_value_has_token(s->value, "websocket"))
                                h->upgrade_websocket = true;
                }
        }

        if (n_length > 1 || n_coding > 1 || (n_length > 0 && n_coding > 0))
                return -400;
        if (n_host > 1 || (n_host == 0 && h->minor == 1))
                return -400;
        if (n_coding > 0) {
                if (h->minor == 0)
                        return -400;
                h->length = HTTP_LENGTH_UNKNOWN;
        }

        /* Without a body there is nothing to wait for, and HTTP/1.0 does not know the word. */
        if (h->length == 0 || h->minor == 0)
                h->expect_continue = false;
        h->keep_alive = h->minor == 1;
        for (size_t i = 0; i < h->n_fields; i++)
                if (strcasecmp(h->fields[i].name, "connection") == 0 &&
                    http_value_has_token(h->fields[i].value, "close"))
                        h->keep_alive = false;

        /* Both readers must agree on whether a body follows. */
        if (p->message_complete != (h->length == 0))
                return -400;

        /* What follows CONNECT is no body, and nothing may claim to be one. */
        if (h->tunnel) {
                if (n_length > 0 || n_coding > 0)
                        return -400;
                h->length = HTTP_LENGTH_UNKNOWN;
                h->keep_alive = h->expect_continue = h->upgrade_websocket = false;
                p->message_complete = false;
        }
        return 0;
}

static int head_parse(HttpParser *p) {
        p->spans = calloc(p->n_lines ?: 1, sizeof(struct HttpSpan));
        if (!p->spans)
                return -500;

        /* The bytes stay where they are from now on: spans point into them. */
        const char *data = http_buffer_data(&p->head_bytes);
        llhttp_errno_t e = llhttp_execute(&p->llhttp, data, p->head_bytes.size);

        if (e == HPE_INVALID_VERSION)
                return -505;
        if (e == HPE_INVALID_METHOD)
                return -501;
        if (e != HPE_OK && !(e == HPE_PAUSED && p->message_complete))
                return -400;
        if (!p->llhttp_head_complete)
                return -400;
        if (e == HPE_PAUSED)
                llhttp_resume(&p->llhttp);

        int k = head_finish(p);
        p->spans = mfree(p->spans);
        return k;
}

int http_parser_feed_head(HttpParser *p, const void *data, size_t size, size_t *ret_consumed, unsigned *ret_status) {
        const unsigned char *d = data;
        size_t base = p->head_bytes.size, i;
        int r = 0;

        assert(!p->head_complete);
        assert(!p->failed);

        for (i = 0; i < size && r == 0;) {
                size_t plain = scan_plain(p, d, size, i, base);

                if (plain > i)
                        i = plain;
                else {
                        r = scan_byte(p, d[i], base + i);
                        i++;
                }
        }

        /* A complete one stays for as long as its request, which may be a stream of hours. */
        if ((r > 0 ? http_buffer_append_last : http_buffer_append)(&p->head_bytes, data, i) < 0)
                r = -500;
        else if (is_h2_preface(&p->head_bytes)) {
                p->failed = true;
                return -EPROTO;
        } else if (r > 0)
                r = MIN(head_parse(p), 0);

        if (r == 0 && !p->llhttp_head_complete) {
                *ret_consumed = i;
                return 0;
        }

        if (r < 0) {
                p->failed = true;
                *ret_status = (unsigned) -r;
                return -EBADMSG;
        }

        p->head_complete = true;
        *ret_consumed = i;
        return 1;
}

int http_parser_feed_body(HttpParser *p, const void *data, size_t size, size_t *ret_consumed, HttpBuffer *out) {
        assert(p->head_complete);
        assert(!p->failed);

        if (p->message_complete) {
                *ret_consumed = 0;
                return 1;
        }
        if (p->head.tunnel) {
                int r = http_buffer_append(out, data, size);

                *ret_consumed = r < 0 ? 0 : size;
                return r < 0 ? -EBADMSG : 0;
        }
        if (size == 0) {
                *ret_consumed = 0;
                return 0;
        }

        p->body_out = out;
        llhttp_errno_t e = llhttp_execute(&p->llhttp, data, size);
        p->body_out = NULL;

        if (e == HPE_PAUSED && p->message_complete) {
                *ret_consumed = (size_t) (llhttp_get_error_pos(&p->llhttp) - (const char *) data);
                assert(*ret_consumed <= size);
                return 1;
        }
        if (e != HPE_OK) {
                p->failed = true;
                return p->body_error < 0 ? p->body_error : -EBADMSG;
        }
        *ret_consumed = size;
        return 0;
}

void http_parser_end_tunnel(HttpParser *p) {
        assert(p->head_complete && p->head.tunnel);
        p->message_complete = true;
}
