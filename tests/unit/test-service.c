/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * Proves that a service definition is read to the last byte (unknown keys, odd URLs, reserved headers are
 * refused with the place named) and that matching denies whatever no rule names.
 */

#undef NDEBUG

#include "basic/string-util.h"
#include "service/service.h"

#define GOOD                                                                                       \
        "{\"name\":\"market-data\",\n\"base_url\":\"https://localhost:8443/api\",\n"                                \
        "\"allow\":[{\"methods\":[\"GET\"],\"paths\":[\"/prices/*\",\"/v1/*/list\",\"/exact\",\"/f-*.csv\"]},\n"    \
        "{\"methods\":[\"POST\",\"PUT\"],\"paths\":[\"/orders\"]}],\n\"auth\":{\"kind\":\"bearer\"}}"

static Service *parse_ok(const char *text) {
        _cleanup_free_ char *error = NULL;
        Service *s = NULL;
        int r = service_parse(text, strlen(text), 0, &s, &error);

        if (r < 0)
                fprintf(stderr, "%s: %s\n", text, strempty(error));
        assert(r == 0 && s);
        return s;
}

static void parse_bad(const char *text, const char *expected) {
        _cleanup_free_ char *error = NULL;
        Service *s = NULL;
        int r = service_parse(text, strlen(text), 0, &s, &error);

        if (r != -EINVAL || !error || !strstr(error, expected))
                fprintf(stderr, "%s\n  gave %d: %s\n  expected: %s\n", text, r, strempty(error), expected);
        assert(r == -EINVAL && !s);
        assert(error && strstr(error, expected));
}

static void test_parse(void) {
        _cleanup_(service_unrefp) Service *s = parse_ok(GOOD), *again = NULL;
        _cleanup_free_ char *json = NULL, *json2 = NULL;

        assert(streq(s->name, "market-data") && !s->description);
        assert(streq(s->base_url.host, "localhost") && s->base_url.port == 8443 && streq(s->base_url.path, "/api"));
        assert(streq(s->base_url.text, "https://localhost:8443/api") && s->base_url.tls);
        assert(s->n_allow == 2 && s->auth.kind == SERVICE_AUTH_BEARER);
        assert(s->connect_usec == 10 * USEC_PER_SEC && s->idle_usec == 600 * USEC_PER_SEC && s->body_max == 64 << 20);

        assert(service_to_json(s, &json) == 0);
        again = parse_ok(json);
        assert(service_to_json(again, &json2) == 0);
        assert(streq(json, json2));
}

