/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * How a credential lies on disk: AES-256-GCM with a fresh nonce, bound to its user, its service and its
 * version, so that a file that is moved, renamed or mixed with another does not open. Pure functions.
 *
 *     8  magic "AGCRED\0\1"
 *     8  version, little endian: microseconds since 1970 of its change
 *     1  form of the secret (SealForm)
 *    12  nonce
 *     n  ciphertext
 *    16  tag
 */

#include "secret.h"

#define SEAL_KEY_SIZE 32U
#define SEAL_HEADER_SIZE 29U
#define SEAL_TAG_SIZE 16U
#define SEALED_SIZE_MAX (SEAL_HEADER_SIZE + SECRET_SIZE_MAX + SEAL_TAG_SIZE)

typedef enum SealForm {
        SEAL_FORM_TEXT, /* one line, fit for a header value */
        SEAL_FORM_JSON, /* an object of strings */
        _SEAL_FORM_MAX,
        _SEAL_FORM_INVALID = -EINVAL,
} SealForm;

typedef struct SealInfo {
        uint64_t version;
        SealForm form;
} SealInfo;

/* *ret is allocated. */
int seal_encrypt(const Secret *key, const char *user, const char *service, const SealInfo *info, const Secret *secret,
                 void **ret, size_t *ret_size);
/* -EBADMSG: not a sealed credential, damaged, of another user or service, or sealed under another key. */
int seal_decrypt(const Secret *key, const char *user, const char *service, const void *data, size_t size,
                 SealInfo *ret_info, Secret **ret);
/* The clear part only; nothing is verified. Needs SEAL_HEADER_SIZE bytes. */
int seal_peek(const void *data, size_t size, SealInfo *ret);
