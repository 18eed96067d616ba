/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * Connections to upstreams that are kept for the next request, apart for each service of each user. An upstream that
 * misjudges where a request's body ends takes the rest of it for the beginning of the next request on that
 * connection. Whose request that is must not be for a sandbox to choose: it bears a credential.
 */

#include "curl/curl-glue.h"

typedef struct UpstreamPool UpstreamPool;

#define UPSTREAM_POOLS_MAX 64U /* those that nobody uses go, the oldest first */

/* What OPTIONS points to must outlive the pool. */
int upstream_pool_new(sd_event *event, const CurlGlueOptions *options, UpstreamPool **ret);
/* All transfers must be gone before. */
UpstreamPool *upstream_pool_free(UpstreamPool *p);
DEFINE_CLEANUP(UpstreamPool *, upstream_pool_free);
/* The connections of SERVICE of USER. Good for transfers that begin now; to be asked for again for later ones. */
int upstream_pool_get(UpstreamPool *p, const char *user, const char *service, CurlGlue **ret);
size_t upstream_pool_size(const UpstreamPool *p);
