/* SPDX-License-Identifier: LGPL-2.1-or-later */
#undef NDEBUG

/* A value of Location, Link or Set-Cookie as an upstream would send it; the first byte chooses the service, the
 * listener and the request. What comes out could be a header's value, and nothing in it leads a client, however it
 * reads URLs, to a place at the bridge that is not of that service. */

#include <strings.h>

#include "basic/string-util.h"
#include "http/http-field.h"
#include "links.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static Service *services[4];

static void setup(void) {
        static const char *const urls[] = { "https://api.example.com/v2", "https://api.example.com",
                                            "http://127.0.0.1:8000/a/b", "https://[2001:db8::1]:8443/x" };

        for (size_t i = 0; i < ELEMENTSOF(urls); i++) {
                _cleanup_free_ char *text = strprintf("{\"name\":\"demo\",\"base_url\":\"%s\",\"allow\":[],"
                                                      "\"auth\":{\"kind\":\"none\"}}", urls[i]);
                assert(service_parse(text, strlen(text), SERVICE_ALLOW_HTTP, &services[i], NULL) == 0);
        }
}

/* S is what a client would go to by itself. */
static void check(const LinkBase *base, const char *s, bool ours) {
        assert(http_field_value_is_valid(s));
        if (startswith(s, "/v1/services/demo")) {
                const char *rest = s + strlen("/v1/services/demo");
                size_t n = strcspn(rest, "?#");

                assert(strchr("/?#", *rest) || *rest == 0);
                /* It stays below, also for those that decode once. */
                _cleanup_free_ char *path = strndup(rest, n);
                for (char *p; (p = strcasestr(path, "%2e"));) {
                        *p = '.';
                        memmove(p + 1, p + 3, strlen(p + 3) + 1);
                }
                assert(!strstr(path, "/../") && !endswith(path, "/..") && !strchr(path, '\\') && !strstr(path, "//"));
                return;
        }
        if (*s == 0) /* the same place again */
                return;
        /* An absolute URL, and not ours. */
        const char *colon = strchr(s, ':');
        assert(colon &&
               colon[strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+-.") + s - colon] ==
                       ':');
        assert(!ours || startswith(s, "http"));
        if (strncasecmp(s, "http:", 5) == 0) {
                assert(startswith(s + 5, "//") && !strchr("/\\", s[7]));
                size_t n = strcspn(s + 7, "/?#");
                _cleanup_free_ char *authority = strndup(s + 7, n);

                assert(!strchr(authority, '@') && !strchr(authority, '\\') && !strchr(authority, '\t'));
                if (base->port == 8377)
                        assert(!endswith(authority, ":8377"));
                else
                        assert(strcasecmp(authority, "agent-bridge") != 0 && strcasecmp(authority, "localhost") != 0 &&
                               strcasecmp(authority, "agent-bridge:80") != 0);
        } else if (strncasecmp(s, "https:", 6) == 0)
                assert(startswith(s + 6, "//"));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
        static const char *const paths[] = { "", "/", "/x", "/x/y/z" };
        _cleanup_free_ char *value = NULL, *location = NULL, *link = NULL, *cookie = NULL;

        if (!services[0])
                setup();
        if (size < 1 || size > 8192)
                return 0;
        LinkBase base = { .service = services[data[0] & 3], .path = paths[(data[0] >> 2) & 3],
                          .port = data[0] & 16 ? 8377 : 0, .authority = data[0] & 32 ? NULL : data[0] & 16 ?
                          "bridge.example:8377" : "agent-bridge" };
        value = strndup((const char *) data + 1, size - 1);
        assert(value);
        if (!http_field_value_is_valid(value))
                return 0;

        int r = rewrite_location(&base, value, &location);
        assert(r == 0 || (r == -EPERM && !location));
        if (r == 0)
                check(&base, location ?: value, !!location);

        /* A cookie has one path, ours, whichever a client takes, and no domain. */
        assert(rewrite_cookie(&base, value, &cookie) == 0);
        size_t name = strcspn(value, ";");
        assert(memcmp(cookie, value, name) == 0 && startswith(cookie + name, "; Path=/v1/services/demo"));
        for (char *p = strtok(cookie + name, ";"); p; p = strtok(NULL, ";")) {
                p += strspn(p, " \t");
                size_t n = strcspn(p, "= \t");
                assert(!(n == 6 && strncasecmp(p, "domain", n) == 0));
                assert(!(n == 4 && strncasecmp(p, "path", n) == 0) || streq(p, "Path=/v1/services/demo"));
        }

        assert(rewrite_link(&base, value, &link) == 0);
        assert(http_field_value_is_valid(link));
        for (const char *p = link, *end; (p = strchr(p, '<')) && (end = strchr(p, '>')); p = end) {
                _cleanup_free_ char *target = strndup(p + 1, (size_t) (end - p - 1));

                if (http_field_value_is_valid(target))
                        check(&base, target, false);
        }
        return 0;
}
