/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * Who speaks? A request is of a run where a token in one of the slots that clients use verifies, names the very run
 * whose listener the request came through, and is the one of the attempt that is alive now. This is looked up anew
 * for each request, so that a connection that outlives its run has nothing to say.
 */

#include "bridge.h"

/* Header names, lower case, that carry keys and tokens in some client's requests; a NULL ends. They never travel
 * further. */
extern const char *const auth_slots[];

/* The tokens in a head: "Bearer X", "token X", "Basic base64(user:X)" in Authorization, the value as it is in the
 * other slots. Each is allocated. Values longer than a token can be are left out. PROXY: only Proxy-Authorization. */
int auth_extract_tokens(const HttpHead *head, bool proxy, char ***ret);

/* On success a reference to the live run, and the token that was good (allocated; wipe it). -EACCES: nobody that
 * may speak; anything else is our own fault. *ret_reason (static) is for the log, never for the client. */
int auth_verify(BridgeRun *run, const HttpHead *head, bool proxy, LiveRun **ret_live, char **ret_token,
                const char **ret_reason);
