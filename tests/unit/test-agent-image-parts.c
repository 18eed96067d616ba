/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Proves what agent-image's parts make of trees and archives: what differs between two trees, and which packages; what
 * a stack of layers is when it is one; which image of an archive is taken, and what of it is refused; that an
 * environment comes back as it went. Needs root (owners, whiteouts, trusted xattrs); skips (77) otherwise.
 */
#include <archive.h>
#include <archive_entry.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>

#include "basic/digest.h"
#include "basic/fs-util.h"
#include "basic/json-util.h"
#include "basic/string-util.h"
#include "carry.h"
#include "diff.h"
#include "erofs.h"
#include "merge.h"
#include "oci.h"

#define SKIP 77

static char top[] = "/var/tmp/test-agent-image-parts-XXXXXX";

static const char *at(const char *path) {
        static char buf[16][PATH_MAX];
        static unsigned i;
        char *p = buf[i++ % ELEMENTSOF(buf)];

        snprintf(p, PATH_MAX, "%s/%s", top, path);
        return p;
}

static void make(const char *path) {
        assert(mkdir_parents(at(path), 0755) >= 0);
}

static void make_above(const char *path) {
        _cleanup_free_ char *above = strdup(path);
        char *slash = strrchr(above, '/');

        if (slash)
                *slash = 0;
        make(slash ? above : ".");
}

static void put(const char *path, const char *text) {
        make_above(path);
        assert(write_file_atomic(AT_FDCWD, at(path), text, strlen(text), 0644, (uid_t) -1, (gid_t) -1, 0) >= 0);
        assert(utimensat(AT_FDCWD, at(path), (struct timespec[2]) { { .tv_sec = 1 }, { .tv_sec = 1 } }, 0) >= 0);
}

static int dir(const char *path) {
        int fd = open(at(path), O_RDONLY | O_DIRECTORY | O_CLOEXEC);

        assert(fd >= 0);
        return fd;
}

/* --- diff, packages ----------------------------------------------------------------------------------------------- */

