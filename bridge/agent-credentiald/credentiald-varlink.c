/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * org.agentd1.Material on /run/agent-credential/material: the way out, for the bridge alone. A call names a
 * run, a service and the run's own token; all three are verified here for each call. An answer is marked as
 * sensitive, so that libsystemd wipes its buffers and does not print it.
 *
 * Calls on one connection are answered in their order, and one that waits for a token endpoint holds up those
 * behind it: a client that does not want that opens more connections.
 */

#include <time.h>

#include "basic/log.h"
#include "basic/string-util.h"
#include "credentiald.h"
#include "material.h"

#define INTERFACE "org.agentd1.Material"

#define ERROR_TOKEN_REFUSED INTERFACE ".TokenRefused"
#define ERROR_SERVICE_NOT_IN_SCOPE INTERFACE ".ServiceNotInScope"
#define ERROR_NO_CREDENTIAL INTERFACE ".NoCredential"
#define ERROR_CREDENTIAL_UNUSABLE INTERFACE ".CredentialUnusable"
#define ERROR_ACCESS_TOKEN_UNAVAILABLE INTERFACE ".AccessTokenUnavailable"
#define ERROR_BUSY INTERFACE ".Busy"

#define REQUESTS_MAX 8192U
#define CONNECTIONS_MAX 4096U

/* One Get() that waits for an access token. */
struct MaterialRequest {
        Credentiald *daemon;
        MaterialRequest *next;
        sd_varlink *link;
        LiveRun *live;
        Service *service;
        TokenWaiter *waiter;
};

static MaterialRequest *material_request_free(MaterialRequest *q) {
        if (!q)
                return NULL;

        for (MaterialRequest **p = &q->daemon->requests; *p; p = &(*p)->next)
                if (*p == q) {
                        *p = q->next;
                        q->daemon->n_requests--;
                        break;
                }
        token_waiter_free(q->waiter);
        sd_varlink_unref(q->link);
        live_run_unref(q->live);
        service_unref(q->service);
        return mfree(q);
}

static uint64_t realtime_after(uint64_t usec) {
        struct timespec ts;

        clock_gettime(CLOCK_REALTIME, &ts);
        return (uint64_t) ts.tv_sec * USEC_PER_SEC + (uint64_t) ts.tv_nsec / NSEC_PER_USEC + usec;
}

static int append_string(sd_json_variant **array, const Secret *s) {
        _cleanup_json_ sd_json_variant *v = NULL;
        int r;

        r = sd_json_variant_new_stringn(&v, secret_data(s), secret_size(s));
        if (r < 0)
                return r;
        sd_json_variant_sensitive(v);
        return sd_json_variant_append_array(array, v);
}

static int append_header(sd_json_variant **array, const char *name, const Secret *value) {
        _cleanup_json_ sd_json_variant *v = NULL, *text = NULL;
        int r;

        r = sd_json_variant_new_stringn(&text, secret_data(value), secret_size(value));
        if (r < 0)
                return r;
        sd_json_variant_sensitive(text);
        r = sd_json_buildo(&v, SD_JSON_BUILD_PAIR_STRING("name", name), SD_JSON_BUILD_PAIR_VARIANT("value", text));
        if (r < 0)
                return r;
        sd_json_variant_sensitive(v);
        return sd_json_variant_append_array(array, v);
}

/* EXPIRES 0: no end is known. GENERATION 0: there is nothing that could be refreshed. */
static int reply_material(sd_varlink *link, const Material *m, uint64_t expires, uint64_t generation) {
        _cleanup_json_ sd_json_variant *headers = NULL, *redact = NULL, *v = NULL;
        int r;

        r = sd_json_variant_new_array(&headers, NULL, 0);
        if (r >= 0)
                r = sd_json_variant_new_array(&redact, NULL, 0);
        for (size_t i = 0; r >= 0 && i < m->n_headers; i++)
                r = append_header(&headers, m->headers[i].name, m->headers[i].value);
        for (size_t i = 0; r >= 0 && i < m->n_redact; i++)
                r = append_string(&redact, m->redact[i]);
        if (r >= 0) {
                sd_json_variant_sensitive(headers);
                sd_json_variant_sensitive(redact);
                r = sd_json_buildo(&v,
                                   SD_JSON_BUILD_PAIR_VARIANT("headers", headers),
                                   SD_JSON_BUILD_PAIR_UNSIGNED("expires_usec", expires),
                                   SD_JSON_BUILD_PAIR_UNSIGNED("generation", generation),
                                   SD_JSON_BUILD_PAIR_VARIANT("redact", redact));
        }
        if (r < 0)
                return sd_varlink_error_errno(link, r);

        sd_json_variant_sensitive(v);
        return sd_varlink_reply(link, v);
}

