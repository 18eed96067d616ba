/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* See bridge.h. This file: the whole's life, from the configuration to the drain. */

#include <malloc.h>
#include <signal.h>
#include <sys/resource.h>
#include <systemd/sd-daemon.h>

#include "basic/config.h"
#include "basic/log.h"
#include "basic/string-util.h"
#include "bridge.h"
#include "call-clock.h"
#include "fd-store.h"
#include "material-client.h"
#include "report.h"
#include "routes.h"

/* How long reports may take after the last request has ended; then the next bridge gets them. */
#define FLUSH_USEC (250 * USEC_PER_MSEC)

/* After how many calls at once freed memory is worth looking for, and how long after they have gone: it takes some
 * milliseconds, and the next crowd would have to get it again. */
#define TRIM_CALLS_MIN 64U
#define TRIM_USEC (2 * USEC_PER_SEC)

static int load_config(BridgeConfig *ret) {
        static const ConfigItem table[] = {
                { "Upstream", "AllowAddresses", config_parse_strv, offsetof(BridgeConfig, allow_addresses) },
                { "Upstream", "CAFile", config_parse_string, offsetof(BridgeConfig, ca_file) },
                { "Bridge", "ConnectionsMax", config_parse_unsigned, offsetof(BridgeConfig, connections_max) },
                { "Bridge", "DrainSec", config_parse_timespan, offsetof(BridgeConfig, drain_usec) },
                { "Bridge", "ApprovalTimeoutSec", config_parse_timespan, offsetof(BridgeConfig, approval_usec) },
                { "Limits", "RunRequestsPerSecond", config_parse_unsigned, offsetof(BridgeConfig, run_limit.rate) },
                { "Limits", "RunRequestsBurst", config_parse_unsigned, offsetof(BridgeConfig, run_limit.burst) },
                { "Limits", "RunCallsMax", config_parse_unsigned, offsetof(BridgeConfig, run_limit.concurrent) },
                { "Limits", "UserCallsPerSecond", config_parse_unsigned, offsetof(BridgeConfig, user_limit.rate) },
                { "Limits", "UserCallsBurst", config_parse_unsigned, offsetof(BridgeConfig, user_limit.burst) },
                { "Limits", "UserCallsMax", config_parse_unsigned, offsetof(BridgeConfig, user_limit.concurrent) },
                { "Limits", "BodyMax", config_parse_size, offsetof(BridgeConfig, body_max) },
                {},
        };

        int r = config_load("bridge.conf", table, ret);
        if (r < 0)
                return log_error_errno(r, "Failed to read bridge.conf: %m");
        if (ret->connections_max == 0 || ret->connections_max > 65536)
                return log_error_errno(-EINVAL, "bridge.conf: ConnectionsMax= must be from 1 to 65536.");
        if (ret->ca_file && access(ret->ca_file, R_OK) < 0)
                log_warning_errno(-errno, "bridge.conf: CAFile=%s cannot be read, no call over TLS will succeed "
                                          "(the bridge sees /etc and /usr alone): %m", ret->ca_file);
        return 0;
}

