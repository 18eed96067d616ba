/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * libcurl's multi-socket interface inside sd-event, with one fixed set of options for all transfers: https only,
 * no redirects, no proxy, no netrc, no cookies, path as given, no decoding, HTTP/1.1, and every address passes the
 * guard before it is dialled. Nothing from the environment is looked at.
 *
 * A CurlTransfer owns one easy handle. Its callbacks run from the event loop. It may be freed at any moment but from
 * within one of curl's own callbacks (write, header, read): there return an error instead. The done callback may free
 * it. Few finished transfers are taken in one turn of the loop, so that they do not starve the rest.
 */

#include <curl/curl.h>
#include <systemd/sd-event.h>

#include "basic/event-hub.h"
#include "curl/address-guard.h"

typedef struct CurlGlue CurlGlue;
typedef struct CurlTransfer CurlTransfer;

typedef struct CurlGlueOptions {
        EventHub *hub;             /* borrowed, must outlive the glue; NULL: one of its own */
        const AddressGuard *guard; /* borrowed, must outlive the glue; NULL: public addresses only */
        const char *ca_file;       /* trusted beside the system's; NULL: only the system's */
        unsigned max_connections;  /* kept alive; 0: a default */
        bool allow_http;           /* for unit tests only */
} CurlGlueOptions;

int curl_glue_new(sd_event *event, const CurlGlueOptions *options, CurlGlue **ret);
/* All transfers must be gone before. */
CurlGlue *curl_glue_free(CurlGlue *g);
DEFINE_CLEANUP(CurlGlue *, curl_glue_free);
/* No transfer is there. */
bool curl_glue_is_idle(const CurlGlue *g);

typedef void (*curl_done_t)(CurlTransfer *t, CURLcode result, void *userdata);

/* A handle with the option set applied. URL is copied. */
int curl_transfer_new(CurlGlue *g, const char *url, CurlTransfer **ret);
/* Cancels a running transfer; its done callback is not called. */
CurlTransfer *curl_transfer_free(CurlTransfer *t);
DEFINE_CLEANUP(CurlTransfer *, curl_transfer_free);

/* The easy handle, for further options before the start and curl_easy_getinfo() after it. */
CURL *curl_transfer_handle(CurlTransfer *t);
/* Adds one header line. Refuses (-EINVAL) names that are no token and values with control characters. */
int curl_transfer_add_header(CurlTransfer *t, const char *name, const char *value);
/* Plain http for this one: for a forward proxy, whose client chose it and whose host the administrator did. */
int curl_transfer_allow_http(CurlTransfer *t);
/* Only connects, by the same rules; done comes when that is so. */
int curl_transfer_connect_only(CurlTransfer *t);
/* A descriptor of the connection that was made, for the caller to own. */
int curl_transfer_take_socket(CurlTransfer *t);
/* Keeps libcurl from adding a header of its own with that name. */
int curl_transfer_suppress_header(CurlTransfer *t, const char *name);
int curl_transfer_start(CurlTransfer *t, curl_done_t done, void *userdata);
/* Lifts what CURL_WRITEFUNC_PAUSE / CURL_READFUNC_PAUSE put on; from the next turn of the loop, so it may be
 * called anywhere. */
void curl_transfer_unpause(CurlTransfer *t);
/* True where the guard refused an address of this transfer. */
bool curl_transfer_refused(const CurlTransfer *t);
