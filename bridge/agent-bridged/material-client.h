/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * Asks the strong room, for one request, what is to be attached. One connection for each question: a question that is
 * given up is just closed. Nothing of the answer is kept here.
 */

#include "bridge.h"

typedef struct MaterialCall MaterialCall;

typedef struct Material {
        HttpFieldList headers;
        char **redact; /* must not come back in an answer */
        uint64_t generation;
} Material;

void material_done(Material *m);

/* Why there is none; each has one status and code that the client sees. */
typedef enum MaterialError {
        MATERIAL_OK,
        MATERIAL_TOKEN_REFUSED,
        MATERIAL_NOT_IN_SCOPE,
        MATERIAL_NO_CREDENTIAL,
        MATERIAL_UNUSABLE,
        MATERIAL_NO_ACCESS_TOKEN,
        MATERIAL_UNAVAILABLE, /* the strong room cannot be reached, or is busy */
} MaterialError;

/* MATERIAL is the callback's to take from; what it leaves is freed. May free the call. */
typedef void (*material_callback_t)(MaterialError error, Material *material, void *userdata);

int material_get(Bridge *b, const LiveRun *live, const Service *service, const char *token,
                 material_callback_t callback,
                 void *userdata, MaterialCall **ret);
/* The upstream did not take what was got last; the callback is told when the next material_get() will bring
 * something else. */
int material_invalidate(Bridge *b, const LiveRun *live, const Service *service, const char *token, uint64_t generation,
                        material_callback_t callback, void *userdata, MaterialCall **ret);
MaterialCall *material_call_free(MaterialCall *c);

/* Closes the connections that wait for a call. */
void material_idle_drop(Bridge *b);
