/* SPDX-License-Identifier: LGPL-2.1-or-later */
#undef NDEBUG

/* Proves which hosts an allowlist of the forward proxy means, and that no address in any notation is a name. */

#include "service/proxy-allow.h"

static bool allows(const char *pattern, const char *authority) {
        char *patterns[] = { (char *) pattern, NULL };
        _cleanup_free_ char *host = NULL;
        uint16_t port;

        assert(proxy_pattern_is_valid(pattern));
        return proxy_authority_parse(authority, 0, &host, &port) == 0 && proxy_allows(patterns, host, port);
}

int main(void) {
        static const char *const bad_patterns[] = {
                "", "a", "a.b", ":443", "*:443", "*", "*.:443", "*.*.a:443", "a.*:443", "a*.b.c:443", "a.b:0", "a.b:65536",
                "a.b:", "a.b:x", "a.b:+1", "A.b:443", "a_b.c:443", ".a.b:443", "a..b:443", "a.b.:443", "-a.b:443",
                "a-.b:443", "127.0.0.1:80", "[::1]:80", "::1:80", "2130706433:80", "0x7f000001:80", "a.0x7f:80",
                "0x7f.1:80", "1.2:80", "a/b:80", "a@b:80", "a b:80", "a.b:80\n",
        };
        static const char *const bad_authorities[] = {
                "", "a.b", "a.b:", "a.b:0", "a.b:99999", "127.0.0.1:443", "[::1]:443", "2130706433:443", "0x7f000001:443",
                "017700000001:443", "1.1:443", "u@a.b:443", "a.b.:443", "a.b:443:443", "a.b:443/", "a..b:443",
                "xn--.:443", "a.b:4 43",
        };

        for (size_t i = 0; i < ELEMENTSOF(bad_patterns); i++) {
                if (proxy_pattern_is_valid(bad_patterns[i]))
                        fprintf(stderr, "%s\n", bad_patterns[i]);
                assert(!proxy_pattern_is_valid(bad_patterns[i]));
        }
        for (size_t i = 0; i < ELEMENTSOF(bad_authorities); i++) {
                char *host = NULL;
                uint16_t port;

                if (proxy_authority_parse(bad_authorities[i], 0, &host, &port) != -EINVAL)
                        fprintf(stderr, "%s\n", bad_authorities[i]);
                assert(!host && proxy_authority_parse(bad_authorities[i], 0, &host, &port) == -EINVAL);
        }

        assert(allows("index.example:443", "index.example:443"));
        assert(allows("index.example:443", "Index.Example:443"));
        assert(!allows("index.example:443", "index.example:80"));
        assert(!allows("index.example:443", "a.index.example:443"));
        assert(!allows("index.example:443", "evilindex.example:443"));
        assert(!allows("index.example:443", "index.example.evil.example:443"));
        assert(allows("*.mirror.example:80", "pkg.mirror.example:80"));
        assert(allows("*.mirror.example:80", "a.b.mirror.example:80"));
        assert(!allows("*.mirror.example:80", "mirror.example:80"));
        assert(!allows("*.mirror.example:80", "evilmirror.example:80"));
        assert(!allows("*.mirror.example:80", "x.mirror.example.evil.example:80"));
        assert(allows("localhost:8080", "localhost:8080")); /* the guard has its own word about that */
        assert(!proxy_allows(NULL, "a.b", 443));
        assert(!proxy_allows((char *[]) { NULL }, "a.b", 443));

        char *host = NULL;
        uint16_t port = 0;
        assert(proxy_authority_parse("a.b", 80, &host, &port) == 0 && streq(host, "a.b") && port == 80);
        free(host);
        return 0;
}
