/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* See http-field.h. */

#include <strings.h>

#include "http/http-field.h"

bool http_token_char(unsigned char c) {
        static const bool is[256] = {
                ['0' ... '9'] = true, ['A' ... 'Z'] = true, ['a' ... 'z'] = true, ['!'] = true, ['#'] = true,
                ['$'] = true, ['%'] = true, ['&'] = true, ['\''] = true, ['*'] = true, ['+'] = true, ['-'] = true,
                ['.'] = true, ['^'] = true, ['_'] = true, ['`'] = true, ['|'] = true, ['~'] = true,
        };

        return is[c];
}

bool http_field_name_is_valid(const char *s) {
        size_t n = 0;

        for (; s[n]; n++)
                if (n >= 256 || !http_token_char((unsigned char) s[n]))
                        return false;
        return n > 0;
}

bool http_field_value_is_valid(const char *s) {
        size_t n = 0;

        for (; s[n]; n++) {
                unsigned char c = (unsigned char) s[n];

                if (n >= 64 * 1024 || (c < 0x20 && c != '\t') || c == 0x7f)
                        return false;
        }
        return n == 0 || (s[0] != ' ' && s[0] != '\t' && s[n - 1] != ' ' && s[n - 1] != '\t');
}

int http_field_list_add(HttpFieldList *l, const char *name, const char *value) {
        HttpField *f = reallocarray(l->fields, l->n + 1, sizeof(HttpField));
        if (!f)
                return -ENOMEM;
        l->fields = f;

        _cleanup_free_ char *n = strdup(name);
        char *v = strdup(value);
        if (!n || !v) {
                free(v);
                return -ENOMEM;
        }

        l->fields[l->n++] = (HttpField) { .name = TAKE_PTR(n), .value = v };
        return 0;
}

void http_field_list_done(HttpFieldList *l) {
        for (size_t i = 0; i < l->n; i++) {
                explicit_bzero((char *) l->fields[i].value, strlen(l->fields[i].value));
                free((char *) l->fields[i].value);
                free((char *) l->fields[i].name);
        }
        free(l->fields);
        *l = (HttpFieldList) {};
}

bool http_field_name_folds_to(const char *name, const char *other) {
        for (; *name && *other; name++, other++)
                if (http_field_name_fold(*name) != http_field_name_fold(*other))
                        return false;
        return *name == *other;
}

bool http_value_has_token(const char *value, const char *token) {
        size_t l = strlen(token);

        for (const char *p = value; *p;) {
                p += strspn(p, " \t,");
                size_t n = strcspn(p, ",");
                size_t k = n;

                while (k > 0 && (p[k - 1] == ' ' || p[k - 1] == '\t'))
                        k--;
                if (k == l && strncasecmp(p, token, l) == 0)
                        return true;
                p += n;
        }
        return false;
}
