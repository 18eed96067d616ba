/* SPDX-License-Identifier: LGPL-2.1-or-later */
#undef NDEBUG

/* Proves that a path has one spelling after canonicalisation, that this is stable, and that nothing that some
 * reader could take for a dot segment, a separator or a control character comes through in any spelling. */

#include "http/http-path.h"

static void good(const char *in, const char *want) {
        _cleanup_free_ char *out = NULL, *again = NULL;

        int r = http_path_canonicalize(in, strlen(in), &out);
        if (r < 0)
                fprintf(stderr, "%s: %d\n", in, r);
        assert(r == 0);
        if (!streq(out, want))
                fprintf(stderr, "%s: got %s, want %s\n", in, out, want);
        assert(streq(out, want));
        assert(http_path_canonicalize(out, strlen(out), &again) == 0);
        assert(streq(out, again));
}

static void bad(const char *in) {
        char *out = NULL;

        int r = http_path_canonicalize(in, strlen(in), &out);
        if (r >= 0)
                fprintf(stderr, "let through: %s as %s\n", in, out);
        assert(r < 0);
        assert(!out);
}

int main(void) {
        static const char *const evil[] = {
                "", "a", "*", "http://host/x", "//", "//x", "/a//b", "/a//",
                "/.", "/..", "/./", "/../", "/a/..", "/a/../b", "/a/./b", "/v1/../admin",
                "/%2e%2e/x", "/%2E./x", "/.%2e", "/%2e", "/a/%2e%2e", "/..%2fx", "/..%5cx", "/a%2fb", "/a%2Fb",
                "/a%5cb", "/a\\b",
                "/..;x/y", "/..;a=1/", "/.;/", "/%2e%2e;x", "/..%3bx",
                "/%252e%252e/x", "/%252e%252e", "/%25252e%25252e/x", "/a%252fb", "/a%255cb", "/%2%35e%2e", "/a%2500",
                "/a%00", "/a%0d%0aHost:evil", "/a%0a", "/a%0d", "/a%7f", "/a%1b", "/a%250d",
                "/%", "/%2", "/%zz", "/a%2g", "/100%", "/%%32e", "/%u002e",
                "/%c0%ae%c0%ae/x", "/%c0%af", "/%e0%80%ae", "/%f0%80%80%ae", "/%25c0%25ae",
                "/a b", "/a\tb", "/a\nb", "/a#b", "/a?b", "/a<b", "/a\"b", "/a{b", "/a`b", "/\x7f", "/\xc3\xa9",
                "/%20..", "/..%20/x",
        };

        for (size_t i = 0; i < ELEMENTSOF(evil); i++)
                bad(evil[i]);
        {
                char *out = NULL;
                assert(http_path_canonicalize("/a\0b", 4, &out) == -EINVAL);
        }

        good("/", "/");
        good("/a/b", "/a/b");
        good("/a/", "/a/");
        good("/v1/messages", "/v1/messages");
        good("/%61%2D%5f%7e%2e%2e%2e", "/a-_~...");
        good("/o/a%c3%a9%20c", "/o/a%C3%A9%20c");
        good("/a/.../b", "/a/.../b");
        good("/.well-known/x", "/.well-known/x");
        good("/a..b/..c/d..", "/a..b/..c/d..");
        good("/x;v=1/y", "/x;v=1/y");
        good("/100%25", "/100%25");
        good("/100%25/x", "/100%25/x");
        good("/v1beta/models/gemini:generateContent", "/v1beta/models/gemini:generateContent");
        good("/a[1]|^", "/a%5B1%5D%7C%5E");
        good("/@scope%2dx/-/y.tgz", "/@scope-x/-/y.tgz");
        good("/a%40b%3A443%23%3f", "/a%40b%3A443%23%3F");
        good("/%e9", "/%E9");

        /* Bounds. */
        {
                _cleanup_free_ char *s = malloc(HTTP_PATH_MAX + 2), *out = NULL;

                assert(s);
                memset(s, 'a', HTTP_PATH_MAX + 2);
                s[0] = '/';
                assert(http_path_canonicalize(s, HTTP_PATH_MAX, &out) == 0);
                out = mfree(out);
                assert(http_path_canonicalize(s, HTTP_PATH_MAX + 1, &out) == -ENAMETOOLONG);
                memset(s + 1, '|', HTTP_PATH_MAX);
                assert(http_path_canonicalize(s, HTTP_PATH_MAX, &out) == -ENAMETOOLONG);
                /* Deep escaping is looked at to its end, and ends. */
                memset(s, '%', HTTP_PATH_MAX);
                s[0] = '/';
                for (size_t i = 1; i + 2 < HTTP_PATH_MAX; i += 3)
                        memcpy(s + i, "%25", 3);
                (void) http_path_canonicalize(s, 3001, &out);
        }

        assert(streq(http_path_below("/a/b", "/a"), "/b"));
        assert(streq(http_path_below("/a", "/a"), ""));
        assert(!http_path_below("/ab", "/a"));
        assert(!http_path_below("/b", "/a"));
        assert(streq(http_path_below("/b", ""), "/b"));

        assert(http_query_is_valid("a=b&c=%2B%zz&&"));
        assert(!http_query_is_valid("a b"));
        assert(!http_query_is_valid("a#b"));
        assert(!http_query_is_valid("a\nb"));
        assert(!http_query_is_valid("\xc3\xa9"));
        return 0;
}
