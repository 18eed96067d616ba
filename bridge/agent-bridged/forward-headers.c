/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* See forward-headers.h. */

#include <curl/curl.h>
#include <strings.h>

#include "auth.h"
#include "basic/string-util.h"
#include "forward-headers.h"

/* A '*' at the end stands for any rest. */
static const char *const request_denied[] = {
        /* framing and hop-by-hop */
        "connection", "content-length", "expect", "host", "http2-settings", "keep-alive", "proxy-*", "te", "trailer",
        "transfer-encoding", "upgrade",
        /* other slots that keys travel in, besides those that the run token is taken from */
        "cookie", "cookie2", "job-token", "private-token", "x-access-token", "x-auth-key", "x-auth-token",
        "x-csrf-token",
        "x-shopify-access-token", "x-vault-token",
        /* who and where the client says it is; where else the request should go */
        "forwarded", "via", "x-client-ip", "x-cluster-client-ip", "x-envoy-*", "x-forwarded-*", "x-host",
        "x-http-host-override",
        "x-http-method", "x-http-method-override", "x-method-override", "x-original-*", "x-real-ip", "x-remote-*",
        "x-rewrite-*",
        "true-client-ip", "cf-connecting-ip",
};

static const char *const response_denied[] = {
        "connection", "content-length", "keep-alive", "proxy-*", "te", "trailer", "transfer-encoding", "upgrade",
        /* credentials of the upstream for its client, which is the bridge */
        "set-cookie", "set-cookie2", "authentication-info", "authorization", "x-api-key", "x-amz-security-token",
        "x-auth-token",
        "x-access-token", "x-subject-token",
        /* about a connection that the sandbox does not have */
        "alt-svc", "strict-transport-security", "public-key-pins", "clear-site-data", "refresh",
};

static bool name_matches(const char *name, const char *pattern) {
        const char *star = endswith(pattern, "*");

        if (!star)
                return http_field_name_folds_to(name, pattern);

        size_t n = (size_t) (star - pattern);
        char head[64];

        if (strlen(name) < n || n >= sizeof(head))
                return false;
        char prefix[64];
        memcpy(head, name, n);
        head[n] = 0;
        memcpy(prefix, pattern, n);
        prefix[n] = 0;
        return http_field_name_folds_to(head, prefix);
}

static bool name_in(const char *name, const char *const *list, size_t n) {
        for (size_t i = 0; i < n; i++)
                if (name_matches(name, list[i]))
                        return true;
        return false;
}

/* Between a proxy and its neighbours; everything else is between the client and its destination. */
static const char *const hop_by_hop[] = {
        "connection", "content-length", "expect", "host", "http2-settings", "keep-alive", "proxy-*", "te", "trailer",
        "transfer-encoding", "upgrade",
};

bool proxy_header(const char *name, const char *connection) {
        return !name_in(name, hop_by_hop, ELEMENTSOF(hop_by_hop)) &&
               !(connection && http_value_has_token(connection, name));
}

bool forward_request_header(const char *name, const char *connection) {
        if (strchr(name, '_') || name_in(name, request_denied, ELEMENTSOF(request_denied)))
                return false;
        for (const char *const *s = auth_slots; *s; s++)
                if (name_matches(name, *s))
                        return false;
        return !connection || !http_value_has_token(connection, name);
}

bool forward_response_header(const char *name) {
        return !name_in(name, response_denied, ELEMENTSOF(response_denied));
}

/* The part of PATH below the service's own, or NULL. */
static const char *below_base(const Service *service, const char *path) {
        const char *p = startswith(path, service->base_url.path);

        return p && (*p == '/' || *p == '?' || *p == '#' || *p == 0) ? p : NULL;
}

int rewrite_location(const Service *service, const char *location, char **ret) {
        const char *below;
        int r = 0;

        *ret = NULL;
        if (location[0] == '/' && location[1] != '/' && location[1] != '\\') {
                below = below_base(service, location);
                if (!below)
                        return 0;
                *ret = strprintf("/v1/services/%s%s", service->name, below);
                return *ret ? 0 : -ENOMEM;
        }

        CURLU *u = curl_url();
        char *scheme = NULL, *host = NULL, *port = NULL, *path = NULL, *query = NULL, *user = NULL, *fragment = NULL;
        if (!u)
                return -ENOMEM;

        if (curl_url_set(u, CURLUPART_URL, location, CURLU_PATH_AS_IS | CURLU_NON_SUPPORT_SCHEME) == CURLUE_OK &&
            curl_url_get(u, CURLUPART_SCHEME, &scheme, 0) == CURLUE_OK &&
            curl_url_get(u, CURLUPART_HOST, &host, 0) == CURLUE_OK &&
            curl_url_get(u, CURLUPART_PORT, &port, CURLU_DEFAULT_PORT) == CURLUE_OK &&
            curl_url_get(u, CURLUPART_PATH, &path, 0) == CURLUE_OK &&
            curl_url_get(u, CURLUPART_USER, &user, 0) == CURLUE_NO_USER) {
                char want_port[8];
                const char *h = host;
                size_t l = strlen(host);

                (void) curl_url_get(u, CURLUPART_QUERY, &query, 0);
                (void) curl_url_get(u, CURLUPART_FRAGMENT, &fragment, 0);
                if (l > 2 && host[0] == '[' && host[l - 1] == ']') {
                        host[l - 1] = 0;
                        h++;
                }
                snprintf(want_port, sizeof(want_port), "%u", service->base_url.port);
                if (streq(scheme, service->base_url.tls ? "https" : "http") &&
                    strcasecmp(h, service->base_url.host) == 0 && streq(port, want_port) &&
                    (below = below_base(service, path))) {
                        *ret = strprintf("/v1/services/%s%s%s%s%s%s", service->name, below, query ? "?" : "",
                                         strempty(query),
                                         fragment ? "#" : "", strempty(fragment));
                        r = *ret ? 0 : -ENOMEM;
                }
        }

        curl_free(scheme);
        curl_free(host);
        curl_free(port);
        curl_free(path);
        curl_free(query);
        curl_free(user);
        curl_free(fragment);
        curl_url_cleanup(u);
        return r;
}

int rewrite_link(const Service *service, const char *link, char **ret) {
        _cleanup_free_ char *text = NULL;
        size_t size = 0;
        FILE *f = open_memstream(&text, &size);
        bool quoted = false;
        int r = 0;

        *ret = NULL;
        if (!f)
                return -ENOMEM;

        /* Targets stand between < and >, outside of quotes; what is no link is passed on as it is. */
        for (const char *p = link; *p && r >= 0;) {
                const char *end;

                if (*p == '"')
                        quoted = !quoted;
                else if (quoted && *p == '\\' && p[1])
                        fputc(*p++, f);
                else if (!quoted && *p == '<' && (end = strchr(p, '>'))) {
                        _cleanup_free_ char *target = strndup(p + 1, (size_t) (end - p - 1)), *rewritten = NULL;

                        r = target ? rewrite_location(service, target, &rewritten) : -ENOMEM;
                        if (r >= 0)
                                fprintf(f, "<%s>", rewritten ?: target);
                        p = end + 1;
                        continue;
                }
                fputc(*p++, f);
        }

        bool bad = ferror(f);
        if (fclose(f) != 0 || bad)
                r = -ENOMEM;
        if (r >= 0)
                *ret = TAKE_PTR(text);
        return r;
}
