/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * How many bytes one user may keep in layers: agentd.conf's MaxLayersPerUser=. What counts are the layers that the
 * user's images and generations name, each once; one that belongs to several users counts for each, as "env du" has it,
 * for it stays until the last of them lets it go. root's own are not bounded.
 */

#include "manager.h"

/*
 * Before something is begun (MORE is NULL): whether there is any room left; and once its layers are known (they are in
 * the store already), whether they fit. -ENOBUFS comes with a sentence in *ret_error.
 */
int layer_quota_check(Manager *m, const char *user, uid_t uid, char *const *more, char **ret_error);
