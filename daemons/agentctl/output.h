/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* The last step of most verbs: a table, a JSON value or raw bytes to stdout, by the options given. */

#include <systemd/sd-json.h>

#include "client.h"
#include "table.h"

/* WHAT is the plural for the footer: "3 agents.", or "No agents." */
int output_table(Client *c, const Table *t, const char *what);
/* V by --json=; where that is off: pretty on a terminal, else short. */
int output_json(Client *c, sd_json_variant *v);
/* Only that, for people, as a part of other text. */
int output_json_value(sd_json_variant *v);
/* For people: what comes from elsewhere is escaped, as is all but a newline at the end of FORMAT. */
void output_printf(const char *format, ...) _printf_(1, 2);
/* TEXT is JSON as agentd sent it. */
int output_json_text(Client *c, const char *text);
/* An agent's own text: as it is into a file or pipe, with control characters escaped on a terminal. Ends with a
 * newline. */
int output_text(Client *c, const char *text);

/* Whether stdout was a terminal when the program started (a pager may stand in between since). */
bool output_is_terminal(void);
