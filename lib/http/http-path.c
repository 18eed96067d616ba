/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* See http-path.h. */

#include "http/http-path.h"

static int unhex(char c) {
        if (c >= '0' && c <= '9')
                return c - '0';
        if (c >= 'a' && c <= 'f')
                return c - 'a' + 10;
        if (c >= 'A' && c <= 'F')
                return c - 'A' + 10;
        return -1;
}

static bool is_unreserved(unsigned char c) {
        return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '-' || c == '.' ||
               c == '_' || c == '~';
}

/* Removes one layer of escapes in place. Anything that is no escape stays. Returns the new length. */
static size_t unescape_once(unsigned char *s, size_t len) {
        size_t o = 0;

        for (size_t i = 0; i < len; o++) {
                int h, l;

                if (s[i] == '%' && len - i >= 3 && (h = unhex((char) s[i + 1])) >= 0 &&
                    (l = unhex((char) s[i + 2])) >= 0) {
                        s[o] = (unsigned char) (h << 4 | l);
                        i += 3;
                } else
                        s[o] = s[i++];
        }
        return o;
}

/* Whether the bytes, at this depth of decoding, could mean something else than a plain name to somebody. */
static bool segment_is_dangerous(const unsigned char *s, size_t len) {
        for (size_t i = 0; i < len; i++) {
                if (s[i] < 0x20 || s[i] == 0x7f || s[i] == '/' || s[i] == '\\')
                        return true;
                /* Overlong UTF-8: another spelling of an ASCII character. */
                if (s[i] == 0xc0 || s[i] == 0xc1)
                        return true;
                if (i + 1 < len && ((s[i] == 0xe0 && s[i + 1] >= 0x80 && s[i + 1] < 0xa0) ||
                                    (s[i] == 0xf0 && s[i + 1] >= 0x80 && s[i + 1] < 0x90)))
                        return true;
        }

        /* "." and "..", also with a path parameter behind ("..;x") or blanks around. */
        const unsigned char *e = memchr(s, ';', len);
        size_t n = e ? (size_t) (e - s) : len, start = 0;

        while (start < n && s[start] == ' ')
                start++;
        while (n > start && s[n - 1] == ' ')
                n--;
        n -= start;
        return (n == 1 && s[start] == '.') || (n == 2 && s[start] == '.' && s[start + 1] == '.');
}

/* Decodes again and again until nothing changes, and looks at each layer. */
static int segment_check(const char *s, size_t len) {
        _cleanup_free_ unsigned char *t = malloc(len + 1);
        if (!t)
                return -ENOMEM;
        memcpy(t, s, len);

        for (;;) {
                if (segment_is_dangerous(t, len))
                        return -EINVAL;

                size_t n = unescape_once(t, len);
                if (n == len)
                        return 0;
                len = n;
        }
}

/* Each part between escaped slashes by itself. */
static int segment_check_parts(const char *s, size_t len) {
        for (size_t i = 0, start = 0;; i++) {
                bool slash = i + 2 < len && s[i] == '%' && s[i + 1] == '2' && (s[i + 2] == 'f' || s[i + 2] == 'F');

                if (i >= len || slash) {
                        int r = segment_check(s + start, MIN(i, len) - start);
                        if (r < 0 || i >= len)
                                return r;
                        start = i + 3;
                        i += 2;
                }
        }
}

static int canonicalize(const char *path, size_t len, bool slashes, char **ret) {
        if (len == 0 || path[0] != '/')
                return -EINVAL;
        if (len > HTTP_PATH_MAX)
                return -ENAMETOOLONG;

        _cleanup_free_ char *out = malloc(len * 3 + 1);
        if (!out)
                return -ENOMEM;
        size_t o = 0;

        for (size_t i = 0; i < len;) {
                /* At a '/': one segment with the slash before it. */
                size_t end = ++i;

                while (end < len && path[end] != '/')
                        end++;
                if (end == i && end < len)
                        return -EINVAL; /* "//" */

                int r = slashes ? segment_check_parts(path + i, end - i) : segment_check(path + i, end - i);
                if (r < 0)
                        return r;

                out[o++] = '/';
                while (i < end) {
                        static const char digits[] = "0123456789ABCDEF";
                        unsigned char c = (unsigned char) path[i];
                        bool escape = false;

                        if (c == '%') {
                                int h = i + 1 < end ? unhex(path[i + 1]) : -1;
                                int l = i + 2 < end ? unhex(path[i + 2]) : -1;

                                if (h < 0 || l < 0)
                                        return -EINVAL;
                                c = (unsigned char) (h << 4 | l);
                                escape = !is_unreserved(c);
                                i += 3;
                        } else {
                                if (c == 0)
                                        return -EINVAL;
                                if (strchr("[]|^", c))
                                        escape = true;
                                else if (!is_unreserved(c) && !strchr("!$&'()*+,;=:@", c))
                                        return -EINVAL;
                                i++;
                        }

                        if (escape) {
                                out[o++] = '%';
                                out[o++] = digits[c >> 4];
                                out[o++] = digits[c & 15];
                        } else
                                out[o++] = (char) c;
                }
        }

        if (o > HTTP_PATH_MAX)
                return -ENAMETOOLONG;
        out[o] = 0;
        *ret = TAKE_PTR(out);
        return 0;
}

int http_path_canonicalize(const char *path, size_t len, char **ret) {
        return canonicalize(path, len, false, ret);
}

int http_path_canonicalize_slashes(const char *path, size_t len, char **ret) {
        return canonicalize(path, len, true, ret);
}

const char *http_path_below(const char *path, const char *prefix) {
        const char *p = startswith(path, prefix);

        return p && (*p == 0 || *p == '/') ? p : NULL;
}

bool http_query_is_valid(const char *query) {
        for (const char *p = query; *p; p++)
                if ((unsigned char) *p <= 0x20 || (unsigned char) *p >= 0x7f || *p == '#')
                        return false;
        return true;
}
