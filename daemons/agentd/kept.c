/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * What runs with "keep" left for a freeze: the writable part of their root, on a tmpfs, thus in memory. It is bounded
 * in number and in time; the oldest goes first. After a reboot there is none.
 */
#include "run.h"

#define KEPT_MAX 64U
#define KEPT_USEC (UINT64_C(24) * 3600 * USEC_PER_SEC)

typedef struct KeptUpper {
        Manager *manager;
        char run[RUN_ID_LEN + 1];
        uint64_t finished_usec;
        sd_event_source *timer;
} KeptUpper;

static void kept_free(KeptUpper *k) {
        sd_event_source_disable_unref(k->timer);
        free(k);
}

static void on_dropped(int error, const char *message, void *userdata) {
        if (error < 0)
                log_error_errno(error, "Kept changes of a run cannot be taken away: %s", message);
}

void kept_drop(Manager *m, const char *run) {
        KeptUpper *k = strmap_remove(m->kept, run);
        int r;

        if (!k)
                return;
        r = worker_cleanup(m->worker, k->run, false, on_dropped, NULL, NULL);
        if (r < 0)
                log_error_errno(r, "Run %s: kept changes cannot be taken away: %m", k->run);
        kept_free(k);
}

void kept_drop_of_agent(Manager *m, const char *user, const char *agent) {
        bool again;

        do {
                KeptUpper *k;

                again = false;
                for (size_t i = 0; !again && (k = strmap_next(m->kept, &i));) {
                        _cleanup_(store_run_freep) StoreRun *row = NULL;

                        if (store_run_get(m->store, k->run, &row) >= 0 && streq(row->user, user) &&
                            streq(row->agent, agent)) {
                                kept_drop(m, k->run); /* changes the map */
                                again = true;
                        }
                }
        } while (again);
}

static int on_timer(sd_event_source *s, uint64_t usec, void *userdata) {
        KeptUpper *k = userdata;

        log_info("Run %s: its kept changes were not frozen in time and are dropped.", k->run);
        kept_drop(k->manager, k->run);
        return 0;
}

int kept_add(Manager *m, const char *run, uint64_t finished_usec) {
        KeptUpper *k, *oldest = NULL, *i;
        uint64_t age;
        int r;

        while (strmap_size(m->kept) >= KEPT_MAX) {
                for (size_t n = 0; (i = strmap_next(m->kept, &n));)
                        if (!oldest || i->finished_usec < oldest->finished_usec)
                                oldest = i;
                kept_drop(m, oldest->run);
                oldest = NULL;
        }
        k = calloc(1, sizeof *k);
        if (!k)
                return -ENOMEM;
        *k = (KeptUpper) { .manager = m, .finished_usec = finished_usec };
        snprintf(k->run, sizeof k->run, "%s", run);
        age = now_realtime() - MIN(now_realtime(), finished_usec);
        r = sd_event_add_time_relative(m->event, &k->timer, CLOCK_MONOTONIC, KEPT_USEC - MIN(KEPT_USEC, age),
                                       60 * USEC_PER_SEC, on_timer, k);
        if (r >= 0)
                r = strmap_put(m->kept, k->run, k);
        if (r < 0)
                kept_free(k);
        return r;
}

bool kept_has(Manager *m, const char *run) {
        return strmap_get(m->kept, run) != NULL;
}

int kept_walk(Manager *m, StoreRunCallback callback, void *userdata) {
        KeptUpper *k;

        for (size_t i = 0; (k = strmap_next(m->kept, &i));) {
                _cleanup_(store_run_freep) StoreRun *row = NULL;
                int r;

                r = store_run_get(m->store, k->run, &row);
                if (r >= 0)
                        r = callback(row, userdata);
                if (r < 0 && r != -ENOENT)
                        return r;
        }
        return 0;
}

void kept_free_all(Manager *m) {
        KeptUpper *k;

        while ((k = strmap_first(m->kept))) {
                strmap_remove(m->kept, k->run);
                kept_free(k);
        }
}
