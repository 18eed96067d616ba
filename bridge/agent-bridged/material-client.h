/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * Asks the strong room, for one request, what is to be attached: one question each, over one connection for all (see
 * lib/material/material-wire.h). A question that is given up is forgotten, its answer thrown away. Nothing of an answer
 * is kept here.
 */

#include "bridge.h"
#include "material/material-wire.h"

typedef struct MaterialCall MaterialCall;

typedef struct Material {
        HttpFieldList headers;
        char **redact; /* must not come back in an answer */
        uint64_t generation;
} Material;

void material_done(Material *m);

int material_client_new(Bridge *b, MaterialClient **ret);
/* There are no calls any more. */
MaterialClient *material_client_free(MaterialClient *c);

/* MATERIAL is the callback's to take from; what it leaves is freed. Must free the call. */
typedef void (*material_callback_t)(MaterialStatus status, Material *material, void *userdata);

int material_get(Bridge *b, const LiveRun *live, const Service *service, const char *token,
                 material_callback_t callback, void *userdata, MaterialCall **ret);
/* The upstream did not take what was got last; the callback is told when the next material_get() will bring
 * something else. */
int material_invalidate(Bridge *b, const LiveRun *live, const Service *service, const char *token, uint64_t generation,
                        material_callback_t callback, void *userdata, MaterialCall **ret);
MaterialCall *material_call_free(MaterialCall *c);
