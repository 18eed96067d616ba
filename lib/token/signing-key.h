/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * A P-256 key pair that signs run tokens. Only agentd ever holds one; everybody else sees the
 * public PEM. The key id is the start of the SHA-256 of the public key's DER form, so it follows
 * from the key and cannot be chosen. Private bytes are wiped when the object is freed.
 */

#include "basic/macro.h"

#define KEY_ID_LEN 16

typedef struct SigningKey SigningKey;

int signing_key_generate(SigningKey **ret);
/* From a private PEM, unencrypted; anything but a P-256 key is -EKEYREJECTED. */
int signing_key_from_pem(const char *pem, size_t size, SigningKey **ret);
SigningKey *signing_key_free(SigningKey *k);
DEFINE_CLEANUP(SigningKey *, signing_key_free);

const char *signing_key_kid(const SigningKey *k);
/* What belongs into <kid>.pem. NUL-terminated, lives as long as the key. */
const char *signing_key_public_pem(const SigningKey *k);
/* The private PEM, for systemd-creds only; lives as long as the key, wiped with it. Never log it. */
const char *signing_key_private_pem(const SigningKey *k);

/* The key id of a public PEM, which must hold a P-256 key (-EKEYREJECTED else). */
int public_key_kid(const char *pem, size_t size, char ret[static KEY_ID_LEN + 1]);
bool key_id_is_valid(const char *s, size_t len);
