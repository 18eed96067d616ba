/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The directory is complete before it gets its name, and loses its name before it is taken apart: at each moment an
 * edit is there whole or not at all.
 */
#include <dirent.h>
#include <fcntl.h>
#include <pwd.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/stat.h>

#include "async-remove.h"
#include "basic/fs-util.h"
#include "basic/json-util.h"
#include "basic/string-util.h"
#include "edit.h"
#include "environment.h"

#define EDITS_DIR AGENTD_STATE_DIR "/edits"
#define EDIT_JSON_MAX (1U << 20)
#define FROZEN "frozen" /* a file beside edit.json: revision and generation */

static Edit *edit_free(Edit *e) {
        if (!e)
                return NULL;
        if (e->key && strmap_get(e->manager->edits, e->key) == e)
                strmap_remove(e->manager->edits, e->key);
        free(e->key);
        free(e->user);
        free(e->agent);
        free(e->dir);
        free(e->holder);
        free(e->generation);
        strv_free(e->layers);
        return mfree(e);
}
DEFINE_CLEANUP(Edit *, edit_free);

void edits_free(Manager *m) {
        Edit *e;

        while (m->edits && (e = strmap_first(m->edits)))
                edit_free(e);
}

Edit *edit_find(Manager *m, const char *user, const char *agent) {
        _cleanup_free_ char *key = strprintf("%s/%s", user, agent);

        return key ? strmap_get(m->edits, key) : NULL;
}

unsigned edits_count(Manager *m, const char *user) {
        unsigned n = 0;
        Edit *e;

        for (size_t i = 0; (e = strmap_next(m->edits, &i));)
                n += streq(e->user, user);
        return n;
}

static int set_place(Edit *e) {
        e->key = strprintf("%s/%s", e->user, e->agent);
        e->dir = strprintf(EDITS_DIR "/%s", e->id);
        return e->key && e->dir ? 0 : -ENOMEM;
}

/* A range that nobody has: no user of this host, no other edit. */
static int pick_base(Manager *m, uid_t *ret) {
        const uint32_t n = (SANDBOX_EDIT_BASE_MAX - SANDBOX_EDIT_BASE_MIN) / 65536 + 1;

        for (unsigned tries = 0; tries < 1000; tries++) {
                struct passwd pw, *p = NULL;
                bool used = false;
                char buf[4096];
                uint32_t rnd;
                uid_t base;
                Edit *e;

                if (getrandom(&rnd, sizeof rnd, 0) != sizeof rnd)
                        return -errno;
                base = SANDBOX_EDIT_BASE_MIN + rnd % n * 65536;
                for (size_t i = 0; !used && (e = strmap_next(m->edits, &i));)
                        used = e->base == base;
                if (!used && (getpwuid_r(base, &pw, buf, sizeof buf, &p) != 0 || !p)) {
                        *ret = base;
                        return 0;
                }
        }
        return -EUSERS;
}

