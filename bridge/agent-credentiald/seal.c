/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include <endian.h>
#include <openssl/evp.h>
#include <sys/random.h>

#include "seal.h"

#define NONCE_OFFSET 17U
#define NONCE_SIZE 12U

static const unsigned char magic[8] = { 'A', 'G', 'C', 'R', 'E', 'D', 0, 1 };

static const unsigned char *bytes(const Secret *s) {
        return (const unsigned char *) secret_data(s);
}

static inline void cipher_ctx_freep(EVP_CIPHER_CTX **c) {
        EVP_CIPHER_CTX_free(*c);
}

/* Everything of the header but the nonce, then both names with their NULs, so that no two pairs read alike. */
static int add_associated(EVP_CIPHER_CTX *c, bool encrypt, const unsigned char *header, const char *user,
                          const char *service) {
        int (*update)(EVP_CIPHER_CTX *, unsigned char *, int *, const unsigned char *, int) =
                        encrypt ? EVP_EncryptUpdate : EVP_DecryptUpdate;
        int n;

        if (update(c, NULL, &n, header, NONCE_OFFSET) != 1 ||
            update(c, NULL, &n, (const unsigned char *) user, (int) strlen(user) + 1) != 1 ||
            update(c, NULL, &n, (const unsigned char *) service, (int) strlen(service) + 1) != 1)
                return -EIO;

        return 0;
}

int seal_encrypt(const Secret *key, const char *user, const char *service, const SealInfo *info, const Secret *secret,
                 void **ret, size_t *ret_size) {
        _cleanup_(cipher_ctx_freep) EVP_CIPHER_CTX *c = NULL;
        _cleanup_free_ unsigned char *buf = NULL;
        size_t size = secret_size(secret);
        uint64_t version = htole64(info->version);
        int n, r;

        if (secret_size(key) != SEAL_KEY_SIZE || size > SECRET_SIZE_MAX)
                return -EINVAL;

        buf = malloc(SEAL_HEADER_SIZE + size + SEAL_TAG_SIZE);
        c = EVP_CIPHER_CTX_new();
        if (!buf || !c)
                return -ENOMEM;

        memcpy(buf, magic, sizeof(magic));
        memcpy(buf + 8, &version, sizeof(version));
        buf[16] = (unsigned char) info->form;
        if (getrandom(buf + NONCE_OFFSET, NONCE_SIZE, 0) != NONCE_SIZE)
                return -errno;

        if (EVP_EncryptInit_ex2(c, EVP_aes_256_gcm(), bytes(key), buf + NONCE_OFFSET, NULL) != 1)
                return -EIO;
        r = add_associated(c, true, buf, user, service);
        if (r < 0)
                return r;
        if (EVP_EncryptUpdate(c, buf + SEAL_HEADER_SIZE, &n, bytes(secret), (int) size) != 1 ||
            (size_t) n != size || EVP_EncryptFinal_ex(c, buf + SEAL_HEADER_SIZE + size, &n) != 1 || n != 0 ||
            EVP_CIPHER_CTX_ctrl(c, EVP_CTRL_AEAD_GET_TAG, SEAL_TAG_SIZE, buf + SEAL_HEADER_SIZE + size) != 1)
                return -EIO;

        *ret = TAKE_PTR(buf);
        *ret_size = SEAL_HEADER_SIZE + size + SEAL_TAG_SIZE;
        return 0;
}

int seal_peek(const void *data, size_t size, SealInfo *ret) {
        const unsigned char *p = data;
        uint64_t version;

        if (size < SEAL_HEADER_SIZE || memcmp(p, magic, sizeof(magic)) != 0 || p[16] >= _SEAL_FORM_MAX)
                return -EBADMSG;

        memcpy(&version, p + 8, sizeof(version));
        *ret = (SealInfo) {
                .version = le64toh(version),
                .form = (SealForm) p[16],
        };
        return 0;
}

int seal_decrypt(const Secret *key, const char *user, const char *service, const void *data, size_t size,
                 SealInfo *ret_info, Secret **ret) {
        _cleanup_(cipher_ctx_freep) EVP_CIPHER_CTX *c = NULL;
        _cleanup_(secret_freep) Secret *s = NULL;
        const unsigned char *p = data;
        unsigned char tag[SEAL_TAG_SIZE], last[16];
        SealInfo info;
        int n, r;

        if (secret_size(key) != SEAL_KEY_SIZE)
                return -EINVAL;

        r = seal_peek(data, size, &info);
        if (r < 0)
                return r;
        if (size < SEAL_HEADER_SIZE + SEAL_TAG_SIZE || size > SEALED_SIZE_MAX)
                return -EBADMSG;
        size -= SEAL_HEADER_SIZE + SEAL_TAG_SIZE;

        r = secret_new(size, &s);
        if (r < 0)
                return r;
        c = EVP_CIPHER_CTX_new();
        if (!c)
                return -ENOMEM;

        memcpy(tag, p + SEAL_HEADER_SIZE + size, sizeof(tag));
        if (EVP_DecryptInit_ex2(c, EVP_aes_256_gcm(), bytes(key), p + NONCE_OFFSET, NULL) != 1)
                return -EIO;
        r = add_associated(c, false, p, user, service);
        if (r < 0)
                return r;
        if (EVP_DecryptUpdate(c, (unsigned char *) secret_buffer(s), &n, p + SEAL_HEADER_SIZE, (int) size) != 1 ||
            (size_t) n != size || EVP_CIPHER_CTX_ctrl(c, EVP_CTRL_AEAD_SET_TAG, SEAL_TAG_SIZE, tag) != 1)
                return -EIO;
        if (EVP_DecryptFinal_ex(c, last, &n) != 1)
                return -EBADMSG;

        if (ret_info)
                *ret_info = info;
        *ret = TAKE_PTR(s);
        return 0;
}
