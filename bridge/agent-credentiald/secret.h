/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * Bytes that must not get anywhere: in pages in which there is nothing else, which are locked, left out of core dumps
 * and of forks; wiped when they are freed. Small ones share pages, which stay for the next ones: every request needs
 * some. The type is opaque, so that no format string can print it; who needs the bytes says so with secret_data(),
 * which is easy to search for.
 */

#include "basic/macro.h"

typedef struct Secret Secret;

#define SECRET_SIZE_MAX ((size_t) 64 * 1024)

/* SIZE bytes of zero with a NUL behind them. -ENOMEM also where memory cannot be locked (LimitMEMLOCK=). */
int secret_new(size_t size, Secret **ret);
/* For packets that hold some, up to SECRET_LARGE_MAX. */
#define SECRET_LARGE_MAX ((size_t) 1024 * 1024)
int secret_new_large(size_t size, Secret **ret);
int secret_new_from(const void *data, size_t size, Secret **ret);
Secret *secret_free(Secret *s);
DEFINE_CLEANUP(Secret *, secret_free);

size_t secret_size(const Secret *s);
/* secret_size() bytes and a NUL. */
const char *secret_data(const Secret *s);
char *secret_buffer(Secret *s);
/* Makes it shorter; what is cut off is wiped. */
void secret_truncate(Secret *s, size_t size);

/* For ordinary heap strings that held a secret for a moment: wipes and frees, returns NULL. */
char *secret_string_free(char *s);
DEFINE_CLEANUP(char *, secret_string_free);
