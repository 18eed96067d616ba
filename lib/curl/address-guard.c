/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* See address-guard.h. Everything below works on addresses in network byte order as byte arrays. */

#include <arpa/inet.h>
#include <netinet/in.h>

#include "basic/string-util.h"
#include "curl/address-guard.h"

typedef struct Range {
        unsigned len; /* of the address: 4 or 16 */
        uint8_t address[16];
        unsigned prefix;
} Range;

struct AddressGuard {
        Range *ranges;
        size_t n;
};

static bool prefix_matches(const uint8_t *a, const uint8_t *b, unsigned prefix) {
        unsigned bytes = prefix / 8, bits = prefix % 8;

        if (memcmp(a, b, bytes) != 0)
                return false;
        return bits == 0 || ((a[bytes] ^ b[bytes]) >> (8 - bits)) == 0;
}

static int range_parse(const char *s, Range *ret) {
        Range r = {};
        const char *slash = strchrnul(s, '/');
        char text[INET6_ADDRSTRLEN];

        if ((size_t) (slash - s) >= sizeof(text))
                return -EINVAL;
        memcpy(text, s, (size_t) (slash - s));
        text[slash - s] = 0;

        if (inet_pton(AF_INET, text, r.address) == 1)
                r.len = 4;
        else if (inet_pton(AF_INET6, text, r.address) == 1)
                r.len = 16;
        else
                return -EINVAL;

        r.prefix = r.len * 8;
        if (*slash) {
                uint64_t v;
                int k = parse_uint64(slash + 1, &v);
                if (k < 0 || v > r.prefix)
                        return -EINVAL;
                r.prefix = (unsigned) v;
        }

        /* Bits behind the prefix are a slip of the administrator: was the range or the host meant? */
        for (unsigned i = r.prefix; i < r.len * 8; i++)
                if (r.address[i / 8] & (0x80 >> (i % 8)))
                        return -EINVAL;

        *ret = r;
        return 0;
}

int address_guard_new(char *const *allow, AddressGuard **ret) {
        size_t n = strv_length(allow);

        _cleanup_(address_guard_freep) AddressGuard *g = calloc(1, sizeof(AddressGuard));
        if (!g)
                return -ENOMEM;
        g->ranges = calloc(n ?: 1, sizeof(Range));
        if (!g->ranges)
                return -ENOMEM;

        for (; g->n < n; g->n++) {
                int r = range_parse(allow[g->n], g->ranges + g->n);
                if (r < 0)
                        return r;
        }

        *ret = TAKE_PTR(g);
        return 0;
}

AddressGuard *address_guard_free(AddressGuard *g) {
        if (!g)
                return NULL;
        free(g->ranges);
        return mfree(g);
}

typedef struct KnownRange {
        uint8_t address[16];
        uint8_t prefix;
        AddressVerdict verdict;
} KnownRange;

static const KnownRange known4[] = {
        { { 0 }, 8, ADDRESS_NEVER },                     /* "this" network */
        { { 169, 254 }, 16, ADDRESS_NEVER },             /* link-local, metadata of most clouds */
        { { 168, 63, 129, 16 }, 32, ADDRESS_NEVER },     /* Azure's host agent */
        { { 100, 100, 100, 200 }, 32, ADDRESS_NEVER },   /* Alibaba's metadata */
        { { 192, 0, 0, 192 }, 32, ADDRESS_NEVER },       /* Oracle's metadata */
        { { 224 }, 4, ADDRESS_NEVER },                   /* multicast */
        { { 255, 255, 255, 255 }, 32, ADDRESS_NEVER },
        { { 10 }, 8, ADDRESS_PRIVATE },
        { { 100, 64 }, 10, ADDRESS_PRIVATE },            /* carrier-grade NAT */
        { { 127 }, 8, ADDRESS_PRIVATE },
        { { 172, 16 }, 12, ADDRESS_PRIVATE },
        { { 192, 0, 0 }, 24, ADDRESS_PRIVATE },
        { { 192, 0, 2 }, 24, ADDRESS_PRIVATE },
        { { 192, 88, 99 }, 24, ADDRESS_PRIVATE },
        { { 192, 168 }, 16, ADDRESS_PRIVATE },
        { { 198, 18 }, 15, ADDRESS_PRIVATE },
        { { 198, 51, 100 }, 24, ADDRESS_PRIVATE },
        { { 203, 0, 113 }, 24, ADDRESS_PRIVATE },
        { { 240 }, 4, ADDRESS_PRIVATE },
};

