/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* POST /v1/logs: lines for the journal, with whose they are in fields of their own. NDJSON ({"message", "stream"?,
 * "level"?}) or plain text, one message a line. */

#include <syslog.h>

#include "basic/json-util.h"
#include "basic/string-util.h"
#include "line-post.h"

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

static bool log_line(LinePost *p, const char *data, size_t size, bool cut) {
        _cleanup_json_ sd_json_variant *v = NULL;
        _cleanup_free_ char *stream = NULL;
        int level = LOG_INFO;

        if (p->ndjson && !cut) {
                const char *s;

                if (json_parse(data, size, &v, NULL) < 0 || !(data = json_string(v, "message")))
                        return false;
                size = strlen(data);

                s = json_string(v, "stream");
                if (s && token_name_is_valid(s))
                        stream = strprintf("AGENT_STREAM=%s", s);
                level = level_from_string(json_string(v, "level"));
                if (level < 0)
                        level = streq_ptr(s, "stderr") ? LOG_NOTICE : LOG_INFO;
        }

        line_post_journal(p->live, level, "agent", (char *[]) { stream, NULL }, data, size);
        return true;
}

void route_post_logs(const RouteRequest *r) {
        line_post(r, log_line);
}
