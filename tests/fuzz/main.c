/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* Replays inputs through a fuzz target without a fuzzer: each argument is a file, or a directory of files. Each
 * input that was ever found to do harm is kept in the corpus, so that this is a regression test. A directory that
 * is not there is an empty one. */

#include <dirent.h>

#include "basic/fs-util.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static unsigned n_inputs;

static int replay(const char *path) {
        _cleanup_free_ char *data = NULL;
        size_t size;

        int r = read_full_file_at(AT_FDCWD, path, 64 * 1024 * 1024, &data, &size);
        if (r < 0) {
                fprintf(stderr, "%s: %s\n", path, strerror(-r));
                return r;
        }
        (void) LLVMFuzzerTestOneInput((const uint8_t *) data, size);
        n_inputs++;
        return 0;
}

static int replay_directory(const char *path) {
        DIR *d = opendir(path);
        int r = 0;

        if (!d)
                return errno == ENOENT ? 0 : -errno;
        for (struct dirent *e; r >= 0 && (e = readdir(d));) {
                _cleanup_free_ char *p = NULL;

                if (e->d_name[0] == '.')
                        continue;
                r = asprintf(&p, "%s/%s", path, e->d_name) < 0 ? -ENOMEM : replay(p);
        }
        closedir(d);
        return r;
}

int main(int argc, char *argv[]) {
        for (int i = 1; i < argc; i++) {
                struct stat st;
                int r;

                if (stat(argv[i], &st) < 0)
                        r = errno == ENOENT ? 0 : -errno;
                else
                        r = S_ISDIR(st.st_mode) ? replay_directory(argv[i]) : replay(argv[i]);
                if (r < 0) {
                        fprintf(stderr, "%s: %s\n", argv[i], strerror(-r));
                        return EXIT_FAILURE;
                }
        }
        printf("%u inputs replayed\n", n_inputs);
        return EXIT_SUCCESS;
}
