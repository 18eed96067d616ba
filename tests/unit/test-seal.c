/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * Proves that a sealed credential opens for its own user, service, version and key and for nothing else, that
 * what is stored is found, replaced, listed and removed, and that headers are built from fit secrets only.
 */

#undef NDEBUG

#include <sys/stat.h>

#include "basic/fs-util.h"
#include "basic/string-util.h"
#include "credential-store.h"
#include "material.h"

#define CANARY "s3cr3t-canary-0123456789"

static char directory[] = "/tmp/test-seal-XXXXXX";

static Secret *make(const char *s) {
        Secret *r = NULL;

        assert(secret_new_from(s, strlen(s), &r) == 0);
        return r;
}

static Secret *make_key(char c) {
        char raw[SEAL_KEY_SIZE];
        Secret *k = NULL;

        memset(raw, c, sizeof(raw));
        assert(secret_new_from(raw, sizeof(raw), &k) == 0);
        return k;
}

static void test_secret(void) {
        _cleanup_(secret_freep) Secret *s = make("hello"), *big = NULL, *empty = NULL;

        assert(secret_size(s) == 5 && streq(secret_data(s), "hello"));
        secret_truncate(s, 2);
        assert(streq(secret_data(s), "he") && secret_data(s)[3] == 0 && secret_data(s)[4] == 0);
        assert(secret_new(SECRET_SIZE_MAX + 1, &big) == -EFBIG);
        assert(secret_new(SECRET_SIZE_MAX, &big) == 0);
        assert(secret_new(0, &empty) == 0 && secret_size(empty) == 0 && *secret_data(empty) == 0);
}

static void test_seal(void) {
        _cleanup_(secret_freep) Secret *key = make_key('k'), *other = make_key('x'), *s = make(CANARY), *out = NULL;
        _cleanup_free_ void *sealed = NULL, *again = NULL;
        SealInfo info = { .version = 1800000000000001, .form = SEAL_FORM_JSON }, got;
        size_t n, n2;

        assert(seal_encrypt(key, "alice", "market-data", &info, s, &sealed, &n) == 0);
        assert(n == SEAL_HEADER_SIZE + strlen(CANARY) + SEAL_TAG_SIZE);
        assert(!memmem(sealed, n, CANARY, 8));
        assert(seal_decrypt(key, "alice", "market-data", sealed, n, &got, &out) == 0);
        assert(got.version == info.version && got.form == SEAL_FORM_JSON && streq(secret_data(out), CANARY));
        out = secret_free(out);

        /* A fresh nonce each time. */
        assert(seal_encrypt(key, "alice", "market-data", &info, s, &again, &n2) == 0);
        assert(n == n2 && memcmp(sealed, again, n) != 0);

        assert(seal_decrypt(other, "alice", "market-data", sealed, n, &got, &out) == -EBADMSG);
        assert(seal_decrypt(key, "bob", "market-data", sealed, n, &got, &out) == -EBADMSG);
        assert(seal_decrypt(key, "alice", "market-datb", sealed, n, &got, &out) == -EBADMSG);
        assert(seal_decrypt(key, "alicem", "arket-data", sealed, n, &got, &out) == -EBADMSG);
        assert(seal_decrypt(key, "", "alicemarket-data", sealed, n, &got, &out) == -EBADMSG);

        /* Every bit counts, also those of version and form; and every length. */
        for (size_t i = 0; i < n; i++) {
                ((unsigned char *) sealed)[i] ^= 1;
                assert(seal_decrypt(key, "alice", "market-data", sealed, n, &got, &out) == -EBADMSG);
                ((unsigned char *) sealed)[i] ^= 1;
                assert(seal_decrypt(key, "alice", "market-data", sealed, i, &got, &out) == -EBADMSG);
        }
        assert(!out);
}

static void check(const char *text, int expected, SealForm form, const char *after) {
        _cleanup_(secret_freep) Secret *s = make(text);
        const char *reason = NULL;
        SealForm f;
        int r = credential_check(s, &f, &reason);

        if (r != expected)
                fprintf(stderr, "'%s' gave %d (%s)\n", text, r, strempty(reason));
        assert(r == expected);
        if (r < 0)
                assert(reason && !strstr(reason, CANARY));
        else
                assert(f == form && streq(secret_data(s), after));
}

