/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include <jwt.h>
#include <openssl/evp.h>
#include <sys/random.h>

#include "basic/json-util.h"
#include "basic/string-util.h"
#include "token/run-token.h"

/*
 * libjwt signs and checks the signature, no more: its decoder takes the algorithm from the token,
 * clamps integers and treats absent claims as valid. So everything is read here from the very bytes that
 * are signed, before (form, algorithm, key id) and after (claims) it is called.
 */

#define HEADER_SIZE_MAX 256U
#define SIGNATURE_LEN 64U /* r and s of P-256 */

/* More than a claim of ours can need, and no way to fill a log line. */
#define CLAIM_STRING_MAX 256U

void run_claims_done(RunClaims *c) {
        if (!c)
                return;

        free(c->user);
        free(c->agent);
        free(c->session);
        *c = (RunClaims) {};
}

RunClaims *run_claims_free(RunClaims *c) {
        if (!c)
                return NULL;
        run_claims_done(c);
        return mfree(c);
}

static int claims_copy(const RunClaims *c, RunClaims *ret) {
        RunClaims copy = *c;

        copy.user = strdup(c->user);
        copy.agent = strdup(strempty(c->agent));
        copy.session = strdup(strempty(c->session));
        if (!copy.user || !copy.agent || !copy.session) {
                run_claims_done(&copy);
                return -ENOMEM;
        }
        *ret = copy;
        return 0;
}

int run_token_new_jti(char ret[static RUN_ID_LEN + 1]) {
        unsigned char random[RUN_ID_LEN / 2];
        _cleanup_free_ char *hex = NULL;

        if (getrandom(random, sizeof(random), 0) != (ssize_t) sizeof(random))
                return -errno;

        hex = hex_encode(random, sizeof(random));
        if (!hex)
                return -ENOMEM;

        memcpy(ret, hex, RUN_ID_LEN + 1);
        return 0;
}

static bool claim_string_is_valid(const char *s) {
        size_t n = strlen(s);
        return n <= CLAIM_STRING_MAX && utf8_is_valid(s, n) && !string_has_cc(s);
}

static bool claims_are_valid(const RunClaims *c) {
        if (isempty(c->user) || !claim_string_is_valid(c->user))
                return false;
        if (!object_name_is_valid(strempty(c->agent)))
                return false;
        if (!isempty(c->session) && !token_name_is_valid(c->session))
                return false;
        if (!run_id_is_valid(c->run) || !run_id_is_valid(c->jti))
                return false;
        if (c->nbf > c->exp || c->iat >= c->exp)
                return false;
        /* A token whose whole life is longer than what is believed of its rest would be refused at first. */
        return c->exp - c->iat <= RUN_TOKEN_TTL_MAX_SEC;
}

static inline void jwt_freep(jwt_t **j) {
        jwt_free(*j);
}

int run_token_mint(const SigningKey *key, const RunClaims *claims, char **ret) {
        _cleanup_(jwt_freep) jwt_t *jwt = NULL;
        const char *pem = signing_key_private_pem(key);
        char *text, *copy;
        int r;

        if (!claims_are_valid(claims))
                return -EINVAL;

        r = jwt_new(&jwt);
        if (r != 0)
                return -ENOMEM;

        if (jwt_add_header(jwt, "kid", signing_key_kid(key)) != 0 ||
            jwt_add_grant(jwt, "iss", RUN_TOKEN_ISSUER) != 0 ||
            jwt_add_grant(jwt, "aud", RUN_TOKEN_AUDIENCE) != 0 ||
            jwt_add_grant(jwt, "scope", RUN_TOKEN_SCOPE) != 0 ||
            jwt_add_grant(jwt, "sub", claims->user) != 0 ||
            jwt_add_grant(jwt, "app", claims->agent) != 0 ||
            jwt_add_grant(jwt, "session", strempty(claims->session)) != 0 ||
            jwt_add_grant(jwt, "run", claims->run) != 0 ||
            jwt_add_grant(jwt, "jti", claims->jti) != 0 ||
            jwt_add_grant_int(jwt, "iat", (long) claims->iat) != 0 ||
            jwt_add_grant_int(jwt, "nbf", (long) claims->nbf) != 0 ||
            jwt_add_grant_int(jwt, "exp", (long) claims->exp) != 0)
                return -ENOMEM;

        r = jwt_set_alg(jwt, JWT_ALG_ES256, (const unsigned char *) pem, (int) strlen(pem));
        if (r != 0)
                return -EINVAL;

        text = jwt_encode_str(jwt);
        if (!text)
                return -EIO;

        copy = strlen(text) <= RUN_TOKEN_SIZE_MAX ? strdup(text) : NULL;
        explicit_bzero(text, strlen(text));
        jwt_free_str(text);
        if (!copy)
                return -ENOMEM;

        *ret = copy;
        return 0;
}

