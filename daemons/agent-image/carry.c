/* SPDX-License-Identifier: LGPL-2.1-or-later */
#include <fcntl.h>
#include <openssl/evp.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "basic/fs-util.h"
#include "basic/name-util.h"
#include "basic/string-util.h"
#include "carry.h"
#include "oci.h"
#include "report.h"
#include "stall.h"
#include "unpack-part.h"

#define BLOCK_SIZE (256 * 1024)
#define CONFIG_SIZE_MAX (16U << 20)
#define LAYERS_MAX 64U

/* --- out -------------------------------------------------------------------------------------------------------- */

/* The store has no part in it: the caller chose the place. */
static int cannot_write(struct archive *a) {
        int e = archive_errno(a);

        if (e == ENOSPC || e == EDQUOT)
                return report_error(-e, "NoSpace",
                                    "There is no room for the archive where it is written to. Make room there, or "
                                    "choose another place.");
        return report_error(0, "Failed", "The archive cannot be written: %s", strempty(archive_error_string(a)));
}

static int put_header(struct archive *a, const char *path, uint64_t size) {
        struct archive_entry *e = archive_entry_new();
        int r;

        if (!e)
                return report_errno(-ENOMEM, "Exporting");
        archive_entry_set_pathname(e, path);
        archive_entry_set_size(e, (la_int64_t) size);
        archive_entry_set_filetype(e, AE_IFREG);
        archive_entry_set_perm(e, 0644);
        archive_entry_set_mtime(e, 0, 0);
        r = archive_write_header(a, e);
        archive_entry_free(e);
        return r < ARCHIVE_WARN ? cannot_write(a) : 0;
}

static int put_data(struct archive *a, const void *data, size_t size) {
        if (archive_write_data(a, data, size) != (la_ssize_t) size)
                return cannot_write(a);
        return 0;
}

static int put_text(struct archive *a, const char *path, const char *text) {
        int r = put_header(a, path, strlen(text));

        return r < 0 ? r : put_data(a, text, strlen(text));
}

static int put_blob(struct archive *a, const char *text, const char *digest) {
        _cleanup_free_ char *path = strprintf("blobs/sha256/%s", oci_blob_name(digest));

        return path ? put_text(a, path, text) : report_errno(-ENOMEM, "Exporting");
}

static int layer_digest(const char *path, char ret[static DIGEST_LEN + 1]) {
        const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;

        if (!startswith(name, "sha256-") || !endswith(name, ".erofs") || strlen(name) != DIGEST_LEN + 6)
                return report_error(0, "InvalidOption", "That is no layer's file");
        snprintf(ret, DIGEST_LEN + 1, "sha256:%.64s", name + 7);
        return 0;
}

static int put_layer(struct archive *a, const char *path) {
        _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
        static uint64_t done;
        static char buf[BLOCK_SIZE];
        char digest[DIGEST_LEN + 1];
        unsigned char md[EVP_MAX_MD_SIZE];
        _cleanup_free_ char *name = NULL, *hex = NULL;
        EVP_MD_CTX *ctx;
        struct stat st;
        ssize_t n = 0;
        int r;

        r = layer_digest(path, digest);
        if (r < 0)
                return r;
        if (fd < 0 || fstat(fd, &st) < 0)
                return report_errno(-errno, "Opening a layer");
        name = strprintf("blobs/sha256/%s", oci_blob_name(digest));
        ctx = EVP_MD_CTX_new();
        if (!name || !ctx || EVP_DigestInit_ex(ctx, EVP_sha256(), NULL) != 1)
                r = report_errno(-ENOMEM, "Exporting");
        if (r >= 0)
                r = put_header(a, name, (uint64_t) st.st_size);
        while (r >= 0 && (n = read(fd, buf, sizeof buf)) > 0) {
                done += (uint64_t) n;
                report_step("exporting", done);
                r = EVP_DigestUpdate(ctx, buf, (size_t) n) == 1 ? put_data(a, buf, (size_t) n) :
                                                                  report_errno(-EIO, "Exporting");
        }
        if (r >= 0 && n < 0)
                r = report_errno(-errno, "Reading a layer");
        if (r >= 0 && EVP_DigestFinal_ex(ctx, md, NULL) != 1)
                r = report_errno(-EIO, "Exporting");
        EVP_MD_CTX_free(ctx);
        if (r < 0)
                return r;
        hex = hex_encode(md, 32);
        if (!hex)
                return report_errno(-ENOMEM, "Exporting");
        return streq(hex, oci_blob_name(digest)) ? 0 :
                report_error(0, "EnvironmentDamaged", "The layer %s is damaged; run: agentctl env fsck", digest);
}

