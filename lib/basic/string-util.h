/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

#include "basic/macro.h"

/* String vectors: NULL-terminated arrays of allocated strings. */
char **strv_free(char **l);
DEFINE_CLEANUP(char **, strv_free);
#define _cleanup_strv_free_ _cleanup_(strv_freep)
size_t strv_length(char *const *l);
bool strv_contains(char *const *l, const char *s);
int strv_extend(char ***l, const char *s);
int strv_copy(char *const *l, char ***ret);

/* asprintf() with our error convention: allocated string or NULL (out of memory). */
char *strprintf(const char *format, ...) _printf_(1, 2);
/* Frees *p and puts a copy of S (may be NULL) there. */
int free_and_strdup(char **p, const char *s);

bool utf8_is_valid(const char *s, size_t len);
/* True where S has a control character (below 0x20, 0x7f). */
bool string_has_cc(const char *s);

/* Plain decimal, no sign, no blanks, whole string; -EINVAL, -ERANGE. */
int parse_uint64(const char *s, uint64_t *ret);
/* "512M", "1G", "4096", "infinity" is refused; suffixes K M G T are powers of 1024, as in systemd. */
int parse_size(const char *s, uint64_t *ret);
/* "90", "90s", "10min", "1h 30min", "500ms"; a bare number is seconds, as in systemd. Result in µs. */
int parse_timespan(const char *s, uint64_t *ret_usec);
int parse_boolean(const char *s);

char *hex_encode(const void *data, size_t size);
/* Lower-case hex only; -EINVAL for anything else. */
int hex_decode(const char *s, size_t len, void *buf, size_t size);

/* Unpadded base64url (RFC 4648 §5). Decoding is strict: no padding, no other alphabet, no stray bits. */
char *base64url_encode(const void *data, size_t size);
int base64url_decode(const char *s, size_t len, void **ret, size_t *ret_size);
/* Ordinary padded base64 (for Basic authentication). */
char *base64_encode(const void *data, size_t size);
int base64_decode(const char *s, size_t len, void **ret, size_t *ret_size);
