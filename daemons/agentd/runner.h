/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * The platform's runners. Each is a layer in the layer store, named by the digest of its bytes; which one new runs get
 * is a state in the store. In a run the layer is bound read-only at /opt/agentd, the runner itself at
 * /opt/agentd/runner: nothing is copied into the agent's environment, and an upgrade of the package or a deploy
 * changes nothing under a live run.
 *
 * What agentd knows of a runner is its manifest, which agent-image made when it was packed:
 *   {"name","version","main","check":["main.cjs",…],"node":"bin/node","node_digest":"sha256:…","invalid":"…"}
 * "check" are the scripts that `node --check` has to accept, "node" is its own interpreter (without it the image's
 * /usr/bin/node is used), "invalid" is why no node may run it.
 */

#include "store/store.h"

#define RUNNER_ROOT "/opt/agentd"
#define RUNNER_INSIDE RUNNER_ROOT "/runner"
#define RUNNER_BROKEN RUNNER_ROOT "/broken.cjs"
#define RUNNER_IMAGE_NODE "/usr/bin/node"
/* How far back a run looks for one that its node accepts. */
#define RUNNER_CANDIDATES_MAX 10U

typedef struct Manager Manager;

typedef struct Runner {
        unsigned n_ref;
        char digest[DIGEST_LEN + 1];
        char *name, *version;
        char *main;
        char **check;
        char *node;        /* or NULL */
        char *node_digest; /* of that file, or NULL */
        char *invalid;     /* or NULL */

        StoreRunnerState state;
        uint64_t percent;
        char *agents;
} Runner;

/* Checks MANIFEST strictly: it was made by a program that read what somebody sent. *ret_error is a sentence. */
int runner_from_manifest(const char *digest, const char *manifest, Runner **ret, char **ret_error);
Runner *runner_ref(Runner *r);
Runner *runner_unref(Runner *r);
DEFINE_CLEANUP(Runner *, runner_unref);

/* The node that will run it, as seen inside. */
int runner_node_path(const Runner *r, char **ret);

/* Whether the canary is for the run: its agent is named, or its number falls into the share. */
bool runner_canary_takes(const Runner *canary, const char *user, const char *agent, const char *run);

/* All runners that runs may get, in the order in which they are tried: canary, current, previous ones. */
typedef struct RunnerSet {
        Runner **runners;
        size_t n;
} RunnerSet;

int runner_set_load(Store *s, RunnerSet *ret);
void runner_set_done(RunnerSet *set);
/* NULL before the first deploy. */
Runner *runner_set_current(const RunnerSet *set);
/* For one run: referenced, NULL-terminated; ends with the array's end. */
int runner_set_candidates(const RunnerSet *set, const char *user, const char *agent, const char *run,
                          Runner *ret[static RUNNER_CANDIDATES_MAX + 1]);
