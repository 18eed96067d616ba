/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * The bytes of a tar inside of whatever it is compressed with (gzip, bzip2, xz, lzma, zstd, lz4, compress; no program
 * is run for that). They are counted against a bound before anybody sees them, so that a small file cannot become an
 * endless one, and hashed where their digest is to be known.
 */

#include <archive.h>

#include "basic/digest.h"
#include "basic/macro.h"

typedef struct Stream Stream;

/* FD stays the caller's. BYTES_MAX: more than that is an error. */
int stream_open(int fd, uint64_t bytes_max, bool hash, Stream **ret);
Stream *stream_free(Stream *s);
DEFINE_CLEANUP(Stream *, stream_free);

/* A reader of tar (TAR: or of nothing at all, where EMPTY) on top of the stream. An ARCHIVE_* value. */
int stream_attach(Stream *s, struct archive *tar, bool empty);
/* More came out than is allowed: that is why the reader failed. */
bool stream_is_too_long(const Stream *s);
/* Reads what follows the end of the tar; then the digest of it all. Tells an error itself (report.h). */
int stream_finish(Stream *s, char ret_digest[static DIGEST_LEN + 1]);