static int reply_code(sd_varlink *link, const char *error, const char *code) {
        return sd_varlink_errorbo(link, error, SD_JSON_BUILD_PAIR_STRING("code", code));
}

static int reply_grant(sd_varlink *link, const TokenGrant *grant) {
        Material m;
        int r;

        if (grant->code == TOKEN_CREDENTIAL)
                return reply_code(link, ERROR_CREDENTIAL_UNUSABLE, token_code_to_string(grant->code));
        if (grant->code != TOKEN_OK)
                return reply_code(link, ERROR_ACCESS_TOKEN_UNAVAILABLE, token_code_to_string(grant->code));

        r = material_from_token(grant->token, &m);
        if (r < 0)
                return sd_varlink_error_errno(link, r);
        r = reply_material(link, &m, realtime_after(grant->remaining_usec), grant->generation);
        material_done(&m);
        return r;
}

static void on_token(const TokenGrant *grant, void *userdata) {
        MaterialRequest *q = userdata;
        int r;

        q->waiter = NULL; /* it is freed by its caller */

        /* The run may have ended while we waited. */
        if (!credentiald_is_alive(q->daemon, q->live))
                r = sd_varlink_error(q->link, ERROR_TOKEN_REFUSED, NULL);
        else
                r = reply_grant(q->link, grant);
        if (r < 0)
                log_debug_errno(r, "A caller went away while it waited for an access token: %m");

        material_request_free(q);
}

static int get_by_token(Credentiald *c, sd_varlink *link, LiveRun *live, Service *s, bool force) {
        MaterialRequest *q;
        TokenGrant grant;
        TokenKey key;
        SealInfo info;
        int r;

        r = credential_store_peek(c->store, live->user, s->name, &info);
        if (r == -ENOENT)
                return sd_varlink_error(link, ERROR_NO_CREDENTIAL, NULL);
        if (r < 0)
                return reply_code(link, ERROR_CREDENTIAL_UNUSABLE, "credential-damaged");

        key = (TokenKey) {
                .user = live->user,
                .service = s,
                .version = info.version,
        };
        if (force)
                token_cache_invalidate(c->tokens, &key, 0);

        if (c->n_requests >= REQUESTS_MAX)
                return sd_varlink_error(link, ERROR_BUSY, NULL);
        q = calloc(1, sizeof(*q));
        if (!q)
                return sd_varlink_error_errno(link, -ENOMEM);
        *q = (MaterialRequest) {
                .daemon = c,
                .next = c->requests,
                .link = sd_varlink_ref(link),
                .live = live_run_ref(live),
                .service = service_ref(s),
        };
        c->requests = q;
        c->n_requests++;

        r = token_cache_get(c->tokens, &key, &grant, on_token, q, &q->waiter);
        if (r == 0)
                return 0; /* will be answered later */

        material_request_free(q);
        if (r == -EBUSY)
                return sd_varlink_error(link, ERROR_BUSY, NULL);
        if (r < 0)
                return sd_varlink_error_errno(link, r);
        return reply_grant(link, &grant);
}

static int get_by_credential(Credentiald *c, sd_varlink *link, LiveRun *live, Service *s) {
        _cleanup_(secret_freep) Secret *credential = NULL;
        Material m;
        SealInfo info;
        int r;

        r = credential_store_load(c->store, live->user, s->name, &info, &credential);
        if (r == -ENOENT)
                return sd_varlink_error(link, ERROR_NO_CREDENTIAL, NULL);
        if (r < 0) {
                log_error_errno(r, "The credential of service %s of user %s does not open: %m", s->name, live->user);
                return reply_code(link, ERROR_CREDENTIAL_UNUSABLE, "credential-damaged");
        }

        r = material_from_credential(s, info.form, credential, &m);
        if (r < 0) {
                log_warning_errno(r, "The credential of service %s of user %s does not fit auth kind %s.", s->name,
                                  live->user, service_auth_kind_to_string(s->auth.kind));
                return reply_code(link, ERROR_CREDENTIAL_UNUSABLE, "credential-unusable");
        }

        r = reply_material(link, &m, 0, 0);
        material_done(&m);
        return r;
}

