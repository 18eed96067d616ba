/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * One call of a service: ANY /v1/services/SERVICE/…. In this order: service in scope, method and path allowed, size;
 * then the credential; then the request is built anew from checked parts and streamed, and so is the answer. Nothing
 * is followed, nothing is retried but a refused access token, once, while no byte of the body is lost. Whatever
 * happens, there is one report to agentd.
 *
 * A call lives as long as its HTTP request and ends with its done callback. Internal to service-call.c,
 * service-policy.c and service-upstream.c.
 */

#include "approval.h"
#include "http/http-request.h"
#include "material-client.h"
#include "redactor.h"
#include "report.h"
#include "routes.h"

#define CALL_REPLAY_MAX ((size_t) 64 * 1024) /* bodies up to here are kept, to be sent a second time */
#define CALL_HEAD_MAX ((size_t) 64 * 1024)   /* of the upstream's answer */
#define CALL_FIELDS_MAX 128U

/* How the client addresses the service; so its links are rewritten, or not. */
typedef enum CallMode {
        CALL_BY_NAME, /* /v1/services/NAME/… */
        CALL_BY_HOST, /* as if it spoke to the service itself */
        CALL_PROXY,   /* through the forward proxy: no service at all, no credential, no policy but the host */
} CallMode;

typedef struct ServiceCall {
        Bridge *bridge;
        BridgeRun *run;
        HttpRequest *http;
        LiveRun *live;
        Service *service;
        char *token;  /* a secret */
        char *method;
        char *path;   /* below the service, canonical (of a proxy: as it came), starts with '/', or "" */
        char *path_shown; /* the same for records */
        CallMode mode;
        uint64_t body_max;

        Approval *approval;
        MaterialCall *material_call;
        unsigned material_tries;
        Material material;
        Redactor *redactor;
        bool retried, retry;

        /* Request body: kept (replay) or streamed. */
        bool keep_body, body_kept, body_too_large, upload_paused;
        HttpBuffer body;
        size_t body_sent; /* of the kept one */
        uint64_t request_bytes;

        /* The upstream. */
        CurlTransfer *transfer;
        uint64_t progress_usec;
        struct ServiceCall *clock_next, *clock_previous; /* see call-clock.c */
        bool on_clock;

        /* Its answer. */
        HttpFieldList fields;
        char *hop_by_hop; /* further headers that end here: what its Connection says */
        size_t head_size;
        unsigned status;
        uint64_t length;
        bool length_known, head_complete, head_bad, download_paused;
        uint64_t response_bytes;

        /* For the report. */
        uint64_t started_usec, started_monotonic_usec;
        unsigned reported_status; /* what the sandbox was told */
        const char *outcome;
        CallReport *report; /* noted, not sent yet */
} ServiceCall;

/* service-upstream.c: makes the transfer as far as it can be made without the credential: the bridge has the time while
 * the strong room is asked. Nothing goes out. */
int call_upstream_prepare(ServiceCall *c);
/* Begins it with what is in the call. On failure an answer was given. */
void call_upstream_start(ServiceCall *c);
/* Drops the transfer and what was read of its answer. Not from within its callbacks. */
void call_upstream_drop(ServiceCall *c);

/* call-clock.c: on the clock a call fails where its upstream says nothing for too long. To be added again when the time
 * that it has becomes another one. */
int call_clock_add(CallClock *k, ServiceCall *c);
/* Does nothing for one that is not on it. */
void call_clock_remove(CallClock *k, ServiceCall *c);

/* service-policy.c: may it? Leads to call_get_material(), perhaps later, or to an answer. */
void call_check(ServiceCall *c);

/* service-call.c: gets the credential and goes on. */
void call_get_material(ServiceCall *c);
/* A call of a made-up service that is the destination of a proxy's client. */
void call_proxy(const RouteRequest *r, Service *service);
/* Writes down that the call happens, before its request goes out. */
int call_note(ServiceCall *c);
/* Ends the call with an answer of our own. */
void call_fail(ServiceCall *c, unsigned status, const char *code, const char *detail, const char *outcome);
/* The access token was refused: get another one and start again. */
void call_retry(ServiceCall *c);
