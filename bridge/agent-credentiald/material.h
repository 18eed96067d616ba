/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * What the bridge attaches to one request: header lines, and the strings that must not come back in an
 * answer. One row per kind of auth; a kind that needs more than a header from a credential (signing, say) gets its row
 * and its builder here.
 */

#include "material/material-wire.h"
#include "seal.h"
#include "service/service.h"

typedef struct Material {
        struct {
                const char *name; /* static or of the service */
                Secret *value;
        } headers[MATERIAL_HEADERS_MAX];
        size_t n_headers;
        Secret *redact[MATERIAL_REDACT_MAX];
        size_t n_redact;
} Material;

void material_done(Material *m);

typedef enum MaterialSource {
        MATERIAL_NOTHING,    /* no credential is looked at */
        MATERIAL_CREDENTIAL, /* made from the credential itself */
        MATERIAL_TOKEN,      /* made from an access token that the credential buys */
} MaterialSource;

MaterialSource material_source(ServiceAuthKind kind);

/* From the credential; -EINVAL where it does not have the shape that the kind needs. */
int material_from_credential(const Service *s, SealForm form, const Secret *credential, Material *ret);
/* From an access token. */
int material_from_token(const Secret *token, Material *ret);

/* A member of a JSON credential, or the whole of a text one where that stands for it. Fit for the middle of a header
 * line. -EINVAL: not there, or other members are there that nobody would look at. */
int credential_member(SealForm form, const Secret *credential, const char *name, bool text_is_it, Secret **ret);