/*
 * A configuration as an image has it, so that whoever shows, copies or keeps images can do so with this; what is ours
 * is one more member of it, which they leave alone.
 */
static int make_config(const char *document, char *const *layers, const char *name, char **ret) {
        _cleanup_json_ sd_json_variant *v = NULL, *ours = NULL, *ids = NULL;
        _cleanup_free_ char *error = NULL;
        const char *head;
        int r;

        r = json_parse(document, strlen(document), &ours, &error);
        for (char *const *l = layers; r >= 0 && *l; l++) {
                _cleanup_json_ sd_json_variant *id = NULL;
                char digest[DIGEST_LEN + 1];

                r = layer_digest(*l, digest);
                if (r < 0)
                        return r;
                r = sd_json_variant_new_string(&id, digest);
                if (r >= 0)
                        r = sd_json_variant_append_array(&ids, id);
        }
        head = r >= 0 ? json_string(ours, "head") : NULL;
        if (r >= 0)
                r = sd_json_buildo(&v, SD_JSON_BUILD_PAIR_STRING("architecture", oci_architecture()),
                                   SD_JSON_BUILD_PAIR_STRING("os", "linux"),
                                   SD_JSON_BUILD_PAIR("config", SD_JSON_BUILD_OBJECT(
                                           SD_JSON_BUILD_PAIR("Labels", SD_JSON_BUILD_OBJECT(
                                                   SD_JSON_BUILD_PAIR_STRING("org.agentd1.agent", name),
                                                   SD_JSON_BUILD_PAIR_STRING("org.agentd1.head", strempty(head)))))),
                                   SD_JSON_BUILD_PAIR("rootfs", SD_JSON_BUILD_OBJECT(
                                           SD_JSON_BUILD_PAIR_STRING("type", "layers"),
                                           SD_JSON_BUILD_PAIR_VARIANT("diff_ids", ids))),
                                   SD_JSON_BUILD_PAIR_VARIANT(OCI_KEY_ENVIRONMENT, ours));
        if (r >= 0)
                r = json_format_canonical(v, ret);
        return r < 0 ? report_errno(r, "Exporting") : 0;
}

static int describe_layers(char *const *layers, sd_json_variant **ret) {
        int r;

        for (char *const *l = layers; *l; l++) {
                _cleanup_json_ sd_json_variant *v = NULL;
                char digest[DIGEST_LEN + 1];
                struct stat st;

                r = layer_digest(*l, digest);
                if (r < 0)
                        return r;
                if (stat(*l, &st) < 0)
                        return report_errno(-errno, "Opening a layer");
                if (sd_json_buildo(&v, SD_JSON_BUILD_PAIR_STRING("mediaType", OCI_TYPE_EROFS),
                                   SD_JSON_BUILD_PAIR_STRING("digest", digest),
                                   SD_JSON_BUILD_PAIR_UNSIGNED("size", (uint64_t) st.st_size)) < 0 ||
                    sd_json_variant_append_array(ret, v) < 0)
                        return report_errno(-ENOMEM, "Exporting");
        }
        return 0;
}

