/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * Proves that a run token is accepted in one spelling with one algorithm and one set of claims, and that
 * all known ways to talk a JWT library out of its checks are refused. Forged tokens are made here
 * with libcrypto alone, so that the forger is not bound by what libjwt would write.
 */

#undef NDEBUG

#include <openssl/bio.h>
#include <openssl/ecdsa.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/pem.h>
#include <sys/stat.h>

#include "basic/fs-util.h"
#include "basic/string-util.h"
#include "token/run-token.h"

#define NOW UINT64_C(1800000000)
#define RUN "0123456789abcdef0123456789abcdef"
#define JTI "fedcba9876543210fedcba9876543210"

static SigningKey *key;
static KeySet *keys;
static char directory[] = "/tmp/test-token-XXXXXX";

static RunClaims example(void) {
        return (RunClaims) {
                .user = (char *) "alice", .agent = (char *) "analyst", .session = (char *) "", .run = RUN, .jti = JTI,
                .iat = NOW, .nbf = NOW, .exp = NOW + 660,
        };
}

static void write_key(const char *kid, const char *pem) {
        _cleanup_free_ char *path = strprintf("%s/%s.pem", directory, kid);

        assert(path);
        assert(write_file_atomic(AT_FDCWD, path, pem, strlen(pem), 0644, (uid_t) -1, (gid_t) -1, 0) == 0);
}

static int verify_at(const char *token, size_t len, uint64_t now) {
        _cleanup_run_claims_ RunClaims c = {};
        return run_token_verify(keys, token, len, now, &c);
}

static int verify(const char *token) {
        return verify_at(token, strlen(token), NOW);
}

/* ES256 (or with another digest) over header.claims, r and s as JWS wants them. */
static char *sign_raw(SigningKey *k, const char *input, const EVP_MD *md) {
        BIO *b = BIO_new_mem_buf(signing_key_private_pem(k), -1);
        EVP_PKEY *pkey = PEM_read_bio_PrivateKey(b, NULL, NULL, NULL);
        EVP_MD_CTX *ctx = EVP_MD_CTX_new();
        unsigned char der[256], raw[64] = {};
        const unsigned char *p = der;
        size_t n = sizeof(der);
        ECDSA_SIG *sig;
        char *text;

        assert(EVP_DigestSignInit(ctx, NULL, md, NULL, pkey) == 1);
        assert(EVP_DigestSign(ctx, der, &n, (const unsigned char *) input, strlen(input)) == 1);
        sig = d2i_ECDSA_SIG(NULL, &p, (long) n);
        assert(sig);
        assert(BN_bn2binpad(ECDSA_SIG_get0_r(sig), raw, 32) == 32);
        assert(BN_bn2binpad(ECDSA_SIG_get0_s(sig), raw + 32, 32) == 32);
        text = base64url_encode(raw, sizeof(raw));
        assert(text);

        ECDSA_SIG_free(sig);
        EVP_MD_CTX_free(ctx);
        EVP_PKEY_free(pkey);
        BIO_free(b);
        return text;
}

static char *signing_input(const char *header, const char *claims) {
        _cleanup_free_ char *h = base64url_encode(header, strlen(header)),
                            *c = base64url_encode(claims, strlen(claims));
        char *s = strprintf("%s.%s", h, c);

        assert(h && c && s);
        return s;
}

static char *forge_full(SigningKey *k, const char *header, const char *claims, const EVP_MD *md) {
        _cleanup_free_ char *input = signing_input(header, claims), *sig = sign_raw(k, input, md);
        char *s = strprintf("%s.%s", input, sig);

        assert(s);
        return s;
}

static char *good_header(void) {
        char *s = strprintf("{\"alg\":\"ES256\",\"kid\":\"%s\",\"typ\":\"JWT\"}", signing_key_kid(key));
        assert(s);
        return s;
}

static const char *const good_claims[][2] = {
        { "iss", "\"agentd\"" },  { "aud", "\"agent-bridge\"" }, { "sub", "\"alice\"" },   { "app", "\"analyst\"" },
        { "session", "\"\"" },    { "run", "\"" RUN "\"" },      { "jti", "\"" JTI "\"" }, { "scope", "\"run\"" },
        { "iat", "1800000000" },  { "nbf", "1800000000" },       { "exp", "1800000660" },
};

