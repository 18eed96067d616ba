/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* To which hosts a session in an edit may go: what the administrator gives to each, and what its user asked for. */

#include "basic/macro.h"

/*
 * DEFAULTS and then ASKED, each "HOST", "HOST:PORT" or "*.DOMAIN" with or without a port; no port: 80 and 443. An empty
 * one drops all that came before it. *ret are patterns as in service/proxy-allow.h, each once, NULL where there is
 * none. -EINVAL: *ret_bad (may be NULL) is what is no such name; -E2BIG: too many.
 */
int edit_hosts_resolve(char *const *defaults, char *const *asked, char ***ret, const char **ret_bad);

/* The first of HOSTS that is not among, or below, what ALLOWED (both as resolved) allows; NULL: there is none. */
const char *edit_hosts_beyond(char *const *hosts, char *const *allowed);
