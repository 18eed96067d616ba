/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Proves that the store takes only what has the right digest, once, and nothing from outside its own tmp/. */
#include <fcntl.h>
#include <sys/stat.h>

#include "basic/fs-util.h"
#include "basic/string-util.h"
#include "image/layer-store.h"

static char *put(const char *dir, const char *name, const char *text) {
        char *path = strprintf("%s/%s", dir, name);
        int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);

        assert(fd >= 0);
        assert(write_full(fd, text, strlen(text)) >= 0);
        close(fd);
        return path;
}

static void test_publish(LayerStore *s) {
        char expected[DIGEST_LEN + 1], digest[DIGEST_LEN + 1] = "";
        _cleanup_free_ char *staging = NULL, *a = NULL, *b = NULL, *c = NULL, *path = NULL;
        _cleanup_strv_free_ char **l = NULL;
        _cleanup_close_ int fd = -EBADF, writer = -EBADF;
        struct stat st;
        uint64_t size;

        assert(digest_bytes("layer", 5, expected) >= 0);
        assert(layer_store_open_layer(s, expected, NULL, NULL) == -ENOENT);
        assert(layer_store_verify(s, expected) == -ENOENT);
        assert(layer_store_new_staging(s, &staging) >= 0);
        a = put(staging, "a", "layer");
        assert(layer_store_publish(s, a, expected, digest) == 1);
        assert(streq(digest, expected));
        assert(access(a, F_OK) < 0);
        assert(layer_store_path(s, digest, &path) >= 0);
        assert(stat(path, &st) >= 0 && (st.st_mode & 07777) == 0444 && st.st_size == 5);

        /* The same bytes again: one file, and the temporary one is gone. */
        b = put(staging, "b", "layer");
        assert(layer_store_publish(s, b, NULL, digest) == 0);
        assert(streq(digest, expected));
        assert(access(b, F_OK) < 0);
        assert(layer_store_list(s, &l) >= 0 && strv_length(l) == 1);

        /* Other bytes than promised stay where they are. */
        c = put(staging, "c", "other");
        assert(layer_store_publish(s, c, expected, digest) == -EBADMSG);
        assert(access(c, F_OK) >= 0);

        /* Somebody could still change it. */
        writer = open(c, O_WRONLY | O_CLOEXEC);
        if (writer < 0) { /* 0444 by now, and we are not root */
                assert(chmod(c, 0600) >= 0);
                writer = open(c, O_WRONLY | O_CLOEXEC);
        }
        assert(writer >= 0);
        assert(layer_store_publish(s, c, NULL, digest) == -ETXTBSY);

        assert(layer_store_open_layer(s, expected, &fd, &size) >= 0 && size == 5);
        assert(layer_store_verify(s, expected) == 0);
        assert(layer_store_drop_staging(s, staging) >= 0);
        assert(access(staging, F_OK) < 0);
        assert(layer_store_drop_staging(s, staging) >= 0);
}

static void test_flipped_bit(LayerStore *s) {
        char digest[DIGEST_LEN + 1];
        _cleanup_free_ char *path = NULL;
        int fd;

        assert(digest_bytes("layer", 5, digest) >= 0);
        assert(layer_store_path(s, digest, &path) >= 0);
        if (layer_store_check_seal(s, digest) == LAYER_SEALED) {
                /* tests/vm goes on from here */
                assert(open(path, O_WRONLY | O_CLOEXEC) < 0 && errno == EPERM && layer_store_remove(s, digest) >= 0);
                return;
        }
        assert(chmod(path, 0600) >= 0);
        fd = open(path, O_WRONLY | O_CLOEXEC);
        assert(fd >= 0 && pwrite(fd, "m", 1, 0) == 1);
        close(fd);
        assert(layer_store_verify(s, digest) == -EBADMSG);
        assert(layer_store_remove(s, digest) >= 0);
        assert(layer_store_remove(s, digest) >= 0);
        assert(layer_store_verify(s, digest) == -ENOENT);
}

/* What is noted of a seal when the file system has none: a copy was brought back, it is read in full once. */
static void test_lost_seal(LayerStore *s, const char *root) {
        _cleanup_free_ char *staging = NULL, *path = NULL, *seal = NULL;
        char digest[DIGEST_LEN + 1];
        int fd;

        assert(layer_store_new_staging(s, &staging) >= 0);
        path = put(staging, "l", "sealed");
        assert(layer_store_publish(s, path, NULL, digest) == 1);
        if (layer_store_check_seal(s, digest) == LAYER_SEALED)
                return;
        seal = strprintf("%s/seals/sha256-%s", root, digest + 7);
        assert(layer_store_check_seal(s, digest) == LAYER_UNSEALED && access(seal, F_OK) < 0);
        for (unsigned i = 0; i < 2; i++) {
                fd = open(seal, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0444);
                assert(fd >= 0 && dprintf(fd, "%s\n", i == 0 ? digest : "junk") > 0);
                close(fd);
                assert(layer_store_check_seal(s, digest) == LAYER_SEAL_LOST);
                if (i == 0)
                        assert(layer_store_verify(s, digest) == 0);
                else
                        assert(layer_store_remove(s, digest) >= 0);
                assert(access(seal, F_OK) < 0);
        }
        assert(layer_store_check_seal(s, digest) == -ENOENT);
}

