/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * Configuration files in the manner of systemd: FILE, then FILE.d/<name>.conf in the order of their names
 * (of /usr/lib, /etc and /run), ini sections, "Key=value", later wins. Unknown keys are
 * warned about and ignored, wrong values are errors that name file and line.
 */

#include "basic/macro.h"

typedef struct ConfigItem {
        const char *section;
        const char *key;
        int (*parse)(const char *value, void *field);
        size_t offset; /* of the field in the structure given to config_load() */
} ConfigItem;

int config_parse_string(const char *value, void *field);   /* char * (freed and replaced; empty → NULL) */
int config_parse_strv(const char *value, void *field);     /* char ** (blank-separated, appended; empty resets) */
int config_parse_size(const char *value, void *field);     /* uint64_t */
int config_parse_timespan(const char *value, void *field); /* uint64_t, µs */
int config_parse_unsigned(const char *value, void *field); /* uint64_t */
int config_parse_bool(const char *value, void *field);     /* bool */

/* NAME is such as "agentd.conf"; a missing file is fine. TABLE ends with a NULL key. */
int config_load(const char *name, const ConfigItem *table, void *userdata);
