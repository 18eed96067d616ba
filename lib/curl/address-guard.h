/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * Which addresses the host may dial for somebody in a sandbox. The verdict is about the binary socket
 * address that is about to be connected, after unmapping (IPv4-mapped, -compatible, NAT64, 6to4), never
 * about a text: a name that resolves to 127.0.0.1 and an odd spelling of an address are the same thing here.
 *
 * Without an allow list only public unicast addresses pass. The list, given by the administrator, opens further
 * ranges; link-local ones (where the metadata services of clouds live), multicast and the unspecified address stay
 * closed whatever the list says.
 */

#include <sys/socket.h>

#include "basic/macro.h"

typedef struct AddressGuard AddressGuard;

typedef enum AddressVerdict {
        ADDRESS_PUBLIC,  /* anybody may be dialled there */
        ADDRESS_PRIVATE, /* only by the allow list: loopback, RFC 1918, shared, documentation, reserved */
        ADDRESS_NEVER,   /* link-local, metadata, multicast, unspecified, not an IP address */
} AddressVerdict;

/* ALLOW: a strv of "address/prefix" or plain addresses; NULL for none. -EINVAL where one is malformed. */
int address_guard_new(char *const *allow, AddressGuard **ret);
AddressGuard *address_guard_free(AddressGuard *g);
DEFINE_CLEANUP(AddressGuard *, address_guard_free);

AddressVerdict address_classify(const struct sockaddr *sa, socklen_t len);
/* True where the address may be dialled. GUARD may be NULL: public addresses only. */
bool address_guard_permits(const AddressGuard *g, const struct sockaddr *sa, socklen_t len);
