/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* One registered run, see bridge.h. */

#include <fcntl.h>

#include "basic/log.h"
#include "bridge.h"
#include "exchange.h"
#include "fd-store.h"
#include "routes.h"

static const char *const listener_names[_RUN_LISTENER_MAX] = {
        [RUN_LISTENER_HTTP] = "http",
        [RUN_LISTENER_UNIX] = "unix",
        [RUN_LISTENER_PROXY] = "proxy",
};

RunListener run_listener_from_string(const char *s) {
        for (RunListener i = 0; i < _RUN_LISTENER_MAX; i++)
                if (streq(listener_names[i], s))
                        return i;
        return _RUN_LISTENER_INVALID;
}

static int run_new(Bridge *b, const char *id, BridgeRun **ret) {
        assert(run_id_is_valid(id));

        BridgeRun *run = calloc(1, sizeof(BridgeRun));
        if (!run)
                return -ENOMEM;
        run->bridge = b;
        strcpy(run->id, id);

        int r = strmap_put(b->runs, run->id, run);
        if (r < 0) {
                free(run);
                return r;
        }
        *ret = run;
        return 0;
}

static int run_listen(BridgeRun *run, RunListener kind, int fd) {
        http_handler_t handler = kind == RUN_LISTENER_PROXY ? routes_handle_proxy :
                                 kind == RUN_LISTENER_UNIX ? routes_handle_unix : routes_handle;

        int r = http_listener_new(run->bridge->server, fd, handler, run, &run->listeners[kind]);
        if (r < 0)
                return r;
        if (kind == RUN_LISTENER_PROXY)
                http_listener_set_proxy(run->listeners[kind]);
        http_listener_set_observer(run->listeners[kind], exchange_observe);
        return 0;
}

static FdKind fd_kind(RunListener kind) {
        return FD_RUN + (FdKind) kind;
}

static void store_remove(const char *id) {
        for (RunListener i = 0; i < _RUN_LISTENER_MAX; i++) {
                int r = fd_store_remove(fd_kind(i), id);
                if (r < 0)
                        log_warning_errno(r, "Run %s: failed to take its listener out of the store: %m", id);
        }
}

int bridge_run_register(Bridge *b, const char *id, int fds[static _RUN_LISTENER_MAX]) {
        BridgeRun *run, *old = strmap_get(b->runs, id);
        uint64_t log_bytes = 0;
        bool log_full = false;
        int r;

        for (RunListener i = 0; i < _RUN_LISTENER_MAX; i++)
                if (fds[i] >= 0 && !fd_is_listener(fds[i]))
                        return -EBADF;
        if (!old && strmap_size(b->runs) >= BRIDGE_RUNS_MAX)
                return -ENOBUFS;

        /* The store first: what is answered with success is not lost by a restart. */
        for (RunListener i = 0; i < _RUN_LISTENER_MAX; i++) {
                r = fds[i] >= 0 ? fd_store_push(fd_kind(i), id, fds[i]) : fd_store_remove(fd_kind(i), id);
                if (r < 0) {
                        store_remove(id);
                        return r;
                }
        }

        if (old) { /* the caps are the run's, not the attempt's */
                log_bytes = old->log_bytes;
                log_full = old->log_full;
                bridge_run_free(old);
        }
        r = run_new(b, id, &run);
        if (r < 0) {
                store_remove(id);
                return r;
        }
        run->log_bytes = log_bytes;
        run->log_full = log_full;

        for (RunListener i = 0; i < _RUN_LISTENER_MAX; i++) {
                /* A copy, so that all are still the caller's where one fails. */
                _cleanup_close_ int fd = fds[i] < 0 ? -EBADF : fcntl(fds[i], F_DUPFD_CLOEXEC, 3);

                if (fds[i] < 0)
                        continue;
                r = fd < 0 ? -errno : run_listen(run, i, fd);
                if (r < 0) {
                        bridge_run_free(run);
                        store_remove(id);
                        return r;
                }
                TAKE_FD(fd);
        }
        for (RunListener i = 0; i < _RUN_LISTENER_MAX; i++)
                fds[i] = safe_close(fds[i]);
        return 0;
}

int bridge_run_take_back(Bridge *b, const char *id, RunListener kind, int fd) {
        BridgeRun *run = strmap_get(b->runs, id);

        if (!fd_is_listener(fd))
                return -EBADF;
        if (run && run->listeners[kind])
                return -EEXIST;
        if (!run) {
                int r = run_new(b, id, &run);
                if (r < 0)
                        return r;
        }
        return run_listen(run, kind, fd);
}

int bridge_remote_start(Bridge *b, int fd) {
        BridgeRun *run = calloc(1, sizeof(BridgeRun));
        if (!run)
                return -ENOMEM;
        run->bridge = b;
        strcpy(run->id, "-");

        int r = run_listen(run, RUN_LISTENER_HTTP, fd);
        if (r < 0) {
                free(run);
                return r;
        }
        b->remote = run;
        return 0;
}

int bridge_run_unregister(Bridge *b, const char *id) {
        BridgeRun *run = strmap_get(b->runs, id);

        /* The store first: what is removed there is gone, also if we die now. */
        store_remove(id);
        if (!run)
                return -ENOENT;
        if (run->denials > 0)
                log_notice("Run %s: %u requests in all came with a token that was refused.", run->id, run->denials);
        bridge_run_free(run);
        return 0;
}

static bool is_of_run(HttpRequest *req, void *userdata) {
        const Exchange *x = exchange_of(req);

        return x && x->live && streq(x->live->run, userdata);
}

BridgeRun *bridge_run_free(BridgeRun *run) {
        if (!run)
                return NULL;

        /* What has come from a sandbox elsewhere is not below our own listeners. */
        BridgeRun *remote = run->bridge->remote;
        if (remote && remote != run)
                http_listener_cut(remote->listeners[RUN_LISTENER_HTTP], is_of_run, run->id);

        BridgeCounters *c = &run->bridge->counters;
        for (RunListener i = 0; i < _RUN_LISTENER_MAX; i++) {
                if (!run->listeners[i])
                        continue;

                const HttpListenerStatistics *s = http_listener_statistics(run->listeners[i]);
                c->accepted += s->accepted;
                c->malformed += s->malformed;
                c->http2_prefaces += s->http2_prefaces;
                c->timeouts += s->timeouts;
                http_listener_free(run->listeners[i]); /* and its connections, requests and calls */
        }
        exchange_flush_refusals(run);
        if (run == run->bridge->remote)
                run->bridge->remote = NULL;
        else
                (void) strmap_remove(run->bridge->runs, run->id);
        free(run->metrics);
        free(run);
        return NULL;
}
