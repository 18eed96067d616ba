/* SPDX-License-Identifier: LGPL-2.1-or-later */
#undef NDEBUG

/* Proves which headers do not travel, in which spellings, and where a Location leads. */

#include "basic/string-util.h"
#include "forward-headers.h"
#include "links.h"

static const char definition[] =
        "{\"name\":\"demo\",\"base_url\":\"https://api.example.com/v2\","
        "\"allow\":[{\"methods\":[\"GET\"],\"paths\":[\"/*\"]}],"
        "\"auth\":{\"kind\":\"bearer\"}}";

static void leads(const Service *s, const char *location, const char *want) {
        _cleanup_free_ char *out = NULL;
        LinkBase base = { .service = s, .path = "/list/things", .authority = "127.0.0.1:8377", .port = 8377 };

        int r = rewrite_location(&base, location, &out);
        if (r != 0 || !streq_ptr(out, want))
                fprintf(stderr, "%s: %s (%s)\n", location, out, strerror(-r));
        assert(r == 0 && streq_ptr(out, want));
}

/* Where all services are one origin, none may send a client, which takes its token along, to another one. */
static void test_ways_to_us(const Service *s) {
        static const char *const tcp[] = {
                "http://127.0.0.1:8377/v1/run/result", "HTTP://localhost:8377/v1/services/other/x", "http://127.1:8377/",
                "http://2130706433:8377/", "http://[::1]:8377/", "http://0:8377", "http://evil.example:8377?x",
                "http://x@127.0.0.1:8377/", "http://evil.example@127.0.0.1/", "http://evil.example:8377#", "http://a:08377/",
                "http:/127.0.0.1:8377/x", "http:///127.0.0.1:8377/x", "http:v1/run", "https:/x", "/\\127.0.0.1:8377/x",
                "\\\\127.0.0.1:8377/x", "/\t/127.0.0.1:8377/x", "ht\ttp://127.0.0.1:8377/", "http://a:b/", "http://",
                "http:\\\\127.0.0.1:8377", "http://[::1:8377", "http://a:83:77/",
        };
        static const char *const local[] = { "http://agent-bridge/v1/run", "http://LOCALHOST/v1/run",
                                             "http://agent-bridge:/x", "http://agent-bridge:80/x",
                                             "http://agent-bridge" };
        _cleanup_free_ char *out = NULL;

        for (size_t i = 0; i < ELEMENTSOF(tcp); i++) {
                LinkBase base = { .service = s, .path = "", .authority = "127.0.0.1:8377", .port = 8377 };
                int r = rewrite_location(&base, tcp[i], &out);
                if (r != -EPERM)
                        fprintf(stderr, "%s: %i, %s\n", tcp[i], r, out);
                assert(r == -EPERM && !out);
        }
        for (size_t i = 0; i < ELEMENTSOF(local); i++) {
                LinkBase base = { .service = s, .path = "", .authority = "agent-bridge" };
                assert(rewrite_location(&base, local[i], &out) == -EPERM);
        }
        /* By whatever name the client calls us. */
        LinkBase named = { .service = s, .path = "", .authority = "bridge.example", .port = 8377 };
        assert(rewrite_location(&named, "http://Bridge.example/x", &out) == -EPERM);
        assert(rewrite_location(&named, "http://other.example/x", &out) == 0 && !out);
        /* A server of the agent's own, as command line clients start one to be told that somebody has signed in. */
        assert(rewrite_location(&named, "http://127.0.0.1:3000/callback?code=1", &out) == 0 && !out);

        assert(rewrite_link(&named,
                            "<http://127.0.0.1:8377/v1/run>; rel=next, </v2/x>; rel=\"next\"; title=\", </v1/run>\"",
                            &out) == 0);
        assert(streq(out, "<about:invalid>; rel=next, </v1/services/demo/x>; rel=\"next\"; "
                          "title=\", <https://api.example.com/v1/run>\""));
}

/* One origin for all services: a cookie must not get to another one's paths. */
static void test_cookies(const Service *s) {
        static const struct {
                const char *in, *out;
        } cases[] = {
                { "a=b", "a=b; Path=/v1/services/demo" },
                { "a=b; Path=/; Domain=example.com; Secure; HttpOnly; Max-Age=60",
                  "a=b; Path=/v1/services/demo; HttpOnly; Max-Age=60" },
                { "a=\"x y\";PATH=/v1;  dOmain =x;SameSite=None;;Partitioned; Expires=Wed, 01 Jan 2031 00:00:00 GMT",
                  "a=\"x y\"; Path=/v1/services/demo; Expires=Wed, 01 Jan 2031 00:00:00 GMT" },
                { "", "; Path=/v1/services/demo" },
                { "a=b;", "a=b; Path=/v1/services/demo" },
        };
        LinkBase base = { .service = s, .path = "/x", .authority = "127.0.0.1:8377", .port = 8377 };

        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                _cleanup_free_ char *out = NULL;

                assert(rewrite_cookie(&base, cases[i].in, &out) == 0);
                if (!streq(out, cases[i].out))
                        fprintf(stderr, "%s\n", out);
                assert(streq(out, cases[i].out));
        }
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
        leads(s, "items", "/v1/services/demo/list/items");
        leads(s, "?page=2", "/v1/services/demo/list/things?page=2");
        leads(s, "../x y", "/v1/services/demo/x%20y");
        leads(s, "//api.example.com/v2/x", "/v1/services/demo/x");
        /* What is relative is the upstream's, not ours. */
        leads(s, "/v20/items", "https://api.example.com/v20/items");
        leads(s, "/other?x#y", "https://api.example.com/other?x#y");
        leads(s, "/v1/services/other/x", "https://api.example.com/v1/services/other/x");
        leads(s, "../../v1/run/result", "https://api.example.com/v1/run/result");
        leads(s, "../../../../../v1/run", "https://api.example.com/v1/run");
        leads(s, "/v2/../v1/services/other", "https://api.example.com/v1/services/other");
        leads(s, "%2e%2e/%2E./x", "https://api.example.com/x");
        leads(s, "//evil.example/v2/x", "https://evil.example/v2/x");
        /* What a client would shorten. */
        leads(s, "https://api.example.com/v2/../../v1/run", NULL);
        leads(s, "https://api.example.com/v2/%2e%2e/%2e%2e/other/x", NULL);
        leads(s, "https://api.example.com/v2//x", NULL);
        leads(s, "file:///etc/passwd", NULL);
        leads(s, "urn:ietf:wg:oauth:2.0:oob", NULL);
        leads(s, "myapp://callback?code=1", NULL);
        leads(s, "http://api.example.com/v2/items", NULL);
        leads(s, "https://api.example.com:8443/v2/items", NULL);
        leads(s, "https://api.example.com.evil.example/v2/items", NULL);
        leads(s, "https://u:p@api.example.com/v2/items", NULL);
        leads(s, "https://evil.example/v2/items", NULL);
        leads(s, "", NULL);
        leads(s, "https://", NULL);
        test_ways_to_us(s);
        test_cookies(s);
        return 0;
}
