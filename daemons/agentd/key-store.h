/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * Where agentd's signing key rests: encrypted by systemd-creds (by the TPM where there is one, else by the host's key),
 * in /etc/credstore.encrypted. Made on the first start, and anew where it cannot be opened. The public half is put into /run/agentd/keys for those who
 * verify.
 */

#include "token/signing-key.h"

typedef enum KeyState {
        KEY_SEALED,
        KEY_REPLACED, /* there was one that could not be opened; it was put aside, and there is another one */
        KEY_VOLATILE, /* none can be kept there: this one is in memory only */
        _KEY_STATE_MAX,
        _KEY_STATE_INVALID = -EINVAL,
} KeyState;

const char *key_state_to_string(KeyState s);

/* Blocks: for start-up only. A key that cannot be opened is no reason not to start: there is another one then, and the
 * journal says so. */
int key_store_load(SigningKey **ret, KeyState *ret_state);

/* Makes another key in place of OLD, whose public half stays as long as a token of it may live. Blocks as well: a
 * person asks for this, and rarely. -EBUSY: too often. */
int key_store_rotate(const SigningKey *old, SigningKey **ret);
