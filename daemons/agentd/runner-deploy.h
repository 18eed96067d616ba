/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * How a runner gets into the store: an operation packs it (see operation.h), and the commit makes it current, or the
 * canary, in one transaction. Live runs are not touched; the next run that is claimed sees it.
 */

#include "operation.h"

/* After the layer was published. *ret_error may stay NULL. */
int runner_deploy_commit(Operation *o, char **ret_error);
/* After any change of the runners in the store. */
void runner_changed(Manager *m);

/*
 * The runner that is shipped (RunnerDirectory=) is deployed when its content is a new one. It becomes current only in
 * the place of another shipped one: what the administrator has deployed stays. A failure is logged and leaves the last
 * good one in place. Calls manager_runners_ready() when runs can begin: at once where there is a current runner.
 */
int runner_deploy_shipped(Manager *m);
void runner_shipped_done(Operation *o);
