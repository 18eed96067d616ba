/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * Which headers travel through the bridge, in each direction. Denylists: vendors' own headers must pass. What is
 * never passed: framing and hop-by-hop headers (each side has its own), every slot that can carry a key, what would
 * let a client pretend to be somebody or somewhere else, cookies. Names are compared with '_' read as '-', because
 * servers behind CGI do; names that have a '_' do not pass at all.
 */

#include "http/http-parser.h"

/* NAME from the sandbox's request may be sent upstream. CONNECTION: the request's Connection header (or NULL),
 * whose tokens name more hop-by-hop headers. */
bool forward_request_header(const char *name, const char *connection);
/* NAME from the upstream's answer may be sent to the sandbox. */
bool forward_response_header(const char *name);

/* Whether a header goes through the forward proxy: all that is not hop by hop. For both directions. */
bool proxy_header(const char *name, const char *connection);
