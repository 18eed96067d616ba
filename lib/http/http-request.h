/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * One request and its answer, as a handler sees them. The object belongs to its connection and lives until its done
 * callback returned, which is called exactly once, from the event loop, after the last byte of the answer was handed
 * to the kernel or after the exchange failed. Until then all functions here may be called, also after the client has
 * gone (they do nothing then).
 *
 * The body is not read before http_request_accept_body(): that is also when "100 Continue" is sent. An answer that is
 * started without reading the whole body ends the connection, as the rest cannot be told from the next request.
 */

#include "http/http-parser.h"

typedef struct HttpRequest HttpRequest;
typedef struct HttpListener HttpListener;

typedef enum HttpOutcome {
        HTTP_OUTCOME_COMPLETE,      /* the whole answer went out */
        HTTP_OUTCOME_CLIENT_CLOSED, /* the client went away, before the end of its body or of the answer */
        HTTP_OUTCOME_BAD_BODY,      /* the body was malformed */
        HTTP_OUTCOME_TIMEOUT,       /* the client sent or took nothing for too long */
        HTTP_OUTCOME_ABORTED,       /* http_request_abort(), or the answer was shorter than announced */
        HTTP_OUTCOME_SHUTDOWN,      /* its listener was closed */
        HTTP_OUTCOME_MALFORMED,     /* only in records: a head that was refused; there never was a request */
} HttpOutcome;

typedef struct HttpRequestOps {
        void (*readable)(HttpRequest *req, void *userdata); /* bytes of the body, or its end, can be read */
        /* the output fell low after http_response_writable() said no */
        void (*writable)(HttpRequest *req, void *userdata);
        void (*done)(HttpRequest *req, HttpOutcome outcome, void *userdata); /* the last call */
} HttpRequestOps;

const HttpHead *http_request_head(const HttpRequest *req);
/* 32 hex digits, ours, random. Each answer tells it to the client in HTTP_REQUEST_ID_HEADER. */
#define HTTP_REQUEST_ID_HEADER "Agent-Request-Id"
const char *http_request_id(const HttpRequest *req);
/* Something of the handler's that outlives the done callback: the listener's observer sees it, and frees it. */
void http_request_set_context(HttpRequest *req, void *context);
void *http_request_context(const HttpRequest *req);
HttpListener *http_request_listener(const HttpRequest *req);
/* OPS is static or lives as long as the request. Each member may be NULL. */
void http_request_set_ops(HttpRequest *req, const HttpRequestOps *ops, void *userdata);

/* Begins to read the body, of at most MAX bytes: beyond, http_request_read() fails. Calling it again is fine and
 * only changes MAX. */
void http_request_accept_body(HttpRequest *req, uint64_t max);
/* >0 bytes, 0 the body has ended, -EAGAIN nothing there yet, -EFBIG longer than allowed, -ECONNRESET the request
 * failed. */
ssize_t http_request_read(HttpRequest *req, void *buf, size_t size);
/* For a handler of readable for which what has come is work for more than one turn: it is called again in a later one,
 * though nothing new may have come, and neither more of the body nor its client's end is looked at until then. */
void http_request_call_again(HttpRequest *req);

/*
 * Reads the whole body, at most MAX bytes, into memory and calls DONE with it. What is too long is answered with 413;
 * what fails is told by a call with data == NULL. Replaces the request's ops until then; set them again in DONE for
 * what comes after.
 */
typedef void (*http_collect_done_t)(HttpRequest *req, const char *data, size_t size, void *userdata);
int http_request_collect(HttpRequest *req, size_t max, http_collect_done_t done, void *userdata);

/* Starts the answer. LENGTH: of the body, or HTTP_LENGTH_UNKNOWN (chunked). Framing and Connection are ours:
 * fields that speak of them, or that are no valid header, are -EINVAL and nothing was sent. -EALREADY where an
 * answer was started before. */
int http_response_start(HttpRequest *req, unsigned status, const HttpField *fields, size_t n_fields, uint64_t length);
/* Takes all of DATA or fails: -ENOBUFS where it would exceed HTTP_OUTPUT_MAX, -EMSGSIZE where it is more than
 * announced, -ECONNRESET where the client has gone. */
int http_response_write(HttpRequest *req, const void *data, size_t size);
/* False where enough is queued: stop writing and wait for the call of writable. */
bool http_response_writable(HttpRequest *req);
/* Ends the answer; one that is shorter than announced is aborted. */
void http_response_end(HttpRequest *req);
/* The three above for a body that is in memory already. */
int http_response_send(HttpRequest *req, unsigned status, const HttpField *fields, size_t n_fields, const void *data,
                       size_t size);
bool http_response_started(const HttpRequest *req);
/* Begins what follows a successful CONNECT: from now on the body is all that the client sends, and the answer all
 * that is written, both as they are. End the answer to close it; the end of the body comes as usual. */
int http_response_start_tunnel(HttpRequest *req);

/* Cuts the connection, so that the client cannot take what it got for the whole. */
void http_request_abort(HttpRequest *req);
