/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Errors as application/problem+json (RFC 9457): {"type","title","status","detail"}, one form for all of our
 * answers. */

#include "http/http-request.h"

/* CODE is a short constant such as "token-refused" and becomes the type "urn:agentd:problem:CODE". DETAIL may be
 * NULL. FIELDS are added to the answer. Where an answer has begun already, the connection is cut instead. */
void http_problem(HttpRequest *req, unsigned status, const char *code, const char *detail, const HttpField *fields,
                  size_t n_fields);
/* The document alone, allocated. */
int problem_format(unsigned status, const char *code, const char *detail, char **ret);