static void test_check(void) {
        check(CANARY, 0, SEAL_FORM_TEXT, CANARY);
        check(CANARY "\n", 0, SEAL_FORM_TEXT, CANARY);
        check(CANARY "\n\n", -EINVAL, 0, NULL);
        check(CANARY "\r\n", -EINVAL, 0, NULL);
        check(CANARY "\r", -EINVAL, 0, NULL);
        check("a\nX-Evil: " CANARY, -EINVAL, 0, NULL);
        check("a\x01" CANARY, -EINVAL, 0, NULL);
        check("a\x7f", -EINVAL, 0, NULL);
        check("\xc3\xa4", -EINVAL, 0, NULL);
        check(" " CANARY, -EINVAL, 0, NULL);
        check(CANARY " ", -EINVAL, 0, NULL);
        check("a\tb", -EINVAL, 0, NULL);
        check("", -EINVAL, 0, NULL);
        check("\n", -EINVAL, 0, NULL);
        check("{\"client_secret\":\"" CANARY "\"}\n", 0, SEAL_FORM_JSON, "{\"client_secret\":\"" CANARY "\"}");
        check("{}", -EINVAL, 0, NULL);
        check("{\"a\":1}", -EINVAL, 0, NULL);
        check("{\"A\":\"" CANARY "\"}", -EINVAL, 0, NULL);
        check("{\"a\":\"" CANARY "\",\"a\":\"x\"}", -EINVAL, 0, NULL);
        check("{\"a\":\"" CANARY "\"", -EINVAL, 0, NULL);
        check("{" CANARY, -EINVAL, 0, NULL);

        /* A NUL inside. */
        _cleanup_(secret_freep) Secret *s = NULL;
        const char *reason = NULL;
        SealForm f;
        assert(secret_new_from("a\0b", 3, &s) == 0);
        assert(credential_check(s, &f, &reason) == -EINVAL);
}

static void test_store(void) {
        _cleanup_(credential_store_freep) CredentialStore *store = NULL, *second = NULL;
        _cleanup_(secret_freep) Secret *a = make(CANARY), *b = make("{\"x\":\"y\"}"), *out = NULL,
                                       *short_key = make("short");
        _cleanup_free_ char *path = strprintf("%s/alice/market-data", directory), *raw = NULL,
                            *copy = strprintf("%s/alice/other", directory), *home = strprintf("%s/alice", directory);
        CredentialEntry *l = NULL;
        SealInfo info, info2;
        struct stat st;
        size_t n;

        assert(credential_store_open(directory, short_key, &store) == -EKEYREJECTED);
        assert(credential_store_open(directory, make_key('k'), &store) == 0);
        assert(credential_store_load(store, "alice", "market-data", &info, &out) == -ENOENT);
        assert(credential_store_list(store, "alice", &l, &n) == 0 && n == 0);

        assert(credential_store_set(store, "alice", "market-data", SEAL_FORM_TEXT, a) == 0);
        assert(stat(path, &st) == 0 && (st.st_mode & 07777) == 0600);
        assert(stat(home, &st) == 0 && (st.st_mode & 07777) == 0700);
        assert(read_full_file_at(AT_FDCWD, path, 1 << 20, &raw, &n) == 0 && !memmem(raw, n, CANARY, 6));
        assert(credential_store_load(store, "alice", "market-data", &info, &out) == 0);
        assert(streq(secret_data(out), CANARY) && info.form == SEAL_FORM_TEXT && info.version > 0);
        out = secret_free(out);

        /* A new one replaces it, with a larger version. */
        assert(credential_store_set(store, "alice", "market-data", SEAL_FORM_JSON, b) == 0);
        assert(credential_store_peek(store, "alice", "market-data", &info2) == 0);
        assert(info2.version > info.version && info2.form == SEAL_FORM_JSON);

        assert(credential_store_set(store, "alice", "an-api", SEAL_FORM_TEXT, a) == 0);
        assert(credential_store_list(store, "alice", &l, &n) == 0);
        assert(n == 2 && streq(l[0].service, "an-api") && streq(l[1].service, "market-data"));
        assert(l[1].info.version == info2.version);
        credential_entries_free(l, n);

        /* Copied to another name, it does not open. */
        assert(link(path, copy) == 0);
        assert(credential_store_load(store, "alice", "other", NULL, &out) == -EBADMSG);
        assert(credential_store_remove(store, "alice", "other") == 0);

        /* Names that are paths. */
        assert(credential_store_set(store, "../alice", "x", SEAL_FORM_TEXT, a) == -EINVAL);
        assert(credential_store_set(store, "alice", "../x", SEAL_FORM_TEXT, a) == -EINVAL);
        assert(credential_store_set(store, "", "x", SEAL_FORM_TEXT, a) == -EINVAL);
        assert(credential_store_load(store, ".", "alice", NULL, &out) == -EINVAL);
        assert(!user_name_is_safe("..") && !user_name_is_safe("a/b") && !user_name_is_safe("-x") &&
               user_name_is_safe("alice_1"));

        /* Under another sealing key. */
        assert(credential_store_open(directory, make_key('z'), &second) == 0);
        assert(credential_store_load(second, "alice", "market-data", NULL, &out) == -EBADMSG);

        assert(credential_store_remove(store, "alice", "market-data") == 0);
        assert(credential_store_remove(store, "alice", "market-data") == -ENOENT);
        assert(credential_store_load(store, "alice", "market-data", &info, &out) == -ENOENT);
        assert(credential_store_remove(store, "bob", "x") == -ENOENT);
        assert(!out);
}