/* Cuts TEXT into exactly three parts of the base64url alphabet, none of them empty. */
static int token_split(const char *text, size_t len, const char *parts[static 3], size_t sizes[static 3]) {
        size_t n = 0, start = 0;

        if (len == 0 || len > RUN_TOKEN_SIZE_MAX)
                return -EBADMSG;

        for (size_t i = 0; i <= len; i++) {
                char c = i < len ? text[i] : '.';

                if (c == '.') {
                        if (n == 3 || i == start)
                                return -EBADMSG;
                        parts[n] = text + start;
                        sizes[n++] = i - start;
                        start = i + 1;
                } else if (!((c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' ||
                             c == '_'))
                        return -EBADMSG;
        }

        return n == 3 ? 0 : -EBADMSG;
}

/* json_parse() refuses duplicates, trailing bytes, NUL and deep nesting. */
static int part_parse(const char *part, size_t size, sd_json_variant **ret) {
        _cleanup_json_ sd_json_variant *v = NULL;
        _cleanup_free_ void *data = NULL;
        _cleanup_free_ char *reason = NULL;
        size_t n;
        int r;

        r = base64url_decode(part, size, &data, &n);
        if (r == -ENOMEM)
                return r;
        if (r < 0)
                return -EBADMSG;

        r = json_parse(data, n, &v, &reason);
        if (r == -ENOMEM)
                return r;
        if (r < 0 || !sd_json_variant_is_object(v))
                return -EBADMSG;

        *ret = TAKE_PTR(v);
        return 0;
}

/* json_string() answers NULL for what is not a string. */
static bool member_is(sd_json_variant *v, const char *key, const char *expected) {
        return streq_ptr(json_string(v, key), expected);
}

static int member_string(sd_json_variant *v, const char *key, char **ret) {
        const char *s = json_string(v, key);
        char *copy;

        if (!s || !claim_string_is_valid(s))
                return -EBADMSG;

        copy = strdup(s);
        if (!copy)
                return -ENOMEM;

        *ret = copy;
        return 0;
}

static int member_time(sd_json_variant *v, const char *key, uint64_t *ret) {
        sd_json_variant *m = sd_json_variant_by_key(v, key);
        sd_json_variant_type_t t;
        int64_t i;

        if (!m)
                return -EBADMSG;

        /* The type as it was written: 1.0 and 1e3 are real numbers, and not ours even where they are whole. */
        t = sd_json_variant_type(m);
        if (t != SD_JSON_VARIANT_INTEGER && t != SD_JSON_VARIANT_UNSIGNED)
                return -EBADMSG;
        if (t == SD_JSON_VARIANT_UNSIGNED && sd_json_variant_unsigned(m) > (uint64_t) INT64_MAX)
                return -EBADMSG;

        i = sd_json_variant_integer(m);
        if (i <= 0)
                return -EBADMSG;

        *ret = (uint64_t) i;
        return 0;
}

static int header_check(const char *part, size_t size, char kid[static KEY_ID_LEN + 1]) {
        _cleanup_json_ sd_json_variant *v = NULL;
        const char *k;
        int r;

        if (size > HEADER_SIZE_MAX)
                return -EBADMSG;

        r = part_parse(part, size, &v);
        if (r < 0)
                return r;

        /* Exactly alg, kid and typ: "crit", "jwk", "jku", "x5u" and friends have no place here. (An object's
         * elements are keys and values.) */
        if (sd_json_variant_elements(v) != 2 * 3 || !member_is(v, "alg", "ES256") || !member_is(v, "typ", "JWT"))
                return -EBADMSG;

        k = json_string(v, "kid");
        if (!k || !key_id_is_valid(k, strlen(k)))
                return -EBADMSG;

        memcpy(kid, k, KEY_ID_LEN + 1);
        return 0;
}

static int claims_parse(const char *part, size_t size, RunClaims *ret) {
        _cleanup_json_ sd_json_variant *v = NULL;
        _cleanup_run_claims_ RunClaims c = {};
        const char *run, *jti;
        int r;

        r = part_parse(part, size, &v);
        if (r < 0)
                return r;

        if (sd_json_variant_elements(v) != 2 * 11)
                return -EBADMSG;

        if (!member_is(v, "iss", RUN_TOKEN_ISSUER) || !member_is(v, "aud", RUN_TOKEN_AUDIENCE) ||
            !member_is(v, "scope", RUN_TOKEN_SCOPE))
                return -EBADMSG;

        run = json_string(v, "run");
        jti = json_string(v, "jti");
        if (!run || !run_id_is_valid(run) || !jti || !run_id_is_valid(jti))
                return -EBADMSG;
        memcpy(c.run, run, RUN_ID_LEN + 1);
        memcpy(c.jti, jti, RUN_ID_LEN + 1);

        if ((r = member_string(v, "sub", &c.user)) < 0 || (r = member_string(v, "app", &c.agent)) < 0 ||
            (r = member_string(v, "session", &c.session)) < 0 || (r = member_time(v, "iat", &c.iat)) < 0 ||
            (r = member_time(v, "nbf", &c.nbf)) < 0 || (r = member_time(v, "exp", &c.exp)) < 0)
                return r;

        if (!claims_are_valid(&c))
                return -EBADMSG;

        *ret = c;
        c = (RunClaims) {};
        return 0;
}

static int claims_check_time(const RunClaims *c, uint64_t now, bool lasting) {
        if (c->exp > now + RUN_TOKEN_TTL_MAX_SEC)
                return -EBADMSG;
        if (c->exp <= now && !lasting)
                return -EKEYEXPIRED;
        if (c->nbf > now + RUN_TOKEN_LEEWAY_SEC || c->iat > now + RUN_TOKEN_LEEWAY_SEC)
                return -EKEYEXPIRED;
        return 0;
}

static int signature_check(const char *token, const char *pem) {
        _cleanup_(jwt_freep) jwt_t *jwt = NULL;
        int r;

        r = jwt_decode(&jwt, token, (const unsigned char *) pem, (int) strlen(pem));
        if (r == ENOMEM)
                return -ENOMEM;
        if (r != 0)
                return -EKEYREJECTED;

        /* Header was compared already; this guards against libjwt reading it differently from us. */
        return jwt_get_alg(jwt) == JWT_ALG_ES256 ? 0 : -EKEYREJECTED;
}

static int digest_of(const char *text, size_t len, uint8_t ret[static KEY_SET_DIGEST_LEN]) {
        static EVP_MD *sha256; /* for the life of the process: looking it up takes longer than using it */

        if (!sha256)
                sha256 = EVP_MD_fetch(NULL, "SHA256", NULL);
        return sha256 && EVP_Digest(text, len, ret, NULL, sha256, NULL) == 1 ? 0 : -ENOMEM;
}

/* Everything but what the time has to do with it. */
static int token_read(KeySet *keys, const char *text, size_t len, RunClaims *ret) {
        _cleanup_free_ char *token = NULL;
        _cleanup_free_ void *signature = NULL;
        char kid[KEY_ID_LEN + 1];
        const char *parts[3], *pem;
        size_t sizes[3], n;
        int r;

        r = token_split(text, len, parts, sizes);
        if (r < 0)
                return r;

        r = header_check(parts[0], sizes[0], kid);
        if (r < 0)
                return r;

        /* Strictly too: a re-spelled signature is another text for the same token. */
        r = base64url_decode(parts[2], sizes[2], &signature, &n);
        if (r == -ENOMEM)
                return r;
        if (r < 0 || n != SIGNATURE_LEN)
                return -EBADMSG;

        pem = key_set_find(keys, kid, KEY_ID_LEN);
        if (!pem)
                return -ENOKEY;

        token = strndup(text, len);
        if (!token)
                return -ENOMEM;
        r = signature_check(token, pem);
        explicit_bzero(token, len);
        if (r < 0)
                return r;
        return claims_parse(parts[1], sizes[1], ret);
}

static int verify(KeySet *keys, const char *text, size_t len, uint64_t now, bool lasting, RunClaims *ret) {
        uint8_t digest[KEY_SET_DIGEST_LEN];
        const RunClaims *known;
        int r;

        if (len == 0 || len > RUN_TOKEN_SIZE_MAX)
                return -EBADMSG;
        (void) key_set_refresh(keys); /* first: it may forget all */
        r = digest_of(text, len, digest);
        if (r < 0)
                return r;

        known = key_set_get_verified(keys, digest);
        if (!known) {
                RunClaims *c = calloc(1, sizeof(RunClaims));

                r = c ? token_read(keys, text, len, c) : -ENOMEM;
                if (r < 0) {
                        run_claims_free(c);
                        return r;
                }
                key_set_note_verified(keys, digest, c);
                known = c;
        }
        r = claims_check_time(known, now, lasting);
        return r < 0 ? r : claims_copy(known, ret);
}

int run_token_verify(KeySet *keys, const char *text, size_t len, uint64_t now, RunClaims *ret) {
        return verify(keys, text, len, now, false, ret);
}

int run_token_verify_lasting(KeySet *keys, const char *text, size_t len, uint64_t now, RunClaims *ret) {
        return verify(keys, text, len, now, true, ret);
}
