/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Encoding, decoding and keeping of generations. A document is accepted only if encoding what was read gives the very
 * same bytes: there is one spelling of each generation, hence one digest.
 */
#include <sys/utsname.h>

#include "basic/fs-util.h"
#include "basic/json-util.h"
#include "basic/name-util.h"
#include "basic/string-util.h"
#include "image/digest-names.h"
#include "image/generation.h"

#define GENERATION_SIZE_MAX (1U << 20)
#define GENERATION_NAME_LEN (DIGEST_LEN + 5)

Generation *generation_free(Generation *g) {
        if (!g)
                return NULL;
        free(g->arch);
        free(g->base);
        strv_free(g->env);
        free(g->runner);
        free(g->parent);
        return mfree(g);
}

static bool arch_is_valid(const char *s) {
        return !isempty(s) && strlen(s) <= 32 && s[strspn(s, "abcdefghijklmnopqrstuvwxyz0123456789_-")] == 0;
}

static bool generation_is_valid(const Generation *g) {
        if (!g->arch || !arch_is_valid(g->arch) || !g->base || !digest_is_valid(g->base))
                return false;
        if ((g->runner && !digest_is_valid(g->runner)) || (g->parent && !digest_is_valid(g->parent)))
                return false;
        for (char **e = g->env; e && *e; e++)
                if (!digest_is_valid(*e))
                        return false;
        return true;
}

int generation_new(const char *arch, const char *base, char *const *env, const char *runner, const char *parent,
                   Generation **ret) {
        _cleanup_(generation_freep) Generation *g = NULL;
        struct utsname u;
        int r;

        if (!arch) {
                if (uname(&u) < 0)
                        return -errno;
                arch = u.machine;
        }
        g = calloc(1, sizeof *g);
        if (!g)
                return -ENOMEM;
        r = free_and_strdup(&g->arch, arch);
        if (r >= 0)
                r = free_and_strdup(&g->base, base);
        if (r >= 0 && env)
                r = strv_copy(env, &g->env);
        if (r >= 0)
                r = free_and_strdup(&g->runner, runner);
        if (r >= 0)
                r = free_and_strdup(&g->parent, parent);
        if (r < 0)
                return r;
        if (!generation_is_valid(g))
                return -EINVAL;
        *ret = TAKE_PTR(g);
        return 0;
}

int generation_derive(const Generation *parent, const char *parent_digest, const char *layer, const char *runner,
                      Generation **ret) {
        _cleanup_strv_free_ char **env = NULL;
        int r;

        /* overlayfs refuses the same layer twice. On top it hides all that it did further below, so there it can go. */
        for (char **e = parent->env; e && *e; e++) {
                if (streq_ptr(*e, layer))
                        continue;
                r = strv_extend(&env, *e);
                if (r < 0)
                        return r;
        }
        if (layer) {
                r = strv_extend(&env, layer);
                if (r < 0)
                        return r;
        }
        return generation_new(parent->arch, parent->base, env, runner ?: parent->runner, parent_digest, ret);
}

static int string_or_null(const char *s, sd_json_variant **ret) {
        return s ? sd_json_variant_new_string(ret, s) : sd_json_variant_new_null(ret);
}

int generation_encode(const Generation *g, char **ret_text, char ret_digest[DIGEST_LEN + 1]) {
        _cleanup_json_ sd_json_variant *v = NULL, *env = NULL, *runner = NULL, *parent = NULL;
        char digest[DIGEST_LEN + 1];
        _cleanup_free_ char *text = NULL;
        int r;

        if (!generation_is_valid(g))
                return -EINVAL;
        r = g->env ? sd_json_variant_new_array_strv(&env, g->env) : sd_json_variant_new_array(&env, NULL, 0);
        if (r >= 0)
                r = string_or_null(g->runner, &runner);
        if (r >= 0)
                r = string_or_null(g->parent, &parent);
        if (r >= 0)
                r = sd_json_buildo(&v,
                                   SD_JSON_BUILD_PAIR_STRING("arch", g->arch),
                                   SD_JSON_BUILD_PAIR_STRING("base", g->base),
                                   SD_JSON_BUILD_PAIR_VARIANT("env", env),
                                   SD_JSON_BUILD_PAIR_VARIANT("parent", parent),
                                   SD_JSON_BUILD_PAIR_VARIANT("runner", runner),
                                   SD_JSON_BUILD_PAIR_UNSIGNED("v", 1));
        if (r >= 0)
                r = json_format_canonical(v, &text);
        if (r >= 0)
                r = digest_bytes(text, strlen(text), digest);
        if (r < 0)
                return r;
        if (ret_text)
                *ret_text = TAKE_PTR(text);
        if (ret_digest)
                memcpy(ret_digest, digest, sizeof digest);
        return 0;
}

static int field_string_or_null(sd_json_variant *v, void *field, char **ret_reason) {
        return sd_json_variant_is_null(v) ? 0 : json_field_string(v, field, ret_reason);
}

static int field_version(sd_json_variant *v, void *field, char **ret_reason) {
        if (sd_json_variant_unsigned(v) == 1)
                return 0;
        *ret_reason = strdup("must be 1: this generation was made by a newer version");
        return -EINVAL;
}

