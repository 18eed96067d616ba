/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Directories whose files are named by digests: layers/ and generations/ share this listing. */
#include <dirent.h>
#include <fcntl.h>

#include "basic/digest.h"
#include "basic/name-util.h"
#include "basic/string-util.h"
#include "image/digest-names.h"

static int compare(const void *a, const void *b) {
        return strcmp(*(char *const *) a, *(char *const *) b);
}

int digest_names_list(int dirfd, const char *suffix, char ***ret) {
        _cleanup_strv_free_ char **l = NULL;
        struct dirent *de;
        DIR *d;
        int fd, r = 0;

        fd = openat(dirfd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd < 0)
                return -errno;
        d = fdopendir(fd);
        if (!d) {
                r = -errno;
                close(fd);
                return r;
        }
        while (r >= 0 && (de = readdir(d))) {
                char digest[DIGEST_LEN + 1];
                const char *hex = startswith(de->d_name, "sha256-");
                const char *end = hex ? endswith(hex, suffix) : NULL;

                if (!end || end - hex != 64)
                        continue;
                snprintf(digest, sizeof digest, "sha256:%.64s", hex);
                if (digest_is_valid(digest))
                        r = strv_extend(&l, digest);
        }
        closedir(d);
        if (r < 0)
                return r;
        if (!l) {
                l = calloc(1, sizeof(char *));
                if (!l)
                        return -ENOMEM;
        }
        qsort(l, strv_length(l), sizeof(char *), compare);
        *ret = TAKE_PTR(l);
        return 0;
}
