/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * Which step of making a sandbox failed, in words: the functions of this folder put a sentence into the message of
 * their caller and return the error, in one expression: return step_fail(message, -errno, "Cannot make %s", path);
 */

#include <stdarg.h>

#include "basic/macro.h"

#define STEP_MESSAGE_MAX 384

__attribute__((format(printf, 3, 4)))
static inline int step_fail(char message[STEP_MESSAGE_MAX], int error, const char *format, ...) {
        va_list ap;
        int n;

        va_start(ap, format);
        n = vsnprintf(message, STEP_MESSAGE_MAX, format, ap);
        va_end(ap);
        if (n >= 0 && n < STEP_MESSAGE_MAX - 1)
                snprintf(message + n, (size_t) (STEP_MESSAGE_MAX - n), ": %s", strerror(-error));
        return error;
}
