/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * The small vocabulary that every file here uses: automatic cleanup, ownership transfer, and
 * helpers for numbers and arrays. The names follow systemd's, because that is what readers of
 * sd-bus code expect. Error convention of the whole tree: functions return 0 or a positive value
 * on success and a negative errno on failure; ret_* parameters come last and are untouched on failure.
 */

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#define _cleanup_(f) __attribute__((cleanup(f)))
#define _printf_(a, b) __attribute__((format(printf, a, b)))
#define _unused_ __attribute__((unused))
#define _warn_unused_ __attribute__((warn_unused_result))

/* Defines the function that _cleanup_() calls for a variable of TYPE (a pointer type). */
#define DEFINE_CLEANUP(type, func)                                                                 \
        static inline void func##p(type *p) {                                                      \
                if (*p)                                                                            \
                        *p = func(*p);                                                             \
        }                                                                                          \
        struct __useless_struct_to_allow_trailing_semicolon__

/* The same for a free function that returns void. */
#define DEFINE_CLEANUP_VOID(type, func)                                                            \
        static inline void func##p(type *p) {                                                      \
                if (*p) {                                                                          \
                        func(*p);                                                                  \
                        *p = NULL;                                                                 \
                }                                                                                  \
        }                                                                                          \
        struct __useless_struct_to_allow_trailing_semicolon__

static inline void freep(void *p) {
        free(*(void **) p);
}
#define _cleanup_free_ _cleanup_(freep)

static inline void fclosep(FILE **f) {
        if (*f)
                fclose(*f);
}
#define _cleanup_fclose_ _cleanup_(fclosep)

/* Closes an fd, keeps errno, returns -EBADF: fd = safe_close(fd). Takes negative values. */
int safe_close(int fd);
static inline void closep(int *fd) {
        safe_close(*fd);
}
#define _cleanup_close_ _cleanup_(closep)

#define TAKE_GENERIC(var, type, nullvalue)                                                         \
        ({                                                                                         \
                type *_pvar_ = &(var);                                                             \
                type _var_ = *_pvar_;                                                              \
                *_pvar_ = (nullvalue);                                                             \
                _var_;                                                                             \
        })
#define TAKE_PTR(ptr) TAKE_GENERIC(ptr, typeof(ptr), NULL)
#define TAKE_FD(fd) TAKE_GENERIC(fd, int, -EBADF)

/* Frees and returns NULL, for use in destructors: return mfree(x). */
static inline void *mfree(void *p) {
        free(p);
        return NULL;
}

#define ELEMENTSOF(x) (sizeof(x) / sizeof((x)[0]))
/* Each argument is evaluated once; the numbered names let the two be nested without shadowing. */
#define _MINMAX_(op, a, b, n) __MINMAX_(op, a, b, n)
#define __MINMAX_(op, a, b, n)                                                                     \
        ({                                                                                         \
                typeof(a) _a##n = (a);                                                             \
                typeof(b) _b##n = (b);                                                             \
                _a##n op _b##n ? _a##n : _b##n;                                                    \
        })
#define MIN(a, b) _MINMAX_(<, a, b, __COUNTER__)
#define MAX(a, b) _MINMAX_(>, a, b, __COUNTER__)

#define USEC_PER_SEC UINT64_C(1000000)
#define USEC_PER_MSEC UINT64_C(1000)
#define NSEC_PER_USEC UINT64_C(1000)
#define USEC_INFINITY UINT64_MAX

static inline bool streq(const char *a, const char *b) {
        return strcmp(a, b) == 0;
}
static inline bool streq_ptr(const char *a, const char *b) {
        return a == b || (a && b && strcmp(a, b) == 0);
}
static inline bool isempty(const char *s) {
        return !s || *s == 0;
}
static inline const char *strempty(const char *s) {
        return s ?: "";
}
/* Returns what follows PREFIX in S, or NULL where S does not start with it. */
static inline const char *startswith(const char *s, const char *prefix) {
        size_t l = strlen(prefix);
        return strncmp(s, prefix, l) == 0 ? s + l : NULL;
}
/* Returns the place in S where SUFFIX starts, or NULL where S does not end with it. */
static inline const char *endswith(const char *s, const char *suffix) {
        size_t l = strlen(s), k = strlen(suffix);
        return l >= k && memcmp(s + l - k, suffix, k) == 0 ? s + l - k : NULL;
}
