/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Environments carried from one host to another. The archive is written, and taken apart, by agent-image in its
 * sandbox; here is what goes into its configuration, and what becomes of one that came in:
 *
 *   {"v":1,"agent":NAME,"definition":{…},"head":DIGEST,"generations":[{"digest","manifest","note"},…]}
 *
 * as the member "org.agentd1.environment" of the configuration of an image, whose other members are for those who know
 * images and nothing of this.
 *
 * The generations are the exported one and those of its ancestors whose layers the archive has as well, oldest first.
 * A manifest is there as text, so that its digest is that of its bytes. Everything in it is checked before anything
 * is changed: digests, the machine's kind, and that the archive itself brings every layer, since a layer that is
 * merely named might be somebody else's.
 */
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/utsname.h>

#include "basic/fs-util.h"
#include "basic/json-util.h"
#include "basic/string-util.h"
#include "bus-util.h"
#include "definition.h"
#include "environment.h"
#include "layer-quota.h"
#include "operation.h"

#define CONFIG_SIZE_MAX (16U << 20)
#define GENERATIONS_MAX 1000U
#define ENVIRONMENT_KEY "org.agentd1.environment"

/* --- export ----------------------------------------------------------------------------------------------------- */

static int append_generation(const StoreGeneration *g, sd_json_variant **list) {
        _cleanup_json_ sd_json_variant *v = NULL;
        int r;

        r = sd_json_buildo(&v, SD_JSON_BUILD_PAIR_STRING("digest", g->digest),
                           SD_JSON_BUILD_PAIR_STRING("manifest", g->manifest),
                           SD_JSON_BUILD_PAIR_CONDITION(!isempty(g->note), "note", SD_JSON_BUILD_STRING(g->note)));
        return r < 0 ? r : sd_json_variant_append_array(list, v);
}

/* All of A's layers are in LAYERS. */
static int has_layers(const Generation *g, char *const *layers) {
        _cleanup_strv_free_ char **l = NULL;
        int r;

        r = generation_layers(g, &l);
        for (char **p = l; r >= 0 && *p; p++)
                if (!strv_contains(layers, *p))
                        return 0;
        return r < 0 ? r : 1;
}

/* The chain from HEAD to its parents as far as it is here, oldest first. */
static int collect_chain(Manager *m, const char *user, const char *name, const StoreGeneration *head,
                         char *const *layers, sd_json_variant **ret) {
        StoreGeneration *chain[GENERATIONS_MAX];
        _cleanup_free_ char *next = NULL;
        size_t n = 0;
        int r = 0;

        r = free_and_strdup(&next, head->digest);
        while (r >= 0 && next && n < ELEMENTSOF(chain)) {
                _cleanup_(store_generation_freep) StoreGeneration *g = NULL;
                _cleanup_(generation_freep) Generation *d = NULL;

                r = store_generation_get(m->store, user, name, next, &g);
                if (r == -ENOENT) {
                        r = 0;
                        break;
                }
                if (r >= 0)
                        r = environment_manifest(g, &d);
                if (r >= 0)
                        r = has_layers(d, layers);
                if (r <= 0)
                        break;
                r = free_and_strdup(&next, d->parent);
                chain[n++] = TAKE_PTR(g);
        }
        while (n > 0) {
                if (r >= 0)
                        r = append_generation(chain[n - 1], ret);
                store_generation_free(chain[--n]);
        }
        return r;
}

static int make_config(Manager *m, const StoreAgent *a, const StoreGeneration *head, char *const *layers, char **ret) {
        _cleanup_json_ sd_json_variant *v = NULL, *definition = NULL, *generations = NULL;
        int r;

        r = json_parse(a->definition, strlen(a->definition), &definition, NULL);
        if (r >= 0)
                r = collect_chain(m, a->user, a->name, head, layers, &generations);
        if (r >= 0)
                r = sd_json_buildo(&v, SD_JSON_BUILD_PAIR_UNSIGNED("v", 1), SD_JSON_BUILD_PAIR_STRING("agent", a->name),
                                   SD_JSON_BUILD_PAIR_VARIANT("definition", definition),
                                   SD_JSON_BUILD_PAIR_STRING("head", head->digest),
                                   SD_JSON_BUILD_PAIR_VARIANT("generations", generations));
        return r < 0 ? r : json_format_canonical(v, ret);
}

