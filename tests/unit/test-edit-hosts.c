/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Where a session in an edit may go: what is written becomes patterns, each once; what is no name of a host is refused;
 * and nobody gets beyond a list by writing the same in another way. */
#include "basic/string-util.h"
#include "edit-hosts.h"
#include "service/proxy-allow.h"

#define L(...) ((char *[]) { __VA_ARGS__ __VA_OPT__(, ) NULL })

static void resolves(char *const *defaults, char *const *asked, char *const *want) {
        _cleanup_strv_free_ char **got = NULL;
        const char *bad = NULL;

        assert(edit_hosts_resolve(defaults, asked, &got, &bad) == 0 && !bad);
        assert(strv_length(got) == strv_length(want));
        for (size_t i = 0; want[i]; i++)
                assert(streq(got[i], want[i]));
}

static void refuses(const char *name) {
        _cleanup_strv_free_ char **got = NULL;
        const char *bad = NULL;

        assert(edit_hosts_resolve(L((char *) "good.example"), L((char *) name), &got, &bad) == -EINVAL);
        assert(!got && streq(bad, name));
}

static void beyond(char *const *hosts, char *const *allowed, const char *want) {
        _cleanup_strv_free_ char **h = NULL, **a = NULL;

        assert(edit_hosts_resolve(NULL, hosts, &h, NULL) == 0 && edit_hosts_resolve(NULL, allowed, &a, NULL) == 0);
        assert(streq_ptr(edit_hosts_beyond(h, a), want));
}

int main(void) {
        resolves(NULL, NULL, L());
        resolves(NULL, L((char *) "a.example"), L((char *) "a.example:80", (char *) "a.example:443"));
        resolves(L((char *) "a.example:1"), L((char *) "B.Example:2", (char *) "a.example:1"),
                 L((char *) "a.example:1", (char *) "b.example:2"));
        resolves(NULL, L((char *) "*.a.example"), L((char *) "*.a.example:80", (char *) "*.a.example:443"));
        /* An empty one drops what came before it, also what is given to all. */
        resolves(L((char *) "a.example:1"), L((char *) ""), L());
        resolves(L((char *) "a.example:1"), L((char *) "b.example:1", (char *) "", (char *) "c.example:1"),
                 L((char *) "c.example:1"));

        for (const char *const *n = (const char *const[]) { "127.0.0.1", "[::1]:80", "::1", "2130706433", "0x7f000001", "*",
                                                             "*:80", "a b", "a:0", "a:65536", "a:", ":80", "a/b", "http://a",
                                                             "a..b", "-a", "a-", "x.*.y", "\xc3\xa4.example", "a\n", NULL };
             *n; n++)
                refuses(*n);

        {
                _cleanup_strv_free_ char **many = NULL, **got = NULL;

                for (unsigned i = 0; i <= PROXY_ALLOW_MAX; i++) {
                        _cleanup_free_ char *name = strprintf("h%u.example:1", i);

                        assert(name && strv_extend(&many, name) == 0);
                }
                assert(edit_hosts_resolve(NULL, many, &got, NULL) == -E2BIG && !got);
        }

        beyond(NULL, NULL, NULL);
        beyond(L((char *) "a.example:1"), NULL, "a.example:1");
        beyond(L((char *) "a.example"), L((char *) "a.example:443", (char *) "a.example:80"), NULL);
        beyond(L((char *) "a.example"), L((char *) "a.example:443"), "a.example:80");
        beyond(L((char *) "x.a.example:1"), L((char *) "*.a.example:1"), NULL);
        beyond(L((char *) "a.example:1"), L((char *) "*.a.example:1"), "a.example:1");
        beyond(L((char *) "*.a.example:1"), L((char *) "*.a.example:1"), NULL);
        beyond(L((char *) "*.b.a.example:1"), L((char *) "*.a.example:1"), NULL);
        beyond(L((char *) "*.a.example:1"), L((char *) "*.b.a.example:1"), "*.a.example:1");
        beyond(L((char *) "*.a.example:1"), L((char *) "a.example:1", (char *) "x.a.example:1"), "*.a.example:1");
        beyond(L((char *) "*.a.example:2"), L((char *) "*.a.example:1"), "*.a.example:2");
        beyond(L((char *) "*.bada.example:1"), L((char *) "*.a.example:1"), "*.bada.example:1");
        return 0;
}
