/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include <fcntl.h>

#include "runner-deploy.h"

#include "basic/string-util.h"

void runner_changed(Manager *m) {
        int r;

        r = runner_set_load(m->store, &m->runners);
        if (r < 0)
                log_error_errno(r, "The runners cannot be read, the ones known before stay in use: %s",
                                store_error(m->store));
        manager_dispatch_soon(m);
}

int runner_deploy_commit(Operation *o, char **ret_error) {
        _cleanup_(runner_unrefp) Runner *runner = NULL;
        Manager *m = o->manager;
        int r;

        if (!o->manifest) {
                *ret_error = strdup("agent-image told nothing about the runner");
                return -EBADMSG;
        }
        r = runner_from_manifest(o->digest, o->manifest, &runner, ret_error);
        if (r < 0)
                return r;
        r = store_runner_deploy(m->store, &(StoreRunner) {
                                                  .digest = o->digest,
                                                  .name = runner->name,
                                                  .version = runner->version,
                                                  .manifest = o->manifest,
                                                  .source = o->deploy.source,
                                                  .author = o->user,
                                                  .note = o->note,
                                                  .state = o->deploy.state,
                                                  .percent = o->deploy.percent,
                                                  .agents = o->deploy.agents,
                                          });
        if (r == -EEXIST)
                *ret_error = strdup("this runner is the current one already; it cannot be a canary");
        if (r < 0)
                return r;
        runner_changed(m);
        log_info("Runner %s (%s %s) is deployed as %s by %s.", o->digest, runner->name, runner->version,
                 store_runner_state_to_string(o->deploy.state), o->user);
        sd_bus_emit_signal(m->bus, BUS_PATH, BUS_INTERFACE_MANAGER, "RunnerDeployed", "ss", o->digest,
                           store_runner_state_to_string(o->deploy.state));
        return 0;
}

/* --- the shipped one ---------------------------------------------------------------------------------------------- */

typedef struct Shipped {
        const char *source;
        bool there;           /* in the store, and its layer too */
        bool current_is_own;  /* the current one was deployed by somebody */
        bool have_current;
        LayerStore *layers;
} Shipped;

static int look_at_row(const StoreRunner *row, void *userdata) {
        Shipped *s = userdata;

        if (row->state == RUNNER_CURRENT) {
                s->have_current = layer_store_open_layer(s->layers, row->digest, NULL, NULL) >= 0;
                s->current_is_own = s->have_current && !row->source;
        }
        if (streq_ptr(row->source, s->source) && layer_store_open_layer(s->layers, row->digest, NULL, NULL) >= 0)
                s->there = true;
        return 0;
}

void runner_shipped_done(Operation *o) {
        if (o->state != OPERATION_DONE)
                log_error("The shipped runner (%s) cannot be used, %s: %s", o->deploy.from,
                          runner_set_current(&o->manager->runners) ? "the last good one stays"
                                                                   : "and there is no other",
                          strempty(o->detail));
        manager_runners_ready(o->manager);
}

int runner_deploy_shipped(Manager *m) {
        char source[DIGEST_LEN + 1] = "";
        Shipped shipped = { .source = source, .layers = m->layers };
        Operation *o;
        int r;

        r = runner_set_load(m->store, &m->runners);
        if (r < 0)
                return log_error_errno(r, "The runners cannot be read: %s", store_error(m->store));
        r = digest_tree(AT_FDCWD, m->settings->runner_directory, source);
        if (r < 0)
                log_warning_errno(r, "The shipped runner %s cannot be read: %m", m->settings->runner_directory);
        if (r >= 0)
                r = store_runner_list(m->store, look_at_row, &shipped);
        if (r >= 0 && !shipped.there)
                r = operation_start(m,
                                    &(OperationRequest) {
                                            .kind = OPERATION_DEPLOY_RUNNER,
                                            .subject = "shipped",
                                            .user = "root",
                                            .root = true,
                                            .note = "shipped with agentd " AGENTD_VERSION,
                                            .input_fd = -EBADF,
                                            .sandbox_uid = (uid_t) -1,
                                            .deploy = { .from = m->settings->runner_directory,
                                                        .source = source,
                                                        .state = shipped.current_is_own ? RUNNER_STORED : RUNNER_CURRENT },
                                    },
                                    &o);
        if (r < 0)
                log_error_errno(r, "The shipped runner %s is not deployed: %m", m->settings->runner_directory);
        if (r < 0 || shipped.there || shipped.have_current)
                manager_runners_ready(m);
        return 0;
}
