/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * What runs with "keep" left for a freeze: the writable part of their root, on a tmpfs, thus in memory. It is bounded
 * in number, on the host and for each user, and in time; the oldest goes first. After a reboot there is none.
 */
#include "operation.h"
#include "run.h"

#define BUSY_USEC (60 * USEC_PER_SEC)

typedef struct KeptUpper {
        Manager *manager;
        char run[RUN_ID_LEN + 1];
        uid_t uid;
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

/* A freeze reads it just now. */
static bool is_busy(Manager *m, const char *run) {
        Operation *o;

        for (size_t i = 0; (o = strmap_next(m->operations, &i));)
                if (o->state == OPERATION_RUNNING && streq_ptr(o->run, run))
                        return true;
        return false;
}

static int on_timer(sd_event_source *s, uint64_t usec, void *userdata) {
        KeptUpper *k = userdata;

        if (is_busy(k->manager, k->run)) {
                sd_event_source_set_time_relative(s, BUSY_USEC);
                return sd_event_source_set_enabled(s, SD_EVENT_ONESHOT);
        }
        log_info("Run %s: its kept changes were not frozen in time and are dropped.", k->run);
        kept_drop(k->manager, k->run);
        return 0;
}

/* Drops the oldest, of UID or of all for (uid_t) -1, until there is room for one more. */
static void make_room(Manager *m, uid_t uid, uint64_t max) {
        for (;;) {
                KeptUpper *oldest = NULL, *i;
                uint64_t have = 0;

                for (size_t n = 0; (i = strmap_next(m->kept, &n));)
                        if (uid == (uid_t) -1 || i->uid == uid) {
                                have++;
                                if (!is_busy(m, i->run) && (!oldest || i->finished_usec < oldest->finished_usec))
                                        oldest = i;
                        }
                if (!oldest || have < max)
                        return;
                log_info("Run %s: its kept changes were not frozen and make room for newer ones.", oldest->run);
                kept_drop(m, oldest->run);
        }
}

int kept_add(Manager *m, const StoreRun *run, uint64_t finished_usec) {
        uint64_t age, max = m->settings->kept_usec;
        KeptUpper *k;
        int r;

        make_room(m, run->uid, m->settings->max_kept_per_user);
        make_room(m, (uid_t) -1, m->settings->max_kept);
        k = calloc(1, sizeof *k);
        if (!k)
                return -ENOMEM;
        *k = (KeptUpper) { .manager = m, .uid = run->uid, .finished_usec = finished_usec };
        memcpy(k->run, run->id, sizeof k->run);
        age = now_realtime() - MIN(now_realtime(), finished_usec);
        r = sd_event_add_time_relative(m->event, &k->timer, CLOCK_MONOTONIC, max - MIN(max, age),
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
