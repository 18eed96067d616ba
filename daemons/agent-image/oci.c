/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/utsname.h>

#include "basic/fs-util.h"
#include "basic/name-util.h"
#include "basic/string-util.h"
#include "oci.h"
#include "report.h"
#include "unpack-part.h"

#define DOCUMENT_SIZE_MAX (4U << 20)
#define NAME_SIZE_MAX 200U
#define INDEX_DEPTH_MAX 4U
#define LAYERS_MAX 1000U

static int refuse(const char *format, const char *what) _printf_(1, 0);

static int refuse(const char *format, const char *what) {
        _cleanup_free_ char *shown = escape_name(strempty(what));

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        return report_error(0, "InvalidImage", format, strempty(shown));
#pragma GCC diagnostic pop
}

static bool is_hex64(const char *s) {
        return strspn(s, "0123456789abcdef") >= 64;
}

bool oci_is_archive(const char *path) {
        const char *rest = is_hex64(path) ? path + 64 : NULL;

        return streq(path, "oci-layout") || streq(path, "index.json") || streq(path, "manifest.json") ||
                streq(path, "repositories") || streq(path, "blobs") || startswith(path, "blobs/sha256") ||
                (rest && (isempty(rest) || streq(rest, ".json") || streq(rest, ".tar") || rest[0] == '/'));
}

/* "blobs/sha256/<hex>" → "<hex>"; else one component, its slashes as "!". NULL: not wanted. */
static char *flat_name(const char *path) {
        const char *hex;
        char *s;

        while (startswith(path, "./"))
                path += 2;
        hex = startswith(path, "blobs/sha256/");
        if (hex && strlen(hex) == 64 && is_hex64(hex))
                return strdup(hex);
        if (isempty(path) || path[0] == '/' || strlen(path) > NAME_SIZE_MAX || strchr(path, '!') || path[0] == '.')
                return NULL;
        s = strdup(path);
        for (char *p = s; p && *p; p++)
                if (*p == '/')
                        *p = '!';
        return s;
}

/*
 * A layer that docker had twice is there once, and a link to it: "<hex>/layer.tar" → "../<hex>/layer.tar", or
 * "../<hex>.tar". Kept as a link to the flat name; nothing follows it but resolve_link().
 */
static int spool_link(int spool, const char *name, const char *target) {
        const char *rest = target ? startswith(target, "../") : NULL;
        _cleanup_free_ char *flat = rest ? flat_name(rest) : NULL;

        if (!flat || !endswith(name, "!layer.tar"))
                return 0;
        if (symlinkat(flat, spool, name) < 0)
                return errno == EEXIST ? refuse("The archive has \"%s\" twice", name) :
                                         report_errno(-errno, "Unpacking the archive");
        return 0;
}

