/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include <dirent.h>
#include <sys/statvfs.h>
#include <systemd/sd-journal.h>

#include "async-remove.h"
#include "basic/string-util.h"
#include "bus-util.h"
#include "environment.h"
#include "retention.h"
#include "run.h"

/* In the journal entry of each sweep that took something away. */
#define MESSAGE_RUNS_REMOVED "b5b0a7d4f21c4a7e9d0f3c6b8e5a1d72"

#define ARTIFACTS_DIR AGENTD_STATE_DIR "/artifacts"
#define PART_PREFIX ".part-" /* report-bus.c */
/* One batch: so many runs are looked at, and removed up to that many bytes of documents. It is over in a few ms, and
 * then nothing is done for a multiple of the time that it took, so that others have most of it. */
#define BATCH_RUNS 16U
#define BATCH_BYTES (UINT64_C(1) << 20)
#define BATCH_PAUSE_USEC (5 * USEC_PER_MSEC)
#define BATCH_PAUSE_FACTOR 4U
/* From the end of a run to the look whether there is too much: one look for all that end meanwhile. */
#define LOOK_USEC (500 * USEC_PER_MSEC)
#define PRUNE_PAUSE_USEC (60 * USEC_PER_SEC)
#define PERIOD_USEC (10 * 60 * USEC_PER_SEC)
#define REQUESTS_MAX 4U /* of one user */
/* Where a bound is passed, so much more goes that not each further run has a sweep of its own: 1/20. */
#define SLACK 20
#define KEEP_FREE_AUTO_MAX (UINT64_C(1) << 30)

typedef enum SweepKind {
        SWEEP_AGE,     /* everybody's, too old */
        SWEEP_SURPLUS, /* of one user, too much */
        SWEEP_REQUEST, /* asked for */
} SweepKind;

typedef struct Sweep Sweep;

struct Sweep {
        Sweep *next;
        SweepKind kind;
        char *user, *agent;
        sd_bus_message *msg;  /* of the request */
        uint64_t cursor;      /* seq of the last run that was looked at */
        uint64_t up_to_seq;   /* 0: any */
        uint64_t before_usec; /* 0: any */
        uint64_t surplus_runs, surplus_bytes;
        bool dry_run;
        uint64_t n, bytes; /* removed */
};

struct Retention {
        Manager *manager;
        sd_event_source *batch; /* the next one; off while there is nothing to do */
        sd_event_source *look;
        sd_event_source *period;
        DIR *leftovers;         /* where the search of the start is */
        Sweep *sweeps;          /* the first one is worked on */
        char **futile;          /* users of whom nothing more can be removed for now */
        uint64_t pruned_usec;   /* when layers were looked for that nobody needs; monotonic */
};

static Sweep *sweep_free(Sweep *s) {
        if (!s)
                return NULL;
        sd_bus_message_unref(s->msg);
        free(s->user);
        free(s->agent);
        return mfree(s);
}
DEFINE_CLEANUP(Sweep *, sweep_free);

static int artifacts_path(const char *run, char **ret) {
        char *p = strprintf(ARTIFACTS_DIR "/%s", run);

        if (!p)
                return -ENOMEM;
        *ret = p;
        return 0;
}

void retention_drop_parts(const char *run) {
        _cleanup_free_ char *path = NULL;

        if (artifacts_path(run, &path) >= 0 && access(path, F_OK) >= 0)
                async_remove_prefix(path, PART_PREFIX);
}

static int sweep_add(Retention *r, const Sweep *how) {
        _cleanup_(sweep_freep) Sweep *s = calloc(1, sizeof *s);
        Sweep **last;
        int k;

        if (!s)
                return -ENOMEM;
        *s = *how;
        s->user = s->agent = NULL;
        s->msg = sd_bus_message_ref(how->msg);
        if ((how->user && !(s->user = strdup(how->user))) || (how->agent && !(s->agent = strdup(how->agent))))
                return -ENOMEM;
        k = sd_event_source_set_time_relative(r->batch, 0);
        if (k >= 0)
                k = sd_event_source_set_enabled(r->batch, SD_EVENT_ONESHOT);
        if (k < 0)
                return k;
        for (last = &r->sweeps; *last; last = &(*last)->next)
                ;
        *last = TAKE_PTR(s);
        return 0;
}

/* --- one batch -------------------------------------------------------------------------------------------------- */

typedef struct Candidate {
        char id[RUN_ID_LEN + 1], parent[RUN_ID_LEN + 1];
        uint64_t seq, size, created_usec, finished_usec;
        bool keyed;
} Candidate;

typedef struct Page {
        Candidate rows[BATCH_RUNS];
        unsigned n;
} Page;

