/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* See routes.h. */

#include "auth.h"
#include "basic/log.h"
#include "basic/string-util.h"
#include "http/http-path.h"
#include "http/problem.h"
#include "routes.h"

typedef struct Route {
        const char *methods; /* separated by blanks; NULL: the function looks at the method itself */
        const char *path;    /* ends with '/': everything below, but not itself */
        void (*function)(const RouteRequest *r);
} Route;

static const Route routes[] = {
        { "GET", "/v1/run", route_get_run },
        { "POST", "/v1/run/result", route_post_result },
        { "POST", "/v1/logs", route_post_logs },
        { "PUT", "/v1/artifacts/", route_put_artifact },
        { NULL, "/v1/services/", route_service },
};

void route_refuse(HttpRequest *req) {
        /* Basic is what git asks for before it sends what it has; both lead to the same place. */
        static const HttpField fields[] = {
                { "WWW-Authenticate", "Bearer" },
                { "WWW-Authenticate", "Basic realm=\"agent-bridge\"" },
        };

        http_problem(req, 401, "token-refused", "The run token is missing, wrong, or of a run that is over.", fields,
                     ELEMENTSOF(fields));
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
        RouteRequest r = *base;

        for (size_t i = 0; i < ELEMENTSOF(routes); i++) {
                const char *rest = startswith(r.path, routes[i].path);

                if (!rest || (endswith(routes[i].path, "/") ? *rest == 0 : *rest != 0))
                        continue;
                if (routes[i].methods && !method_in(routes[i].methods, head->method)) {
                        const HttpField allow = { "Allow", routes[i].methods };

                        http_problem(r.http, 405, "method-not-allowed", NULL, &allow, 1);
                        return;
                }
                r.rest = rest;
                routes[i].function(&r);
                return;
        }

        http_problem(r.http, 404, "no-such-route", "There is nothing at this path of the bridge.", NULL, 0);
}

void routes_handle(HttpRequest *req, void *userdata) {
        BridgeRun *run = userdata;
        const HttpHead *head = http_request_head(req);
        _cleanup_(live_run_unrefp) LiveRun *live = NULL;
        _cleanup_free_ char *token = NULL, *path = NULL;
        const char *reason = NULL;

        int r = auth_verify(run, head, &live, &token, &reason);
        if (r == -EACCES) {
                /* Requests without any token are how many clients begin. The first few others are told, the rest
                 * is noise that the sandbox could fill the journal with. */
                if (!streq(reason, "no token") && run->denials++ < 20)
                        log_notice("Run %s: request refused, %s.", run->id, reason);
                route_refuse(req);
                return;
        }
        if (r < 0) {
                log_error_errno(r, "Run %s: failed to verify a token: %m", run->id);
                http_problem(req, 503, "verification-unavailable", NULL, NULL, 0);
                return;
        }

        r = http_path_canonicalize(head->path, strlen(head->path), &path);
        if (r == -ENOMEM)
                http_problem(req, 503, "out-of-memory", NULL, NULL, 0);
        else if (r < 0)
                http_problem(req, r == -ENAMETOOLONG ? 414 : 400, "bad-path",
                             "The path has dot segments, empty segments or escapes that could be read in two ways.",
                             NULL, 0);
        else
                dispatch(&(RouteRequest) { .run = run, .http = req, .live = live, .token = token, .path = path });

        explicit_bzero(token, strlen(token));
}

void routes_handle_control(HttpRequest *req, void *userdata) {
        static const HttpField fields[] = { { "Content-Type", "application/json" } };
        Bridge *b = userdata;
        const HttpHead *head = http_request_head(req);

        if (!streq(head->path, "/healthz") || !method_in("GET HEAD", head->method)) {
                http_problem(req, 404, "no-such-route", NULL, NULL, 0);
                return;
        }

        _cleanup_free_ char *text = strprintf("{\"status\":\"%s\",\"runs\":%zu,\"connections\":%u}\n",
                                              b->draining ? "draining" : "ok",
                                              strmap_size(b->runs), http_server_connections(b->server));
        if (!text || http_response_send(req, 200, fields, ELEMENTSOF(fields), text, strlen(text)) < 0)
                http_request_abort(req);
}
