/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * Header fields: what a name and a value may look like, and lists of them. All header lines that leave one of our
 * programs are made of names and values that passed http_field_name_is_valid() and http_field_value_is_valid().
 */

#include "basic/macro.h"

typedef struct HttpField {
        const char *name;
        const char *value;
} HttpField;

/* A list that owns its strings. Values are wiped when it is freed. */
typedef struct HttpFieldList {
        HttpField *fields;
        size_t n;
} HttpFieldList;

bool http_token_char(unsigned char c);
/* RFC 9110 token, 1..256 bytes. */
bool http_field_name_is_valid(const char *s);
/* No control character but tab, no blank at either end, up to 64 KB. */
bool http_field_value_is_valid(const char *s);

int http_field_list_add(HttpFieldList *l, const char *name, const char *value);
void http_field_list_done(HttpFieldList *l);

/* Names equal without regard to case and with '_' read as '-', as lax servers behind CGI do. */
bool http_field_name_folds_to(const char *name, const char *other);
static inline char http_field_name_fold(char c) {
        return c == '_' ? '-' : c >= 'A' && c <= 'Z' ? (char) (c - 'A' + 'a') : c;
}
/* One token of a comma-separated value, without regard to case: "Connection: close, Upgrade". */
bool http_value_has_token(const char *value, const char *token);
