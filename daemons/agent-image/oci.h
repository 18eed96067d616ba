/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * Archives of images: an OCI image layout in a tar (of ordinary layers, or of an exported environment), or what
 * "docker save" writes. Their files may come in any order, so they are first laid out in a spool directory, each
 * under a flat name and, where its name is a digest, checked against it. All of it was made by a stranger; what is
 * wrong is told (report.h).
 */

#include <archive.h>
#include <archive_entry.h>

#include "basic/digest.h"
#include "basic/json-util.h"
#include "unpack.h"

#define OCI_TYPE_MANIFEST "application/vnd.oci.image.manifest.v1+json"
#define OCI_TYPE_INDEX "application/vnd.oci.image.index.v1+json"
#define OCI_TYPE_CONFIG "application/vnd.oci.image.config.v1+json"
#define OCI_TYPE_EROFS "application/vnd.erofs.layer.v1"
#define OCI_TYPE_ENVIRONMENT "application/vnd.agentd.environment.v1"
/* The member of an image's configuration that makes it an exported environment. */
#define OCI_KEY_ENVIRONMENT "org.agentd1.environment"

/* Whether an archive whose first entry is PATH (normalized) is one of these. */
bool oci_is_archive(const char *path);
/* Lays the rest of the archive out, from entry E on, into the directory SPOOL. */
int oci_spool(struct archive *a, struct archive_entry *e, int spool, const UnpackLimits *limits);

typedef struct OciImage {
        char *config;     /* name in the spool */
        bool environment; /* an exported one: its layers are ours */
        char **layers;    /* names in the spool, bottom first */
        char **diff_ids;  /* digests of those without compression; NULL where the configuration tells none */
} OciImage;

void oci_image_done(OciImage *i);
/* The image for this machine; whatever else is in the archive, or is not in it that should be, is refused in words. */
int oci_find_image(int spool, OciImage *ret);
int oci_open(int spool, const char *name);
/* This machine's kind as images name it ("amd64"). */
const char *oci_architecture(void);
/* The spool's name of a blob. */
static inline const char *oci_blob_name(const char *digest) {
        return digest + strlen("sha256:");
}
