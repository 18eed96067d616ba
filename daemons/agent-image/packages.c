/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include "basic/fs-util.h"
#include "basic/string-util.h"
#include "packages.h"
#include "tree.h"

#define STATUS_SIZE_MAX (64U << 20)
#define PACKAGE_JSON_MAX (1U << 20)
#define PACKAGES_MAX 200000U
#define WORD_MAX 256U

typedef struct Package {
        const char *manager;
        char *name;
        char *where;      /* of several of one name, which */
        char *version[2]; /* from, to */
} Package;

struct Packages {
        int roots[2];
        Package *l;
        size_t n, room;
};

int packages_new(int from, int to, Packages **ret) {
        Packages *p = calloc(1, sizeof *p);

        if (!p)
                return -ENOMEM;
        p->roots[0] = from;
        p->roots[1] = to;
        *ret = p;
        return 0;
}

Packages *packages_free(Packages *p) {
        if (!p)
                return NULL;
        for (size_t i = 0; i < p->n; i++) {
                free(p->l[i].name);
                free(p->l[i].where);
                free(p->l[i].version[0]);
                free(p->l[i].version[1]);
        }
        free(p->l);
        return mfree(p);
}

static bool word_is_valid(const char *s, size_t n) {
        if (n == 0 || n > WORD_MAX || !utf8_is_valid(s, n))
                return false;
        for (size_t i = 0; i < n; i++)
                if ((unsigned char) s[i] <= ' ' || s[i] == 0x7f)
                        return false;
        return true;
}

/* One sighting; packages_compare() brings the two sides together. */
static int add(Packages *p, const char *manager, const char *where, size_t where_len, const char *name, size_t name_len,
               const char *version, size_t version_len, unsigned side) {
        Package *k;

        if (!word_is_valid(name, name_len) || !word_is_valid(version, version_len) || p->n >= PACKAGES_MAX)
                return 0;
        if (p->n == p->room) {
                size_t room = p->room ? p->room * 2 : 256;

                k = reallocarray(p->l, room, sizeof *k);
                if (!k)
                        return -ENOMEM;
                p->l = k;
                p->room = room;
        }
        k = &p->l[p->n++];
        *k = (Package) { .manager = manager, .name = strndup(name, name_len), .where = strndup(where, where_len) };
        k->version[side] = strndup(version, version_len);
        return k->name && k->where && k->version[side] ? 0 : -ENOMEM;
}

/* --- dpkg ------------------------------------------------------------------------------------------------------- */

static const char *field(const char *stanza, const char *end, const char *name, size_t *ret_len) {
        size_t l = strlen(name);

        for (const char *p = stanza; p < end; p += strcspn(p, "\n"), p += p < end) {
                const char *v;

                if (strncmp(p, name, l) != 0 || p[l] != ':')
                        continue;
                v = p + l + 1;
                v += strspn(v, " \t");
                *ret_len = strcspn(v, "\n");
                return v;
        }
        return NULL;
}

static int add_dpkg(Packages *p, unsigned side) {
        static const char installed[] = " ok installed"; /* wanted, or held */
        _cleanup_close_ int fd = tree_open(p->roots[side], "var/lib/dpkg/status", O_RDONLY | O_NONBLOCK);
        _cleanup_free_ char *text = NULL;
        int r;

        if (fd < 0 || read_full_fd(fd, STATUS_SIZE_MAX, &text, NULL) < 0)
                return 0;
        for (const char *s = text; *s;) {
                const char *end = strstr(s, "\n\n") ?: s + strlen(s), *name, *version, *status, *arch;
                size_t name_len, version_len, status_len, arch_len = 0;

                name = field(s, end, "Package", &name_len);
                version = field(s, end, "Version", &version_len);
                status = field(s, end, "Status", &status_len);
                arch = field(s, end, "Architecture", &arch_len);
                if (name && version && status && status_len > strlen(installed) &&
                    memcmp(status + status_len - strlen(installed), installed, strlen(installed)) == 0) {
                        r = add(p, "dpkg", strempty(arch), arch_len, name, name_len, version, version_len, side);
                        if (r < 0)
                                return r;
                }
                s = end + strspn(end, "\n");
        }
        return 0;
}

/* --- pip, npm --------------------------------------------------------------------------------------------------- */

