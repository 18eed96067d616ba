/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The grammar of all names that come from outside. Everything here is a whitelist of bytes with a length, so that a
 * valid name needs no quoting in paths, unit names, URLs, SQL or journal fields.
 */
#include <ctype.h>
#include <sys/random.h>
#include <time.h>

#include "basic/name-util.h"
#include "basic/string-util.h"

static bool lower_alnum(char c) {
        return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
}

bool object_name_is_valid(const char *s) {
        size_t n;

        if (!s)
                return false;
        n = strnlen(s, 64);
        if (n < 1 || n > 63 || !lower_alnum(s[0]) || !(lower_alnum(s[n - 1]) || s[n - 1] == '_'))
                return false;
        for (size_t i = 0; i < n; i++)
                if (!lower_alnum(s[i]) && !strchr("._-", s[i]))
                        return false;
        return !strstr(s, "..");
}

bool token_name_is_valid(const char *s) {
        size_t n;

        if (!s)
                return false;
        n = strnlen(s, 129);
        if (n < 1 || n > 128)
                return false;
        for (size_t i = 0; i < n; i++)
                if (!isascii((unsigned char) s[i]) || (!isalnum((unsigned char) s[i]) && !strchr("._:-", s[i])))
                        return false;
        return true;
}

bool artifact_name_is_valid(const char *s) {
        size_t n;

        if (!s)
                return false;
        n = strnlen(s, 256);
        return n >= 1 && n <= 255 && s[0] != '.' && !strchr(s, '/') && !string_has_cc(s) && utf8_is_valid(s, n);
}

bool runner_path_is_valid(const char *s) {
        if (isempty(s) || strlen(s) > 255 || string_has_cc(s) || !utf8_is_valid(s, strlen(s)))
                return false;
        for (const char *p = s; p; p = strchr(p, '/') ? strchr(p, '/') + 1 : NULL)
                if (p[0] == 0 || p[0] == '/' || p[0] == '.')
                        return false;
        return true;
}

static bool lower_hex(const char *s, size_t n) {
        return strnlen(s, n + 1) == n && strspn(s, "0123456789abcdef") == n;
}

bool run_id_is_valid(const char *s) {
        return s && lower_hex(s, RUN_ID_LEN);
}

int run_id_new(char ret[static RUN_ID_LEN + 1]) {
        uint8_t b[16];
        struct timespec ts;
        uint64_t ms;

        if (getrandom(b, sizeof b, 0) != sizeof b)
                return -errno;
        clock_gettime(CLOCK_REALTIME, &ts);
        ms = (uint64_t) ts.tv_sec * 1000 + (uint64_t) ts.tv_nsec / 1000000;
        for (int i = 0; i < 6; i++)
                b[i] = (uint8_t) (ms >> (40 - 8 * i));
        for (int i = 0; i < 16; i++)
                snprintf(ret + 2 * i, 3, "%02x", b[i]);
        return 0;
}

bool digest_is_valid(const char *s) {
        const char *h = s ? startswith(s, "sha256:") : NULL;

        return h && lower_hex(h, 64);
}
