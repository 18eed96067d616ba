/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * Takes secrets out of a stream of bytes: each is looked for as it is, base64-encoded (at any of the three offsets,
 * both alphabets) and percent-encoded, also across the borders of pieces. What is found becomes as many '*', so that
 * lengths stay true. Only bytes that may be the start of a secret are held back, so an event that ends in anything
 * else passes at once.
 */

#include "http/http-buffer.h"

typedef struct Redactor Redactor;

#define REDACTOR_SECRET_MIN ((size_t) 6) /* shorter ones would be found everywhere */
#define REDACTOR_SECRET_MAX ((size_t) 16 * 1024)

int redactor_new(Redactor **ret);
Redactor *redactor_free(Redactor *r);
DEFINE_CLEANUP(Redactor *, redactor_free);
/* Secrets out of bounds are left out (returns 0). */
int redactor_add(Redactor *r, const char *secret, size_t size);

/* Appends to OUT what can be passed on. */
int redactor_feed(Redactor *r, const char *data, size_t size, HttpBuffer *out);
/* The rest, at the end. */
int redactor_flush(Redactor *r, HttpBuffer *out);
/* One text, in place; for header values. */
void redactor_apply(Redactor *r, char *s, size_t size);
/* How many were found so far. */
unsigned redactor_hits(const Redactor *r);