/* One step at the most. -ENOENT where there is no file. */
static int resolve_link(int spool, const char *name, char **ret) {
        char target[NAME_SIZE_MAX + 1];
        ssize_t n = readlinkat(spool, name, target, sizeof target - 1);
        struct stat st;

        if (n >= 0)
                target[n] = 0;
        if (fstatat(spool, n >= 0 ? target : name, &st, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISREG(st.st_mode))
                return -ENOENT;
        *ret = strdup(n >= 0 ? target : name);
        return *ret ? 0 : -ENOMEM;
}

static int spool_one(struct archive *a, struct archive_entry *e, int spool, uint64_t *bytes,
                     const UnpackLimits *limits) {
        _cleanup_free_ char *name = flat_name(strempty(archive_entry_pathname(e)));
        char digest[DIGEST_LEN + 1];
        _cleanup_close_ int fd = -EBADF;
        int r;

        if (name && !archive_entry_hardlink(e) && archive_entry_filetype(e) == AE_IFLNK)
                return spool_link(spool, name, archive_entry_symlink(e));
        if (!name || archive_entry_hardlink(e) || archive_entry_filetype(e) != AE_IFREG)
                return 0; /* nothing that is asked for by a digest */
        if (archive_entry_size_is_set(e) && (uint64_t) archive_entry_size(e) > limits->bytes_max)
                return report_error(0, "ImageTooLarge", "The archive is larger than is allowed (%" PRIu64 " bytes)",
                                    limits->bytes_max);
        fd = openat(spool, name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
        if (fd < 0)
                return errno == EEXIST ? refuse("The archive has \"%s\" twice", name) :
                                         report_errno(-errno, "Unpacking the archive");
        r = unpack_data(a, fd, name, limits, bytes, *bytes);
        if (r < 0 || strlen(name) != 64 || !is_hex64(name))
                return r;
        r = lseek(fd, 0, SEEK_SET) < 0 ? -errno : digest_fd(fd, digest);
        if (r < 0)
                return report_errno(r, "Unpacking the archive");
        return streq(digest + strlen("sha256:"), name) ? 0 :
                refuse("The blob %s does not have the digest of its name", name);
}

int oci_spool(struct archive *a, struct archive_entry *e, int spool, const UnpackLimits *limits) {
        uint64_t bytes = 0, entries = 0;
        int r;

        for (;;) {
                if (++entries > limits->entries_max)
                        return report_error(0, "ImageTooLarge", "The archive has too many entries");
                report_step("unpacking", bytes);
                r = spool_one(a, e, spool, &bytes, limits);
                if (r < 0)
                        return r;
                do
                        r = archive_read_next_header(a, &e);
                while (r == ARCHIVE_RETRY);
                if (r == ARCHIVE_EOF)
                        return 0;
                if (r < ARCHIVE_WARN)
                        return report_error(0, "InvalidImage", "The archive is damaged: %s", archive_error_string(a));
        }
}

int oci_open(int spool, const char *name) {
        int fd = openat(spool, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);

        return fd < 0 ? -errno : fd;
}

void oci_image_done(OciImage *i) {
        free(i->config);
        strv_free(i->layers);
        strv_free(i->diff_ids);
        *i = (OciImage) {};
}

static int read_document(int spool, const char *name, sd_json_variant **ret) {
        _cleanup_free_ char *text = NULL, *error = NULL;
        _cleanup_close_ int fd = oci_open(spool, name);
        size_t size;
        int r;

        if (fd < 0)
                return fd == -ENOENT ? refuse("The archive does not contain %s", name) :
                                       report_errno(fd, "Reading the archive");
        r = read_full_fd(fd, DOCUMENT_SIZE_MAX, &text, &size);
        if (r == -EFBIG)
                return refuse("%s is too large", name);
        if (r >= 0)
                r = json_parse(text, size, ret, &error);
        if (r == -EINVAL)
                return report_error(0, "InvalidImage", "%s is no JSON document: %s", name, strempty(error));
        return r < 0 ? report_errno(r, "Reading the archive") : 0;
}

const char *oci_architecture(void) {
        static struct utsname u;

        if (uname(&u) < 0)
                return "";
        return streq(u.machine, "x86_64") ? "amd64" : streq(u.machine, "aarch64") ? "arm64" :
               streq(u.machine, "riscv64") ? "riscv64" : streq(u.machine, "ppc64le") ? "ppc64le" : u.machine;
}

/* --- what the documents say -------------------------------------------------------------------------------------- */

typedef enum LayerKind {
        LAYER_TAR,
        LAYER_EROFS,
        LAYER_ELSEWHERE, /* "foreign": not to be handed on with the image */
        _LAYER_KIND_INVALID = -EINVAL,
} LayerKind;

static LayerKind layer_kind(const char *type) {
        static const struct {
                const char *type;
                LayerKind kind;
        } table[] = {
                { "application/vnd.oci.image.layer.v1.tar", LAYER_TAR },
                { "application/vnd.oci.image.layer.v1.tar+gzip", LAYER_TAR },
                { "application/vnd.oci.image.layer.v1.tar+zstd", LAYER_TAR },
                { "application/vnd.docker.image.rootfs.diff.tar", LAYER_TAR },
                { "application/vnd.docker.image.rootfs.diff.tar.gzip", LAYER_TAR },
                { "application/vnd.docker.image.rootfs.diff.tar.zstd", LAYER_TAR },
                { OCI_TYPE_EROFS, LAYER_EROFS },
                { "application/vnd.oci.image.layer.nondistributable.v1.tar", LAYER_ELSEWHERE },
                { "application/vnd.oci.image.layer.nondistributable.v1.tar+gzip", LAYER_ELSEWHERE },
                { "application/vnd.oci.image.layer.nondistributable.v1.tar+zstd", LAYER_ELSEWHERE },
                { "application/vnd.docker.image.rootfs.foreign.diff.tar", LAYER_ELSEWHERE },
                { "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip", LAYER_ELSEWHERE },
        };

        for (size_t i = 0; i < ELEMENTSOF(table); i++)
                if (streq(table[i].type, type))
                        return table[i].kind;
        return _LAYER_KIND_INVALID;
}

/* A descriptor's digest; its blob is there and has the size that it says. */
static int descriptor(int spool, sd_json_variant *d, const char **ret) {
        const char *digest = d ? json_string(d, "digest") : NULL;
        sd_json_variant *size = d ? sd_json_variant_by_key(d, "size") : NULL;
        struct stat st;

        if (!digest || !digest_is_valid(digest) || !size || !sd_json_variant_is_unsigned(size))
                return refuse("A descriptor in the archive is not valid%s", "");
        if (fstatat(spool, oci_blob_name(digest), &st, AT_SYMLINK_NOFOLLOW) < 0)
                return refuse("The archive does not contain the blob %s", digest);
        if ((uint64_t) st.st_size != sd_json_variant_unsigned(size))
                return refuse("The blob %s does not have the size that is said of it", digest);
        *ret = digest;
        return 0;
}

/* For which machine, and the layers' digests without their compression. */
static int read_config(int spool, const char *name, OciImage *image) {
        _cleanup_json_ sd_json_variant *v = NULL;
        sd_json_variant *rootfs, *ids;
        const char *arch, *os;
        int r;

        r = read_document(spool, name, &v);
        if (r < 0)
                return r;
        if (!sd_json_variant_is_object(v))
                return refuse("%s is no configuration of an image", name);
        arch = json_string(v, "architecture");
        os = json_string(v, "os");
        if (!isempty(os) && !streq(os, "linux"))
                return refuse("The image is for the system %s, not for linux", os);
        if (!isempty(arch) && !streq(arch, oci_architecture()))
                return refuse("The archive has no image for this machine, only one for %s", arch);
        image->environment = !!sd_json_variant_by_key(v, OCI_KEY_ENVIRONMENT);
        rootfs = sd_json_variant_by_key(v, "rootfs");
        ids = rootfs ? sd_json_variant_by_key(rootfs, "diff_ids") : NULL;
        if (!ids)
                return 0;
        if (!sd_json_variant_is_array(ids) || sd_json_variant_elements(ids) != strv_length(image->layers))
                return refuse("The configuration %s lists another number of layers than there are", name);
        for (size_t i = 0; i < sd_json_variant_elements(ids); i++) {
                sd_json_variant *id = sd_json_variant_by_index(ids, i);

                if (!sd_json_variant_is_string(id) || !digest_is_valid(sd_json_variant_string(id)))
                        return refuse("The configuration %s has a layer's digest that is not valid", name);
                if (strv_extend(&image->diff_ids, sd_json_variant_string(id)) < 0)
                        return report_errno(-ENOMEM, "Reading the archive");
        }
        return 0;
}

static int read_layer(int spool, sd_json_variant *d, bool *erofs, OciImage *image) {
        const char *type = d ? json_string(d, "mediaType") : NULL, *digest;
        LayerKind kind = layer_kind(strempty(type));
        int r;

        if (kind == LAYER_ELSEWHERE)
                return refuse("A layer of the image is not in the archive but somewhere else (%s)", type);
        if (kind < 0)
                return refuse("A layer of the image is of a kind that is not known here (%s)", type);
        r = descriptor(spool, d, &digest);
        if (r < 0)
                return r;
        *erofs = kind == LAYER_EROFS;
        r = strv_extend(&image->layers, oci_blob_name(digest));
        return r < 0 ? report_errno(r, "Reading the archive") : 0;
}

static int read_image(int spool, const char *name, sd_json_variant *config, sd_json_variant *layers, OciImage *ret) {
        const char *type = json_string(config, "mediaType"), *digest;
        _cleanup_(oci_image_done) OciImage image = {};
        size_t n = sd_json_variant_elements(layers), n_erofs = 0;
        int r;

        if (!type || (!streq(type, OCI_TYPE_CONFIG) && !streq(type, "application/vnd.docker.container.image.v1+json")))
                return refuse("What is in the archive is no image but something else (%s)", type);
        r = descriptor(spool, config, &digest);
        for (size_t i = 0; r >= 0 && i < n; i++) {
                bool erofs = false;

                r = read_layer(spool, sd_json_variant_by_index(layers, i), &erofs, &image);
                n_erofs += erofs;
        }
        if (r >= 0 && free_and_strdup(&image.config, oci_blob_name(digest)) < 0)
                r = report_errno(-ENOMEM, "Reading the archive");
        if (r >= 0)
                r = read_config(spool, image.config, &image);
        /* All of them or none, and an environment says so. */
        if (r >= 0 && n_erofs != (image.environment ? n : 0))
                r = refuse("The layers of %s are not of the kind that its configuration says", name);
        if (r < 0)
                return r;
        *ret = image;
        image = (OciImage) {};
        return 0;
}

static int read_manifest(int spool, const char *name, unsigned depth, OciImage *ret);

/* Signatures and the like stand beside images, for a machine called "unknown". */
static int read_index(int spool, sd_json_variant *index, unsigned depth, OciImage *ret) {
        sd_json_variant *l = sd_json_variant_by_key(index, "manifests"), *best = NULL;
        size_t n = l && sd_json_variant_is_array(l) ? sd_json_variant_elements(l) : 0, n_any = 0;
        const char *digest;
        int r;

        for (size_t i = 0; i < n; i++) {
                sd_json_variant *d = sd_json_variant_by_index(l, i), *p = sd_json_variant_by_key(d, "platform");
                const char *arch = p ? json_string(p, "architecture") : NULL, *os = p ? json_string(p, "os") : NULL;

                if (!arch)
                        n_any++;
                if (arch ? streq(arch, oci_architecture()) && (!os || streq(os, "linux")) : n == 1) {
                        best = d;
                        break;
                }
        }
        if (!best && n_any > 1)
                return refuse("The archive has several images; save one of them alone%s", "");
        if (!best)
                return refuse("The archive has no image for this machine (%s)", oci_architecture());
        r = descriptor(spool, best, &digest);
        return r < 0 ? r : read_manifest(spool, oci_blob_name(digest), depth + 1, ret);
}

static int read_manifest(int spool, const char *name, unsigned depth, OciImage *ret) {
        _cleanup_json_ sd_json_variant *v = NULL;
        sd_json_variant *layers, *config;
        int r;

        if (depth > INDEX_DEPTH_MAX)
                return refuse("The archive's indexes are nested too deeply%s", "");
        r = read_document(spool, name, &v);
        if (r < 0)
                return r;
        config = sd_json_variant_by_key(v, "config");
        layers = sd_json_variant_by_key(v, "layers");
        /* A document that is both would be another image to whoever reads it the other way. */
        if (sd_json_variant_by_key(v, "manifests"))
                return config || layers ? refuse("%s is an index and an image at once", name) :
                                          read_index(spool, v, depth, ret);
        if (!config || !layers || !sd_json_variant_is_array(layers) || sd_json_variant_elements(layers) > LAYERS_MAX)
                return refuse("%s is no manifest of an image", name);
        return read_image(spool, name, config, layers, ret);
}

/* [{"Config": "<hex>.json", "Layers": ["<hex>/layer.tar", …]}] */
static int read_docker(int spool, OciImage *ret) {
        _cleanup_json_ sd_json_variant *v = NULL;
        _cleanup_(oci_image_done) OciImage image = {};
        _cleanup_free_ char *config = NULL;
        sd_json_variant *layers, *c;
        int r;

        r = read_document(spool, "manifest.json", &v);
        if (r < 0)
                return r;
        if (!sd_json_variant_is_array(v) || sd_json_variant_elements(v) != 1)
                return refuse("The archive has several images; save one of them alone%s", "");
        c = sd_json_variant_by_key(sd_json_variant_by_index(v, 0), "Config");
        layers = sd_json_variant_by_key(sd_json_variant_by_index(v, 0), "Layers");
        if (!layers || !sd_json_variant_is_array(layers) || sd_json_variant_elements(layers) > LAYERS_MAX)
                return refuse("%s lists no layers", "manifest.json");
        for (size_t i = 0; i < sd_json_variant_elements(layers); i++) {
                sd_json_variant *s = sd_json_variant_by_index(layers, i);
                const char *said = sd_json_variant_is_string(s) ? sd_json_variant_string(s) : "";
                _cleanup_free_ char *name = flat_name(said), *real = NULL;

                r = name ? resolve_link(spool, name, &real) : -ENOENT;
                if (r < 0)
                        return refuse("The archive does not contain the layer %s", said);
                if (strv_extend(&image.layers, real) < 0)
                        return report_errno(-ENOMEM, "Reading the archive");
        }
        config = c && sd_json_variant_is_string(c) ? flat_name(sd_json_variant_string(c)) : NULL;
        if (!config)
                return refuse("%s names no configuration", "manifest.json");
        r = read_config(spool, config, &image);
        if (r >= 0 && image.environment)
                r = refuse("%s is an environment in the form of an image", "manifest.json");
        if (r < 0)
                return r;
        *ret = image;
        image = (OciImage) {};
        return 0;
}

int oci_find_image(int spool, OciImage *ret) {
        struct stat st;

        if (fstatat(spool, "index.json", &st, AT_SYMLINK_NOFOLLOW) < 0 &&
            fstatat(spool, "manifest.json", &st, AT_SYMLINK_NOFOLLOW) >= 0)
                return read_docker(spool, ret);
        return read_manifest(spool, "index.json", 0, ret);
}
