/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * Which node is it? A verdict about a runner is shared by all agents that have the same node, so "the same" must mean
 * more than the same bytes of one file: Debian's /usr/bin/node is a stub, and the engine is in a library that the
 * agent's owner could replace. The identity is the digest over the program, its loader, every library that the loader
 * could map for it, and the loader's own configuration. Where that cannot be told (a script, a run path, a library
 * that is not found), it is the digest of the program and of the whole environment: then nothing is shared.
 */

#include "basic/digest.h"
#include "sandbox/step.h"

/* ROOT is a composed root; OWN the path of a runner's own interpreter on the host, NULL for the root's /usr/bin/node.
 * -ENOENT: there is none; -ENOEXEC: it is no program. */
int node_identity(const char *root, const char *own, const char *environment, char ret[static DIGEST_LEN + 1],
                  char message[STEP_MESSAGE_MAX]);
