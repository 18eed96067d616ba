/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Proves that a caller who feeds an archive byte by byte, or takes nothing of one, cannot hold agent-image; and that
 * with a bound that is not reached the same bytes go through. Each case is a process of its own, as the watch ends its
 * process.
 */
#include <archive_entry.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "basic/fs-util.h"
#include "basic/json-util.h"
#include "stall.h"

#define SHORT UINT64_C(50000)
#define LONG (UINT64_C(3600) * 1000000)
#define TOTAL (2U * 1024U * 1024U)

static void work_in(int fd) {
        struct archive *a = archive_read_new();
        struct archive_entry *e;
        uint64_t total = 0;
        const void *block;
        la_int64_t at;
        size_t n;

        assert(a && archive_read_support_format_raw(a) == ARCHIVE_OK);
        assert(stall_open_reader(a, fd) == ARCHIVE_OK && archive_read_next_header(a, &e) == ARCHIVE_OK);
        while (archive_read_data_block(a, &block, &n, &at) == ARCHIVE_OK)
                total += n;
        assert(total == TOTAL && archive_read_free(a) == ARCHIVE_OK);
}

static void work_out(int fd) {
        static char block[TOTAL];
        struct archive_entry *e = archive_entry_new();
        struct archive *a = archive_write_new();

        assert(a && e && archive_write_set_format_raw(a) == ARCHIVE_OK);
        archive_entry_set_pathname(e, "x");
        archive_entry_set_filetype(e, AE_IFREG);
        assert(stall_open_writer(a, fd) == ARCHIVE_OK && archive_write_header(a, e) == ARCHIVE_OK);
        for (size_t done = 0; done < sizeof block;) {
                la_ssize_t n = archive_write_data(a, block + done, sizeof block - done);

                assert(n > 0);
                done += (size_t) n;
        }
        assert(archive_write_close(a) == ARCHIVE_OK && archive_write_free(a) == ARCHIVE_OK);
        archive_entry_free(e);
}

/* Does WORK with the one end of a pipe; *ret_end is the other one, *ret_told its stdout. */
static pid_t begin(void (*work)(int fd), bool out, int flags, uint64_t limit, int *ret_end, int *ret_told) {
        int p[2], told[2], ours, theirs;
        pid_t pid;

        assert(pipe2(p, O_CLOEXEC) >= 0 && pipe2(told, O_CLOEXEC) >= 0);
        theirs = p[out];
        ours = p[!out];
        assert(fcntl(theirs, F_SETFL, flags) >= 0);
        pid = fork();
        assert(pid >= 0);
        if (pid == 0) {
                assert(dup2(told[1], STDOUT_FILENO) >= 0);
                close(told[0]);
                close(ours);
                assert(stall_begin(limit) >= 0);
                work(theirs);
                _exit(EXIT_SUCCESS);
        }
        close(told[1]);
        close(theirs);
        *ret_end = ours;
        *ret_told = told[0];
        return pid;
}

static void end(pid_t pid, int told, const char *error) {
        _cleanup_json_ sd_json_variant *v = NULL;
        _cleanup_free_ char *text = NULL;
        size_t size;
        int status;

        assert(read_full_fd(told, 65536, &text, &size) >= 0);
        close(told);
        assert(waitpid(pid, &status, 0) == pid && WIFEXITED(status));
        assert(WEXITSTATUS(status) == (error ? EXIT_FAILURE : EXIT_SUCCESS));
        if (!error) {
                assert(size == 0);
                return;
        }
        assert(json_parse(text, size, &v, NULL) >= 0 && streq_ptr(json_string(v, "error"), "Stalled"));
        assert(strstr(json_string(v, "message"), error) && strstr(json_string(v, "message"), "IdleTimeout="));
}

static void test_in(int flags) {
        static char bytes[TOTAL];
        int fd, told;
        pid_t pid;

        /* Always a byte more: until nobody is there to take it. */
        pid = begin(work_in, false, flags, SHORT, &fd, &told);
        while (write(fd, "x", 1) == 1)
                usleep(1000);
        close(fd);
        end(pid, told, "does not come");

        pid = begin(work_in, false, flags, LONG, &fd, &told);
        for (size_t done = 0; done < sizeof bytes;) {
                ssize_t n = write(fd, bytes + done, MIN(sizeof bytes - done, (size_t) 1000));

                assert(n > 0);
                done += (size_t) n;
        }
        close(fd);
        end(pid, told, NULL);
}

static void test_out(int flags) {
        char bytes[1000];
        size_t done = 0;
        int fd, told;
        ssize_t n;
        pid_t pid;

        pid = begin(work_out, true, flags, SHORT, &fd, &told);
        end(pid, told, "not being read");
        close(fd);

        pid = begin(work_out, true, flags, LONG, &fd, &told);
        while ((n = read(fd, bytes, sizeof bytes)) > 0)
                done += (size_t) n;
        assert(n == 0 && done >= TOTAL);
        close(fd);
        end(pid, told, NULL);
}

int main(void) {
        assert(signal(SIGPIPE, SIG_IGN) != SIG_ERR);
        test_in(0);
        test_in(O_NONBLOCK);
        test_out(0);
        test_out(O_NONBLOCK);
        return 0;
}
