/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * Where agentd's signing key rests: encrypted by systemd-creds (by the TPM where there is one, else by the host's key),
 * in /etc/credstore.encrypted. Made on the first start. The public half is put into /run/agentd/keys for those who
 * verify.
 */

#include "token/signing-key.h"

/* Blocks: for start-up only. */
int key_store_load(SigningKey **ret);

/* Makes another key in place of OLD, whose public half stays as long as a token of it may live. Blocks as well: a
 * person asks for this, and rarely. -EBUSY: too often. */
int key_store_rotate(const SigningKey *old, SigningKey **ret);
