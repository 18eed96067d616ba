/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include "basic/name-util.h"
#include "basic/string-util.h"
#include "service/service.h"

#define RULES_MAX 256U
#define PATTERNS_MAX 256U
#define PATTERN_LEN_MAX 1024U
#define DESCRIPTION_MAX 1024U

#define CONNECT_USEC_DEFAULT (10 * USEC_PER_SEC)
/* Model APIs think for minutes before their first byte. */
#define FIRST_BYTE_USEC_DEFAULT (600 * USEC_PER_SEC)
#define IDLE_USEC_DEFAULT (600 * USEC_PER_SEC)
#define TIMEOUT_USEC_MAX (UINT64_C(86400) * USEC_PER_SEC)
#define BODY_MAX_DEFAULT (UINT64_C(64) << 20)
#define BODY_MAX_MAX (UINT64_C(16) << 30)

static const char *const auth_kinds[_SERVICE_AUTH_MAX] = {
        [SERVICE_AUTH_NONE] = "none",
        [SERVICE_AUTH_BEARER] = "bearer",
        [SERVICE_AUTH_HEADER] = "header",
        [SERVICE_AUTH_BASIC] = "basic",
        [SERVICE_AUTH_OAUTH2_CLIENT_CREDENTIALS] = "oauth2-client-credentials",
};

const char *service_auth_kind_to_string(ServiceAuthKind k) {
        return k >= 0 && k < _SERVICE_AUTH_MAX ? auth_kinds[k] : NULL;
}

ServiceAuthKind service_auth_kind_from_string(const char *s) {
        for (int i = 0; i < _SERVICE_AUTH_MAX; i++)
                if (streq_ptr(s, auth_kinds[i]))
                        return (ServiceAuthKind) i;

        return _SERVICE_AUTH_INVALID;
}

Service *service_ref(Service *s) {
        if (s) {
                assert(s->n_ref > 0);
                s->n_ref++;
        }
        return s;
}

static void rules_free(ServiceRule *rules, size_t n) {
        for (size_t i = 0; i < n; i++) {
                strv_free(rules[i].methods);
                strv_free(rules[i].paths);
        }
        free(rules);
}

Service *service_unref(Service *s) {
        if (!s)
                return NULL;

        assert(s->n_ref > 0);
        if (--s->n_ref > 0)
                return NULL;

        rules_free(s->allow, s->n_allow);
        rules_free(s->deny, s->n_deny);
        free(s->name);
        free(s->description);
        service_url_done(&s->base_url);
        free(s->auth.name);
        free(s->auth.username);
        service_url_done(&s->auth.token_url);
        free(s->auth.client_id);
        free(s->auth.scope);
        free(s->auth.audience);
        sd_json_variant_unref(s->definition);
        return mfree(s);
}

static int refuse(char **ret_reason, const char *text) {
        int r = ret_reason ? free_and_strdup(ret_reason, text) : 0;
        return r < 0 ? r : -EINVAL;
}

static int field_name(sd_json_variant *v, void *field, char **ret_reason) {
        if (!object_name_is_valid(sd_json_variant_string(v)))
                return refuse(ret_reason,
                              "must be a name of lower-case letters, digits, '.', '_' and '-', at most 63 long");
        return json_field_string(v, field, ret_reason);
}

static int field_text(sd_json_variant *v, void *field, char **ret_reason) {
        const char *s = sd_json_variant_string(v);

        if (strlen(s) > DESCRIPTION_MAX || string_has_cc(s))
                return refuse(ret_reason, "must be one line of at most 1024 bytes");
        return json_field_string(v, field, ret_reason);
}

/* Goes into a form or a Basic value: printable ASCII, not empty. */
static int field_printable(sd_json_variant *v, void *field, char **ret_reason) {
        const char *s = sd_json_variant_string(v);

        if (strlen(s) > DESCRIPTION_MAX || !header_value_is_safe(s, strlen(s)) || strchr(s, '\t'))
                return refuse(ret_reason, "must be 1 to 1024 printable ASCII characters without blanks at its ends");
        return json_field_string(v, field, ret_reason);
}

static int field_username(sd_json_variant *v, void *field, char **ret_reason) {
        if (strchr(sd_json_variant_string(v), ':'))
                return refuse(ret_reason, "must not hold a colon");
        return field_printable(v, field, ret_reason);
}

