/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * agentd itself lives in a hardened mount namespace, from which no mount reaches PID 1. So all mounts and network
 * namespaces of runs are made by one small long-lived child, the worker, that has joined PID 1's mount namespace.
 * This is agentd's side of it: requests go out over a SEQPACKET socketpair, answers come back through the event loop.
 *
 * Promises:
 * - Each request's handler is called exactly once, from the event loop, never from inside the request function;
 *   unless its slot was dropped before. After worker_free() no handler is called.
 * - Requests are carried out in the order in which they were made; a request that takes long (hashing a layer) runs
 *   in a child of its own and may be overtaken.
 * - A request that fails leaves nothing behind. When the worker dies, a new one is started, and all open requests fail
 *   with -EIO, but for those to worker_cleanup(): the new one carries them out. What the old one left is shown by
 *   worker_list() and removed by worker_cleanup().
 * - Dropping a slot does not undo the request: to cancel worker_prepare(), drop the slot and call worker_cleanup().
 */

#include <systemd/sd-event.h>

#include "basic/macro.h"
#include "basic/name-util.h"
#include "image/layer-store.h"

#define SANDBOX_LAYERS_MAX 32U
#define SANDBOX_LISTENER_PORT 8377
#define SANDBOX_PROXY_PORT 8378

/* Where agentd's user 1000 of the image may be mapped to: the range of systemd's dynamic users. */
#define SANDBOX_UID_MIN ((uid_t) 61184)
#define SANDBOX_UID_MAX ((uid_t) 65519)

/* Where the ids of edit sessions may begin: systemd's range for containers, in steps of 65536. */
#define SANDBOX_EDIT_BASE_MIN ((uid_t) 0x00080000)
#define SANDBOX_EDIT_BASE_MAX ((uid_t) 0x6fff0000)

/* What systemd-nspawn is to call the container of a session whose root is runs/<id>; cleanup goes by it. */
#define SANDBOX_EDIT_MACHINE "edit-"

typedef struct Worker Worker;
typedef struct WorkerSlot WorkerSlot;

typedef struct WorkerOptions {
        const char *program;     /* default: /usr/lib/agentd/agentd-worker */
        const char *state_dir;   /* default: /var/lib/agentd */
        const char *runtime_dir; /* default: /run/agentd */
        bool stay;               /* do not join PID 1's mount namespace (for tests) */
} WorkerOptions;

/* OPTIONS may be NULL. The worker is started at once; a failure to start it is reported here. */
int worker_new(sd_event *event, const WorkerOptions *options, Worker **ret);
Worker *worker_free(Worker *w);
DEFINE_CLEANUP(Worker *, worker_free);

/* Forgets the handler of a request that is still open. Takes NULL, returns NULL; also right after the handler was
 * called. */
WorkerSlot *worker_slot_unref(WorkerSlot *slot);
DEFINE_CLEANUP(WorkerSlot *, worker_slot_unref);

typedef struct SandboxSpec {
        const char *run;          /* 32 hex digits */
        const char *const *layers;/* digests, bottom first; NULL-terminated */
        uid_t uid;                /* the run's dynamic uid */
        uint64_t disk_max;        /* bytes that the run may write */
        uint64_t inodes_max;      /* files that it may make; 0: one per 4 KiB of disk_max, at most 1 Mi */
        uint64_t memory_max;      /* what its own /proc/meminfo shows; 0: the host's */
        unsigned cpus;            /* what its own /proc/cpuinfo and /proc/stat show; 0: the host's */
        const char *runner;       /* digest of the runner's layer, or NULL: mounted at /run/agentd/layers/<hex> */
        bool purge;               /* with a runner: empty V8's compile caches in the root */
        const char *compile_cache;/* where else they are, as seen inside; or NULL */
        const char *hostname;     /* what its own /etc/hostname and /etc/hosts say; NULL: "agent" */
} SandboxSpec;

/*
 * ERROR is 0 or a negative errno, MESSAGE then a sentence that names the step that failed (else "").
 * LISTENER_FD: 127.0.0.1:8377 in the run's network namespace, already listening; the handler owns it.
 *
 * On success there is, below /run/agentd/runs/<run>/ (0700):
 *   root     the composed root, for RootDirectory=
 *   netns    the network namespace, for NetworkNamespacePath=
 *   rw       tmpfs with upper/ and work/
 *   proc/…   the run's own cpuinfo, meminfo, …; see proc-files.h for what is bound where
 *   layers   the digests in use, a line each
 * agentd may put further files beside them (token, input); cleanup removes them too.
 */
typedef void (*worker_prepare_handler_t)(int error, const char *message, int listener_fd, void *userdata);
typedef void (*worker_handler_t)(int error, const char *message, void *userdata);