static int make_documents(const char *config, const char *config_digest, sd_json_variant *layers, const char *name,
                          char **ret_manifest, char manifest_digest[static DIGEST_LEN + 1], char **ret_index) {
        _cleanup_json_ sd_json_variant *manifest = NULL, *index = NULL;
        int r;

        r = sd_json_buildo(&manifest, SD_JSON_BUILD_PAIR_UNSIGNED("schemaVersion", 2),
                           SD_JSON_BUILD_PAIR_STRING("mediaType", OCI_TYPE_MANIFEST),
                           SD_JSON_BUILD_PAIR_STRING("artifactType", OCI_TYPE_ENVIRONMENT),
                           SD_JSON_BUILD_PAIR("config", SD_JSON_BUILD_OBJECT(
                                   SD_JSON_BUILD_PAIR_STRING("mediaType", OCI_TYPE_CONFIG),
                                   SD_JSON_BUILD_PAIR_STRING("digest", config_digest),
                                   SD_JSON_BUILD_PAIR_UNSIGNED("size", strlen(config)))),
                           SD_JSON_BUILD_PAIR_VARIANT("layers", layers));
        if (r >= 0)
                r = json_format_canonical(manifest, ret_manifest);
        if (r >= 0)
                r = digest_bytes(*ret_manifest, strlen(*ret_manifest), manifest_digest);
        if (r >= 0)
                r = sd_json_buildo(&index, SD_JSON_BUILD_PAIR_UNSIGNED("schemaVersion", 2),
                                   SD_JSON_BUILD_PAIR_STRING("mediaType", OCI_TYPE_INDEX),
                                   SD_JSON_BUILD_PAIR("manifests", SD_JSON_BUILD_ARRAY(SD_JSON_BUILD_OBJECT(
                                           SD_JSON_BUILD_PAIR_STRING("mediaType", OCI_TYPE_MANIFEST),
                                           SD_JSON_BUILD_PAIR_STRING("artifactType", OCI_TYPE_ENVIRONMENT),
                                           SD_JSON_BUILD_PAIR_STRING("digest", manifest_digest),
                                           SD_JSON_BUILD_PAIR_UNSIGNED("size", strlen(*ret_manifest)),
                                           SD_JSON_BUILD_PAIR("annotations", SD_JSON_BUILD_OBJECT(
                                                   SD_JSON_BUILD_PAIR_STRING("org.opencontainers.image.ref.name", name)))))));
        if (r >= 0)
                r = json_format_canonical(index, ret_index);
        return r < 0 ? report_errno(r, "Exporting") : 0;
}

static int write_archive(struct archive *a, const char *document, char *const *layers, const char *name) {
        char config_digest[DIGEST_LEN + 1], manifest_digest[DIGEST_LEN + 1];
        _cleanup_json_ sd_json_variant *described = NULL;
        _cleanup_free_ char *config = NULL, *manifest = NULL, *index = NULL;
        int r;

        r = make_config(document, layers, name, &config);
        if (r >= 0)
                r = describe_layers(layers, &described);
        if (r >= 0 && digest_bytes(config, strlen(config), config_digest) < 0)
                r = report_errno(-EIO, "Exporting");
        if (r >= 0)
                r = make_documents(config, config_digest, described, name, &manifest, manifest_digest, &index);
        if (r >= 0)
                r = put_text(a, "oci-layout", "{\"imageLayoutVersion\":\"1.0.0\"}");
        if (r >= 0)
                r = put_text(a, "index.json", index);
        if (r >= 0)
                r = put_blob(a, manifest, manifest_digest);
        if (r >= 0)
                r = put_blob(a, config, config_digest);
        for (char *const *l = layers; r >= 0 && *l; l++)
                r = put_layer(a, *l);
        return r;
}

int carry_export(int out, const char *config, char *const *layers, const char *name) {
        _cleanup_free_ char *text = NULL;
        struct archive *a;
        int r;

        r = read_full_file_at(AT_FDCWD, config, CONFIG_SIZE_MAX, &text, NULL);
        if (r < 0)
                return report_errno(r, "Reading the configuration");
        a = archive_write_new();
        if (!a)
                return report_errno(-ENOMEM, "Exporting");
        archive_write_set_format_pax_restricted(a);
        archive_write_set_bytes_per_block(a, 1 << 20);
        archive_write_set_bytes_in_last_block(a, 1);
        if (stall_open_writer(a, out) != ARCHIVE_OK)
                r = cannot_write(a);
        else
                r = write_archive(a, text, layers, name);
        if (archive_write_close(a) != ARCHIVE_OK && r >= 0)
                r = cannot_write(a);
        archive_write_free(a);
        return r;
}