int method_export_environment(sd_bus_message *msg, void *userdata, sd_bus_error *e) {
        _cleanup_free_ char *user = NULL, *name = NULL, *reason = NULL, *config = NULL, *missing = NULL;
        _cleanup_(store_generation_freep) StoreGeneration *g = NULL;
        _cleanup_(store_agent_freep) StoreAgent *a = NULL;
        _cleanup_(generation_freep) Generation *d = NULL;
        _cleanup_strv_free_ char **layers = NULL;
        const char *agent, *ref;
        Manager *m = userdata;
        uid_t uid;
        int fd, r;

        r = sd_bus_message_read(msg, "ssh", &agent, &ref, &fd);
        if (r < 0)
                return r;
        r = bus_resolve_owned(m, msg, agent, POLKIT_ACTION_MANAGE, e, &user, &uid, &name);
        if (r <= 0)
                return r < 0 ? r : 1;
        r = bus_read_options(msg, (const BusOption[]) { {} }, NULL, e);
        if (r < 0)
                return r;
        r = store_agent_get(m->store, user, name, &a);
        if (r == -ENOENT)
                return sd_bus_error_setf(e, BUS_ERROR_NO_SUCH_AGENT, "%s has no agent \"%s\".", user, name);
        if (r >= 0)
                r = environment_find(m, user, name, ref, &g, &reason);
        if (r == -ENOENT || r == -EINVAL || r == -ENOTUNIQ)
                return sd_bus_error_set(e, BUS_ERROR_NO_SUCH_GENERATION, strempty(reason));
        if (r >= 0)
                r = environment_manifest(g, &d);
        if (r >= 0 && environment_check_layers(m, d, &missing) < 0)
                return sd_bus_error_setf(e, BUS_ERROR_ENVIRONMENT_DAMAGED, "The layer %s is missing.",
                                         strempty(missing));
        if (r >= 0)
                r = generation_layers(d, &layers);
        if (r >= 0)
                r = make_config(m, a, g, layers, &config);
        if (r < 0)
                return bus_store_error(m, e, r);
        return operation_start_and_reply(m, msg,
                                         &(OperationRequest) { .kind = OPERATION_EXPORT,
                                                               .subject = name,
                                                               .user = user,
                                                               .uid = uid,
                                                               .input_fd = fd,
                                                               .sandbox_uid = (uid_t) -1,
                                                               .generations = (char *[]) { g->digest, NULL },
                                                               .layers = layers,
                                                               .document = config },
                                         e);
}

/* --- import ----------------------------------------------------------------------------------------------------- */

int method_import_environment(sd_bus_message *msg, void *userdata, sd_bus_error *e) {
        _cleanup_free_ char *user = NULL, *name = NULL;
        Manager *m = userdata;
        const char *agent;
        uid_t uid;
        int fd, r;

        r = sd_bus_message_read(msg, "sh", &agent, &fd);
        if (r < 0)
                return r;
        r = bus_resolve_owned(m, msg, agent, POLKIT_ACTION_MANAGE, e, &user, &uid, &name);
        if (r <= 0)
                return r < 0 ? r : 1;
        r = bus_read_options(msg, (const BusOption[]) { {} }, NULL, e);
        if (r < 0)
                return r;
        return operation_start_and_reply(m, msg,
                                         &(OperationRequest) { .kind = OPERATION_IMPORT_ENVIRONMENT,
                                                               .subject = name,
                                                               .user = user,
                                                               .uid = uid,
                                                               .input_fd = fd,
                                                               .sandbox_uid = (uid_t) -1 },
                                         e);
}