/* The good claims with one replaced (VALUE), left out (VALUE NULL) or, where NAME is none of them, added. */
static char *claims_with(const char *name, const char *value) {
        char *s = strdup("{"), *t;
        bool found = false;

        for (size_t i = 0; i < ELEMENTSOF(good_claims); i++) {
                const char *v = good_claims[i][1];

                if (name && streq(good_claims[i][0], name)) {
                        found = true;
                        v = value;
                }
                if (!v)
                        continue;
                t = strprintf("%s%s\"%s\":%s", s, s[1] ? "," : "", good_claims[i][0], v);
                assert(t);
                free(s);
                s = t;
        }
        if (name && !found) {
                t = strprintf("%s,\"%s\":%s", s, name, value);
                assert(t);
                free(s);
                s = t;
        }
        t = strprintf("%s}", s);
        assert(t);
        free(s);
        return t;
}

static int verify_claims_text_at(const char *claims, uint64_t now) {
        _cleanup_free_ char *h = good_header(), *t = forge_full(key, h, claims, EVP_sha256());
        return verify_at(t, strlen(t), now);
}

static int verify_claim(const char *name, const char *value) {
        _cleanup_free_ char *c = claims_with(name, value);
        return verify_claims_text_at(c, NOW);
}

/* libjwt parses the claims too, before it checks the signature: what it dislikes is reported as such. */
static bool refused(int r) {
        return r == -EBADMSG || r == -EKEYREJECTED;
}

static int verify_header(const char *header) {
        _cleanup_free_ char *c = claims_with(NULL, NULL), *t = forge_full(key, header, c, EVP_sha256());
        return verify(t);
}

static void test_round_trip(void) {
        _cleanup_run_claims_ RunClaims got = {};
        _cleanup_free_ char *token = NULL;
        RunClaims c = example();

        c.session = (char *) "monday:1";
        assert(run_token_mint(key, &c, &token) == 0);
        assert(strlen(token) < 1024);
        assert(run_token_verify(keys, token, strlen(token), NOW, &got) == 0);
        assert(streq(got.user, "alice") && streq(got.agent, "analyst") && streq(got.session, "monday:1"));
        assert(streq(got.run, RUN) && streq(got.jti, JTI));
        assert(got.iat == NOW && got.nbf == NOW && got.exp == NOW + 660);

        /* What is forged here with the right parts passes: the refusals below are for their reason only. */
        assert(verify_claim(NULL, NULL) == 0);
}

/* The header is what the contract says, to the byte. */
static void test_header_bytes(void) {
        _cleanup_free_ char *token = NULL, *expected = NULL, *h = good_header();
        RunClaims c = example();

        assert(run_token_mint(key, &c, &token) == 0);
        expected = base64url_encode(h, strlen(h));
        assert(startswith(token, expected));
}

static void test_mint_refuses(void) {
        char *token = NULL;
        RunClaims c;

        c = example(), c.user = NULL;
        assert(run_token_mint(key, &c, &token) == -EINVAL);
        c = example(), c.user = (char *) "a\nb";
        assert(run_token_mint(key, &c, &token) == -EINVAL);
        c = example(), c.agent = (char *) "../x";
        assert(run_token_mint(key, &c, &token) == -EINVAL);
        c = example(), c.run[3] = 'X';
        assert(run_token_mint(key, &c, &token) == -EINVAL);
        c = example(), c.jti[0] = 0;
        assert(run_token_mint(key, &c, &token) == -EINVAL);
        c = example(), c.exp = c.iat;
        assert(run_token_mint(key, &c, &token) == -EINVAL);
        c = example(), c.exp = c.iat + RUN_TOKEN_TTL_MAX_SEC + 1;
        assert(run_token_mint(key, &c, &token) == -EINVAL);
        assert(!token);
}

