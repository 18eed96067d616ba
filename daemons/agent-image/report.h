/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * What agent-image tells whoever started it: one JSON object a line on stdout. {"step","progress"} now and then, and
 * as the last one either {"size","entries"} ("digest" with it: of an archive's configuration) or {"error","message"}.
 * Names out of an archive are put into messages escaped.
 */

#include <systemd/sd-json.h>

#include "basic/macro.h"

/* Rate-limited for the same step; PROGRESS is a count (entries, bytes) or a percentage, whatever the step's name
 * says. */
void report_step(const char *step, uint64_t progress);
/* DIGEST may be NULL. */
void report_result(const char *digest, uint64_t size, uint64_t entries);
/* The same with what is to be known of a runner. */
void report_runner(uint64_t size, uint64_t entries, sd_json_variant *manifest);

/* Tells the error (the first one only) and returns -EINVAL, or R where that is negative, so that callers can return
 * it. */
int report_error(int r, const char *name, const char *format, ...) _printf_(3, 4);
/* Out of space, memory, … told in the words of the errno; R must be negative. */
int report_errno(int r, const char *doing);

/* NAME as it may be shown: allocated, never NULL but for lack of memory. */
char *escape_name(const char *name);
