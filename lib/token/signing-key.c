/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include <openssl/bio.h>
#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/sha.h>
#include <openssl/x509.h>

#include "token/signing-key.h"

#define KEY_PEM_MAX (16U * 1024U)

struct SigningKey {
        char kid[KEY_ID_LEN + 1];
        char *public_pem;
        char *private_pem;
};

static inline void pkey_freep(EVP_PKEY **p) {
        EVP_PKEY_free(*p);
}
static inline void bio_freep(BIO **p) {
        BIO_free_all(*p);
}

/* Without this libcrypto asks on the terminal for the passphrase of an encrypted PEM. */
static int no_passphrase(char *buf, int size, int rwflag, void *userdata) {
        (void) buf;
        (void) size;
        (void) rwflag;
        (void) userdata;
        return -1;
}

/* The one curve there is. A key with parameters spelled out instead of named is not P-256 for us. */
static bool key_is_p256(EVP_PKEY *k) {
        char group[32];
        size_t n = 0;

        if (EVP_PKEY_get_base_id(k) != EVP_PKEY_EC)
                return false;
        if (EVP_PKEY_get_group_name(k, group, sizeof(group), &n) != 1)
                return false;

        return streq(group, "prime256v1");
}

static int key_id(EVP_PKEY *k, char ret[static KEY_ID_LEN + 1]) {
        static const char digits[] = "0123456789abcdef";
        unsigned char *der = NULL, hash[SHA256_DIGEST_LENGTH];
        int n;

        n = i2d_PUBKEY(k, &der);
        if (n <= 0)
                return -ENOMEM;

        SHA256(der, (size_t) n, hash);
        OPENSSL_free(der);

        for (size_t i = 0; i < KEY_ID_LEN / 2; i++) {
                ret[2 * i] = digits[hash[i] >> 4];
                ret[2 * i + 1] = digits[hash[i] & 15];
        }
        ret[KEY_ID_LEN] = 0;
        return 0;
}

static int bio_to_string(BIO *b, char **ret) {
        char *data, *s;
        long n;

        n = BIO_get_mem_data(b, &data);
        if (n <= 0)
                return -ENOMEM;

        s = strndup(data, (size_t) n);
        if (!s)
                return -ENOMEM;

        *ret = s;
        return 0;
}

SigningKey *signing_key_free(SigningKey *k) {
        if (!k)
                return NULL;

        if (k->private_pem)
                explicit_bzero(k->private_pem, strlen(k->private_pem));
        free(k->private_pem);
        free(k->public_pem);
        return mfree(k);
}

static int signing_key_from_pkey(EVP_PKEY *pkey, SigningKey **ret) {
        _cleanup_(signing_key_freep) SigningKey *k = NULL;
        _cleanup_(bio_freep) BIO *pub = NULL, *priv = NULL;
        int r;

        k = calloc(1, sizeof(*k));
        if (!k)
                return -ENOMEM;

        r = key_id(pkey, k->kid);
        if (r < 0)
                return r;

        pub = BIO_new(BIO_s_mem());
        priv = BIO_new(BIO_s_secmem());
        if (!pub || !priv)
                return -ENOMEM;

        if (PEM_write_bio_PUBKEY(pub, pkey) != 1 ||
            PEM_write_bio_PKCS8PrivateKey(priv, pkey, NULL, NULL, 0, NULL, NULL) != 1)
                return -ENOMEM;

        r = bio_to_string(pub, &k->public_pem);
        if (r < 0)
                return r;
        r = bio_to_string(priv, &k->private_pem);
        if (r < 0)
                return r;

        *ret = TAKE_PTR(k);
        return 0;
}

int signing_key_generate(SigningKey **ret) {
        _cleanup_(pkey_freep) EVP_PKEY *pkey = NULL;

        pkey = EVP_EC_gen("P-256");
        if (!pkey)
                return -EIO;

        return signing_key_from_pkey(pkey, ret);
}

int signing_key_from_pem(const char *pem, size_t size, SigningKey **ret) {
        _cleanup_(pkey_freep) EVP_PKEY *pkey = NULL;
        _cleanup_(bio_freep) BIO *b = NULL;

        if (size == 0 || size > KEY_PEM_MAX)
                return -EKEYREJECTED;

        b = BIO_new_mem_buf(pem, (int) size);
        if (!b)
                return -ENOMEM;

        pkey = PEM_read_bio_PrivateKey(b, NULL, no_passphrase, NULL);
        if (!pkey || !key_is_p256(pkey))
                return -EKEYREJECTED;

        return signing_key_from_pkey(pkey, ret);
}

const char *signing_key_kid(const SigningKey *k) {
        return k->kid;
}

const char *signing_key_public_pem(const SigningKey *k) {
        return k->public_pem;
}

const char *signing_key_private_pem(const SigningKey *k) {
        return k->private_pem;
}

int public_key_kid(const char *pem, size_t size, char ret[static KEY_ID_LEN + 1]) {
        _cleanup_(pkey_freep) EVP_PKEY *pkey = NULL;
        _cleanup_(bio_freep) BIO *b = NULL;

        if (size == 0 || size > KEY_PEM_MAX)
                return -EKEYREJECTED;

        b = BIO_new_mem_buf(pem, (int) size);
        if (!b)
                return -ENOMEM;

        pkey = PEM_read_bio_PUBKEY(b, NULL, no_passphrase, NULL);
        if (!pkey || !key_is_p256(pkey))
                return -EKEYREJECTED;

        return key_id(pkey, ret);
}

bool key_id_is_valid(const char *s, size_t len) {
        if (!s || len != KEY_ID_LEN)
                return false;

        for (size_t i = 0; i < len; i++)
                if (!((s[i] >= '0' && s[i] <= '9') || (s[i] >= 'a' && s[i] <= 'f')))
                        return false;

        return true;
}