/* Cases 1 to 3: the algorithm is a constant. */
static void test_algorithms(void) {
        static const char *const algs[] = {
                "\"none\"", "\"None\"", "\"NONE\"", "\"\"", "\"HS256\"", "\"HS384\"", "\"RS256\"", "\"ES384\"",
                "\"ES512\"", "\"ES256K\"", "\"es256\"", "\"ES256 \"", "\"BOGUS\"", "256", "null", "true",
                "[\"ES256\"]", "{}", "\"ES256\\u0000\"",
        };

        for (size_t i = 0; i < ELEMENTSOF(algs); i++) {
                _cleanup_free_ char *h = strprintf("{\"alg\":%s,\"kid\":\"%s\",\"typ\":\"JWT\"}", algs[i],
                                                   signing_key_kid(key));
                assert(verify_header(h) == -EBADMSG);
        }

        /* Unsigned, in all its forms. */
        for (size_t i = 0; i < 4; i++) {
                _cleanup_free_ char *h = strprintf("{\"alg\":\"none\",\"kid\":\"%s\",\"typ\":\"JWT\"}",
                                                   signing_key_kid(key)),
                                    *c = claims_with(NULL, NULL),
                                    *in = signing_input(i < 2 ? h : "{\"alg\":\"none\"}", c),
                                    *t = strprintf("%s%s", in, i % 2 ? "." : "");
                assert(verify(t) == -EBADMSG);
        }

        /* HS256 with our public key as the secret, as an empty secret, and labelled as what we accept. */
        for (size_t i = 0; i < 4; i++) {
                _cleanup_free_ char *h = strprintf("{\"alg\":\"%s\",\"kid\":\"%s\",\"typ\":\"JWT\"}",
                                                   i < 2 ? "HS256" : "ES256", signing_key_kid(key)),
                                    *c = claims_with(NULL, NULL), *in = signing_input(h, c), *sig = NULL, *t = NULL;
                const char *secret = i % 2 ? "" : signing_key_public_pem(key);
                unsigned char mac[32];
                unsigned n = 0;

                assert(HMAC(EVP_sha256(), secret, (int) strlen(secret), (const unsigned char *) in, strlen(in), mac,
                            &n));
                sig = base64url_encode(mac, n);
                t = strprintf("%s.%s", in, sig);
                assert(verify(t) == -EBADMSG);
        }

        /* The right label, another digest. */
        {
                _cleanup_free_ char *h = good_header(), *c = claims_with(NULL, NULL),
                                    *t = forge_full(key, h, c, EVP_sha384());
                assert(verify(t) == -EKEYREJECTED);
        }

        /* All zero, and r = s = 1. */
        for (unsigned i = 0; i < 2; i++) {
                _cleanup_free_ char *h = good_header(), *c = claims_with(NULL, NULL), *in = signing_input(h, c),
                                    *sig = NULL, *t = NULL;
                unsigned char raw[64] = {};

                raw[31] = raw[63] = (unsigned char) i;
                sig = base64url_encode(raw, sizeof(raw));
                t = strprintf("%s.%s", in, sig);
                assert(verify(t) == -EKEYREJECTED);
        }
}

