/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include <errno.h>
#include <linux/fsverity.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>

#include "image/layer-seal.h"

#define BLOCK_SIZE 4096
#define HASH_SIZE 32

int layer_seal(int fd) {
        struct fsverity_enable_arg arg = {
                .version = 1,
                .hash_algorithm = FS_VERITY_HASH_ALG_SHA256,
                .block_size = BLOCK_SIZE,
        };

        if (ioctl(fd, FS_IOC_ENABLE_VERITY, &arg) >= 0 || errno == EEXIST)
                return 1;
        /* EINVAL: the file system's own blocks are smaller than those of the tree. */
        return errno == ENOTTY || errno == EOPNOTSUPP || errno == EINVAL ? 0 : -errno;
}

int layer_seal_measure(int fd, char ret[static DIGEST_LEN + 1]) {
        union {
                struct fsverity_digest header;
                unsigned char room[sizeof(struct fsverity_digest) + HASH_SIZE];
        } d = { .header.digest_size = HASH_SIZE };

        if (ioctl(fd, FS_IOC_MEASURE_VERITY, &d) < 0)
                return errno == ENODATA || errno == ENOTTY || errno == EOPNOTSUPP ? 0 :
                       errno == EOVERFLOW                                         ? -EBADMSG :
                                                                                    -errno;
        if (d.header.digest_algorithm != FS_VERITY_HASH_ALG_SHA256 || d.header.digest_size != HASH_SIZE)
                return -EBADMSG;
        memcpy(ret, "sha256:", 7);
        for (unsigned i = 0; i < HASH_SIZE; i++)
                snprintf(ret + 7 + 2 * i, 3, "%02x", d.room[sizeof(struct fsverity_digest) + i]);
        return 1;
}
