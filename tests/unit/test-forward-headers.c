/* SPDX-License-Identifier: LGPL-2.1-or-later */
#undef NDEBUG

/* Proves which headers do not travel, in which spellings, and where a Location leads. */

#include "forward-headers.h"

static const char definition[] =
        "{\"name\":\"demo\",\"base_url\":\"https://api.example.com/v2\","
        "\"allow\":[{\"methods\":[\"GET\"],\"paths\":[\"/*\"]}],"
        "\"auth\":{\"kind\":\"bearer\"}}";

static void leads(const Service *s, const char *location, const char *want) {
        _cleanup_free_ char *out = NULL;

        assert(rewrite_location(s, location, &out) == 0);
        if (!streq_ptr(out, want))
                fprintf(stderr, "%s: %s\n", location, out);
        assert(streq_ptr(out, want));
}

int main(void) {
        static const char *const never[] = {
                "Host", "Connection", "Content-Length", "Transfer-Encoding", "TE", "Trailer", "Upgrade", "Expect",
                "Keep-Alive",
                "Proxy-Connection", "Proxy-Authorization", "HTTP2-Settings", "Authorization", "AUTHORIZATION",
                "X-Api-Key", "x-goog-api-key",
                "Api-Key", "X-Amz-Security-Token", "Cookie", "Forwarded", "X-Forwarded-For", "X-Forwarded-Anything",
                "X-Real-IP", "X-Original-URL",
                "X-Rewrite-URL", "X-HTTP-Method-Override", "X-Envoy-Original-Path", "Private-Token", "Via",
                /* and what a server behind CGI would read as such */
                "X_Api_Key", "X-Api_Key", "Content_Length", "Transfer_Encoding", "X_Forwarded_For", "Any_Name",
        };
        static const char *const pass[] = { "Accept", "Content-Type", "User-Agent", "anthropic-version",
                                            "anthropic-beta", "X-Initiator", "OpenAI-Organization",
                                            "X-Request-Id", "Idempotency-Key", "If-None-Match", "Range",
                                            "Git-Protocol", "Content-Encoding",
                                            "X-Forward", "Origin" };

        for (size_t i = 0; i < ELEMENTSOF(never); i++) {
                if (forward_request_header(never[i], NULL))
                        fprintf(stderr, "%s\n", never[i]);
                assert(!forward_request_header(never[i], NULL));
        }
        for (size_t i = 0; i < ELEMENTSOF(pass); i++)
                assert(forward_request_header(pass[i], NULL));
        assert(!forward_request_header("X-Hop", "close, x-hop"));
        assert(forward_request_header("X-Hop", "close, x-hopper"));

        assert(!forward_response_header("Set-Cookie"));
        assert(!forward_response_header("SET_COOKIE"));
        assert(!forward_response_header("Transfer-Encoding"));
        assert(!forward_response_header("Content-Length"));
        assert(!forward_response_header("Authorization"));
        assert(!forward_response_header("Alt-Svc"));
        assert(forward_response_header("Content-Type"));
        assert(forward_response_header("ETag"));
        assert(forward_response_header("WWW-Authenticate"));
        assert(forward_response_header("X-RateLimit-Remaining"));

        _cleanup_(service_unrefp) Service *s = NULL;
        _cleanup_free_ char *error = NULL;
        int r = service_parse(definition, strlen(definition), 0, &s, &error);
        if (r < 0)
                fprintf(stderr, "%s\n", error);
        assert(r == 0);
        leads(s, "https://api.example.com/v2/items?page=2#x", "/v1/services/demo/items?page=2#x");
        leads(s, "https://API.example.com:443/v2/items", "/v1/services/demo/items");
        leads(s, "/v2/items", "/v1/services/demo/items");
        leads(s, "/v2", "/v1/services/demo");
        leads(s, "/v2?x", "/v1/services/demo?x");
        leads(s, "/v20/items", NULL);
        leads(s, "/other", NULL);
        leads(s, "items", NULL);
        leads(s, "//evil.example/v2/x", NULL);
        leads(s, "/\\evil.example/v2/x", NULL);
        leads(s, "http://api.example.com/v2/items", NULL);
        leads(s, "https://api.example.com:8443/v2/items", NULL);
        leads(s, "https://api.example.com.evil.example/v2/items", NULL);
        leads(s, "https://u:p@api.example.com/v2/items", NULL);
        leads(s, "https://evil.example/v2/items", NULL);
        leads(s, "", NULL);
        leads(s, "https://", NULL);
        return 0;
}