typedef struct CarryGeneration {
        char *digest, *manifest, *note;
        Generation *generation;
} CarryGeneration;

struct Carry {
        sd_json_variant *definition;
        char *head;
        CarryGeneration *generations; /* oldest first */
        size_t n;
        char **layers; /* of all of them, each once */
        size_t published;
};

Carry *carry_free(Carry *c) {
        if (!c)
                return NULL;
        sd_json_variant_unref(c->definition);
        free(c->head);
        for (size_t i = 0; i < c->n; i++) {
                free(c->generations[i].digest);
                free(c->generations[i].manifest);
                free(c->generations[i].note);
                generation_free(c->generations[i].generation);
        }
        free(c->generations);
        strv_free(c->layers);
        return mfree(c);
}

static int field_ignored(sd_json_variant *v, void *field, char **ret_reason) {
        return 0;
}

static int add_generation(Carry *c, sd_json_variant *v, char **ret_reason) {
        static const JsonField table[] = {
                { "digest", SD_JSON_VARIANT_STRING, json_field_string, offsetof(CarryGeneration, digest), true },
                { "manifest", SD_JSON_VARIANT_STRING, json_field_string, offsetof(CarryGeneration, manifest), true },
                { "note", SD_JSON_VARIANT_STRING, json_field_string, offsetof(CarryGeneration, note), false },
                {}
        };
        _cleanup_strv_free_ char **layers = NULL;
        char digest[DIGEST_LEN + 1];
        CarryGeneration *g;
        struct utsname u;
        int r;

        g = reallocarray(c->generations, c->n + 1, sizeof *g);
        if (!g)
                return -ENOMEM;
        c->generations = g;
        g = &c->generations[c->n++];
        *g = (CarryGeneration) {};
        r = json_read_object(v, "generations", table, g, ret_reason);
        if (r >= 0)
                r = generation_decode(g->manifest, strlen(g->manifest), &g->generation, ret_reason);
        if (r >= 0)
                r = digest_bytes(g->manifest, strlen(g->manifest), digest);
        if (r < 0)
                return r;
        if (!streq(digest, g->digest)) {
                *ret_reason = strprintf("the manifest of %s does not have that digest", g->digest);
                return -EINVAL;
        }
        if (uname(&u) < 0 || !streq(g->generation->arch, u.machine)) {
                *ret_reason = strprintf("the environment is for %s, this machine is %s", g->generation->arch,
                                        u.machine);
                return -EINVAL;
        }
        if (g->note && (strlen(g->note) > 1024 || string_has_cc(g->note)))
                g->note = mfree(g->note);
        r = generation_layers(g->generation, &layers);
        for (char **l = layers; r >= 0 && *l; l++)
                r = strv_contains(c->layers, *l) ? 0 : strv_extend(&c->layers, *l);
        return r;
}

static int parse_config(Carry *c, const char *text, size_t size, char **ret_reason) {
        typedef struct Config {
                sd_json_variant *definition, *generations;
                char *head;
        } Config;
        static const JsonField table[] = {
                { "agent", SD_JSON_VARIANT_STRING, field_ignored, 0, true },
                { "definition", SD_JSON_VARIANT_OBJECT, json_field_variant, offsetof(Config, definition), true },
                { "generations", SD_JSON_VARIANT_ARRAY, json_field_variant, offsetof(Config, generations), true },
                { "head", SD_JSON_VARIANT_STRING, json_field_string, offsetof(Config, head), true },
                { "v", SD_JSON_VARIANT_UNSIGNED, field_ignored, 0, true },
                {}
        };
        _cleanup_json_ sd_json_variant *v = NULL;
        sd_json_variant *ours = NULL;
        Config config = {};
        size_t n;
        int r;

        r = json_parse(text, size, &v, ret_reason);
        if (r >= 0) {
                ours = sd_json_variant_by_key(v, ENVIRONMENT_KEY);
                r = ours ? json_read_object(ours, "", table, &config, ret_reason) : -EINVAL;
        }
        c->definition = config.definition;
        c->head = config.head;
        n = r >= 0 ? sd_json_variant_elements(config.generations) : 0;
        if (r >= 0 && (n == 0 || n > GENERATIONS_MAX)) {
                *ret_reason = strdup("the archive has no generation, or too many");
                r = -EINVAL;
        }
        for (size_t i = 0; r >= 0 && i < n; i++)
                r = add_generation(c, sd_json_variant_by_index(config.generations, i), ret_reason);
        if (r >= 0 && !streq_ptr(c->generations[c->n - 1].digest, c->head)) {
                *ret_reason = strdup("its head is not its newest generation");
                r = -EINVAL;
        }
        sd_json_variant_unref(config.generations);
        return r;
}

