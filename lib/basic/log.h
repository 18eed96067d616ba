/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * Logging: one line to the journal (as structured fields, when stderr is connected to it) or to
 * stderr. Library code is silent; a fault is logged once, where it is handled. Values of secrets
 * must never reach these functions: there is no "debug level that prints them".
 */

#include <syslog.h>

#include "basic/macro.h"

/* Messages above this level are dropped; from $AGENTD_LOG_LEVEL (a name as in syslog.conf, or 0 to 7; info without it). */
void log_setup(const char *identifier);

/* Logs and returns -|error| (0 stays 0), so that "return log_error_errno(r, …)" works. %m is ERROR's text. */
int log_internal(int level, int error, const char *file, int line, const char *func, const char *format, ...)
        _printf_(6, 7);

#define log_full_errno(level, error, ...)                                                          \
        log_internal(level, error, __FILE__, __LINE__, __func__, __VA_ARGS__)
#define log_error_errno(e, ...) log_full_errno(LOG_ERR, e, __VA_ARGS__)
#define log_warning_errno(e, ...) log_full_errno(LOG_WARNING, e, __VA_ARGS__)
#define log_info_errno(e, ...) log_full_errno(LOG_INFO, e, __VA_ARGS__)
#define log_debug_errno(e, ...) log_full_errno(LOG_DEBUG, e, __VA_ARGS__)
#define log_error(...) log_full_errno(LOG_ERR, 0, __VA_ARGS__)
#define log_warning(...) log_full_errno(LOG_WARNING, 0, __VA_ARGS__)
#define log_notice(...) log_full_errno(LOG_NOTICE, 0, __VA_ARGS__)
#define log_info(...) log_full_errno(LOG_INFO, 0, __VA_ARGS__)
#define log_debug(...) log_full_errno(LOG_DEBUG, 0, __VA_ARGS__)
/*
 * For what somebody else can have said as often as they like: of each place in the code so many a minute, the rest is
 * counted and told with the next.
 */
#define LOG_LIMIT_PER_MINUTE 20U
typedef struct LogLimit {
        uint64_t since_usec; /* 0: never used */
        unsigned n, n_omitted;
} LogLimit;
/* NOW: of a clock that does not jump. False: not this time. */
bool log_limit_check(LogLimit *l, uint64_t now);
bool log_limit_pass(LogLimit *l);
#define log_limited_errno(level, e, ...)                                                             \
        do {                                                                                         \
                static LogLimit log_limit_;                                                          \
                if (log_limit_pass(&log_limit_))                                                     \
                        (void) log_full_errno(level, e, __VA_ARGS__);                                \
        } while (0)
#define log_warning_limited_errno(e, ...) log_limited_errno(LOG_WARNING, e, __VA_ARGS__)
#define log_warning_limited(...) log_limited_errno(LOG_WARNING, 0, __VA_ARGS__)
#define log_oom() log_error_errno(-ENOMEM, "Out of memory.")
