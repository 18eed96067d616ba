/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * The definition of an agent: one JSON document by its owner, read strictly. It comes from a caller that is
 * not trusted: every name is checked here before it can reach a path, a unit property or a log field, and
 * every number is held against the administrator's bounds. Nothing is swallowed: an unknown or repeated key
 * is an error that names key and line.
 */

#include <systemd/sd-json.h>

#include "basic/digest.h"
#include "basic/macro.h"

#include "settings.h"

#define DEFINITION_SIZE_MAX (256U * 1024U)
#define DEFINITION_DESCRIPTION_MAX 1024U
#define DEFINITION_COMMAND_MAX 256U       /* arguments */
#define DEFINITION_ARGUMENT_MAX 32768U    /* bytes of one argument or one environment value */
#define DEFINITION_ENVIRONMENT_MAX 256U   /* variables */
#define DEFINITION_SERVICES_MAX 64U
#define DEFINITION_CONCURRENCY_DEFAULT 10U
#define DEFINITION_CONCURRENCY_MAX 1000U

typedef enum AgentKind {
        AGENT_COMMAND, /* the runner starts the command and reports for it */
        AGENT_EXEC,    /* the command is the unit's process, no runner */
        _AGENT_KIND_MAX,
        _AGENT_KIND_INVALID = -EINVAL,
} AgentKind;

const char *agent_kind_to_string(AgentKind k);
AgentKind agent_kind_from_string(const char *s);

/* How the sandbox is made. A later back end may boot the same layers in a machine of their own. */
typedef enum AgentIsolation {
        AGENT_ISOLATION_UNIT,
        _AGENT_ISOLATION_MAX,
        _AGENT_ISOLATION_INVALID = -EINVAL,
} AgentIsolation;

typedef struct Definition {
        char *name;
        char *description;    /* or NULL */
        char *image;
        AgentKind kind;
        char **command;       /* absolute program, arguments */
        char **environment;   /* "NAME=value", sorted by name */
        char **services;      /* sorted, without repetition */
        char **proxy;         /* "host:port" that the forward proxy may go to; NULL: no proxy */
        RunLimits limits;     /* effective: defaults filled in, all within the bounds */
        uint64_t concurrency;
        AgentIsolation isolation;
        sd_json_variant *json; /* as given */
} Definition;

typedef enum DefinitionFlags {
        /* It comes from the store: where the administrator has lowered a bound since, the value is lowered
         * too, instead of the agent being refused. */
        DEFINITION_STORED = 1 << 0,
} DefinitionFlags;

/* -EINVAL with *ret_error (a sentence with line and key), -E2BIG where TEXT is too large (also with a sentence). */
int definition_parse(const char *text, size_t size, const Settings *settings, DefinitionFlags flags, Definition **ret,
                     char **ret_error);
Definition *definition_free(Definition *d);
DEFINE_CLEANUP(Definition *, definition_free);

/* What was given, in canonical form: sorted keys, no white space. Parsing it again gives an equal definition.
 * Defaults are not written into it, so that they stay the administrator's. */
int definition_format(const Definition *d, char **ret);

/* What a run may do, as a canonical document and its digest: kind, command, environment, effective limits and
 * SERVICES (object: name → service definition). Equal policies have equal digests. */
int definition_policy(const Definition *d, sd_json_variant *services, char **ret_text,
                      char ret_digest[static DIGEST_LEN + 1]);

/* One variable's value by name, or NULL. */
const char *definition_environment_get(const Definition *d, const char *name);