static const KnownRange known6[] = {
        { { 0 }, 128, ADDRESS_NEVER },                                                /* :: */
        { { [15] = 1 }, 128, ADDRESS_PRIVATE },                                       /* ::1 */
        { { 0xfe, 0x80 }, 10, ADDRESS_NEVER },                                        /* link-local */
        { { 0xff }, 8, ADDRESS_NEVER },                                               /* multicast */
        { { 0xfd, 0x00, 0x0e, 0xc2, [14] = 0x02, [15] = 0x54 }, 128, ADDRESS_NEVER }, /* EC2's metadata */
        /* Teredo: an IPv4 address in disguise */
        { { 0x20, 0x01, 0, 0 }, 32, ADDRESS_NEVER },
        { { 0x00, 0x64, 0xff, 0x9b, 0, 1 }, 48, ADDRESS_NEVER },                      /* local-use NAT64, likewise */
        { { 0x20, 0x01, 0x0d, 0xb8 }, 32, ADDRESS_PRIVATE },                          /* documentation */
        { { 0x3f, 0xff }, 20, ADDRESS_PRIVATE },                                      /* documentation */
};

static AddressVerdict classify4(const uint8_t *a) {
        for (size_t i = 0; i < ELEMENTSOF(known4); i++)
                if (prefix_matches(a, known4[i].address, known4[i].prefix))
                        return known4[i].verdict;
        return ADDRESS_PUBLIC;
}

static const uint8_t mapped_prefix[12] = { [10] = 0xff, [11] = 0xff };

static AddressVerdict classify6(const uint8_t *a) {
        static const uint8_t compatible[12] = {}, nat64[12] = { 0x00, 0x64, 0xff, 0x9b };
        const uint8_t *embedded = NULL;

        for (size_t i = 0; i < ELEMENTSOF(known6); i++)
                if (prefix_matches(a, known6[i].address, known6[i].prefix))
                        return known6[i].verdict;

        if (memcmp(a, compatible, 12) == 0 || memcmp(a, nat64, 12) == 0)
                embedded = a + 12;
        else if (a[0] == 0x20 && a[1] == 0x02)
                embedded = a + 2; /* 6to4 */
        if (embedded) /* what is not public has no business to come in such a form */
                return classify4(embedded) == ADDRESS_PUBLIC ? ADDRESS_PUBLIC : ADDRESS_NEVER;

        /* Global unicast is what is assigned today; the rest (unique local, site-local, reserved) is not. */
        return (a[0] & 0xe0) == 0x20 ? ADDRESS_PUBLIC : ADDRESS_PRIVATE;
}

/* The address as bytes; IPv4-mapped ones as IPv4. 0 where it is no IP address. */
static unsigned address_bytes(const struct sockaddr *sa, socklen_t len, uint8_t ret[static 16]) {
        if (sa->sa_family == AF_INET && len >= (socklen_t) sizeof(struct sockaddr_in)) {
                memcpy(ret, &((const struct sockaddr_in *) sa)->sin_addr, 4);
                return 4;
        }
        if (sa->sa_family == AF_INET6 && len >= (socklen_t) sizeof(struct sockaddr_in6)) {
                memcpy(ret, &((const struct sockaddr_in6 *) sa)->sin6_addr, 16);
                if (memcmp(ret, mapped_prefix, 12) == 0) {
                        memmove(ret, ret + 12, 4);
                        return 4;
                }
                return 16;
        }
        return 0;
}

AddressVerdict address_classify(const struct sockaddr *sa, socklen_t len) {
        uint8_t a[16];

        switch (address_bytes(sa, len, a)) {
        case 4:
                return classify4(a);
        case 16:
                return classify6(a);
        default:
                return ADDRESS_NEVER;
        }
}

bool address_guard_permits(const AddressGuard *g, const struct sockaddr *sa, socklen_t len) {
        AddressVerdict v = address_classify(sa, len);
        uint8_t a[16];

        if (v != ADDRESS_PRIVATE)
                return v == ADDRESS_PUBLIC;

        unsigned n = address_bytes(sa, len, a);
        for (size_t i = 0; g && i < g->n; i++)
                if (g->ranges[i].len == n && prefix_matches(a, g->ranges[i].address, g->ranges[i].prefix))
                        return true;
        return false;
}
