/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * The strong room: owns the sealed credentials and hands out, for one request of one live run, what the
 * bridge must attach. It trusts nobody's word: the caller on the socket must be the bridge's user, and even
 * then the run token is verified here, the run must be alive, and the service in its scope, before
 * a credential is opened. Over D-Bus credentials only come in.
 */

#include <systemd/sd-bus.h>
#include <systemd/sd-event.h>

#include "bus/polkit.h"
#include "credential-store.h"
#include "curl/curl-glue.h"
#include "service/live-run.h"
#include "token-cache.h"
#include "token-fetch.h"
#include "token/run-token.h"

#define KEYS_DIRECTORY "/run/agentd/keys"
#define SEALING_KEY_CREDENTIAL "agent-credential.sealing-key"
#define BRIDGE_USER "agent-bridge"

typedef struct SetOperation SetOperation;
typedef struct MaterialRequest MaterialRequest;
typedef struct MaterialLink MaterialLink;

typedef struct Credentiald {
        sd_event *event;

        char **allow_addresses; /* bridge.conf */
        char *ca_file;

        CredentialStore *store;
        KeySet *keys;
        LiveCache *live;
        AddressGuard *guard;
        CurlGlue *curl;
        TokenFetchContext fetch_context;
        TokenCache *tokens;

        sd_event_source *listener, *forget;
        uid_t bridge_uid;
        MaterialLink *links;
        size_t n_links;
        Secret *question, *packet; /* buffers of the one that is being read, or written */
        MaterialLink *answering; /* several questions of this link: their answers go together */
        size_t packet_size, packet_answers; /* those that are in PACKET */
        MaterialRequest *requests; /* that wait for an access token */
        size_t n_requests;

        sd_bus *bus;
        BusPolkit *polkit;
        SetOperation *operations; /* whose secret is being read */
        size_t n_operations;
} Credentiald;

int credentiald_new(Credentiald **ret);
/* Opens everything: sealing key, store, bus, socket. Logs what fails. */
int credentiald_startup(Credentiald *c);
Credentiald *credentiald_free(Credentiald *c);
DEFINE_CLEANUP(Credentiald *, credentiald_free);

/* credentiald-bus.c */
int credentiald_bus_startup(Credentiald *c);
void credentiald_bus_stop(Credentiald *c);

/* credentiald-material.c; FD is the listening socket, of packets; taken over. */
int credentiald_material_startup(Credentiald *c, int fd);
void credentiald_material_stop(Credentiald *c);

/*
 * Verifies the token and looks the run up. Where RUN may not speak: -EACCES. Where it may, but not
 * with SERVICE: -ENXIO. Both returned objects are references.
 */
int credentiald_authorize(Credentiald *c, const char *run, const char *service, const char *token, LiveRun **ret_live,
                          Service **ret_service);
/* Whether the very attempt is still alive. */
bool credentiald_is_alive(Credentiald *c, const LiveRun *live);
