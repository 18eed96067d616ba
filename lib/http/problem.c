/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* See problem.h. */

#include "basic/json-util.h"
#include "basic/string-util.h"
#include "http/http-status.h"
#include "http/problem.h"

int problem_format(unsigned status, const char *code, const char *detail, char **ret) {
        _cleanup_free_ char *type = strprintf("urn:agentd:problem:%s", code);
        if (!type)
                return -ENOMEM;

        _cleanup_json_ sd_json_variant *v = NULL;
        int r = sd_json_buildo(&v,
                               SD_JSON_BUILD_PAIR("type", SD_JSON_BUILD_STRING(type)),
                               SD_JSON_BUILD_PAIR("title", SD_JSON_BUILD_STRING(http_status_reason(status))),
                               SD_JSON_BUILD_PAIR("status", SD_JSON_BUILD_UNSIGNED(status)),
                               SD_JSON_BUILD_PAIR_CONDITION(!!detail, "detail",
                                                            SD_JSON_BUILD_STRING(strempty(detail))));
        if (r < 0)
                return r;
        return sd_json_variant_format(v, 0, ret);
}

void http_problem(HttpRequest *req, unsigned status, const char *code, const char *detail, const HttpField *fields,
                  size_t n_fields) {
        _cleanup_free_ char *text = NULL;
        HttpField all[8] = { { "Content-Type", "application/problem+json" }, { "Cache-Control", "no-store" } };

        assert(n_fields <= ELEMENTSOF(all) - 2);

        if (http_response_started(req)) {
                http_request_abort(req);
                return;
        }

        for (size_t i = 0; i < n_fields; i++)
                all[2 + i] = fields[i];

        int r = problem_format(status, code, detail, &text);
        if (r >= 0)
                r = http_response_send(req, status, all, 2 + n_fields, text, strlen(text));
        if (r < 0)
                http_request_abort(req);
}