static Service *service(const char *auth) {
        _cleanup_free_ char *text =
                strprintf("{\"name\":\"x\",\"base_url\":\"https://h\",\"allow\":[],\"auth\":%s}", auth);
        Service *s = NULL;

        assert(service_parse(text, strlen(text), 0, &s, NULL) == 0);
        return s;
}

static void material(const char *auth, SealForm form, const char *credential, const char *name, const char *value) {
        _cleanup_(service_unrefp) Service *s = service(auth);
        _cleanup_(secret_freep) Secret *c = make(credential);
        Material m = {};
        int r = material_from_credential(s, form, c, &m);

        if (!value) {
                assert(r == -EINVAL && m.n_headers == 0 && m.n_redact == 0);
                return;
        }
        assert(r == 0 && m.n_headers == 1 && m.n_redact >= 1);
        assert(streq(m.headers[0].name, name) && streq(secret_data(m.headers[0].value), value));
        material_done(&m);
}

static void test_material(void) {
        _cleanup_(secret_freep) Secret *token = make("access-token"), *bad = make("a\r\nb");
        Material m = {};

        material("{\"kind\":\"bearer\"}", SEAL_FORM_TEXT, CANARY, "authorization", "Bearer " CANARY);
        material("{\"kind\":\"bearer\"}", SEAL_FORM_TEXT, "two words", NULL, NULL);
        material("{\"kind\":\"bearer\"}", SEAL_FORM_TEXT, "a\r\nb", NULL, NULL);
        material("{\"kind\":\"bearer\"}", SEAL_FORM_JSON, "{\"token\":\"x\"}", NULL, NULL);
        material("{\"kind\":\"header\",\"name\":\"X-Api-Key\"}", SEAL_FORM_TEXT, CANARY, "x-api-key", CANARY);
        material("{\"kind\":\"basic\",\"username\":\"u\"}", SEAL_FORM_TEXT, "password", "authorization",
                 "Basic dTpwYXNzd29yZA==");
        material("{\"kind\":\"basic\"}", SEAL_FORM_JSON, "{\"username\":\"u\",\"password\":\"password\"}",
                 "authorization", "Basic dTpwYXNzd29yZA==");
        material("{\"kind\":\"basic\",\"username\":\"u\"}", SEAL_FORM_JSON, "{\"password\":\"password\"}",
                 "authorization", "Basic dTpwYXNzd29yZA==");
        material("{\"kind\":\"basic\"}", SEAL_FORM_TEXT, "password", NULL, NULL);
        material("{\"kind\":\"basic\"}", SEAL_FORM_JSON, "{\"username\":\"u:v\",\"password\":\"p\"}", NULL, NULL);
        material("{\"kind\":\"basic\"}", SEAL_FORM_JSON, "{\"username\":\"u\",\"password\":\"p\",\"x\":\"y\"}", NULL,
                 NULL);
        material("{\"kind\":\"basic\",\"username\":\"u\"}", SEAL_FORM_JSON, "{\"username\":\"v\",\"password\":\"p\"}",
                 NULL, NULL);

        assert(material_from_token(token, &m) == 0);
        assert(streq(secret_data(m.headers[0].value), "Bearer access-token") &&
               streq(secret_data(m.redact[0]), "access-token"));
        material_done(&m);
        assert(material_from_token(bad, &m) == -EINVAL);
        assert(material_source(SERVICE_AUTH_NONE) == MATERIAL_NOTHING);
        assert(material_source(SERVICE_AUTH_OAUTH2_CLIENT_CREDENTIALS) == MATERIAL_TOKEN);
}

int main(void) {
        assert(mkdtemp(directory));
        test_secret();
        test_seal();
        test_check();
        test_store();
        test_material();
        assert(rm_rf_at(AT_FDCWD, directory) == 0);
        return 0;
}
