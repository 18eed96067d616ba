/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* The verbs of agentctl: one table that drives look-up, checks of arguments and options, and help. */

#include "client.h"

typedef enum VerbGroup {
        GROUP_RUNS,
        GROUP_AGENTS,
        GROUP_IMAGES,
        GROUP_SERVICES,
        GROUP_RUNNERS,
        GROUP_OTHER,
        _GROUP_MAX,
} VerbGroup;

#define OPTION_BIT(id) (UINT64_C(1) << (id))

typedef struct Verb {
        const char *name; /* "run", "agent list" */
        const char *args; /* for the usage line: "RUN NAME" */
        VerbGroup group;
        unsigned min_args, max_args;
        uint64_t options; /* OPTION_BIT()s beside the common ones */
        /* ARGV holds the arguments behind the verb's own words. Returns an ExitStatus, or a negative value for a
         * fault that has been told. */
        int (*run)(Client *c, int argc, char **argv);
        const char *summary; /* one line */
        const char *details; /* more for the verb's own help, or NULL */
} Verb;

extern const Verb verbs[];

/* The verb that ARGV starts with; *ret_words is how many words its name has. NULL where there is none. */
const Verb *verb_find(const Verb *table, int argc, char **argv, int *ret_words);
/* Says that ARGV starts with none. USAGE_ERROR. */
int verb_unknown(int argc, char **argv);
/* Whether the arguments and options suit the verb. Told on stderr, USAGE_ERROR. */
int verb_check(const Verb *v, const Options *o, int argc);

void help_print(FILE *f);
void help_print_verb(FILE *f, const Verb *v);
/* Verbs of a family such as "agent"; false where there is no such family. */
bool help_print_family(FILE *f, const char *family);

int verb_help(Client *c, int argc, char **argv);
int verb_run(Client *c, int argc, char **argv);
int verb_runs(Client *c, int argc, char **argv);
int verb_prune_runs(Client *c, int argc, char **argv);
int verb_status(Client *c, int argc, char **argv);
int verb_logs(Client *c, int argc, char **argv);
int verb_result(Client *c, int argc, char **argv);
int verb_receipt(Client *c, int argc, char **argv);
int verb_cancel(Client *c, int argc, char **argv);
int verb_artifacts(Client *c, int argc, char **argv);
int verb_artifact(Client *c, int argc, char **argv);
int verb_approvals(Client *c, int argc, char **argv);
int verb_approve(Client *c, int argc, char **argv);
int verb_deny(Client *c, int argc, char **argv);
int verb_key_rotate(Client *c, int argc, char **argv);
int verb_agent_list(Client *c, int argc, char **argv);
int verb_agent_show(Client *c, int argc, char **argv);
int verb_agent_create(Client *c, int argc, char **argv);
int verb_agent_update(Client *c, int argc, char **argv);
int verb_agent_remove(Client *c, int argc, char **argv);
int verb_env_log(Client *c, int argc, char **argv);
int verb_env_freeze(Client *c, int argc, char **argv);
int verb_env_export(Client *c, int argc, char **argv);
int verb_env_import(Client *c, int argc, char **argv);
int verb_env_edit(Client *c, int argc, char **argv);
int verb_env_close(Client *c, int argc, char **argv);
int verb_env_discard(Client *c, int argc, char **argv);
int verb_env_edits(Client *c, int argc, char **argv);
int verb_env_show(Client *c, int argc, char **argv);
int verb_env_diff(Client *c, int argc, char **argv);
int verb_env_rollback(Client *c, int argc, char **argv);
int verb_env_du(Client *c, int argc, char **argv);
int verb_env_prune(Client *c, int argc, char **argv);
int verb_env_fsck(Client *c, int argc, char **argv);
int verb_image_list(Client *c, int argc, char **argv);
int verb_image_import(Client *c, int argc, char **argv);
int verb_image_build(Client *c, int argc, char **argv);
int verb_image_remove(Client *c, int argc, char **argv);
int verb_runner_deploy(Client *c, int argc, char **argv);
int verb_runner_list(Client *c, int argc, char **argv);
int verb_runner_status(Client *c, int argc, char **argv);
int verb_runner_rollback(Client *c, int argc, char **argv);
int verb_runner_promote(Client *c, int argc, char **argv);
int verb_runner_withdraw(Client *c, int argc, char **argv);
int verb_runner_remove(Client *c, int argc, char **argv);
int verb_service_list(Client *c, int argc, char **argv);
int verb_service_show(Client *c, int argc, char **argv);
int verb_service_add(Client *c, int argc, char **argv);
int verb_service_update(Client *c, int argc, char **argv);
int verb_service_remove(Client *c, int argc, char **argv);
int verb_credential_set(Client *c, int argc, char **argv);
int verb_credential_list(Client *c, int argc, char **argv);
int verb_credential_remove(Client *c, int argc, char **argv);
