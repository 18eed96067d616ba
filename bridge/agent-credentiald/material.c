/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include "basic/json-util.h"
#include "basic/string-util.h"
#include "material.h"

void material_done(Material *m) {
        for (size_t i = 0; i < m->n_headers; i++)
                secret_free(m->headers[i].value);
        for (size_t i = 0; i < m->n_redact; i++)
                secret_free(m->redact[i]);
        *m = (Material) {};
}

static int material_redact(Material *m, const char *s, size_t n) {
        int r;

        /* Too short to be told from ordinary text: replacing it would spoil answers and prove that it is there. */
        if (n < 6)
                return 0;
        assert(m->n_redact < MATERIAL_REDACT_MAX);
        r = secret_new_from(s, n, &m->redact[m->n_redact]);
        if (r < 0)
                return r;
        m->n_redact++;
        return 0;
}

/* The one place where a secret becomes a header value: checked again, whatever was checked when it was stored. */
static int material_header(Material *m, const char *name, const char *prefix, const char *value, size_t n) {
        size_t k = strlen(prefix);
        Secret *s;
        int r;

        if (!header_value_is_safe(value, n))
                return -EINVAL;

        assert(m->n_headers < MATERIAL_HEADERS_MAX);
        r = secret_new(k + n, &s);
        if (r < 0)
                return r;
        memcpy(secret_buffer(s), prefix, k);
        memcpy(secret_buffer(s) + k, value, n);
        m->headers[m->n_headers].name = name;
        m->headers[m->n_headers++].value = s;
        return 0;
}

/* Parsed and marked, so that the parser's copies are wiped as well. */
static int credential_parse(const Secret *credential, sd_json_variant **ret) {
        sd_json_variant *v;
        int r;

        r = json_parse(secret_data(credential), secret_size(credential), &v, NULL);
        if (r < 0)
                return r;
        sd_json_variant_sensitive(v);
        *ret = v;
        return 0;
}

static int member_take(sd_json_variant *v, const char *name, Secret **ret) {
        const char *s = json_string(v, name);

        if (!s || *s == 0)
                return -EINVAL;
        for (const char *p = s; *p; p++)
                if ((unsigned char) *p < 0x20 || *p == 0x7f)
                        return -EINVAL;
        return secret_new_from(s, strlen(s), ret);
}

int credential_member(SealForm form, const Secret *credential, const char *name, bool text_is_it, Secret **ret) {
        _cleanup_json_ sd_json_variant *v = NULL;
        int r;

        if (form == SEAL_FORM_TEXT)
                return text_is_it ? secret_new_from(secret_data(credential), secret_size(credential), ret) : -EINVAL;

        r = credential_parse(credential, &v);
        if (r < 0)
                return r;
        if (sd_json_variant_elements(v) != 2)
                return -EINVAL;
        return member_take(v, name, ret);
}

static int build_bearer(const Service *s, SealForm form, const Secret *credential, Material *m) {
        int r;

        if (form != SEAL_FORM_TEXT || memchr(secret_data(credential), ' ', secret_size(credential)))
                return -EINVAL;
        r = material_header(m, "authorization", "Bearer ", secret_data(credential), secret_size(credential));
        if (r < 0)
                return r;
        return material_redact(m, secret_data(credential), secret_size(credential));
}

static int build_header(const Service *s, SealForm form, const Secret *credential, Material *m) {
        int r;

        if (form != SEAL_FORM_TEXT)
                return -EINVAL;
        r = material_header(m, s->auth.name, "", secret_data(credential), secret_size(credential));
        if (r < 0)
                return r;
        return material_redact(m, secret_data(credential), secret_size(credential));
}

/* The password alone with the user name of the definition, or {"username","password"}. */
static int build_basic(const Service *s, SealForm form, const Secret *credential, Material *m) {
        _cleanup_(secret_freep) Secret *username = NULL, *password = NULL, *pair = NULL;
        _cleanup_(secret_string_freep) char *encoded = NULL;
        _cleanup_json_ sd_json_variant *v = NULL;
        const char *u;
        size_t n, k;
        int r;

        if (form == SEAL_FORM_TEXT) {
                if (!s->auth.username)
                        return -EINVAL;
                r = secret_new_from(secret_data(credential), secret_size(credential), &password);
                if (r < 0)
                        return r;
        } else {
                bool has_user;

                r = credential_parse(credential, &v);
                if (r < 0)
                        return r;
                has_user = sd_json_variant_by_key(v, "username");
                if (has_user == !!s->auth.username || sd_json_variant_elements(v) != (has_user ? 4U : 2U))
                        return -EINVAL;
                if (has_user) {
                        r = member_take(v, "username", &username);
                        if (r < 0)
                                return r;
                        if (strchr(secret_data(username), ':'))
                                return -EINVAL;
                }
                r = member_take(v, "password", &password);
                if (r < 0)
                        return r;
        }

        u = username ? secret_data(username) : s->auth.username;
        n = strlen(u);
        k = secret_size(password);
        r = secret_new(n + 1 + k, &pair);
        if (r < 0)
                return r;
        memcpy(secret_buffer(pair), u, n);
        secret_buffer(pair)[n] = ':';
        memcpy(secret_buffer(pair) + n + 1, secret_data(password), k);

        encoded = base64_encode(secret_data(pair), secret_size(pair));
        if (!encoded)
                return -ENOMEM;
        r = material_header(m, "authorization", "Basic ", encoded, strlen(encoded));
        if (r < 0)
                return r;
        r = material_redact(m, secret_data(password), k);
        if (r < 0)
                return r;
        return material_redact(m, encoded, strlen(encoded));
}

static const struct {
        MaterialSource source;
        int (*build)(const Service *s, SealForm form, const Secret *credential, Material *m);
} kinds[_SERVICE_AUTH_MAX] = {
        [SERVICE_AUTH_NONE] = { MATERIAL_NOTHING, NULL },
        [SERVICE_AUTH_BEARER] = { MATERIAL_CREDENTIAL, build_bearer },
        [SERVICE_AUTH_HEADER] = { MATERIAL_CREDENTIAL, build_header },
        [SERVICE_AUTH_BASIC] = { MATERIAL_CREDENTIAL, build_basic },
        [SERVICE_AUTH_OAUTH2_CLIENT_CREDENTIALS] = { MATERIAL_TOKEN, NULL },
};

MaterialSource material_source(ServiceAuthKind kind) {
        assert(kind >= 0 && kind < _SERVICE_AUTH_MAX);
        return kinds[kind].source;
}

int material_from_credential(const Service *s, SealForm form, const Secret *credential, Material *ret) {
        Material m = {};
        int r;

        assert(kinds[s->auth.kind].build);
        r = kinds[s->auth.kind].build(s, form, credential, &m);
        if (r < 0) {
                material_done(&m);
                return r;
        }

        *ret = m;
        return 0;
}

int material_from_token(const Secret *token, Material *ret) {
        Material m = {};
        int r;

        r = material_header(&m, "authorization", "Bearer ", secret_data(token), secret_size(token));
        if (r >= 0)
                r = material_redact(&m, secret_data(token), secret_size(token));
        if (r < 0) {
                material_done(&m);
                return r;
        }

        *ret = m;
        return 0;
}
