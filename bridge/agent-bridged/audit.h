/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * Records for the journal, one for each request, so they have to be cheap: put together in one piece in the form that
 * journald reads (systemd.io/JOURNAL_NATIVE_PROTOCOL), and sent over a socket that stays connected.
 */

#include "basic/text.h"

#define AUDIT_SIZE_MAX 8192U /* all values have bounds, which together are less */

/* NAME is a constant. A value with line feeds is none the worse for it. */
void audit_add(Text *record, const char *name, const char *value);
void audit_add_u64(Text *record, const char *name, uint64_t value);

/* Where records go: the journal, but in tests. */
typedef void (*audit_sink_t)(const Text *record);
extern audit_sink_t audit_sink;
