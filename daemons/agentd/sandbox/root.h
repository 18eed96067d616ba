/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * A run's root: an overlay of read-only layers with a throw-away upper on a size-limited tmpfs. Layers and upper are
 * id-mapped, so that what belongs to user 1000 in the image belongs to the run's dynamic user here, and is stored as
 * 1000 again in the upper. overlayfs options are chosen so that an upper can be frozen into a layer (no metacopy, no
 * redirects, no file handles of this host).
 */

#include "sandbox/step.h"

/* How many ids an edit session has. */
#define ROOT_EDIT_IDS ((uid_t) 65536)

typedef struct RootSpec {
        const char *root;           /* empty directory: gets the composed root */
        const char *rw;             /* empty directory: gets the tmpfs with upper/ and work/ */
        char *const *layers;        /* mount points of the layers, bottom first */
        uid_t uid;
        uint64_t size_max;
        uint64_t inodes_max;
} RootSpec;

/* What the layers (mount points, bottom first) together are, read-only, with the image's own ids, at ROOT. */
int root_compose_view(char *const *layers, const char *root, char message[STEP_MESSAGE_MAX]);

/*
 * The root of an edit session: the layers with their ids moved up by BASE, and DIR/upper on top, a directory of a real
 * file system that holds such moved ids itself (so that root of a user namespace at BASE owns both). DIR/upper and
 * DIR/work are made where they are missing.
 */
int root_compose_edit(char *const *layers, const char *dir, uid_t base, const char *root,
                      char message[STEP_MESSAGE_MAX]);
/* DIR/upper of such a session with its ids moved down again, writable, at ROOT: what a freeze packs. */
int root_map_edit(const char *dir, uid_t base, const char *root, char message[STEP_MESSAGE_MAX]);

/* On failure nothing is mounted. */
int root_compose(const RootSpec *spec, char message[STEP_MESSAGE_MAX]);
