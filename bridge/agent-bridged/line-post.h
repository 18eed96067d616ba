/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * A body that is read line by line, each line handed on and forgotten: logs, events, metrics. Memory is bounded by one
 * line. All bytes of a run that come this way count against its log limit, whatever they are. What the sandbox says can
 * only ever become the text of one journal field and choose among fixed values elsewhere.
 */

#include "routes.h"

#define LINE_POST_MAX ((size_t) 48 * 1024)

typedef struct LinePost {
        BridgeRun *run;
        LiveRun *live;
        /* CUT: a piece of a line that was too long. False: not taken. */
        bool (*line)(struct LinePost *p, const char *data, size_t size, bool cut);
        bool ndjson; /* by its content type */
        HttpBuffer buffer;
        unsigned n_lines, n_refused;
        unsigned n_now; /* in this turn of the loop */
        bool cut;
} LinePost;

/* Answers 200 {"lines","refused"} at the end. */
void line_post(const RouteRequest *r, bool (*line)(LinePost *p, const char *data, size_t size, bool cut));

/* One journal entry about the run: AGENT_RUN=, AGENT_NAME=, AGENT_USER=, and FIELDS, a strv of "NAME=value". */
void line_post_journal(const LiveRun *live, int level, const char *identifier, char *const *fields, const char *message,
                       size_t size);
