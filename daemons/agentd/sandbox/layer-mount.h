/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * Layers are mounted once per host, at <runtime>/layers/<hex>, read-only, and shared by all runs, so that their pages
 * are cached once. The worker is the only one that mounts and unmounts there (it holds a lock), so looking and
 * then mounting cannot race.
 */

#include "image/layer-store.h"
#include "sandbox/step.h"

/* Mounts DIGEST where it is not yet; gives the mount point's path. */
int layer_mount_ensure(const char *runtime_dir, LayerStore *store, const char *digest, char **ret_path,
                       char message[STEP_MESSAGE_MAX]);

/* Unmounts all layers but those in IN_USE (digests; may be NULL) and removes their mount points. */
int layer_mount_release(const char *runtime_dir, char *const *in_use, char message[STEP_MESSAGE_MAX]);
