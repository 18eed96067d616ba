/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* See problem.h. */

#include "basic/json-util.h"
#include "basic/string-util.h"
#include "http/http-internal.h"
#include "http/http-status.h"

void http_request_set_problem_style(HttpRequest *req, ProblemStyle style) {
        req->problem_style = style;
}

const char *http_request_problem_code(const HttpRequest *req) {
        return req->problem_code;
}

/* What the two providers call such an error; clients choose by it whether they try again. */
static const char *provider_type(ProblemStyle style, unsigned status) {
        bool openai = style == PROBLEM_STYLE_OPENAI;

        switch (status) {
        case 401: return openai ? "invalid_request_error" : "authentication_error";
        case 402: return openai ? "insufficient_quota" : "billing_error";
        case 403: return openai ? "invalid_request_error" : "permission_error";
        case 404: return openai ? "invalid_request_error" : "not_found_error";
        case 413: return openai ? "invalid_request_error" : "request_too_large";
        case 429: return openai ? "rate_limit_exceeded" : "rate_limit_error";
        default: break;
        }
        if (status >= 500)
                return openai ? "server_error" : "api_error";
        return "invalid_request_error";
}

int problem_format(ProblemStyle style, unsigned status, const char *code, const char *detail, const char *id,
                   char **ret) {
        _cleanup_json_ sd_json_variant *v = NULL;
        _cleanup_free_ char *type = strprintf("urn:agentd:problem:%s", code);
        int r;

        if (!type)
                return -ENOMEM;

        /* Whoever reads this in a provider's own shape would take it for the provider's word. */
        _cleanup_free_ char *message = strprintf("agent-bridge: %s", detail ?: http_status_reason(status));
        if (!message)
                return -ENOMEM;

        switch (style) {
        case PROBLEM_STYLE_OPENAI:
                r = sd_json_buildo(&v, SD_JSON_BUILD_PAIR_OBJECT(
                                               "error", SD_JSON_BUILD_PAIR_STRING("message", message),
                                               SD_JSON_BUILD_PAIR_STRING("type", provider_type(style, status)),
                                               SD_JSON_BUILD_PAIR("param", SD_JSON_BUILD_NULL),
                                               SD_JSON_BUILD_PAIR_STRING("code", code)));
                break;
        case PROBLEM_STYLE_ANTHROPIC:
                r = sd_json_buildo(&v, SD_JSON_BUILD_PAIR_STRING("type", "error"),
                                   SD_JSON_BUILD_PAIR_OBJECT(
                                           "error",
                                           SD_JSON_BUILD_PAIR_STRING("type", provider_type(style, status)),
                                           SD_JSON_BUILD_PAIR_STRING("message", message)),
                                   SD_JSON_BUILD_PAIR_STRING("request_id", id));
                break;
        case PROBLEM_STYLE_PROBLEM:
        default:
                r = sd_json_buildo(&v,
                                   SD_JSON_BUILD_PAIR("type", SD_JSON_BUILD_STRING(type)),
                                   SD_JSON_BUILD_PAIR("title", SD_JSON_BUILD_STRING(http_status_reason(status))),
                                   SD_JSON_BUILD_PAIR("status", SD_JSON_BUILD_UNSIGNED(status)),
                                   SD_JSON_BUILD_PAIR_CONDITION(!!detail, "detail",
                                                                SD_JSON_BUILD_STRING(strempty(detail))),
                                   SD_JSON_BUILD_PAIR_CONDITION(!!id, "request_id",
                                                                SD_JSON_BUILD_STRING(strempty(id))));
        }
        if (r < 0)
                return r;
        return sd_json_variant_format(v, 0, ret);
}

void http_problem(HttpRequest *req, unsigned status, const char *code, const char *detail, const HttpField *fields,
                  size_t n_fields) {
        _cleanup_free_ char *text = NULL;
        HttpField all[8] = { { "Content-Type", "application/problem+json" }, { "Cache-Control", "no-store" } };

        assert(n_fields <= ELEMENTSOF(all) - 2);

        req->problem_code = code;
        if (http_response_started(req)) {
                http_request_abort(req);
                return;
        }

        if (req->problem_style != PROBLEM_STYLE_PROBLEM)
                all[0].value = "application/json";
        for (size_t i = 0; i < n_fields; i++)
                all[2 + i] = fields[i];

        int r = problem_format(req->problem_style, status, code, detail, req->id, &text);
        if (r >= 0)
                r = http_response_send(req, status, all, 2 + n_fields, text, strlen(text));
        if (r < 0)
                http_request_abort(req);
}
