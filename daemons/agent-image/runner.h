/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * A runner's layer is what is bound at /opt/agentd in a run:
 *
 *   runner/        the runner, as it was deployed
 *   package.json   "{}": what Node looks up above the runner ends here, and never reaches the agent's environment
 *   broken.cjs     a script that no Node accepts, by which agentd tells whether a node checks at all
 *
 * Owners, times and modes are made the same for all: what counts is names and bytes, so that the same runner has the
 * same digest wherever it was packed.
 */

#include <systemd/sd-json.h>

#include "basic/macro.h"

#define RUNNER_SUBDIR "runner"
#define RUNNER_BROKEN_NAME "broken.cjs"

/* Checks and normalises the runner that was put into TREE/runner; *ret_manifest is what agentd keeps of it (see
 * daemons/agentd/runner.h). Returns the number of entries. */
int64_t finish_runner(int tree, sd_json_variant **ret_manifest);
/* Copies the directory FROM to TREE/runner. */
int copy_runner(const char *from, int tree);

/* Whether a script is one that PATTERN of runner.json's "check" names. A pattern without "/" means files of that name
 * at any depth (but for node_modules), others a path from the runner's top. */
bool runner_pattern_matches(const char *pattern, const char *path);
/* The line (from 1) of the first byte that is no UTF-8; 0 where all is well. */
size_t utf8_bad_line(const char *text, size_t size);
