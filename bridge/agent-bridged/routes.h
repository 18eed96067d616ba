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

/* The HTTP server's handler for a run's listener; userdata is the BridgeRun. */
void routes_handle(HttpRequest *req, void *userdata);
/* And for the control socket, where only root comes through: userdata is the Bridge. */
void routes_handle_control(HttpRequest *req, void *userdata);

/* 401, the same for all reasons. */
void route_refuse(HttpRequest *req);

void route_get_run(const RouteRequest *r);     /* route-run.c */
void route_post_result(const RouteRequest *r); /* route-run.c */
void route_post_logs(const RouteRequest *r);   /* route-logs.c */
void route_put_artifact(const RouteRequest *r);/* route-artifact.c */
void route_service(const RouteRequest *r);     /* service-call.c */