static int field_header_name(sd_json_variant *v, void *field, char **ret_reason) {
        const char *s = sd_json_variant_string(v);
        char **p = field;
        int r;

        if (!header_name_is_safe(s))
                return refuse(ret_reason, "must be a header name of letters, digits and dashes");
        if (header_name_is_reserved(s))
                return refuse(ret_reason, "is a header that the bridge sets by itself");

        r = json_field_string(v, field, ret_reason);
        if (r < 0)
                return r;
        for (char *c = *p; *c; c++)
                if (*c >= 'A' && *c <= 'Z')
                        *c = (char) (*c - 'A' + 'a');
        return 0;
}

static int field_timeout(sd_json_variant *v, void *field, char **ret_reason) {
        uint64_t usec;
        int r;

        r = json_field_timespan(v, &usec, ret_reason);
        if (r < 0)
                return r;
        if (usec == 0 || usec > TIMEOUT_USEC_MAX)
                return refuse(ret_reason, "must be more than zero and at most one day");

        *(uint64_t *) field = usec;
        return 0;
}

static int field_body(sd_json_variant *v, void *field, char **ret_reason) {
        uint64_t size;
        int r;

        r = json_field_size(v, &size, ret_reason);
        if (r < 0)
                return r;
        if (size > BODY_MAX_MAX)
                return refuse(ret_reason, "must be at most 16G");

        *(uint64_t *) field = size;
        return 0;
}

static int field_methods(sd_json_variant *v, void *field, char **ret_reason) {
        _cleanup_strv_free_ char **l = NULL;
        int r;

        r = json_field_strv(v, &l, ret_reason);
        if (r < 0)
                return r;
        if (strv_length(l) > PATTERNS_MAX)
                return refuse(ret_reason, "must have at most 256 entries");

        for (char **m = l; *m; m++) {
                size_t n = strlen(*m);

                if (n == 0 || n > 32 || strspn(*m, "ABCDEFGHIJKLMNOPQRSTUVWXYZ-") != n)
                        return refuse(ret_reason, "must be methods in upper case, such as \"GET\"");
                if (streq(*m, "CONNECT") || streq(*m, "TRACE"))
                        return refuse(ret_reason, "must not hold CONNECT or TRACE");
        }

        strv_free(*(char ***) field);
        *(char ***) field = TAKE_PTR(l);
        return 0;
}

static bool pattern_is_valid(const char *s) {
        if (*s != '/' || strlen(s) > PATTERN_LEN_MAX)
                return false;

        for (const char *p = s; *p; p++) {
                unsigned char c = (unsigned char) *p;

                if (c <= 0x20 || c >= 0x7f || strchr("?#\\\"<>^`{|}", c))
                        return false;
                if (*p == '%' && (!strchr("0123456789ABCDEF", p[1] ?: 'x') || !strchr("0123456789ABCDEF", p[2] ?: 'x')))
                        return false;
                if (*p == '/') {
                        size_t n = strcspn(p + 1, "/");
                        const char *q = p + 1;

                        if (n == 0 && *q)
                                return false;
                        if (q[0] == '.' && (n == 1 || q[1] == ';' || (q[1] == '.' && (n == 2 || q[2] == ';'))))
                                return false;
                }
        }

        return true;
}

static int field_paths(sd_json_variant *v, void *field, char **ret_reason) {
        _cleanup_strv_free_ char **l = NULL;
        int r;

        r = json_field_strv(v, &l, ret_reason);
        if (r < 0)
                return r;
        if (strv_length(l) > PATTERNS_MAX)
                return refuse(ret_reason, "must have at most 256 entries");

        for (char **p = l; *p; p++)
                if (!pattern_is_valid(*p))
                        return refuse(ret_reason,
                                      "must be paths that start with '/', without query, dot segments, \"//\" or "
                                      "blanks; '*' stands for a part of one segment, a last \"/*\" for all below");

        strv_free(*(char ***) field);
        *(char ***) field = TAKE_PTR(l);
        return 0;
}