int bridge_new(const BridgePaths *paths, Bridge **ret) {
        HttpServerOptions options = HTTP_SERVER_OPTIONS_DEFAULT;

        _cleanup_(bridge_freep) Bridge *b = calloc(1, sizeof(Bridge));
        if (!b)
                return log_oom();
        b->old_reports = -EBADF;
        b->config = (BridgeConfig) {
                .connections_max = 256,
                .drain_usec = 30 * USEC_PER_SEC,
                .approval_usec = 300 * USEC_PER_SEC,
                .run_limit.rate = 1000,
                .body_max = UINT64_MAX,
        };
        if (paths)
                b->paths = *paths;
        b->paths.live = b->paths.live ?: LIVE_DIRECTORY;
        b->paths.keys = b->paths.keys ?: BRIDGE_KEYS_DIRECTORY;
        b->paths.material = b->paths.material ?: BRIDGE_MATERIAL_SOCKET;

        int r = load_config(&b->config);
        if (r < 0)
                return r;
        options.connections_max = (unsigned) b->config.connections_max;
        /* Each may lead to a connection with an upstream, and there are listeners. */
        struct rlimit files;
        if (getrlimit(RLIMIT_NOFILE, &files) >= 0 && files.rlim_cur != RLIM_INFINITY)
                options.total_max = (unsigned) MIN(MAX(files.rlim_cur / 3, (rlim_t) 64), (rlim_t) 1 << 20);

        b->runs = strmap_new();
        b->limits = limit_table_new();
        if (!b->runs || !b->limits)
                return log_oom();
        r = sd_event_default(&b->event);
        if (r < 0)
                return log_error_errno(r, "Failed to make the event loop: %m");
        r = address_guard_new(b->config.allow_addresses, &b->guard);
        if (r < 0)
                return log_error_errno(r, "bridge.conf: AllowAddresses= is not a list of address/prefix: %m");
        r = event_hub_new(b->event, &b->hub);
        if (r < 0)
                return log_error_errno(r, "Failed to make the event loop: %m");
        options.hub = b->hub;
        r = upstream_pool_new(b->event,
                              &(CurlGlueOptions) { .hub = b->hub, .guard = b->guard, .ca_file = b->config.ca_file },
                              &b->upstreams);
        if (r < 0)
                return log_oom();
        r = http_server_new(b->event, &options, &b->server);
        if (r < 0)
                return log_error_errno(r, "Failed to make the HTTP server: %m");
        r = key_set_load(b->paths.keys, &b->keys);
        if (r < 0)
                return log_error_errno(r, "Failed to load the public keys: %m");
        r = live_cache_new(b->paths.live, &b->live);
        if (r < 0)
                return log_error_errno(r, "Failed to look at the live files: %m");
        r = report_queue_new(b, &b->reports);
        if (r < 0)
                return log_oom();
        r = material_client_new(b, &b->material);
        if (r < 0)
                return log_oom();
        r = call_clock_new(b->event, &b->clock);
        if (r < 0)
                return log_oom();

        *ret = TAKE_PTR(b);
        return 0;
}

Bridge *bridge_free(Bridge *b) {
        BridgeRun *run;

        if (!b)
                return NULL;

        /* What holds the others' objects goes first: requests, then what they wait for, then the bus. */
        while (b->runs && (run = strmap_first(b->runs)))
                bridge_run_free(run);
        bridge_run_free(b->remote);
        http_server_free(b->server);
        limit_table_free(b->limits);
        material_client_free(b->material);
        call_clock_free(b->clock);
        report_queue_free(b->reports);
        upstream_pool_free(b->upstreams);
        event_hub_free(b->hub);
        address_guard_free(b->guard);
        live_cache_free(b->live);
        key_set_free(b->keys);
        strmap_free(b->runs);
        sd_event_source_disable_unref(b->drain_timer);
        safe_close(b->old_reports);
        sd_event_source_disable_unref(b->trim_timer);
        sd_bus_flush_close_unref(b->bus);
        sd_event_unref(b->event);
        strv_free(b->config.allow_addresses);
        free(b->config.ca_file);
        return mfree(b);
}

static bool crowd_has_gone(const Bridge *b) {
        return b->n_calls_peak >= TRIM_CALLS_MIN && b->n_calls <= b->n_calls_peak / 4;
}

/* What few connections that are kept have left at the end of the heap holds all that was freed before it. */
static int on_trim(sd_event_source *source, uint64_t usec, void *userdata) {
        Bridge *b = userdata;

        if (crowd_has_gone(b)) {
                (void) malloc_trim(0);
                b->n_calls_peak = b->n_calls;
        }
        return 0;
}

void bridge_call_begins(Bridge *b) {
        b->n_calls++;
        b->n_calls_peak = MAX(b->n_calls_peak, b->n_calls);
}

void bridge_call_ended(Bridge *b) {
        int enabled = SD_EVENT_OFF;

        b->n_calls--;
        if (!crowd_has_gone(b))
                return;
        if (!b->trim_timer)
                (void) sd_event_add_time_relative(b->event, &b->trim_timer, CLOCK_MONOTONIC, TRIM_USEC, TRIM_USEC,
                                                  on_trim, b);
        else if (sd_event_source_get_enabled(b->trim_timer, &enabled) >= 0 && enabled == SD_EVENT_OFF &&
                 sd_event_source_set_time_relative(b->trim_timer, TRIM_USEC) >= 0)
                (void) sd_event_source_set_enabled(b->trim_timer, SD_EVENT_ONESHOT);
}