static void test_header(void) {
        const char *kid = signing_key_kid(key);
        static const char *const kids[] = {
                "../../etc/passwd", "/dev/null", "", "0123456789abcde", "0123456789abcdef0", "0123456789ABCDEF",
                "0123456789abcde/", "0123456789abcd\\u0000e", "http://evil/", "' OR 1=1 --  ",
        };

        for (size_t i = 0; i < ELEMENTSOF(kids); i++) {
                _cleanup_free_ char *h = strprintf("{\"alg\":\"ES256\",\"kid\":\"%s\",\"typ\":\"JWT\"}", kids[i]);
                assert(verify_header(h) == -EBADMSG);
        }
        assert(verify_header("{\"alg\":\"ES256\",\"kid\":\"0123456789abcdef\",\"typ\":\"JWT\"}") == -ENOKEY);
        assert(verify_header("{\"alg\":\"ES256\",\"kid\":1,\"typ\":\"JWT\"}") == -EBADMSG);
        assert(verify_header("{\"alg\":\"ES256\",\"typ\":\"JWT\"}") == -EBADMSG);
        assert(verify_header("[]") == -EBADMSG);
        assert(verify_header("null") == -EBADMSG);

#define WITH_KID(fmt)                                                                              \
        {                                                                                          \
                _cleanup_free_ char *h = strprintf(fmt, kid);                                      \
                assert(h && verify_header(h) == -EBADMSG);                                         \
        }
        WITH_KID("{\"alg\":\"ES256\",\"kid\":\"%s\"}");
        WITH_KID("{\"alg\":\"ES256\",\"kid\":\"%s\",\"typ\":\"jwt\"}");
        WITH_KID("{\"alg\":\"ES256\",\"kid\":\"%s\",\"typ\":\"JWT\",\"crit\":[\"exp\"]}");
        WITH_KID("{\"alg\":\"ES256\",\"kid\":\"%s\",\"typ\":\"JWT\",\"jku\":\"https://evil/\"}");
        WITH_KID("{\"alg\":\"ES256\",\"alg\":\"none\",\"kid\":\"%s\",\"typ\":\"JWT\"}");
        WITH_KID("{\"alg\":\"none\",\"kid\":\"%s\",\"typ\":\"JWT\",\"alg\":\"ES256\"}");
        WITH_KID("{\"alg\":\"ES256\",\"kid\":\"%s\",\"typ\":\"JWT\"}x");
        WITH_KID("{\"alg\":\"ES256\",\"kid\":\"%s\",\"typ\":\"JWT\"}{}");
        WITH_KID("{\"Alg\":\"ES256\",\"kid\":\"%s\",\"typ\":\"JWT\"}");
#undef WITH_KID
}

/* Case 5, and its kind. */
static void test_numbers(void) {
        static const char *const bad[] = {
                "99999999999999999999999999",
                "1e300",
                "1e26",
                "1.8e9",
                "1800000660.0",
                "1800000660.5",
                "\"1800000660\"",
                "-1",
                "0",
                "-0",
                "1.5",
                "null",
                "true",
                "[1800000660]",
                "{}",
                "9223372036854775807",
                "9223372036854775808",
                "18446744073709551615",
                "18446744073709551616",
                "-9223372036854775808",
                "01800000660",
                "+1800000660",
                "0x6b49d200",
                "NaN",
                "Infinity",
        };
        static const char *const names[] = { "exp", "iat", "nbf" };

        for (size_t n = 0; n < ELEMENTSOF(names); n++)
                for (size_t i = 0; i < ELEMENTSOF(bad); i++) {
                        int r = verify_claim(names[n], bad[i]);
                        assert(refused(r) || r == -EKEYEXPIRED);
                }
}

/* For what is known to go on from elsewhere: its end is no bound, all else is. */
static void test_lasting(void) {
        _cleanup_free_ char *h = good_header(), *c = claims_with(NULL, NULL), *late = claims_with("nbf", "1800000100"),
                            *token = forge_full(key, h, c, EVP_sha256()), *early = forge_full(key, h, late, EVP_sha256());
        const uint64_t years = UINT64_C(10) * 365 * 24 * 3600;
        _cleanup_run_claims_ RunClaims got = {}, none = {};

        assert(verify_at(token, strlen(token), NOW + years) == -EKEYEXPIRED);
        assert(run_token_verify_lasting(keys, token, strlen(token), NOW + years, &got) == 0 && streq(got.run, RUN));
        assert(verify_at(token, strlen(token), NOW + years) == -EKEYEXPIRED);
        assert(run_token_verify_lasting(keys, early, strlen(early), NOW, &none) == -EKEYEXPIRED);
        token[strlen(token) - 10] ^= 1;
        assert(run_token_verify_lasting(keys, token, strlen(token), NOW + years, &none) < 0);
}

