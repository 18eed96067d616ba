/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Reading an agent's definition. Each value is judged by the function that reads it, so that json_read_object() can put
 * key and line in front of the reason; nothing is checked later, where the place would be unknown.
 */
#include <stdarg.h>

#include "basic/json-util.h"
#include "basic/name-util.h"
#include "basic/string-util.h"

#include "definition.h"
#include "service/proxy-allow.h"

#define PROGRAM_PATH_MAX 4095U
#define VARIABLE_NAME_MAX 128U

static const char *const agent_kind_table[_AGENT_KIND_MAX] = {
        [AGENT_COMMAND] = "command",
        [AGENT_EXEC] = "exec",
};

static const char *const agent_isolation_table[_AGENT_ISOLATION_MAX] = {
        [AGENT_ISOLATION_UNIT] = "unit",
};

const char *agent_kind_to_string(AgentKind k) {
        return k >= 0 && k < _AGENT_KIND_MAX ? agent_kind_table[k] : NULL;
}

AgentKind agent_kind_from_string(const char *s) {
        for (AgentKind k = 0; s && k < _AGENT_KIND_MAX; k++)
                if (streq(agent_kind_table[k], s))
                        return k;
        return _AGENT_KIND_INVALID;
}

/* One limit while it is read: what was given goes to value, within minimum and maximum. */
typedef struct Limit {
        uint64_t value;
        uint64_t minimum, maximum;
        const char *setting; /* the key in agentd.conf that sets the maximum */
        bool clamp;
} Limit;

typedef struct Limits {
        Limit timeout, memory, cpu, tasks, disk, files, artifacts, artifact_size, log;
} Limits;

/* What json_read_object() fills: the definition, and what its values are held against. */
typedef struct Reader {
        Definition *d;
        Limits limits;
} Reader;

_printf_(2, 3) static int refuse(char **ret_reason, const char *format, ...) {
        char *text = NULL;
        va_list ap;
        int r;

        if (!ret_reason)
                return -EINVAL;
        va_start(ap, format);
        r = vasprintf(&text, format, ap);
        va_end(ap);
        if (r < 0)
                return -ENOMEM;
        free(*ret_reason);
        *ret_reason = text;
        return -EINVAL;
}

/* Control characters but newline and tab; those are what PID 1 takes in an environment, too. */
static bool text_is_fine(const char *s) {
        for (; *s; s++)
                if (((unsigned char) *s < 0x20 && *s != '\n' && *s != '\t') || *s == 0x7f)
                        return false;
        return true;
}

static int read_name(sd_json_variant *v, void *field, char **ret_reason) {
        if (!sd_json_variant_is_string(v))
                return refuse(ret_reason, "must be a string");
        if (!object_name_is_valid(sd_json_variant_string(v)))
                return refuse(ret_reason, "must be a name of 1 to 63 lower-case letters, digits, '.', '_', '-' that "
                                          "starts with a letter or digit and has no '..'");
        return free_and_strdup(field, sd_json_variant_string(v));
}

static int read_name_of(sd_json_variant *v, void *field, char **ret_reason) {
        return read_name(v, &(*(Definition **) field)->name, ret_reason);
}

static int read_image(sd_json_variant *v, void *field, char **ret_reason) {
        return read_name(v, &(*(Definition **) field)->image, ret_reason);
}

static int read_description(sd_json_variant *v, void *field, char **ret_reason) {
        Definition *d = *(Definition **) field;
        const char *s;

        if (!sd_json_variant_is_string(v))
                return refuse(ret_reason, "must be a string");
        s = sd_json_variant_string(v);
        if (strlen(s) > DEFINITION_DESCRIPTION_MAX)
                return refuse(ret_reason, "must be at most %u bytes long", DEFINITION_DESCRIPTION_MAX);
        if (!text_is_fine(s))
                return refuse(ret_reason, "must not hold control characters");
        return free_and_strdup(&d->description, s);
}

