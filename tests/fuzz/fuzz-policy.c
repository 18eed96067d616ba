/* SPDX-License-Identifier: LGPL-2.1-or-later */
#undef NDEBUG

/* Three lines: a pattern that is allowed, one that is denied, a path as a client sends it. What the service says of
 * the path is what a plain reading of agent-service(5) says, and does not depend on how the path was spelled. */

#include "basic/string-util.h"
#include "http/http-path.h"
#include "service/service.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* "*" for any part of one segment, by a table: every end of the pattern against every end of the text. */
static bool glob(const char *p, size_t np, const char *s, size_t ns) {
        static bool ends[4096];

        if (np == 1 && *p == '*')
                return ns > 0;
        memset(ends, 0, sizeof(ends));
        assert(ns < ELEMENTSOF(ends));
        ends[0] = true;
        for (size_t i = 0; i < np; i++)
                if (p[i] == '*') {
                        for (size_t k = 1; k <= ns; k++)
                                ends[k] = ends[k] || ends[k - 1];
                } else {
                        for (size_t k = ns; k > 0; k--)
                                ends[k] = ends[k - 1] && s[k - 1] == p[i];
                        ends[0] = false;
                }
        return ends[ns];
}

static bool plain_match(const char *pattern, const char *path) {
        for (;;) {
                size_t np = strcspn(pattern + 1, "/"), ns = strcspn(path + 1, "/");

                if (streq(pattern, "/*"))
                        return true;
                if (!glob(pattern + 1, np, path + 1, ns))
                        return false;
                pattern += np + 1;
                path += ns + 1;
                if (*pattern == 0 || *path == 0)
                        return *pattern == *path;
        }
}

static bool plain_denies(const char *pattern, const char *path) {
        size_t n = strlen(path);
        _cleanup_free_ char *other = strprintf("%s/", path);

        if (n > 1 && path[n - 1] == '/')
                other[n - 1] = 0;
        return plain_match(pattern, path) || plain_match(pattern, other);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
        _cleanup_free_ char *text = malloc(size + 1), *path = NULL, *again = NULL, *json = NULL;
        _cleanup_(service_unrefp) Service *s = NULL;

        assert(text);
        if (size > 0)
                memcpy(text, data, size);
        text[size] = 0;
        if (size > 1000 || strlen(text) != size || strpbrk(text, "\"\\"))
                return 0;
        char *deny = strchr(text, '\n'), *raw = deny ? strchr(deny + 1, '\n') : NULL;
        if (!raw || strchr(raw + 1, '\n'))
                return 0;
        *deny++ = 0;
        *raw++ = 0;

        json = strprintf(
                "{\"name\":\"x\",\"base_url\":\"https://a.example\",\"auth\":{\"kind\":\"none\"},\"allow\":[{"
                "\"methods\":[\"GET\"],\"paths\":[\"%s\"]}],\"deny\":[{\"methods\":[\"GET\"],\"paths\":[\"%s\"]}]}",
                text, deny);
        if (http_path_canonicalize_slashes(raw, strlen(raw), &path) < 0 ||
            service_parse(json, strlen(json), 0, &s, NULL) < 0)
                return 0;

        bool want = plain_match(text, path) && !plain_denies(deny, path);
        assert(service_match(s, "GET", path, NULL) == want);
        assert(!service_match(s, "POST", path, NULL) && !service_match(s, "get", path, NULL));

        /* Every byte escaped that may be: the same. */
        char *spelled = malloc(strlen(path) * 3 + 1), *o = spelled;
        for (const char *p = path; *p; p++)
                if ((*p >= 'a' && *p <= 'z') || (*p >= '0' && *p <= '9' && (p - path < 2 || p[-1] != '%') &&
                                                 (p - path < 3 || p[-2] != '%')))
                        o += sprintf(o, "%%%02x", (unsigned) *p);
                else
                        *o++ = *p;
        *o = 0;
        if (!strchr(path, '%')) {
                assert(http_path_canonicalize_slashes(spelled, strlen(spelled), &again) == 0 ||
                       strlen(spelled) > HTTP_PATH_MAX);
                assert(!again || streq(again, path));
        }
        free(spelled);
        return 0;
}
