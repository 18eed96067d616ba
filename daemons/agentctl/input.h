/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Text that goes to agentd as a D-Bus string: a run's input, a definition. Checked here already, so that the
 * error can name the file and the place; agentd checks again. */

#include "basic/macro.h"

#define INPUT_MAX ((size_t) 1024 * 1024)

/* FILE or "-" for stdin. WHAT is such as "The input". Told on stderr. *ret is allocated and has a NUL behind it. */
int input_read(const char *file, const char *what, char **ret);
/* The same checks for text of the command line. */
int input_check(const char *text, size_t size, const char *what);