/* The connection was let in by its uid; asked again for each call, since it costs nothing. */
static bool peer_is_bridge(Credentiald *c, sd_varlink *link) {
        uid_t uid;

        return sd_varlink_get_peer_uid(link, &uid) >= 0 && uid == c->bridge_uid;
}

typedef struct Parameters {
        const char *run, *service, *token;
        bool force_refresh;
        uint64_t generation;
} Parameters;

/* >0: go on. Otherwise the error is sent, or the dispatcher's result is returned. */
static int authorize(Credentiald *c, sd_varlink *link, const Parameters *p, LiveRun **ret_live, Service **ret_service,
                     int *ret) {
        int r;

        r = credentiald_authorize(c, p->run, p->service, p->token, ret_live, ret_service);
        if (r == -EACCES)
                *ret = sd_varlink_error(link, ERROR_TOKEN_REFUSED, NULL);
        else if (r == -ENXIO)
                *ret = sd_varlink_error(link, ERROR_SERVICE_NOT_IN_SCOPE, NULL);
        else if (r < 0)
                *ret = sd_varlink_error_errno(link, r);
        return r < 0 ? 0 : 1;
}

static int method_get(sd_varlink *link, sd_json_variant *parameters, sd_varlink_method_flags_t flags, void *userdata) {
        static const sd_json_dispatch_field table[] = {
                { "run", SD_JSON_VARIANT_STRING, sd_json_dispatch_const_string, offsetof(Parameters, run),
                  SD_JSON_MANDATORY },
                { "service", SD_JSON_VARIANT_STRING, sd_json_dispatch_const_string, offsetof(Parameters, service),
                  SD_JSON_MANDATORY },
                { "token", SD_JSON_VARIANT_STRING, sd_json_dispatch_const_string, offsetof(Parameters, token),
                  SD_JSON_MANDATORY },
                { "force_refresh", SD_JSON_VARIANT_BOOLEAN, sd_json_dispatch_stdbool,
                  offsetof(Parameters, force_refresh), SD_JSON_NULLABLE },
                {},
        };
        _cleanup_(live_run_unrefp) LiveRun *live = NULL;
        _cleanup_(service_unrefp) Service *s = NULL;
        Credentiald *c = userdata;
        Parameters p = {};
        int r;

        if (!peer_is_bridge(c, link))
                return sd_varlink_error(link, SD_VARLINK_ERROR_PERMISSION_DENIED, NULL);
        r = sd_varlink_dispatch(link, parameters, table, &p);
        if (r != 0)
                return r;
        if (authorize(c, link, &p, &live, &s, &r) == 0)
                return r;

        switch (material_source(s->auth.kind)) {
        case MATERIAL_NOTHING:
                return reply_material(link, &(const Material) {}, 0, 0);
        case MATERIAL_CREDENTIAL:
                return get_by_credential(c, link, live, s);
        case MATERIAL_TOKEN:
                return get_by_token(c, link, live, s, p.force_refresh);
        default:
                return sd_varlink_error_errno(link, -EOPNOTSUPP);
        }
}