/* What the sandbox has left in staging is not trusted either. */
static int read_config(Operation *o, Carry *c, char **ret_reason) {
        _cleanup_free_ char *path = strprintf("%s/blobs/%s", o->staging, o->digest + strlen("sha256:")), *text = NULL;
        char digest[DIGEST_LEN + 1];
        _cleanup_close_ int fd = -EBADF;
        struct stat st;
        size_t size;
        int r;

        if (!path)
                return -ENOMEM;
        fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
        if (fd < 0 || fstat(fd, &st) < 0)
                return -errno;
        if (!S_ISREG(st.st_mode))
                return -EINVAL;
        r = read_full_fd(fd, CONFIG_SIZE_MAX, &text, &size);
        if (r >= 0)
                r = digest_bytes(text, size, digest);
        if (r < 0)
                return r;
        return streq(digest, o->digest) ? parse_config(c, text, size, ret_reason) : -EBADMSG;
}

static int make_definition(Operation *o, Definition **ret, char **ret_reason) {
        _cleanup_json_ sd_json_variant *v = sd_json_variant_ref(o->carry->definition);
        _cleanup_(definition_freep) Definition *d = NULL;
        _cleanup_free_ char *text = NULL;
        Manager *m = o->manager;
        int r;

        r = sd_json_variant_set_field_string(&v, "name", o->subject);
        if (r >= 0)
                r = json_format_canonical(v, &text);
        if (r >= 0)
                r = definition_parse(text, strlen(text), m->settings, 0, &d, ret_reason);
        if (r < 0)
                return r;
        for (char **s = d->services; s && *s; s++) {
                _cleanup_(store_service_freep) StoreService *service = NULL;

                r = store_service_get(m->store, o->user, *s, &service);
                if (r == -ENOENT)
                        *ret_reason = strprintf("it needs the service \"%s\", which %s does not have; add it first", *s,
                                                o->user);
                if (r < 0)
                        return r;
        }
        *ret = TAKE_PTR(d);
        return 0;
}

/* As for CreateAgent. */
static int check_room(Operation *o, const char *text, char **ret_reason) {
        _cleanup_(sd_bus_error_free) sd_bus_error e = SD_BUS_ERROR_NULL;
        int r = bus_check_room(o->manager, &e, o->uid, o->user, BUS_AGENTS, text, NULL);

        if (sd_bus_error_has_name(&e, SD_BUS_ERROR_LIMITS_EXCEEDED)) /* a sentence, which will be part of one */
                *ret_reason = strndup(e.message, strlen(e.message) - 1);
        return r;
}

