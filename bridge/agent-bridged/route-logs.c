/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * POST /v1/logs: lines for the journal, with whose they are in fields of their own. NDJSON ({"message", "stream"?,
 * "level"?}) or plain text, one message a line. What the sandbox says can only ever become the text of MESSAGE= and
 * choose among fixed values elsewhere. The bytes of a whole run are capped; lines are read and sent on one by one, so
 * memory is bounded by one line.
 */

#include <sys/uio.h>
#include <syslog.h>
#include <systemd/sd-journal.h>

#include "basic/json-util.h"
#include "basic/log.h"
#include "basic/string-util.h"
#include "http/problem.h"
#include "routes.h"

#define LINE_MAX_BYTES ((size_t) 48 * 1024)

typedef struct LogPost {
        BridgeRun *run;
        LiveRun *live;
        bool ndjson;
        HttpBuffer line;
        unsigned n_lines, n_bad;
        bool cut; /* the line that is being read was longer than LINE_MAX_BYTES */
} LogPost;

static LogPost *log_post_free(LogPost *p) {
        live_run_unref(p->live);
        http_buffer_done(&p->line);
        return mfree(p);
}

static int level_from_string(const char *s) {
        static const struct {
                const char *name;
                int level;
        } table[] = {
                { "trace", LOG_DEBUG }, { "debug", LOG_DEBUG }, { "info", LOG_INFO }, { "notice", LOG_NOTICE },
                { "warn", LOG_WARNING },
                { "warning", LOG_WARNING }, { "error", LOG_ERR }, { "err", LOG_ERR }, { "critical", LOG_CRIT },
                { "fatal", LOG_CRIT },
        };

        for (size_t i = 0; s && i < ELEMENTSOF(table); i++)
                if (streq(s, table[i].name))
                        return table[i].level;
        return -EINVAL;
}

static void journal_send(const LiveRun *live, int level, const char *stream, const char *message, size_t size) {
        char *fields[8] = {};
        struct iovec iov[ELEMENTSOF(fields)];
        int n = 0;

        fields[n++] = strprintf("PRIORITY=%i", level);
        fields[n++] = strprintf("AGENT_RUN=%s", live->run);
        fields[n++] = strprintf("AGENT_NAME=%s", live->agent);
        fields[n++] = strprintf("AGENT_USER=%s", live->user);
        fields[n++] = strdup("SYSLOG_IDENTIFIER=agent");
        if (stream)
                fields[n++] = strprintf("AGENT_STREAM=%s", stream);

        int k = n;
        char *text = malloc(strlen("MESSAGE=") + size);
        if (text) {
                memcpy(text, "MESSAGE=", strlen("MESSAGE="));
                memcpy(text + strlen("MESSAGE="), message, size);
                fields[k++] = text;
        }

        bool complete = text;
        for (int i = 0; i < n; i++)
                complete = complete && fields[i];
        if (complete) {
                for (int i = 0; i < n; i++)
                        iov[i] = (struct iovec) { .iov_base = fields[i], .iov_len = strlen(fields[i]) };
                iov[n] = (struct iovec) { .iov_base = text, .iov_len = strlen("MESSAGE=") + size };
                (void) sd_journal_sendv(iov, n + 1);
        }
        for (int i = 0; i < k; i++)
                free(fields[i]);
}

static void log_line(LogPost *p, const char *data, size_t size) {
        _cleanup_json_ sd_json_variant *v = NULL;
        int level = LOG_INFO;
        const char *stream = NULL, *message = data;

        if (size > 0 && data[size - 1] == '\r')
                size--;
        if (size == 0)
                return;

        if (p->ndjson && !p->cut) {
                if (json_parse(data, size, &v, NULL) < 0 || !(message = json_string(v, "message"))) {
                        p->n_bad++;
                        return;
                }
                size = strlen(message);

                const char *s = json_string(v, "stream");
                if (s && token_name_is_valid(s))
                        stream = s;
                level = level_from_string(json_string(v, "level"));
                if (level < 0)
                        level = streq_ptr(stream, "stderr") ? LOG_NOTICE : LOG_INFO;
        }

        journal_send(p->live, level, stream, message, size);
        p->n_lines++;
}

/* Takes bytes as they come. */
static int log_bytes(LogPost *p, const char *data, size_t size) {
        while (size > 0) {
                const char *newline = memchr(data, '\n', size);
                size_t n = newline ? (size_t) (newline - data) : size;
                size_t take = MIN(n, LINE_MAX_BYTES - p->line.size);

                int r = http_buffer_append(&p->line, data, take);
                if (r < 0)
                        return r;
                if (take < n || newline) {
                        /* A line that is too long is cut into pieces. */
                        p->cut = p->cut || !newline || take < n;
                        log_line(p, http_buffer_data(&p->line), p->line.size);
                        http_buffer_done(&p->line);
                        if (take == n) {
                                take++; /* the newline */
                                p->cut = false;
                        }
                }
                data += take;
                size -= take;
        }
        return 0;
}

static void over_limit(HttpRequest *req, LogPost *p) {
        if (!p->run->log_full) {
                static const char text[] = "The run's log limit is reached; further lines are dropped.";

                p->run->log_full = true;
                journal_send(p->live, LOG_WARNING, "bridge", text, strlen(text));
        }
        http_problem(req, 413, "log-limit-reached", "The run's log limit is reached.", NULL, 0);
}

static void on_readable(HttpRequest *req, void *userdata) {
        static const HttpField fields[] = { { "Content-Type", "application/json" } };
        LogPost *p = userdata;
        char buf[8192];
        ssize_t n;

        if (http_response_started(req))
                return;

        while ((n = http_request_read(req, buf, sizeof(buf))) > 0) {
                if ((uint64_t) n > p->live->limits.log_bytes - MIN(p->run->log_bytes, p->live->limits.log_bytes)) {
                        over_limit(req, p);
                        return;
                }
                p->run->log_bytes += (uint64_t) n;
                if (log_bytes(p, buf, (size_t) n) < 0) {
                        http_request_abort(req);
                        return;
                }
        }
        if (n < 0)
                return; /* -EAGAIN: more comes; else the done callback follows */

        log_line(p, http_buffer_data(&p->line), p->line.size);
        http_buffer_done(&p->line);

        _cleanup_free_ char *text = strprintf("{\"lines\":%u,\"refused\":%u}\n", p->n_lines, p->n_bad);
        if (!text || http_response_send(req, 200, fields, ELEMENTSOF(fields), text, strlen(text)) < 0)
                http_request_abort(req);
}

static void on_done(HttpRequest *req, HttpOutcome outcome, void *userdata) {
        log_post_free(userdata);
}

void route_post_logs(const RouteRequest *r) {
        static const HttpRequestOps ops = { .readable = on_readable, .done = on_done };
        const HttpHead *head = http_request_head(r->http);
        const char *type = http_head_get(head, "content-type");

        LogPost *p = calloc(1, sizeof(LogPost));
        if (!p) {
                http_problem(r->http, 503, "out-of-memory", NULL, NULL, 0);
                return;
        }
        p->run = r->run;
        p->live = live_run_ref(r->live);
        p->ndjson = type && (startswith(type, "application/x-ndjson") || startswith(type, "application/jsonl") ||
                             startswith(type, "application/json"));
        http_request_set_ops(r->http, &ops, p);

        if (p->run->log_bytes >= p->live->limits.log_bytes) {
                over_limit(r->http, p);
                return;
        }
        http_request_accept_body(r->http, UINT64_MAX);
}
