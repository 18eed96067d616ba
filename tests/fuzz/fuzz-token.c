/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * Feeds run_token_verify(). The first byte says what the rest is: 'C' claims and 'H' a header, each signed
 * with the key that is accepted, so that the input reaches the reader behind the signature; anything
 * else is a token as it is. What is accepted must have valid fields.
 */

#undef NDEBUG

#include <openssl/bio.h>
#include <openssl/ecdsa.h>
#include <openssl/evp.h>
#include <openssl/pem.h>

#include "basic/fs-util.h"
#include "basic/string-util.h"
#include "token/run-token.h"

#define NOW UINT64_C(1800000000)
#define CLAIMS                                                                                     \
        "{\"iss\":\"agentd\",\"aud\":\"agent-bridge\",\"sub\":\"alice\",\"app\":\"analyst\",\"session\":\"\","         \
        "\"run\":\"0123456789abcdef0123456789abcdef\",\"jti\":\"fedcba9876543210fedcba9876543210\",\"scope\":\"run\"," \
        "\"iat\":1800000000,\"nbf\":1800000000,\"exp\":1800000660}"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static SigningKey *key;
static EVP_PKEY *pkey;
static KeySet *keys;
static char directory[] = "/tmp/fuzz-token-XXXXXX";

static void cleanup(void) {
        keys = key_set_free(keys);
        key = signing_key_free(key);
        EVP_PKEY_free(pkey);
        rm_rf_at(AT_FDCWD, directory);
}

static void setup(void) {
        char path[PATH_MAX];
        BIO *b;

        assert(mkdtemp(directory));
        assert(signing_key_generate(&key) == 0);
        snprintf(path, sizeof(path), "%s/%s.pem", directory, signing_key_kid(key));
        assert(write_file_atomic(AT_FDCWD, path, signing_key_public_pem(key), strlen(signing_key_public_pem(key)), 0644,
                                 (uid_t) -1, (gid_t) -1, 0) == 0);
        assert(key_set_load(directory, &keys) == 0);

        b = BIO_new_mem_buf(signing_key_private_pem(key), -1);
        pkey = PEM_read_bio_PrivateKey(b, NULL, NULL, NULL);
        assert(pkey);
        BIO_free(b);
        atexit(cleanup);
}

static char *token_sign(const void *header, size_t header_size, const void *claims, size_t claims_size) {
        _cleanup_free_ char *h = base64url_encode(header, header_size), *c = base64url_encode(claims, claims_size),
                            *in = strprintf("%s.%s", h, c), *s = NULL;
        EVP_MD_CTX *ctx = EVP_MD_CTX_new();
        unsigned char der[128], raw[64];
        const unsigned char *p = der;
        size_t n = sizeof(der);
        ECDSA_SIG *sig;

        assert(in && ctx && EVP_DigestSignInit(ctx, NULL, EVP_sha256(), NULL, pkey) == 1);
        assert(EVP_DigestSign(ctx, der, &n, (const unsigned char *) in, strlen(in)) == 1);
        sig = d2i_ECDSA_SIG(NULL, &p, (long) n);
        assert(sig);
        assert(BN_bn2binpad(ECDSA_SIG_get0_r(sig), raw, 32) == 32);
        assert(BN_bn2binpad(ECDSA_SIG_get0_s(sig), raw + 32, 32) == 32);
        ECDSA_SIG_free(sig);
        EVP_MD_CTX_free(ctx);

        s = base64url_encode(raw, sizeof(raw));
        return strprintf("%s.%s", in, s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
        _cleanup_free_ char *token = NULL, *header = NULL;
        _cleanup_run_claims_ RunClaims c = {};
        size_t len;

        if (!key)
                setup();

        if (size > 0 && data[0] == 'C') {
                header = strprintf("{\"alg\":\"ES256\",\"kid\":\"%s\",\"typ\":\"JWT\"}", signing_key_kid(key));
                token = token_sign(header, strlen(header), data + 1, size - 1);
                len = strlen(token);
        } else if (size > 0 && data[0] == 'H') {
                token = token_sign(data + 1, size - 1, CLAIMS, strlen(CLAIMS));
                len = strlen(token);
        } else {
                token = malloc(MAX(size, (size_t) 1)); /* exactly as large as it is said to be */
                assert(token);
                memcpy(token, data, size);
                len = size;
        }

        if (run_token_verify(keys, token, len, NOW, &c) >= 0) {
                assert(c.exp > NOW && c.exp <= NOW + RUN_TOKEN_TTL_MAX_SEC);
                assert(run_id_is_valid(c.run) && run_id_is_valid(c.jti));
                assert(!isempty(c.user) && !string_has_cc(c.user));
                assert(object_name_is_valid(c.agent));
        }

        return 0;
}
