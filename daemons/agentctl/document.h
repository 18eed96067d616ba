/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Definitions of agents and services: JSON documents that go to agentd as they are and come back as such. */

#include "client.h"

/* Reads FILE ("-": stdin) and calls MEMBER with it. VERB is what is said of it ("created") with the definition's
 * name, after KIND ("Agent"). Errors name FILE; agentd's message names key and line. Returns an exit status. */
int document_send(Client *c, const char *member, const char *file, const char *kind, const char *verb);

/* Calls MEMBER with NAME, and says "KIND NAME VERB.". */
int document_act(Client *c, const char *member, const char *name, const char *kind, const char *verb);
