/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * What a run can ask for. One table: method, path, function. A route's function is called with a request whose sender
 * is known; before that nothing happens but reading the head.
 */

#include "bridge.h"

typedef struct RouteRequest {
        BridgeRun *run;
        HttpRequest *http;
        LiveRun *live;     /* borrowed for the call; reference it to keep it */
        const char *token; /* borrowed; a secret */
        const char *path;  /* canonical, as a whole */
        const char *rest;  /* what follows the route's prefix, for routes that have one */
} RouteRequest;

/* The HTTP server's handlers for a run's listeners; userdata is the BridgeRun. */
void routes_handle(HttpRequest *req, void *userdata);
void routes_handle_unix(HttpRequest *req, void *userdata);
void routes_handle_proxy(HttpRequest *req, void *userdata);
/* And for the control socket, where only root comes through: userdata is the Bridge (control.c). */
void routes_handle_control(HttpRequest *req, void *userdata);

/* 401 (of a proxy: 407), the same for all reasons. */
void route_refuse(HttpRequest *req);
/* 429, and when to come again. */
void route_limited(HttpRequest *req, uint64_t retry_usec);

/* Decodes the escapes of a canonical segment. -EINVAL, -ENOMEM. */
int route_decode_name(const char *s, char **ret); /* route-artifact.c */

void route_get_run(const RouteRequest *r);     /* route-run.c */
void route_post_result(const RouteRequest *r); /* route-run.c */
void route_post_logs(const RouteRequest *r);   /* route-logs.c */
void route_post_events(const RouteRequest *r); /* route-events.c */
void route_post_metrics(const RouteRequest *r);
void route_get_session(const RouteRequest *r); /* route-state.c */
void route_put_session(const RouteRequest *r);
void route_post_usage(const RouteRequest *r);
void route_get_artifact(const RouteRequest *r);
void route_get_run_by_id(const RouteRequest *r);
void route_put_artifact(const RouteRequest *r);/* route-artifact.c */
void route_service(const RouteRequest *r);     /* service-call.c */
/* A request that names its service by Host, as if it spoke to it: the rest of it is r->path. */
void route_service_by_host(const RouteRequest *r, const char *host);
void route_proxy(const RouteRequest *r);       /* proxy.c */