/* Case 14: leeway for iat and nbf, none for exp. */
static void test_times(void) {
        _cleanup_free_ char *c = claims_with(NULL, NULL);

        assert(verify_claims_text_at(c, NOW + 659) == 0);
        assert(verify_claims_text_at(c, NOW + 660) == -EKEYEXPIRED);
        assert(verify_claims_text_at(c, NOW + 661) == -EKEYEXPIRED);
        assert(verify_claims_text_at(c, NOW - RUN_TOKEN_LEEWAY_SEC) == 0);
        assert(verify_claims_text_at(c, NOW - RUN_TOKEN_LEEWAY_SEC - 1) == -EKEYEXPIRED);
        assert(verify_claim("nbf", "1800000003") == 0);
        assert(verify_claim("nbf", "1800000100") == -EKEYEXPIRED);
        assert(verify_claim("exp", "1799999999") < 0);
        /* Too long a life, from now or from its start. */
        assert(verify_claim("exp", "1900000000") == -EBADMSG);
        assert(verify_claim("iat", "1500000000") == -EBADMSG);
}

/* Case 6: everything must be there, of its type, and nothing else. */
static void test_claims(void) {
        for (size_t i = 0; i < ELEMENTSOF(good_claims); i++) {
                const char *name = good_claims[i][0];

                assert(refused(verify_claim(name, NULL)));
                assert(refused(verify_claim(name, "null")));
                assert(refused(verify_claim(name, "[]")));
                assert(refused(verify_claim(name, "{}")));
                assert(refused(verify_claim(name, "false")));
        }

        assert(refused(verify_claim("iss", "\"agentD\"")));
        assert(refused(verify_claim("aud", "\"agent-bridge2\"")));
        assert(refused(verify_claim("aud", "[\"agent-bridge\"]")));
        assert(refused(verify_claim("scope", "\"run admin\"")));
        assert(refused(verify_claim("scope", "\"\"")));
        assert(refused(verify_claim("sub", "\"\"")));
        assert(refused(verify_claim("sub", "\"a\\nb\"")));
        assert(refused(verify_claim("sub", "\"a\\u0000b\"")));
        assert(refused(verify_claim("app", "\"../x\"")));
        assert(refused(verify_claim("run", "\"0123\"")));
        assert(refused(verify_claim("run", "\"0123456789ABCDEF0123456789abcdef\"")));
        assert(refused(verify_claim("jti", "\"*\"")));
        assert(refused(verify_claim("session", "\"a b\"")));
        assert(refused(verify_claim("admin", "true")));

        assert(refused(verify_claims_text_at("{}", NOW)));
        assert(refused(verify_claims_text_at("[]", NOW)));
        assert(refused(verify_claims_text_at("x", NOW)));
        assert(refused(verify_claims_text_at("\xff\xfe", NOW)));

        /* Twice, with the good one first or last; and bytes behind the end. */
        {
                _cleanup_free_ char *c = claims_with(NULL, NULL), *body = strndup(c + 1, strlen(c) - 2), *t = NULL;

                t = strprintf("{\"sub\":\"root\",%s}", body);
                assert(refused(verify_claims_text_at(t, NOW)));
                free(t);
                t = strprintf("{%s,\"run\":\"%s\"}", body, JTI);
                assert(refused(verify_claims_text_at(t, NOW)));
                free(t);
                t = strprintf("{%s} {}", body);
                assert(refused(verify_claims_text_at(t, NOW)));
                free(t);
                t = strprintf("{%s}\n//", body);
                assert(refused(verify_claims_text_at(t, NOW)));
        }
}

/* Case 8: one spelling. */
static void test_spelling(void) {
        _cleanup_free_ char *token = NULL;
        RunClaims c = example();
        size_t n;

        assert(run_token_mint(key, &c, &token) == 0);
        n = strlen(token);

#define EXPECT_BAD(...)                                                                            \
        {                                                                                          \
                _cleanup_free_ char *t = strprintf(__VA_ARGS__);                                   \
                assert(t && verify(t) == -EBADMSG);                                                \
        }
        EXPECT_BAD("%s=", token);
        EXPECT_BAD("%s==", token);
        EXPECT_BAD("%s\n", token);
        EXPECT_BAD(" %s", token);
        EXPECT_BAD("%s ", token);
        EXPECT_BAD("%s.", token);
        EXPECT_BAD(".%s", token);
        EXPECT_BAD("%s.x", token);
        EXPECT_BAD("%s,%s", token, token);
        EXPECT_BAD("%.*s", (int) (n - 1), token);
        EXPECT_BAD("%sA", token);
        EXPECT_BAD("%sAA", token);
        EXPECT_BAD("%.*s=%s", 10, token, token + 10);
        EXPECT_BAD("Bearer %s", token);
#undef EXPECT_BAD

        assert(verify_at(token, n + 1, NOW) == -EBADMSG); /* the NUL */
        assert(verify_at(token, 0, NOW) == -EBADMSG);

        /* Each byte changed: no other text verifies. 64 bytes leave four unused bits in the last character. */
        for (size_t i = 0; i < n; i++) {
                static const char others[] = { 'A', 'Q', 'z', '9', '-', '_', '+', '/', '=', '.', 0, (char) 0xff };

                for (size_t k = 0; k < sizeof(others); k++) {
                        _cleanup_free_ char *t = strdup(token);

                        if (t[i] == others[k])
                                continue;
                        t[i] = others[k];
                        assert(verify_at(t, n, NOW) < 0);
                }
        }
}