static int read_kind(sd_json_variant *v, void *field, char **ret_reason) {
        Definition *d = *(Definition **) field;
        AgentKind k = sd_json_variant_is_string(v) ? agent_kind_from_string(sd_json_variant_string(v)) :
                                                     _AGENT_KIND_INVALID;

        if (k < 0)
                return refuse(ret_reason, "must be \"command\" or \"exec\"");
        d->kind = k;
        return 0;
}

static int read_isolation(sd_json_variant *v, void *field, char **ret_reason) {
        Definition *d = *(Definition **) field;

        if (!sd_json_variant_is_string(v) ||
            !streq(sd_json_variant_string(v), agent_isolation_table[AGENT_ISOLATION_UNIT]))
                return refuse(ret_reason, "must be \"unit\"");
        d->isolation = AGENT_ISOLATION_UNIT;
        return 0;
}

/* An absolute path that means what it says: no "." or "..", no empty component. */
static bool program_path_is_valid(const char *s) {
        if (s[0] != '/' || strlen(s) > PROGRAM_PATH_MAX || string_has_cc(s))
                return false;
        for (const char *p = s + 1;;) {
                size_t n = strcspn(p, "/");

                if (n == 0 || (n == 1 && p[0] == '.') || (n == 2 && p[0] == '.' && p[1] == '.'))
                        return false;
                if (p[n] == 0)
                        return true;
                p += n + 1;
        }
}

static int read_command(sd_json_variant *v, void *field, char **ret_reason) {
        Definition *d = *(Definition **) field;
        int r;

        if (!sd_json_variant_is_array(v))
                return refuse(ret_reason, "must be an array of strings");
        if (sd_json_variant_elements(v) == 0)
                return refuse(ret_reason, "must not be empty: first the program, then its arguments");
        if (sd_json_variant_elements(v) > DEFINITION_COMMAND_MAX)
                return refuse(ret_reason, "must have at most %u elements", DEFINITION_COMMAND_MAX);
        r = json_field_strv(v, &d->command, ret_reason);
        if (r < 0)
                return r;
        if (!program_path_is_valid(d->command[0]))
                return refuse(ret_reason, "must start with the absolute path of a program, without '.' and '..'");
        for (char **a = d->command; *a; a++)
                if (strlen(*a) > DEFINITION_ARGUMENT_MAX)
                        return refuse(ret_reason, "must have no argument longer than %u bytes",
                                      DEFINITION_ARGUMENT_MAX);
        return 0;
}