static int method_invalidate(sd_varlink *link, sd_json_variant *parameters, sd_varlink_method_flags_t flags,
                             void *userdata) {
        static const sd_json_dispatch_field table[] = {
                { "run", SD_JSON_VARIANT_STRING, sd_json_dispatch_const_string, offsetof(Parameters, run),
                  SD_JSON_MANDATORY },
                { "service", SD_JSON_VARIANT_STRING, sd_json_dispatch_const_string, offsetof(Parameters, service),
                  SD_JSON_MANDATORY },
                { "token", SD_JSON_VARIANT_STRING, sd_json_dispatch_const_string, offsetof(Parameters, token),
                  SD_JSON_MANDATORY },
                { "generation", _SD_JSON_VARIANT_TYPE_INVALID, sd_json_dispatch_uint64,
                  offsetof(Parameters, generation), SD_JSON_NULLABLE },
                {},
        };
        _cleanup_(live_run_unrefp) LiveRun *live = NULL;
        _cleanup_(service_unrefp) Service *s = NULL;
        Credentiald *c = userdata;
        Parameters p = {};
        SealInfo info;
        int r;

        if (!peer_is_bridge(c, link))
                return sd_varlink_error(link, SD_VARLINK_ERROR_PERMISSION_DENIED, NULL);
        r = sd_varlink_dispatch(link, parameters, table, &p);
        if (r != 0)
                return r;
        if (authorize(c, link, &p, &live, &s, &r) == 0)
                return r;

        /* With a credential that is the secret itself there is nothing that we could renew. */
        if (material_source(s->auth.kind) == MATERIAL_TOKEN &&
            credential_store_peek(c->store, live->user, s->name, &info) >= 0) {
                TokenKey key = {
                        .user = live->user,
                        .service = s,
                        .version = info.version,
                };
                token_cache_invalidate(c->tokens, &key, p.generation);
        }

        return sd_varlink_reply(link, NULL);
}

/* ---- what introspection shows, and what libsystemd checks calls and answers against ---- */

static SD_VARLINK_DEFINE_STRUCT_TYPE(
                Header,
                SD_VARLINK_DEFINE_FIELD(name, SD_VARLINK_STRING, 0),
                SD_VARLINK_DEFINE_FIELD(value, SD_VARLINK_STRING, 0));

static SD_VARLINK_DEFINE_METHOD(
                Get,
                SD_VARLINK_FIELD_COMMENT("Id of the run"),
                SD_VARLINK_DEFINE_INPUT(run, SD_VARLINK_STRING, 0),
                SD_VARLINK_FIELD_COMMENT("Name of a service in the run's scope"),
                SD_VARLINK_DEFINE_INPUT(service, SD_VARLINK_STRING, 0),
                SD_VARLINK_FIELD_COMMENT("The run token, as the sandbox sent it"),
                SD_VARLINK_DEFINE_INPUT(token, SD_VARLINK_STRING, 0),
                SD_VARLINK_FIELD_COMMENT("As Invalidate before"),
                SD_VARLINK_DEFINE_INPUT(force_refresh, SD_VARLINK_BOOL, SD_VARLINK_NULLABLE),
                SD_VARLINK_FIELD_COMMENT("Headers to set, each replacing any of the same name"),
                SD_VARLINK_DEFINE_OUTPUT_BY_TYPE(headers, Header, SD_VARLINK_ARRAY),
                SD_VARLINK_FIELD_COMMENT("When they end to be valid, CLOCK_REALTIME in microseconds; 0: unknown"),
                SD_VARLINK_DEFINE_OUTPUT(expires_usec, SD_VARLINK_INT, 0),
                SD_VARLINK_FIELD_COMMENT("Number of the access token, for Invalidate; 0: there is none"),
                SD_VARLINK_DEFINE_OUTPUT(generation, SD_VARLINK_INT, 0),
                SD_VARLINK_FIELD_COMMENT("What must not come back in an answer"),
                SD_VARLINK_DEFINE_OUTPUT(redact, SD_VARLINK_STRING, SD_VARLINK_ARRAY));

static SD_VARLINK_DEFINE_METHOD(
                Invalidate,
                SD_VARLINK_FIELD_COMMENT("Id of the run"),
                SD_VARLINK_DEFINE_INPUT(run, SD_VARLINK_STRING, 0),
                SD_VARLINK_FIELD_COMMENT("The service that answered 401"),
                SD_VARLINK_DEFINE_INPUT(service, SD_VARLINK_STRING, 0),
                SD_VARLINK_FIELD_COMMENT("The run token"),
                SD_VARLINK_DEFINE_INPUT(token, SD_VARLINK_STRING, 0),
                SD_VARLINK_FIELD_COMMENT("As Get gave it; 0 or none: the present one"),
                SD_VARLINK_DEFINE_INPUT(generation, SD_VARLINK_INT, SD_VARLINK_NULLABLE));

