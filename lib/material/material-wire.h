/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * What bridge and strong room say to each other, over a socket of packets (SOCK_SEQPACKET): a question names a run, a
 * service and the run's own token, its answer says what to attach to one request. Answers come in any order and bear the
 * cookie of their question, so one connection serves all requests and none waits for another's access token. A packet
 * holds one of them, or several where several are there at the same time. Both ends are ours and on one host; all the
 * same each checks every packet, as a whole before anything in it counts, and closes where one makes no sense.
 *
 * It is this simple because it is paid for by every request: the same in JSON took more time than all else that the
 * strong room does.
 */

#include "basic/macro.h"

#define MATERIAL_QUESTION_MAX ((size_t) 16 * 1024)
#define MATERIAL_ANSWER_MAX ((size_t) 320 * 1024)
#define MATERIAL_BATCH_MAX 32U /* questions, or answers, in one packet */
#define MATERIAL_BATCH_SIZE ((size_t) 16 * 1024) /* of several together */
#define MATERIAL_SNDBUF (1024 * 1024) /* as much of it as the system grants: an answer is one packet */
#define MATERIAL_HEADERS_MAX 4U
#define MATERIAL_REDACT_MAX 4U

typedef enum MaterialVerb {
        MATERIAL_GET = 1,        /* what is to be attached */
        MATERIAL_INVALIDATE = 2, /* the upstream did not take the access token of that generation (0: the present one)
                                  */
} MaterialVerb;

typedef enum MaterialStatus {
        MATERIAL_OK,
        MATERIAL_TOKEN_REFUSED,   /* not the token of a live run's present attempt, for whatever reason */
        MATERIAL_NOT_IN_SCOPE,    /* the run may not use this service */
        MATERIAL_NO_CREDENTIAL,   /* nobody has set one */
        MATERIAL_UNUSABLE,        /* it does not fit the service's kind of auth, or is damaged */
        MATERIAL_NO_ACCESS_TOKEN, /* the token endpoint gives none */
        MATERIAL_UNAVAILABLE,     /* too much is waiting; in the bridge also: the strong room cannot be reached */
        _MATERIAL_STATUS_MAX,
} MaterialStatus;

typedef struct MaterialQuestion {
        MaterialVerb verb;
        uint64_t cookie;
        uint64_t generation;
        const char *run, *service, *token;
} MaterialQuestion;

typedef struct MaterialAnswer {
        MaterialStatus status;
        uint64_t cookie;
        uint64_t expires_usec; /* CLOCK_REALTIME; 0: no end is known */
        uint64_t generation;   /* of the access token; 0: there is nothing that could be refreshed */
        struct {
                const char *name, *value;
        } headers[MATERIAL_HEADERS_MAX]; /* each replaces any of the same name */
        size_t n_headers;
        const char *redact[MATERIAL_REDACT_MAX]; /* must not come back in an answer */
        size_t n_redact;
} MaterialAnswer;

/* Number of bytes, or -EMSGSIZE. */
ssize_t material_question_encode(const MaterialQuestion *q, void *buf, size_t size);
ssize_t material_answer_encode(const MaterialAnswer *a, void *buf, size_t size);
/* All that are in a packet, one behind another, and nothing else; their number. Strings of RET point into BUF. -EBADMSG
 * for everything that the functions above would not have made. */
int material_questions_decode(const void *buf, size_t size, MaterialQuestion ret[static MATERIAL_BATCH_MAX]);
int material_answers_decode(const void *buf, size_t size, MaterialAnswer ret[static MATERIAL_BATCH_MAX]);