/* "/usr/lib/python3/dist-packages/requests-2.32.3.dist-info", or the older "PyYAML-6.0.2-py3.13.egg-info" */
static int add_pip(Packages *p, const char *path, unsigned side) {
        const char *slash = strrchr(path, '/'), *name = slash + 1, *end = endswith(name, ".dist-info"), *dash;

        if (!end) {
                end = endswith(name, ".egg-info");
                for (dash = end ? end - 1 : name; dash > name && *dash != '-'; dash--)
                        ;
                if (end && startswith(dash, "-py") && dash > name)
                        end = dash;
        }
        if (!end)
                return 0;
        for (dash = end - 1; dash > name && *dash != '-'; dash--)
                ;
        if (dash == name)
                return 0;
        return add(p, "pip", path, (size_t) (slash - path), name, (size_t) (dash - name), dash + 1,
                   (size_t) (end - dash - 1), side);
}

/* "/usr/lib/node_modules/@scope/name/package.json"; *ret_name is what follows the last node_modules/. */
static bool is_npm(const char *path, const char **ret_name, size_t *ret_len, size_t *ret_where) {
        static const char modules[] = "/node_modules/";
        const char *end = endswith(path, "/package.json"), *at = NULL, *slash;

        if (!end)
                return false;
        for (const char *p = path; (p = strstr(p, modules)) && p < end; p++)
                at = p;
        if (!at)
                return false;
        *ret_name = at + strlen(modules);
        if (*ret_name >= end)
                return false;
        *ret_len = (size_t) (end - *ret_name);
        *ret_where = (size_t) (at - path);
        slash = memchr(*ret_name, '/', *ret_len);
        return !slash || (**ret_name == '@' && !memchr(slash + 1, '/', (size_t) (end - slash - 1)));
}

static int add_npm(Packages *p, int dir, const char *path, unsigned side) {
        _cleanup_json_ sd_json_variant *v = NULL;
        _cleanup_close_ int fd = -EBADF;
        _cleanup_free_ char *text = NULL;
        const char *name, *version;
        size_t name_len, where, size;

        if (!is_npm(path, &name, &name_len, &where))
                return 0;
        fd = openat(dir, "package.json", O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
        if (fd < 0 || read_full_fd(fd, PACKAGE_JSON_MAX, &text, &size) < 0 || json_parse(text, size, &v, NULL) < 0)
                return 0;
        version = json_string(v, "version");
        return version ? add(p, "npm", path, where, name, name_len, version, strlen(version), side) : 0;
}

int packages_notice(Packages *p, int from_dir, int to_dir, const char *path) {
        const int dirs[2] = { from_dir, to_dir };
        int r = 0;

        for (unsigned side = 0; r >= 0 && side < 2; side++) {
                if (dirs[side] < 0)
                        continue;
                if (streq(path, "/var/lib/dpkg/status"))
                        r = add_dpkg(p, side);
                if (r >= 0)
                        r = add_pip(p, path, side);
                if (r >= 0)
                        r = add_npm(p, dirs[side], path, side);
        }
        return r;
}

static int compare(const void *a, const void *b) {
        const Package *x = a, *y = b;
        int c = strcmp(x->manager, y->manager);

        if (c == 0)
                c = strcmp(x->name, y->name);
        return c != 0 ? c : strcmp(x->where, y->where);
}

int packages_compare(Packages *p, sd_json_variant **ret) {
        _cleanup_json_ sd_json_variant *l = NULL;
        int r;

        if (p->n > 1)
                qsort(p->l, p->n, sizeof *p->l, compare);
        r = sd_json_variant_new_array(&l, NULL, 0);
        for (size_t i = 0, next; r >= 0 && i < p->n; i = next) {
                _cleanup_json_ sd_json_variant *v = NULL;
                const char *version[2] = {};

                for (next = i; next < p->n && compare(&p->l[i], &p->l[next]) == 0; next++)
                        for (unsigned side = 0; side < 2; side++)
                                version[side] = p->l[next].version[side] ?: version[side];
                if (streq_ptr(version[0], version[1]))
                        continue;
                r = sd_json_buildo(&v, SD_JSON_BUILD_PAIR_STRING("manager", p->l[i].manager),
                                   SD_JSON_BUILD_PAIR_STRING("name", p->l[i].name),
                                   SD_JSON_BUILD_PAIR_CONDITION(!!version[0], "from", SD_JSON_BUILD_STRING(version[0])),
                                   SD_JSON_BUILD_PAIR_CONDITION(!!version[1], "to", SD_JSON_BUILD_STRING(version[1])));
                if (r >= 0)
                        r = sd_json_variant_append_array(&l, v);
        }
        if (r < 0)
                return r;
        *ret = TAKE_PTR(l);
        return 0;
}