static sd_json_variant *compare(const char *from, const char *to) {
        _cleanup_close_ int a = dir(from), b = dir(to),
                            out = open(at("diff"), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
        _cleanup_free_ char *text = NULL;
        sd_json_variant *v = NULL;
        size_t size;

        assert(out >= 0 && diff_trees(a, b, fcntl(out, F_DUPFD_CLOEXEC, 3)) >= 0 && lseek(out, 0, SEEK_SET) == 0);
        assert(read_full_fd(out, 1 << 20, &text, &size) >= 0 && json_parse(text, size, &v, NULL) >= 0);
        return v;
}

/* "~content,time" of a path, "+", "-" or "" */
static const char *change_of(sd_json_variant *document, const char *path) {
        sd_json_variant *l = sd_json_variant_by_key(document, "paths");
        static char s[128];

        s[0] = 0;
        for (size_t i = 0; i < sd_json_variant_elements(l); i++) {
                sd_json_variant *v = sd_json_variant_by_index(l, i), *what = sd_json_variant_by_key(v, "what");
                const char *change = json_string(v, "change");

                if (!streq(json_string(v, "path"), path))
                        continue;
                strcpy(s, streq(change, "added") ? "+" : streq(change, "removed") ? "-" : "~");
                for (size_t k = 0; what && k < sd_json_variant_elements(what); k++) {
                        strcat(s, k > 0 ? "," : "");
                        strcat(s, sd_json_variant_string(sd_json_variant_by_index(what, k)));
                }
        }
        return s;
}

static void test_diff(void) {
        _cleanup_json_ sd_json_variant *v = NULL, *none = NULL;

        for (unsigned i = 0; i < 2; i++) {
                const char *side = i == 0 ? "from" : "to";

#define IN(p) strcat(strcpy((char[256]) {}, side), "/" p)
                put(IN("same"), "same");
                put(IN("bytes"), i == 0 ? "aaaa" : "aaab");
                put(IN("mode"), "x");
                put(IN("owner"), "x");
                put(IN("time"), "x");
                put(IN("xattr"), "x");
                put(IN(" odd\n\xff"), "x");
                if (i == 0)
                        put(IN("kind"), "x"), put(IN("gone/a/b"), "x");
                else
                        put(IN("kind/inside"), "x"), put(IN("new/a/b"), "xyz");
                assert(symlink(i == 0 ? "one" : "two", at(IN("link"))) >= 0);
        }
        assert(chmod(at("to/mode"), 04755) >= 0 && chown(at("to/owner"), 5, 6) >= 0);
        assert(utimensat(AT_FDCWD, at("to/time"), (struct timespec[2]) { {}, { .tv_sec = 1, .tv_nsec = 1 } }, 0) >= 0);
        assert(setxattr(at("to/xattr"), "user.k", "v", 1, 0) >= 0);
        assert(lchown(at("from/link"), 0, 0) >= 0);
        for (unsigned i = 0; i < 2; i++)
                assert(utimensat(AT_FDCWD, at(i == 0 ? "from/link" : "to/link"), (struct timespec[2]){},
                                 AT_SYMLINK_NOFOLLOW) >= 0);
        v = compare("from", "to");
        assert(streq(change_of(v, "/same"), "") && streq(change_of(v, "/ odd\\x0a\\xff"), ""));
        assert(streq(change_of(v, "/bytes"), "~content") && streq(change_of(v, "/mode"), "~mode"));
        assert(streq(change_of(v, "/owner"), "~owner") && streq(change_of(v, "/time"), "~time"));
        assert(streq(change_of(v, "/xattr"), "~xattr") && streq(change_of(v, "/link"), "~content"));
        assert(startswith(change_of(v, "/kind"), "~type") && streq(change_of(v, "/kind/inside"), "+"));
        assert(streq(change_of(v, "/gone"), "-") && streq(change_of(v, "/gone/a/b"), "-") &&
               streq(change_of(v, "/new/a/b"), "+"));
        none = compare("from", "from");
        assert(sd_json_variant_elements(sd_json_variant_by_key(none, "paths")) == 0);
        assert(unlink(at("to/ odd\n\xff")) >= 0);
        sd_json_variant_unref(v);
        v = compare("from", "to");
        assert(streq(change_of(v, "/ odd\\x0a\\xff"), "-"));
}

#define STANZA(name, version, status, arch) \
        "Package: " name "\nStatus: " status "\nArchitecture: " arch "\nVersion: " version "\nDescription: x\n Version: 9\n\n"

static const struct {
        const char *manager, *name, *from, *to;
} expected_packages[] = {
        { "dpkg", "held", "1", "2" },
        { "dpkg", "libc6", "2.40", "2.41" }, /* of one machine's kind, while the other's stays */
        { "dpkg", "new", NULL, "1:3.0-1" },
        { "dpkg", "old", "7", NULL },
        { "npm", "@scope/name", "1.0.0", "1.0.1" },
        { "npm", "left-pad", "1.3.0", "1.3.1" },
        { "pip", "PyYAML", "6.0.1", "6.0.2" },
        { "pip", "six", "1.16.0", "1.17.0" },
};

static void test_packages(void) {
        static const char npm[] = "usr/lib/node_modules/";
        _cleanup_json_ sd_json_variant *v = NULL;
        sd_json_variant *l;

        put("p1/var/lib/dpkg/status", STANZA("libc6", "2.40", "install ok installed", "amd64")
                                      STANZA("libc6", "2.40", "install ok installed", "i386")
                                      STANZA("held", "1", "hold ok installed", "all")
                                      STANZA("old", "7", "install ok installed", "all")
                                      STANZA("half", "1", "install ok half-installed", "all"));
        put("p2/var/lib/dpkg/status", STANZA("libc6", "2.41", "install ok installed", "amd64")
                                      STANZA("libc6", "2.40", "install ok installed", "i386")
                                      STANZA("held", "2", "hold ok installed", "all")
                                      STANZA("new", "1:3.0-1", "install ok installed", "all")
                                      STANZA("half", "2", "deinstall ok config-files", "all")
                                      "Package: ev\x01il\nStatus: install ok installed\nVersion: 1\n\nVersion: 1\n");
        put("p1/usr/lib/python3/dist-packages/six-1.16.0.dist-info/METADATA", "x");
        put("p2/usr/lib/python3/dist-packages/six-1.17.0.dist-info/METADATA", "x");
        put("p1/usr/lib/python3/dist-packages/PyYAML-6.0.1-py3.12.egg-info", "x");
        put("p2/usr/lib/python3/dist-packages/PyYAML-6.0.2.egg-info/PKG-INFO", "x");
        put("p2/usr/lib/python3/dist-packages/-1.dist-info/METADATA", "x");
        for (unsigned i = 0; i < 2; i++) {
                char path[256];
                const char *version = i == 0 ? "{\"version\":\"1.3.0\"}" : "{\"version\":\"1.3.1\"}";

                snprintf(path, sizeof path, "p%u/%sleft-pad/package.json", i + 1, npm);
                put(path, version);
                snprintf(path, sizeof path, "p%u/%s@scope/name/package.json", i + 1, npm);
                put(path, i == 0 ? "{\"version\":\"1.0.0\"}" : "{\"version\":\"1.0.1\"}");
                /* No package, but a part of one; and what is no JSON. */
                snprintf(path, sizeof path, "p%u/%sleft-pad/sub/package.json", i + 1, npm);
                put(path, version);
                snprintf(path, sizeof path, "p%u/%sbroken/package.json", i + 1, npm);
                put(path, i == 0 ? "{" : "[]");
        }
        v = compare("p1", "p2");
        l = sd_json_variant_by_key(v, "packages");
        assert(sd_json_variant_elements(l) == ELEMENTSOF(expected_packages));
        for (size_t i = 0; i < ELEMENTSOF(expected_packages); i++) {
                sd_json_variant *p = sd_json_variant_by_index(l, i);

                assert(streq(json_string(p, "manager"), expected_packages[i].manager));
                assert(streq(json_string(p, "name"), expected_packages[i].name));
                assert(streq_ptr(json_string(p, "from"), expected_packages[i].from));
                assert(streq_ptr(json_string(p, "to"), expected_packages[i].to));
        }
}

/* --- merge -------------------------------------------------------------------------------------------------------- */

static void whiteout(const char *path) {
        make_above(path);
        assert(mknod(at(path), S_IFCHR, makedev(0, 0)) >= 0);
}

static void opaque(const char *path) {
        assert(setxattr(at(path), "trusted.overlay.opaque", "y", 1, 0) >= 0);
}

static bool is_whiteout(const char *path) {
        struct stat st;

        return lstat(at(path), &st) >= 0 && S_ISCHR(st.st_mode) && st.st_rdev == makedev(0, 0);
}

static bool is_opaque(const char *path) {
        char v;

        return getxattr(at(path), "trusted.overlay.opaque", &v, 1) == 1 && v == 'y';
}

static bool missing(const char *path) {
        struct stat st;

        return lstat(at(path), &st) < 0 && errno == ENOENT;
}

static void test_merge(void) {
        struct stat a, b;

        put("base/etc/deleted", "x"), put("base/etc/kept", "x"), put("base/dir/x", "x");
        /* The lower layer: deletes, replaces, links. */
        whiteout("l1/etc/deleted"), whiteout("l1/etc/never-there"), whiteout("l1/etc/back");
        put("l1/dir/one", "1"), opaque("l1/dir");
        put("l1/file", "1"), assert(link(at("l1/file"), at("l1/hard")) >= 0);
        put("l1/turns/into", "1"), put("l1/gone", "1"), put("l1/attr", "1");
        assert(chown(at("l1/attr"), 7, 8) >= 0 && chmod(at("l1/attr"), 04711) >= 0);
        assert(setxattr(at("l1/attr"), "user.old", "o", 1, 0) >= 0);
        /* The upper one. */
        put("l2/etc/back", "b"), put("l2/dir/two", "2"), put("l2/turns", "a file now"), whiteout("l2/gone");
        put("l2/file", "2"); /* the other name keeps what the lower layer has */
        make("l2/replaced"), make("l2/fresh"), opaque("l2/fresh"), put("l2/fresh/x", "x"), put("l1/fresh/y", "y");
        put("l2/attr", "2"), assert(setxattr(at("l2/attr"), "user.new", "n", 1, 0) >= 0);
        make("merged");
        for (unsigned i = 0; i < 2; i++) {
                _cleanup_close_ int layer = dir(i == 0 ? "l1" : "l2"), tree = dir("merged");

                assert(merge_layer(layer, tree) >= 0);
        }
        {
                _cleanup_close_ int tree = dir("merged"), base = dir("base");

                assert(merge_finish(tree, base) >= 0);
        }
        assert(is_whiteout("merged/etc/deleted") && missing("merged/etc/never-there"));
        assert(!is_whiteout("merged/etc/back") && access(at("merged/etc/back"), F_OK) >= 0);
        assert(is_opaque("merged/dir") && access(at("merged/dir/one"), F_OK) >= 0 &&
               access(at("merged/dir/two"), F_OK) >= 0);
        assert(is_opaque("merged/fresh") && missing("merged/fresh/y") && access(at("merged/fresh/x"), F_OK) >= 0);
        assert(lstat(at("merged/turns"), &a) >= 0 && S_ISREG(a.st_mode) && missing("merged/gone"));
        assert(lstat(at("merged/file"), &a) >= 0 && lstat(at("merged/hard"), &b) >= 0 && a.st_ino != b.st_ino);
        assert(lstat(at("merged/attr"), &a) >= 0 && a.st_uid == 0 && (a.st_mode & 07777) == 0644 &&
               a.st_mtim.tv_sec == 1);
        assert(getxattr(at("merged/attr"), "user.old", NULL, 0) < 0 &&
               getxattr(at("merged/attr"), "user.new", NULL, 0) == 1);
}

/* --- archives ----------------------------------------------------------------------------------------------------- */

static void blob(const char *text, char ret[static DIGEST_LEN + 1]) {
        char path[128];

        assert(digest_bytes(text, strlen(text), ret) >= 0);
        snprintf(path, sizeof path, "spool/%s", oci_blob_name(ret));
        put(path, text);
}

static int find(const char *config, const char *layer_type, const char *extra, OciImage *ret) {
        _cleanup_free_ char *manifest = NULL, *index = NULL;
        char c[DIGEST_LEN + 1], l[DIGEST_LEN + 1], m[DIGEST_LEN + 1];
        _cleanup_close_ int spool = -EBADF;

        assert(rm_rf_at(AT_FDCWD, at("spool")) >= 0);
        make("spool");
        blob(config, c);
        blob("layer", l);
        manifest = strprintf("{\"config\":{\"mediaType\":\"" OCI_TYPE_CONFIG "\",\"digest\":\"%s\",\"size\":%zu},"
                             "\"layers\":[{\"mediaType\":\"%s\",\"digest\":\"%s\",\"size\":5}]%s}",
                             c, strlen(config), layer_type, l, extra);
        blob(manifest, m);
        index = strprintf("{\"manifests\":[{\"digest\":\"%s\",\"size\":%zu}]}", m, strlen(manifest));
        put("spool/index.json", index);
        spool = dir("spool");
        return oci_find_image(spool, ret);
}

static void test_oci(void) {
        static const char tar[] = "application/vnd.oci.image.layer.v1.tar+zstd";
        _cleanup_free_ char *ours = strprintf(
                "{\"architecture\":\"%s\",\"os\":\"linux\",\"rootfs\":{\"diff_ids\":[\"sha256:"
                "0000000000000000000000000000000000000000000000000000000000000000\"]}}",
                oci_architecture());
        _cleanup_(oci_image_done) OciImage image = {};

        assert(oci_is_archive("oci-layout") && oci_is_archive("blobs/sha256") && oci_is_archive("manifest.json"));
        assert(!oci_is_archive("etc") && !oci_is_archive("") && !oci_is_archive("abcdef.json"));
        assert(find(ours, tar, "", &image) >= 0 && !image.environment && strv_length(image.layers) == 1 &&
               image.diff_ids);
        oci_image_done(&image);
        assert(find("{}", tar, "", &image) >= 0 && !image.diff_ids);
        oci_image_done(&image);
        assert(find("{\"" OCI_KEY_ENVIRONMENT "\":{}}", OCI_TYPE_EROFS, "", &image) >= 0 && image.environment);
        oci_image_done(&image);
        /* Each of these is wrong in one thing. */
        assert(find("{\"architecture\":\"pdp11\"}", tar, "", &image) < 0);
        assert(find("{\"os\":\"plan9\"}", tar, "", &image) < 0);
        assert(find("{\"rootfs\":{\"diff_ids\":[]}}", tar, "", &image) < 0);
        assert(find("{\"rootfs\":{\"diff_ids\":[1]}}", tar, "", &image) < 0);
        assert(find("[]", tar, "", &image) < 0);
        assert(find("{}", OCI_TYPE_EROFS, "", &image) < 0);
        assert(find("{\"" OCI_KEY_ENVIRONMENT "\":{}}", tar, "", &image) < 0);
        assert(find("{}", "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip", "", &image) < 0);
        assert(find("{}", "text/plain", "", &image) < 0);
        assert(find("{}", tar, ",\"manifests\":[]", &image) < 0);
        assert(!image.layers && !image.config);
}

static const UnpackLimits limits = { .bytes_max = 1 << 24, .entries_max = 100 };

static void test_carry(void) {
        static const char document[] = "{\"head\":\"sha256:abc\",\"v\":1}";
        char digest[DIGEST_LEN + 1], config[DIGEST_LEN + 1], name[128], again[DIGEST_LEN + 1];
        _cleanup_close_ int out = -EBADF, spool = -EBADF, layer = -EBADF;
        _cleanup_json_ sd_json_variant *v = NULL;
        _cleanup_free_ char *text = NULL;
        struct stat st;
        uint64_t size;
        size_t n;

        put("tree/etc/x", "x");
        assert(erofs_make(at("tree"), at("layer.erofs"), &size) >= 0);
        layer = open(at("layer.erofs"), O_RDONLY | O_CLOEXEC);
        assert(layer >= 0 && digest_fd(layer, digest) >= 0);
        snprintf(name, sizeof name, "sha256-%s.erofs", oci_blob_name(digest));
        assert(rename(at("layer.erofs"), at(name)) >= 0);
        put("config.json", document);
        out = open(at("e.tar"), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        assert(carry_export(out, at("config.json"), (char *[]) { (char *) at(name), NULL }, "a") >= 0);

        make("in");
        spool = dir("in");
        assert(lseek(out, 0, SEEK_SET) == 0 && carry_import(out, spool, at("in"), &limits, config) >= 0);
        assert(fstatat(spool, oci_blob_name(digest), &st, 0) >= 0 && (uint64_t) st.st_size == size);
        assert(read_full_file_at(spool, oci_blob_name(config), 1 << 16, &text, &n) >= 0);
        assert(digest_bytes(text, n, again) >= 0 && streq(again, config) && json_parse(text, n, &v, NULL) >= 0);
        assert(streq(json_string(sd_json_variant_by_key(v, OCI_KEY_ENVIRONMENT), "head"), "sha256:abc"));
        assert(streq(json_string(v, "architecture"), oci_architecture()) && streq(json_string(v, "os"), "linux"));

        /* A layer that went bad meanwhile does not go out under its name. */
        safe_close(layer);
        layer = open(at(name), O_WRONLY | O_CLOEXEC);
        assert(layer >= 0 && pwrite(layer, "!", 1, (off_t) size / 2) == 1 && ftruncate(out, 0) >= 0);
        assert(carry_export(out, at("config.json"), (char *[]) { (char *) at(name), NULL }, "a") < 0);
}

int main(void) {
        if (geteuid() != 0 || access("/usr/bin/mkfs.erofs", X_OK) < 0) {
                fprintf(stderr, "Needs root and mkfs.erofs: skipped.\n");
                return SKIP;
        }
        umask(0022);
        assert(mkdtemp(top));
        test_diff();
        test_packages();
        test_merge();
        test_oci();
        test_carry();
        assert(rm_rf_at(AT_FDCWD, top) >= 0);
        return 0;
}
