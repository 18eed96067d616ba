/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * Which names are allowed. All names that a caller chooses pass one of these before they reach a
 * path, a unit name, a URL or a log field, so that none of those needs quoting rules of its own.
 */

#include "basic/macro.h"

#define RUN_ID_LEN 32

/* Agents, images, services: [a-z0-9]([a-z0-9._-]{0,62}), no "..", no trailing dot or dash. */
bool object_name_is_valid(const char *s);
/* Sessions, idempotency keys, labels' keys: 1..128 of [A-Za-z0-9._:-]. */
bool token_name_is_valid(const char *s);
/* Artifacts: 1..255 bytes of printable UTF-8 without '/', not starting with '.'. */
bool artifact_name_is_valid(const char *s);
/* A path inside a runner: 1..255 bytes of UTF-8; relative, no empty, hidden or dot components. */
bool runner_path_is_valid(const char *s);
/* A run id: 32 lower-case hex digits. */
bool run_id_is_valid(const char *s);
/* A new run id: 48 bits of milliseconds, then random, so that ids sort by age. */
int run_id_new(char ret[static RUN_ID_LEN + 1]);
/* "sha256:" and 64 lower-case hex digits. */
bool digest_is_valid(const char *s);
