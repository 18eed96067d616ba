/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * agentd-log RUN [--follow]: the journal's entries of one run as lines of JSON: {"message":…,"priority":N,"ts":µs}.
 * Only entries count that are known by trusted fields to come from the run's unit (its output) or from our daemons
 * (what it posted, and its end). With --follow it ends with the run, when agentd says so in the journal.
 *
 * What is written to the journal is not in it at once, and not in the order in which it was written, where it came by
 * different ways; but whoever was told of the end of a run is to find all that it said. So the journal is asked to take in
 * what it was sent, before its entries are read to the end: unless the run ended long ago.
 */
#include <poll.h>
#include <pwd.h>
#include <signal.h>
#include <systemd/sd-journal.h>
#include <systemd/sd-varlink.h>
#include <time.h>

#include "basic/json-util.h"
#include "basic/log.h"
#include "basic/name-util.h"
#include "basic/string-util.h"

#define MESSAGE_MAX 65536U
/* How long the journal may take to write down what it was sent. */
#define SYNC_USEC (60 * USEC_PER_SEC)
#define JOURNAL_ADDRESS "/run/systemd/journal/io.systemd.journal"

static int get_field(sd_journal *j, const char *field, char **ret) {
        size_t n, skip = strlen(field) + 1;
        const void *data;
        char *s;
        int r;

        r = sd_journal_get_data(j, field, &data, &n);
        if (r < 0)
                return r;
        s = strndup((const char *) data + skip, MIN(n - skip, (size_t) MESSAGE_MAX));
        if (!s)
                return -ENOMEM;
        *ret = s;
        return 0;
}

/* The unit's own lines come from its stdout, with fields that systemd adds; others only from our daemons. */
static bool entry_is_trusted(sd_journal *j, const char *run) {
        _cleanup_free_ char *unit = NULL, *identifier = NULL;
        const char *p;

        if (get_field(j, "_SYSTEMD_UNIT", &unit) < 0)
                return false;
        p = startswith(unit, "agent-run-");
        if (p)
                return strlen(p) > RUN_ID_LEN && memcmp(p, run, RUN_ID_LEN) == 0;
        /* Not PID 1's lines about the unit (init.scope): what they say of the end, the run's message says better. */
        if (streq(unit, "agentd.service"))
                return true;
        /* The bridge's own records of requests, and the run's events and metrics, are no lines of its log. */
        return streq(unit, "agent-bridged.service") && get_field(j, "SYSLOG_IDENTIFIER", &identifier) >= 0 &&
               streq(identifier, "agent");
}

static bool is_long_ago(uint64_t usec) {
        struct timespec now;

        clock_gettime(CLOCK_REALTIME, &now);
        return usec + SYNC_USEC < (uint64_t) now.tv_sec * USEC_PER_SEC;
}

static void journal_sync(void) {
        sd_varlink *v = NULL;

        /* Where it cannot be asked, what is there is shown. */
        if (sd_varlink_connect_address(&v, JOURNAL_ADDRESS) >= 0) {
                sd_varlink_set_relative_timeout(v, SYNC_USEC);
                sd_varlink_call(v, "io.systemd.Journal.Synchronize", NULL, NULL, NULL);
        }
        sd_varlink_unref(v);
}

static int print_entry(sd_journal *j, uint64_t *ret_end) {
        _cleanup_json_ sd_json_variant *v = NULL;
        _cleanup_free_ char *message = NULL, *priority = NULL, *result = NULL, *line = NULL;
        uint64_t ts = 0, level = LOG_INFO;
        int r;

        if (get_field(j, "MESSAGE", &message) < 0)
                return 0;
        if (get_field(j, "PRIORITY", &priority) >= 0)
                parse_uint64(priority, &level);
        sd_journal_get_realtime_usec(j, &ts);
        if (!utf8_is_valid(message, strlen(message)))
                for (char *p = message; *p; p++)
                        if ((unsigned char) *p >= 0x80)
                                *p = '?';
        r = sd_json_buildo(&v, SD_JSON_BUILD_PAIR_UNSIGNED("ts", ts), SD_JSON_BUILD_PAIR_UNSIGNED("priority", level),
                           SD_JSON_BUILD_PAIR_STRING("message", message));
        if (r >= 0)
                r = json_format_canonical(v, &line);
        if (r < 0)
                return r;
        if (printf("%s\n", line) < 0)
                return -EPIPE;
        if (get_field(j, "AGENT_RESULT", &result) >= 0)
                *ret_end = ts;
        return 0;
}

static int run_log(const char *run, bool follow) {
        _cleanup_free_ char *match = strprintf("AGENT_RUN=%s", run);
        sd_journal *j = NULL;
        uint64_t end = 0; /* when the run ended */
        bool synced = false;
        int r;

        if (!match)
                return log_oom();
        r = sd_journal_open(&j, SD_JOURNAL_LOCAL_ONLY | SD_JOURNAL_SYSTEM);
        if (r >= 0)
                r = sd_journal_add_match(j, match, 0);
        if (r >= 0)
                r = sd_journal_get_fd(j); /* before the first entry, so that nothing is missed between */
        if (r < 0) {
                sd_journal_close(j);
                return log_error_errno(r, "The journal cannot be read: %m");
        }
        for (;;) {
                while ((r = sd_journal_next(j)) > 0)
                        if (entry_is_trusted(j, run)) {
                                r = print_entry(j, &end);
                                if (r < 0)
                                        break;
                        }
                if (fflush(stdout) < 0 || ferror(stdout))
                        r = -EPIPE;
                if (r < 0)
                        break;
                if (end || !follow) {
                        if (synced || (end && is_long_ago(end)))
                                break;
                        journal_sync();
                        synced = true;
                } else {
                        /* The reader going away shows as an error of the pipe. */
                        struct pollfd p[] = { { .fd = sd_journal_get_fd(j),
                                                .events = (short) sd_journal_get_events(j) },
                                              { .fd = STDOUT_FILENO } };

                        if (poll(p, ELEMENTSOF(p), -1) < 0 || p[1].revents & (POLLERR | POLLHUP))
                                break;
                }
                r = sd_journal_process(j);
                if (r < 0)
                        break;
        }
        sd_journal_close(j);
        return r == -EPIPE ? 0 : r;
}

int main(int argc, char *argv[]) {
        bool follow = argc == 3 && streq(argv[2], "--follow");

        log_setup("agentd-log");
        if (argc < 2 || argc > 3 || (argc == 3 && !follow) || !run_id_is_valid(argv[1])) {
                fprintf(stderr, "Usage: agentd-log RUN [--follow]\n");
                return 2;
        }
        signal(SIGPIPE, SIG_IGN);
        return run_log(argv[1], follow) < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}
