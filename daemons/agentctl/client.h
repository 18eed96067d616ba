/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * What every verb works with: the options and one connection to the bus, made when first needed. Calls are
 * synchronous. Functions whose name ends in _full hand errors to the caller; all others tell them on stderr.
 */

#include <systemd/sd-bus.h>
#include <systemd/sd-json.h>

#include "basic/macro.h"
#include "options.h"
#include "report.h"

typedef struct Client {
        const Options *options;
        sd_bus *bus;
        pid_t polkit_agent;
        bool no_pager; /* beside --no-pager: where output mixes with lines on stderr */
} Client;

typedef struct Target {
        const char *destination, *path, *interface;
} Target;

extern const Target manager_target;
extern const Target credentials_target;

void client_done(Client *c);

/* Connects where that has not happened yet. */
int client_connect(Client *c);

/* A message to be filled by the caller, then client_send(). */
int client_new_call(Client *c, const Target *target, const char *member, sd_bus_message **ret);
int client_send(Client *c, sd_bus_message *m, sd_bus_message **ret_reply);
/* As client_send() for a document that came from FILE, which is named in the error. */
int client_send_file(Client *c, sd_bus_message *m, const char *file, sd_bus_message **ret_reply);

int client_call(Client *c, const Target *target, const char *member, sd_bus_message **ret_reply, const char *types,
                ...);
int client_call_full(Client *c, const Target *target, const char *member, sd_bus_message **ret_reply,
                     sd_bus_error *error, const char *types, ...);
/* For methods that take and return one string each: "s" → "s" or "o". Allocated. */
int client_call_string(Client *c, const char *member, const char *arg, char **ret);

/* Tells a failed call: the message of the bus error and, where one is known, a hint. Returns a negative value. */
int client_report(const sd_bus_error *error, int r, const char *file);
/* True where the service is away for the moment (being restarted), so that asking again makes sense. */
bool client_error_is_transient(const sd_bus_error *error, int r);
/* "Cannot read the reply": for sd_bus_message_read() and friends. */
int client_bad_reply(int r);

static inline bool client_json(const Client *c) {
        return c->options->json != JSON_OFF;
}
static inline bool client_quiet(const Client *c) {
        return option_given(c->options, OPTION_QUIET);
}
/* True where progress lines on stderr make sense. */
static inline bool client_shows_progress(const Client *c) {
        return !client_quiet(c) && isatty(STDERR_FILENO);
}
