/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * What server, connection and request know of each other. A server owns its listeners, a listener its connections, a
 * connection at most one request. A connection is only freed by its own top-level event handlers and by its listener;
 * everything else marks it (connection_fail(), connection_kick()) and leaves the rest to the next turn of the loop.
 */

#include <sys/uio.h>

#include "basic/event-hub.h"
#include "http/http-server.h"
#include "http/problem.h"

#define HTTP_READ_SIZE ((size_t) 16 * 1024)
#define HTTP_OUTPUT_HIGH ((size_t) 64 * 1024) /* http_response_writable() says no from here on */
#define HTTP_OUTPUT_LOW ((size_t) 16 * 1024)  /* and the handler is called again from here on */

typedef struct HttpConnection HttpConnection;

struct HttpRequest {
        HttpConnection *connection;
        const HttpRequestOps *ops;
        void *userdata;
        void *context;
        char id[33];
        uint64_t started_usec;
        const char *problem_code; /* of the answer, where it is a problem */
        ProblemStyle problem_style;

        /* Body. */
        bool accepted, readable_pending, body_over;
        bool again; /* http_request_call_again() */
        uint64_t body_max, body_received;

        /* Answer. */
        bool started, ended, chunked, without_body, close_after, want_writable, tunnel;
        unsigned status;
        uint64_t length, written;

        /* http_request_collect() */
        HttpBuffer collected;
        size_t collect_max;
        http_collect_done_t collect_done;
        void *collect_userdata;
};

typedef enum ConnectionState {
        CONNECTION_HEAD,     /* idle, or reading a head */
        CONNECTION_EXCHANGE, /* a request is being handled */
        CONNECTION_CLOSING,  /* the last answer goes out */
        CONNECTION_LINGER,   /* we said all; the client may still be sending */
} ConnectionState;

struct HttpConnection {
        HttpListener *listener;
        HttpConnection *next, *previous;
        int fd;
        HubWatch io;
        HubTask kick;
        sd_event_source *timer;
        uint64_t timer_armed;  /* when timer fires; USEC_INFINITY: off */

        ConnectionState state;
        bool busy;             /* inside connection_advance(): no second entry */
        bool dead;             /* to be freed when connection_advance() ends */
        bool failed, peer_eof, reset;
        HttpOutcome outcome;   /* of the failure */
        bool served;           /* at least one request was read */
        uint64_t progress_usec;/* when the client last did what we wait for in this state */

        HttpParser *parser;
        HttpBuffer in, body, out;
        HttpRequest *request;
};

struct HttpListener {
        HttpServer *server;
        HttpListener *next, *previous;
        int fd;
        sd_event_source *io;
        bool backing_off; /* out of file descriptors */
        bool proxy;
        http_handler_t handler;
        http_observer_t observer;
        void *userdata;
        HttpConnection *connections;
        HttpListenerStatistics statistics;
};

struct HttpServer {
        sd_event *event;
        EventHub *hub, *own_hub; /* for all connections */
        HttpServerOptions options;
        HttpListener *listeners;
        sd_event_source *retry; /* after EMFILE */
        unsigned n_connections, n_listeners;
        unsigned n_calls; /* callbacks of ours that are running */
        bool draining;
        void (*drain_done)(void *userdata);
        void *drain_userdata;
        sd_event_source *drain;
};

int connection_new(HttpListener *l, int fd);
HttpConnection *connection_free(HttpConnection *c);
/* Puts the exchange to its end with OUTCOME in the next turn of the loop. */
void connection_fail(HttpConnection *c, HttpOutcome outcome, bool reset);
/* Has connection_advance() called from the loop. */
void connection_kick(HttpConnection *c);
int connection_flush(HttpConnection *c);
/* Sends, behind what waits to be sent; what the kernel does not take waits as well. */
int connection_write(HttpConnection *c, const struct iovec *pieces, size_t n_pieces);
/* The client's time for what we wait for next begins now. */
void connection_touch(HttpConnection *c);
bool connection_is_idle(const HttpConnection *c);
/* For a drain: idle ones go, the others end after what they do. */
void connection_drain(HttpConnection *c);

/* 32 hex digits and a NUL. */
int request_id_new(char ret[static 33]);
int request_new(HttpConnection *c, HttpRequest **ret);
void request_free(HttpRequest *req);

void listener_update(HttpListener *l);
/* Whether MORE bytes of a large document may be held beside what its connections hold already. */
bool listener_has_room(const HttpListener *l, size_t more);
void listener_connection_gone(HttpListener *l);
void server_connection_gone(HttpServer *s);
