/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * The bridge: the only thing that code in a sandbox can reach. It owns one listener for each registered run, verifies
 * each request on its own (token, live file, listener), and serves the platform's routes or forwards to a service
 * with the credential attached. It holds no credential longer than one request, and no state that a restart would
 * lose: listeners lie in the service manager's store of file descriptors, everything else about a run in its live
 * file.
 *
 * Whom it trusts: agentd (over D-Bus, root only) and its live files; the strong room's answers. Nobody in a sandbox,
 * no upstream.
 */

#include <systemd/sd-bus.h>
#include <systemd/sd-event.h>

#include "basic/strmap.h"
#include "curl/curl-glue.h"
#include "http/http-server.h"
#include "service/live-run.h"
#include "token/key-set.h"

#define BRIDGE_KEYS_DIRECTORY "/run/agentd/keys"
#define BRIDGE_MATERIAL_SOCKET "/run/agent-credential/material"
#define BRIDGE_RUNS_MAX 4096U /* as many as the store of file descriptors takes: FileDescriptorStoreMax= */

typedef struct Bridge Bridge;
typedef struct BridgeRun BridgeRun;
typedef struct ReportQueue ReportQueue;

typedef struct BridgeConfig {
        char **allow_addresses;    /* [Upstream] AllowAddresses= */
        char *ca_file;             /* [Upstream] CAFile= */
        uint64_t connections_max;  /* [Bridge] ConnectionsMax=, for each run */
        uint64_t drain_usec;       /* [Bridge] DrainSec= */
} BridgeConfig;

typedef struct BridgePaths {
        const char *live, *keys, *material; /* NULL: the usual places; others are for tests */
} BridgePaths;

struct Bridge {
        sd_event *event;
        sd_bus *bus; /* NULL only in tests */
        BridgeConfig config;
        BridgePaths paths;

        HttpServer *server;
        AddressGuard *guard;
        CurlGlue *curl;
        KeySet *keys;
        LiveCache *live;
        ReportQueue *reports;

        StrMap *runs; /* of BridgeRun, by id */
        HttpListener *control;
        sd_event_source *drain_timer;
        bool draining;
        int old_reports; /* of the bridge before us */
};

/* Reads bridge.conf, connects to nothing yet. PATHS may be NULL. */
int bridge_new(const BridgePaths *paths, Bridge **ret);
Bridge *bridge_free(Bridge *b);
DEFINE_CLEANUP(Bridge *, bridge_free);
/* Takes inherited listeners back, connects to the bus. Logs what fails. */
int bridge_startup(Bridge *b);
/* Until SIGTERM and the end of the drain. */
int bridge_serve(Bridge *b);

/* bridge-bus.c */
int bridge_bus_startup(Bridge *b);

/* One registered run: its listener, and what was counted for it. */
struct BridgeRun {
        Bridge *bridge;
        char id[RUN_ID_LEN + 1];
        HttpListener *listener;
        uint64_t log_bytes; /* taken so far; starts again after a restart of the bridge */
        bool log_full;      /* and it was said */
        unsigned denials;   /* requests with a wrong token, for the log's sake */
};

/* Takes FD, a listening stream socket, on success. A run that is registered already gets the new listener: the
 * next attempt has a network namespace of its own. STORE: also put it into the store of file descriptors. */
int bridge_run_register(Bridge *b, const char *id, int fd, bool store);
/* Removes it from the store, closes the listener and all that came through it. -ENOENT where it is not registered. */
int bridge_run_unregister(Bridge *b, const char *id);
BridgeRun *bridge_run_free(BridgeRun *run);
