/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* See report-log.h. */

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "basic/fs-util.h"
#include "fd-store.h"
#include "report-log.h"

#define LOG_SIZE_MAX (UINT64_C(64) * 1024 * 1024)

struct ReportLog {
        int fd;
        uint64_t size;
};

int report_log_open(int fd, ReportLog **ret) {
        _cleanup_close_ int owned = fd;
        struct stat st = {};
        int r;

        if (owned < 0) {
                owned = memfd_create("reports", MFD_CLOEXEC | MFD_NOEXEC_SEAL);
                if (owned < 0)
                        return -errno;
                r = fd_store_push(FD_REPORTS, NULL, owned);
                if (r < 0)
                        return r;
        }
        if (fcntl(owned, F_SETFL, O_APPEND) < 0 || fstat(owned, &st) < 0)
                return -errno;

        ReportLog *l = malloc(sizeof(ReportLog));
        if (!l)
                return -ENOMEM;
        *l = (ReportLog) { .fd = TAKE_FD(owned), .size = (uint64_t) st.st_size };
        *ret = l;
        return 0;
}

ReportLog *report_log_free(ReportLog *l) {
        if (!l)
                return NULL;
        safe_close(l->fd);
        return mfree(l);
}

int report_log_add(ReportLog *l, sd_json_variant *line) {
        _cleanup_free_ char *text = NULL;

        int r = sd_json_variant_format(line, SD_JSON_FORMAT_NEWLINE, &text);
        if (r < 0)
                return r;
        size_t n = strlen(text);
        if (l->size + n > LOG_SIZE_MAX)
                return -EFBIG;
        r = write_full(l->fd, text, n);
        if (r >= 0)
                l->size += n;
        return r;
}

int report_log_clear(ReportLog *l) {
        if (l->size == 0)
                return 0;
        if (ftruncate(l->fd, 0) < 0)
                return -errno;
        l->size = 0;
        return 0;
}

int report_log_read(ReportLog *l, report_log_line_t callback, void *userdata) {
        _cleanup_free_ char *text = NULL;
        size_t size;

        if (lseek(l->fd, 0, SEEK_SET) < 0)
                return -errno;
        int r = read_full_fd(l->fd, LOG_SIZE_MAX, &text, &size);
        if (r < 0)
                return r;
        for (char *line = text, *end; (end = memchr(line, '\n', size - (size_t) (line - text))); line = end + 1) {
                _cleanup_json_ sd_json_variant *v = NULL;

                *end = 0;
                if (json_parse(line, (size_t) (end - line), &v, NULL) >= 0)
                        callback(v, userdata);
        }
        return 0;
}
