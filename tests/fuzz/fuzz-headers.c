/* SPDX-License-Identifier: LGPL-2.1-or-later */
#undef NDEBUG

/* Header lines of a request: which of them go on, and what is taken for a token. Whatever they are called, no header
 * that frames a message, names a host or carries a key goes on; tokens are few and bounded, and came from a slot. */

#include "auth.h"
#include "basic/string-util.h"
#include "forward-headers.h"
#include "token/run-token.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_name(const char *name) {
        static const char *const never[] = { "authorization", "connection", "content-length", "cookie", "expect",
                                             "forwarded", "host", "keep-alive", "proxy-authorization", "te", "trailer",
                                             "transfer-encoding", "upgrade", "x-api-key", "x-forwarded-host", "x-goog-api-key", "api-key",
                                             "x-amz-security-token", "x-original-url" };

        for (size_t i = 0; i < ELEMENTSOF(never); i++)
                if (http_field_name_folds_to(name, never[i]))
                        assert(!forward_request_header(name, NULL));
        static const char *const never_back[] = { "set-cookie", "transfer-encoding", "content-length", "connection",
                                                  "upgrade", "authorization", "alt-svc" };
        for (size_t i = 0; i < ELEMENTSOF(never_back); i++)
                if (http_field_name_folds_to(name, never_back[i]))
                        assert(!forward_response_header(name));
        static const char *const hop[] = { "connection", "content-length", "host", "proxy-authorization",
                                           "transfer-encoding" };
        for (size_t i = 0; i < ELEMENTSOF(hop); i++)
                if (http_field_name_folds_to(name, hop[i]))
                        assert(!proxy_header(name, NULL));
}

static void check_tokens(const HttpHead *h, bool proxy) {
        _cleanup_strv_free_ char **tokens = NULL;

        assert(auth_extract_tokens(h, proxy, &tokens) == 0);
        assert(strv_length(tokens) <= 8);
        for (char **t = tokens; t && *t; t++)
                assert(**t && strlen(*t) <= RUN_TOKEN_SIZE_MAX);
        bool slot = false;
        for (size_t i = 0; i < h->n_fields; i++)
                for (const char *const *s = auth_slots; *s; s++)
                        slot = slot || strcasecmp(h->fields[i].name, proxy ? "proxy-authorization" : *s) == 0;
        assert(slot || strv_length(tokens) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
        static const char head[] = "GET / HTTP/1.1\r\nHost: x\r\n";
        HttpParserLimits limits = HTTP_PARSER_LIMITS_DEFAULT;
        _cleanup_(http_parser_freep) HttpParser *p = NULL;
        size_t used;
        unsigned status;

        if (size > 65536)
                return 0;
        assert(http_parser_new(&limits, &p) == 0);
        assert(http_parser_feed_head(p, head, strlen(head), &used, &status) == 0);
        int r = http_parser_feed_head(p, data, size, &used, &status);
        if (r == 0) /* whoever mutates this need not find the end */
                r = http_parser_feed_head(p, "\r\n\r\n", 4, &used, &status);
        if (r <= 0)
                return 0;

        const HttpHead *h = http_parser_head(p);
        for (size_t i = 0; i < h->n_fields; i++) {
                check_name(h->fields[i].name);
                for (size_t k = 0; k < h->n_fields; k++)
                        if (http_value_has_token(h->fields[k].value, h->fields[i].name)) {
                                assert(!forward_request_header(h->fields[i].name, h->fields[k].value));
                                assert(!proxy_header(h->fields[i].name, h->fields[k].value));
                        }
        }
        check_tokens(h, false);
        check_tokens(h, true);
        return 0;
}
