/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* What kind of archive it is, and entry after entry of it; the layers of an image's archive one on top of the other. */
#include "basic/fs-util.h"
#include "basic/string-util.h"
#include "oci.h"
#include "report.h"
#include "stream.h"
#include "unpack-part.h"

/* What a header, the attributes of its file and padding may take beside the file itself. */
#define ENTRY_OVERHEAD_MAX UINT64_C(8192)

static int note_entry(Unpack *u, struct archive_entry *e) {
        _cleanup_free_ char *path = NULL;
        int r;

        r = unpack_normalize(strempty(archive_entry_pathname(e)), &path);
        return r < 0 ? r : unpack_note_seen(u, path);
}

static int too_large(const Unpack *u) {
        return report_error(0, "ImageTooLarge", "The image's files are larger than is allowed (%" PRIu64 " bytes)",
                            u->limits->bytes_max);
}

/* 1: it was an image's archive, and is laid out. */
static int unpack_all(Unpack *u, Stream *s, struct archive *a) {
        bool undecided = u->spool >= 0 && !u->layer;

        for (uint64_t n = 0;; n++) {
                struct archive_entry *e;
                int r;

                r = archive_read_next_header(a, &e);
                if (r == ARCHIVE_EOF)
                        break;
                if (r == ARCHIVE_RETRY)
                        continue;
                if (r < ARCHIVE_WARN && stream_is_too_long(s))
                        return too_large(u);
                if (r < ARCHIVE_WARN)
                        return report_error(0, "InvalidImage",
                                            n == 0 ? "This is no tar archive: %s" : "The archive is damaged: %s",
                                            archive_error_string(a));
                if (++u->entries > u->limits->entries_max)
                        return report_error(0, "ImageTooLarge",
                                            "The image has more files than are allowed (%" PRIu64 ")",
                                            u->limits->entries_max);
                u->newest = MAX(u->newest, (int64_t) unpack_entry_mtime(e).tv_sec);
                if (undecided) {
                        _cleanup_free_ char *path = NULL;

                        r = unpack_normalize(strempty(archive_entry_pathname(e)), &path);
                        if (r < 0)
                                return r;
                        undecided = isempty(path); /* "./" begins tars of either kind */
                        if (oci_is_archive(path)) {
                                r = oci_spool(a, e, u->spool, u->limits);
                                return r < 0 ? r : 1;
                        }
                }
                r = unpack_entry(u, a, e);
                if (r >= 0 && u->layer)
                        r = note_entry(u, e);
                if (r < 0)
                        return r;
                report_step("unpacking", u->entries);
        }
        if (u->entries == 0 && !u->layer)
                return report_error(0, "InvalidImage", "The archive is empty");
        return unpack_finish_directories(u);
}

/* DIFF_ID (may be NULL): the digest that the stream is to have, its compression undone. */
static int unpack(Unpack *u, int input_fd, const char *diff_id) {
        const uint64_t overhead = u->limits->entries_max > UINT64_MAX / 4 / ENTRY_OVERHEAD_MAX ?
                UINT64_MAX / 4 : u->limits->entries_max * ENTRY_OVERHEAD_MAX;
        _cleanup_(stream_freep) Stream *s = NULL;
        char digest[DIGEST_LEN + 1];
        struct archive *a;
        int r;

        r = stream_open(input_fd, MIN(u->limits->bytes_max, UINT64_MAX / 4) + overhead + (1 << 20), diff_id, &s);
        if (r < 0)
                return r;
        a = archive_read_new();
        if (!a)
                return report_errno(-ENOMEM, "Unpacking");
        if (stream_attach(s, a, u->layer) != ARCHIVE_OK)
                r = stream_is_too_long(s) ? too_large(u) :
                        report_error(0, "InvalidImage", "This is no tar archive: %s", archive_error_string(a));
        else
                r = unpack_all(u, s, a);
        archive_read_free(a);
        unpack_forget_directories(u);
        if (r < 0 || !diff_id)
                return r;
        r = stream_finish(s, digest);
        if (r >= 0 && !streq(digest, diff_id))
                r = report_error(0, "InvalidImage",
                                 "A layer does not have the digest that the image's configuration says of it (%s)",
                                 diff_id);
        return r;
}

int unpack_tar(int input_fd, int root, const UnpackLimits *limits, int64_t *ret_newest) {
        Unpack u = { .root = root, .spool = -EBADF, .limits = limits };
        int r;

        r = unpack(&u, input_fd, NULL);
        if (r < 0)
                return r;
        *ret_newest = u.newest;
        return 0;
}

static int unpack_layers(Unpack *u) {
        _cleanup_(oci_image_done) OciImage image = {};
        int r;

        r = oci_find_image(u->spool, &image);
        for (size_t i = 0; r >= 0 && image.layers && image.layers[i]; i++) {
                _cleanup_close_ int fd = -EBADF;

                if (image.environment)
                        return report_error(0, "InvalidImage", "This is an exported environment: agentctl env import");
                fd = oci_open(u->spool, image.layers[i]);
                if (fd < 0)
                        return report_errno(fd, "Reading the archive");
                u->layer = true;
                u->seen = strmap_new();
                r = u->seen ? unpack(u, fd, image.diff_ids ? image.diff_ids[i] : NULL) :
                              report_errno(-ENOMEM, "Unpacking");
                unpack_forget_seen(u);
        }
        if (r >= 0 && (!image.layers || !image.layers[0]))
                return report_error(0, "InvalidImage", "The image has no layers");
        return r;
}

int unpack_image(int input_fd, int root, int spool, const UnpackLimits *limits, int64_t *ret_newest) {
        Unpack u = { .root = root, .spool = spool, .limits = limits };
        int r;

        r = unpack(&u, input_fd, NULL);
        if (r > 0) {
                u.entries = 0;
                u.newest = 0;
                r = unpack_layers(&u);
        }
        if (r < 0)
                return r;
        *ret_newest = u.newest;
        return 0;
}
