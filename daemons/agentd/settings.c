/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The administrator's settings and their defaults; see packaging/agentd.conf for what each means. */
#include "basic/string-util.h"

#include "edit-hosts.h"
#include "sandbox/edit-disk.h"
#include "settings.h"

/* Where Debian's, Python's and Node's packages come from. */

#define USEC_PER_MINUTE (60 * USEC_PER_SEC)
#define USEC_PER_HOUR (60 * USEC_PER_MINUTE)
#define KIB UINT64_C(1024)
#define MIB (1024 * KIB)
#define GIB (1024 * MIB)

int parse_cpus(const char *s, uint64_t *ret) {
        uint64_t whole = 0, fraction = 0, scale = USEC_PER_SEC;
        _cleanup_free_ char *number = NULL;
        bool percent;
        char *dot;
        size_t n;
        int r;

        if (isempty(s))
                return -EINVAL;
        n = strlen(s);
        percent = s[n - 1] == '%';
        number = strndup(s, percent ? n - 1 : n);
        if (!number)
                return -ENOMEM;
        if (percent)
                scale /= 100;
        dot = strchr(number, '.');
        if (dot) {
                /* As many digits as µs have; what is finer than that is a mistake. */
                char digits[7] = "000000";

                *dot++ = 0;
                n = strlen(dot);
                if (n < 1 || n > 6)
                        return -EINVAL;
                memcpy(digits, dot, n);
                r = parse_uint64(digits, &fraction);
                if (r < 0)
                        return r;
        }
        r = parse_uint64(number, &whole);
        if (r < 0)
                return r;
        if (whole > 100000)
                return -ERANGE;
        whole = whole * scale + fraction * scale / USEC_PER_SEC;
        if (whole == 0)
                return -ERANGE;
        *ret = whole;
        return 0;
}

static int config_parse_cpus(const char *value, void *field) {
        return parse_cpus(value, field);
}

/* A bound of 0 would only stop everything: such a value is a mistake. */
static int config_parse_positive(const char *value, void *field) {
        uint64_t v;
        int r;

        r = parse_uint64(value, &v);
        if (r < 0)
                return r;
        if (v == 0 || v > INT32_MAX)
                return -ERANGE;
        *(uint64_t *) field = v;
        return 0;
}

static int config_parse_positive_size(const char *value, void *field) {
        uint64_t v;
        int r;

        r = parse_size(value, &v);
        if (r < 0)
                return r;
        if (v == 0 || v > INT64_MAX)
                return -ERANGE;
        *(uint64_t *) field = v;
        return 0;
}

static int config_parse_positive_timespan(const char *value, void *field) {
        uint64_t v;
        int r;

        r = parse_timespan(value, &v);
        if (r < 0)
                return r;
        if (v == 0 || v > INT64_MAX / 4)
                return -ERANGE;
        *(uint64_t *) field = v;
        return 0;
}

/* A time span, or "infinity". */
static int config_parse_age(const char *value, void *field) {
        if (streq(value, "infinity")) {
                *(uint64_t *) field = UINT64_MAX;
                return 0;
        }
        return config_parse_positive_timespan(value, field);
}

/* A size, or "infinity". */
static int config_parse_bound(const char *value, void *field) {
        if (streq(value, "infinity")) {
                *(uint64_t *) field = UINT64_MAX;
                return 0;
        }
        return config_parse_positive_size(value, field);
}

/* 0 is a size here: nothing is kept free. */
static int config_parse_keep_free(const char *value, void *field) {
        uint64_t v;
        int r;

        if (streq(value, "auto")) {
                *(uint64_t *) field = KEEP_FREE_AUTO;
                return 0;
        }
        r = parse_size(value, &v);
        if (r < 0)
                return r;
        if (v > INT64_MAX)
                return -ERANGE;
        *(uint64_t *) field = v;
        return 0;
}

static int config_parse_absolute_path(const char *value, void *field) {
        return value[0] == '/' && !string_has_cc(value) ? config_parse_string(value, field) : -EINVAL;
}

