/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* One registered run, see bridge.h. */

#include "basic/log.h"
#include "bridge.h"
#include "fd-store.h"
#include "routes.h"

int bridge_run_register(Bridge *b, const char *id, int fd, bool store) {
        assert(run_id_is_valid(id));

        if (!fd_is_listener(fd))
                return -EBADF;

        BridgeRun *old = strmap_get(b->runs, id);
        if (!old && strmap_size(b->runs) >= BRIDGE_RUNS_MAX)
                return -ENOBUFS;

        BridgeRun *run = calloc(1, sizeof(BridgeRun));
        if (!run)
                return -ENOMEM;
        run->bridge = b;
        strcpy(run->id, id);
        if (old)
                run->log_bytes = old->log_bytes; /* the cap is the run's, not the attempt's */

        if (store) {
                int r = fd_store_push(FD_RUN, id, fd);
                if (r < 0) {
                        free(run);
                        return r;
                }
        }

        /* Last, so that fd is still the caller's where anything fails. */
        bridge_run_free(old);
        int r = strmap_put(b->runs, run->id, run);
        if (r < 0) {
                free(run);
                return r;
        }
        r = http_listener_new(b->server, fd, routes_handle, run, &run->listener);
        if (r < 0) {
                bridge_run_free(run);
                if (store)
                        (void) fd_store_remove(FD_RUN, id);
                return r;
        }
        return 0;
}

int bridge_run_unregister(Bridge *b, const char *id) {
        BridgeRun *run = strmap_get(b->runs, id);

        /* The store first: what is removed there is gone, also if we die now. */
        int r = fd_store_remove(FD_RUN, id);
        if (r < 0)
                log_warning_errno(r, "Run %s: failed to take its listener out of the store: %m", id);
        if (!run)
                return -ENOENT;
        if (run->denials > 0)
                log_notice("Run %s: %u requests in all came with a token that was refused.", run->id, run->denials);
        bridge_run_free(run);
        return 0;
}

BridgeRun *bridge_run_free(BridgeRun *run) {
        if (!run)
                return NULL;

        http_listener_free(run->listener); /* and its connections, requests and calls */
        (void) strmap_remove(run->bridge->runs, run->id);
        free(run);
        return NULL;
}
