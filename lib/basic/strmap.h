/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * A map from strings to pointers, for looking live objects up by id or object path. Keys are not copied: they
 * must live inside the value, which is the usual case here (run->id). Linear probing, grows by doubling.
 */

#include "basic/macro.h"

typedef struct StrMap StrMap;

StrMap *strmap_new(void);
StrMap *strmap_free(StrMap *m); /* frees the map, not the values */
DEFINE_CLEANUP(StrMap *, strmap_free);

/* -EEXIST where the key is taken. */
int strmap_put(StrMap *m, const char *key, void *value);
void *strmap_get(StrMap *m, const char *key);
void *strmap_remove(StrMap *m, const char *key);
size_t strmap_size(StrMap *m);
/* Any one value, or NULL when empty: for "while ((x = strmap_first(m))) x_free(x)". */
void *strmap_first(StrMap *m);
/* for (size_t i = 0; (v = strmap_next(m, &i));) – the map must not change meanwhile. */
void *strmap_next(StrMap *m, size_t *i);
