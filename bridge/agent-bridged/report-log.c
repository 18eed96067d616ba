/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* See report-log.h. */

#include <fcntl.h>
#include <linux/falloc.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "basic/fs-util.h"
#include "fd-store.h"
#include "report-log.h"

#define LOG_SIZE_MAX (UINT64_C(64) * 1024 * 1024)
#define COMPACT_MIN (UINT64_C(1) * 1024 * 1024)
#define COMPACT_FACTOR 8U

struct ReportLog {
        int fd;
        uint64_t start, size;    /* what is before START was given back: a hole, which reads as zeros */
        uint64_t owed;           /* how long the last compact form was */
        uint64_t mark;           /* where the one begins that is being written */
        bool compacting;
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

        /* A line that was cut short must not take the next one with it. */
        char last = '\n';
        if (st.st_size > 0 && pread(owned, &last, 1, st.st_size - 1) == 1 && last != '\n') {
                r = write_full(owned, "\n", 1);
                if (r < 0)
                        return r;
                st.st_size++;
        }

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

int report_log_add(ReportLog *l, const char *line, size_t size) {
        if (!l->compacting && l->size - l->start + size > LOG_SIZE_MAX)
                return -EFBIG;
        int r = write_full(l->fd, line, size);
        if (r >= 0)
                l->size += size;
        return r;
}

int report_log_clear(ReportLog *l) {
        if (l->size == 0)
                return 0;
        if (ftruncate(l->fd, 0) < 0)
                return -errno;
        l->size = l->start = l->owed = 0;
        return 0;
}

bool report_log_wants_compaction(const ReportLog *l) {
        return !l->compacting && l->size - l->start > MAX(COMPACT_MIN, l->owed * COMPACT_FACTOR);
}

void report_log_compact_begin(ReportLog *l) {
        l->mark = l->size;
        l->compacting = true;
}

int report_log_compact_end(ReportLog *l, bool complete) {
        l->compacting = false;
        l->owed = l->size - l->mark; /* also where it failed: not again at once */
        if (!complete)
                return 0;
        if (fallocate(l->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, (off_t) l->mark) < 0)
                return -errno;
        l->start = l->mark;
        return 0;
}

int report_log_read(ReportLog *l, report_log_line_t callback, void *userdata) {
        _cleanup_free_ char *text = NULL;
        size_t size, skip = 0;

        off_t start = lseek(l->fd, 0, SEEK_DATA);
        if (start < 0)
                return errno == ENXIO ? 0 : -errno;
        int r = read_full_fd(l->fd, 2 * LOG_SIZE_MAX, &text, &size);
        if (r < 0)
                return r;
        while (skip < size && text[skip] == 0)
                skip++;
        l->start = (uint64_t) start + skip;

        const char *stop = text + size;
        for (char *line = text + skip, *end; (end = memchr(line, '\n', (size_t) (stop - line))); line = end + 1) {
                _cleanup_json_ sd_json_variant *v = NULL;

                *end = 0;
                if (json_parse(line, (size_t) (end - line), &v, NULL) >= 0)
                        callback(v, userdata);
        }
        return 0;
}
