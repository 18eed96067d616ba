/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* A run as agentd tells it: the properties of org.agentd1.Run, and how a person names one. */

#include "client.h"
#include "properties.h"

typedef struct RunInfo {
        char *id, *agent, *user, *trigger, *session;
        char *state, *result, *message;
        char *unit, *generation, *environment, *runner;
        uint32_t attempt;
        uint64_t created_usec, started_usec, finished_usec, deadline_usec;
} RunInfo;

void run_info_done(RunInfo *info);
#define RUN_INTERFACE "org.agentd1.Run"
extern const Property run_properties[];

static inline bool run_info_is_over(const RunInfo *info) {
        return streq_ptr(info->state, "finished");
}
/* From start to end, or to now; USEC_INFINITY where it has not begun. */
uint64_t run_duration(uint64_t started_usec, uint64_t finished_usec);

/* By GetRun and GetAll. Not told on stderr; r and *error go to client_report(). */
int run_info_read(Client *c, const char *id, RunInfo *info, sd_bus_error *error);

/*
 * Finds the one id among N that starts or ends with TEXT. Ids begin with their time, so neighbours share their
 * first digits; the end tells them apart sooner. -ENOENT where none, -ENOTUNIQ where several. Pure.
 */
int run_id_match(char *const *ids, size_t n, const char *text, size_t *ret_index);

/* RUN of the command line: a whole id, a unique part of one (see above, at least 4 digits), or "last". Allocated. */
int run_id_resolve(Client *c, const char *text, char **ret);
