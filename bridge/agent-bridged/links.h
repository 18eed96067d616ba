/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * URLs in an answer that a client follows by itself: Location, Content-Location, Link. The client has asked the
 * bridge, so it takes what is relative for a place at the bridge; the upstream meant one of its own. And all services
 * are one origin to the client, which takes its token along within one. So everything is read as the upstream meant
 * it: what lies inside the service becomes the way through the bridge that leads there, what lies elsewhere an
 * absolute URL, and what leads to the bridge itself is dropped: no upstream has a say about other services, or about
 * the run.
 */

#include "basic/macro.h"
#include "service/service.h"

typedef struct LinkBase {
        const Service *service;
        const char *path;      /* of the request, below the service, canonical, or "" */
        const char *authority; /* what the client calls us: its Host; or NULL */
        uint16_t port;         /* of the listener, 0: of AF_UNIX */
} LinkBase;

/* *RET: what stands in its place, NULL: as it is. -EPERM: to be dropped. -ENOMEM. */
int rewrite_location(const LinkBase *base, const char *location, char **ret);

/* The same for a Link header, with any number of targets in it; one to be dropped becomes "about:invalid". *RET is
 * always made. */
int rewrite_link(const LinkBase *base, const char *link, char **ret);

/* A Set-Cookie of a service whose cookies pass: kept to this service's paths by the client, whatever it says of
 * domain, path and transport. *RET is always made. */
int rewrite_cookie(const LinkBase *base, const char *cookie, char **ret);
