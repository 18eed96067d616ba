/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* See links.h. Clients read URLs in different ways (blanks, backslashes, numbers for addresses): what could be read
 * as a way to us is taken for one. */

#include <curl/curl.h>
#include <strings.h>

#include "basic/string-util.h"
#include "http/http-path.h"
#include "links.h"

#define INVALID "about:invalid"

static bool alpha(char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/* Length of "scheme" where S begins with "scheme:". */
static size_t scheme_length(const char *s) {
        size_t n = 0;

        if (!alpha(*s))
                return 0;
        while (alpha(s[n]) || (s[n] >= '0' && s[n] <= '9') || (s[n] && strchr("+-.", s[n])))
                n++;
        return s[n] == ':' ? n : 0;
}

/* Does http://AUTHORITY lead to the bridge? We do not know what a client makes of a name or a number; but a port is
 * one. */
static bool leads_to_us(const LinkBase *base, const char *authority, size_t n) {
        uint64_t port = 80;

        if (n == 0 || memchr(authority, '@', n))
                return true;
        size_t host = n;
        while (host > 0 && authority[host - 1] >= '0' && authority[host - 1] <= '9')
                host--;
        if (host > 0 && authority[host - 1] == ':') {
                _cleanup_free_ char *text = strndup(authority + host, n - host);

                if (!text || (*text && (parse_uint64(text, &port) < 0 || port > UINT16_MAX)))
                        return true;
                host--;
        } else
                host = n;
        /* Colons elsewhere only in "[::1]". */
        if (memchr(authority, ':', host) && !(authority[0] == '[' && authority[host - 1] == ']'))
                return true;

        if (base->port > 0 ? port == base->port :
                             (host == 12 && strncasecmp(authority, "agent-bridge", 12) == 0) ||
                                     (host == 9 && strncasecmp(authority, "localhost", 9) == 0))
                return true;
        return base->authority && strlen(base->authority) == n && strncasecmp(authority, base->authority, n) == 0;
}

/* The way through the bridge to U, which is one of the service's own; NULL: is not inside. */
static int inside(const LinkBase *base, CURLU *u, char **ret) {
        const ServiceUrl *b = &base->service->base_url;
        char *scheme = NULL, *host = NULL, *port = NULL, *path = NULL, *query = NULL, *user = NULL, *fragment = NULL;
        int r = 0;

        if (curl_url_get(u, CURLUPART_SCHEME, &scheme, 0) == CURLUE_OK &&
            curl_url_get(u, CURLUPART_HOST, &host, 0) == CURLUE_OK &&
            curl_url_get(u, CURLUPART_PORT, &port, CURLU_DEFAULT_PORT) == CURLUE_OK &&
            curl_url_get(u, CURLUPART_PATH, &path, 0) == CURLUE_OK &&
            curl_url_get(u, CURLUPART_USER, &user, 0) == CURLUE_NO_USER) {
                char want_port[8];
                const char *h = host, *below;
                size_t l = strlen(host);
                _cleanup_free_ char *canonical = NULL;

                (void) curl_url_get(u, CURLUPART_QUERY, &query, 0);
                (void) curl_url_get(u, CURLUPART_FRAGMENT, &fragment, 0);
                if (l > 2 && host[0] == '[' && host[l - 1] == ']') {
                        host[l - 1] = 0;
                        h++;
                }
                snprintf(want_port, sizeof(want_port), "%u", b->port);
                /* A path that the bridge would refuse, or that a client would shorten, leads nowhere through it. */
                if (streq(scheme, b->tls ? "https" : "http") && strcasecmp(h, b->host) == 0 && streq(port, want_port) &&
                    (r = http_path_canonicalize_slashes(path, strlen(path), &canonical)) >= 0 &&
                    (below = http_path_below(path, b->path))) {
                        *ret = strprintf("/v1/services/%s%s%s%s%s%s", base->service->name,
                                         below, query ? "?" : "", strempty(query), fragment ? "#" : "",
                                         strempty(fragment));
                        r = *ret ? 0 : -ENOMEM;
                }
                r = r == -ENOMEM ? r : 0;
        }

        curl_free(scheme);
        curl_free(host);
        curl_free(port);
        curl_free(path);
        curl_free(query);
        curl_free(user);
        curl_free(fragment);
        return r;
}

int rewrite_location(const LinkBase *base, const char *location, char **ret) {
        const ServiceUrl *b = &base->service->base_url;
        size_t scheme = scheme_length(location), before_query = strcspn(location, "?#");
        bool http = scheme == 4 && strncasecmp(location, "http", 4) == 0,
             https = scheme == 5 && strncasecmp(location, "https", 5) == 0;

        *ret = NULL;
        if (*location == 0)
                return 0;
        /* Some read a backslash as a slash, and do not see a tab. */
        if (memchr(location, '\\', before_query) || strchr(location, '\t'))
                return -EPERM;
        if (scheme > 0 && !http && !https)
                return 0;
        if (http || https) {
                const char *authority = location + scheme + strlen("://");

                if (!startswith(location + scheme, "://") || *authority == '/')
                        return -EPERM;
                if (http && leads_to_us(base, authority, strcspn(authority, "/?#")))
                        return -EPERM;
        }

        bool six = strchr(b->host, ':');
        _cleanup_free_ char *self = strprintf("%s://%s%s%s:%u%s%s", b->tls ? "https" : "http", six ? "[" : "", b->host,
                                              six ? "]" : "", b->port, b->path, base->path);
        CURLU *u = curl_url();
        char *text = NULL;
        int r = self && u ? 0 : -ENOMEM;

        if (r >= 0) {
                bool ok = scheme > 0 || curl_url_set(u, CURLUPART_URL, self, CURLU_PATH_AS_IS) == CURLUE_OK;

                ok = ok && curl_url_set(u, CURLUPART_URL, location,
                                        CURLU_URLENCODE | (scheme > 0 ? CURLU_PATH_AS_IS : 0)) == CURLUE_OK;
                if (!ok)
                        r = scheme > 0 ? 0 : -EPERM;
                else
                        r = inside(base, u, ret);
                /* What the client would look for at the bridge is somewhere else. */
                if (ok && r >= 0 && !*ret && scheme == 0) {
                        r = curl_url_get(u, CURLUPART_URL, &text, CURLU_NO_DEFAULT_PORT) == CURLUE_OK ? 0 : -ENOMEM;
                        const char *rest = r >= 0 ? startswith(text, "http://") : NULL;
                        if (rest && leads_to_us(base, rest, strcspn(rest, "/?#")))
                                r = -EPERM;
                        if (r >= 0 && !(*ret = strdup(text)))
                                r = -ENOMEM;
                }
        }
        curl_free(text);
        curl_url_cleanup(u);
        return r;
}

int rewrite_link(const LinkBase *base, const char *link, char **ret) {
        _cleanup_free_ char *text = NULL;
        size_t size = 0;
        FILE *f = open_memstream(&text, &size);
        int r = 0;

        *ret = NULL;
        if (!f)
                return -ENOMEM;

        /* Targets stand between < and >. Also inside of quotes, where they are none, but not every client looks. */
        for (const char *p = link; *p && r >= 0;) {
                const char *end = *p == '<' ? strchr(p, '>') : NULL;

                if (!end) {
                        fputc(*p++, f);
                        continue;
                }
                _cleanup_free_ char *target = strndup(p + 1, (size_t) (end - p - 1)), *rewritten = NULL;

                r = target ? rewrite_location(base, target, &rewritten) : -ENOMEM;
                if (r == -EPERM)
                        r = (rewritten = strdup(INVALID)) ? 0 : -ENOMEM;
                if (r >= 0)
                        fprintf(f, "<%s>", rewritten ?: target);
                p = end + 1;
        }

        bool bad = ferror(f);
        if (fclose(f) != 0 || bad)
                r = -ENOMEM;
        if (r >= 0)
                *ret = TAKE_PTR(text);
        return r;
}

int rewrite_cookie(const LinkBase *base, const char *cookie, char **ret) {
        static const char *const dropped[] = { "domain", "path", "secure", "samesite", "partitioned" };
        _cleanup_free_ char *text = NULL;
        size_t size = 0, n = strcspn(cookie, ";");
        FILE *f = open_memstream(&text, &size);

        *ret = NULL;
        if (!f)
                return -ENOMEM;
        fprintf(f, "%.*s; Path=/v1/services/%s", (int) n, cookie, base->service->name);
        for (const char *p = cookie + n; *p;) {
                p += 1 + strspn(p + 1, " \t");
                n = strcspn(p, ";");

                size_t name = strcspn(p, "=; \t");
                bool drop = n == 0;
                for (size_t i = 0; i < ELEMENTSOF(dropped); i++)
                        drop = drop || (name == strlen(dropped[i]) && strncasecmp(p, dropped[i], name) == 0);
                if (!drop)
                        fprintf(f, "; %.*s", (int) n, p);
                p += n;
        }

        bool bad = ferror(f);
        if (fclose(f) != 0 || bad)
                return -ENOMEM;
        *ret = TAKE_PTR(text);
        return 0;
}
