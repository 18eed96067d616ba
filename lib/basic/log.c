/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * One line a message. When stderr is the journal (systemd sets $JOURNAL_STREAM), structured fields are sent with
 * sd_journal_sendv(), so that `journalctl CODE_FUNC=…` works; else plain text goes to stderr.
 */
#include <stdarg.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <systemd/sd-journal.h>
#include <time.h>

#include "basic/log.h"

static int max_level = LOG_INFO;
static const char *identifier = "agentd";
static bool to_journal;

static bool stderr_is_journal(void) {
        const char *e = getenv("JOURNAL_STREAM");
        unsigned long long dev, ino;
        struct stat st;

        if (!e || sscanf(e, "%llu:%llu", &dev, &ino) != 2 || fstat(STDERR_FILENO, &st) < 0)
                return false;
        return st.st_dev == (dev_t) dev && st.st_ino == (ino_t) ino;
}

void log_setup(const char *id) {
        static const char *const names[] = { "emerg", "alert", "crit", "err", "warning", "notice", "info", "debug" };
        const char *e = getenv("AGENTD_LOG_LEVEL");

        identifier = id;
        to_journal = stderr_is_journal();
        if (!e)
                return;
        for (size_t i = 0; i < ELEMENTSOF(names); i++)
                if (streq(e, names[i]) || (e[0] == (char) ('0' + i) && !e[1]))
                        max_level = (int) i;
}

int log_internal(int level, int error, const char *file, int line, const char *func, const char *format, ...) {
        int saved = errno, r = error > 0 ? -error : error;
        char text[2048];
        va_list ap;

        if (LOG_PRI(level) > max_level)
                return r;

        errno = -r; /* for %m */
        va_start(ap, format);
        vsnprintf(text, sizeof text, format, ap);
        va_end(ap);

        if (to_journal) {
                char where[512], where_line[32], error_field[32];

                snprintf(where, sizeof where, "CODE_FILE=%s", file);
                snprintf(where_line, sizeof where_line, "CODE_LINE=%i", line);
                snprintf(error_field, sizeof error_field, "ERRNO=%i", -r);
                if (sd_journal_send_with_location(where, where_line, func, "MESSAGE=%s", text, "PRIORITY=%i",
                                                  LOG_PRI(level), "SYSLOG_IDENTIFIER=%s", identifier,
                                                  r < 0 ? "%s" : NULL, error_field, NULL) < 0)
                        fprintf(stderr, "%s\n", text);
        } else
                fprintf(stderr, "%s: %s\n", identifier, text);

        errno = saved;
        return r;
}

bool log_limit_check(LogLimit *l, uint64_t now) {
        if (l->since_usec == 0 || now - l->since_usec >= 60 * USEC_PER_SEC)
                *l = (LogLimit) { .since_usec = MAX(now, UINT64_C(1)), .n_omitted = l->n_omitted };
        if (l->n >= LOG_LIMIT_PER_MINUTE) {
                l->n_omitted++;
                return false;
        }
        l->n++;
        return true;
}

bool log_limit_pass(LogLimit *l) {
        struct timespec ts;

        clock_gettime(CLOCK_MONOTONIC, &ts);
        if (!log_limit_check(l, (uint64_t) ts.tv_sec * USEC_PER_SEC + (uint64_t) ts.tv_nsec / NSEC_PER_USEC))
                return false;
        if (l->n_omitted > 0)
                log_warning("%u messages of the kind of the next were left out.", l->n_omitted);
        l->n_omitted = 0;
        return true;
}
