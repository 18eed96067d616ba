/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * What the glue (libcurl's multi handle inside the event loop) and its transfers (an easy handle each) know of each
 * other.
 */

#include <openssl/ssl.h>

#include "basic/event-hub.h"
#include "curl/curl-glue.h"

#define HANDLES_MAX 8U /* that nobody uses at the moment */

typedef struct CurlSocket CurlSocket;

struct CurlGlue {
        sd_event *event;
        EventHub *hub, *own_hub;
        CURLM *multi;
        sd_event_source *timer;
        uint64_t timer_wanted, timer_armed; /* USEC_INFINITY: off; one that fires too early just looks again */
        HubTask timeout, finished, start;
        CurlTransfer *waiting, *last_waiting; /* for their turn to make a connection */
        sd_event_source *patience;
        unsigned n_own,
                n_running; /* connections to servers that are open, or being made; transfers in libcurl's hands */
        unsigned n_connecting;     /* of the present round */
        unsigned round;
        CurlSocket **sockets; /* by their numbers */
        size_t n_sockets;
        const AddressGuard *guard;
        char *ca_file;
        X509_STORE *trust; /* for all connections: what was looked up stays there, what nobody asks for is never read */
        struct timespec ca_file_mtime, ca_path_mtime;
        bool allow_http;
        unsigned n_transfers;
        CURL *handles[HANDLES_MAX]; /* of transfers that are over: to make one is work, to reset it is less */
        unsigned n_handles;
        unsigned depth; /* inside libcurl: nothing may be freed */
        bool finishing;
};

struct CurlTransfer {
        CurlGlue *glue;
        CURL *easy;
        struct curl_slist *headers;
        HubTask unpause;
        CurlTransfer *next_waiting;
        bool waiting, connecting;
        unsigned round;
        curl_done_t done;
        void *userdata;
        bool running, refused, connect_only;
        int socket; /* of connect_only, when that has succeeded */
        char error[CURL_ERROR_SIZE];
};

/* Notes a socket that libcurl is to have. OWN: made by us, closed by us. */
int glue_new_socket(CurlGlue *g, curl_socket_t fd, bool own, CurlSocket **ret);
/* Where the socket is closed already, taking it out of the epoll set fails, which means nothing. */
void glue_drop_socket(CurlGlue *g, curl_socket_t fd);
/* Lets libcurl look at FD, or at what time it is. */
void glue_action(CurlGlue *g, curl_socket_t fd, int what);
/* Gives the transfer to libcurl: now where a connection may be there for it, else when it is its turn. */
int glue_start(CurlTransfer *t);
/* It does not wait, or connect, any more. Idempotent. */
void glue_forget(CurlTransfer *t);
/* The connection of this one is made. */
void glue_connected(CurlTransfer *t);

/* CURLOPT_SSL_CTX_FUNCTION, with the glue. */
CURLcode glue_set_up_tls(CURL *easy, void *context, void *userdata);