/* In two steps; what was touched in between is not taken for what was hashed. */
static void test_two_steps(LayerStore *s) {
        _cleanup_free_ char *staging = NULL, *path = NULL, *other = NULL;
        char digest[DIGEST_LEN + 1];
        LayerIdentity id;

        assert(layer_store_new_staging(s, &staging) >= 0);
        path = put(staging, "l", "two steps");
        assert(layer_store_hash(s, path, NULL, digest, &id) == 0 && id.size == 9);
        assert(layer_store_open_layer(s, digest, NULL, NULL) == -ENOENT);
        other = put(staging, "o", "two stepz");
        assert(rename(other, path) >= 0);
        assert(layer_store_take(s, path, digest, &id) == -ESTALE);
        assert(layer_store_hash(s, path, NULL, digest, &id) == 0);
        assert(chmod(path, 0644) >= 0); /* not a byte of it is another one, but something was done */
        assert(layer_store_take(s, path, digest, &id) == -ESTALE);
        assert(layer_store_hash(s, path, NULL, digest, &id) == 0);
        assert(layer_store_take(s, path, digest, &id) == 1 && layer_store_verify(s, digest) == 0);
        assert(layer_store_take(s, path, digest, &id) == -ENOENT);
        assert(layer_store_remove(s, digest) >= 0);
}

static void test_outside(LayerStore *s, const char *root) {
        _cleanup_free_ char *staging = NULL, *outside = NULL, *link = NULL, *dotdot = NULL, *dirlink = NULL,
                *through = NULL, *second = NULL, *plain = NULL, *layers = NULL;
        char digest[DIGEST_LEN + 1];

        assert(layer_store_new_staging(s, &staging) >= 0);
        outside = put(root, "outside", "x");
        assert(layer_store_publish(s, outside, NULL, digest) == -EINVAL);
        link = strprintf("%s/link", staging);
        assert(symlink(outside, link) >= 0);
        assert(layer_store_publish(s, link, NULL, digest) == -ELOOP);
        dotdot = strprintf("%s/../../outside", staging);
        assert(layer_store_publish(s, dotdot, NULL, digest) < 0);
        dirlink = strprintf("%s/dir", staging);
        through = strprintf("%s/outside", dirlink);
        assert(symlink(root, dirlink) >= 0);
        assert(layer_store_publish(s, through, NULL, digest) < 0);
        assert(layer_store_publish(s, staging, NULL, digest) == -EINVAL); /* a directory */
        /* A second name would let its owner change the bytes later. */
        plain = put(staging, "plain", "y");
        second = strprintf("%s/second", staging);
        assert(linkat(AT_FDCWD, plain, AT_FDCWD, second, 0) >= 0);
        assert(layer_store_publish(s, plain, NULL, digest) == -EINVAL);
        assert(access(outside, F_OK) >= 0);

        layers = strprintf("%s/layers", root);
        assert(layer_store_drop_staging(s, layers) == -EINVAL);
        assert(layer_store_drop_staging(s, outside) == -EINVAL);
        dotdot = mfree(dotdot);
        dotdot = strprintf("%s/tmp/..", root);
        assert(layer_store_drop_staging(s, dotdot) == -EINVAL);
}

static void test_clean(LayerStore *s) {
        _cleanup_free_ char *a = NULL, *b = NULL;
        char *keep[2] = {};

        assert(layer_store_new_staging(s, &a) >= 0 && layer_store_new_staging(s, &b) >= 0);
        keep[0] = a;
        assert(layer_store_clean_staging(s, keep) >= 0);
        assert(access(a, F_OK) >= 0 && access(b, F_OK) < 0);
        assert(layer_store_clean_staging(s, NULL) >= 0);
        assert(access(a, F_OK) < 0);
}

/* What was about to be published when everything stopped is known afterwards, and half-written documents are not kept.
 */
static void test_notes(LayerStore *s) {
        _cleanup_free_ char *a = NULL, *b = NULL, *digest = strprintf("sha256:%064d", 7),
                            *other = strprintf("sha256:%064d", 8);
        _cleanup_strv_free_ char **l = NULL, **none = NULL;
        int fd;

        assert(layer_store_noted(s, &none) >= 0 && !none[0]);
        assert(layer_store_new_staging(s, &a) >= 0 && layer_store_new_staging(s, &b) >= 0);
        assert(layer_store_note(s, a, digest) >= 0 && layer_store_note(s, a, digest) >= 0);
        assert(layer_store_note(s, b, digest) >= 0 && layer_store_note(s, b, other) >= 0);
        assert(layer_store_note(s, b, "sha256:../x") == -EINVAL && layer_store_note(s, "/etc", digest) == -EINVAL);
        assert(layer_store_noted(s, &l) >= 0 && strv_length(l) == 2);
        assert(strv_contains(l, digest) && strv_contains(l, other));

        fd = openat(layer_store_generations_fd(s), ".#sha256-0.json.0123", O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
        assert(fd >= 0);
        safe_close(fd);
        assert(layer_store_clean_staging(s, NULL) >= 0);
        assert(faccessat(layer_store_generations_fd(s), ".#sha256-0.json.0123", F_OK, 0) < 0);
        none = strv_free(none);
        assert(layer_store_noted(s, &none) >= 0 && !none[0]);
}

int main(void) {
        /* Not /tmp: leases and renames are to be those of a real file system where there is one. */
        char root[] = "/var/tmp/test-layer-store-XXXXXX";
        LayerStore *s = NULL;

        assert(mkdtemp(root));
        assert(layer_store_open(root, &s) >= 0);
        test_publish(s);
        test_flipped_bit(s);
        test_lost_seal(s, root);
        test_two_steps(s);
        test_outside(s, root);
        test_clean(s);
        test_notes(s);
        s = layer_store_free(s);
        assert(rm_rf_at(AT_FDCWD, root) >= 0);
        return 0;
}
