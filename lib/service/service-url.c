/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * The part of a URL grammar that services need, and no more. What a URL parser would have to interpret
 * (user info, escapes, dot segments, odd spellings of addresses) is refused instead, so that the text,
 * the parts and what libcurl makes of them cannot differ.
 */

#include <arpa/inet.h>

#include "basic/string-util.h"
#include "service/service.h"

#define URL_MAX 2048U

void service_url_done(ServiceUrl *u) {
        free(u->text);
        free(u->host);
        free(u->path);
        *u = (ServiceUrl) {};
}

static int refuse(char **ret_reason, const char *text) {
        if (ret_reason) {
                char *s = strdup(text);

                if (!s)
                        return -ENOMEM;
                free(*ret_reason);
                *ret_reason = s;
        }
        return -EINVAL;
}

/* Labels of letters, digits and dashes. A last label of digits only makes it look like an IPv4 address, and
 * parsers differ widely about those (0x7f.1, 2130706433): only the plain dotted form passes. */
static bool host_is_valid(const char *s) {
        struct in_addr a;
        size_t label = 0;
        bool numeric = true;

        if (strlen(s) > 253)
                return false;

        for (const char *p = s;; p++) {
                if (*p == '.' || *p == 0) {
                        if (label == 0 || label > 63 || p[-1] == '-')
                                return false;
                        if (*p == 0)
                                break;
                        label = 0;
                        numeric = true;
                        continue;
                }
                if (!((*p >= 'a' && *p <= 'z') || (*p >= '0' && *p <= '9') || (*p == '-' && label > 0)))
                        return false;
                if (!(*p >= '0' && *p <= '9'))
                        numeric = false;
                label++;
        }

        /* "0x7f" as last label is a number to inet_aton() and its kind. */
        if (!numeric) {
                const char *last = strrchr(s, '.');

                last = last ? last + 1 : s;
                if (last[0] == '0' && last[1] == 'x' && strspn(last + 2, "0123456789abcdef") == strlen(last + 2))
                        return false;
                return true;
        }

        return inet_pton(AF_INET, s, &a) == 1;
}

static bool host_is_loopback(const char *s) {
        struct in6_addr six;
        struct in_addr four;

        if (streq(s, "localhost"))
                return true;
        if (inet_pton(AF_INET, s, &four) == 1)
                return (ntohl(four.s_addr) >> 24) == 127;
        if (inet_pton(AF_INET6, s, &six) == 1)
                return IN6_IS_ADDR_LOOPBACK(&six);
        return false;
}

static bool path_is_valid(const char *s) {
        /* Unreserved, sub-delims, ':' and '@' of RFC 3986; no escapes: no base path needs one. */
        for (const char *p = s; *p; p++)
                if (!((*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') || (*p >= '0' && *p <= '9') ||
                      strchr("-._~!$&'()*+,;=:@/", *p)))
                        return false;

        for (const char *p = s; *p;) {
                size_t n;

                if (*p != '/')
                        return false;
                p++;
                n = strcspn(p, "/");
                if (n == 0 && *p)
                        return false; /* "//" */
                if (p[0] == '.' && (n == 1 || (n == 2 && p[1] == '.') || p[1] == ';' || (p[1] == '.' && p[2] == ';')))
                        return false;
                p += n;
        }

        return true;
}

static int port_parse(const char *s, size_t n, uint16_t *ret) {
        _cleanup_free_ char *t = strndup(s, n);
        uint64_t port;

        if (!t)
                return -ENOMEM;
        if (parse_uint64(t, &port) < 0 || port == 0 || port > UINT16_MAX || (t[0] == '0'))
                return -EINVAL;

        *ret = (uint16_t) port;
        return 0;
}

/* HOST, HOST:PORT, [ADDRESS] or [ADDRESS]:PORT from S to END: fills host and port, which has its default already. */
static int authority_parse(const char *s, const char *end, ServiceUrl *u, bool *ret_six, char **ret_reason) {
        size_t n = (size_t) (end - s);
        const char *colon;
        bool six = *s == '[';
        int r;

        if (six) {
                const char *close = memchr(s, ']', n);
                struct in6_addr a;

                if (!close || (close + 1 != end && close[1] != ':'))
                        return refuse(ret_reason, "has a malformed IPv6 address");
                u->host = strndup(s + 1, (size_t) (close - s - 1));
                if (!u->host)
                        return -ENOMEM;
                if (inet_pton(AF_INET6, u->host, &a) != 1)
                        return refuse(ret_reason, "has a malformed IPv6 address");
                colon = close[1] == ':' && close + 1 < end ? close + 1 : NULL;
        } else {
                colon = memchr(s, ':', n);
                u->host = strndup(s, colon ? (size_t) (colon - s) : n);
                if (!u->host)
                        return -ENOMEM;
        }
        for (char *p = u->host; *p; p++)
                if (*p >= 'A' && *p <= 'Z')
                        *p = (char) (*p - 'A' + 'a');
        if (!six && !host_is_valid(u->host))
                return refuse(ret_reason, "has a host that is neither a domain name nor an IP address");

        if (colon) {
                r = port_parse(colon + 1, (size_t) (end - colon - 1), &u->port);
                if (r == -ENOMEM)
                        return r;
                if (r < 0)
                        return refuse(ret_reason, "has a port that is not a number from 1 to 65535");
        }
        *ret_six = six;
        return 0;
}

int service_url_parse(const char *s, bool allow_http, ServiceUrl *ret, char **ret_reason) {
        _cleanup_(service_url_done) ServiceUrl u = {};
        const char *rest, *end;
        bool six;
        size_t n;
        int r;

        if (strlen(s) > URL_MAX)
                return refuse(ret_reason, "is longer than 2048 bytes");

        if ((rest = startswith(s, "https://"))) {
                u.tls = true;
                u.port = 443;
        } else if ((rest = startswith(s, "http://")))
                u.port = 80;
        else
                return refuse(ret_reason, "must start with https://");

        n = strcspn(rest, "/?#");
        end = rest + n;
        if (memchr(rest, '@', n))
                return refuse(ret_reason, "must not hold a user name or password");
        if (memchr(rest, '%', n) || memchr(rest, '\\', n))
                return refuse(ret_reason, "has a host with characters that are not allowed");
        if (*end == '?' || strchr(end, '?'))
                return refuse(ret_reason, "must not have a query");
        if (*end == '#' || strchr(end, '#'))
                return refuse(ret_reason, "must not have a fragment");

        r = authority_parse(rest, end, &u, &six, ret_reason);
        if (r < 0)
                return r;
        if (!u.tls && !(allow_http && host_is_loopback(u.host)))
                return refuse(ret_reason, "must start with https://");

        if (!path_is_valid(end))
                return refuse(ret_reason,
                              "has a path with escapes, dot segments, \"//\" or characters that are not allowed");

        n = strlen(end);
        while (n > 0 && end[n - 1] == '/')
                n--;
        u.path = strndup(end, n);
        if (!u.path)
                return -ENOMEM;

        if (u.port == (u.tls ? 443 : 80))
                u.text = strprintf("%s://%s%s%s%s", u.tls ? "https" : "http", six ? "[" : "", u.host, six ? "]" : "",
                                   end);
        else
                u.text = strprintf("%s://%s%s%s:%u%s", u.tls ? "https" : "http", six ? "[" : "", u.host, six ? "]" : "",
                                   (unsigned) u.port, end);
        if (!u.text)
                return -ENOMEM;

        *ret = u;
        u = (ServiceUrl) {};
        return 0;
}