static int add_candidate(const StoreRun *run, void *userdata) {
        Page *p = userdata;
        Candidate *c = p->rows + p->n++;

        *c = (Candidate) { .seq = run->seq, .size = run->size, .created_usec = run->created_usec,
                           .finished_usec = run->finished_usec, .keyed = run->idempotency_key };
        memcpy(c->id, run->id, sizeof c->id);
        snprintf(c->parent, sizeof c->parent, "%s", strempty(run->parent));
        return 0;
}

static bool must_stay(Manager *m, const Candidate *c) {
        _cleanup_(store_run_freep) StoreRun *parent = NULL;

        if (strmap_get(m->runs, c->id) || kept_has(m, c->id))
                return true;
        if (c->keyed && c->created_usec + m->settings->idempotency_window_usec > now_realtime())
                return true;
        return c->parent[0] && store_run_get(m->store, c->parent, &parent) >= 0 && parent->state != RUN_FINISHED;
}

static int sum_artifact(const StoreArtifact *a, void *userdata) {
        *(uint64_t *) userdata += a->size;
        return 0;
}

static void announce(Manager *m, char *const *ids) {
        for (char *const *id = ids; id && *id; id++) {
                _cleanup_free_ char *path = NULL;
                int r;

                r = run_object_path(*id, &path);
                if (r >= 0)
                        r = sd_bus_emit_interfaces_removed(m->bus, path, BUS_INTERFACE_RUN, NULL);
                if (r < 0)
                        log_warning_errno(r, "Run %s: its removal cannot be announced: %m", *id);
        }
}

/* Takes IDS away, and the files that are theirs. */
static int remove_runs(Manager *m, char *const *ids, char *const *directories) {
        int r;

        if (strv_length((char **) ids) == 0)
                return 0;
        r = store_runs_remove(m->store, ids);
        if (r < 0)
                return r;
        if (strv_length((char **) directories) > 0)
                async_remove_trees(directories);
        announce(m, ids);
        return 0;
}

/* Whether the sweep has to look no further than at this run. */
static bool is_enough(const Sweep *s, const Candidate *c) {
        return (s->kind == SWEEP_AGE && c->created_usec >= s->before_usec) ||
               (s->kind == SWEEP_SURPLUS && s->surplus_runs == 0 && s->surplus_bytes == 0);
}

/* 1: there is more to do; 0: that was all. */
static int sweep_step(Manager *m, Sweep *s) {
        _cleanup_strv_free_ char **ids = NULL, **directories = NULL;
        uint64_t weight = 0, files = 0;
        bool more = true;
        Page page = {};
        int r;

        r = store_runs_oldest(m->store,
                              &(StoreOldest) { .user = s->user, .agent = s->agent, .after_seq = s->cursor,
                                               .up_to_seq = s->up_to_seq, .limit = BATCH_RUNS },
                              add_candidate, &page);
        if (r < 0)
                return r;
        if (page.n < BATCH_RUNS)
                more = false;
        for (unsigned i = 0; i < page.n; i++) {
                const Candidate *c = page.rows + i;
                _cleanup_free_ char *path = NULL;

                if (is_enough(s, c)) {
                        more = false;
                        break;
                }
                s->cursor = c->seq;
                if ((s->before_usec > 0 && c->finished_usec >= s->before_usec) || must_stay(m, c))
                        continue;
                r = artifacts_path(c->id, &path);
                if (r >= 0)
                        r = strv_extend(&ids, c->id);
                if (r >= 0 && access(path, F_OK) >= 0) {
                        (void) store_artifacts(m->store, c->id, sum_artifact, &files);
                        r = strv_extend(&directories, path);
                }
                if (r < 0)
                        return r;
                weight += c->size;
                s->surplus_runs -= MIN(s->surplus_runs, UINT64_C(1));
                s->surplus_bytes -= MIN(s->surplus_bytes, c->size);
                if (weight >= BATCH_BYTES && i + 1 < page.n) {
                        more = true;
                        break;
                }
        }
        if (!s->dry_run) {
                r = remove_runs(m, ids, directories);
                if (r < 0)
                        return r;
        }
        s->n += strv_length(ids);
        s->bytes += weight + files;
        return more;
}