/* Case 10. */
static void test_size(void) {
        _cleanup_free_ char *big = malloc(1 << 20), *deep = malloc(5001), *t = NULL, *c = claims_with(NULL, NULL);

        memset(big, 'A', 1 << 20);
        big[1000] = big[2000] = '.';
        assert(verify_at(big, 1 << 20, NOW) == -EBADMSG);
        assert(verify_at(big, RUN_TOKEN_SIZE_MAX, NOW) == -EBADMSG);

        memset(deep, '[', 2500);
        memset(deep + 2500, ']', 2500);
        deep[5000] = 0;
        assert(refused(verify_claims_text_at(deep, NOW)));
        assert(verify_header(deep) == -EBADMSG);

        /* Nested inside an else good token. */
        deep[2600] = 0;
        t = strprintf("{\"x\":%s,%s", deep + 2500 - 100, c + 1);
        assert(refused(verify_claims_text_at(t, NOW)));
}

/* A key of somebody else, also under our key id, and a set that changes below us. */
static void test_keys(void) {
        _cleanup_(signing_key_freep) SigningKey *other = NULL, *again = NULL;
        _cleanup_free_ char *h = good_header(), *c = claims_with(NULL, NULL), *t = forge_full(key, h, c, EVP_sha256()),
                            *stolen = NULL, *own = NULL, *path = NULL;
        RunClaims claims = example();

        assert(signing_key_generate(&other) == 0);
        assert(!streq(signing_key_kid(other), signing_key_kid(key)));

        /* Our key id on their signature. */
        stolen = forge_full(other, h, c, EVP_sha256());
        assert(verify(stolen) == -EKEYREJECTED);

        /* Their own, until their key is in the set. */
        assert(run_token_mint(other, &claims, &own) == 0);
        assert(verify(own) == -ENOKEY);

        /* A file with the wrong name for its key is none. */
        write_key("00000000000000aa", signing_key_public_pem(other));
        write_key("notes", "hello");
        assert(verify(own) == -ENOKEY);
        assert(key_set_size(keys) == 1);

        write_key(signing_key_kid(other), signing_key_public_pem(other));
        assert(verify(own) == 0);
        assert(key_set_size(keys) == 2);

        path = strprintf("%s/%s.pem", directory, signing_key_kid(other));
        assert(unlink(path) == 0);
        assert(verify(own) == -ENOKEY);
        assert(verify(t) == 0);

        /* Through its PEM and back the key is the same. */
        assert(signing_key_from_pem(signing_key_private_pem(key), strlen(signing_key_private_pem(key)), &again) == 0);
        assert(streq(signing_key_kid(again), signing_key_kid(key)));
        assert(streq(signing_key_public_pem(again), signing_key_public_pem(key)));
}

