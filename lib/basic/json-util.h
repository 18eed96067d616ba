/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * Strict JSON over libsystemd's sd-json. It is used instead of json-c because it keeps large
 * integers and duplicate members apart (json-c clamps the one and drops the other silently) and
 * knows line and column of each value, so that an error can name the key and the place.
 */

#include <systemd/sd-json.h>

#include "basic/macro.h"

static inline void sd_json_variant_unref_p(sd_json_variant **v) {
        sd_json_variant_unref(*v);
}
#define _cleanup_json_ _cleanup_(sd_json_variant_unref_p)

/*
 * Parses one JSON document. Refuses more than 64 levels, duplicate members anywhere, trailing
 * bytes, NUL, invalid UTF-8. On failure -EINVAL, and *ret_error (allocated) is a sentence such as
 * "line 3, column 7: expected a value".
 */
int json_parse(const char *text, size_t size, sd_json_variant **ret, char **ret_error);

/*
 * One member of an object that is read strictly; in a table that ends with a NULL name. parse()
 * returns 0, or a negative errno and optionally an allocated reason in *ret_reason ("must be …").
 */
typedef struct JsonField {
        const char *name;
        sd_json_variant_type_t type; /* _SD_JSON_VARIANT_TYPE_INVALID: parse() judges the type itself */
        int (*parse)(sd_json_variant *v, void *field, char **ret_reason);
        size_t offset;
        bool mandatory;
} JsonField;

/*
 * Fills *userdata from an object. Unknown members, missing mandatory ones and wrong types are
 * -EINVAL with *ret_error such as "line 4: services.market.auth.kind: unknown key" (PATH is the prefix,
 * may be ""). Line numbers are known for variants that came from json_parse().
 */
int json_read_object(sd_json_variant *v, const char *path, const JsonField *table, void *userdata, char **ret_error);

/* parse() functions for the usual types. */
int json_field_string(sd_json_variant *v, void *field, char **ret_reason);  /* char *, no NUL inside */
int json_field_strv(sd_json_variant *v, void *field, char **ret_reason);    /* char **, array of strings */
int json_field_bool(sd_json_variant *v, void *field, char **ret_reason);    /* bool */
int json_field_uint64(sd_json_variant *v, void *field, char **ret_reason);  /* uint64_t, a whole number ≥ 0 */
int json_field_size(sd_json_variant *v, void *field, char **ret_reason);    /* uint64_t: number or "512M" */
int json_field_timespan(sd_json_variant *v, void *field, char **ret_reason);/* uint64_t µs: seconds or "10min" */
int json_field_variant(sd_json_variant *v, void *field, char **ret_reason); /* sd_json_variant *, referenced */

/* Canonical text: sorted keys, no white space. Allocated. */
int json_format_canonical(sd_json_variant *v, char **ret);
/* Member's string or NULL. */
const char *json_string(sd_json_variant *object, const char *key);
/* TEXT, which is UTF-8, as a string with its quotes, at OUT, which has room for six times its length and three bytes.
 * The number of bytes without the NUL at the end. For what is built very often. */
size_t json_quote(char *out, const char *text);