static void sweep_done(Retention *r, Sweep *s, int error) {
        Manager *m = r->manager;

        if (error < 0)
                log_error_errno(error, "Finished runs cannot be removed: %s", store_error(m->store));
        if (s->n > 0 && !s->dry_run)
                sd_journal_send("MESSAGE=%" PRIu64 " finished runs%s%s were removed (%s).", s->n, s->user ? " of " : "",
                                strempty(s->user),
                                s->kind == SWEEP_AGE     ? "older than MaxAge="
                                : s->kind == SWEEP_SURPLUS ? "more than MaxRunsPerUser= or MaxSizePerUser="
                                                           : "asked for",
                                "MESSAGE_ID=" MESSAGE_RUNS_REMOVED, "PRIORITY=%i", LOG_INFO, "AGENT_RUNS=%" PRIu64,
                                s->n, "AGENT_BYTES=%" PRIu64, s->bytes, "AGENT_USER=%s", strempty(s->user), NULL);
        if (s->kind == SWEEP_SURPLUS && (s->surplus_runs > 0 || s->surplus_bytes > 0))
                (void) strv_extend(&r->futile, s->user);
        else if (s->kind == SWEEP_SURPLUS)
                /* What ended while it waited for its turn was left to it, and is not in its numbers. */
                retention_look(m);
        if (s->msg && error < 0) {
                _cleanup_(sd_bus_error_free) sd_bus_error e = SD_BUS_ERROR_NULL;

                error = bus_store_error(m, &e, error);
                sd_bus_reply_method_errno(s->msg, error, &e);
        } else if (s->msg)
                sd_bus_reply_method_return(s->msg, "ut", (uint32_t) MIN(s->n, UINT32_MAX), s->bytes);
}

/* --- what a crash left ------------------------------------------------------------------------------------------ */

/* Files of runs that are no more, and what finished ones had begun. True where there is more to look at. */
static bool leftovers_step(Retention *r) {
        _cleanup_strv_free_ char **directories = NULL;
        struct dirent *de = NULL;

        for (unsigned i = 0; i < BATCH_RUNS && (de = readdir(r->leftovers)); i++) {
                _cleanup_(store_run_freep) StoreRun *row = NULL;
                _cleanup_free_ char *path = NULL;
                int k;

                if (!run_id_is_valid(de->d_name) || artifacts_path(de->d_name, &path) < 0)
                        continue;
                k = store_run_get(r->manager->store, de->d_name, &row);
                if (k == -ENOENT)
                        (void) strv_extend(&directories, path);
                else if (k >= 0 && row->state == RUN_FINISHED)
                        retention_drop_parts(de->d_name);
        }
        if (strv_length(directories) > 0)
                async_remove_trees(directories);
        if (de)
                return true;
        closedir(r->leftovers);
        r->leftovers = NULL;
        return false;
}

static int on_batch(sd_event_source *source, uint64_t usec, void *userdata) {
        Retention *r = userdata;
        uint64_t begin = now_monotonic();

        if (r->leftovers)
                leftovers_step(r);
        else if (r->sweeps) {
                Sweep *s = r->sweeps;
                int k = sweep_step(r->manager, s);

                if (k <= 0) {
                        r->sweeps = s->next;
                        sweep_done(r, s, k);
                        sweep_free(s);
                }
        }
        if (!r->leftovers && !r->sweeps)
                return 0;
        sd_event_source_set_time_relative(source,
                                          MAX(BATCH_PAUSE_USEC, BATCH_PAUSE_FACTOR * (now_monotonic() - begin)));
        return sd_event_source_set_enabled(source, SD_EVENT_ONESHOT);
}

/* --- when ------------------------------------------------------------------------------------------------------- */

static uint64_t surplus(uint64_t have, uint64_t max) {
        return have > max ? have - max + max / SLACK : 0;
}

typedef struct Look {
        Retention *retention;
        const Settings *settings;
} Look;

static int look_at_user(const StoreUser *u, void *userdata) {
        Look *l = userdata;
        Sweep s = { .kind = SWEEP_SURPLUS, .user = (char *) u->name };

        /* From as much as a new run would be refused for. */
        s.surplus_runs = surplus(u->finished, l->settings->max_runs_per_user);
        s.surplus_bytes = surplus(u->finished_bytes + STORE_RUN_OVERHEAD, l->settings->max_size_per_user);
        if ((s.surplus_runs == 0 && s.surplus_bytes == 0) || strv_contains(l->retention->futile, u->name))
                return 0;
        for (Sweep *i = l->retention->sweeps; i; i = i->next)
                if (i->kind == SWEEP_SURPLUS && streq(i->user, u->name))
                        return 0;
        return sweep_add(l->retention, &s);
}

static int on_look(sd_event_source *source, uint64_t usec, void *userdata) {
        Retention *r = userdata;
        int k;

        k = store_users(r->manager->store, look_at_user,
                        &(Look) { .retention = r, .settings = r->manager->settings });
        if (k < 0)
                log_warning_errno(k, "What is kept for users cannot be read: %m");
        /* Layers that nobody names wait for somebody's "env prune"; not where others wait for the room. All generations
         * are read for that, so not for each run that is refused. */
        if (retention_check_space(r->manager) < 0 &&
            (r->pruned_usec == 0 || now_monotonic() - r->pruned_usec >= PRUNE_PAUSE_USEC)) {
                PruneResult result = {};

                r->pruned_usec = now_monotonic();
                k = environment_prune(r->manager, NULL, NULL, 0, &result);
                if (k < 0)
                        log_warning_errno(k, "Layers that nobody needs cannot be removed: %m");
                else if (result.layers > 0)
                        log_info("The disk has less free space than is left to others (KeepFree=): %" PRIu32
                                 " layers that nobody needs are removed (%" PRIu64 " bytes).", result.layers,
                                 result.bytes);
        }
        return 0;
}