static void test_auth(void) {
        _cleanup_(service_unrefp) Service *s = NULL, *h = NULL, *b = NULL;

#define WITH_AUTH(a) "{\"name\":\"x\",\"base_url\":\"https://h\",\"allow\":[],\n\"auth\":" a "}"
        s = parse_ok(WITH_AUTH("{\"kind\":\"oauth2-client-credentials\",\"token_url\":\"https://idp.example/token\","
                               "\"client_id\":\"agent\",\"scope\":\"prices:read\",\"client_auth\":\"post\"}"));
        assert(s->auth.kind == SERVICE_AUTH_OAUTH2_CLIENT_CREDENTIALS && s->auth.client_auth_post);
        assert(streq(s->auth.token_url.text, "https://idp.example/token") && streq(s->auth.client_id, "agent"));
        assert(streq(s->auth.scope, "prices:read") && !s->auth.audience);

        h = parse_ok(WITH_AUTH("{\"kind\":\"header\",\"name\":\"X-Api-Key\"}"));
        assert(h->auth.kind == SERVICE_AUTH_HEADER && streq(h->auth.name, "x-api-key"));
        b = parse_ok(WITH_AUTH("{\"kind\":\"basic\",\"username\":\"oauth2\"}"));
        assert(b->auth.kind == SERVICE_AUTH_BASIC && streq(b->auth.username, "oauth2"));

        parse_bad(WITH_AUTH("{\"kind\":\"magic\"}"), "line 2: auth.kind: must be one of");
        parse_bad(WITH_AUTH("{\"kind\":1}"), "auth.kind: must be a string");
        parse_bad(WITH_AUTH("{}"), "auth.kind: is missing");
        parse_bad(WITH_AUTH("[]"), "auth: must be an object");
        parse_bad(WITH_AUTH("{\"kind\":\"bearer\",\"token\":\"x\"}"), "line 2: auth.token: unknown key");
        parse_bad(WITH_AUTH("{\"kind\":\"header\"}"), "auth.name: is missing");
        parse_bad(WITH_AUTH("{\"kind\":\"header\",\"name\":\"Host\"}"), "auth.name: is a header that the bridge");
        parse_bad(WITH_AUTH("{\"kind\":\"header\",\"name\":\"transfer-Encoding\"}"), "auth.name: is a header that");
        parse_bad(WITH_AUTH("{\"kind\":\"header\",\"name\":\"x_api\"}"), "auth.name: must be a header name");
        parse_bad(WITH_AUTH("{\"kind\":\"header\",\"name\":\"a\\r\\nb\"}"), "auth.name: must be a header name");
        parse_bad(WITH_AUTH("{\"kind\":\"basic\",\"username\":\"a:b\"}"), "auth.username: must not hold a colon");
        parse_bad(WITH_AUTH("{\"kind\":\"oauth2-client-credentials\",\"client_id\":\"x\"}"),
                  "auth.token_url: is missing");
        parse_bad(WITH_AUTH("{\"kind\":\"oauth2-client-credentials\",\"token_url\":\"http://localhost/t\","
                            "\"client_id\":\"x\"}"),
                  "auth.token_url: must start with https://");
        parse_bad(WITH_AUTH("{\"kind\":\"oauth2-client-credentials\",\"token_url\":\"https://h/t\",\"client_id\":\"x\","
                            "\"client_auth\":\"jwt\"}"),
                  "auth.client_auth: must be");
        parse_bad(WITH_AUTH("{\"kind\":\"oauth2-client-credentials\",\"token_url\":\"https://h/"
                            "t\",\"client_id\":\"x\\n\"}"),
                  "auth.client_id: must be");
#undef WITH_AUTH
}

static void test_refusals(void) {
        parse_bad("", "");
        parse_bad("[]", "must be an object");
        parse_bad("{}", "is missing");
        parse_bad("{\"name\":\"../x\"}", "line 1: name: must be a name");
        parse_bad("{\"name\":\"a\",\"name\":\"b\"}", "name: appears twice");
        parse_bad("{\"name\":\"x\",\n\"colour\":1}", "line 2: colour: unknown key");
        parse_bad("{\"name\":\"x\",\"base_url\":\"https://h\",\"allow\":[{}],\"auth\":{\"kind\":\"none\"}}",
                  "allow[0].methods: is missing");
        parse_bad("{\"name\":\"x\",\"base_url\":\"https://h\",\"allow\":[{\"methods\":[\"get\"],\"paths\":[]}],"
                  "\"auth\":{\"kind\":\"none\"}}",
                  "allow[0].methods: must be methods in upper case");
        parse_bad("{\"name\":\"x\",\"base_url\":\"https://h\",\"allow\":[{\"methods\":[\"CONNECT\"],\"paths\":[]}],"
                  "\"auth\":{\"kind\":\"none\"}}",
                  "allow[0].methods: must not hold");
        parse_bad("{\"name\":\"x\",\"base_url\":\"https://h\",\"auth\":{\"kind\":\"none\"}}", "allow: is missing");
        parse_bad("{\"name\":\"x\",\"base_url\":\"https://h\",\"allow\":null,\"auth\":{\"kind\":\"none\"}}",
                  "allow: must be an array");
        parse_bad("{\"name\":\"x\",\"base_url\":\"https://h\",\"allow\":[],\"auth\":{\"kind\":\"none\"},\n"
                  "\"timeouts\":{\"total\":\"1s\"}}",
                  "line 2: timeouts.total: unknown key");
        parse_bad("{\"name\":\"x\",\"base_url\":\"https://h\",\"allow\":[],\"auth\":{\"kind\":\"none\"},"
                  "\"timeouts\":{\"idle\":0}}",
                  "timeouts.idle: must be more than zero");
        parse_bad("{\"name\":\"x\",\"base_url\":\"https://h\",\"allow\":[],\"auth\":{\"kind\":\"none\"},"
                  "\"limits\":{\"body\":\"lots\"}}",
                  "limits.body: must be a size");

        static const char *const paths[] = {
                "",        "x",      "/a/../b",  "/./a", "/a//b", "/a?b",   "/a#b", "/a b",   "/a\\\\b",
                "/..;x/a", "/a\\nb", "/\\u00e4", "/%zz", "/%2",   "/a%2fb", "*",    "/a\\tb",
        };
        for (size_t i = 0; i < ELEMENTSOF(paths); i++) {
                _cleanup_free_ char *t =
                        strprintf("{\"name\":\"x\",\"base_url\":\"https://h\",\"auth\":{\"kind\":\"none\"},"
                                  "\"allow\":[{\"methods\":[\"GET\"],\"paths\":[\"%s\"]}]}",
                                  paths[i]);
                parse_bad(t, "allow[0].paths: must be paths");
        }
}