static int save(const Edit *e) {
        _cleanup_free_ char *path = strprintf(EDITS_DIR "/.new-%s", e->id), *file = strprintf("%s/edit.json", path),
                            *text = NULL;
        _cleanup_json_ sd_json_variant *v = NULL;
        _cleanup_close_ int parent = -EBADF;
        int r;

        if (!path || !file)
                return -ENOMEM;
        r = sd_json_buildo(&v, SD_JSON_BUILD_PAIR_UNSIGNED("v", 1), SD_JSON_BUILD_PAIR_STRING("user", e->user),
                           SD_JSON_BUILD_PAIR_STRING("agent", e->agent), SD_JSON_BUILD_PAIR_STRING("holder", e->holder),
                           SD_JSON_BUILD_PAIR_STRING("generation", e->generation),
                           SD_JSON_BUILD_PAIR_STRV("layers", e->layers), SD_JSON_BUILD_PAIR_UNSIGNED("base", e->base),
                           SD_JSON_BUILD_PAIR_UNSIGNED("size", e->size),
                           SD_JSON_BUILD_PAIR_UNSIGNED("created_usec", e->created_usec));
        if (r >= 0)
                r = json_format_canonical(v, &text);
        if (r >= 0 && mkdir(path, 0700) < 0)
                r = -errno;
        if (r >= 0)
                r = write_file_atomic(AT_FDCWD, file, text, strlen(text), 0600, (uid_t) -1, (gid_t) -1,
                                      WRITE_FILE_SYNC);
        if (r < 0)
                goto fail;
        parent = open(EDITS_DIR, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (parent < 0 || rename(path, e->dir) < 0 || fsync(parent) < 0) {
                r = -errno;
                goto fail;
        }
        return 0;

fail:
        (void) rm_rf_at(AT_FDCWD, path);
        return r;
}

int edit_open(Manager *m, const char *user, const char *agent, const char *holder, Edit **ret) {
        _cleanup_(store_generation_freep) StoreGeneration *g = NULL;
        _cleanup_(generation_freep) Generation *d = NULL;
        _cleanup_free_ char *reason = NULL;
        _cleanup_(edit_freep) Edit *e = NULL;
        int r;

        *ret = edit_find(m, user, agent);
        if (*ret)
                return 0;
        e = calloc(1, sizeof *e);
        if (!e)
                return -ENOMEM;
        *e = (Edit) { .manager = m, .user = strdup(user), .agent = strdup(agent), .holder = strdup(holder),
                      .created_usec = now_realtime(), .size = m->settings->edit_size_max };
        if (!e->user || !e->agent || !e->holder)
                return -ENOMEM;
        r = run_id_new(e->id);
        if (r >= 0)
                r = set_place(e);
        if (r >= 0)
                r = environment_find(m, user, agent, "head", &g, &reason);
        if (r >= 0)
                r = environment_manifest(g, &d);
        if (r >= 0)
                r = generation_layers(d, &e->layers);
        if (r >= 0)
                r = free_and_strdup(&e->generation, g->digest);
        if (r >= 0)
                r = pick_base(m, &e->base);
        if (r >= 0)
                r = strmap_put(m->edits, e->key, e);
        if (r >= 0)
                r = save(e);
        if (r < 0)
                return r;
        log_info("An edit of %s begins, by %s.", e->key, holder);
        *ret = TAKE_PTR(e);
        return 0;
}

/* Out of sight at once, the bytes go in a thread. */
static int remove_directory(const char *id) {
        _cleanup_free_ char *from = strprintf(EDITS_DIR "/%s", id), *to = strprintf(EDITS_DIR "/.gone-%s", id);
        _cleanup_close_ int parent = -EBADF;

        if (!from || !to)
                return -ENOMEM;
        parent = open(EDITS_DIR, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (parent < 0 || rename(from, to) < 0 || fsync(parent) < 0)
                return -errno;
        async_remove_tree(to);
        return 0;
}

int edit_discard(Edit *e) {
        int r;

        if (e->operation)
                return -EBUSY;
        r = remove_directory(e->id);
        if (r < 0 && r != -ENOENT)
                return r;
        edit_free(e);
        return 0;
}

int edit_set_frozen(Edit *e, const char *digest, uint64_t rev) {
        _cleanup_free_ char *path = strprintf("%s/" FROZEN, e->dir), *text = NULL;

        if (!path)
                return -ENOMEM;
        if (!digest)
                return unlink_noerrno(AT_FDCWD, path, 0);
        text = strprintf("%" PRIu64 " %s", rev, digest);
        return text ? write_file_atomic(AT_FDCWD, path, text, strlen(text), 0600, (uid_t) -1, (gid_t) -1,
                                        WRITE_FILE_SYNC)
                    : -ENOMEM;
}

/* --- start ------------------------------------------------------------------------------------------------------ */

static int field_base(sd_json_variant *v, void *field, char **ret_reason) {
        uint64_t n = sd_json_variant_unsigned(v);

        if (n < SANDBOX_EDIT_BASE_MIN || n > SANDBOX_EDIT_BASE_MAX || n % 65536 != 0)
                return -EINVAL;
        *(uid_t *) field = (uid_t) n;
        return 0;
}

static int field_ignored(sd_json_variant *v, void *field, char **ret_reason) {
        return 0;
}

/* Whether a freeze came as far as its commit. */
static bool was_frozen(Edit *e) {
        _cleanup_(store_generation_freep) StoreGeneration *g = NULL;
        _cleanup_free_ char *path = strprintf("%s/" FROZEN, e->dir), *text = NULL;
        _cleanup_(store_agent_freep) StoreAgent *a = NULL;
        unsigned long long rev;
        char *digest = NULL;

        if (!path || read_full_file_at(AT_FDCWD, path, 256, &text, NULL) < 0)
                return false;
        errno = 0;
        rev = strtoull(text, &digest, 10);
        if (errno != 0 || digest == text || *digest++ != ' ' || !digest_is_valid(digest) ||
            store_agent_get(e->manager->store, e->user, e->agent, &a) < 0)
                return false;
        /* Each move of the head counts, and a generation is there only together with the move that made it. */
        return a->head_rev > rev && store_generation_get(e->manager->store, e->user, e->agent, digest, &g) >= 0;
}

static int load_one(Manager *m, const char *id) {
        static const JsonField table[] = {
                { "agent", SD_JSON_VARIANT_STRING, json_field_string, offsetof(Edit, agent), true },
                { "base", SD_JSON_VARIANT_UNSIGNED, field_base, offsetof(Edit, base), true },
                { "created_usec", SD_JSON_VARIANT_UNSIGNED, json_field_uint64, offsetof(Edit, created_usec), true },
                { "generation", SD_JSON_VARIANT_STRING, json_field_string, offsetof(Edit, generation), true },
                { "holder", SD_JSON_VARIANT_STRING, json_field_string, offsetof(Edit, holder), true },
                { "layers", SD_JSON_VARIANT_ARRAY, json_field_strv, offsetof(Edit, layers), true },
                { "size", SD_JSON_VARIANT_UNSIGNED, json_field_uint64, offsetof(Edit, size), false },
                { "user", SD_JSON_VARIANT_STRING, json_field_string, offsetof(Edit, user), true },
                { "v", SD_JSON_VARIANT_UNSIGNED, field_ignored, 0, true },
                {}
        };
        _cleanup_free_ char *path = strprintf(EDITS_DIR "/%s/edit.json", id), *text = NULL, *error = NULL;
        _cleanup_(store_generation_freep) StoreGeneration *g = NULL;
        _cleanup_json_ sd_json_variant *v = NULL;
        _cleanup_(edit_freep) Edit *e = calloc(1, sizeof *e);
        size_t size;
        int r;

        if (!path || !e)
                return -ENOMEM;
        e->manager = m;
        memcpy(e->id, id, sizeof e->id); /* it is valid, so it has that length */
        r = read_full_file_at(AT_FDCWD, path, EDIT_JSON_MAX, &text, &size);
        if (r >= 0)
                r = json_parse(text, size, &v, &error);
        if (r >= 0)
                r = json_read_object(v, "", table, e, &error);
        if (r < 0)
                return log_warning_errno(r, "%s: the edit cannot be read and is left alone: %s", path,
                                         error ?: strerror(-r));
        r = store_generation_get(m->store, e->user, e->agent, e->generation, &g);
        if (r == -ENOENT) {
                log_info("The agent %s/%s, or what its edit stood on, is gone; the edit goes as well.", e->user,
                         e->agent);
                return remove_directory(id);
        }
        if (r >= 0)
                r = set_place(e);
        if (r >= 0 && was_frozen(e)) {
                log_info("The edit of %s was frozen by an earlier agentd; it goes.", e->key);
                return remove_directory(id);
        }
        if (r >= 0)
                r = edit_set_frozen(e, NULL, 0);
        if (r >= 0)
                r = strmap_put(m->edits, e->key, e);
        if (r < 0)
                return r;
        TAKE_PTR(e);
        return 0;
}

int edits_load(Manager *m) {
        struct dirent *de;
        int r = 0, k;
        DIR *d;

        if (mkdir(EDITS_DIR, 0700) < 0 && errno != EEXIST)
                return -errno;
        d = opendir(EDITS_DIR);
        if (!d)
                return -errno;
        while ((de = readdir(d))) {
                if (startswith(de->d_name, ".new-") || startswith(de->d_name, ".gone-")) {
                        _cleanup_free_ char *path = strprintf(EDITS_DIR "/%s", de->d_name);

                        if (path)
                                async_remove_tree(path);
                } else if (run_id_is_valid(de->d_name)) {
                        k = load_one(m, de->d_name);
                        if (k == -ENOMEM)
                                r = k;
                }
        }
        closedir(d);
        return r;
}
