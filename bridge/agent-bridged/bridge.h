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
#include "http/http-server.h"
#include "limiter.h"
#include "service/live-run.h"
#include "token/key-set.h"
#include "upstream-pool.h"

#define BRIDGE_KEYS_DIRECTORY "/run/agentd/keys"
#define BRIDGE_MATERIAL_SOCKET "/run/agent-credential/material"
#define BRIDGE_RUNS_MAX 4096U /* as many as the store of file descriptors takes: FileDescriptorStoreMax= */

typedef struct Bridge Bridge;
typedef struct BridgeRun BridgeRun;
typedef struct ReportQueue ReportQueue;
typedef struct MaterialClient MaterialClient;
typedef struct CallClock CallClock;

typedef struct BridgeConfig {
        char **allow_addresses;    /* [Upstream] AllowAddresses= */
        char *ca_file;             /* [Upstream] CAFile= */
        uint64_t connections_max;  /* [Bridge] ConnectionsMax=, for each run */
        uint64_t drain_usec;       /* [Bridge] DrainSec= */
        Limit run_limit;           /* [Limits] RunRequestsPerSecond=, RunRequestsBurst=, RunCallsMax= */
        Limit user_limit;          /* [Limits] UserCallsPerSecond=, UserCallsBurst=, UserCallsMax= */
        uint64_t body_max;         /* [Limits] BodyMax=: of any request, whatever a service allows */
        uint64_t approval_usec;    /* [Bridge] ApprovalTimeoutSec= */
} BridgeConfig;

typedef struct BridgePaths {
        const char *live, *keys, *material; /* NULL: the usual places; others are for tests */
} BridgePaths;

/* For GET /metrics of the control socket; they start again with the bridge. */
#define BRIDGE_ROUTES_MAX 32U

typedef struct BridgeCounters {
        uint64_t outcomes[HTTP_OUTCOME_MALFORMED + 1];
        uint64_t classes[6]; /* of answers by their status / 100; 0: none was given */
        uint64_t request_bytes, response_bytes;
        struct {
                const char *route;
                uint64_t n;
        } routes[BRIDGE_ROUTES_MAX];
        uint64_t accepted, malformed, http2_prefaces, timeouts; /* of listeners that are closed */
        uint64_t limited, denied, redactions, upstream_errors;
} BridgeCounters;

struct Bridge {
        sd_event *event;
        sd_bus *bus; /* NULL only in tests */
        BridgeConfig config;
        BridgePaths paths;

        EventHub *hub; /* of all that a request goes through: clients, strong room, upstreams */
        HttpServer *server;
        AddressGuard *guard;
        UpstreamPool *upstreams;
        KeySet *keys;
        LiveCache *live;
        MaterialClient *material; /* the strong room */
        CallClock *clock; /* for upstreams that are silent */
        ReportQueue *reports;
        LimitTable *limits;
        BridgeCounters counters;

        StrMap *runs; /* of BridgeRun, by id */
        HttpListener *control;
        BridgeRun *remote; /* what comes from sandbox hosts elsewhere: its requests are of any run */
        sd_event_source *drain_timer, *trim_timer;
        unsigned n_calls, n_calls_peak; /* of services; most at once since memory was last given back */
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

/* A call of a service begins and ends. When a crowd of them has gone, so does the memory that they had. */
void bridge_call_begins(Bridge *b);
void bridge_call_ended(Bridge *b);

/* bridge-bus.c */
int bridge_bus_startup(Bridge *b);

/* What a run's listener is for. */
typedef enum RunListener {
        RUN_LISTENER_HTTP,  /* the routes */
        RUN_LISTENER_UNIX,  /* the same for requests to "agent-bridge"; services by their own host names */
        RUN_LISTENER_PROXY, /* forward proxy */
        _RUN_LISTENER_MAX,
        _RUN_LISTENER_INVALID = -EINVAL,
} RunListener;

RunListener run_listener_from_string(const char *s);

#define RUN_METRICS_MAX 64U

typedef struct RunMetric {
        char name[65];
        bool gauge;
        double value;
} RunMetric;

/* One registered run: its listeners, and what was counted for it. */
struct BridgeRun {
        Bridge *bridge;
        char id[RUN_ID_LEN + 1];
        HttpListener *listeners[_RUN_LISTENER_MAX];
        uint64_t log_bytes; /* taken so far; starts again after a restart of the bridge */
        bool log_full;      /* and it was said */
        RunMetric *metrics; /* what the run says of itself */
        size_t n_metrics;
        unsigned denials;   /* requests with a wrong token, for the log's sake */
        /* Records of requests that were not let in: of this second, and those that were too many for one each. */
        uint64_t refused_usec, n_omitted;
        unsigned n_refused;
};

/* Takes FDS, listening stream sockets or -EBADF, on success; and on success only. A run that is registered already gets
 * the new listeners: the next attempt has a network namespace of its own. They are also put into the store of file
 * descriptors. */
int bridge_run_register(Bridge *b, const char *id, int fds[static _RUN_LISTENER_MAX]);
/* One that was in the store: the run is made where it is not there yet. Takes FD on success. */
int bridge_run_take_back(Bridge *b, const char *id, RunListener kind, int fd);
/* The listener of agent-bridged-remote.socket, for sandbox hosts elsewhere. Takes FD on success. */
int bridge_remote_start(Bridge *b, int fd);
/* Removes it from the store, closes the listener and all that came through it. -ENOENT where it is not registered. */
int bridge_run_unregister(Bridge *b, const char *id);
BridgeRun *bridge_run_free(BridgeRun *run);
