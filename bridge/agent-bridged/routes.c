/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* See routes.h. */

#include <strings.h>

#include "auth.h"
#include "basic/log.h"
#include "basic/string-util.h"
#include "basic/text.h"
#include "exchange.h"
#include "http/http-path.h"
#include "http/problem.h"
#include "routes.h"

typedef struct Route {
        const char *name;    /* for records and counters */
        const char *methods; /* separated by blanks; NULL: the function looks at the method itself */
        const char *path;    /* ends with '/': everything below, but not itself */
        void (*function)(const RouteRequest *r);
} Route;

/* Entries of one path stand together. */
static const Route routes[] = {
        { "run", "GET", "/v1/run", route_get_run },
        { "result", "POST", "/v1/run/result", route_post_result },
        { "events", "POST", "/v1/run/events", route_post_events },
        { "logs", "POST", "/v1/logs", route_post_logs },
        { "metrics", "POST", "/v1/metrics", route_post_metrics },
        { "usage", "POST", "/v1/usage", route_post_usage },
        { "session", "GET", "/v1/session", route_get_session },
        { "session", "PUT", "/v1/session", route_put_session },
        { "artifact", "GET HEAD", "/v1/artifacts/", route_get_artifact },
        { "artifact", "PUT", "/v1/artifacts/", route_put_artifact },
        { "runs", "GET", "/v1/runs/", route_get_run_by_id },
        { "service", NULL, "/v1/services/", route_service },
};

void route_refuse(HttpRequest *req) {
        /* Basic is what git asks for before it sends what it has; both lead to the same place. */
        static const HttpField fields[] = {
                { "WWW-Authenticate", "Bearer" },
                { "WWW-Authenticate", "Basic realm=\"agent-bridge\"" },
        };
        static const HttpField proxy_fields[] = {
                { "Proxy-Authenticate", "Bearer" },
                { "Proxy-Authenticate", "Basic realm=\"agent-bridge\"" },
        };
        static const char detail[] = "The run token is missing, wrong, or of a run that is over.";

        if (http_request_head(req)->authority)
                http_problem(req, 407, "token-refused", detail, proxy_fields, ELEMENTSOF(proxy_fields));
        else
                http_problem(req, 401, "token-refused", detail, fields, ELEMENTSOF(fields));
}

void route_limited(HttpRequest *req, uint64_t retry_usec) {
        char seconds[24];
        const HttpField field = { "Retry-After", seconds };

        snprintf(seconds, sizeof(seconds), "%" PRIu64,
                 MAX((retry_usec + USEC_PER_SEC - 1) / USEC_PER_SEC, UINT64_C(1)));
        http_problem(req, 429, "too-many-requests", "Too many requests at the moment; try again a little later.",
                     &field, 1);
}

static bool method_in(const char *methods, const char *method) {
        size_t l = strlen(method);

        for (const char *p = methods; *p;) {
                size_t n = strcspn(p, " ");
                if (n == l && memcmp(p, method, n) == 0)
                        return true;
                p += n;
                p += strspn(p, " ");
        }
        return false;
}

static void dispatch(const RouteRequest *base) {
        const HttpHead *head = http_request_head(base->http);
        char allowed[64] = "";
        RouteRequest r = *base;

        for (size_t i = 0; i < ELEMENTSOF(routes); i++) {
                const char *rest = startswith(r.path, routes[i].path);

                if (!rest || (endswith(routes[i].path, "/") ? *rest == 0 : *rest != 0))
                        continue;
                exchange_of(r.http)->route = routes[i].name;
                if (routes[i].methods && !method_in(routes[i].methods, head->method)) {
                        for (const char *p = routes[i].methods; *p && strlen(allowed) + 10 < sizeof(allowed);) {
                                size_t n = strcspn(p, " ");

                                if (*allowed)
                                        strcat(allowed, ", ");
                                strncat(allowed, p, n);
                                p += n;
                                p += strspn(p, " ");
                        }
                        continue;
                }
                if (routes[i].function != route_service && strstr(r.path, "%2F"))
                        break;
                r.rest = rest;
                routes[i].function(&r);
                return;
        }

        if (strstr(r.path, "%2F"))
                http_problem(r.http, 400, "bad-path", "The path has an escaped '/'.", NULL, 0);
        else if (*allowed)
                http_problem(r.http, 405, "method-not-allowed", NULL, &(HttpField) { "Allow", allowed }, 1);
        else
                http_problem(r.http, 404, "no-such-route", "There is nothing at this path of the bridge.", NULL, 0);
}