static int refuse(char **ret_error, const char *text) {
        if (ret_error)
                *ret_error = strdup(text);
        return -EINVAL;
}

int generation_decode(const char *text, size_t size, Generation **ret, char **ret_error) {
        static const JsonField table[] = {
                { "arch",   SD_JSON_VARIANT_STRING,         json_field_string,    offsetof(Generation, arch),   true },
                { "base",   SD_JSON_VARIANT_STRING,         json_field_string,    offsetof(Generation, base),   true },
                { "env",    SD_JSON_VARIANT_ARRAY,          json_field_strv,      offsetof(Generation, env),    true },
                { "parent", _SD_JSON_VARIANT_TYPE_INVALID,  field_string_or_null, offsetof(Generation, parent), true },
                { "runner", _SD_JSON_VARIANT_TYPE_INVALID,  field_string_or_null, offsetof(Generation, runner), true },
                { "v",      SD_JSON_VARIANT_UNSIGNED,       field_version,        0,                            true },
                {}
        };
        _cleanup_(generation_freep) Generation *g = NULL;
        _cleanup_json_ sd_json_variant *v = NULL;
        _cleanup_free_ char *again = NULL;
        int r;

        if (size > GENERATION_SIZE_MAX)
                return refuse(ret_error, "the generation is too large");
        r = json_parse(text, size, &v, ret_error);
        if (r < 0)
                return r;
        g = calloc(1, sizeof *g);
        if (!g)
                return -ENOMEM;
        r = json_read_object(v, "", table, g, ret_error);
        if (r < 0)
                return r;
        if (!generation_is_valid(g))
                return refuse(ret_error, "a member is no architecture or digest");
        r = generation_encode(g, &again, NULL);
        if (r < 0)
                return r;
        if (strlen(again) != size || memcmp(again, text, size) != 0)
                return refuse(ret_error, "the document is not in canonical form");
        *ret = TAKE_PTR(g);
        return 0;
}

int generation_layers(const Generation *g, char ***ret) {
        _cleanup_strv_free_ char **l = NULL;
        int r;

        r = strv_extend(&l, g->base);
        for (char **e = g->env; r >= 0 && e && *e; e++)
                r = strv_extend(&l, *e);
        if (r < 0)
                return r;
        *ret = TAKE_PTR(l);
        return 0;
}

int generation_environment_digest(const Generation *g, char ret[static DIGEST_LEN + 1]) {
        _cleanup_json_ sd_json_variant *v = NULL;
        _cleanup_strv_free_ char **l = NULL;
        _cleanup_free_ char *text = NULL;
        int r;

        r = generation_layers(g, &l);
        if (r >= 0)
                r = sd_json_variant_new_array_strv(&v, l);
        if (r >= 0)
                r = json_format_canonical(v, &text);
        return r < 0 ? r : digest_bytes(text, strlen(text), ret);
}

static int file_name(const char *digest, char ret[static GENERATION_NAME_LEN + 1]) {
        if (!digest || !digest_is_valid(digest))
                return -EINVAL;
        snprintf(ret, GENERATION_NAME_LEN + 1, "sha256-%s.json", digest + 7);
        return 0;
}

int generation_save(LayerStore *s, const Generation *g, char ret_digest[static DIGEST_LEN + 1]) {
        char digest[DIGEST_LEN + 1], name[GENERATION_NAME_LEN + 1];
        _cleanup_free_ char *text = NULL;
        int r;

        r = generation_encode(g, &text, digest);
        if (r >= 0)
                r = file_name(digest, name);
        if (r >= 0)
                r = write_file_atomic(layer_store_generations_fd(s), name, text, strlen(text), 0444, (uid_t) -1,
                                      (gid_t) -1, WRITE_FILE_SYNC | WRITE_FILE_NOREPLACE);
        if (r < 0 && r != -EEXIST)
                return r;
        memcpy(ret_digest, digest, sizeof digest);
        return 0;
}

int generation_load(LayerStore *s, const char *digest, Generation **ret) {
        char name[GENERATION_NAME_LEN + 1], found[DIGEST_LEN + 1];
        _cleanup_free_ char *text = NULL;
        size_t size;
        int r;

        r = file_name(digest, name);
        if (r >= 0)
                r = read_full_file_at(layer_store_generations_fd(s), name, GENERATION_SIZE_MAX, &text, &size);
        if (r >= 0)
                r = digest_bytes(text, size, found);
        if (r < 0)
                return r;
        if (!streq(found, digest))
                return -EBADMSG;
        r = generation_decode(text, size, ret, NULL);
        return r == -EINVAL ? -EBADMSG : r;
}

int generation_remove(LayerStore *s, const char *digest) {
        char name[GENERATION_NAME_LEN + 1];
        int r;

        r = file_name(digest, name);
        if (r < 0)
                return r;
        r = unlink_noerrno(layer_store_generations_fd(s), name, 0);
        if (r < 0)
                return r;
        return fsync(layer_store_generations_fd(s)) < 0 ? -errno : 0;
}

int generation_list(LayerStore *s, char ***ret) {
        return digest_names_list(layer_store_generations_fd(s), ".json", ret);
}
