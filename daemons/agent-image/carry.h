/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Environments in a file of their own: an OCI image layout in one tar, whose layers are the layers themselves. */

#include "basic/digest.h"
#include "unpack.h"

/*
 * Writes the archive to OUT: the document CONFIG and LAYERS (paths of files "sha256-<hex>.erofs"), each checked while
 * it is read. The same environment gives the same bytes. NAME becomes the archive's reference.
 */
int carry_export(int out, const char *config, char *const *layers, const char *name);

/*
 * Lays such an archive out in SPOOL (digests checked, layers looked at by fsck.erofs) and gives the digest of the
 * configuration; each blob is a file named by its hex digits.
 */
int carry_import(int in, int spool, const char *spool_path, const UnpackLimits *limits,
                 char ret_config[static DIGEST_LEN + 1]);