static int rule_read(sd_json_variant *v, const char *path, bool allow, ServiceRule *ret, char **ret_error) {
        static const JsonField table[] = {
                { "methods", SD_JSON_VARIANT_ARRAY, field_methods, offsetof(ServiceRule, methods), true },
                { "paths", SD_JSON_VARIANT_ARRAY, field_paths, offsetof(ServiceRule, paths), true },
                { "approval", SD_JSON_VARIANT_BOOLEAN, json_field_bool, offsetof(ServiceRule, approval), false },
                {},
        };
        static const JsonField deny_table[] = {
                { "methods", SD_JSON_VARIANT_ARRAY, field_methods, offsetof(ServiceRule, methods), true },
                { "paths", SD_JSON_VARIANT_ARRAY, field_paths, offsetof(ServiceRule, paths), true },
                {},
        };
        ServiceRule rule = {};
        int r;

        r = json_read_object(v, path, allow ? table : deny_table, &rule, ret_error);
        if (r < 0) {
                strv_free(rule.methods);
                strv_free(rule.paths);
                return r;
        }

        *ret = rule;
        return 0;
}

/* Loopback by plain http is judged afterwards, where the flags are known. */
static int field_url(sd_json_variant *v, void *field, char **ret_reason) {
        ServiceUrl u;
        int r;

        r = service_url_parse(sd_json_variant_string(v), true, &u, ret_reason);
        if (r < 0)
                return r;

        service_url_done(field);
        *(ServiceUrl *) field = u;
        return 0;
}

static int field_client_auth(sd_json_variant *v, void *field, char **ret_reason) {
        const char *s = sd_json_variant_string(v);

        if (!streq(s, "basic") && !streq(s, "post"))
                return refuse(ret_reason, "must be \"basic\" or \"post\"");

        *(bool *) field = streq(s, "post");
        return 0;
}

static int field_errors(sd_json_variant *v, void *field, char **ret_reason) {
        const char *s = sd_json_variant_string(v);

        if (streq(s, "problem"))
                *(ServiceErrors *) field = SERVICE_ERRORS_PROBLEM;
        else if (streq(s, "openai"))
                *(ServiceErrors *) field = SERVICE_ERRORS_OPENAI;
        else if (streq(s, "anthropic"))
                *(ServiceErrors *) field = SERVICE_ERRORS_ANTHROPIC;
        else
                return refuse(ret_reason, "must be one of problem, openai, anthropic");
        return 0;
}

static int field_count(sd_json_variant *v, void *field, char **ret_reason) {
        uint64_t n = sd_json_variant_unsigned(v);

        if (n == 0 || n > 1000000)
                return refuse(ret_reason, "must be from 1 to 1000000");
        *(uint64_t *) field = n;
        return 0;
}

static int field_kind(sd_json_variant *v, void *field, char **ret_reason) {
        ServiceAuthKind k = service_auth_kind_from_string(sd_json_variant_string(v));

        if (k < 0)
                return refuse(ret_reason, "must be one of none, bearer, header, basic, oauth2-client-credentials");

        *(ServiceAuthKind *) field = k;
        return 0;
}

/* "line 4: auth.kind: REASON" */
static int fail(sd_json_variant *at, const char *path, const char *key, const char *reason, char **ret_error) {
        unsigned line = 0, column = 0;
        char *s;

        if (!ret_error)
                return -EINVAL;

        if (at)
                (void) sd_json_variant_get_source(at, NULL, &line, &column);
        if (line > 0)
                s = strprintf("line %u: %s%s%s: %s", line, path, isempty(path) ? "" : ".", key, reason);
        else
                s = strprintf("%s%s%s: %s", path, isempty(path) ? "" : ".", key, reason);
        if (!s)
                return -ENOMEM;

        free(*ret_error);
        *ret_error = s;
        return -EINVAL;
}

static char *path_join(const char *path, const char *key) {
        return strprintf("%s%s%s", path, isempty(path) ? "" : ".", key);
}

static int read_rules(sd_json_variant *v, const char *path, const char *key, ServiceRule **rules, size_t *n_rules,
                      char **ret_error) {
        size_t n = v ? sd_json_variant_elements(v) : 0;
        int r;

        if (n > RULES_MAX)
                return fail(v, path, key, "must have at most 256 entries", ret_error);

        *rules = calloc(n + 1, sizeof(ServiceRule));
        if (!*rules)
                return -ENOMEM;

        for (size_t i = 0; i < n; i++) {
                _cleanup_free_ char *where = strprintf("%s%s%s[%zu]", path, isempty(path) ? "" : ".", key, i);

                if (!where)
                        return -ENOMEM;
                r = rule_read(sd_json_variant_by_index(v, i), where, streq(key, "allow"), *rules + i, ret_error);
                if (r < 0)
                        return r;
                (*n_rules)++;
        }

        return 0;
}

