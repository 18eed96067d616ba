/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Ini files and their drop-ins, read in systemd's order of precedence. */
#include <ctype.h>
#include <dirent.h>

#include "basic/config.h"
#include "basic/fs-util.h"
#include "basic/log.h"
#include "basic/string-util.h"

#define CONFIG_SIZE_MAX (1U << 20)

int config_parse_string(const char *value, void *field) {
        return free_and_strdup(field, isempty(value) ? NULL : value);
}

int config_parse_strv(const char *value, void *field) {
        char ***l = field;
        int r;

        if (isempty(value)) {
                *l = strv_free(*l);
                return 0;
        }
        for (const char *p = value; *p;) {
                _cleanup_free_ char *word = NULL;
                size_t n;

                p += strspn(p, " \t");
                n = strcspn(p, " \t");
                if (n == 0)
                        break;
                word = strndup(p, n);
                if (!word)
                        return -ENOMEM;
                r = strv_extend(l, word);
                if (r < 0)
                        return r;
                p += n;
        }
        return 0;
}

int config_parse_size(const char *value, void *field) {
        return parse_size(value, field);
}

int config_parse_timespan(const char *value, void *field) {
        return parse_timespan(value, field);
}

int config_parse_unsigned(const char *value, void *field) {
        return parse_uint64(value, field);
}

int config_parse_bool(const char *value, void *field) {
        int r = parse_boolean(value);

        if (r < 0)
                return r;
        *(bool *) field = r;
        return 0;
}

static char *strstrip(char *s) {
        char *e;

        s += strspn(s, " \t\r");
        e = s + strlen(s);
        while (e > s && isspace((unsigned char) e[-1]))
                *--e = 0;
        return s;
}

static int config_load_file(const char *path, const ConfigItem *table, void *userdata) {
        _cleanup_free_ char *text = NULL, *section = NULL;
        unsigned line = 0;
        size_t size;
        int r;

        r = read_full_file_at(AT_FDCWD, path, CONFIG_SIZE_MAX, &text, &size);
        if (r == -ENOENT)
                return 0;
        if (r < 0)
                return log_error_errno(r, "%s: cannot be read: %m", path);
        if (strlen(text) != size)
                return log_error_errno(-EINVAL, "%s: contains NUL bytes.", path);

        for (char *l = text, *next; l; l = next) {
                const ConfigItem *item;
                char *key, *value, *eq;

                next = strchr(l, '\n');
                if (next)
                        *next++ = 0;
                line++;
                l = strstrip(l);
                if (*l == 0 || *l == '#' || *l == ';')
                        continue;
                if (*l == '[') {
                        char *end = strchr(l, ']');

                        if (!end || end[1])
                                return log_error_errno(-EINVAL, "%s:%u: a section must look like [Name].", path, line);
                        *end = 0;
                        r = free_and_strdup(&section, l + 1);
                        if (r < 0)
                                return r;
                        continue;
                }
                eq = strchr(l, '=');
                if (!eq)
                        return log_error_errno(-EINVAL, "%s:%u: expected Key=value.", path, line);
                *eq = 0;
                key = strstrip(l);
                value = strstrip(eq + 1);
                for (item = table; item->key; item++)
                        if (streq(item->key, key) && streq_ptr(item->section, section))
                                break;
                if (!item->key) {
                        log_warning("%s:%u: unknown key %s in section [%s], ignored.", path, line, key,
                                    strempty(section));
                        continue;
                }
                r = item->parse(value, (char *) userdata + item->offset);
                if (r < 0)
                        return log_error_errno(r, "%s:%u: %s= has no valid value: \"%s\".", path, line, key, value);
        }
        return 0;
}

static int strp_compare(const void *a, const void *b) {
        return strcmp(*(char *const *) a, *(char *const *) b);
}

int config_load(const char *name, const ConfigItem *table, void *userdata) {
        static const char *const roots[] = { "/usr/lib/agentd", "/etc/agentd", "/run/agentd-config" };
        _cleanup_strv_free_ char **names = NULL;
        int r;

        /* The main file is the administrator's, or else the vendor's. */
        for (size_t i = ELEMENTSOF(roots); i-- > 0;) {
                _cleanup_free_ char *p = strprintf("%s/%s", roots[i], name);

                if (!p)
                        return -ENOMEM;
                if (access(p, F_OK) < 0)
                        continue;
                r = config_load_file(p, table, userdata);
                if (r < 0)
                        return r;
                break;
        }

        /* Drop-ins are merged by name over all roots; a name in a later root covers the earlier one. */
        for (size_t i = 0; i < ELEMENTSOF(roots); i++) {
                _cleanup_free_ char *p = strprintf("%s/%s.d", roots[i], name);
                DIR *d = p ? opendir(p) : NULL;
                struct dirent *de;

                if (!d)
                        continue;
                r = 0;
                while (r >= 0 && (de = readdir(d)))
                        if (endswith(de->d_name, ".conf") && de->d_name[0] != '.' && !strv_contains(names, de->d_name))
                                r = strv_extend(&names, de->d_name);
                closedir(d);
                if (r < 0)
                        return r;
        }
        if (names)
                qsort(names, strv_length(names), sizeof(char *), strp_compare);
        for (char **n = names; n && *n; n++)
                for (size_t i = ELEMENTSOF(roots); i-- > 0;) {
                        _cleanup_free_ char *p = strprintf("%s/%s.d/%s", roots[i], name, *n);

                        if (!p)
                                return -ENOMEM;
                        if (access(p, F_OK) < 0)
                                continue;
                        r = config_load_file(p, table, userdata);
                        if (r < 0)
                                return r;
                        break;
                }
        return 0;
}
