/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * The sealed credentials on disk, /var/lib/agent-credential/<user>/<service>: one file each, replaced in
 * one step and durable before anybody is told. Nothing is cached: what is removed is gone with the next request.
 */

#include "seal.h"

#define CREDENTIAL_DIRECTORY "/var/lib/agent-credential"
#define CREDENTIALS_PER_USER_MAX 1024U

typedef struct CredentialStore CredentialStore;

/* Takes the key over. */
int credential_store_open(const char *dir, Secret *key, CredentialStore **ret);
CredentialStore *credential_store_free(CredentialStore *s);
DEFINE_CLEANUP(CredentialStore *, credential_store_free);

/* User names that can be a file name: [A-Za-z0-9_][A-Za-z0-9_.-]*, at most 64. */
bool user_name_is_safe(const char *s);

/*
 * What was typed or piped in: one trailing newline is taken off; an object of strings is JSON, anything else must
 * be one line fit for a header. -EINVAL and a sentence in *ret_reason (static, never holds the secret).
 */
int credential_check(Secret *secret, SealForm *ret_form, const char **ret_reason);

/* The new version, in microseconds since 1970, is larger than the one before. */
int credential_store_set(CredentialStore *s, const char *user, const char *service, SealForm form,
                         const Secret *secret);
/* -ENOENT: there is none. */
int credential_store_remove(CredentialStore *s, const char *user, const char *service);
int credential_store_load(CredentialStore *s, const char *user, const char *service, SealInfo *ret_info, Secret **ret);
/* The same for who needs it again and again: it stays open, in locked memory, until the file is another one or nobody
 * has asked for a while. *RET is the store's, good until the next call of anything here. */
int credential_store_open_one(CredentialStore *s, const char *user, const char *service, SealInfo *ret_info,
                              const Secret **ret);
/* Closes those that were not asked for since the last time. True: some are left. */
bool credential_store_forget_unused(CredentialStore *s);
/* Version and form only, without opening it. */
int credential_store_peek(CredentialStore *s, const char *user, const char *service, SealInfo *ret);

typedef struct CredentialEntry {
        char *service;
        SealInfo info;
} CredentialEntry;

/* Sorted by name. A user without any has an empty list. */
int credential_store_list(CredentialStore *s, const char *user, CredentialEntry **ret, size_t *ret_n);
void credential_entries_free(CredentialEntry *l, size_t n);

const char *seal_form_to_string(SealForm f);