/* --- in --------------------------------------------------------------------------------------------------------- */

/* The kernel will mount it: that it is what mkfs.erofs could have made is seen here first, in the sandbox. */
static int check_erofs(const char *path) {
        const char *argv[] = { "fsck.erofs", "-d0", path, NULL };
        posix_spawn_file_actions_t actions;
        int status, r;
        pid_t pid;

        r = -posix_spawn_file_actions_init(&actions);
        if (r >= 0)
                r = -posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
        if (r >= 0)
                r = -posix_spawn_file_actions_adddup2(&actions, STDOUT_FILENO, STDERR_FILENO);
        if (r >= 0)
                r = -posix_spawnp(&pid, argv[0], &actions, NULL, (char *const *) argv, environ);
        posix_spawn_file_actions_destroy(&actions);
        if (r < 0)
                return report_errno(r, "Starting fsck.erofs");
        while (waitpid(pid, &status, 0) < 0)
                if (errno != EINTR)
                        return report_errno(-errno, "Waiting for fsck.erofs");
        return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 :
                report_error(0, "InvalidImage", "A layer in the archive is no intact EROFS image");
}

static int read_archive(struct archive *a, int spool, const UnpackLimits *limits) {
        _cleanup_free_ char *path = NULL;
        struct archive_entry *e;
        int r;

        do { /* "./" may come first */
                do
                        r = archive_read_next_header(a, &e);
                while (r == ARCHIVE_RETRY);
                if (r != ARCHIVE_OK && r != ARCHIVE_WARN)
                        return report_error(0, "InvalidImage", "This is no tar archive: %s",
                                            strempty(archive_error_string(a)));
                path = mfree(path);
                r = unpack_normalize(strempty(archive_entry_pathname(e)), &path);
                if (r < 0)
                        return r;
        } while (isempty(path));
        if (!oci_is_archive(path))
                return report_error(0, "InvalidImage",
                                    "This is no exported environment. A root file system becomes an image: "
                                    "agentctl image import");
        return oci_spool(a, e, spool, limits);
}

int carry_import(int in, int spool, const char *spool_path, const UnpackLimits *limits,
                 char ret_config[static DIGEST_LEN + 1]) {
        _cleanup_(oci_image_done) OciImage image = {};
        struct archive *a = archive_read_new();
        int r;

        if (!a)
                return report_errno(-ENOMEM, "Importing");
        archive_read_support_filter_gzip(a);
        archive_read_support_filter_xz(a);
        archive_read_support_filter_zstd(a);
        archive_read_support_format_tar(a);
        if (stall_open_reader(a, in) != ARCHIVE_OK)
                r = report_error(0, "InvalidImage", "This is no tar archive: %s", archive_error_string(a));
        else
                r = read_archive(a, spool, limits);
        archive_read_free(a);
        if (r >= 0)
                r = oci_find_image(spool, &image);
        if (r < 0)
                return r;
        if (!image.environment)
                return report_error(0, "InvalidImage",
                                    "This is an image, not an exported environment: agentctl image import");
        if (strv_length(image.layers) > LAYERS_MAX)
                return report_error(0, "InvalidImage", "The environment has too many layers");
        for (size_t i = 0; image.layers && image.layers[i]; i++) {
                _cleanup_free_ char *path = strprintf("%s/%s", spool_path, image.layers[i]);

                if (!image.diff_ids || !streq(oci_blob_name(image.diff_ids[i]), image.layers[i]))
                        return report_error(0, "InvalidImage", "The configuration names other layers than there are");
                report_step("checking", i + 1);
                r = path ? check_erofs(path) : report_errno(-ENOMEM, "Importing");
                if (r < 0)
                        return r;
        }
        snprintf(ret_config, DIGEST_LEN + 1, "sha256:%s", image.config);
        return 0;
}
