/* SPDX-License-Identifier: LGPL-2.1-or-later */
#undef NDEBUG

/* Proves which addresses may be dialled, in every spelling that reaches us: the guard sees binary addresses, so
 * what is tested is that each spelling that the resolver takes for an address ends in the right class. */

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>

#include "curl/address-guard.h"

static void resolve(const char *s, struct sockaddr_storage *ret, socklen_t *ret_len) {
        struct addrinfo hints = { .ai_flags = AI_NUMERICHOST, .ai_socktype = SOCK_STREAM }, *ai;

        int r = getaddrinfo(s, NULL, &hints, &ai);
        if (r != 0)
                fprintf(stderr, "%s: %s\n", s, gai_strerror(r));
        assert(r == 0);
        memcpy(ret, ai->ai_addr, ai->ai_addrlen);
        *ret_len = ai->ai_addrlen;
        freeaddrinfo(ai);
}

static void expect(const char *s, AddressVerdict want) {
        struct sockaddr_storage sa;
        socklen_t len;

        resolve(s, &sa, &len);
        AddressVerdict v = address_classify((struct sockaddr *) &sa, len);
        if (v != want)
                fprintf(stderr, "%s: %d, want %d\n", s, (int) v, (int) want);
        assert(v == want);
        assert(address_guard_permits(NULL, (struct sockaddr *) &sa, len) == (want == ADDRESS_PUBLIC));
}

static bool permits(const AddressGuard *g, const char *s) {
        struct sockaddr_storage sa;
        socklen_t len;

        resolve(s, &sa, &len);
        return address_guard_permits(g, (struct sockaddr *) &sa, len);
}

int main(void) {
        static const char *const public[] = { "1.1.1.1", "8.8.8.8", "100.63.255.255", "100.128.0.0", "172.15.0.1",
                                              "172.32.0.1", "192.169.0.1",
                                              "2606:4700::1111", "2a00::1", "::ffff:1.1.1.1", "64:ff9b::1.1.1.1",
                                              "2002:0101:0101::1" };
        static const char *const private[] = { "127.0.0.1", "127.255.255.254", "10.0.0.1", "172.16.0.1",
                                               "172.31.255.255", "192.168.1.1",
                                               "100.64.0.1", "100.127.255.255", "198.18.0.1", "192.0.2.1",
                                               "203.0.113.9", "240.0.0.1", "::1",
                                               "fd00::1", "fc00::1", "fec0::1", "2001:db8::1", "::ffff:127.0.0.1",
                                               "::ffff:7f00:1",
                                               "::ffff:10.1.2.3", "2130706433", "0x7f000001", "0177.0.0.1", "127.1",
                                               "4000::1" };
        static const char *const never[] = { "169.254.169.254", "169.254.0.1", "::ffff:169.254.169.254",
                                             "::ffff:a9fe:a9fe", "::169.254.169.254",
                                             "64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::1", "64:ff9b::7f00:1",
                                             "::127.0.0.1", "2002:7f00:1::1",
                                             "0.0.0.0", "0.1.2.3", "::", "fe80::1", "fe80::a9fe:a9fe%1", "ff02::1",
                                             "224.0.0.1", "255.255.255.255",
                                             "100.100.100.200", "168.63.129.16", "192.0.0.192", "fd00:ec2::254",
                                             "2852039166", "0xa9fea9fe",
                                             "0251.0376.0251.0376", "2001::1", "64:ff9b:1::1" };
        AddressGuard *g = NULL;

        for (size_t i = 0; i < ELEMENTSOF(public); i++)
                expect(public[i], ADDRESS_PUBLIC);
        for (size_t i = 0; i < ELEMENTSOF(private); i++)
                expect(private[i], ADDRESS_PRIVATE);
        for (size_t i = 0; i < ELEMENTSOF(never); i++)
                expect(never[i], ADDRESS_NEVER);

        struct sockaddr sa = { .sa_family = AF_UNIX };
        assert(address_classify(&sa, sizeof(sa)) == ADDRESS_NEVER);
        assert(!address_guard_permits(NULL, &sa, sizeof(sa)));

        /* The list opens what it names and nothing that is never open. */
        assert(address_guard_new((char *[]) { (char *) "127.0.0.0/8", (char *) "::1", (char *) "fd00::/8",
                                              (char *) "169.254.0.0/16", NULL }, &g) == 0);
        assert(permits(g, "127.0.0.1"));
        assert(permits(g, "127.9.9.9"));
        assert(permits(g, "::ffff:127.0.0.1"));
        assert(permits(g, "::1"));
        assert(permits(g, "fd12::1"));
        assert(permits(g, "1.1.1.1"));
        assert(!permits(g, "10.0.0.1"));
        assert(!permits(g, "169.254.169.254"));
        assert(!permits(g, "::ffff:169.254.169.254"));
        assert(!permits(g, "::127.0.0.1"));
        assert(!permits(g, "fd00:ec2::254"));
        g = address_guard_free(g);

        assert(address_guard_new((char *[]) { (char *) "0.0.0.0/0", (char *) "::/0", NULL }, &g) == 0);
        assert(permits(g, "10.0.0.1"));
        assert(!permits(g, "169.254.169.254"));
        assert(!permits(g, "fe80::1"));
        assert(!permits(g, "0.0.0.0"));
        g = address_guard_free(g);

        static const char *const malformed[] = { "", "localhost", "127.0.0.1/33", "127.0.0.1/8", "10/8", "127.0.0.0/",
                                                 "127.0.0.0/-1", "127.0.0.0/8x",
                                                 "::1/129", "fd00::1/8", "0x7f.0.0.1", "127.0.0.0 /8", "10.0.0.0/8/8",
                                                 "00000000000000000000000000000000000000000000000000000000000" };
        for (size_t i = 0; i < ELEMENTSOF(malformed); i++)
                assert(address_guard_new((char *[]) { (char *) malformed[i], NULL }, &g) == -EINVAL);
        assert(!g);
        return 0;
}
