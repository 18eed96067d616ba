/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * Where agentd's signing key rests: encrypted by systemd-creds (by the TPM where there is one, else by the host's key),
 * in /etc/credstore.encrypted. Made on the first start. The public half is put into /run/agentd/keys for those who verify.
 */

#include "token/signing-key.h"

/* Blocks: for start-up only. */
int key_store_load(SigningKey **ret);
