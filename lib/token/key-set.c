/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>

#include "basic/fs-util.h"
#include "basic/string-util.h"
#include "token/key-set.h"
#include "token/run-token.h"

#define KEY_FILE_MAX (16U * 1024U)

typedef struct KeySetEntry {
        char kid[KEY_ID_LEN + 1];
        char *pem;
} KeySetEntry;

struct KeySet {
        char *dir;
        int fd; /* the directory as it was read; has no link any more when it was removed */
        struct timespec mtime;
        bool settled; /* the directory was already old when it was read: its mtime tells any later change */
        KeySetEntry *entries;
        size_t n_entries;
        /* Tokens that one of these very keys has signed: a few places for each beginning of a digest. */
        struct {
                uint8_t digest[KEY_SET_DIGEST_LEN];
                RunClaims *claims; /* NULL: free */
        } verified[KEY_SET_VERIFIED_MAX];
        unsigned next_place;
};

#define PLACES 4U

static void key_set_clear(KeySet *s) {
        for (size_t i = 0; i < s->n_entries; i++)
                free(s->entries[i].pem);
        s->entries = mfree(s->entries);
        s->n_entries = 0;
        for (size_t i = 0; i < KEY_SET_VERIFIED_MAX; i++)
                s->verified[i].claims = run_claims_free(s->verified[i].claims);
}

KeySet *key_set_free(KeySet *s) {
        if (!s)
                return NULL;

        key_set_clear(s);
        safe_close(s->fd);
        free(s->dir);
        return mfree(s);
}

static int key_set_add(KeySet *s, int dirfd, const char *name) {
        char kid[KEY_ID_LEN + 1];
        _cleanup_free_ char *pem = NULL;
        KeySetEntry *entries;
        const char *dot;
        size_t size;
        int r;

        dot = endswith(name, ".pem");
        if (!dot || !key_id_is_valid(name, (size_t) (dot - name)))
                return 0;

        r = read_full_file_at(dirfd, name, KEY_FILE_MAX, &pem, &size);
        if (r == -ENOMEM)
                return r;
        if (r < 0) /* went away meanwhile, unreadable or huge: no key */
                return 0;

        r = public_key_kid(pem, size, kid);
        if (r == -ENOMEM)
                return r;
        if (r < 0 || memcmp(kid, name, KEY_ID_LEN) != 0)
                return 0;

        entries = reallocarray(s->entries, s->n_entries + 1, sizeof(KeySetEntry));
        if (!entries)
                return -ENOMEM;
        s->entries = entries;
        memcpy(entries[s->n_entries].kid, kid, sizeof(kid));
        entries[s->n_entries++].pem = TAKE_PTR(pem);
        return 0;
}

static int key_set_read(KeySet *s) {
        struct timespec now;
        struct dirent *de;
        struct stat st;
        DIR *d;
        int r = 0;

        key_set_clear(s);
        s->settled = false;
        s->fd = safe_close(s->fd);

        d = opendir(s->dir);
        if (!d)
                return -errno;

        /* Before reading: what changes while we read is newer than this and is seen next time. */
        if (fstat(dirfd(d), &st) < 0) {
                r = -errno;
                closedir(d);
                return r;
        }
        clock_gettime(CLOCK_REALTIME, &now);

        while (s->n_entries < KEY_SET_MAX) {
                errno = 0;
                de = readdir(d);
                if (!de) {
                        r = -errno;
                        break;
                }
                r = key_set_add(s, dirfd(d), de->d_name);
                if (r < 0)
                        break;
        }
        if (r >= 0) {
                s->fd = fcntl(dirfd(d), F_DUPFD_CLOEXEC, 3);
                r = s->fd < 0 ? -errno : r;
        }
        closedir(d);
        if (r < 0) {
                key_set_clear(s);
                return r;
        }

        s->mtime = st.st_mtim;
        /* Time stamps of files have the grain of the timer tick; a second change in the same tick is
         * invisible. So as long as the directory is young, read it again. */
        s->settled = now.tv_sec > st.st_mtim.tv_sec + 1;
        return 0;
}

int key_set_load(const char *dir, KeySet **ret) {
        _cleanup_(key_set_freep) KeySet *s = NULL;
        int r;

        s = calloc(1, sizeof(*s));
        if (!s)
                return -ENOMEM;

        s->fd = -EBADF;
        s->dir = strdup(dir);
        if (!s->dir)
                return -ENOMEM;

        /* No directory yet is a set without keys: agentd makes it when it starts. */
        r = key_set_read(s);
        if (r < 0 && r != -ENOENT)
                return r;

        *ret = TAKE_PTR(s);
        return 0;
}

int key_set_refresh(KeySet *s) {
        struct stat st;
        int r;

        if (s->settled && s->fd >= 0 && fstat(s->fd, &st) >= 0 && st.st_nlink > 0 &&
            st.st_mtim.tv_sec == s->mtime.tv_sec && st.st_mtim.tv_nsec == s->mtime.tv_nsec)
                return 0;

        r = key_set_read(s);
        return r < 0 ? r : 1;
}

static size_t first_place(const uint8_t *digest) {
        return (digest[0] | (size_t) digest[1] << 8) % (KEY_SET_VERIFIED_MAX / PLACES) * PLACES;
}

const RunClaims *key_set_get_verified(const KeySet *s, const uint8_t digest[static KEY_SET_DIGEST_LEN]) {
        size_t first = first_place(digest);

        for (size_t i = first; i < first + PLACES; i++)
                if (s->verified[i].claims && memcmp(s->verified[i].digest, digest, KEY_SET_DIGEST_LEN) == 0)
                        return s->verified[i].claims;
        return NULL;
}

void key_set_note_verified(KeySet *s, const uint8_t digest[static KEY_SET_DIGEST_LEN], RunClaims *claims) {
        size_t i = first_place(digest) + s->next_place++ % PLACES;

        run_claims_free(s->verified[i].claims);
        memcpy(s->verified[i].digest, digest, KEY_SET_DIGEST_LEN);
        s->verified[i].claims = claims;
}

size_t key_set_size(const KeySet *s) {
        return s->n_entries;
}

const char *key_set_find(const KeySet *s, const char *kid, size_t len) {
        if (!key_id_is_valid(kid, len))
                return NULL;

        for (size_t i = 0; i < s->n_entries; i++)
                if (memcmp(s->entries[i].kid, kid, KEY_ID_LEN) == 0)
                        return s->entries[i].pem;

        return NULL;
}