/* Which members an auth object may and must have follows from its kind. */
static int read_auth(sd_json_variant *v, const char *path, ServiceParseFlags flags, ServiceAuth *a, char **ret_error) {
#define AT(member) offsetof(ServiceAuth, member)
#define KIND { "kind", SD_JSON_VARIANT_STRING, field_kind, AT(kind), true }
        static const JsonField plain[] = {
                KIND,
                {},
        };
        static const JsonField header[] = {
                KIND,
                { "name", SD_JSON_VARIANT_STRING, field_header_name, AT(name), true },
                {},
        };
        static const JsonField basic[] = {
                KIND,
                { "username", SD_JSON_VARIANT_STRING, field_username, AT(username), false },
                {},
        };
        static const JsonField oauth2[] = {
                KIND,
                { "token_url", SD_JSON_VARIANT_STRING, field_url, AT(token_url), true },
                { "client_id", SD_JSON_VARIANT_STRING, field_printable, AT(client_id), true },
                { "client_auth", SD_JSON_VARIANT_STRING, field_client_auth, AT(client_auth_post), false },
                { "scope", SD_JSON_VARIANT_STRING, field_printable, AT(scope), false },
                { "audience", SD_JSON_VARIANT_STRING, field_printable, AT(audience), false },
                {},
        };
#undef KIND
#undef AT
        static const JsonField *const tables[_SERVICE_AUTH_MAX] = {
                [SERVICE_AUTH_NONE] = plain,
                [SERVICE_AUTH_BEARER] = plain,
                [SERVICE_AUTH_HEADER] = header,
                [SERVICE_AUTH_BASIC] = basic,
                [SERVICE_AUTH_OAUTH2_CLIENT_CREDENTIALS] = oauth2,
        };
        _cleanup_free_ char *where = path_join(path, "auth");
        ServiceAuthKind kind;
        int r;

        if (!where)
                return -ENOMEM;

        /* An unknown kind is refused by the table's own reader, so any table does for it. */
        kind = service_auth_kind_from_string(json_string(v, "kind"));
        r = json_read_object(v, where, kind < 0 ? plain : tables[kind], a, ret_error);
        if (r < 0)
                return r;

        if (a->kind == SERVICE_AUTH_OAUTH2_CLIENT_CREDENTIALS && !a->token_url.tls && !(flags & SERVICE_ALLOW_HTTP))
                return fail(sd_json_variant_by_key(v, "token_url"), where, "token_url", "must start with https://",
                            ret_error);
        return 0;
}

static int read_nested(sd_json_variant *v, const char *path, const char *key, const JsonField *table, Service *s,
                       char **ret_error) {
        _cleanup_free_ char *where = NULL;

        if (!v)
                return 0;
        where = path_join(path, key);
        if (!where)
                return -ENOMEM;
        return json_read_object(v, where, table, s, ret_error);
}

/* Nested objects are kept until the outer one is read, because their errors name the whole path. */
typedef struct Parser {
        sd_json_variant *allow, *deny, *auth, *timeouts, *limits;
        char *name, *description;
        ServiceErrors errors;
        bool encoded_slash, cookies;
        ServiceUrl base_url;
} Parser;

static void parser_done(Parser *p) {
        sd_json_variant_unref(p->allow);
        sd_json_variant_unref(p->deny);
        sd_json_variant_unref(p->auth);
        sd_json_variant_unref(p->timeouts);
        sd_json_variant_unref(p->limits);
        free(p->name);
        free(p->description);
        service_url_done(&p->base_url);
}

