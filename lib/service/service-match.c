/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * Which requests a service allows, and which header lines may be built from a definition or a credential.
 * Both are questions about bytes; nothing is decoded or folded here but the case of header names.
 */

#include "basic/string-util.h"
#include "service/service.h"

#define SERVICE_PATH_MAX 8192U

/* "*" within one segment, both without '/'. Greedy with one step back, so linear in practice and quadratic at worst. */
static bool segment_match(const char *pattern, size_t np, const char *s, size_t ns) {
        size_t p = 0, i = 0, star = SIZE_MAX, mark = 0;

        /* A segment that is only a star stands for something, not for nothing. */
        if (np == 1 && pattern[0] == '*')
                return ns > 0;

        while (i < ns) {
                if (p < np && pattern[p] == '*') {
                        star = p++;
                        mark = i;
                } else if (p < np && pattern[p] == s[i]) {
                        p++;
                        i++;
                } else if (star != SIZE_MAX) {
                        p = star + 1;
                        i = ++mark;
                } else
                        return false;
        }
        while (p < np && pattern[p] == '*')
                p++;
        return p == np;
}

bool service_path_match(const char *pattern, const char *path) {
        for (;;) {
                size_t np, ns;

                if (*pattern != '/' || *path != '/')
                        return *pattern == 0 && *path == 0;
                pattern++;
                path++;

                if (streq(pattern, "*")) /* the last segment is a star: all that is below, also just the slash */
                        return true;

                np = strcspn(pattern, "/");
                ns = strcspn(path, "/");
                if (!segment_match(pattern, np, path, ns))
                        return false;
                pattern += np;
                path += ns;
        }
}

/* What must have been settled before a path may be compared. A second line: somebody has made it canonical before. */
static bool path_is_canonical(const char *s) {
        if (*s != '/' || strlen(s) > SERVICE_PATH_MAX)
                return false;

        for (const char *p = s; *p; p++) {
                unsigned char c = (unsigned char) *p;

                if (c <= 0x20 || c >= 0x7f || strchr("?#\\\"<>^`{|}", c))
                        return false;
                if (*p == '/') {
                        size_t n = strcspn(p + 1, "/");
                        const char *q = p + 1;

                        if (q[0] == '.' && (n == 1 || q[1] == ';' || (q[1] == '.' && (n == 2 || q[2] == ';'))))
                                return false;
                        if (n == 0 && *q)
                                return false;
                }
        }

        return true;
}

static bool rule_matches(const ServiceRule *rule, const char *method, const char *path) {
        if (!strv_contains(rule->methods, method))
                return false;
        for (char **p = rule->paths; *p; p++)
                if (service_path_match(*p, path))
                        return true;
        return false;
}

/* Servers take "/a/" for "/a" as they like; a denial is about both. */
static bool rule_denies(const ServiceRule *rule, const char *method, const char *path) {
        char copy[SERVICE_PATH_MAX + 2];
        size_t n = strlen(path);

        if (rule_matches(rule, method, path))
                return true;
        memcpy(copy, path, n + 1);
        if (n > 1 && copy[n - 1] == '/')
                copy[n - 1] = 0;
        else
                strcpy(copy + n, "/");
        return rule_matches(rule, method, copy);
}

bool service_match(const Service *s, const char *method, const char *path, bool *ret_approval) {
        bool allowed = false, approval = true;

        if (!path_is_canonical(path))
                return false;

        for (size_t i = 0; i < s->n_deny; i++)
                if (rule_denies(s->deny + i, method, path))
                        return false;
        for (size_t i = 0; i < s->n_allow; i++)
                if (rule_matches(s->allow + i, method, path)) {
                        allowed = true;
                        approval = approval && s->allow[i].approval;
                }

        if (allowed && ret_approval)
                *ret_approval = approval;
        return allowed;
}

bool header_name_is_safe(const char *s) {
        size_t n = 0;

        if (!s)
                return false;

        for (; s[n]; n++)
                if (!((s[n] >= 'a' && s[n] <= 'z') || (s[n] >= 'A' && s[n] <= 'Z') || (s[n] >= '0' && s[n] <= '9') ||
                      strchr("!#$%&'*+-.^`|~", s[n])))
                        return false;

        return n > 0 && n <= 128;
}

bool header_value_is_safe(const char *s, size_t len) {
        if (!s || len == 0 || len > 64U * 1024U)
                return false;
        if (s[0] == ' ' || s[0] == '\t' || s[len - 1] == ' ' || s[len - 1] == '\t')
                return false;

        for (size_t i = 0; i < len; i++) {
                unsigned char c = (unsigned char) s[i];

                if (c != '\t' && (c < 0x20 || c >= 0x7f))
                        return false;
        }

        return true;
}

bool header_name_is_reserved(const char *s) {
        static const char *const names[] = {
                "accept-encoding", "connection", "content-length", "content-type", "cookie", "cookie2", "date",
                "expect", "forwarded", "host", "http2-settings", "keep-alive", "proxy-authenticate",
                "proxy-authorization", "proxy-connection", "set-cookie", "set-cookie2", "te", "trailer",
                "transfer-encoding", "upgrade", "via",
        };
        char folded[160];
        size_t n = 0;

        if (!s || strlen(s) >= sizeof(folded))
                return true;

        for (; s[n]; n++)
                folded[n] = s[n] == '_' ? '-' : (char) (s[n] >= 'A' && s[n] <= 'Z' ? s[n] - 'A' + 'a' : s[n]);
        folded[n] = 0;

        if (startswith(folded, "x-forwarded-") || startswith(folded, "proxy-") || startswith(folded, "sec-"))
                return true;
        for (size_t i = 0; i < ELEMENTSOF(names); i++)
                if (streq(folded, names[i]))
                        return true;

        return false;
}