void retention_look(Manager *m) {
        Retention *r = m->retention;
        int enabled;

        if (!r || (sd_event_source_get_enabled(r->look, &enabled) >= 0 && enabled != SD_EVENT_OFF))
                return;
        sd_event_source_set_time_relative(r->look, LOOK_USEC);
        sd_event_source_set_enabled(r->look, SD_EVENT_ONESHOT);
}

static int on_period(sd_event_source *source, uint64_t usec, void *userdata) {
        Retention *r = userdata;
        uint64_t age = r->manager->settings->max_age_usec, now = now_realtime();
        bool there = false;

        r->futile = strv_free(r->futile);
        for (Sweep *s = r->sweeps; s; s = s->next)
                there = there || s->kind == SWEEP_AGE;
        if (age < now && !there && sweep_add(r, &(Sweep) { .kind = SWEEP_AGE, .before_usec = now - age }) < 0)
                log_oom();
        retention_look(r->manager);
        sd_event_source_set_time_relative(source, MIN(PERIOD_USEC, MAX(age / 10, USEC_PER_SEC)));
        return sd_event_source_set_enabled(source, SD_EVENT_ONESHOT);
}

int retention_start(Manager *m) {
        Retention *r;
        int k;

        r = m->retention = calloc(1, sizeof *r);
        if (!r)
                return -ENOMEM;
        r->manager = m;
        k = sd_event_add_time_relative(m->event, &r->batch, CLOCK_MONOTONIC, 0, 0, on_batch, r);
        if (k >= 0)
                k = sd_event_source_set_priority(r->batch, SD_EVENT_PRIORITY_IDLE);
        if (k >= 0)
                k = sd_event_add_time_relative(m->event, &r->look, CLOCK_MONOTONIC, LOOK_USEC, 0, on_look, r);
        if (k >= 0)
                k = sd_event_add_time_relative(m->event, &r->period, CLOCK_MONOTONIC, 0, USEC_PER_SEC, on_period, r);
        if (k >= 0)
                r->leftovers = opendir(ARTIFACTS_DIR);
        return k;
}

void retention_free(Manager *m) {
        Retention *r = m->retention;
        Sweep *s;

        if (!r)
                return;
        m->retention = NULL;
        while ((s = r->sweeps)) {
                r->sweeps = s->next;
                sweep_free(s);
        }
        if (r->leftovers)
                closedir(r->leftovers);
        strv_free(r->futile);
        sd_event_source_disable_unref(r->batch);
        sd_event_source_disable_unref(r->look);
        sd_event_source_disable_unref(r->period);
        free(r);
}

int retention_prune(Manager *m, sd_bus_message *msg, const PruneRequest *request) {
        Sweep s = {
                .kind = SWEEP_REQUEST,
                .user = (char *) request->user,
                .agent = (char *) request->agent,
                .msg = msg,
                .before_usec = request->before_usec,
                .dry_run = request->dry_run,
        };
        unsigned n = 0;
        int r;

        if (!m->retention)
                return -ESHUTDOWN;
        /* Each user has a share, so that nobody's requests are in the way of another's. */
        for (Sweep *i = m->retention->sweeps; i; i = i->next)
                n += i->kind == SWEEP_REQUEST && streq_ptr(i->user, request->user);
        if (n >= REQUESTS_MAX)
                return -EUSERS;
        if (request->by_number && request->keep > 0) {
                r = store_run_newest(m->store, request->user, request->agent, request->keep, &s.up_to_seq);
                if (r == -ENOENT)
                        return sd_bus_reply_method_return(msg, "ut", UINT32_C(0), UINT64_C(0));
                if (r < 0)
                        return r;
        }
        return sweep_add(m->retention, &s);
}

int retention_check_space(Manager *m) {
        uint64_t floor = m->settings->keep_free, size;
        struct statvfs v;

        if (floor == 0 || statvfs(AGENTD_STATE_DIR, &v) < 0)
                return 0;
        size = (uint64_t) v.f_blocks * v.f_frsize;
        if (floor == KEEP_FREE_AUTO)
                floor = MIN(size / 20, KEEP_FREE_AUTO_MAX);
        return (uint64_t) v.f_bavail * v.f_frsize < floor ? -ENOSPC : 0;
}
