/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * mkfs.erofs from a directory. Never from a tar (1.8 gets times wrong) nor in rebuild mode (it keeps whited-out
 * files), and without dedupe or fragments (not reproducible, and a corruption over 4 GiB, in those versions).
 */
#include <fcntl.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "basic/fs-util.h"
#include "basic/string-util.h"
#include "erofs.h"
#include "report.h"

/* All layers have it: nothing here looks a layer up by uuid, and another one would be another digest. */
#define LAYER_UUID "6a0e7d3c-5b1f-4c8e-9f2a-a9e27d000001"
#define COMPLAINT_MAX 4096

static int run_mkfs(const char *tree, const char *out) {
        const char *argv[] = { "mkfs.erofs", "--quiet", "-T0", "--mkfs-time", "-U", LAYER_UUID, out, ".", NULL };
        _cleanup_close_ int complaints = -EBADF;
        _cleanup_free_ char *text = NULL, *shown = NULL;
        posix_spawn_file_actions_t actions;
        int status, r;
        pid_t pid;

        /* A file, not a pipe: nobody has to read it while it runs. */
        complaints = open("/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
        if (complaints < 0)
                complaints = open("/dev/null", O_RDWR | O_CLOEXEC);
        if (complaints < 0)
                return report_errno(-errno, "Starting mkfs.erofs");
        r = -posix_spawn_file_actions_init(&actions);
        if (r < 0)
                return report_errno(r, "Starting mkfs.erofs");
        /* Its output must not get between our lines of JSON. */
        r = -posix_spawn_file_actions_adddup2(&actions, complaints, STDOUT_FILENO);
        if (r >= 0)
                r = -posix_spawn_file_actions_adddup2(&actions, complaints, STDERR_FILENO);
        /* It puts the tree's path in front of each, and knows none that is longer than PATH_MAX. */
        if (r >= 0)
                r = -posix_spawn_file_actions_addchdir_np(&actions, tree);
        if (r >= 0)
                r = -posix_spawnp(&pid, argv[0], &actions, NULL, (char *const *) argv, environ);
        posix_spawn_file_actions_destroy(&actions);
        if (r == -ENOENT)
                return report_error(r, "Failed", "mkfs.erofs is not installed (package erofs-utils)");
        if (r < 0)
                return report_errno(r, "Starting mkfs.erofs");
        while (waitpid(pid, &status, 0) < 0)
                if (errno != EINTR)
                        return report_errno(-errno, "Waiting for mkfs.erofs");
        if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
                return 0;
        if (lseek(complaints, 0, SEEK_SET) < 0 || read_full_fd(complaints, COMPLAINT_MAX, &text, NULL) < 0)
                text = strdup("");
        if (text && strstr(text, "No space left"))
                return report_errno(-ENOSPC, "making the layer");
        shown = escape_name(strempty(text));
        return report_error(0, "Failed", "mkfs.erofs failed (status %d): %s",
                            WIFEXITED(status) ? WEXITSTATUS(status) : -1, strempty(shown));
}

int erofs_make(const char *tree, const char *out, uint64_t *ret_size) {
        struct stat st;
        int r;

        report_step("packing", 0);
        r = run_mkfs(tree, out);
        if (r < 0)
                return r;
        if (stat(out, &st) < 0)
                return report_errno(-errno, "Packing the layer");
        *ret_size = (uint64_t) st.st_size;
        return 0;
}
