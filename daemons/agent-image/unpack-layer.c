/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * A layer of an image on top of those before it: its whiteouts take away what they have put there, but nothing that
 * it brings itself, in whatever order its entries come.
 */
#include <dirent.h>

#include "basic/fs-util.h"
#include "basic/string-util.h"
#include "report.h"
#include "tree.h"
#include "unpack-part.h"

int unpack_note_seen(Unpack *u, const char *path) {
        char *k;
        int r;

        if (strmap_get(u->seen, path))
                return 0;
        k = strdup(path);
        r = k ? strmap_put(u->seen, k, k) : -ENOMEM;
        if (r < 0)
                free(k);
        return r < 0 ? report_errno(r, "Unpacking") : 0;
}

void unpack_forget_seen(Unpack *u) {
        char *k;

        while (u->seen && (k = strmap_first(u->seen))) {
                strmap_remove(u->seen, k);
                free(k);
        }
        u->seen = strmap_free(u->seen);
}

/* Removes what layers below have put into the directory PATH; what this one has put there stays. */
static int clear_lower(Unpack *u, const char *path, unsigned depth) {
        struct dirent *de;
        int fd, r = 0;
        DIR *d;

        if (depth > 1024)
                return unpack_failed(-ELOOP, path);
        fd = tree_open(u->root, path, O_RDONLY | O_DIRECTORY);
        if (fd == -ENOENT || fd == -ENOTDIR || fd == -ELOOP)
                return 0;
        if (fd < 0)
                return unpack_failed(fd, path);
        d = fdopendir(fd);
        if (!d) {
                close(fd);
                return report_errno(-ENOMEM, "Unpacking");
        }
        while (r >= 0 && (de = readdir(d))) {
                _cleanup_free_ char *child = NULL;

                if (streq(de->d_name, ".") || streq(de->d_name, ".."))
                        continue;
                child = isempty(path) ? strdup(de->d_name) : strprintf("%s/%s", path, de->d_name);
                if (!child)
                        r = report_errno(-ENOMEM, "Unpacking");
                else if (strmap_get(u->seen, child))
                        r = clear_lower(u, child, depth + 1);
                else {
                        r = rm_rf_at(dirfd(d), de->d_name);
                        if (r < 0)
                                r = unpack_failed(r, child);
                }
        }
        closedir(d);
        return r;
}

int unpack_whiteout(Unpack *u, const char *path) {
        const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path, *gone = startswith(name, ".wh.");
        _cleanup_free_ char *dir = slash ? strndup(path, (size_t) (slash - path)) : strdup(""), *target = NULL;
        int r;

        if (!dir)
                return report_errno(-ENOMEM, "Unpacking");
        if (!gone) {
                /* With the directories it is in: they are this layer's, too. */
                for (const char *p = path; (p = strchr(p, '/')); p++) {
                        _cleanup_free_ char *above = strndup(path, (size_t) (p - path));

                        r = above ? unpack_note_seen(u, above) : report_errno(-ENOMEM, "Unpacking");
                        if (r < 0)
                                return r;
                }
                return 0; /* itself: when it is there */
        }
        if (streq(gone, ".wh..opq")) {
                r = clear_lower(u, dir, 0);
                return r < 0 ? r : 1;
        }
        if (isempty(gone) || startswith(gone, ".wh.")) /* aufs' own files */
                return isempty(gone) ? unpack_refuse(path, "it is a whiteout of nothing") : 1;
        if (streq(gone, ".") || streq(gone, ".."))
                return unpack_refuse(path, "it is a whiteout of a directory's own entry");
        target = isempty(dir) ? strdup(gone) : strprintf("%s/%s", dir, gone);
        if (!target)
                return report_errno(-ENOMEM, "Unpacking");
        r = strmap_get(u->seen, target) ? clear_lower(u, target, 0) : tree_remove(u->root, target);
        return r < 0 ? unpack_failed(r, target) : 1;
}
