/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* See forward-headers.h. */

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
        for (; *pattern != '*'; name++, pattern++) {
                if (http_field_name_fold(*name) != *pattern)
                        return false;
                if (*pattern == 0)
                        return true;
        }
        return true;
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
