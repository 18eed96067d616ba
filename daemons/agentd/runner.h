/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * The platform's runner: a directory with a runner.json. Runs never see the directory it was installed to, only a
 * private copy under its digest, so that an upgrade of the package cannot change the files under a live run.
 * A later deploy (hot swap) adds more of them; a run then names one by digest.
 */

#include "basic/digest.h"
#include "basic/macro.h"

typedef struct Runner {
        char digest[DIGEST_LEN + 1];
        char *directory; /* on the host: what is bound to /opt/agentd/runner */
        char *name, *version;
        char *main;      /* relative to the runner */
        char *node;      /* its own interpreter, relative to the runner; NULL: the image's /usr/bin/node */
} Runner;

/* Checks SOURCE, copies it to STORE/sha256-<hex> where it is not there yet. *ret_error is a sentence. */
int runner_load(const char *source, const char *store, Runner **ret, char **ret_error);
Runner *runner_free(Runner *r);
DEFINE_CLEANUP(Runner *, runner_free);
