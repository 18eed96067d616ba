/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * A generation: the state of an agent's environment at one moment, as a canonical JSON document that names layers by
 * digest:
 *
 *   {"arch":"x86_64","base":"sha256:…","env":["sha256:…"],"parent":"sha256:…"|null,"runner":"sha256:…"|null,"v":1}
 *
 * Sorted keys, no white space, no times: same content, same bytes, same digest. It is kept in
 * <root>/generations/sha256-<hex>.json and never changed; time, author and note are kept beside it (in agentd's store).
 */

#include "basic/digest.h"
#include "basic/macro.h"
#include "image/layer-store.h"

typedef struct Generation {
        char *arch;   /* uname's machine: "x86_64" */
        char *base;   /* digest of the image's layer */
        char **env;   /* digests of the environment's own layers, bottom first; NULL is empty */
        char *runner; /* digest of the runner it last ran with, or NULL */
        char *parent; /* digest of the generation it was made from, or NULL */
} Generation;

/* Copies what it is given. ARCH NULL: this machine's. */
int generation_new(const char *arch, const char *base, char *const *env, const char *runner, const char *parent,
                   Generation **ret);
Generation *generation_free(Generation *g);
DEFINE_CLEANUP(Generation *, generation_free);

/* A child of PARENT (whose digest is PARENT_DIGEST) with one more layer (LAYER; may be NULL; one
 * that is in the stack already moves to its top, which gives the same view) and RUNNER (NULL: the
 * parent's). */
int generation_derive(const Generation *parent, const char *parent_digest, const char *layer, const char *runner,
                      Generation **ret);

/* Either ret may be NULL. */
int generation_encode(const Generation *g, char **ret_text, char ret_digest[DIGEST_LEN + 1]);
/* Strict: unknown members, other orders or blanks are refused, so that digest and content cannot differ. ret_error
 * is a sentence. */
int generation_decode(const char *text, size_t size, Generation **ret, char **ret_error);

/* What a run sees: digest over the list [base, env…] alone, whatever runner or history. */
int generation_environment_digest(const Generation *g, char ret[static DIGEST_LEN + 1]);
/* All layers, bottom first: base, env… */
int generation_layers(const Generation *g, char ***ret);

/* Stores it durably (the same one twice is fine), gives its digest. */
int generation_save(LayerStore *s, const Generation *g, char ret_digest[static DIGEST_LEN + 1]);
/* -ENOENT; -EBADMSG where the bytes do not have the digest or are no generation. */
int generation_load(LayerStore *s, const char *digest, Generation **ret);
int generation_remove(LayerStore *s, const char *digest);
/* Digests of all that are stored, sorted. */
int generation_list(LayerStore *s, char ***ret);
