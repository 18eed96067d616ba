/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * Errors that a person reads: one line "agentctl: …" on stderr. Everything in this folder that can
 * fail prints its own line and returns a negative value that only says "failed, and told"; callers
 * pass it on. Control characters are escaped, because messages carry names that others chose.
 */

#include "basic/macro.h"

/* main() turns it into STATUS_USAGE; every other negative value into STATUS_ERROR. */
#define USAGE_ERROR (-EBADRQC)

int fail(const char *format, ...) _printf_(1, 2);
/* Adds ": " and the text of the error, and returns it. */
int fail_errno(int error, const char *format, ...) _printf_(2, 3);
int fail_usage(const char *format, ...) _printf_(1, 2);
int fail_oom(void);
/* A line that is no error. */
void notice(const char *format, ...) _printf_(1, 2);