/* A file system has to fit into it; "infinity" is no bound at all. */
static int config_parse_edit_size(const char *value, void *field) {
        uint64_t v = 0;
        int r;

        r = streq(value, "infinity") ? 0 : parse_size(value, &v);
        if (r < 0)
                return r;
        if (!streq(value, "infinity") && (v < EDIT_DISK_SIZE_MIN || v > INT64_MAX))
                return -ERANGE;
        *(uint64_t *) field = v;
        return 0;
}

/* As config_parse_strv(): added to what is there, an empty value drops it. */
static int config_parse_hosts(const char *value, void *field) {
        _cleanup_strv_free_ char **words = NULL, **hosts = NULL;
        char ***l = field;
        int r;

        if (isempty(value)) {
                *l = strv_free(*l);
                return 0;
        }
        r = config_parse_strv(value, &words);
        if (r >= 0)
                r = edit_hosts_resolve(*l, words, &hosts, NULL);
        if (r < 0)
                return r;
        strv_free(*l);
        *l = TAKE_PTR(hosts);
        return 0;
}

#define FIELD(x) offsetof(Settings, x)

static const ConfigItem settings_table[] = {
        { "Queue", "MaxQueued", config_parse_positive, FIELD(max_queued) },
        { "Queue", "MaxQueuedPerUser", config_parse_positive, FIELD(max_queued_per_user) },
        { "Queue", "MaxQueuedPerAgent", config_parse_positive, FIELD(max_queued_per_agent) },
        { "Queue", "MaxLive", config_parse_positive, FIELD(max_live) },
        { "Queue", "MaxLivePerUser", config_parse_positive, FIELD(max_live_per_user) },

        { "Run", "DefaultTimeout", config_parse_positive_timespan, FIELD(defaults.timeout_usec) },
        { "Run", "MaxTimeout", config_parse_positive_timespan, FIELD(maximum.timeout_usec) },
        { "Run", "DefaultMemory", config_parse_positive_size, FIELD(defaults.memory) },
        { "Run", "MaxMemory", config_parse_positive_size, FIELD(maximum.memory) },
        { "Run", "DefaultCPU", config_parse_cpus, FIELD(defaults.cpu) },
        { "Run", "MaxCPU", config_parse_cpus, FIELD(maximum.cpu) },
        { "Run", "DefaultTasks", config_parse_positive, FIELD(defaults.tasks) },
        { "Run", "MaxTasks", config_parse_positive, FIELD(maximum.tasks) },
        { "Run", "DefaultDisk", config_parse_positive_size, FIELD(defaults.disk) },
        { "Run", "MaxDisk", config_parse_positive_size, FIELD(maximum.disk) },
        { "Run", "DefaultFiles", config_parse_positive, FIELD(defaults.files) },
        { "Run", "MaxFiles", config_parse_positive, FIELD(maximum.files) },
        { "Run", "DefaultArtifacts", config_parse_positive, FIELD(defaults.artifacts) },
        { "Run", "MaxArtifacts", config_parse_positive, FIELD(maximum.artifacts) },
        { "Run", "DefaultArtifactSize", config_parse_positive_size, FIELD(defaults.artifact_size) },
        { "Run", "MaxArtifactSize", config_parse_positive_size, FIELD(maximum.artifact_size) },
        { "Run", "DefaultLog", config_parse_positive_size, FIELD(defaults.log) },
        { "Run", "MaxLog", config_parse_positive_size, FIELD(maximum.log) },
        { "Run", "MaxAttempts", config_parse_positive, FIELD(max_attempts) },
        { "Run", "RetryDelay", config_parse_positive_timespan, FIELD(retry_delay_usec) },
        { "Run", "StopTimeout", config_parse_positive_timespan, FIELD(stop_timeout_usec) },
        { "Run", "RunnerCheckTimeout", config_parse_positive_timespan, FIELD(runner_check_timeout_usec) },
        { "Run", "VerifyLayers", config_parse_bool, FIELD(verify_layers) },
        { "Run", "RunnerDirectory", config_parse_absolute_path, FIELD(runner_directory) },

        { "Retention", "MaxAge", config_parse_age, FIELD(max_age_usec) },
        { "Retention", "MaxRunsPerUser", config_parse_positive, FIELD(max_runs_per_user) },
        { "Retention", "MaxSizePerUser", config_parse_positive_size, FIELD(max_size_per_user) },
        { "Retention", "MaxArtifactsPerUser", config_parse_positive_size, FIELD(max_artifacts_per_user) },
        { "Retention", "MaxSessionsPerUser", config_parse_positive_size, FIELD(max_sessions_per_user) },
        { "Retention", "IdempotencyWindow", config_parse_positive_timespan, FIELD(idempotency_window_usec) },
        { "Retention", "KeepFree", config_parse_keep_free, FIELD(keep_free) },
        { "Retention", "MaxRunnerGenerations", config_parse_positive, FIELD(max_runner_generations) },
        { "Retention", "MaxKept", config_parse_positive, FIELD(max_kept) },
        { "Retention", "MaxKeptPerUser", config_parse_positive, FIELD(max_kept_per_user) },
        { "Retention", "KeptTime", config_parse_positive_timespan, FIELD(kept_usec) },

        { "Images", "MaxSize", config_parse_positive_size, FIELD(image_max_size) },
        { "Images", "MaxEntries", config_parse_positive, FIELD(image_max_entries) },
        { "Images", "Timeout", config_parse_positive_timespan, FIELD(image_timeout_usec) },
        { "Images", "IdleTimeout", config_parse_age, FIELD(image_idle_usec) },
        { "Images", "MaxOperations", config_parse_positive, FIELD(max_operations) },
        { "Images", "MaxOperationsPerUser", config_parse_positive, FIELD(max_operations_per_user) },
        { "Images", "MaxLayersPerUser", config_parse_bound, FIELD(max_layers_per_user) },
        { "Images", "Mirror", config_parse_string, FIELD(image_mirror) },

        { "Edit", "SizeMax", config_parse_edit_size, FIELD(edit_size_max) },
        { "Edit", "MaxPerUser", config_parse_positive, FIELD(edit_max_per_user) },
        { "Edit", "AllowHosts", config_parse_hosts, FIELD(edit_hosts) },
        { "Edit", "AllowOtherHosts", config_parse_bool, FIELD(edit_other_hosts) },
        {},
};

