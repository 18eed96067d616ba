/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * A small HTTP/1.1 server in sd-event, for clients that are hostile. It is strict (see http-parser.h), handles one
 * request at a time on each connection, and holds bounded memory for each whatever the client does: one head,
 * HTTP_BODY_WINDOW of a body that nobody has read yet, HTTP_OUTPUT_MAX of an answer that the client has not taken
 * yet. Whole documents, collected or sent in one piece, may be larger; of those all connections of a listener together
 * hold HTTP_HELD_MAX, and what would be more is answered with 503.
 *
 * What it answers by itself: all that is malformed (400, 408, 414, 417, 431, 501, 505), Upgrade: websocket (426). A
 * connection that opens with HTTP/2's preface is closed without a word. Everything else goes to the handler of the
 * listener that it came through.
 *
 * Handlers are called from the event loop. They must not free the server or a listener from within a call that the
 * server made to them (do it from a source of their own); all functions of http-request.h may be called at any time.
 */

#include <systemd/sd-event.h>

#include "basic/event-hub.h"
#include "http/http-parser.h"
#include "http/http-request.h"

#define HTTP_BODY_WINDOW ((size_t) 64 * 1024)
#define HTTP_OUTPUT_MAX ((size_t) 256 * 1024)
#define HTTP_HELD_MAX ((size_t) 16 * 1024 * 1024)

typedef struct HttpServer HttpServer;
typedef struct HttpListener HttpListener;

typedef struct HttpServerOptions {
        EventHub *hub; /* of all connections, borrowed, must outlive the server; NULL: one of its own */
        HttpParserLimits parser;
        uint64_t head_usec;       /* for a whole head, from the accept or its first byte */
        uint64_t keep_alive_usec; /* between two requests */
        uint64_t body_usec;       /* without a byte of a body that we are waiting for */
        uint64_t write_usec;      /* without the client taking a byte of the answer */
        uint64_t tunnel_usec;     /* without a byte in either direction of a tunnel */
        uint64_t linger_usec;     /* for the client to read an early answer before we reset */
        unsigned connections_max; /* for each listener; idle ones make room, otherwise new ones wait in the backlog */
        unsigned total_max;       /* for all together, 0: any. The last quarter is shared out evenly among listeners, so
                                   * that none can take all */
} HttpServerOptions;

#define HTTP_SERVER_OPTIONS_DEFAULT                                                                                    \
        (HttpServerOptions) {                                                                                          \
                .parser = HTTP_PARSER_LIMITS_DEFAULT, .head_usec = 10 * USEC_PER_SEC,                                  \
                .keep_alive_usec = 120 * USEC_PER_SEC, .body_usec = 60 * USEC_PER_SEC,                                 \
                .write_usec = 300 * USEC_PER_SEC, .tunnel_usec = 600 * USEC_PER_SEC,                                   \
                .linger_usec = 2 * USEC_PER_SEC, .connections_max = 256,                                               \
        }

int http_server_new(sd_event *event, const HttpServerOptions *options, HttpServer **ret);
/* Frees all its listeners. */
HttpServer *http_server_free(HttpServer *s);
DEFINE_CLEANUP(HttpServer *, http_server_free);

/* Called when a head was read. Must lead to an answer, at once or later. */
typedef void (*http_handler_t)(HttpRequest *req, void *userdata);

/* Takes FD, a listening stream socket, on success. */
int http_listener_new(HttpServer *s, int fd, http_handler_t handler, void *userdata, HttpListener **ret);
/* Its clients speak to a proxy: CONNECT and targets in absolute form are let through to the handler. */
void http_listener_set_proxy(HttpListener *l);
/* Closes the listener and cuts all its connections; the done callbacks of their requests are called. */
HttpListener *http_listener_free(HttpListener *l);
DEFINE_CLEANUP(HttpListener *, http_listener_free);
/* Cuts the connections whose request matches, as above. */
void http_listener_cut(HttpListener *l, bool (*match)(HttpRequest *req, void *userdata), void *userdata);
/* 0: of AF_UNIX. */
uint16_t http_listener_port(const HttpListener *l);

typedef struct HttpListenerStatistics {
        uint64_t accepted, requests, malformed, http2_prefaces, timeouts;
        unsigned connections;
} HttpListenerStatistics;

const HttpListenerStatistics *http_listener_statistics(const HttpListener *l);

/* What became of one request. */
typedef struct HttpRecord {
        HttpRequest *request; /* NULL where its head was refused: there never was one */
        const char *id;
        unsigned status; /* 0: nothing was answered */
        uint64_t request_bytes, response_bytes; /* of the bodies */
        uint64_t duration_usec;
        HttpOutcome outcome;
} HttpRecord;

/* Called exactly once for each request, after its done callback, and for each head that was refused with an answer.
 * USERDATA is the listener's. */
typedef void (*http_observer_t)(HttpListener *l, const HttpRecord *record, void *userdata);
void http_listener_set_observer(HttpListener *l, http_observer_t observer);

/* Accepts nothing more, closes idle connections, lets requests in flight end, then calls DONE (from the loop).
 * Listeners stay open: clients wait in their backlogs. */
int http_server_drain(HttpServer *s, void (*done)(void *userdata), void *userdata);
unsigned http_server_connections(const HttpServer *s);

/* Serves one connected socket as if it had been accepted; takes FD on success. For tests. */
int http_listener_adopt(HttpListener *l, int fd);