/* History and head in one step: what is in force is the old state or the new one. */
static int commit(Operation *o, char **ret_reason) {
        _cleanup_(definition_freep) Definition *d = NULL;
        _cleanup_(store_agent_freep) StoreAgent *old = NULL;
        _cleanup_free_ char *text = NULL, *path = NULL;
        _cleanup_free_ StoreGeneration *rows = NULL;
        Manager *m = o->manager;
        Carry *c = o->carry;
        bool made;
        int r;

        r = store_agent_get(m->store, o->user, o->subject, &old);
        if (r >= 0 || r == -ENOENT) {
                int k = layer_quota_check(m, o->user, o->uid, c->layers, ret_reason);

                if (k == -ENOBUFS)
                        (void) free_and_strdup(&o->error_name, "QuotaExceeded");
                if (k < 0)
                        return k;
        }
        if (r == -ENOENT) { /* of one that is there, the definition stays as it is */
                r = make_definition(o, &d, ret_reason);
                if (r >= 0)
                        r = definition_format(d, &text);
                if (r >= 0)
                        r = check_room(o, text, ret_reason);
        }
        rows = r >= 0 ? calloc(c->n, sizeof *rows) : NULL;
        if (r >= 0 && !rows)
                r = -ENOMEM;
        for (size_t i = 0; r >= 0 && i < c->n; i++) {
                const CarryGeneration *g = &c->generations[i];
                char digest[DIGEST_LEN + 1];

                rows[i] = (StoreGeneration) { .digest = g->digest, .parent = g->generation->parent, .author = o->user,
                                              .note = g->note, .manifest = g->manifest };
                r = generation_save(m->layers, g->generation, digest);
        }
        if (r >= 0)
                r = store_generations_import(m->store,
                                             &(StoreAgent) { .user = o->user, .uid = o->uid, .name = o->subject,
                                                             .definition = text, .concurrency = d ? d->concurrency : 1,
                                                             .head = rows[0].digest },
                                             rows, c->n, &made);
        if (r < 0)
                return r;
        if (agent_object_path(o->user, o->subject, &path) < 0)
                return 0;
        if (made)
                sd_bus_emit_signal(m->bus, BUS_PATH, BUS_INTERFACE_MANAGER, "AgentNew", "so", o->subject, path);
        else
                sd_bus_emit_properties_changed(m->bus, path, BUS_INTERFACE_AGENT, "Generation", NULL);
        return 0;
}

static void end(Operation *o, int r, const char *reason) {
        _cleanup_free_ char *text = NULL, *head = NULL;

        if (r >= 0) {
                head = strdup(o->carry->head);
                operation_end(o, OPERATION_DONE, strempty(head));
                return;
        }
        if (operation_no_space(o, r))
                return;
        text = strprintf("The environment cannot be imported: %s.", reason ?: strerror(-r));
        operation_end(o, OPERATION_FAILED, strempty(text));
}

static void publish_next(Operation *o);

static void on_published(int error, const char *message, void *userdata) {
        Operation *o = userdata;

        o->worker_slot = worker_slot_unref(o->worker_slot);
        if (error < 0) {
                end(o, error, error == -ENOENT ? "the archive does not bring all of its layers" : message);
                return;
        }
        o->carry->published++;
        publish_next(o);
}

static void publish_next(Operation *o) {
        _cleanup_free_ char *path = NULL, *reason = NULL;
        const char *layer = o->carry->layers[o->carry->published];
        int r;

        if (!layer) {
                r = commit(o, &reason);
                end(o, r, reason);
                return;
        }
        path = strprintf("%s/blobs/%s", o->staging, layer + strlen("sha256:"));
        r = path ? operation_publish(o, path, layer, NULL, on_published) : -ENOMEM;
        if (r < 0)
                end(o, r, NULL);
}

void carry_take(Operation *o) {
        _cleanup_free_ char *reason = NULL;
        int r;

        o->carry = calloc(1, sizeof *o->carry);
        r = o->carry ? read_config(o, o->carry, &reason) : -ENOMEM;
        /* From now on a prune leaves them alone, those that are moved in one after the other as well. */
        for (char **l = r >= 0 ? o->carry->layers : NULL; r >= 0 && l && *l; l++)
                r = strv_extend(&o->holds, *l);
        if (r < 0) {
                end(o, r, reason);
                return;
        }
        publish_next(o);
}
