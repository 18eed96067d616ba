/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

#include "basic/macro.h"

/* Words for people: times, spans, sizes, and text that is safe on a terminal. All pure. */

/*
 * A copy in which control characters (C0, DEL, C1), those that change the direction of text or separate lines, and
 * bytes that are no UTF-8 are written as \xNN, so that text of an agent cannot drive the reader's terminal, or look
 * like another one. KEEP_LINES leaves newline and tab.
 */
char *text_escape(const char *s, size_t len, bool keep_lines);
/* The same for JSON, in which they are written as \uNNNN: another text of the same value. Newline and tab stay. */
char *text_escape_json(const char *json);
/* Columns that S takes on a terminal. */
size_t text_width(const char *s);
/* Why S cannot be a D-Bus string ("… byte 17 …"), or NULL where it can. Allocated. -ENOMEM is the return value. */
int text_check(const char *s, size_t len, char **ret_reason);

#define FORMAT_MAX 64
/* "2026-01-31 12:00:00" in local time; "-" for 0. */
const char *format_time(uint64_t usec, char buf[static FORMAT_MAX]);
/* "Jan 31 12:00:00", as in the journal's short form. */
const char *format_time_short(uint64_t usec, char buf[static FORMAT_MAX]);
/* "1h 3min", "2min 5s", "3.214s", "12ms". */
const char *format_span(uint64_t usec, char buf[static FORMAT_MAX]);
/* "12.3M", powers of 1024. */
const char *format_size(uint64_t bytes, char buf[static FORMAT_MAX]);
/* "12.3k", powers of 1000: for amounts of which only the server knows whether they are bytes. */
const char *format_amount(uint64_t n, char buf[static FORMAT_MAX]);
/* "sha256:0123456789ab": long enough to tell two apart by eye; other text as it is, cut to fit. */
const char *format_digest(const char *digest, char buf[static FORMAT_MAX]);
/* What a noun ends with that is counted. */
static inline const char *format_plural(uint64_t n) {
        return n == 1 ? "" : "s";
}
