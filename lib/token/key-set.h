/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * The public keys that run tokens may be signed with: the files <kid>.pem of one directory, read
 * as a whole. A file whose name is not the key id of its content is skipped, so a key id can only
 * be looked up, never followed anywhere. The set reads the directory again when it has changed;
 * a directory that cannot be read is an empty set (nothing verifies), not the old one.
 */

#include "basic/macro.h"
#include "token/signing-key.h"

typedef struct KeySet KeySet;

#define KEY_SET_MAX 64 /* more files than that are not looked at */

int key_set_load(const char *dir, KeySet **ret);
KeySet *key_set_free(KeySet *s);
DEFINE_CLEANUP(KeySet *, key_set_free);

/* 1 read again, 0 nothing had changed, negative: the set is empty now. Cheap: one stat(). */
int key_set_refresh(KeySet *s);
size_t key_set_size(const KeySet *s);
/* The public PEM of a key, or NULL. KID need not be NUL-terminated. */
const char *key_set_find(const KeySet *s, const char *kid, size_t len);

/*
 * Which tokens (SHA-256 of their whole text) were found to be signed by a key of this set, and what they say. An agent
 * asks with the same token again and again, and a signature that was good stays good as long as the keys are the same:
 * a change of the set forgets all. Whether the time for it has come, or gone, is looked at each time, and so is the
 * run.
 */
#define KEY_SET_DIGEST_LEN 32
#define KEY_SET_VERIFIED_MAX 1024U
typedef struct RunClaims RunClaims;
const RunClaims *key_set_get_verified(const KeySet *s, const uint8_t digest[static KEY_SET_DIGEST_LEN]);
/* Takes CLAIMS, of the heap, in any case. */
void key_set_note_verified(KeySet *s, const uint8_t digest[static KEY_SET_DIGEST_LEN], RunClaims *claims);
