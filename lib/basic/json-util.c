/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Strict reading of JSON documents; see the header for why this is not json-c. */
#include <stdarg.h>

#include "basic/json-util.h"
#include "basic/string-util.h"

#define JSON_DEPTH_MAX 64

_printf_(3, 4) static int json_fail(sd_json_variant *v, char **ret_error, const char *format, ...) {
        _cleanup_free_ char *text = NULL;
        unsigned line = 0, column = 0;
        va_list ap;
        int r;

        if (!ret_error)
                return -EINVAL;
        va_start(ap, format);
        r = vasprintf(&text, format, ap);
        va_end(ap);
        if (r < 0) {
                text = NULL;
                return -ENOMEM;
        }
        if (v)
                sd_json_variant_get_source(v, NULL, &line, &column);
        free(*ret_error);
        *ret_error = line > 0 ? strprintf("line %u: %s", line, text) : strdup(text);
        return -EINVAL;
}

/* Nesting, counted before anything is built, because the parser's own bound is much higher. */
static bool depth_is_fine(const char *s, size_t size) {
        bool in_string = false;
        int depth = 0;

        for (size_t i = 0; i < size; i++) {
                if (in_string) {
                        if (s[i] == '\\')
                                i++;
                        else if (s[i] == '"')
                                in_string = false;
                } else if (s[i] == '"')
                        in_string = true;
                else if (s[i] == '{' || s[i] == '[') {
                        if (++depth > JSON_DEPTH_MAX)
                                return false;
                } else if (s[i] == '}' || s[i] == ']')
                        depth--;
        }
        return true;
}

static int strp_compare(const void *a, const void *b) {
        return strcmp(*(const char *const *) a, *(const char *const *) b);
}

static int check_members(sd_json_variant *v, char **ret_error) {
        size_t n = sd_json_variant_elements(v);
        int r;

        if (sd_json_variant_is_object(v)) {
                _cleanup_free_ const char **names = calloc(n / 2 + 1, sizeof(char *));

                if (!names)
                        return -ENOMEM;
                for (size_t i = 0; i < n; i += 2)
                        names[i / 2] = sd_json_variant_string(sd_json_variant_by_index(v, i));
                qsort(names, n / 2, sizeof(char *), strp_compare);
                for (size_t i = 1; i < n / 2; i++)
                        if (streq(names[i - 1], names[i]))
                                return json_fail(v, ret_error, "%s: appears twice", names[i]);
        } else if (!sd_json_variant_is_array(v))
                return 0;
        for (size_t i = 0; i < n; i++) {
                r = check_members(sd_json_variant_by_index(v, i), ret_error);
                if (r < 0)
                        return r;
        }
        return 0;
}

int json_parse(const char *text, size_t size, sd_json_variant **ret, char **ret_error) {
        _cleanup_json_ sd_json_variant *v = NULL;
        unsigned line = 0, column = 0;
        int r;

        if (strnlen(text, size) != size)
                return json_fail(NULL, ret_error, "contains a NUL byte");
        if (!utf8_is_valid(text, size))
                return json_fail(NULL, ret_error, "is not valid UTF-8");
        if (!depth_is_fine(text, size))
                return json_fail(NULL, ret_error, "is nested more than %d levels deep", JSON_DEPTH_MAX);
        if (text[size] != 0) { /* the parser wants a C string */
                _cleanup_free_ char *copy = strndup(text, size);

                if (!copy)
                        return -ENOMEM;
                r = sd_json_parse_with_source(copy, "", 0, &v, &line, &column);
        } else
                r = sd_json_parse_with_source(text, "", 0, &v, &line, &column);
        if (r == -ENOMEM)
                return r;
        if (r < 0 || !v)
                return json_fail(NULL, ret_error, "line %u, column %u: is not valid JSON here", line, column);
        r = check_members(v, ret_error);
        if (r < 0)
                return r;
        *ret = TAKE_PTR(v);
        return 0;
}

static const char *type_name(sd_json_variant_type_t t) {
        switch (t) {
        case SD_JSON_VARIANT_STRING:
                return "a string";
        case SD_JSON_VARIANT_INTEGER:
        case SD_JSON_VARIANT_UNSIGNED:
                return "a whole number";
        case SD_JSON_VARIANT_REAL:
        case SD_JSON_VARIANT_NUMBER:
                return "a number";
        case SD_JSON_VARIANT_BOOLEAN:
                return "true or false";
        case SD_JSON_VARIANT_ARRAY:
                return "an array";
        case SD_JSON_VARIANT_OBJECT:
                return "an object";
        default:
                return "null";
        }
}