static void test_urls(void) {
        static const char *const good[][2] = {
                { "https://api.example.com", "https://api.example.com" },
                { "https://API.Example.com/V1/", "https://api.example.com/V1/" },
                { "https://h:443/x", "https://h/x" },
                { "https://10.0.0.1:8443", "https://10.0.0.1:8443" },
                { "https://[::1]:8443/x", "https://[::1]:8443/x" },
                { "https://[2001:DB8::1]", "https://[2001:db8::1]" },
                { "https://xn--mnchen-3ya.example/", "https://xn--mnchen-3ya.example/" },
        };
        static const char *const bad[] = {
                "",
                "https://",
                "https:///x",
                "http://api.example.com",
                "HTTPS://h",
                "ftp://h",
                "file:///etc/passwd",
                "//h",
                "https:/h",
                "https://user@h",
                "https://user:pw@h",
                "https://h@evil",
                "https://h:0",
                "https://h:65536",
                "https://h:",
                "https://h:+1",
                "https://h:08",
                "https://h:80:80",
                "https://h/?q=1",
                "https://h?q",
                "https://h#f",
                "https://h/#f",
                "https://h/a/../b",
                "https://h/a/..",
                "https://h/.",
                "https://h//x",
                "https://h/%2e%2e/",
                "https://h/a b",
                "https://h/a\nb",
                "https://h\\x",
                "https://h%00",
                "https://h\r\nX: y",
                "https://-h",
                "https://h-",
                "https://h..x",
                "https://h.",
                "https://.h",
                "https://h_x",
                "https://2130706433",
                "https://127.1",
                "https://0x7f000001",
                "https://0x7f.1",
                "https://a.0x1",
                "https://0177.0.0.1",
                "https://127.0.0.1.1",
                "https://256.0.0.1",
                "https://[::1",
                "https://[::1]x",
                "https://[fe80::1%25eth0]",
                "https://[]",
                "https://\xc3\xa4",
        };

        for (size_t i = 0; i < ELEMENTSOF(good); i++) {
                ServiceUrl u = {};

                assert(service_url_parse(good[i][0], false, &u, NULL) == 0);
                assert(streq(u.text, good[i][1]));
                service_url_done(&u);
        }
        for (size_t i = 0; i < ELEMENTSOF(bad); i++) {
                _cleanup_free_ char *reason = NULL;
                ServiceUrl u = {};
                int r = service_url_parse(bad[i], false, &u, &reason);

                if (r != -EINVAL)
                        fprintf(stderr, "accepted: %s\n", bad[i]);
                assert(r == -EINVAL && reason && !u.text);
        }

        /* Plain http is for loopback, and only where it was asked for. */
        ServiceUrl u = {};
        assert(service_url_parse("http://127.0.0.1:8080/x", true, &u, NULL) == 0 && !u.tls && u.port == 8080);
        service_url_done(&u);
        assert(service_url_parse("http://[::1]:8080/x", true, &u, NULL) == 0);
        service_url_done(&u);
        assert(service_url_parse("http://api.example.com/", true, &u, NULL) == -EINVAL);
        assert(service_url_parse("http://localhost.example.com/", true, &u, NULL) == -EINVAL);
        assert(service_url_parse("http://127.0.0.1:8080/x", false, &u, NULL) == -EINVAL);
}

