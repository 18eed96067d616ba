/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * What a runner needs of a sandbox that was composed: its layer mounted (PID 1 binds it in), and, where it is not the
 * one that the environment last ran with, no bytecode in it that an earlier one left. Messages begin with the step's
 * name, "stage: " or "purge: ".
 */

#include "image/layer-store.h"
#include "sandbox/step.h"
#include "sandbox/worker.h"

int runner_stage(const char *runtime_dir, LayerStore *store, const SandboxSpec *spec, char message[STEP_MESSAGE_MAX]);

/* Empties V8's compile caches below ROOT, a composed root: /home/agent/.cache/v8-compile-cache, node-compile-cache
 * beside it, and Node's own directories in COMPILE_CACHE (may be NULL). A link in the place of a cache is removed, what
 * it points to is not touched. */
int compile_cache_purge(const char *root, const char *compile_cache, char message[STEP_MESSAGE_MAX]);