/* >0: taken. */
static int take_back(FdKind kind, const char *run, int fd, void *userdata) {
        Bridge *b = userdata;
        _cleanup_(live_run_unrefp) LiveRun *live = NULL;
        int r;

        if (kind == FD_REPORTS) {
                b->old_reports = fd; /* needs the bus */
                return 1;
        }
        if (kind == FD_CONTROL) {
                if (b->control)
                        return 0;
                r = http_listener_new(b->server, fd, routes_handle_control, b, &b->control);
                return r < 0 ? r : 1;
        }

        if (kind == FD_REMOTE) {
                r = b->remote ? 0 : bridge_remote_start(b, fd);
                return r < 0 ? r : 1;
        }

        r = live_cache_get(b->live, run, &live);
        if (r == -ENOENT) {
                log_info("Run %s ended while the bridge was away.", run);
                return 0;
        }
        r = bridge_run_take_back(b, run, (RunListener) (kind - FD_RUN), fd);
        return r < 0 ? r : 1;
}

/* The last act before the loop ends, while the bus is still there. */
static int leave(Bridge *b) {
        BridgeRun *run;

        if (http_server_connections(b->server) > 0)
                log_warning("%u connections are cut after the drain.", http_server_connections(b->server));
        while ((run = strmap_first(b->runs))) /* calls that are cut have reports, too */
                bridge_run_free(run);
        bridge_run_free(b->remote);

        /* agentd may be restarting as well. What it has not taken yet outlives us. */
        if (report_queue_size(b->reports) > 0)
                log_info("%zu reports are left to the next bridge.", report_queue_size(b->reports));
        return sd_event_exit(b->event, 0);
}

static int on_drain_timeout(sd_event_source *source, uint64_t usec, void *userdata) {
        return leave(userdata);
}

static int on_flush(sd_event_source *source, uint64_t usec, void *userdata) {
        Bridge *b = userdata;

        if (report_queue_size(b->reports) == 0)
                return leave(b);
        return sd_event_source_set_time_relative(source, 10 * USEC_PER_MSEC) < 0 ||
               sd_event_source_set_enabled(source, SD_EVENT_ONESHOT) < 0 ? leave(b) : 0;
}

static void on_drained(void *userdata) {
        Bridge *b = userdata;

        /* The last reports still want to go out, but not for long. */
        if (sd_event_source_set_time_relative(b->drain_timer, FLUSH_USEC) < 0 ||
            sd_event_source_set_enabled(b->drain_timer, SD_EVENT_ONESHOT) < 0 ||
            sd_event_add_time_relative(b->event, NULL, CLOCK_MONOTONIC, 0, 0, on_flush, b) < 0)
                (void) leave(b);
}

static int on_sigterm(sd_event_source *source, const struct signalfd_siginfo *si, void *userdata) {
        Bridge *b = userdata;

        if (b->draining)
                return leave(b);

        /* Listeners stay in the store: who comes now waits in a backlog for the next bridge. */
        b->draining = true;
        (void) sd_notify(false, "STOPPING=1");
        report_queue_flush(b->reports);
        int r = sd_event_add_time_relative(b->event, &b->drain_timer, CLOCK_MONOTONIC, b->config.drain_usec, 0,
                                           on_drain_timeout, b);
        if (r >= 0)
                r = http_server_drain(b->server, on_drained, b);
        return r < 0 ? leave(b) : 0;
}

int bridge_startup(Bridge *b) {
        int r;

        r = sd_event_add_signal(b->event, NULL, SIGTERM | SD_EVENT_SIGNAL_PROCMASK, on_sigterm, b);
        if (r >= 0)
                r = sd_event_add_signal(b->event, NULL, SIGINT | SD_EVENT_SIGNAL_PROCMASK, on_sigterm, b);
        if (r < 0)
                return log_error_errno(r, "Failed to watch signals: %m");
        r = sd_event_set_watchdog(b->event, true);
        if (r < 0)
                log_warning_errno(r, "Failed to arm the watchdog: %m");

        r = fd_store_take_back(take_back, b);
        if (r < 0)
                return log_error_errno(r, "Failed to look at the inherited file descriptors: %m");
        if (strmap_size(b->runs) > 0)
                log_info("Took back the listeners of %zu runs.", strmap_size(b->runs));

        r = bridge_bus_startup(b);
        if (r < 0)
                return r;

        r = report_queue_open(b, TAKE_FD(b->old_reports));
        if (r < 0)
                return log_error_errno(r, "What is owed to agentd cannot be noted: %m");
        return 0;
}

int bridge_serve(Bridge *b) {
        (void) sd_notify(false, "READY=1");

        int r = sd_event_loop(b->event);
        return r < 0 ? log_error_errno(r, "The event loop failed: %m") : r;
}