/* ret_slot may be NULL: then the handler cannot be dropped ("floating"). The same below. */
int worker_prepare(Worker *w, const SandboxSpec *spec, worker_prepare_handler_t handler, void *userdata,
                   WorkerSlot **ret_slot);

/*
 * What LAYERS (digests, bottom first; NULL-terminated) are together, at /run/agentd/runs/<id>/root: read-only, with the
 * image's own ids, for whoever compares or packs it. ID has the form of a run's; worker_cleanup() takes it away.
 */
int worker_view(Worker *w, const char *id, char *const *layers, worker_handler_t handler, void *userdata,
                WorkerSlot **ret_slot);

/*
 * At runs/<id>/root, the root of an edit session: LAYERS, and what is changed goes to DIR/upper, where DIR is
 * <state>/edits/<…>; ids are moved up by BASE in both. Without LAYERS: DIR/upper alone, with its ids moved down again,
 * for a freeze. See root.h; worker_cleanup() takes it away. With LAYERS there is also runs/<id>/netns, and the handler
 * gets what listens in there at 127.0.0.1:8378 (without: a negative number). SIZE: 0, or that of worker_edit_disk().
 */
int worker_edit(Worker *w, const char *id, char *const *layers, const char *dir, uint64_t size, uid_t base,
                worker_prepare_handler_t handler, void *userdata, WorkerSlot **ret_slot);

/*
 * For an edit whose changes are on a disk of their own, of SIZE bytes: makes that where it is not there yet, and mounts
 * it at runs/<id>/disk. To be called before worker_edit() with the same SIZE. RESERVE: see edit-disk.h. -ENOSPC,
 * -EBUSY.
 */
int worker_edit_disk(Worker *w, const char *id, const char *dir, uint64_t size, bool reserve, worker_handler_t handler,
                     void *userdata, WorkerSlot **ret_slot);

/*
 * Takes a run's mounts, namespace and directory away: whole, half-made or missing, all the same (0).
 * KEEP_UPPER leaves runs/<run>/rw (for a freeze of runs/<run>/rw/upper); a second cleanup without it removes that.
 */
int worker_cleanup(Worker *w, const char *run, bool keep_upper, worker_handler_t handler, void *userdata,
                   WorkerSlot **ret_slot);

typedef struct WorkerRun {
        char id[RUN_ID_LEN + 1];
        bool composed; /* its root is mounted */
        bool upper;    /* its writable part is mounted */
} WorkerRun;

/* All runs that have anything left below /run/agentd/runs. RUNS is valid during the call only. */
typedef void (*worker_list_handler_t)(int error, const char *message, const WorkerRun *runs, size_t n_runs,
                                      void *userdata);
int worker_list(Worker *w, worker_list_handler_t handler, void *userdata, WorkerSlot **ret_slot);

/*
 * Tells which node a prepared run has (see node-identity.h): the interpreter OWN in the layer RUNNER, or (both NULL)
 * the image's. On success MESSAGE is the digest. -ENOENT: there is none; -ENOEXEC: it is no program.
 */
int worker_node(Worker *w, const char *run, const char *runner, const char *own, const char *environment,
                worker_handler_t handler, void *userdata, WorkerSlot **ret_slot);

/* Unmounts all layers that no run uses (before a layer is removed from the store, and after an idle while). */
int worker_release_layers(Worker *w, worker_handler_t handler, void *userdata, WorkerSlot **ret_slot);

/*
 * layer_store_publish() in a child of the worker: hashes PATH (below the state directory's tmp/, made by somebody who
 * is not trusted) and moves it into the store, provided that its digest is DIGEST. -EBADMSG where it is not.
 */
int worker_publish_layer(Worker *w, const char *path, const char *digest, worker_handler_t handler, void *userdata,
                         WorkerSlot **ret_slot);

/* Its two halves, for whoever needs the digest in between: of the first one MESSAGE is what worker_hash_parse() takes
 * apart. */
int worker_hash_layer(Worker *w, const char *path, worker_handler_t handler, void *userdata, WorkerSlot **ret_slot);
int worker_hash_parse(const char *message, char ret_digest[static DIGEST_LEN + 1], LayerIdentity *ret);
int worker_take_layer(Worker *w, const char *path, const char *digest, const LayerIdentity *identity,
                      worker_handler_t handler, void *userdata, WorkerSlot **ret_slot);

/* layer_store_verify() in a child: -EBADMSG where the bytes do not have the digest of the name, -ENOENT where
 * missing. */
int worker_verify_layer(Worker *w, const char *digest, worker_handler_t handler, void *userdata, WorkerSlot **ret_slot);
