/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* A run's result document (as the runner posted it) for stdout: used by "run --wait" and "result". */

#include "client.h"

/* Gets it by GetResult; *ret is NULL where none was posted. Told on stderr. */
int run_output_get(Client *c, const char *id, sd_json_variant **ret);
/* Prints only what the agent put out: a string as it is, other values as JSON, null not at all. What there is to say of
 * a success (an output that was cut off, an artifact that was not kept) goes to stderr; what ended otherwise is the
 * caller's to tell. */
int run_output_print(Client *c, sd_json_variant *document);
