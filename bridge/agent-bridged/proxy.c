/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * The forward proxy, for programs that want to go to hosts of their own (package managers above all): CONNECT, and GET
 * http://… in absolute form. Only to the hosts that the agent's definition lists, and to none where it lists none. No
 * credential is attached here. The run's token comes as the proxy's password (Proxy-Authorization).
 */

#include "basic/log.h"
#include "basic/string-util.h"
#include "exchange.h"
#include "http/problem.h"
#include "service-call.h"
#include "service/proxy-allow.h"
#include "tunnel.h"

/* A service of this request alone. */
static Service *make_destination(const char *host, uint16_t port) {
        Service *s = calloc(1, sizeof(Service));

        if (!s)
                return NULL;
        *s = (Service) {
                .n_ref = 1,
                .name = strdup("proxy"),
                .base_url = { .text = strprintf("http://%s:%u", host, port), .host = strdup(host), .port = port,
                              .path = strdup("") },
                .auth.kind = SERVICE_AUTH_NONE,
                .connect_usec = 10 * USEC_PER_SEC,
                .first_byte_usec = 600 * USEC_PER_SEC,
                .idle_usec = 600 * USEC_PER_SEC,
                .body_max = UINT64_MAX,
        };
        if (!s->name || !s->base_url.text || !s->base_url.host || !s->base_url.path)
                s = service_unref(s);
        return s;
}

void route_proxy(const RouteRequest *r) {
        const HttpHead *head = http_request_head(r->http);
        _cleanup_free_ char *host = NULL;
        uint16_t port;

        if (!head->authority) {
                http_problem(r->http, 400, "proxy-only", "This is a forward proxy; the routes are at another port.",
                             NULL, 0);
                return;
        }
        int k = proxy_authority_parse(head->authority, head->tunnel ? 0 : 80, &host, &port);
        if (k == -ENOMEM) {
                http_problem(r->http, 503, "out-of-memory", NULL, NULL, 0);
                return;
        }
        if (k < 0 || !proxy_allows(r->live->proxy, host, port)) {
                exchange_of(r->http)->outcome = "denied";
                http_problem(r->http, 403, "host-not-allowed",
                             r->live->holder ? "This session may not go to this host and port: they are neither among "
                                               "AllowHosts= of agentd.conf nor were they named by --allow-host." :
                                               "The agent's definition does not allow this host and port.",
                             NULL, 0);
                return;
        }
        if (head->tunnel) {
                tunnel_begin(r, host, port);
                return;
        }

        _cleanup_(service_unrefp) Service *destination = make_destination(host, port);
        if (!destination)
                http_problem(r->http, 503, "out-of-memory", NULL, NULL, 0);
        else
                call_proxy(r, destination);
}
