/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Strict reading of JSON documents; see the header for why this is not json-c. */
#include <stdarg.h>

#include "basic/json-util.h"
#include "basic/string-util.h"

#define JSON_DEPTH_MAX 64

#define MESSAGE_MAX 512

/* Messages quote names that a stranger chose, and end on terminals and in logs: one line of bounded length. */
static char *make_harmless(char *s) {
        for (char *p = s; *p; p++)
                if ((unsigned char) *p < 0x20 || *p == 0x7f)
                        *p = '?';
        if (strlen(s) > MESSAGE_MAX) {
                size_t n = MESSAGE_MAX - 3;

                while (n > 0 && ((unsigned char) s[n] & 0xc0) == 0x80) /* not within a character */
                        n--;
                strcpy(s + n, "...");
        }
        if (!utf8_is_valid(s, strlen(s)))
                for (char *p = s; *p; p++)
                        if ((unsigned char) *p >= 0x80)
                                *p = '?';
        return s;
}

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
        make_harmless(text);
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

/* The key of the last member of that name, for its line. */
static sd_json_variant *last_member(sd_json_variant *object, const char *name) {
        for (size_t i = sd_json_variant_elements(object); i >= 2; i -= 2) {
                sd_json_variant *key = sd_json_variant_by_index(object, i - 2);

                if (streq(sd_json_variant_string(key), name))
                        return key;
        }
        return object;
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
                                return json_fail(last_member(v, names[i]), ret_error, "%s: appears twice", names[i]);
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
        _cleanup_free_ char *copy = NULL;
        unsigned line = 0, column = 0;
        int r;

        if (memchr(text, 0, size))
                return json_fail(NULL, ret_error, "contains a NUL byte");
        if (!utf8_is_valid(text, size))
                return json_fail(NULL, ret_error, "is not valid UTF-8");
        if (!depth_is_fine(text, size))
                return json_fail(NULL, ret_error, "is nested more than %d levels deep", JSON_DEPTH_MAX);
        /* The parser wants a C string, and nothing says that there is a NUL behind TEXT. */
        copy = strndup(text, size);
        if (!copy)
                return -ENOMEM;
        if (copy[strspn(copy, " \t\r\n")] == 0)
                return json_fail(NULL, ret_error, "is empty");
        r = sd_json_parse_with_source(copy, "", 0, &v, &line, &column);
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
                                        *ret_error = make_harmless(TAKE_PTR(reason));
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

/* Only what was written as a whole number: 1.0 and 1e3 are refused, so that nothing is rounded.
 * (sd_json_variant_is_unsigned() takes them.) */
static bool is_whole(sd_json_variant *v) {
        sd_json_variant_type_t t = sd_json_variant_type(v);

        return (t == SD_JSON_VARIANT_UNSIGNED || t == SD_JSON_VARIANT_INTEGER) && sd_json_variant_is_unsigned(v);
}

int json_field_uint64(sd_json_variant *v, void *field, char **ret_reason) {
        if (!is_whole(v))
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
        if (!is_whole(v))
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
        if (!is_whole(v) ||
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

/* Whole numbers look like integers. sd-json reads decimals with an error in the 17th digit ("2.53" becomes
 * 2.5300000000000002); 15 digits, all that a double is sure to keep, give back what was written. */
static int format_real(double d, FILE *f) {
        return fprintf(f, "%.15g", d) < 0 ? -EIO : 0;
}

static int format_canonical(sd_json_variant *v, FILE *f) {
        size_t n = sd_json_variant_elements(v);
        int r;

        if (sd_json_variant_is_object(v)) {
                _cleanup_free_ const char **names = calloc(n / 2 + 1, sizeof(char *));

                if (!names)
                        return -ENOMEM;
                for (size_t i = 0; i < n; i += 2)
                        names[i / 2] = sd_json_variant_string(sd_json_variant_by_index(v, i));
                qsort(names, n / 2, sizeof(char *), strp_compare);
                for (size_t i = 0; i < n / 2; i++) {
                        _cleanup_json_ sd_json_variant *name = NULL;

                        fputc(i == 0 ? '{' : ',', f);
                        r = sd_json_variant_new_string(&name, names[i]);
                        if (r >= 0)
                                r = format_canonical(name, f);
                        fputc(':', f);
                        if (r >= 0)
                                r = format_canonical(sd_json_variant_by_key(v, names[i]), f);
                        if (r < 0)
                                return r;
                }
                fputs(n == 0 ? "{}" : "}", f);
        } else if (sd_json_variant_is_array(v)) {
                for (size_t i = 0; i < n; i++) {
                        fputc(i == 0 ? '[' : ',', f);
                        r = format_canonical(sd_json_variant_by_index(v, i), f);
                        if (r < 0)
                                return r;
                }
                fputs(n == 0 ? "[]" : "]", f);
        } else if (sd_json_variant_type(v) == SD_JSON_VARIANT_REAL)
                return format_real(sd_json_variant_real(v), f);
        else {
                _cleanup_free_ char *text = NULL;

                r = sd_json_variant_format(v, 0, &text);
                if (r < 0)
                        return r;
                fputs(text, f);
        }
        return 0;
}

/* Not by sd_json_variant_normalize(): that one refuses every number with a fraction (EMEDIUMTYPE). */
int json_format_canonical(sd_json_variant *v, char **ret) {
        _cleanup_free_ char *text = NULL;
        size_t size = 0;
        FILE *f;
        int r;

        f = open_memstream(&text, &size);
        if (!f)
                return -ENOMEM;
        r = format_canonical(v, f);
        if (r >= 0 && ferror(f))
                r = -ENOMEM;
        if (fclose(f) != 0 && r >= 0)
                r = -ENOMEM;
        if (r < 0)
                return r;
        *ret = TAKE_PTR(text);
        return 0;
}

const char *json_string(sd_json_variant *object, const char *key) {
        sd_json_variant *v = object ? sd_json_variant_by_key(object, key) : NULL;

        return v && sd_json_variant_is_string(v) ? sd_json_variant_string(v) : NULL;
}

size_t json_quote(char *out, const char *text) {
        static const char digits[] = "0123456789abcdef";
        char *p = out;

        *p++ = '"';
        for (; *text; text++) {
                unsigned char c = (unsigned char) *text;

                if (c == '"' || c == '\\') {
                        *p++ = '\\';
                        *p++ = (char) c;
                } else if (c < 0x20 || c == 0x7f) {
                        memcpy(p, "\\u00", 4);
                        p[4] = digits[c >> 4];
                        p[5] = digits[c & 15];
                        p += 6;
                } else
                        *p++ = (char) c;
        }
        *p++ = '"';
        *p = 0;
        return (size_t) (p - out);
}
