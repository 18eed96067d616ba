/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * A service: an upstream API that an agent's runs may call through the bridge, and what of it they
 * may call. Read strictly from one JSON document; what comes out is checked to the last byte, so
 * that its users can put names, hosts and header names into URLs and header lines as they are.
 * An empty "allow" allows nothing. Immutable once parsed; shared by reference counts.
 */

#include "basic/json-util.h"
#include "basic/macro.h"

typedef enum ServiceAuthKind {
        SERVICE_AUTH_NONE,
        SERVICE_AUTH_BEARER, /* Authorization: Bearer <secret> */
        SERVICE_AUTH_HEADER, /* <name>: <secret> */
        SERVICE_AUTH_BASIC,  /* Authorization: Basic base64(<username>:<secret>) */
        SERVICE_AUTH_OAUTH2_CLIENT_CREDENTIALS,
        _SERVICE_AUTH_MAX,
        _SERVICE_AUTH_INVALID = -EINVAL,
} ServiceAuthKind;

const char *service_auth_kind_to_string(ServiceAuthKind k);
ServiceAuthKind service_auth_kind_from_string(const char *s);

typedef struct ServiceUrl {
        char *text;   /* normalised: scheme://host[:port][/path], no trailing slash unless path is "/x/" as given */
        bool tls;     /* https */
        char *host;   /* lower case, without brackets */
        uint16_t port;
        char *path;   /* "" or "/…", without a trailing slash */
} ServiceUrl;

void service_url_done(ServiceUrl *u);
/* Strict: https://host[:port][/path]; no user info, query, fragment, escapes of '/' or dots, dot segments.
 * http:// only where ALLOW_HTTP and the host is a loopback name or address. Reason allocated. */
int service_url_parse(const char *s, bool allow_http, ServiceUrl *ret, char **ret_reason);

typedef struct ServiceRule {
        char **methods;
        char **paths;
        bool approval; /* of "allow": a person has to say yes to each request */
} ServiceRule;

/* What the service's own errors look like, which the bridge's answers in its place are to resemble. */
typedef enum ServiceErrors {
        SERVICE_ERRORS_PROBLEM,
        SERVICE_ERRORS_OPENAI,
        SERVICE_ERRORS_ANTHROPIC,
} ServiceErrors;

typedef struct ServiceAuth {
        ServiceAuthKind kind;
        char *name;      /* header: name of the header, lower case */
        char *username;  /* basic: user name; NULL where it comes with the credential */
        ServiceUrl token_url;
        char *client_id; /* oauth2 */
        char *scope;     /* oauth2, or NULL */
        char *audience;  /* oauth2, or NULL */
        bool client_auth_post; /* oauth2: client_secret_post instead of client_secret_basic */
} ServiceAuth;

typedef struct Service {
        unsigned n_ref;
        char *name;
        char *description; /* or NULL */
        ServiceUrl base_url;
        ServiceRule *allow, *deny;
        size_t n_allow, n_deny;
        ServiceAuth auth;
        uint64_t connect_usec, first_byte_usec, idle_usec;
        uint64_t body_max; /* bytes of a request body */
        uint64_t rate, burst, concurrent; /* requests per second, at once (burst), open; 0: any */
        ServiceErrors errors;
        bool encoded_slash; /* "%2F" may be part of a name in its paths */
        bool cookies;       /* its cookies pass, both ways; they are credentials that the sandbox then holds */
        sd_json_variant *definition; /* as it came */
} Service;

typedef enum ServiceParseFlags {
        SERVICE_ALLOW_HTTP = 1 << 0, /* http:// to loopback, for tests */
} ServiceParseFlags;

/* -EINVAL and *ret_error such as "line 4: auth.kind: unknown kind \"magic\"". */
int service_parse(const char *text, size_t size, ServiceParseFlags flags, Service **ret, char **ret_error);
/* The same; PATH is the prefix of keys in errors, may be "". */
int service_parse_variant(sd_json_variant *v, const char *path, ServiceParseFlags flags, Service **ret,
                          char **ret_error);
Service *service_ref(Service *s);
Service *service_unref(Service *s);
DEFINE_CLEANUP(Service *, service_unref);

/* Canonical JSON, allocated; equals what was parsed but for spelling (sorted keys, no blanks). */
int service_to_json(const Service *s, char **ret);

/* Whether METHOD (upper case) on PATH is allowed: what is denied is not, then what is allowed is. PATH is canonical,
 * below the service, starts with '/', has no query. Anything that is not in such a form is not allowed. RET_APPROVAL
 * may be NULL: every rule that allows it asks for a person's approval. */
bool service_match(const Service *s, const char *method, const char *path, bool *ret_approval);
/* One pattern: exact; "*" inside a segment matches within that segment; a trailing slash-star matches all below. */
bool service_path_match(const char *pattern, const char *path);

/* Header names as RFC 9110 tokens without underscore; values: printable ASCII, blank and tab inside, not empty. */
bool header_name_is_safe(const char *s);
bool header_value_is_safe(const char *s, size_t len);
/* Names that only the bridge itself may set (Host, Content-Length, hop-by-hop and so on), compared with '_' as '-'. */
bool header_name_is_reserved(const char *s);