int settings_new(Settings **ret) {
        _cleanup_(settings_freep) Settings *s = NULL;

        s = malloc(sizeof(*s));
        if (!s)
                return -ENOMEM;
        *s = (Settings) {
                .max_queued = 10000,
                .max_queued_per_user = 2000,
                .max_queued_per_agent = 2000,
                .max_live = 32,
                .max_live_per_user = 16,
                .defaults = {
                        .timeout_usec = 10 * USEC_PER_MINUTE,
                        .memory = 512 * MIB,
                        .cpu = USEC_PER_SEC,
                        .tasks = 256,
                        .disk = GIB,
                        .files = 4096,
                        .artifacts = 100,
                        .artifact_size = 100 * MIB,
                        .log = 16 * MIB,
                },
                .maximum = {
                        .timeout_usec = 24 * USEC_PER_HOUR,
                        .memory = 8 * GIB,
                        .cpu = 16 * USEC_PER_SEC,
                        .tasks = 4096,
                        .disk = 16 * GIB,
                        .files = 65536,
                        .artifacts = 1000,
                        .artifact_size = GIB,
                        .log = 256 * MIB,
                },
                .max_attempts = 3,
                .retry_delay_usec = USEC_PER_SEC,
                .stop_timeout_usec = 5 * USEC_PER_SEC,
                .runner_check_timeout_usec = 30 * USEC_PER_SEC,
                .max_age_usec = 90 * 24 * USEC_PER_HOUR,
                .max_runs_per_user = 100000,
                .max_size_per_user = GIB,
                .max_artifacts_per_user = 10 * GIB,
                .max_sessions_per_user = GIB,
                .idempotency_window_usec = 24 * USEC_PER_HOUR,
                .keep_free = KEEP_FREE_AUTO,
                .max_runner_generations = 20,
                .max_kept = 64,
                .max_kept_per_user = 8,
                .kept_usec = 24 * USEC_PER_HOUR,
                .image_max_size = 16 * GIB,
                .image_max_entries = 2000000,
                .image_timeout_usec = USEC_PER_HOUR,
                .image_idle_usec = 2 * USEC_PER_MINUTE,
                .max_operations = 4,
                .max_operations_per_user = 2,
                .max_layers_per_user = 100 * GIB,
                .edit_size_max = 4 * GIB,
                .edit_max_per_user = 16,
                .edit_other_hosts = true,
        };
        s->runner_directory = strdup(RUNNERDIR);
        if (!s->runner_directory)
                return -ENOMEM;
        *ret = TAKE_PTR(s);
        return 0;
}

