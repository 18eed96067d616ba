/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* See the header. Nothing here resolves a name: where it leads to is looked at by the bridge when it is dialled. */
#include "edit-hosts.h"

#include "basic/string-util.h"
#include "service/proxy-allow.h"

static int add_one(char ***l, const char *name, const char *port) {
        _cleanup_free_ char *p = strprintf("%s%s%s", name, port ? ":" : "", strempty(port));

        if (!p)
                return -ENOMEM;
        for (char *c = p; *c; c++)
                if (*c >= 'A' && *c <= 'Z')
                        *c = (char) (*c - 'A' + 'a');
        if (!proxy_pattern_is_valid(p))
                return -EINVAL;
        if (*l && strv_contains(*l, p))
                return 0;
        if (strv_length(*l) >= PROXY_ALLOW_MAX)
                return -E2BIG;
        return strv_extend(l, p);
}

static int add_all(char ***l, char *const *names, const char **ret_bad) {
        int r = 0;

        for (char *const *n = names; r >= 0 && n && *n; n++) {
                if (isempty(*n))
                        *l = strv_free(*l);
                else if (strchr(*n, ':'))
                        r = add_one(l, *n, NULL);
                else {
                        r = add_one(l, *n, "80");
                        if (r >= 0)
                                r = add_one(l, *n, "443");
                }
                if (r == -EINVAL && ret_bad)
                        *ret_bad = *n;
        }
        return r;
}

int edit_hosts_resolve(char *const *defaults, char *const *asked, char ***ret, const char **ret_bad) {
        _cleanup_strv_free_ char **l = NULL;
        int r;

        r = add_all(&l, defaults, ret_bad);
        if (r >= 0)
                r = add_all(&l, asked, ret_bad);
        if (r < 0)
                return r;
        *ret = TAKE_PTR(l);
        return 0;
}

const char *edit_hosts_beyond(char *const *hosts, char *const *allowed) {
        for (char *const *h = hosts; h && *h; h++) {
                const char *below = startswith(*h, "*."), *colon = strrchr(*h, ':');
                _cleanup_free_ char *name = strndup(below ?: *h, (size_t) (colon - (below ?: *h)));
                uint64_t port = 0;

                if (allowed && strv_contains(allowed, *h))
                        continue;
                /* All names below a domain are more than any one name; they may be below a wider one of that kind. */
                if (!name || parse_uint64(colon + 1, &port) < 0)
                        return *h;
                if (below) {
                        bool found = false;

                        for (char *const *a = allowed; !found && a && *a; a++)
                                found = startswith(*a, "*.") &&
                                        proxy_allows((char *[]) { *a, NULL }, name, (uint16_t) port);
                        if (!found)
                                return *h;
                } else if (!proxy_allows(allowed, name, (uint16_t) port))
                        return *h;
        }
        return NULL;
}
