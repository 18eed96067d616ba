/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * Archives of images: an OCI image layout in a tar (of ordinary layers, or of an exported environment), or what "docker save"
 * writes. Their files may come in any order, so they are first laid out in a spool directory, each under a flat name and, where
 * its name is a digest, checked against it. All of it was made by a stranger; what is wrong is told (report.h).
 */

#include <archive.h>
#include <archive_entry.h>

#include "basic/digest.h"
#include "basic/json-util.h"
#include "unpack.h"

#define OCI_TYPE_MANIFEST "application/vnd.oci.image.manifest.v1+json"
#define OCI_TYPE_INDEX "application/vnd.oci.image.index.v1+json"
#define OCI_TYPE_EROFS "application/vnd.erofs.layer.v1"
#define OCI_TYPE_ENVIRONMENT "application/vnd.agentd.environment.v1"
#define OCI_TYPE_ENVIRONMENT_CONFIG "application/vnd.agentd.environment.config.v1+json"

/* Whether an archive whose first entry is PATH (normalized) is one of these. */
bool oci_is_archive(const char *path);
/* Lays the rest of the archive out, from entry E on, into the directory SPOOL. */
int oci_spool(struct archive *a, struct archive_entry *e, int spool, const UnpackLimits *limits);

typedef struct OciImage {
        char *config;     /* digest, or NULL for docker's form */
        char *config_type;
        char **layers;    /* names in the spool, bottom first */
        char **types;     /* of those */
} OciImage;

void oci_image_done(OciImage *i);
/* The image for this machine. */
int oci_find_image(int spool, OciImage *ret);
int oci_open(int spool, const char *name);
/* The spool's name of a blob. */
static inline const char *oci_blob_name(const char *digest) {
        return digest + strlen("sha256:");
}
