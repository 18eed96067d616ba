/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Errors as application/problem+json (RFC 9457): {"type","title","status","detail"}, one form for all of our
 * answers. */

#include "http/http-request.h"

/* Some clients only show what their own provider's errors look like. */
typedef enum ProblemStyle {
        PROBLEM_STYLE_PROBLEM,   /* application/problem+json */
        PROBLEM_STYLE_OPENAI,    /* {"error":{"message","type","param","code"}} */
        PROBLEM_STYLE_ANTHROPIC, /* {"type":"error","error":{"type","message"}} */
} ProblemStyle;

/* How problems of this request are to look. */
void http_request_set_problem_style(HttpRequest *req, ProblemStyle style);
/* The code of the problem that was answered, or NULL. */
const char *http_request_problem_code(const HttpRequest *req);

/* CODE is a short constant such as "token-refused" and becomes the type "urn:agentd:problem:CODE". DETAIL may be
 * NULL. FIELDS are added to the answer. Where an answer has begun already, the connection is cut instead. */
void http_problem(HttpRequest *req, unsigned status, const char *code, const char *detail, const HttpField *fields,
                  size_t n_fields);
/* The document alone, allocated. ID: of the request. */
int problem_format(ProblemStyle style, unsigned status, const char *code, const char *detail, const char *id,
                   char **ret);
