/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * "agentctl logs": agentd writes the run's log as lines of JSON into a pipe, from the beginning; here they become
 * lines for people. What an agent logs is not trusted: control characters are escaped. When the pipe ends
 * though the run goes on (agentd was restarted), -f opens it again and skips as many lines as were shown.
 */

#include <poll.h>
#include <syslog.h>

#include "basic/string-util.h"
#include "exit-status.h"
#include "format.h"
#include "output.h"
#include "pager.h"
#include "run-info.h"
#include "verb.h"

#define REOPEN_MSEC 500
#define REOPEN_MAX 180 /* times without any new line between */

typedef struct LogReader {
        Client *client;
        uint64_t n_shown, n_skip;
        bool colors;
} LogReader;

static void print_entry(LogReader *l, const char *line, size_t size) {
        _cleanup_(sd_json_variant_unrefp) sd_json_variant *v = NULL;
        _cleanup_free_ char *escaped = NULL;
        const char *message, *color = "";
        sd_json_variant *ts, *priority, *m;
        char buf[FORMAT_MAX];
        uint64_t level;

        if (client_json(l->client)) {
                fwrite(line, 1, size, stdout);
                fputc('\n', stdout);
                return;
        }
        if (sd_json_parse(line, 0, &v, NULL, NULL) < 0 || !sd_json_variant_is_object(v))
                return; /* not for us: a later version's line */

        ts = sd_json_variant_by_key(v, "ts");
        priority = sd_json_variant_by_key(v, "priority");
        m = sd_json_variant_by_key(v, "message");
        message = m && sd_json_variant_is_string(m) ? sd_json_variant_string(m) : "";
        level = priority && sd_json_variant_is_unsigned(priority) ? sd_json_variant_unsigned(priority) : LOG_INFO;

        escaped = text_escape(message, strlen(message), false);
        if (!escaped)
                return;
        if (l->colors)
                color = level <= LOG_ERR ? "\033[31m" : level == LOG_WARNING ? "\033[33m" :
                        level >= LOG_DEBUG ? "\033[90m" : "";
        printf("%s %s%s%s\n",
               format_time_short(ts && sd_json_variant_is_unsigned(ts) ? sd_json_variant_unsigned(ts) : 0, buf), color,
               escaped, *color ? "\033[0m" : "");
}

/* Until the pipe's end. */
static int read_log(LogReader *l, int fd) {
        _cleanup_fclose_ FILE *f = NULL;
        _cleanup_free_ char *line = NULL;
        size_t allocated = 0;
        ssize_t n;

        fd = dup(fd);
        f = fd < 0 ? NULL : fdopen(fd, "r");
        if (!f)
                return fail_errno(-errno, "Cannot read the log");
        while ((n = getline(&line, &allocated, f)) > 0) {
                if (line[n - 1] == '\n')
                        line[--n] = 0;
                else
                        break; /* cut short; comes again whole when reopened */
                if (l->n_skip > 0) {
                        l->n_skip--;
                        continue;
                }
                print_entry(l, line, (size_t) n);
                l->n_shown++;
                if (option_given(l->client->options, OPTION_FOLLOW))
                        fflush(stdout);
                if (ferror(stdout))
                        return -EPIPE;
        }
        return 0;
}

/* -EAGAIN: agentd is away. */
static int open_and_read(LogReader *l, const char *id, bool follow) {
        _cleanup_(sd_bus_error_free) sd_bus_error error = SD_BUS_ERROR_NULL;
        _cleanup_(sd_bus_message_unrefp) sd_bus_message *reply = NULL;
        int fd, r;

        r = client_call_full(l->client, &manager_target, "OpenRunLog", &reply, &error, "sb", id, (int) follow);
        if (r < 0)
                return follow && client_error_is_transient(&error, r) ? -EAGAIN : client_report(&error, r, NULL);
        r = sd_bus_message_read_basic(reply, 'h', &fd);
        if (r < 0)
                return client_bad_reply(r);
        l->n_skip = l->n_shown;
        return read_log(l, fd);
}

static int run_is_over(Client *c, const char *id) {
        _cleanup_(sd_bus_error_free) sd_bus_error error = SD_BUS_ERROR_NULL;
        _cleanup_(run_info_done) RunInfo info = {};
        int r;

        r = run_info_read(c, id, &info, &error);
        if (r < 0)
                return client_error_is_transient(&error, r) ? -EAGAIN : client_report(&error, r, NULL);
        return run_info_is_over(&info);
}

int verb_logs(Client *c, int argc _unused_, char **argv) {
        bool follow = option_given(c->options, OPTION_FOLLOW);
        LogReader l = { .client = c };
        _cleanup_free_ char *id = NULL;
        unsigned idle = 0;
        int r;

        r = run_id_resolve(c, argv[0], &id);
        if (r < 0)
                return r;

        l.colors = output_is_terminal() && !getenv("NO_COLOR");
        if (!follow) {
                pager_open(c->options->pager);
                r = open_and_read(&l, id, false);
                return r < 0 ? r : STATUS_SUCCESS;
        }

        for (;;) {
                uint64_t before = l.n_shown;
                /* Asked before the log is read: what a finished run logged is then surely in it */
                int over = run_is_over(c, id);

                if (over < 0 && over != -EAGAIN)
                        return over;
                r = over < 0 ? over : open_and_read(&l, id, true);
                if (r < 0 && r != -EAGAIN)
                        return r;
                if (r >= 0 && over > 0)
                        return STATUS_SUCCESS;
                if (r >= 0) {
                        over = run_is_over(c, id);
                        if (over < 0 && over != -EAGAIN)
                                return over;
                        if (over > 0)
                                return STATUS_SUCCESS;
                }
                idle = l.n_shown > before ? 0 : idle + 1;
                if (idle > REOPEN_MAX)
                        return fail("agentd has been away for too long. See \"systemctl status agentd\".");
                (void) poll(NULL, 0, REOPEN_MSEC);
        }
}
