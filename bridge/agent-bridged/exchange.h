/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * What is known of one request beside the request itself: whose it is, what it wanted, why it was refused. It is made
 * before anything else is done with a request and lives a little longer than that: when all is over, exactly one record
 * is written to the journal from it (the audit), and the counters move. No body, no query, no header and no token is in
 * a record; a path only where it was found to be one, by somebody who may speak here.
 */

#include "bridge.h"
#include "limiter.h"

typedef struct Exchange {
        LiveRun *live;       /* NULL: nobody was recognised */
        const char *route;   /* a constant */
        const char *reason;  /* why the token was refused: a constant */
        const char *outcome; /* a constant; NULL: what the HTTP server says */
        char *service, *path;
        Lease lease;
} Exchange;

/* Makes the context of a request. -ENOMEM. */
int exchange_new(HttpRequest *req, Exchange **ret);
Exchange *exchange_of(const HttpRequest *req);
/* Both may be NULL. */
void exchange_set_target(HttpRequest *req, const char *service, const char *path);

/* The observer of all listeners of runs; writes the record, counts, frees the exchange. */
void exchange_observe(HttpListener *l, const HttpRecord *record, void *userdata);

/* Of requests that are not let in (no token that is good, no HTTP, too often) so many of a run have a record of their
 * own each second; of the rest one record says how many there were. Else a sandbox could fill the journal. */
#define REFUSALS_PER_SECOND 100U
/* Writes the latter, where there is something to say. */
void exchange_flush_refusals(BridgeRun *run);
