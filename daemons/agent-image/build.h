/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

#include "basic/macro.h"

/*
 * Installs a Debian 13 with what agents usually need (node, python3, git, curl, certificates) and PACKAGES into the
 * empty directory TREE with mmdebstrap. MIRROR NULL: the one that the host's own apt uses. Tells an error itself.
 */
int build_debian(const char *tree, const char *mirror, char *const *packages);