Settings *settings_free(Settings *s) {
        if (!s)
                return NULL;
        free(s->runner_directory);
        free(s->image_mirror);
        strv_free(s->edit_hosts);
        return mfree(s);
}

/* Below RUN_TOKEN_TTL_MAX_SEC, with room for the time that a start takes. */
#define TIMEOUT_MAX_USEC (UINT64_C(30) * 24 * 3600 * USEC_PER_SEC)

static int settings_check(const Settings *s, char **ret_error) {
        const struct {
                const char *low_key, *high_key;
                uint64_t low, high;
        } pairs[] = {
                { "DefaultTimeout", "MaxTimeout", s->defaults.timeout_usec, s->maximum.timeout_usec },
                { "DefaultMemory", "MaxMemory", s->defaults.memory, s->maximum.memory },
                { "DefaultCPU", "MaxCPU", s->defaults.cpu, s->maximum.cpu },
                { "DefaultTasks", "MaxTasks", s->defaults.tasks, s->maximum.tasks },
                { "DefaultDisk", "MaxDisk", s->defaults.disk, s->maximum.disk },
                { "DefaultFiles", "MaxFiles", s->defaults.files, s->maximum.files },
                { "DefaultArtifacts", "MaxArtifacts", s->defaults.artifacts, s->maximum.artifacts },
                { "DefaultArtifactSize", "MaxArtifactSize", s->defaults.artifact_size, s->maximum.artifact_size },
                { "DefaultLog", "MaxLog", s->defaults.log, s->maximum.log },
        };

        for (size_t i = 0; i < ELEMENTSOF(pairs); i++)
                if (pairs[i].low > pairs[i].high) {
                        if (ret_error)
                                *ret_error = strprintf("agentd.conf: %s= is above %s=; lower the one or raise the "
                                                       "other.", pairs[i].low_key, pairs[i].high_key);
                        return -EINVAL;
                }
        if (s->max_age_usec < s->idempotency_window_usec) {
                if (ret_error)
                        *ret_error = strdup(
                                "agentd.conf: MaxAge= is below IdempotencyWindow=, for which a run with a key has to "
                                "stay.");
                return -EINVAL;
        }
        if (s->maximum.timeout_usec > TIMEOUT_MAX_USEC) {
                if (ret_error)
                        *ret_error = strdup(
                                "agentd.conf: MaxTimeout= is above 30 days, which is as long as a run's token "
                                "can be good for.");
                return -EINVAL;
        }
        return 0;
}

int settings_load(const char *name, Settings **ret, char **ret_error) {
        _cleanup_(settings_freep) Settings *s = NULL;
        int r;

        r = settings_new(&s);
        if (r < 0)
                return r;
        r = config_load(name, settings_table, s);
        if (r < 0)
                return r;
        if (!s->runner_directory) {
                s->runner_directory = strdup(RUNNERDIR);
                if (!s->runner_directory)
                        return -ENOMEM;
        }
        r = settings_check(s, ret_error);
        if (r < 0)
                return r;
        *ret = TAKE_PTR(s);
        return 0;
}
