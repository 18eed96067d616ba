/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* See line-post.h. */

#include <sys/uio.h>
#include <syslog.h>
#include <systemd/sd-journal.h>

#include "basic/string-util.h"
#include "http/problem.h"
#include "line-post.h"

#define FIELDS_MAX 16
/* What a line costs the journal beside its bytes: without it a run's limit would be millions of lines. */
#define LINE_OVERHEAD 128U
/* Each is a message to the journal, or a document that is parsed. Then others have their turn. */
#define LINES_PER_TURN 64U

static LinePost *line_post_free(LinePost *p) {
        live_run_unref(p->live);
        http_buffer_done(&p->buffer);
        return mfree(p);
}

void line_post_journal(const LiveRun *live, int level, const char *identifier, char *const *fields, const char *message,
                       size_t size) {
        char *own[] = {
                strprintf("PRIORITY=%i", level), strprintf("SYSLOG_IDENTIFIER=%s", identifier),
                strprintf("AGENT_RUN=%s", live->run), strprintf("AGENT_NAME=%s", live->agent),
                strprintf("AGENT_USER=%s", live->user),
        };
        struct iovec iov[FIELDS_MAX];
        int n = 0;
        bool complete = true;
        char *text = malloc(strlen("MESSAGE=") + size);

        if (text) {
                memcpy(text, "MESSAGE=", strlen("MESSAGE="));
                memcpy(text + strlen("MESSAGE="), message, size);
                iov[n++] = (struct iovec) { .iov_base = text, .iov_len = strlen("MESSAGE=") + size };
        } else
                complete = false;
        for (size_t i = 0; i < ELEMENTSOF(own); i++) {
                complete = complete && own[i];
                if (own[i])
                        iov[n++] = (struct iovec) { .iov_base = own[i], .iov_len = strlen(own[i]) };
        }
        for (char *const *f = fields; f && *f && n < FIELDS_MAX; f++)
                iov[n++] = (struct iovec) { .iov_base = *f, .iov_len = strlen(*f) };

        if (complete)
                (void) sd_journal_sendv(iov, n);
        for (size_t i = 0; i < ELEMENTSOF(own); i++)
                free(own[i]);
        free(text);
}

static void hand_on(LinePost *p) {
        const char *data = http_buffer_data(&p->buffer);
        size_t size = p->buffer.size;

        if (size > 0 && data[size - 1] == '\r')
                size--;
        if (size > 0 && p->run->log_bytes < p->live->limits.log_bytes) {
                p->run->log_bytes += LINE_OVERHEAD;
                p->n_now++;
                if (p->line(p, data, size, p->cut))
                        p->n_lines++;
                else
                        p->n_refused++;
        }
        http_buffer_done(&p->buffer);
}

/* Takes bytes as they come. */
static int take(LinePost *p, const char *data, size_t size) {
        while (size > 0) {
                const char *newline = memchr(data, '\n', size);
                size_t n = newline ? (size_t) (newline - data) : size;
                size_t k = MIN(n, LINE_POST_MAX - p->buffer.size);

                int r = http_buffer_append(&p->buffer, data, k);
                if (r < 0)
                        return r;
                if (k < n || newline) {
                        /* A line that is too long is cut into pieces. */
                        p->cut = p->cut || !newline || k < n;
                        hand_on(p);
                        if (k == n) {
                                k++; /* the newline */
                                p->cut = false;
                        }
                }
                data += k;
                size -= k;
        }
        return 0;
}

static void over_limit(HttpRequest *req, LinePost *p) {
        if (!p->run->log_full) {
                static const char text[] = "The run's log limit is reached; further lines are dropped.";
                char *fields[] = { (char *) "AGENT_STREAM=bridge", NULL };

                p->run->log_full = true;
                line_post_journal(p->live, LOG_WARNING, "agent", fields, text, strlen(text));
        }
        http_problem(req, 413, "log-limit-reached", "The run's log limit is reached.", NULL, 0);
}

static void on_readable(HttpRequest *req, void *userdata) {
        static const HttpField fields[] = { { "Content-Type", "application/json" } };
        LinePost *p = userdata;
        char buf[512]; /* so many lines at most */
        ssize_t n;

        if (http_response_started(req))
                return;

        p->n_now = 0;
        while ((n = http_request_read(req, buf, sizeof(buf))) > 0) {
                if ((uint64_t) n > p->live->limits.log_bytes - MIN(p->run->log_bytes, p->live->limits.log_bytes)) {
                        over_limit(req, p);
                        return;
                }
                p->run->log_bytes += (uint64_t) n;
                if (take(p, buf, (size_t) n) < 0) {
                        http_request_abort(req);
                        return;
                }
                if (p->n_now >= LINES_PER_TURN) {
                        http_request_call_again(req);
                        return;
                }
        }
        if (n < 0)
                return; /* -EAGAIN: more comes; else the done callback follows */

        hand_on(p);

        _cleanup_free_ char *text = strprintf("{\"lines\":%u,\"refused\":%u}\n", p->n_lines, p->n_refused);
        if (!text || http_response_send(req, 200, fields, ELEMENTSOF(fields), text, strlen(text)) < 0)
                http_request_abort(req);
}

static void on_done(HttpRequest *req, HttpOutcome outcome, void *userdata) {
        line_post_free(userdata);
}

void line_post(const RouteRequest *r, bool (*line)(LinePost *p, const char *data, size_t size, bool cut)) {
        static const HttpRequestOps ops = { .readable = on_readable, .done = on_done };
        const char *type = http_head_get(http_request_head(r->http), "content-type");

        LinePost *p = calloc(1, sizeof(LinePost));
        if (!p) {
                http_problem(r->http, 503, "out-of-memory", NULL, NULL, 0);
                return;
        }
        p->run = r->run;
        p->live = live_run_ref(r->live);
        p->line = line;
        p->ndjson = type && (startswith(type, "application/x-ndjson") || startswith(type, "application/jsonl") ||
                             startswith(type, "application/json"));
        http_request_set_ops(r->http, &ops, p);

        if (p->run->log_bytes >= p->live->limits.log_bytes) {
                over_limit(r->http, p);
                return;
        }
        http_request_accept_body(r->http, UINT64_MAX);
}
