/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* See proxy-allow.h. */

#include "basic/string-util.h"
#include "service/proxy-allow.h"

#define HOST_MAX 253U

/* Labels of letters, digits and dashes, at least one of which has a letter: no address in any notation passes. */
static bool host_is_valid(const char *s, size_t n) {
        bool letter = false;
        size_t label = 0;

        if (n == 0 || n > HOST_MAX)
                return false;
        for (size_t i = 0; i < n; i++) {
                if (s[i] == '.') {
                        if (label == 0 || s[i - 1] == '-')
                                return false;
                        label = 0;
                        letter = false; /* "0x7f.1" and its like end in a number */
                        continue;
                }
                if (!((s[i] >= 'a' && s[i] <= 'z') || (s[i] >= '0' && s[i] <= '9') || (s[i] == '-' && label > 0)) ||
                    ++label > 63)
                        return false;
                letter = letter || (s[i] >= 'a' && s[i] <= 'z');
        }
        if (label == 0 || s[n - 1] == '-' || !letter)
                return false;

        /* "0x7f000001" is an address to some. */
        const char *last = s + n - label;
        return !(last[0] == '0' && label > 1 && last[1] == 'x');
}

static int port_parse(const char *s, uint16_t *ret) {
        uint64_t v;

        int r = parse_uint64(s, &v);
        if (r < 0 || v == 0 || v > UINT16_MAX)
                return -EINVAL;
        *ret = (uint16_t) v;
        return 0;
}

bool proxy_pattern_is_valid(const char *s) {
        const char *name = startswith(s, "*.") ?: s, *colon = strrchr(name, ':');
        uint16_t port;

        return colon && host_is_valid(name, (size_t) (colon - name)) && port_parse(colon + 1, &port) >= 0;
}

int proxy_authority_parse(const char *s, uint16_t default_port, char **ret_host, uint16_t *ret_port) {
        const char *colon = strchr(s, ':');
        size_t n = colon ? (size_t) (colon - s) : strlen(s);
        uint16_t port = default_port;

        if (colon ? port_parse(colon + 1, &port) < 0 : default_port == 0)
                return -EINVAL;

        _cleanup_free_ char *host = strndup(s, n);
        if (!host)
                return -ENOMEM;
        for (char *p = host; *p; p++)
                if (*p >= 'A' && *p <= 'Z')
                        *p = (char) (*p - 'A' + 'a');
        if (!host_is_valid(host, n))
                return -EINVAL;

        *ret_host = TAKE_PTR(host);
        *ret_port = port;
        return 0;
}

bool proxy_allows(char *const *patterns, const char *host, uint16_t port) {
        for (char *const *p = patterns; p && *p; p++) {
                const char *below = startswith(*p, "*"), *name = below ?: *p, *colon = strrchr(name, ':');
                size_t n, l = strlen(host);
                uint16_t want;

                if (!colon || port_parse(colon + 1, &want) < 0 || want != port)
                        continue;
                n = (size_t) (colon - name);
                if (below ? l > n && memcmp(host + l - n, name, n) == 0 : l == n && memcmp(host, name, n) == 0)
                        return true;
        }
        return false;
}