int json_read_object(sd_json_variant *v, const char *path, const JsonField *table, void *userdata, char **ret_error) {
        const char *dot = isempty(path) ? "" : ".";
        int r;

        path = strempty(path);
        if (!sd_json_variant_is_object(v))
                return json_fail(v, ret_error, "%s%smust be an object", path, isempty(path) ? "" : ": ");

        for (size_t i = 0; i < sd_json_variant_elements(v); i += 2) {
                sd_json_variant *key = sd_json_variant_by_index(v, i), *value = sd_json_variant_by_index(v, i + 1);
                const char *name = sd_json_variant_string(key);
                _cleanup_free_ char *reason = NULL;
                const JsonField *f;

                for (f = table; f->name; f++)
                        if (streq(f->name, name))
                                break;
                if (!f->name)
                        return json_fail(key, ret_error, "%s%s%s: unknown key", path, dot, name);
                if (f->type != _SD_JSON_VARIANT_TYPE_INVALID && !sd_json_variant_has_type(value, f->type))
                        return json_fail(key, ret_error, "%s%s%s: must be %s", path, dot, name, type_name(f->type));
                r = f->parse(value, (char *) userdata + f->offset, &reason);
                if (r == -ENOMEM)
                        return r;
                if (r < 0) {
                        /* A nested reader has already said where: keep its sentence. */
                        if (reason && startswith(reason, "line ")) {
                                if (ret_error) {
                                        free(*ret_error);
                                        *ret_error = TAKE_PTR(reason);
                                }
                                return -EINVAL;
                        }
                        return json_fail(key, ret_error, "%s%s%s: %s", path, dot, name, reason ?: "has no valid value");
                }
        }
        for (const JsonField *f = table; f->name; f++)
                if (f->mandatory && !sd_json_variant_by_key(v, f->name))
                        return json_fail(v, ret_error, "%s%s%s: is missing", path, dot, f->name);
        return 0;
}

static int reason(char **ret_reason, const char *text) {
        if (ret_reason)
                free_and_strdup(ret_reason, text);
        return -EINVAL;
}

int json_field_string(sd_json_variant *v, void *field, char **ret_reason) {
        if (!sd_json_variant_is_string(v))
                return reason(ret_reason, "must be a string");
        return free_and_strdup(field, sd_json_variant_string(v));
}

int json_field_strv(sd_json_variant *v, void *field, char **ret_reason) {
        _cleanup_strv_free_ char **l = calloc(1, sizeof(char *));
        int r;

        if (!l)
                return -ENOMEM;
        if (!sd_json_variant_is_array(v))
                return reason(ret_reason, "must be an array of strings");
        for (size_t i = 0; i < sd_json_variant_elements(v); i++) {
                sd_json_variant *e = sd_json_variant_by_index(v, i);

                if (!sd_json_variant_is_string(e))
                        return reason(ret_reason, "must be an array of strings");
                r = strv_extend(&l, sd_json_variant_string(e));
                if (r < 0)
                        return r;
        }
        strv_free(*(char ***) field);
        *(char ***) field = TAKE_PTR(l);
        return 0;
}

int json_field_bool(sd_json_variant *v, void *field, char **ret_reason) {
        if (!sd_json_variant_is_boolean(v))
                return reason(ret_reason, "must be true or false");
        *(bool *) field = sd_json_variant_boolean(v);
        return 0;
}

int json_field_uint64(sd_json_variant *v, void *field, char **ret_reason) {
        /* Only what was written as a whole number: 1.0 and 1e3 are refused, so that nothing is rounded. */
        if (!sd_json_variant_is_unsigned(v))
                return reason(ret_reason, "must be a whole number, not negative");
        *(uint64_t *) field = sd_json_variant_unsigned(v);
        return 0;
}

int json_field_size(sd_json_variant *v, void *field, char **ret_reason) {
        if (sd_json_variant_is_string(v)) {
                if (parse_size(sd_json_variant_string(v), field) < 0)
                        return reason(ret_reason, "must be a size such as \"512M\" or a number of bytes");
                return 0;
        }
        if (!sd_json_variant_is_unsigned(v))
                return reason(ret_reason, "must be a size such as \"512M\" or a number of bytes");
        *(uint64_t *) field = sd_json_variant_unsigned(v);
        return 0;
}

int json_field_timespan(sd_json_variant *v, void *field, char **ret_reason) {
        uint64_t usec;

        if (sd_json_variant_is_string(v)) {
                if (parse_timespan(sd_json_variant_string(v), field) < 0)
                        return reason(ret_reason, "must be a time span such as \"10min\" or a number of seconds");
                return 0;
        }
        if (!sd_json_variant_is_unsigned(v) ||
            __builtin_mul_overflow(sd_json_variant_unsigned(v), USEC_PER_SEC, &usec))
                return reason(ret_reason, "must be a time span such as \"10min\" or a number of seconds");
        *(uint64_t *) field = usec;
        return 0;
}

int json_field_variant(sd_json_variant *v, void *field, char **ret_reason) {
        sd_json_variant **p = field;

        sd_json_variant_unref(*p);
        *p = sd_json_variant_ref(v);
        return 0;
}

int json_format_canonical(sd_json_variant *v, char **ret) {
        _cleanup_json_ sd_json_variant *n = sd_json_variant_ref(v);
        int r;

        r = sd_json_variant_normalize(&n);
        if (r < 0)
                return r;
        return sd_json_variant_format(n, 0, ret);
}

const char *json_string(sd_json_variant *object, const char *key) {
        sd_json_variant *v = object ? sd_json_variant_by_key(object, key) : NULL;

        return v && sd_json_variant_is_string(v) ? sd_json_variant_string(v) : NULL;
}
