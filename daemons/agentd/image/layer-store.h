/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * The store of layers: EROFS images named by the SHA-256 of their bytes, in <root>/layers/sha256-<hex>.erofs, 0444,
 * never changed. It promises that a name, once there, has exactly the bytes of its digest, also after a power cut:
 * bytes are hashed and synced under a temporary name in <root>/tmp/ first, then renamed without replacing. The same
 * bytes are stored once. Where the file system offers it, a layer is sealed as well (layer-seal.h) before it gets its
 * name. No function here logs; none but publish and verify takes long (they hash the whole file).
 */

#include "basic/digest.h"
#include "basic/macro.h"

typedef struct LayerStore LayerStore;

/* ROOT is normally /var/lib/agentd; makes layers/, generations/, seals/ and tmp/ below it (0700) where they are
 * missing. */
int layer_store_open(const char *root, LayerStore **ret);
LayerStore *layer_store_free(LayerStore *s);
DEFINE_CLEANUP(LayerStore *, layer_store_free);

/* A new empty directory <root>/tmp/<random> (0700) for whoever builds a layer; absolute path. */
int layer_store_new_staging(LayerStore *s, char **ret);
/* Removes such a directory and all in it; NULL and missing are fine. */
int layer_store_drop_staging(LayerStore *s, const char *path);
/* Removes all staging directories but those in KEEP (NULL: none kept), and half-written files of generations. For
 * agentd's start, after a crash. */
int layer_store_clean_staging(LayerStore *s, char *const *keep);

/*
 * Says, within the staging directory STAGING, that DIGEST is about to be published from it. Until that directory is
 * removed, also after a power cut, layer_store_noted() tells of it: what was published, but never came to be needed
 * by anybody, can be found and removed.
 */
int layer_store_note(LayerStore *s, const char *staging, const char *digest);
/* All digests that were noted in staging directories that are still there. */
int layer_store_noted(LayerStore *s, char ***ret);

/*
 * Moves PATH (a regular file below <root>/tmp/) into the store. EXPECTED may be NULL, else a digest that must match
 * (-EBADMSG). Returns 1 where it was new, 0 where the store had it already (PATH is removed then too). On failure
 * PATH stays.
 */
int layer_store_publish(LayerStore *s, const char *path, const char *expected, char ret_digest[static DIGEST_LEN + 1]);

/* Which file was hashed, and that nothing about it was changed since (the kernel moves a file's ctime with each
 * change). */
typedef struct LayerIdentity {
        uint64_t inode, size, changed_nsec;
} LayerIdentity;

/*
 * The two halves of it, for whoever has to know the digest before there is a layer of that name: the first one takes
 * long, the second one none. -ESTALE: it is not the file any more that was hashed.
 */
int layer_store_hash(LayerStore *s, const char *path, const char *expected, char ret_digest[static DIGEST_LEN + 1],
                     LayerIdentity *ret);
int layer_store_take(LayerStore *s, const char *path, const char *digest, const LayerIdentity *identity);

/* The file's absolute path (also where it does not exist). */
int layer_store_path(LayerStore *s, const char *digest, char **ret);
/* Opens a layer read-only; -ENOENT. Both ret_* may be NULL, to ask only whether it is there. */
int layer_store_open_layer(LayerStore *s, const char *digest, int *ret_fd, uint64_t *ret_size);

typedef enum LayerSeal {
        LAYER_UNSEALED,  /* nobody can tell without reading it */
        LAYER_SEALED,    /* it is the file that was sealed, and the kernel compares each block that is read */
        LAYER_SEAL_LOST, /* it was sealed once and is not any more (a copy was brought back): to be read in full */
} LayerSeal;

/* Takes no time. -ENOENT; -EBADMSG: it is sealed, but is not the file that was. */
int layer_store_check_seal(LayerStore *s, const char *digest);
/* 0: the bytes on the disk are right; -EBADMSG: they are not; -ENOENT. Seals it where that can be had now. */
int layer_store_verify(LayerStore *s, const char *digest);
/* Missing is no error. Whether anybody needs it is for the caller to know. */
int layer_store_remove(LayerStore *s, const char *digest);
/* Moves it from the store into the staging directory STAGING, to be removed with that at leisure. Missing is no error.
 */
int layer_store_discard(LayerStore *s, const char *digest, const char *staging);
/* All digests, sorted. */
int layer_store_list(LayerStore *s, char ***ret);

/* <root>/generations/ for generation.c. Owned by the store. */
int layer_store_generations_fd(LayerStore *s);