/* Who is it? Fills RUN, LIVE, TOKEN. False: was answered. */
static bool recognise(HttpRequest *req, BridgeRun *run, bool proxy, RouteRequest *ret, LiveRun **ret_live,
                      char **ret_token) {
        const char *reason = NULL;
        uint64_t retry_usec = 0, now = 0;
        Exchange *x;

        int r = exchange_new(req, &x);
        if (r < 0) {
                http_problem(req, 503, "out-of-memory", NULL, NULL, 0);
                return false;
        }

        r = auth_verify(run, http_request_head(req), proxy, ret_live, ret_token, &reason);
        if (r == -EACCES) {
                /* Requests without any token are how many clients begin, and no attack. */
                if (!streq(reason, "no token"))
                        run->denials++;
                run->bridge->counters.denied++;
                x->reason = reason;
                route_refuse(req);
                return false;
        }
        if (r < 0) {
                log_limited_errno(LOG_ERR, r, "Run %s: failed to verify a token: %m", run->id);
                http_problem(req, 503, "verification-unavailable", NULL, NULL, 0);
                return false;
        }
        x->live = live_run_ref(*ret_live);
        if (run == run->bridge->remote)
                run = strmap_get(run->bridge->runs, (*ret_live)->run); /* is there: auth_verify() has looked */

        /* All requests count here, what they do elsewhere; so a run cannot fill the journal either. */
        Limit rate = run->bridge->config.run_limit;
        rate.concurrent = 0;
        (void) sd_event_now(run->bridge->event, CLOCK_MONOTONIC, &now);
        char buf[64];
        const char *key = text_key(buf, sizeof(buf), "run ", run->id, NULL);
        Lease lease = {};
        r = key ? limit_take(run->bridge->limits, key, &rate, now, &lease, 0, &retry_usec) : -ENAMETOOLONG;
        lease_release(&lease);
        if (r < 0) {
                run->bridge->counters.limited++;
                if (r == -EAGAIN)
                        route_limited(req, retry_usec);
                else
                        http_problem(req, 503, "out-of-memory", NULL, NULL, 0);
                return false;
        }

        *ret = (RouteRequest) { .run = run, .http = req, .live = *ret_live, .token = *ret_token };
        return true;
}

static bool canonical_path(HttpRequest *req, char **ret) {
        const HttpHead *head = http_request_head(req);

        /* Whether an escaped '/' is fine is the service's to say. */
        int r = http_path_canonicalize_slashes(head->path, strlen(head->path), ret);
        if (r == -ENOMEM)
                http_problem(req, 503, "out-of-memory", NULL, NULL, 0);
        else if (r < 0)
                http_problem(req, r == -ENAMETOOLONG ? 414 : 400, "bad-path",
                             "The path has dot segments, empty segments or escapes that could be read in two ways.",
                             NULL, 0);
        return r >= 0;
}

static void handle(HttpRequest *req, BridgeRun *run, const char *host) {
        _cleanup_(live_run_unrefp) LiveRun *live = NULL;
        _cleanup_free_ char *token = NULL, *path = NULL;
        RouteRequest r;

        if (recognise(req, run, false, &r, &live, &token) && canonical_path(req, &path)) {
                r.path = path;
                /* No secret in a record: a token in a path is refused later, or leads nowhere. */
                exchange_set_target(req, NULL, strstr(path, token) ? "/?" : path);
                if (host)
                        route_service_by_host(&r, host);
                else
                        dispatch(&r);
        }
        if (token)
                explicit_bzero(token, strlen(token));
}

void routes_handle(HttpRequest *req, void *userdata) {
        handle(req, userdata, NULL);
}

void routes_handle_unix(HttpRequest *req, void *userdata) {
        const char *host = http_head_get(http_request_head(req), "host");

        /* Without a name of its own a client has to say something. */
        if (!host || strcasecmp(host, "agent-bridge") == 0 || strcasecmp(host, "localhost") == 0)
                host = NULL;
        handle(req, userdata, host);
}

void routes_handle_proxy(HttpRequest *req, void *userdata) {
        _cleanup_(live_run_unrefp) LiveRun *live = NULL;
        _cleanup_free_ char *token = NULL;
        RouteRequest r;

        if (recognise(req, userdata, true, &r, &live, &token)) {
                exchange_of(req)->route = "proxy";
                route_proxy(&r);
        }
        if (token)
                explicit_bzero(token, strlen(token));
}
