/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* All verbs: what they are called, what they take, how they are explained. */

#include "verb.h"

#define OPERATION_DETAILS                                                                          \
        "Waits for the end and shows how far the work is. Ctrl-C cancels it; nothing half-made stays.\n"  \
        "Prints the digest of what was made."

#define GENERATION_DETAILS                                                                         \
        "A generation is \"head\", a number as in \"env log\", or its digest or the beginning of that."

const Verb verbs[] = {
        { "run", "AGENT", GROUP_RUNS, 1, 1,
          OPTION_BIT(OPTION_INPUT) | OPTION_BIT(OPTION_INPUT_FILE) | OPTION_BIT(OPTION_WAIT) |
                  OPTION_BIT(OPTION_TIMEOUT) | OPTION_BIT(OPTION_SESSION) | OPTION_BIT(OPTION_KEEP) | OPTION_BIT(OPTION_VERIFY) |
                  OPTION_BIT(OPTION_IDEMPOTENCY_KEY) | OPTION_BIT(OPTION_PRIORITY) | OPTION_BIT(OPTION_LABEL),
          verb_run, "Start a run of an agent",
          "Prints the run's id as soon as it is safely queued. With --wait, waits for the end and prints what the\n"
          "agent put out; state changes go to stderr where that is a terminal. Ctrl-C stops only the waiting.\n"
          "\n"
          "Exit status with --wait: 0 success, 1 failed (the agent said so), 2 wrong usage, 3 D-Bus or other error,\n"
          "10 exit-code, 11 signal, 12 timeout, 13 oom-kill, 14 canceled, 15 out-of-credit, 16 sandbox-failed,\n"
          "17 lost, 130 interrupted." },
        { "runs", NULL, GROUP_RUNS, 0, 0,
          OPTION_BIT(OPTION_AGENT) | OPTION_BIT(OPTION_STATE) | OPTION_BIT(OPTION_RESULT) | OPTION_BIT(OPTION_LINES),
          verb_runs, "List runs, newest first", "The newest 100, if --lines does not say otherwise." },
        { "status", "RUN", GROUP_RUNS, 1, 1, 0, verb_status, "Show what is known about a run", NULL },
        { "logs", "RUN", GROUP_RUNS, 1, 1, OPTION_BIT(OPTION_FOLLOW), verb_logs, "Show a run's log",
          "With --json, the lines of JSON are passed on as agentd gives them: ts (µs), priority (0 to 7), message." },
        { "result", "RUN", GROUP_RUNS, 1, 1, 0, verb_result, "Print what a run put out",
          "Text as it is, anything else as JSON. With --json, the whole result document." },
        { "receipt", "RUN", GROUP_RUNS, 1, 1, 0, verb_receipt, "Print a finished run's receipt (JSON)", NULL },
        { "cancel", "RUN", GROUP_RUNS, 1, 1, 0, verb_cancel, "End a run", NULL },
        { "prune-runs", "[AGENT]", GROUP_RUNS, 0, 1,
          OPTION_BIT(OPTION_KEEP_NEWEST) | OPTION_BIT(OPTION_OLDER_THAN) | OPTION_BIT(OPTION_DRY_RUN), verb_prune_runs,
          "Remove finished runs and what they left",
          "Of AGENT, or of all the caller's agents (for root: everybody's). --keep=N leaves the N newest, --older-than takes\n"
          "only those that ended so long ago; one of them must be given. What is still needed stays: runs with a live\n"
          "caller, with changes that wait for a freeze, or with an idempotency key of late." },
        { "artifacts", "RUN", GROUP_RUNS, 1, 1, 0, verb_artifacts, "List the files that a run left", NULL },
        { "artifact", "RUN NAME", GROUP_RUNS, 2, 2, OPTION_BIT(OPTION_OUTPUT), verb_artifact, "Fetch a file that a run left",
          "Writes to stdout unless --output is given. A terminal gets it only with --output=-." },

        { "agent list", NULL, GROUP_AGENTS, 0, 0, 0, verb_agent_list, "List agents", NULL },
        { "agent show", "AGENT", GROUP_AGENTS, 1, 1, 0, verb_agent_show, "Show an agent and its definition", NULL },
        { "agent create", "FILE", GROUP_AGENTS, 1, 1, 0, verb_agent_create, "Make an agent from a definition",
          "FILE is one JSON document, see agent-definition(5); - is stdin." },
        { "agent update", "FILE", GROUP_AGENTS, 1, 1, 0, verb_agent_update, "Replace an agent's definition",
          "The agent's environment stays as it is." },
        { "agent remove", "AGENT", GROUP_AGENTS, 1, 1, 0, verb_agent_remove, "Forget an agent", NULL },
        { "env log", "AGENT", GROUP_AGENTS, 1, 1, 0, verb_env_log, "List the generations of an environment", NULL },
        { "env freeze", "AGENT", GROUP_AGENTS, 1, 1,
          OPTION_BIT(OPTION_FROM_RUN) | OPTION_BIT(OPTION_NOTE) | OPTION_BIT(OPTION_NO_WAIT), verb_env_freeze,
          "Make an edit, or a run's changes, a new generation",
          "Without --from-run, of what \"env edit\" has changed.\n" OPERATION_DETAILS },
        { "env edit", "AGENT [-- COMMAND…]", GROUP_AGENTS, 1, 1024, OPTION_BIT(OPTION_ALLOW_HOST), verb_env_edit,
          "Change an environment as its root",
          "Opens a shell, or runs COMMAND, as root of the environment. What it changes stays in the edit until \"env freeze\"\n"
          "makes it a generation or \"env discard\" drops it, over sessions and reboots. Runs do not see it before. It has no\n"
          "network but a proxy to the hosts of AllowHosts= (agentd.conf) and of --allow-host; an empty one drops those before\n"
          "it. Exit status 1 where COMMAND failed." },
        { "env close", "AGENT", GROUP_AGENTS, 1, 1, 0, verb_env_close, "End the session that is open in an edit",
          "What it has changed stays." },
        { "env edits", NULL, GROUP_AGENTS, 0, 0, 0, verb_env_edits, "List edits that are neither frozen nor discarded", NULL },
        { "env discard", "AGENT", GROUP_AGENTS, 1, 1, 0, verb_env_discard, "Drop what an edit has changed", NULL },
        { "env show", "AGENT [GENERATION]", GROUP_AGENTS, 1, 2, 0, verb_env_show, "Show a generation (JSON)",
          GENERATION_DETAILS },
        { "env diff", "AGENT FROM [TO]", GROUP_AGENTS, 2, 3, 0, verb_env_diff, "Compare two generations",
          GENERATION_DETAILS },
        { "env rollback", "AGENT GENERATION", GROUP_AGENTS, 2, 2, OPTION_BIT(OPTION_EXPECTED_HEAD), verb_env_rollback,
          "Make another generation the head",
          "Live runs keep what they have. " GENERATION_DETAILS },
        { "env export", "AGENT FILE [GENERATION]", GROUP_AGENTS, 2, 3, 0, verb_env_export,
          "Write an environment into one file",
          "An OCI image layout in a tar, with the layers as they are and the agent's definition; - is stdout." },
        { "env import", "AGENT FILE", GROUP_AGENTS, 2, 2, OPTION_BIT(OPTION_NO_WAIT), verb_env_import,
          "Take an environment from an exported file",
          "It becomes the head of AGENT, which is made after the definition in FILE where there is none; - is stdin.\n"
          OPERATION_DETAILS },
        { "env du", NULL, GROUP_AGENTS, 0, 0, 0, verb_env_du, "Show what environments take on disk", NULL },
        { "env prune", "[AGENT]", GROUP_AGENTS, 0, 1, OPTION_BIT(OPTION_KEEP_NEWEST), verb_env_prune,
          "Remove what nobody needs from the store",
          "With --keep=N, forgets all generations but the N newest and the head first: of AGENT, or of all agents." },
        { "env fsck", NULL, GROUP_AGENTS, 0, 0, 0, verb_env_fsck, "Check the bytes of all that is stored",
          "Exit status 1 where something is damaged; what it is and what hangs on it is printed." },

        { "image list", NULL, GROUP_IMAGES, 0, 0, 0, verb_image_list, "List images", NULL },
        { "image import", "NAME FILE", GROUP_IMAGES, 2, 2, OPTION_BIT(OPTION_NO_WAIT), verb_image_import,
          "Import a root file system", "FILE is a tar archive of it, an OCI archive or one of \"docker save\", maybe compressed; - is stdin.\n" OPERATION_DETAILS },
        { "image build", "NAME [PACKAGE…]", GROUP_IMAGES, 1, 512,
          OPTION_BIT(OPTION_NO_WAIT) | OPTION_BIT(OPTION_MIRROR), verb_image_build, "Build a Debian image",
          "PACKAGEs are added to a small system with node, python3, git, curl and ca-certificates.\n" OPERATION_DETAILS },
        { "image remove", "NAME", GROUP_IMAGES, 1, 1, 0, verb_image_remove, "Remove an image", NULL },

        { "service list", NULL, GROUP_SERVICES, 0, 0, 0, verb_service_list, "List services", NULL },
        { "service show", "NAME", GROUP_SERVICES, 1, 1, 0, verb_service_show, "Print a service's definition", NULL },
        { "service add", "FILE", GROUP_SERVICES, 1, 1, 0, verb_service_add, "Add a service from a definition",
          "FILE is one JSON document, see agent-service(5); - is stdin." },
        { "service update", "FILE", GROUP_SERVICES, 1, 1, 0, verb_service_update, "Replace a service's definition",
          NULL },
        { "service remove", "NAME", GROUP_SERVICES, 1, 1, 0, verb_service_remove, "Remove a service",
          "Its secret stays: see \"credential remove\"." },
        { "credential set", "SERVICE", GROUP_SERVICES, 1, 1, OPTION_BIT(OPTION_USER) | OPTION_BIT(OPTION_FD),
          verb_credential_set, "Set a service's secret",
          "The secret is read from stdin (on a terminal: asked for, without echo) or from --fd, never from the\n"
          "command line. It goes straight to agent-credentiald. One newline at the end is taken off. It may come before\n"
          "the service itself." },
        { "credential list", NULL, GROUP_SERVICES, 0, 0, OPTION_BIT(OPTION_USER), verb_credential_list,
          "List the services that have a secret", NULL },
        { "credential remove", "SERVICE", GROUP_SERVICES, 1, 1, OPTION_BIT(OPTION_USER), verb_credential_remove,
          "Forget a service's secret", NULL },

        { "approvals", NULL, GROUP_SERVICES, 0, 0, 0, verb_approvals, "List requests that wait for a person's word", NULL },
        { "approve", "REQUEST", GROUP_SERVICES, 1, 1, 0, verb_approve, "Let a request that waits go on", NULL },
        { "deny", "REQUEST", GROUP_SERVICES, 1, 1, 0, verb_deny, "Refuse a request that waits", NULL },
        { "key rotate", NULL, GROUP_SERVICES, 0, 0, 0, verb_key_rotate, "Make another key for run tokens",
          "Prints its id. Tokens of live runs stay good. For root." },

        { "runner deploy", "DIR|FILE", GROUP_RUNNERS, 1, 1,
          OPTION_BIT(OPTION_NOTE) | OPTION_BIT(OPTION_CANARY) | OPTION_BIT(OPTION_AGENTS) | OPTION_BIT(OPTION_NO_WAIT),
          verb_runner_deploy, "Give new runs another runner",
          "DIR has a runner.json, FILE is such a directory as a tar archive, maybe compressed; - is stdin. The next run that\n"
          "begins gets it, no live one, and no environment is touched. With --canary or --agents only some runs get it,\n"
          "until it is promoted or withdrawn.\n" OPERATION_DETAILS },
        { "runner list", NULL, GROUP_RUNNERS, 0, 0, 0, verb_runner_list, "List runners", NULL },
        { "runner status", NULL, GROUP_RUNNERS, 0, 0, 0, verb_runner_status, "Show which nodes accept the runners in use",
          "A runner that a node does not accept is quarantined for it: runs with that node go on with the last good one." },
        { "runner rollback", "[RUNNER]", GROUP_RUNNERS, 0, 1, 0, verb_runner_rollback, "Go back to an earlier runner",
          "Without RUNNER, to the last good one that was current before." },
        { "runner promote", NULL, GROUP_RUNNERS, 0, 0, 0, verb_runner_promote, "Make the canary the current runner", NULL },
        { "runner withdraw", NULL, GROUP_RUNNERS, 0, 0, 0, verb_runner_withdraw, "Give the canary to no run any more", NULL },
        { "runner remove", "RUNNER", GROUP_RUNNERS, 1, 1, 0, verb_runner_remove, "Forget a runner that is not in use", NULL },

        { "help", "[VERB]", GROUP_OTHER, 0, 2, 0, verb_help, "Show help", NULL },
        {}
};
