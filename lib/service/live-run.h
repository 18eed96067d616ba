/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * The live file of a run, or of a session in an edit, /run/agentd/live/<run>.json: the one truth about who may speak to
 * the bridge. agentd writes it before the run starts and unlinks it at its end; bridge and strong room
 * read it for each request. No file means that the run is over. Beside it lies <run>.task.json,
 * which is handed to the run as it is.
 */

#include <sys/stat.h>

#include "basic/macro.h"
#include "basic/name-util.h"
#include "service/service.h"

#define LIVE_DIRECTORY "/run/agentd/live"
#define LIVE_FILE_MAX (UINT64_C(4) * 1024 * 1024)
#define LIVE_TASK_MAX (UINT64_C(16) * 1024 * 1024)
#define LIVE_SERVICES_MAX 256

typedef struct LiveLimits {
        uint64_t result_bytes;
        uint64_t artifact_bytes; /* of one artifact */
        uint64_t artifacts;      /* their number */
        uint64_t log_bytes;      /* of the whole run */
        uint64_t body_bytes;     /* of one request to a service, beside the service's own limit */
} LiveLimits;

#define LIVE_LIMITS_DEFAULT                                                                        \
        (LiveLimits) {                                                                             \
                .result_bytes = UINT64_C(1) << 20, .artifact_bytes = UINT64_C(100) << 20,          \
                .artifacts = 100, .log_bytes = UINT64_C(16) << 20, .body_bytes = UINT64_MAX,        \
        }

typedef struct LiveRun {
        unsigned n_ref;
        char run[RUN_ID_LEN + 1];
        char jti[RUN_ID_LEN + 1];
        uint64_t attempt; /* from 1 */
        char *user;
        uid_t uid;
        char *agent;
        char *session; /* NULL where there is none */
        uint64_t deadline_usec; /* CLOCK_REALTIME */
        LiveLimits limits;
        char **proxy;   /* where its forward proxy may go, see proxy-allow.h; NULL: nowhere */
        char *holder; /* not a run but a session in the agent's edit, of this user; it has the proxy and nothing else */
        Service **services; /* each referenced */
        size_t n_services;
} LiveRun;

/* A run without services, limits at their defaults; fill in the fields. */
int live_run_new(LiveRun **ret);
LiveRun *live_run_ref(LiveRun *r);
LiveRun *live_run_unref(LiveRun *r);
DEFINE_CLEANUP(LiveRun *, live_run_unref);
/* Takes a reference. -EEXIST where the name is taken, -E2BIG beyond LIVE_SERVICES_MAX. */
int live_run_add_service(LiveRun *r, Service *s);
/* NULL where the service is not in the run's scope. */
Service *live_run_find_service(const LiveRun *r, const char *name);

int live_run_parse(const char *text, size_t size, LiveRun **ret, char **ret_error);
int live_run_to_json(const LiveRun *r, char **ret);

/* DIR is LIVE_DIRECTORY but in tests. Files become 0640 and group GID ((gid_t) -1: as is). */
int live_run_write(const char *dir, const LiveRun *r, gid_t gid);
int live_task_write(const char *dir, const char *run, const char *json, size_t size, gid_t gid);
/* -ENOENT: the run is over. -EINVAL: the file is broken (*ret_error says how, if not NULL). */
int live_run_read(const char *dir, const char *run, LiveRun **ret, char **ret_error);
/* The same; the file stays open, *ret_st is what it was before it was read. */
int live_run_open(const char *dir, const char *run, int *ret_fd, struct stat *ret_st, LiveRun **ret);
int live_task_read(const char *dir, const char *run, char **ret, size_t *ret_size);
/* Unlinks both, the live file first. Missing files are fine. */
int live_run_remove(const char *dir, const char *run);

/* Remembers parsed live files as long as they have their names, and size and times stay the same. */
typedef struct LiveCache LiveCache;

int live_cache_new(const char *dir, LiveCache **ret);
LiveCache *live_cache_free(LiveCache *c);
DEFINE_CLEANUP(LiveCache *, live_cache_free);
/* Looks at the file each time. *ret is a reference of the caller's own. Errors as live_run_read(). */
int live_cache_get(LiveCache *c, const char *run, LiveRun **ret);
