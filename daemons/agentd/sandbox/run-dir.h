/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * What a run has on the host, as one thing: the directory <runtime>/runs/<run>/ with its mounts, namespace and files.
 * The kernel and the file system are the only memory: all of it can be found and taken away by a process that did not
 * make it. Synchronous; this is what the worker does.
 */

#include "image/layer-store.h"
#include "sandbox/step.h"
#include "sandbox/worker.h"

/* Makes <runtime>/runs and <runtime>/layers (0700) where they are missing. */
int run_dir_setup(const char *runtime_dir, char message[STEP_MESSAGE_MAX]);

/* -EEXIST where the run has a directory already; else all or nothing. */
int run_dir_prepare(const char *runtime_dir, LayerStore *store, const SandboxSpec *spec, int *ret_listener,
                    char message[STEP_MESSAGE_MAX]);

/* runs/<run>/root for an edit session in DIR (root.h), and its network namespace with the listener of the forward
 * proxy; the same for its upper alone. */
int run_dir_edit(const char *runtime_dir, LayerStore *store, const char *run, const char *const *layers,
                 const char *dir, bool disk, uid_t base, int *ret_listener, char message[STEP_MESSAGE_MAX]);
int run_dir_map_edit(const char *runtime_dir, const char *run, const char *dir, bool disk, uid_t base,
                     char message[STEP_MESSAGE_MAX]);
/* Whether there is one, whose cleanup takes a while. */
bool run_dir_has_disk(const char *runtime_dir, const char *run);
/* Before either of them, where DIR has a disk of its own (edit-disk.h): that, at runs/<run>/disk. DISK is true then. */
int run_dir_edit_disk(const char *runtime_dir, const char *run, const char *dir, uint64_t size, bool reserve,
                      char message[STEP_MESSAGE_MAX]);
/* Only runs/<run>/root, read-only: what LAYERS are together. Taken away by run_dir_cleanup() as well. */
int run_dir_view(const char *runtime_dir, LayerStore *store, const char *run, const char *const *layers,
                 char message[STEP_MESSAGE_MAX]);

/*
 * Idempotent. RET_UPPER_FD (may be NULL) gets an fd that holds the writable part's memory after it was unmounted
 * (-EBADF where there was none): giving back gigabytes takes a while, and closing that fd is when it happens.
 */
int run_dir_cleanup(const char *runtime_dir, const char *run, bool keep_upper, int *ret_upper_fd,
                    char message[STEP_MESSAGE_MAX]);

/* Allocated array of what is left below <runtime>/runs; at most MAX of them. */
int run_dir_list(const char *runtime_dir, size_t max, WorkerRun **ret, size_t *ret_n, char message[STEP_MESSAGE_MAX]);

/* Unmounts the layers that no run's list names. */
int run_dir_release_layers(const char *runtime_dir, char message[STEP_MESSAGE_MAX]);