static SD_VARLINK_DEFINE_ERROR(TokenRefused);
static SD_VARLINK_DEFINE_ERROR(ServiceNotInScope);
static SD_VARLINK_DEFINE_ERROR(NoCredential);
static SD_VARLINK_DEFINE_ERROR(CredentialUnusable, SD_VARLINK_DEFINE_FIELD(code, SD_VARLINK_STRING, 0));
static SD_VARLINK_DEFINE_ERROR(AccessTokenUnavailable, SD_VARLINK_DEFINE_FIELD(code, SD_VARLINK_STRING, 0));
static SD_VARLINK_DEFINE_ERROR(Busy);

static SD_VARLINK_DEFINE_INTERFACE(
                Material,
                INTERFACE,
                SD_VARLINK_INTERFACE_COMMENT("What the bridge attaches to one request of one live run"),
                &vl_type_Header,
                SD_VARLINK_SYMBOL_COMMENT("Headers for one request of a run to a service"),
                &vl_method_Get,
                SD_VARLINK_SYMBOL_COMMENT("The upstream did not accept the access token"),
                &vl_method_Invalidate,
                SD_VARLINK_SYMBOL_COMMENT("The token is not that of a live run's present attempt, for whatever reason"),
                &vl_error_TokenRefused,
                SD_VARLINK_SYMBOL_COMMENT("The run may not use this service"),
                &vl_error_ServiceNotInScope,
                SD_VARLINK_SYMBOL_COMMENT("Nobody has set a credential for the service"),
                &vl_error_NoCredential,
                SD_VARLINK_SYMBOL_COMMENT("The credential does not fit the service's kind of auth, or is damaged"),
                &vl_error_CredentialUnusable,
                SD_VARLINK_SYMBOL_COMMENT("The token endpoint gives none"),
                &vl_error_AccessTokenUnavailable,
                SD_VARLINK_SYMBOL_COMMENT("Too much is waiting"),
                &vl_error_Busy);

static int on_connect(sd_varlink_server *server, sd_varlink *link, void *userdata) {
        Credentiald *c = userdata;
        uid_t uid = (uid_t) -1;

        if (peer_is_bridge(c, link))
                return 0;

        (void) sd_varlink_get_peer_uid(link, &uid);
        log_warning("User %u connected to the material socket, refused.", (unsigned) uid);
        return -EACCES;
}

/* Whoever waited has gone: the fetch itself goes on. */
static void on_disconnect(sd_varlink_server *server, sd_varlink *link, void *userdata) {
        Credentiald *c = userdata;

        for (MaterialRequest *q = c->requests, *next; q; q = next) {
                next = q->next;
                if (q->link == link)
                        material_request_free(q);
        }
}

int credentiald_varlink_startup(Credentiald *c, int fd) {
        int r;

        r = sd_varlink_server_new(&c->varlink, SD_VARLINK_SERVER_INPUT_SENSITIVE | SD_VARLINK_SERVER_INHERIT_USERDATA);
        if (r < 0)
                return log_error_errno(r, "Failed to make the material server: %m");
        sd_varlink_server_set_userdata(c->varlink, c);

        if ((r = sd_varlink_server_set_description(c->varlink, "material")) < 0 ||
            (r = sd_varlink_server_set_connections_max(c->varlink, CONNECTIONS_MAX)) < 0 ||
            (r = sd_varlink_server_add_interface(c->varlink, &vl_interface_Material)) < 0 ||
            (r = sd_varlink_server_bind_method_many(c->varlink, INTERFACE ".Get", method_get, INTERFACE ".Invalidate",
                                                    method_invalidate)) < 0 ||
            (r = sd_varlink_server_bind_connect(c->varlink, on_connect)) < 0 ||
            (r = sd_varlink_server_bind_disconnect(c->varlink, on_disconnect)) < 0 ||
            (r = sd_varlink_server_attach_event(c->varlink, c->event, SD_EVENT_PRIORITY_NORMAL)) < 0)
                return log_error_errno(r, "Failed to set up the material server: %m");

        r = sd_varlink_server_listen_fd(c->varlink, fd);
        if (r < 0)
                return log_error_errno(r, "Failed to listen on the material socket: %m");

        return 0;
}

void credentiald_varlink_stop(Credentiald *c) {
        if (c->varlink) {
                (void) sd_varlink_server_shutdown(c->varlink);
                c->varlink = sd_varlink_server_unref(c->varlink);
        }
        while (c->requests)
                material_request_free(c->requests);
}
