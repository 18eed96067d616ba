/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * Environments as their owners see them: generations found by the names that people give them, described, moved to;
 * and the store's files as those who pay for the disk see them: who needs which layer, what nobody needs.
 *
 * One rule holds for all removal: rows first, files after. A file whose row is gone is an orphan, which costs disk and
 * is found again; a row whose file is gone would be a broken environment.
 */

#include <systemd/sd-json.h>

#include "image/generation.h"
#include "manager.h"

/*
 * REF is "head", a number as in "env log", a digest, or a unique beginning of one (at least 4 digits, with or without
 * "sha256:"). -ENOENT, -EINVAL and -ENOTUNIQ come with a sentence in *ret_error.
 */
int environment_find(Manager *m, const char *user, const char *name, const char *ref, StoreGeneration **ret,
                     char **ret_error);
/* The manifest of what environment_find() gave, decoded. */
int environment_manifest(const StoreGeneration *g, Generation **ret);
/* Everything that is known about it, as JSON. */
int environment_describe(Manager *m, const StoreGeneration *g, sd_json_variant **ret);
/* -ENOENT where a layer of it is not in the store: *ret_layer is that one. */
int environment_check_layers(Manager *m, const Generation *g, char **ret_layer);

/* Who needs which file. */
typedef struct FileUse {
        char *digest;
        uint64_t size;
        bool present;      /* the file is there */
        unsigned owners;   /* agents and images */
        const void *last_owner;
} FileUse;

typedef struct References {
        StrMap *layers;    /* FileUse, by digest: of all that must stay */
        StrMap *manifests; /* the same for generations' documents */
} References;

/* Everything that generations, images, runs, kept changes and operations under way need. */
int references_collect(Manager *m, References **ret);
References *references_free(References *r);
DEFINE_CLEANUP(References *, references_free);

typedef struct PruneResult {
        uint32_t generations, layers;
        uint64_t bytes;
} PruneResult;

/*
 * Forgets all generations of USER's agent NAME (NULL: of all of them; USER NULL: of everybody's) but the KEEP newest,
 * the head, and those that a live run, kept changes or an operation stand on. KEEP 0: none is forgotten. Then removes
 * the files that nobody needs any more, whosever they were.
 */
int environment_prune(Manager *m, const char *user, const char *name, uint64_t keep, PruneResult *ret);

/* How the notes of generations begin that a run made because of its runner (run_fold()); their author is agentd. */
#define ENVIRONMENT_FOLD_NOTE "runner"
/* Of those of one agent only the newest stay (MaxRunnerGenerations=), and what a prune would leave, too: their owner has
 * made none of them, and the platform deploys many times a day. Called when there is another one. */
int environment_forget_folds(Manager *m, const char *user, const char *name);

/* Keeps the room on the disk that a prune needs which is to make some; and gives it away. */
void environment_reserve(void);
void environment_use_reserve(void);
/* Removes those of DIGESTS that nobody needs: published for something that then came to nothing. */
int environment_drop_layers(Manager *m, char *const *digests);
/* The same for generations' documents, all of them: one is written just before the row that it goes with. */
int environment_drop_documents(Manager *m);

/* How much disk whose environments take; USER NULL: everybody's, and what nobody needs. */
int environment_usage(Manager *m, const char *user, sd_json_variant **ret);
