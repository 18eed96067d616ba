/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Two readers of libarchive, one on top of the other: the lower one undoes compression ("raw"), the upper one is the
 * caller's and gets its bytes through a callback. */
#include <archive_entry.h>
#include <openssl/evp.h>

#include "basic/name-util.h"
#include "basic/string-util.h"
#include "report.h"
#include "stall.h"
#include "stream.h"

struct Stream {
        struct archive *raw;
        EVP_MD_CTX *md;
        uint64_t bytes, bytes_max;
        bool over, too_long;
};

Stream *stream_free(Stream *s) {
        if (!s)
                return NULL;
        archive_read_free(s->raw);
        EVP_MD_CTX_free(s->md);
        return mfree(s);
}

int stream_open(int fd, uint64_t bytes_max, bool hash, Stream **ret) {
        _cleanup_(stream_freep) Stream *s = calloc(1, sizeof *s);
        struct archive_entry *e;
        int r;

        if (!s)
                return report_errno(-ENOMEM, "Unpacking");
        s->bytes_max = bytes_max;
        s->raw = archive_read_new();
        s->md = hash ? EVP_MD_CTX_new() : NULL;
        if (!s->raw || (hash && (!s->md || EVP_DigestInit_ex(s->md, EVP_sha256(), NULL) != 1)))
                return report_errno(-ENOMEM, "Unpacking");
        /* Not ..._all(): some of those run programs. */
        archive_read_support_filter_gzip(s->raw);
        archive_read_support_filter_bzip2(s->raw);
        archive_read_support_filter_xz(s->raw);
        archive_read_support_filter_lzma(s->raw);
        archive_read_support_filter_zstd(s->raw);
        archive_read_support_filter_lz4(s->raw);
        archive_read_support_filter_compress(s->raw);
        archive_read_support_format_raw(s->raw);
        archive_read_support_format_empty(s->raw);
        r = stall_open_reader(s->raw, fd);
        if (r == ARCHIVE_OK)
                do
                        r = archive_read_next_header(s->raw, &e);
                while (r == ARCHIVE_RETRY);
        if (r == ARCHIVE_EOF)
                s->over = true;
        else if (r < ARCHIVE_WARN)
                return report_error(0, "InvalidImage", "This is no tar archive: %s",
                                    strempty(archive_error_string(s->raw)));
        *ret = TAKE_PTR(s);
        return 0;
}

/* The next bytes; 0 at the end, negative where the lower reader says why not. */
static la_ssize_t next(Stream *s, const void **ret) {
        for (;;) {
                la_int64_t offset;
                size_t n = 0;
                int r;

                if (s->over)
                        return 0;
                r = archive_read_data_block(s->raw, ret, &n, &offset);
                if (r == ARCHIVE_EOF) {
                        s->over = true;
                        return 0;
                }
                if (r == ARCHIVE_RETRY || (r >= ARCHIVE_WARN && n == 0))
                        continue;
                if (r < ARCHIVE_WARN)
                        return -1;
                if (n > s->bytes_max - s->bytes) {
                        s->too_long = true;
                        return -1;
                }
                s->bytes += n;
                if (s->md && EVP_DigestUpdate(s->md, *ret, n) != 1)
                        return -1;
                return (la_ssize_t) n;
        }
}

static la_ssize_t on_read(struct archive *tar, void *userdata, const void **ret) {
        Stream *s = userdata;
        la_ssize_t n = next(s, ret);

        if (n < 0)
                archive_set_error(tar, EINVAL, "%s", s->too_long ? "it is larger than is allowed" :
                                                                   strempty(archive_error_string(s->raw)));
        return n;
}

int stream_attach(Stream *s, struct archive *tar, bool empty) {
        archive_read_support_format_tar(tar);
        if (empty)
                archive_read_support_format_empty(tar);
        /* Names are bytes. */
        (void) archive_read_set_options(tar, "tar:hdrcharset=BINARY");
        return archive_read_open(tar, s, NULL, on_read, NULL);
}

bool stream_is_too_long(const Stream *s) {
        return s->too_long;
}

int stream_finish(Stream *s, char ret_digest[static DIGEST_LEN + 1]) {
        unsigned char md[EVP_MAX_MD_SIZE];
        _cleanup_free_ char *hex = NULL;
        const void *block;
        la_ssize_t n;

        while ((n = next(s, &block)) > 0)
                report_step("unpacking", s->bytes);
        if (n < 0 && s->too_long)
                return report_error(0, "ImageTooLarge", "A layer is larger than is allowed (%" PRIu64 " bytes)",
                                    s->bytes_max);
        if (n < 0)
                return report_error(0, "InvalidImage", "The archive is damaged: %s",
                                    strempty(archive_error_string(s->raw)));
        if (!s->md || EVP_DigestFinal_ex(s->md, md, NULL) != 1)
                return report_errno(-EIO, "Unpacking");
        hex = hex_encode(md, 32);
        if (!hex)
                return report_errno(-ENOMEM, "Unpacking");
        snprintf(ret_digest, DIGEST_LEN + 1, "sha256:%s", hex);
        return 0;
}