static void test_match(void) {
        _cleanup_(service_unrefp) Service *s = parse_ok(GOOD), *none = NULL;

        assert(service_match(s, "GET", "/prices/stocks", NULL));
        assert(service_match(s, "GET", "/prices/a/b/c", NULL));
        assert(service_match(s, "GET", "/prices/", NULL));
        assert(!service_match(s, "GET", "/prices", NULL));
        assert(!service_match(s, "GET", "/pricesx", NULL));
        assert(!service_match(s, "GET", "/Prices/x", NULL));
        assert(!service_match(s, "POST", "/prices/x", NULL));
        assert(!service_match(s, "get", "/prices/x", NULL));
        assert(!service_match(s, "HEAD", "/prices/x", NULL));
        assert(!service_match(s, "", "/prices/x", NULL));
        assert(service_match(s, "GET", "/v1/abc/list", NULL));
        assert(!service_match(s, "GET", "/v1/a/b/list", NULL));
        assert(!service_match(s, "GET", "/v1//list", NULL));
        assert(service_match(s, "GET", "/exact", NULL));
        assert(!service_match(s, "GET", "/exact/", NULL));
        assert(!service_match(s, "GET", "/exactly", NULL));
        assert(service_match(s, "GET", "/f-.csv", NULL) && service_match(s, "GET", "/f-1.csv.csv", NULL));
        assert(!service_match(s, "GET", "/f-1.csv/x", NULL) && !service_match(s, "GET", "/f-1.csvx", NULL));
        assert(service_match(s, "PUT", "/orders", NULL));
        assert(!service_match(s, "GET", "/orders", NULL));

        /* Not canonical: never. */
        static const char *const bad[] = {
                "",
                "prices/x",
                "/prices/../orders",
                "/prices/..",
                "/prices/./x",
                "/prices//x",
                "/prices/..;a=1/x",
                "/prices/x?y",
                "/prices/x#y",
                "/prices/x y",
                "/prices/\\x",
                "/prices/\x01",
                "/prices/\xc3\xa4",
                "//prices/x",
        };
        for (size_t i = 0; i < ELEMENTSOF(bad); i++)
                assert(!service_match(s, "GET", bad[i], NULL));

        none = parse_ok("{\"name\":\"x\",\"base_url\":\"https://h\",\"allow\":[],\"auth\":{\"kind\":\"none\"}}");
        assert(!service_match(none, "GET", "/", NULL));
        assert(!service_match(none, "GET", "/x", NULL));

        assert(service_path_match("/*", "/") && service_path_match("/*", "/a/b"));
        assert(service_path_match("/", "/") && !service_path_match("/", "/a"));
        assert(service_path_match("/a*b*c", "/aXXbYYc") && !service_path_match("/a*b*c", "/aXXbYY"));
        assert(!service_path_match("/*/x", "//x"));
        /* A pattern that is made to be slow. */
        _cleanup_free_ char *slow = NULL, *path = malloc(8001);
        slow = strdup("/*a*a*a*a*a*a*a*a*a*a*a*a*a*a*b");
        memset(path, 'a', 8000);
        path[0] = '/';
        path[8000] = 0;
        assert(!service_path_match(slow, path));
}

static void test_headers(void) {
        assert(header_name_is_safe("x-api-key") && !header_name_is_safe("x_api") && !header_name_is_safe("") &&
               !header_name_is_safe("a b") && !header_name_is_safe("a:") && !header_name_is_safe("a\r\nb"));
        assert(header_value_is_safe("abc", 3) && header_value_is_safe("a b", 3) && !header_value_is_safe("", 0));
        assert(!header_value_is_safe("a\r\nb", 4) && !header_value_is_safe("a\0b", 3) &&
               !header_value_is_safe("a\n", 2));
        assert(!header_value_is_safe(" a", 2) && !header_value_is_safe("a\t", 2) && !header_value_is_safe("\x7f", 1));
        assert(header_name_is_reserved("Host") && header_name_is_reserved("content_length") &&
               header_name_is_reserved("X-Forwarded-For") && header_name_is_reserved("Cookie"));
        assert(!header_name_is_reserved("authorization") && !header_name_is_reserved("x-api-key"));
}

int main(void) {
        test_parse();
        test_auth();
        test_refusals();
        test_urls();
        test_match();
        test_headers();
        return 0;
}
