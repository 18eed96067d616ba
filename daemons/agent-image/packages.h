/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

#include "basic/json-util.h"
#include "basic/macro.h"

/*
 * Which packages two trees have, as far as they differ: Debian's from dpkg's status file, Python's from the names of
 * *.dist-info and *.egg-info, npm's from each node_modules/NAME/package.json. Only files that differ are looked at.
 * What is not well-formed is passed over: it is a stranger's tree, and the paths tell the rest.
 */

typedef struct Packages Packages;

/* The trees' roots are borrowed. */
int packages_new(int from, int to, Packages **ret);
Packages *packages_free(Packages *p);
DEFINE_CLEANUP(Packages *, packages_free);

/* PATH ("/a/b") differs; the fds are of the directory it is in, negative where it is not in that tree. */
int packages_notice(Packages *p, int from_dir, int to_dir, const char *path);
/* An array of {"manager","name","from","to"}, sorted; the side on which a package is not there is missing. */
int packages_compare(Packages *p, sd_json_variant **ret);
