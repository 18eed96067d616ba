/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * CONNECT: bytes both ways between a client of the forward proxy and a host that it may reach. Nothing is looked at but
 * the number of bytes. The address that is dialled passes the same guard as those of services. Memory is bounded by one
 * window for each direction; whoever does not read stops the other side.
 */

#include "routes.h"

/* HOST and PORT were found allowed. Answers, at once or later. */
void tunnel_begin(const RouteRequest *r, const char *host, uint16_t port);
