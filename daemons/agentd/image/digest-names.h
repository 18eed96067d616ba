/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

#include "basic/macro.h"

/* The digests "sha256:<hex>" of all files "sha256-<hex><SUFFIX>" of a directory, sorted. */
int digest_names_list(int dirfd, const char *suffix, char ***ret);
