/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * What agentd and its worker say to each other: one fixed structure each way, one SEQPACKET message each. Both are of
 * one build but for the moment of an upgrade, which VERSION catches. The worker trusts nothing in a request: sizes,
 * ends of strings, digests, run ids and the uid's range are checked before anything is done.
 */

#include "basic/digest.h"
#include "image/layer-store.h"
#include "sandbox/step.h"
#include "sandbox/worker.h"

#define WORKER_SOCKET_FD 3
#define WORKER_RUNS_MAX 4096U
#define WORKER_BUFFER_SIZE (512 * 1024)

#define WORKER_VERSION UINT32_C(0x61670005)

typedef enum WorkerVerb {
        WORKER_PREPARE = 1,
        WORKER_CLEANUP,
        WORKER_LIST,
        WORKER_RELEASE_LAYERS,
        WORKER_PUBLISH_LAYER,
        WORKER_HASH_LAYER,
        WORKER_TAKE_LAYER,
        WORKER_VERIFY_LAYER,
        WORKER_VIEW,
        WORKER_NODE,
        WORKER_EDIT,
        WORKER_MAP_EDIT,
        WORKER_EDIT_DISK,
} WorkerVerb;

typedef struct WorkerRequest {
        uint32_t version;
        uint32_t verb;
        uint64_t id;
        char run[RUN_ID_LEN + 1];     /* prepare, view, cleanup */
        char hostname[65];            /* prepare */
        char runner[DIGEST_LEN + 1];  /* prepare, node; may be "" */
        uint8_t purge;                /* prepare */
        uint8_t keep_upper;           /* cleanup */
        uint32_t uid;                 /* prepare, and so on to n_layers */
        uint32_t cpus;
        uint64_t disk_max;            /* edits: the size of their disk; 0: they have none */
        uint8_t reserve;              /* edit disk */
        uint64_t inodes_max;
        uint64_t memory_max;
        uint32_t n_layers;
        LayerIdentity identity;       /* take */
        char path[1024];              /* publish, hash, take, edit; prepare: compile cache; node: the runner's own */
        /* prepare, view: n_layers; publish, take, verify: the first; node: the environment */
        char layers[SANDBOX_LAYERS_MAX][DIGEST_LEN + 1];
} WorkerRequest;

typedef struct WorkerReply {
        uint32_t version;
        int32_t error;                /* 0 or a negative errno */
        uint64_t id;
        char message[STEP_MESSAGE_MAX];
        uint32_t n_runs;              /* list: that many follow */
        WorkerRun runs[];
} WorkerReply;