static void test_other_key_types(void) {
        static const char *const curves[] = { "P-384", "P-521", "secp256k1" };
        char kid[KEY_ID_LEN + 1];
        SigningKey *k = NULL;

        for (size_t i = 0; i <= ELEMENTSOF(curves); i++) {
                EVP_PKEY *p = i < ELEMENTSOF(curves) ? EVP_EC_gen(curves[i]) : EVP_RSA_gen(2048);
                BIO *priv = BIO_new(BIO_s_mem()), *pub = BIO_new(BIO_s_mem());
                char *data;
                long n;

                assert(p && PEM_write_bio_PrivateKey(priv, p, NULL, NULL, 0, NULL, NULL) == 1);
                assert(PEM_write_bio_PUBKEY(pub, p) == 1);
                n = BIO_get_mem_data(priv, &data);
                assert(signing_key_from_pem(data, (size_t) n, &k) == -EKEYREJECTED);
                n = BIO_get_mem_data(pub, &data);
                assert(public_key_kid(data, (size_t) n, kid) == -EKEYREJECTED);
                BIO_free(priv);
                BIO_free(pub);
                EVP_PKEY_free(p);
        }

        assert(signing_key_from_pem("x", 1, &k) == -EKEYREJECTED);
        assert(signing_key_from_pem("", 0, &k) == -EKEYREJECTED);
        assert(!k);
}

static void test_missing_directory(void) {
        _cleanup_(key_set_freep) KeySet *s = NULL;

        assert(key_set_load("/nonexistent/keys", &s) == 0);
        assert(key_set_size(s) == 0);
        assert(key_set_refresh(s) == -ENOENT);
        assert(!key_set_find(s, "0123456789abcdef", 16));
}

/* A directory that is old tells any change by its own times, so it is not read again; but it may be another one. */
static void test_directory_anew(void) {
        static const struct timespec past[2] = { { .tv_sec = 1000000000 }, { .tv_sec = 1000000000 } };
        _cleanup_(key_set_freep) KeySet *s = NULL;
        _cleanup_free_ char *dir = strprintf("%s/anew", directory),
                            *path = strprintf("%s/%s.pem", dir, signing_key_kid(key));
        const char *pem = signing_key_public_pem(key);

        assert(mkdir(dir, 0755) == 0);
        assert(write_file_atomic(AT_FDCWD, path, pem, strlen(pem), 0644, (uid_t) -1, (gid_t) -1, 0) == 0);
        assert(utimensat(AT_FDCWD, dir, past, 0) == 0);
        assert(key_set_load(dir, &s) == 0 && key_set_size(s) == 1);
        assert(key_set_refresh(s) == 0);

        assert(rm_rf_at(AT_FDCWD, dir) == 0);
        assert(key_set_refresh(s) == -ENOENT && key_set_size(s) == 0);

        assert(mkdir(dir, 0755) == 0 && utimensat(AT_FDCWD, dir, past, 0) == 0);
        assert(key_set_refresh(s) == 1 && key_set_size(s) == 0);
        assert(key_set_refresh(s) == 0);
        assert(rm_rf_at(AT_FDCWD, dir) == 0 && mkdir(dir, 0755) == 0);
        assert(write_file_atomic(AT_FDCWD, path, pem, strlen(pem), 0644, (uid_t) -1, (gid_t) -1, 0) == 0);
        assert(utimensat(AT_FDCWD, dir, past, 0) == 0); /* the times of the one before */
        assert(key_set_refresh(s) == 1 && key_set_size(s) == 1);
}

static void test_jti(void) {
        char a[RUN_ID_LEN + 1], b[RUN_ID_LEN + 1];

        assert(run_token_new_jti(a) == 0 && run_token_new_jti(b) == 0);
        assert(run_id_is_valid(a) && run_id_is_valid(b) && !streq(a, b));
}

int main(void) {
        assert(mkdtemp(directory));
        assert(signing_key_generate(&key) == 0);
        write_key(signing_key_kid(key), signing_key_public_pem(key));
        assert(key_set_load(directory, &keys) == 0);
        assert(key_set_size(keys) == 1);

        test_round_trip();
        test_header_bytes();
        test_mint_refuses();
        test_algorithms();
        test_header();
        test_numbers();
        test_times();
        test_lasting();
        test_claims();
        test_spelling();
        test_size();
        test_keys();
        test_other_key_types();
        test_missing_directory();
        test_directory_anew();
        test_jti();

        keys = key_set_free(keys);
        key = signing_key_free(key);
        assert(rm_rf_at(AT_FDCWD, directory) == 0);
        return 0;
}
