/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Finding and describing generations. */
#include <stdarg.h>

#include "basic/json-util.h"
#include "basic/string-util.h"
#include "environment.h"

#define PREFIX_MIN 4U

typedef struct Search {
        const char *prefix;
        uint64_t number;
        char *digest;
        unsigned found;
} Search;

static int visit(const StoreGeneration *g, void *userdata) {
        Search *s = userdata;

        if (s->prefix ? strncmp(g->digest + strlen("sha256:"), s->prefix, strlen(s->prefix)) != 0 :
                        g->number != s->number)
                return 0;
        s->found++;
        return free_and_strdup(&s->digest, g->digest);
}

static int refuse(char **ret_error, int r, const char *format, ...) _printf_(3, 4);

static int refuse(char **ret_error, int r, const char *format, ...) {
        va_list ap;

        va_start(ap, format);
        if (vasprintf(ret_error, format, ap) < 0)
                *ret_error = NULL;
        va_end(ap);
        return r;
}

int environment_find(Manager *m, const char *user, const char *name, const char *ref, StoreGeneration **ret,
                     char **ret_error) {
        const char *hex = startswith(ref, "sha256:") ?: ref;
        _cleanup_(store_agent_freep) StoreAgent *agent = NULL;
        _cleanup_free_ char *digest = NULL;
        Search s = {};
        int r;

        r = store_agent_get(m->store, user, name, &agent);
        if (r < 0)
                return r == -ENOENT ? refuse(ret_error, r, "There is no agent \"%s\".", name) : r;
        if (isempty(ref) || streq(ref, "head"))
                digest = strdup(agent->head);
        else if (digest_is_valid(ref))
                digest = strdup(ref);
        else {
                /* Of a number and the beginning of a digest, the number is meant. */
                if (hex != ref || strlen(ref) > 9 || parse_uint64(ref, &s.number) < 0) {
                        if (strlen(hex) < PREFIX_MIN || strlen(hex) > 64 || hex[strspn(hex, "0123456789abcdef")])
                                return refuse(ret_error, -EINVAL,
                                              "A generation of \"%s\" is head, a number, or at least 4 digits of its "
                                              "digest, not \"%.80s\".", name, ref);
                        s.prefix = hex;
                }
                r = store_generation_list(m->store, user, name, visit, &s);
                digest = s.digest;
                if (r < 0)
                        return r;
                if (s.found > 1)
                        return refuse(ret_error, -ENOTUNIQ,
                                      "Several generations of \"%s\" begin with %.80s; give more digits.", name, ref);
                if (s.found == 0)
                        return refuse(ret_error, -ENOENT, "The environment of \"%s\" has no generation %.80s.", name,
                                      ref);
        }
        if (!digest)
                return -ENOMEM;
        r = store_generation_get(m->store, user, name, digest, ret);
        return r == -ENOENT ? refuse(ret_error, r, "The environment of \"%s\" has no generation %.80s.", name, ref) : r;
}

int environment_manifest(const StoreGeneration *g, Generation **ret) {
        if (!g->manifest)
                return -ENODATA;
        return generation_decode(g->manifest, strlen(g->manifest), ret, NULL);
}

int environment_check_layers(Manager *m, const Generation *g, char **ret_layer) {
        _cleanup_strv_free_ char **layers = NULL;
        int r;

        r = generation_layers(g, &layers);
        for (char **l = layers; r >= 0 && *l; l++) {
                r = layer_store_open_layer(m->layers, *l, NULL, NULL);
                if (r < 0 && ret_layer)
                        *ret_layer = strdup(*l);
        }
        return r;
}

int environment_describe(Manager *m, const StoreGeneration *g, sd_json_variant **ret) {
        _cleanup_json_ sd_json_variant *manifest = NULL, *list = NULL;
        char environment[DIGEST_LEN + 1], found[DIGEST_LEN + 1];
        _cleanup_(generation_freep) Generation *d = NULL;
        _cleanup_strv_free_ char **layers = NULL;
        uint64_t total = 0;
        int r;

        r = environment_manifest(g, &d);
        if (r >= 0)
                r = generation_layers(d, &layers);
        if (r >= 0)
                r = generation_environment_digest(d, environment);
        if (r >= 0)
                r = digest_bytes(g->manifest, strlen(g->manifest), found);
        if (r >= 0)
                r = json_parse(g->manifest, strlen(g->manifest), &manifest, NULL);
        for (char **l = layers; r >= 0 && *l; l++) {
                _cleanup_json_ sd_json_variant *v = NULL;
                uint64_t size = 0;
                int k = layer_store_open_layer(m->layers, *l, NULL, &size);

                total += size;
                r = sd_json_buildo(&v, SD_JSON_BUILD_PAIR_STRING("digest", *l),
                                   SD_JSON_BUILD_PAIR_BOOLEAN("present", k >= 0),
                                   SD_JSON_BUILD_PAIR_UNSIGNED("size", size));
                if (r >= 0)
                        r = sd_json_variant_append_array(&list, v);
        }
        if (r < 0)
                return r;
        return sd_json_buildo(ret,
                              SD_JSON_BUILD_PAIR_STRING("digest", g->digest),
                              SD_JSON_BUILD_PAIR_UNSIGNED("number", g->number),
                              SD_JSON_BUILD_PAIR_BOOLEAN("head", g->is_head),
                              SD_JSON_BUILD_PAIR_UNSIGNED("created_usec", g->created_usec),
                              SD_JSON_BUILD_PAIR_STRING("author", strempty(g->author)),
                              SD_JSON_BUILD_PAIR_CONDITION(!isempty(g->note), "note", SD_JSON_BUILD_STRING(g->note)),
                              SD_JSON_BUILD_PAIR_BOOLEAN("intact", streq(found, g->digest)),
                              SD_JSON_BUILD_PAIR_STRING("environment", environment),
                              SD_JSON_BUILD_PAIR_UNSIGNED("size", total),
                              SD_JSON_BUILD_PAIR_VARIANT("layers", list),
                              SD_JSON_BUILD_PAIR_VARIANT("manifest", manifest));
}
