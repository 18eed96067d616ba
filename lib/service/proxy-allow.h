/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * To which hosts a run may open connections of its own through the forward proxy: "host:port", or "*.domain:port" for
 * all names below a domain (not for the domain itself). Names only, lower case, no addresses: what a name leads to is
 * looked at when it is dialled. An empty list allows nothing.
 */

#include "basic/macro.h"

#define PROXY_ALLOW_MAX 256U

bool proxy_pattern_is_valid(const char *s);
/* "host:port" (DEFAULT_PORT 0: the port is mandatory) into its parts; HOST is allocated, lower case. -EINVAL where it
 * is no name. */
int proxy_authority_parse(const char *s, uint16_t default_port, char **ret_host, uint16_t *ret_port);
bool proxy_allows(char *const *patterns, const char *host, uint16_t port);
