/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * What the administrator decides: agentd.conf and agentd.conf.d/, read once at start. Every bound that a
 * caller can run into is here, with a default that suits a small host. A wrong value stops the start with
 * file and line in the message; packaging/agentd.conf shows all keys with their defaults.
 */

#include "basic/config.h"

/* Bounds and defaults of what one run may use. CPU is µs of CPU time per second: 1000000 is one CPU. */
typedef struct RunLimits {
        uint64_t timeout_usec;
        uint64_t memory;
        uint64_t cpu;
        uint64_t tasks;
        uint64_t disk;          /* of the throw-away upper */
        uint64_t files;         /* open files of a process */
        uint64_t artifacts;     /* number */
        uint64_t artifact_size; /* of each */
        uint64_t log;           /* bytes of log lines */
} RunLimits;

typedef struct Settings {
        /* [Queue] */
        uint64_t max_queued, max_queued_per_user, max_queued_per_agent;
        uint64_t max_live, max_live_per_user;

        /* [Run] */
        RunLimits defaults; /* DefaultTimeout=, DefaultMemory=, … */
        RunLimits maximum;  /* MaxTimeout=, MaxMemory=, … */
        uint64_t max_attempts;
        uint64_t retry_delay_usec;
        uint64_t stop_timeout_usec;
        char *runner_directory;
        uint64_t runner_check_timeout_usec; /* of one script */
        bool verify_layers;     /* of each run */

        /* [Retention] */
        uint64_t max_age_usec;           /* of finished runs; UINT64_MAX: without end */
        uint64_t max_runs_per_user, max_size_per_user; /* finished ones, and the bytes of their documents */
        uint64_t max_artifacts_per_user; /* bytes */
        uint64_t max_sessions_per_user;  /* bytes */
        uint64_t idempotency_window_usec;
        uint64_t keep_free;              /* bytes of the disk; KEEP_FREE_AUTO: see manager_check_space() */
        uint64_t max_runner_generations; /* of one agent, made by runs for a new runner */
        uint64_t max_kept, max_kept_per_user, kept_usec; /* changes of "keep" runs */

        /* [Images] */
        uint64_t image_max_size;    /* bytes of an imported root, unpacked */
        uint64_t image_max_entries; /* files in it */
        uint64_t image_timeout_usec;
        uint64_t image_idle_usec;   /* that may be waited for who feeds an import; UINT64_MAX: without end */
        uint64_t max_operations, max_operations_per_user;
        uint64_t max_layers_per_user; /* bytes; UINT64_MAX: without bound */
        char *image_mirror;         /* of BuildImage; NULL: mmdebstrap's own default */

        /* [Edit] */
        uint64_t edit_size_max;     /* of an edit's changes; 0: none */
        uint64_t edit_max_per_user; /* edits that are neither frozen nor discarded */
        char **edit_hosts;          /* where each session may go; as resolved (edit-hosts.h) */
        bool edit_other_hosts;      /* whether its user may name more */
} Settings;

#define KEEP_FREE_AUTO UINT64_MAX

/* Defaults in place, nothing read. */
int settings_new(Settings **ret);
/* NAME is "agentd.conf". Also refuses settings that contradict each other (a default above its maximum);
 * *ret_error (allocated, may be NULL where config_load() has logged it) says which. */
int settings_load(const char *name, Settings **ret, char **ret_error);
Settings *settings_free(Settings *s);
DEFINE_CLEANUP(Settings *, settings_free);

/* A number of CPUs such as "1", "0.5" or "150%", as µs per second. */
int parse_cpus(const char *s, uint64_t *ret);