static bool variable_name_is_valid(const char *s) {
        size_t n = strlen(s);

        if (n == 0 || n > VARIABLE_NAME_MAX || (s[0] >= '0' && s[0] <= '9'))
                return false;
        return strspn(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_") == n;
}

/* Names by which PID 1 and the platform speak to the run. */
static bool variable_is_reserved(const char *s) {
        static const char *const names[] = {
                "CREDENTIALS_DIRECTORY", "NOTIFY_SOCKET", "INVOCATION_ID", "JOURNAL_STREAM", "WATCHDOG_PID",
                "WATCHDOG_USEC", "MAINPID", "SYSTEMD_EXEC_PID", "FDSTORE",
        };

        for (size_t i = 0; i < ELEMENTSOF(names); i++)
                if (streq(names[i], s))
                        return true;
        return startswith(s, "AGENT_") || startswith(s, "LISTEN_");
}

static int strp_compare(const void *a, const void *b) {
        return strcmp(*(char *const *) a, *(char *const *) b);
}

static int read_environment(sd_json_variant *v, void *field, char **ret_reason) {
        Definition *d = *(Definition **) field;
        int r;

        if (!sd_json_variant_is_object(v))
                return refuse(ret_reason, "must be an object of names and strings");
        if (sd_json_variant_elements(v) / 2 > DEFINITION_ENVIRONMENT_MAX)
                return refuse(ret_reason, "must have at most %u variables", DEFINITION_ENVIRONMENT_MAX);
        for (size_t i = 0; i < sd_json_variant_elements(v); i += 2) {
                const char *name = sd_json_variant_string(sd_json_variant_by_index(v, i));
                sd_json_variant *value = sd_json_variant_by_index(v, i + 1);
                _cleanup_free_ char *assignment = NULL;
                unsigned line = 0;

                /* Each variable has its own line: say that one. */
                sd_json_variant_get_source(value, NULL, &line, NULL);
                if (!variable_name_is_valid(name))
                        return refuse(ret_reason, "line %u: environment.%s: is not a name of letters, digits and "
                                                  "'_'", line, name);
                if (variable_is_reserved(name))
                        return refuse(ret_reason, "line %u: environment.%s: is reserved for the platform", line, name);
                if (!sd_json_variant_is_string(value))
                        return refuse(ret_reason, "line %u: environment.%s: must be a string", line, name);
                if (strlen(sd_json_variant_string(value)) > DEFINITION_ARGUMENT_MAX)
                        return refuse(ret_reason, "line %u: environment.%s: must be at most %u bytes long", line, name,
                                      DEFINITION_ARGUMENT_MAX);
                if (!text_is_fine(sd_json_variant_string(value)))
                        return refuse(ret_reason, "line %u: environment.%s: must not hold control characters", line,
                                      name);
                assignment = strprintf("%s=%s", name, sd_json_variant_string(value));
                if (!assignment)
                        return -ENOMEM;
                r = strv_extend(&d->environment, assignment);
                if (r < 0)
                        return r;
        }
        if (d->environment)
                qsort(d->environment, strv_length(d->environment), sizeof(char *), strp_compare);
        return 0;
}

static int read_services(sd_json_variant *v, void *field, char **ret_reason) {
        Definition *d = *(Definition **) field;
        int r;

        if (!sd_json_variant_is_array(v))
                return refuse(ret_reason, "must be an array of names of services");
        if (sd_json_variant_elements(v) > DEFINITION_SERVICES_MAX)
                return refuse(ret_reason, "must have at most %u elements", DEFINITION_SERVICES_MAX);
        r = json_field_strv(v, &d->services, ret_reason);
        if (r < 0)
                return r;
        for (char **n = d->services; *n; n++)
                if (!object_name_is_valid(*n))
                        return refuse(ret_reason, "\"%s\" is not the name of a service", *n);
        qsort(d->services, strv_length(d->services), sizeof(char *), strp_compare);
        for (char **n = d->services; n[0] && n[1]; n++)
                if (streq(n[0], n[1]))
                        return refuse(ret_reason, "\"%s\" appears twice", n[0]);
        return 0;
}

static int read_proxy(sd_json_variant *v, void *field, char **ret_reason) {
        Definition *d = *(Definition **) field;
        int r;

        if (!sd_json_variant_is_array(v))
                return refuse(ret_reason, "must be an array of \"host:port\"");
        if (sd_json_variant_elements(v) > PROXY_ALLOW_MAX)
                return refuse(ret_reason, "must have at most %u elements", PROXY_ALLOW_MAX);
        r = json_field_strv(v, &d->proxy, ret_reason);
        if (r < 0)
                return r;
        for (char **n = d->proxy; n && *n; n++)
                if (!proxy_pattern_is_valid(*n))
                        return refuse(ret_reason, "\"%s\" is not \"host:port\" or \"*.domain:port\" (names only, lower "
                                                  "case)", *n);
        if (strv_length(d->proxy) == 0)
                d->proxy = strv_free(d->proxy);
        else
                qsort(d->proxy, strv_length(d->proxy), sizeof(char *), strp_compare);
        return 0;
}

static int read_concurrency(sd_json_variant *v, void *field, char **ret_reason) {
        Definition *d = *(Definition **) field;
        uint64_t n;

        if (json_field_uint64(v, &n, NULL) < 0 || n < 1 || n > DEFINITION_CONCURRENCY_MAX)
                return refuse(ret_reason, "must be a whole number from 1 to %u", DEFINITION_CONCURRENCY_MAX);
        d->concurrency = n;
        return 0;
}

/* ---- limits ---- */

static int bound(Limit *l, uint64_t value, char **ret_reason) {
        if (value < l->minimum)
                return refuse(ret_reason, "is too small");
        if (value > l->maximum) {
                if (!l->clamp)
                        return refuse(ret_reason, "is above what this host allows (%s= in agentd.conf)", l->setting);
                value = l->maximum;
        }
        l->value = value;
        return 0;
}

static int read_limit_size(sd_json_variant *v, void *field, char **ret_reason) {
        uint64_t n;
        int r = json_field_size(v, &n, ret_reason);

        return r < 0 ? r : bound(field, n, ret_reason);
}

static int read_limit_timespan(sd_json_variant *v, void *field, char **ret_reason) {
        uint64_t n;
        int r = json_field_timespan(v, &n, ret_reason);

        return r < 0 ? r : bound(field, n, ret_reason);
}

static int read_limit_number(sd_json_variant *v, void *field, char **ret_reason) {
        uint64_t n;
        int r = json_field_uint64(v, &n, ret_reason);

        return r < 0 ? r : bound(field, n, ret_reason);
}

static int read_limit_cpu(sd_json_variant *v, void *field, char **ret_reason) {
        double n;

        if (!sd_json_variant_is_number(v))
                return refuse(ret_reason, "must be a number of CPUs such as 1 or 0.5");
        n = sd_json_variant_real(v);
        /* Written so that NaN fails, too. The upper bound only keeps the conversion defined. */
        if (!(n >= 0.01 && n <= 100000.0))
                return refuse(ret_reason, "must be a number of CPUs from 0.01 up");
        return bound(field, (uint64_t) (n * (double) USEC_PER_SEC + 0.5), ret_reason);
}

static int read_limits(sd_json_variant *v, void *field, char **ret_reason) {
        static const JsonField table[] = {
                { "timeout", _SD_JSON_VARIANT_TYPE_INVALID, read_limit_timespan, offsetof(Limits, timeout), false },
                { "memory", _SD_JSON_VARIANT_TYPE_INVALID, read_limit_size, offsetof(Limits, memory), false },
                { "cpu", _SD_JSON_VARIANT_TYPE_INVALID, read_limit_cpu, offsetof(Limits, cpu), false },
                { "tasks", _SD_JSON_VARIANT_TYPE_INVALID, read_limit_number, offsetof(Limits, tasks), false },
                { "disk", _SD_JSON_VARIANT_TYPE_INVALID, read_limit_size, offsetof(Limits, disk), false },
                { "files", _SD_JSON_VARIANT_TYPE_INVALID, read_limit_number, offsetof(Limits, files), false },
                { "artifacts", _SD_JSON_VARIANT_TYPE_INVALID, read_limit_number, offsetof(Limits, artifacts), false },
                { "artifact_size", _SD_JSON_VARIANT_TYPE_INVALID, read_limit_size, offsetof(Limits, artifact_size),
                  false },
                { "log", _SD_JSON_VARIANT_TYPE_INVALID, read_limit_size, offsetof(Limits, log), false },
                {},
        };

        return json_read_object(v, "limits", table, field, ret_reason);
}

static Limit limit(uint64_t value, uint64_t minimum, uint64_t maximum, const char *setting, bool clamp) {
        return (Limit) {
                .value = MIN(value, maximum),
                .minimum = minimum,
                .maximum = maximum,
                .setting = setting,
                .clamp = clamp,
        };
}

/* ---- the whole ---- */

int definition_parse(const char *text, size_t size, const Settings *settings, DefinitionFlags flags, Definition **ret,
                     char **ret_error) {
        static const JsonField table[] = {
                { "name", _SD_JSON_VARIANT_TYPE_INVALID, read_name_of, offsetof(Reader, d), true },
                { "description", _SD_JSON_VARIANT_TYPE_INVALID, read_description, offsetof(Reader, d), false },
                { "image", _SD_JSON_VARIANT_TYPE_INVALID, read_image, offsetof(Reader, d), true },
                { "kind", _SD_JSON_VARIANT_TYPE_INVALID, read_kind, offsetof(Reader, d), true },
                { "command", _SD_JSON_VARIANT_TYPE_INVALID, read_command, offsetof(Reader, d), true },
                { "environment", _SD_JSON_VARIANT_TYPE_INVALID, read_environment, offsetof(Reader, d), false },
                { "services", _SD_JSON_VARIANT_TYPE_INVALID, read_services, offsetof(Reader, d), false },
                { "proxy", _SD_JSON_VARIANT_TYPE_INVALID, read_proxy, offsetof(Reader, d), false },
                { "limits", _SD_JSON_VARIANT_TYPE_INVALID, read_limits, offsetof(Reader, limits), false },
                { "concurrency", _SD_JSON_VARIANT_TYPE_INVALID, read_concurrency, offsetof(Reader, d), false },
                { "isolation", _SD_JSON_VARIANT_TYPE_INVALID, read_isolation, offsetof(Reader, d), false },
                {},
        };
        const RunLimits *def = &settings->defaults, *max = &settings->maximum;
        _cleanup_(definition_freep) Definition *d = NULL;
        _cleanup_json_ sd_json_variant *v = NULL;
        bool clamp = flags & DEFINITION_STORED;
        Reader reader;
        int r;

        if (size > DEFINITION_SIZE_MAX) {
                if (ret_error)
                        *ret_error = strprintf("a definition must be at most %u bytes long", DEFINITION_SIZE_MAX);
                return -E2BIG;
        }
        r = json_parse(text, size, &v, ret_error);
        if (r < 0)
                return r;

        d = malloc(sizeof(*d));
        if (!d)
                return -ENOMEM;
        *d = (Definition) {
                .kind = _AGENT_KIND_INVALID,
                .isolation = AGENT_ISOLATION_UNIT,
                .concurrency = DEFINITION_CONCURRENCY_DEFAULT,
        };
        reader = (Reader) {
                .d = d,
                .limits = {
                        .timeout = limit(def->timeout_usec, USEC_PER_SEC, max->timeout_usec, "MaxTimeout", clamp),
                        .memory = limit(def->memory, 4U << 20, max->memory, "MaxMemory", clamp),
                        .cpu = limit(def->cpu, USEC_PER_SEC / 100, max->cpu, "MaxCPU", clamp),
                        .tasks = limit(def->tasks, 1, max->tasks, "MaxTasks", clamp),
                        .disk = limit(def->disk, 1U << 20, max->disk, "MaxDisk", clamp),
                        .files = limit(def->files, 16, max->files, "MaxFiles", clamp),
                        .artifacts = limit(def->artifacts, 0, max->artifacts, "MaxArtifacts", clamp),
                        .artifact_size = limit(def->artifact_size, 0, max->artifact_size, "MaxArtifactSize", clamp),
                        .log = limit(def->log, 0, max->log, "MaxLog", clamp),
                },
        };
        r = json_read_object(v, "", table, &reader, ret_error);
        if (r < 0)
                return r;
        d->limits = (RunLimits) {
                .timeout_usec = reader.limits.timeout.value,
                .memory = reader.limits.memory.value,
                .cpu = reader.limits.cpu.value,
                .tasks = reader.limits.tasks.value,
                .disk = reader.limits.disk.value,
                .files = reader.limits.files.value,
                .artifacts = reader.limits.artifacts.value,
                .artifact_size = reader.limits.artifact_size.value,
                .log = reader.limits.log.value,
        };
        if (!d->environment) {
                d->environment = calloc(1, sizeof(char *));
                if (!d->environment)
                        return -ENOMEM;
        }
        if (!d->services) {
                d->services = calloc(1, sizeof(char *));
                if (!d->services)
                        return -ENOMEM;
        }
        d->json = TAKE_PTR(v);
        *ret = TAKE_PTR(d);
        return 0;
}

Definition *definition_free(Definition *d) {
        if (!d)
                return NULL;
        free(d->name);
        free(d->description);
        free(d->image);
        strv_free(d->command);
        strv_free(d->environment);
        strv_free(d->services);
        strv_free(d->proxy);
        sd_json_variant_unref(d->json);
        return mfree(d);
}

int definition_format(const Definition *d, char **ret) {
        return json_format_canonical(d->json, ret);
}

int definition_policy(const Definition *d, sd_json_variant *services, char **ret_text,
                      char ret_digest[static DIGEST_LEN + 1]) {
        _cleanup_json_ sd_json_variant *v = NULL;
        _cleanup_free_ char *text = NULL;
        char digest[DIGEST_LEN + 1];
        int r;

        r = sd_json_buildo(
                &v,
                SD_JSON_BUILD_PAIR("v", SD_JSON_BUILD_INTEGER(1)),
                SD_JSON_BUILD_PAIR("kind", SD_JSON_BUILD_STRING(agent_kind_to_string(d->kind))),
                SD_JSON_BUILD_PAIR("isolation", SD_JSON_BUILD_STRING(agent_isolation_table[d->isolation])),
                SD_JSON_BUILD_PAIR("command", SD_JSON_BUILD_STRV(d->command)),
                SD_JSON_BUILD_PAIR("environment", SD_JSON_BUILD_STRV(d->environment)),
                SD_JSON_BUILD_PAIR(
                        "limits",
                        SD_JSON_BUILD_OBJECT(
                                SD_JSON_BUILD_PAIR("timeout_usec", SD_JSON_BUILD_UNSIGNED(d->limits.timeout_usec)),
                                SD_JSON_BUILD_PAIR("memory", SD_JSON_BUILD_UNSIGNED(d->limits.memory)),
                                SD_JSON_BUILD_PAIR("cpu_usec", SD_JSON_BUILD_UNSIGNED(d->limits.cpu)),
                                SD_JSON_BUILD_PAIR("tasks", SD_JSON_BUILD_UNSIGNED(d->limits.tasks)),
                                SD_JSON_BUILD_PAIR("disk", SD_JSON_BUILD_UNSIGNED(d->limits.disk)),
                                SD_JSON_BUILD_PAIR("files", SD_JSON_BUILD_UNSIGNED(d->limits.files)),
                                SD_JSON_BUILD_PAIR("artifacts", SD_JSON_BUILD_UNSIGNED(d->limits.artifacts)),
                                SD_JSON_BUILD_PAIR("artifact_size", SD_JSON_BUILD_UNSIGNED(d->limits.artifact_size)),
                                SD_JSON_BUILD_PAIR("log", SD_JSON_BUILD_UNSIGNED(d->limits.log)))),
                SD_JSON_BUILD_PAIR_CONDITION(!!d->proxy, "proxy", SD_JSON_BUILD_STRV(d->proxy)),
                SD_JSON_BUILD_PAIR_CONDITION(!!services, "services", SD_JSON_BUILD_VARIANT(services)),
                SD_JSON_BUILD_PAIR_CONDITION(!services, "services", SD_JSON_BUILD_EMPTY_OBJECT));
        if (r < 0)
                return r;
        r = json_format_canonical(v, &text);
        if (r < 0)
                return r;
        r = digest_bytes(text, strlen(text), digest);
        if (r < 0)
                return r;
        memcpy(ret_digest, digest, sizeof digest);
        if (ret_text)
                *ret_text = TAKE_PTR(text);
        return 0;
}

const char *definition_environment_get(const Definition *d, const char *name) {
        for (char **e = d->environment; *e; e++) {
                const char *rest = startswith(*e, name);

                if (rest && *rest == '=')
                        return rest + 1;
        }
        return NULL;
}