int service_parse_variant(sd_json_variant *v, const char *path, ServiceParseFlags flags, Service **ret,
                          char **ret_error) {
        static const JsonField table[] = {
                { "name", SD_JSON_VARIANT_STRING, field_name, offsetof(Parser, name), true },
                { "description", SD_JSON_VARIANT_STRING, field_text, offsetof(Parser, description), false },
                { "base_url", SD_JSON_VARIANT_STRING, field_url, offsetof(Parser, base_url), true },
                { "allow", SD_JSON_VARIANT_ARRAY, json_field_variant, offsetof(Parser, allow), true },
                { "deny", SD_JSON_VARIANT_ARRAY, json_field_variant, offsetof(Parser, deny), false },
                { "auth", SD_JSON_VARIANT_OBJECT, json_field_variant, offsetof(Parser, auth), true },
                { "timeouts", SD_JSON_VARIANT_OBJECT, json_field_variant, offsetof(Parser, timeouts), false },
                { "limits", SD_JSON_VARIANT_OBJECT, json_field_variant, offsetof(Parser, limits), false },
                { "errors", SD_JSON_VARIANT_STRING, field_errors, offsetof(Parser, errors), false },
                { "encoded_slash", SD_JSON_VARIANT_BOOLEAN, json_field_bool, offsetof(Parser, encoded_slash), false },
                { "cookies", SD_JSON_VARIANT_BOOLEAN, json_field_bool, offsetof(Parser, cookies), false },
                {},
        };
        static const JsonField timeouts[] = {
                { "connect", _SD_JSON_VARIANT_TYPE_INVALID, field_timeout, offsetof(Service, connect_usec), false },
                { "first_byte", _SD_JSON_VARIANT_TYPE_INVALID, field_timeout, offsetof(Service, first_byte_usec),
                  false },
                { "idle", _SD_JSON_VARIANT_TYPE_INVALID, field_timeout, offsetof(Service, idle_usec), false },
                {},
        };
        static const JsonField limits[] = {
                { "body", _SD_JSON_VARIANT_TYPE_INVALID, field_body, offsetof(Service, body_max), false },
                { "requests_per_second", SD_JSON_VARIANT_UNSIGNED, field_count, offsetof(Service, rate), false },
                { "burst", SD_JSON_VARIANT_UNSIGNED, field_count, offsetof(Service, burst), false },
                { "concurrent", SD_JSON_VARIANT_UNSIGNED, field_count, offsetof(Service, concurrent), false },
                {},
        };
        _cleanup_(parser_done) Parser p = {};
        _cleanup_(service_unrefp) Service *s = NULL;
        int r;

        path = strempty(path);

        r = json_read_object(v, path, table, &p, ret_error);
        if (r < 0)
                return r;
        if (!p.base_url.tls && !(flags & SERVICE_ALLOW_HTTP))
                return fail(sd_json_variant_by_key(v, "base_url"), path, "base_url", "must start with https://",
                            ret_error);

        s = calloc(1, sizeof(*s));
        if (!s)
                return -ENOMEM;
        *s = (Service) {
                .n_ref = 1,
                .name = TAKE_PTR(p.name),
                .description = TAKE_PTR(p.description),
                .base_url = TAKE_GENERIC(p.base_url, ServiceUrl, (ServiceUrl) {}),
                .connect_usec = CONNECT_USEC_DEFAULT,
                .first_byte_usec = FIRST_BYTE_USEC_DEFAULT,
                .idle_usec = IDLE_USEC_DEFAULT,
                .body_max = BODY_MAX_DEFAULT,
                .errors = p.errors,
                .encoded_slash = p.encoded_slash,
                .cookies = p.cookies,
                .definition = sd_json_variant_ref(v),
        };

        r = read_rules(p.allow, path, "allow", &s->allow, &s->n_allow, ret_error);
        if (r >= 0)
                r = read_rules(p.deny, path, "deny", &s->deny, &s->n_deny, ret_error);
        if (r < 0)
                return r;
        r = read_auth(p.auth, path, flags, &s->auth, ret_error);
        if (r < 0)
                return r;
        r = read_nested(p.timeouts, path, "timeouts", timeouts, s, ret_error);
        if (r < 0)
                return r;
        r = read_nested(p.limits, path, "limits", limits, s, ret_error);
        if (r < 0)
                return r;

        *ret = TAKE_PTR(s);
        return 0;
}

int service_parse(const char *text, size_t size, ServiceParseFlags flags, Service **ret, char **ret_error) {
        _cleanup_json_ sd_json_variant *v = NULL;
        int r;

        r = json_parse(text, size, &v, ret_error);
        if (r < 0)
                return r;

        return service_parse_variant(v, "", flags, ret, ret_error);
}

int service_to_json(const Service *s, char **ret) {
        int r = json_format_canonical(s->definition, ret);
        return r < 0 ? r : 0; /* the length */
}
