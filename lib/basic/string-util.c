/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Strings, string vectors and the small parsers of configuration values. */
#include <ctype.h>
#include <stdarg.h>

#include "basic/string-util.h"

char **strv_free(char **l) {
        if (l)
                for (char **i = l; *i; i++)
                        free(*i);
        return mfree(l);
}

size_t strv_length(char *const *l) {
        size_t n = 0;

        while (l && l[n])
                n++;
        return n;
}

bool strv_contains(char *const *l, const char *s) {
        for (; l && *l; l++)
                if (streq(*l, s))
                        return true;
        return false;
}

int strv_extend(char ***l, const char *s) {
        size_t n = strv_length(*l);
        _cleanup_free_ char *c = strdup(s);
        char **k;

        if (!c)
                return -ENOMEM;
        k = reallocarray(*l, n + 2, sizeof(char *));
        if (!k)
                return -ENOMEM;
        k[n] = TAKE_PTR(c);
        k[n + 1] = NULL;
        *l = k;
        return 0;
}

int strv_copy(char *const *l, char ***ret) {
        _cleanup_strv_free_ char **k = calloc(1, sizeof(char *));
        int r;

        if (!k)
                return -ENOMEM;
        for (; l && *l; l++) {
                r = strv_extend(&k, *l);
                if (r < 0)
                        return r;
        }
        *ret = TAKE_PTR(k);
        return 0;
}

char *strprintf(const char *format, ...) {
        char *s = NULL;
        va_list ap;
        int r;

        va_start(ap, format);
        r = vasprintf(&s, format, ap);
        va_end(ap);
        return r < 0 ? NULL : s;
}

int free_and_strdup(char **p, const char *s) {
        char *c = NULL;

        if (s) {
                c = strdup(s);
                if (!c)
                        return -ENOMEM;
        }
        free(*p);
        *p = c;
        return 0;
}

bool utf8_is_valid(const char *str, size_t len) {
        const unsigned char *s = (const unsigned char *) str;

        for (size_t i = 0; i < len;) {
                unsigned n;
                uint32_t c, min;

                if (s[i] < 0x80) {
                        i++;
                        continue;
                }
                if ((s[i] & 0xe0) == 0xc0)
                        n = 1, c = s[i] & 0x1f, min = 0x80;
                else if ((s[i] & 0xf0) == 0xe0)
                        n = 2, c = s[i] & 0x0f, min = 0x800;
                else if ((s[i] & 0xf8) == 0xf0)
                        n = 3, c = s[i] & 0x07, min = 0x10000;
                else
                        return false;
                if (len - i <= n)
                        return false;
                for (unsigned k = 1; k <= n; k++) {
                        if ((s[i + k] & 0xc0) != 0x80)
                                return false;
                        c = c << 6 | (s[i + k] & 0x3f);
                }
                if (c < min || c > 0x10ffff || (c >= 0xd800 && c <= 0xdfff))
                        return false;
                i += n + 1;
        }
        return true;
}

bool string_has_cc(const char *s) {
        for (; *s; s++)
                if ((unsigned char) *s < 0x20 || *s == 0x7f ||
                    /* those that a terminal may take for ESC and a letter, in UTF-8 */
                    ((unsigned char) s[0] == 0xc2 && (unsigned char) s[1] >= 0x80 && (unsigned char) s[1] < 0xa0))
                        return true;
        return false;
}

int parse_uint64(const char *s, uint64_t *ret) {
        uint64_t v = 0;

        if (isempty(s))
                return -EINVAL;
        for (; *s; s++) {
                if (*s < '0' || *s > '9')
                        return -EINVAL;
                if (__builtin_mul_overflow(v, UINT64_C(10), &v) || __builtin_add_overflow(v, (uint64_t) (*s - '0'), &v))
                        return -ERANGE;
        }
        *ret = v;
        return 0;
}

int parse_size(const char *s, uint64_t *ret) {
        static const char suffixes[] = "KMGT";
        _cleanup_free_ char *digits = NULL;
        uint64_t v, factor = 1;
        const char *p;
        size_t n;
        int r;

        if (isempty(s))
                return -EINVAL;
        n = strlen(s);
        p = strchr(suffixes, toupper((unsigned char) s[n - 1]));
        if (p) {
                factor = UINT64_C(1) << (10 * (p - suffixes + 1));
                n--;
        }
        digits = strndup(s, n);
        if (!digits)
                return -ENOMEM;
        r = parse_uint64(digits, &v);
        if (r < 0)
                return r;
        if (__builtin_mul_overflow(v, factor, &v))
                return -ERANGE;
        *ret = v;
        return 0;
}

int parse_timespan(const char *s, uint64_t *ret_usec) {
        static const struct {
                const char *name;
                uint64_t usec;
        } units[] = {
                { "us", 1 },
                { "ms", USEC_PER_MSEC },
                /* The names that systemd.time(7) has, up to the week. */
                { "seconds", USEC_PER_SEC },
                { "second", USEC_PER_SEC },
                { "sec", USEC_PER_SEC },
                { "s", USEC_PER_SEC },
                { "minutes", 60 * USEC_PER_SEC },
                { "minute", 60 * USEC_PER_SEC },
                { "min", 60 * USEC_PER_SEC },
                { "m", 60 * USEC_PER_SEC },
                { "hours", 3600 * USEC_PER_SEC },
                { "hour", 3600 * USEC_PER_SEC },
                { "hr", 3600 * USEC_PER_SEC },
                { "h", 3600 * USEC_PER_SEC },
                { "days", 86400 * USEC_PER_SEC },
                { "day", 86400 * USEC_PER_SEC },
                { "d", 86400 * USEC_PER_SEC },
                { "weeks", 7 * 86400 * USEC_PER_SEC },
                { "week", 7 * 86400 * USEC_PER_SEC },
                { "w", 7 * 86400 * USEC_PER_SEC },
        };
        uint64_t total = 0;
        bool any = false;

        if (!s)
                return -EINVAL;
        for (;;) {
                uint64_t v = 0, factor = USEC_PER_SEC;
                size_t n;

                s += strspn(s, " \t");
                if (!*s)
                        break;
                if (!isdigit((unsigned char) *s))
                        return -EINVAL;
                for (; isdigit((unsigned char) *s); s++)
                        if (__builtin_mul_overflow(v, UINT64_C(10), &v) ||
                            __builtin_add_overflow(v, (uint64_t) (*s - '0'), &v))
                                return -ERANGE;
                s += strspn(s, " \t");
                n = strspn(s, "abcdefghijklmnopqrstuvwxyz");
                if (n > 0) {
                        bool found = false;

                        for (size_t i = 0; i < ELEMENTSOF(units) && !found; i++)
                                if (strlen(units[i].name) == n && memcmp(units[i].name, s, n) == 0) {
                                        factor = units[i].usec;
                                        found = true;
                                }
                        if (!found)
                                return -EINVAL;
                        s += n;
                }
                if (__builtin_mul_overflow(v, factor, &v) || __builtin_add_overflow(total, v, &total))
                        return -ERANGE;
                any = true;
        }
        if (!any)
                return -EINVAL;
        *ret_usec = total;
        return 0;
}

int parse_boolean(const char *s) {
        static const char *const yes[] = { "1", "yes", "true", "on", "y", "t" };
        static const char *const no[] = { "0", "no", "false", "off", "n", "f" };

        for (size_t i = 0; s && i < ELEMENTSOF(yes); i++) {
                if (strcasecmp(s, yes[i]) == 0)
                        return 1;
                if (strcasecmp(s, no[i]) == 0)
                        return 0;
        }
        return -EINVAL;
}
