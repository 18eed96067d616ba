/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Between the files that unpack archives: unpack.c reads them, unpack-entry.c writes what is in them, unpack-layer.c
 * knows what a layer on top of others takes away. */

#include <archive.h>
#include <archive_entry.h>
#include <sys/stat.h>

#include "basic/strmap.h"
#include "unpack.h"

typedef struct DirMeta {
        char *path;
        mode_t mode;
        uid_t uid;
        gid_t gid;
        struct timespec mtime;
} DirMeta;

typedef struct Unpack {
        int root, spool;
        bool layer;   /* it goes on top of others: whiteouts are carried out */
        StrMap *seen; /* paths of this layer, as keys of themselves */
        const UnpackLimits *limits;
        uint64_t bytes, entries;
        int64_t newest;
        DirMeta *dirs;
        size_t n_dirs, dirs_room;
} Unpack;

/* Tell why, and return -EINVAL or R. */
int unpack_refuse(const char *name, const char *why);
int unpack_failed(int r, const char *name);
/* "./a//b/" → "a/b"; "" is the root. Absolute names and ".." are refused. */
int unpack_normalize(const char *raw, char **ret);
struct timespec unpack_entry_mtime(struct archive_entry *e);

/* unpack-entry.c */
/* The bytes of the file where A stands, called PATH, to FD. They, holes included, are added to *BYTES (at most
 * bytes_max), which stays within the limit. */
int unpack_data(struct archive *a, int fd, const char *path, const UnpackLimits *limits, uint64_t *bytes,
                uint64_t progress);
int unpack_entry(Unpack *u, struct archive *a, struct archive_entry *e);
/* Directories get their times, owners and modes last. */
int unpack_finish_directories(Unpack *u);
void unpack_forget_directories(Unpack *u);

/* unpack-layer.c: PATH is normalized */
int unpack_note_seen(Unpack *u, const char *path);
void unpack_forget_seen(Unpack *u);
/* 1: it was one, and is carried out. */
int unpack_whiteout(Unpack *u, const char *path);
