/* SPDX-License-Identifier: LGPL-2.1-or-later */
#undef NDEBUG

/* A pattern and an authority, separated by a newline. Whatever they are: what is a host is lower case, has no blank, no
 * user, no port and no address in it, and what a pattern allows ends in what the pattern says. */

#include <arpa/inet.h>

#include "basic/macro.h"
#include "service/proxy-allow.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
        _cleanup_free_ char *text = malloc(size + 1), *host = NULL;
        uint16_t port = 0;
        uint8_t address[16];

        assert(text);
        if (size > 0)
                memcpy(text, data, size);
        text[size] = 0;
        char *authority = strchr(text, '\n');
        if (!authority)
                return 0;
        *authority++ = 0;

        bool valid = proxy_pattern_is_valid(text);
        if (proxy_authority_parse(authority, 80, &host, &port) < 0)
                return 0;
        assert(port > 0 && strlen(host) <= 253);
        assert(strspn(host, "abcdefghijklmnopqrstuvwxyz0123456789-.") == strlen(host));
        assert(inet_pton(AF_INET, host, address) != 1 && inet_aton(host, (struct in_addr *) address) == 0);

        if (valid && proxy_allows((char *[]) { text, NULL }, host, port)) {
                const char *name = startswith(text, "*") ?: text;
                size_t n = (size_t) (strrchr(name, ':') - name), l = strlen(host);

                assert(l >= n && memcmp(host + l - n, name, n) == 0);
                assert(name != text || l == n);
        }
        return 0;
}
