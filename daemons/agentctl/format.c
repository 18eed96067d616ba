/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* Formatting for people. Nothing here allocates but the two functions that return text of any length. */

#include "format.h"

#include <time.h>
#include <wchar.h>

#include "basic/string-util.h"

/* Decodes one code point of at most LEN bytes; returns its length, or 0 where there is none. */
static size_t utf8_decode(const char *s, size_t len, uint32_t *ret) {
        const unsigned char *p = (const unsigned char *) s;
        static const uint32_t smallest[] = { 0, 0, 0x80, 0x800, 0x10000 };
        size_t n;
        uint32_t c;

        if (len == 0)
                return 0;
        if (p[0] < 0x80) {
                *ret = p[0];
                return 1;
        }
        if ((p[0] & 0xe0) == 0xc0)
                n = 2, c = p[0] & 0x1f;
        else if ((p[0] & 0xf0) == 0xe0)
                n = 3, c = p[0] & 0x0f;
        else if ((p[0] & 0xf8) == 0xf0)
                n = 4, c = p[0] & 0x07;
        else
                return 0;
        if (n > len)
                return 0;
        for (size_t i = 1; i < n; i++) {
                if ((p[i] & 0xc0) != 0x80)
                        return 0;
                c = c << 6 | (p[i] & 0x3f);
        }
        if (c < smallest[n] || c > 0x10ffff || (c >= 0xd800 && c <= 0xdfff))
                return 0;
        *ret = c;
        return n;
}

/* Beside what a terminal obeys: after U+202E "txt.sh" reads as "hs.txt", and what is no end of a line may look so. */
static bool is_control(uint32_t c) {
        return c < 0x20 || (c >= 0x7f && c <= 0x9f) ||
               c == 0x061c || c == 0x200e || c == 0x200f || (c >= 0x202a && c <= 0x202e) ||
               (c >= 0x2066 && c <= 0x206f) || c == 0x2028 || c == 0x2029;
}

char *text_escape(const char *s, size_t len, bool keep_lines) {
        char *copy, *p;

        copy = p = malloc(len * 4 + 1);
        if (!copy)
                return NULL;

        for (size_t i = 0; i < len;) {
                uint32_t c = 0;
                size_t n = utf8_decode(s + i, len - i, &c);

                if (n > 0 && (!is_control(c) || (keep_lines && (c == '\n' || c == '\t')))) {
                        p = mempcpy(p, s + i, n);
                        i += n;
                        continue;
                }
                for (size_t k = 0; k < MAX(n, (size_t) 1); k++, i++) {
                        static const char hex[] = "0123456789abcdef";
                        *p++ = '\\';
                        *p++ = 'x';
                        *p++ = hex[(unsigned char) s[i] >> 4];
                        *p++ = hex[(unsigned char) s[i] & 15];
                }
        }
        *p = 0;
        return copy;
}

char *text_escape_json(const char *json) {
        size_t len = strlen(json);
        char *copy, *p;

        copy = p = malloc(len * 6 + 1);
        if (!copy)
                return NULL;
        for (size_t i = 0; i < len;) {
                uint32_t c = 0;
                size_t n = utf8_decode(json + i, len - i, &c);

                /* Nothing else than what is in the BMP is meant, and all of it only stands in strings. */
                if (n > 0 && is_control(c) && c != '\n' && c != '\t')
                        p += sprintf(p, "\\u%04x", c);
                else
                        p = mempcpy(p, json + i, MAX(n, (size_t) 1));
                i += MAX(n, (size_t) 1);
        }
        *p = 0;
        return copy;
}

size_t text_width(const char *s) {
        size_t width = 0, len = strlen(s);

        for (size_t i = 0; i < len;) {
                uint32_t c = 0;
                size_t n = utf8_decode(s + i, len - i, &c);
                int w = n > 0 ? wcwidth((wchar_t) c) : 1;

                width += w < 0 ? 1 : (size_t) w; /* unknown to the locale: most likely one column */
                i += MAX(n, (size_t) 1);
        }
        return width;
}

int text_check(const char *s, size_t len, char **ret_reason) {
        char *reason = NULL;

        for (size_t i = 0; i < len;) {
                uint32_t c;
                size_t n = utf8_decode(s + i, len - i, &c);

                if (n == 0)
                        reason = strprintf("is not valid UTF-8 (byte %zu is 0x%02x)", i + 1, (unsigned char) s[i]);
                else if (c == 0)
                        reason = strprintf("has a NUL at byte %zu", i + 1);
                else {
                        i += n;
                        continue;
                }
                if (!reason)
                        return -ENOMEM;
                break;
        }
        *ret_reason = reason;
        return 0;
}

static bool local_time(uint64_t usec, struct tm *ret) {
        time_t t = (time_t) (usec / USEC_PER_SEC);

        return usec != 0 && usec != USEC_INFINITY && localtime_r(&t, ret);
}

const char *format_time(uint64_t usec, char buf[static FORMAT_MAX]) {
        struct tm tm;

        if (!local_time(usec, &tm) || strftime(buf, FORMAT_MAX, "%Y-%m-%d %H:%M:%S", &tm) == 0)
                strcpy(buf, "-");
        return buf;
}

const char *format_time_short(uint64_t usec, char buf[static FORMAT_MAX]) {
        struct tm tm;

        if (!local_time(usec, &tm) || strftime(buf, FORMAT_MAX, "%b %d %H:%M:%S", &tm) == 0)
                strcpy(buf, "-");
        return buf;
}

const char *format_span(uint64_t usec, char buf[static FORMAT_MAX]) {
        uint64_t s = usec / USEC_PER_SEC, ms = usec / USEC_PER_MSEC % 1000;

        if (s >= 86400)
                snprintf(buf, FORMAT_MAX, "%" PRIu64 "d %" PRIu64 "h", s / 86400, s % 86400 / 3600);
        else if (s >= 3600)
                snprintf(buf, FORMAT_MAX, "%" PRIu64 "h %" PRIu64 "min", s / 3600, s % 3600 / 60);
        else if (s >= 60)
                snprintf(buf, FORMAT_MAX, "%" PRIu64 "min %" PRIu64 "s", s / 60, s % 60);
        else if (s > 0)
                snprintf(buf, FORMAT_MAX, "%" PRIu64 ".%03" PRIu64 "s", s, ms);
        else
                snprintf(buf, FORMAT_MAX, "%" PRIu64 "ms", ms);
        return buf;
}

static const char *format_scaled(uint64_t n, uint64_t base, const char *units, char buf[static FORMAT_MAX]) {
        uint64_t factor = 1;
        size_t i = 0;

        while (n / factor >= base && units[i + 1]) {
                factor *= base;
                i++;
        }
        if (i == 0)
                snprintf(buf, FORMAT_MAX, "%" PRIu64 "%s", n, units[0] == 'B' ? "B" : "");
        else
                snprintf(buf, FORMAT_MAX, "%" PRIu64 ".%" PRIu64 "%c", n / factor, n % factor / (factor / 10),
                         units[i]);
        return buf;
}

const char *format_size(uint64_t bytes, char buf[static FORMAT_MAX]) {
        return format_scaled(bytes, 1024, "BKMGTP", buf);
}

const char *format_amount(uint64_t n, char buf[static FORMAT_MAX]) {
        return format_scaled(n, 1000, " kMGTP", buf);
}

const char *format_digest(const char *digest, char buf[static FORMAT_MAX]) {
        const char *hex = startswith(digest, "sha256:");

        snprintf(buf, FORMAT_MAX, hex ? "%.19s" : "%.63s", digest);
        return buf;
}
