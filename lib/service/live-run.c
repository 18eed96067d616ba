/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include <fcntl.h>

#include "basic/fs-util.h"
#include "basic/string-util.h"
#include "service/live-run.h"
#include "service/proxy-allow.h"

#define LIVE_VERSION 1U

int live_run_new(LiveRun **ret) {
        LiveRun *r = calloc(1, sizeof(LiveRun));

        if (!r)
                return -ENOMEM;

        *r = (LiveRun) {
                .n_ref = 1,
                .attempt = 1,
                .uid = (uid_t) -1,
                .limits = LIVE_LIMITS_DEFAULT,
        };
        *ret = r;
        return 0;
}

LiveRun *live_run_ref(LiveRun *r) {
        if (r) {
                assert(r->n_ref > 0);
                r->n_ref++;
        }
        return r;
}

LiveRun *live_run_unref(LiveRun *r) {
        if (!r)
                return NULL;

        assert(r->n_ref > 0);
        if (--r->n_ref > 0)
                return NULL;

        for (size_t i = 0; i < r->n_services; i++)
                service_unref(r->services[i]);
        free(r->services);
        free(r->user);
        free(r->agent);
        free(r->session);
        strv_free(r->proxy);
        free(r->holder);
        return mfree(r);
}

Service *live_run_find_service(const LiveRun *r, const char *name) {
        for (size_t i = 0; i < r->n_services; i++)
                if (streq(r->services[i]->name, name))
                        return r->services[i];

        return NULL;
}

int live_run_add_service(LiveRun *r, Service *s) {
        Service **l;

        if (live_run_find_service(r, s->name))
                return -EEXIST;
        if (r->n_services >= LIVE_SERVICES_MAX)
                return -E2BIG;

        l = reallocarray(r->services, r->n_services + 1, sizeof(Service *));
        if (!l)
                return -ENOMEM;
        r->services = l;
        l[r->n_services++] = service_ref(s);
        return 0;
}

/* ---- reading ---- */

static int field_id(sd_json_variant *v, void *field, char **ret_reason) {
        const char *s = sd_json_variant_string(v);

        if (!run_id_is_valid(s))
                return -EINVAL;
        memcpy(field, s, RUN_ID_LEN + 1);
        return 0;
}

static int field_uid(sd_json_variant *v, void *field, char **ret_reason) {
        uint64_t u;
        int r;

        r = json_field_uint64(v, &u, ret_reason);
        if (r < 0)
                return r;
        if (u >= UINT32_MAX)
                return -EINVAL;
        *(uid_t *) field = (uid_t) u;
        return 0;
}

static int field_string_or_null(sd_json_variant *v, void *field, char **ret_reason) {
        return sd_json_variant_is_null(v) ? 0 : json_field_string(v, field, ret_reason);
}

static int read_services(LiveRun *l, sd_json_variant *v, char **ret_error) {
        int r;

        for (size_t i = 0; i < sd_json_variant_elements(v); i += 2) {
                const char *name = sd_json_variant_string(sd_json_variant_by_index(v, i));
                _cleanup_(service_unrefp) Service *s = NULL;
                _cleanup_free_ char *path = strprintf("services.%s", name);

                if (!path)
                        return -ENOMEM;

                /* Whether http:// is allowed was decided when the service was added. */
                r = service_parse_variant(sd_json_variant_by_index(v, i + 1), path, SERVICE_ALLOW_HTTP, &s, ret_error);
                if (r < 0)
                        return r;
                if (!streq(s->name, name))
                        return -EINVAL;
                r = live_run_add_service(l, s);
                if (r < 0)
                        return r == -ENOMEM ? r : -EINVAL;
        }

        return 0;
}

static int live_limits_read(sd_json_variant *v, LiveLimits *limits, char **ret_error) {
#define LIMIT(member) { #member, SD_JSON_VARIANT_UNSIGNED, json_field_uint64, offsetof(LiveLimits, member), true }
        static const JsonField table[] = {
                LIMIT(result_bytes), LIMIT(artifact_bytes), LIMIT(artifacts), LIMIT(log_bytes), LIMIT(body_bytes), {},
        };
#undef LIMIT

        return json_read_object(v, "limits", table, limits, ret_error);
}

typedef struct LiveFile {
        LiveRun run; /* only its plain fields */
        uint64_t version;
        sd_json_variant *limits, *services;
} LiveFile;

static void live_file_done(LiveFile *f) {
        free(f->run.user);
        free(f->run.agent);
        free(f->run.session);
        strv_free(f->run.proxy);
        free(f->run.holder);
        sd_json_variant_unref(f->limits);
        sd_json_variant_unref(f->services);
}

int live_run_parse(const char *text, size_t size, LiveRun **ret, char **ret_error) {
#define AT(member) offsetof(LiveFile, member)
        static const JsonField table[] = {
                { "v", SD_JSON_VARIANT_UNSIGNED, json_field_uint64, AT(version), true },
                { "run", SD_JSON_VARIANT_STRING, field_id, AT(run.run), true },
                { "attempt", SD_JSON_VARIANT_UNSIGNED, json_field_uint64, AT(run.attempt), true },
                { "user", SD_JSON_VARIANT_STRING, json_field_string, AT(run.user), true },
                { "uid", SD_JSON_VARIANT_UNSIGNED, field_uid, AT(run.uid), true },
                { "agent", SD_JSON_VARIANT_STRING, json_field_string, AT(run.agent), true },
                { "session", _SD_JSON_VARIANT_TYPE_INVALID, field_string_or_null, AT(run.session), true },
                { "jti", SD_JSON_VARIANT_STRING, field_id, AT(run.jti), true },
                { "deadline_usec", SD_JSON_VARIANT_UNSIGNED, json_field_uint64, AT(run.deadline_usec), true },
                { "limits", SD_JSON_VARIANT_OBJECT, json_field_variant, AT(limits), true },
                { "services", SD_JSON_VARIANT_OBJECT, json_field_variant, AT(services), true },
                { "proxy", SD_JSON_VARIANT_ARRAY, json_field_strv, AT(run.proxy), false },
                { "holder", SD_JSON_VARIANT_STRING, json_field_string, AT(run.holder), false },
                {},
        };
#undef AT
        _cleanup_(live_file_done) LiveFile f = {};
        _cleanup_(live_run_unrefp) LiveRun *l = NULL;
        _cleanup_json_ sd_json_variant *v = NULL;
        int r;

        r = json_parse(text, size, &v, ret_error);
        if (r < 0)
                return r;
        r = json_read_object(v, "", table, &f, ret_error);
        if (r < 0)
                return r;
        if (f.version != LIVE_VERSION || f.run.attempt == 0 || isempty(f.run.user) || isempty(f.run.agent))
                return -EINVAL;
        if (strv_length(f.run.proxy) > PROXY_ALLOW_MAX)
                return -EINVAL;
        for (char **p = f.run.proxy; p && *p; p++)
                if (!proxy_pattern_is_valid(*p))
                        return -EINVAL;

        r = live_run_new(&l);
        if (r < 0)
                return r;
        memcpy(l->run, f.run.run, sizeof(l->run));
        memcpy(l->jti, f.run.jti, sizeof(l->jti));
        l->attempt = f.run.attempt;
        l->uid = f.run.uid;
        l->deadline_usec = f.run.deadline_usec;
        l->user = TAKE_PTR(f.run.user);
        l->agent = TAKE_PTR(f.run.agent);
        l->session = TAKE_PTR(f.run.session);
        l->proxy = TAKE_PTR(f.run.proxy);
        l->holder = TAKE_PTR(f.run.holder);

        r = live_limits_read(f.limits, &l->limits, ret_error);
        if (r < 0)
                return r;
        r = read_services(l, f.services, ret_error);
        if (r < 0)
                return r;

        *ret = TAKE_PTR(l);
        return 0;
}

/* ---- writing ---- */

int live_run_to_json(const LiveRun *r, char **ret) {
        _cleanup_json_ sd_json_variant *services = NULL, *v = NULL;
        int k;

        if (!run_id_is_valid(r->run) || !run_id_is_valid(r->jti) || isempty(r->user) || isempty(r->agent) ||
            r->attempt == 0 || r->uid == (uid_t) -1)
                return -EINVAL;

        k = sd_json_variant_new_object(&services, NULL, 0);
        if (k < 0)
                return k;
        for (size_t i = 0; i < r->n_services; i++) {
                k = sd_json_variant_set_field(&services, r->services[i]->name, r->services[i]->definition);
                if (k < 0)
                        return k;
        }

        k = sd_json_buildo(&v,
                           SD_JSON_BUILD_PAIR_UNSIGNED("v", LIVE_VERSION),
                           SD_JSON_BUILD_PAIR_STRING("run", r->run),
                           SD_JSON_BUILD_PAIR_UNSIGNED("attempt", r->attempt),
                           SD_JSON_BUILD_PAIR_STRING("user", r->user),
                           SD_JSON_BUILD_PAIR_UNSIGNED("uid", r->uid),
                           SD_JSON_BUILD_PAIR_STRING("agent", r->agent),
                           /* A NULL string is built as null. */
                           SD_JSON_BUILD_PAIR_STRING("session", r->session),
                           SD_JSON_BUILD_PAIR_STRING("jti", r->jti),
                           SD_JSON_BUILD_PAIR_UNSIGNED("deadline_usec", r->deadline_usec),
                           SD_JSON_BUILD_PAIR_OBJECT(
                                           "limits",
                                           SD_JSON_BUILD_PAIR_UNSIGNED("result_bytes", r->limits.result_bytes),
                                           SD_JSON_BUILD_PAIR_UNSIGNED("artifact_bytes", r->limits.artifact_bytes),
                                           SD_JSON_BUILD_PAIR_UNSIGNED("artifacts", r->limits.artifacts),
                                           SD_JSON_BUILD_PAIR_UNSIGNED("log_bytes", r->limits.log_bytes),
                                           SD_JSON_BUILD_PAIR_UNSIGNED("body_bytes", r->limits.body_bytes)),
                           SD_JSON_BUILD_PAIR_CONDITION(!!r->proxy, "proxy", SD_JSON_BUILD_STRV(r->proxy)),
                           SD_JSON_BUILD_PAIR_CONDITION(!!r->holder, "holder", SD_JSON_BUILD_STRING(r->holder)),
                           SD_JSON_BUILD_PAIR_VARIANT("services", services));
        if (k < 0)
                return k;

        k = sd_json_variant_format(v, 0, ret);
        return k < 0 ? k : 0; /* the length */
}

/* ---- files ---- */

static char *live_path(const char *dir, const char *run, const char *suffix) {
        return strprintf("%s/%s%s", dir, run, suffix);
}

static int live_file_write(const char *dir, const char *run, const char *suffix, const char *text, size_t size,
                           gid_t gid) {
        _cleanup_free_ char *path = NULL;

        if (!run_id_is_valid(run))
                return -EINVAL;
        path = live_path(dir, run, suffix);
        if (!path)
                return -ENOMEM;

        /* No fsync: /run is memory, and is empty after a crash of the machine as the runs are gone. */
        return write_file_atomic(AT_FDCWD, path, text, size, 0640, (uid_t) -1, gid, 0);
}

int live_run_write(const char *dir, const LiveRun *r, gid_t gid) {
        _cleanup_free_ char *text = NULL;
        int k;

        k = live_run_to_json(r, &text);
        if (k < 0)
                return k;
        if (strlen(text) > LIVE_FILE_MAX)
                return -EFBIG;

        return live_file_write(dir, r->run, ".json", text, strlen(text), gid);
}

int live_task_write(const char *dir, const char *run, const char *json, size_t size, gid_t gid) {
        if (size > LIVE_TASK_MAX)
                return -EFBIG;

        return live_file_write(dir, run, ".task.json", json, size, gid);
}

/* Of the file as it is in ST or later. */
static int live_run_read_from(const char *dir, const char *run, int *ret_fd, struct stat *ret_st, LiveRun **ret,
                              char **ret_error) {
        _cleanup_(live_run_unrefp) LiveRun *l = NULL;
        _cleanup_free_ char *path = NULL, *text = NULL;
        _cleanup_close_ int fd = -EBADF;
        struct stat st;
        size_t size;
        int r;

        if (!run_id_is_valid(run))
                return -ENOENT;
        path = live_path(dir, run, ".json");
        if (!path)
                return -ENOMEM;

        fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
        if (fd < 0 || fstat(fd, &st) < 0)
                return -errno;
        r = read_full_fd(fd, LIVE_FILE_MAX, &text, &size);
        if (r < 0)
                return r == -EFBIG ? -EINVAL : r;

        r = live_run_parse(text, size, &l, ret_error);
        if (r < 0)
                return r;
        /* A file under another run's name speaks for nobody. */
        if (!streq(l->run, run))
                return -EINVAL;

        if (ret_fd) {
                *ret_fd = TAKE_FD(fd);
                *ret_st = st;
        }
        *ret = TAKE_PTR(l);
        return 0;
}

int live_run_read(const char *dir, const char *run, LiveRun **ret, char **ret_error) {
        return live_run_read_from(dir, run, NULL, NULL, ret, ret_error);
}

int live_run_open(const char *dir, const char *run, int *ret_fd, struct stat *ret_st, LiveRun **ret) {
        return live_run_read_from(dir, run, ret_fd, ret_st, ret, NULL);
}

int live_task_read(const char *dir, const char *run, char **ret, size_t *ret_size) {
        _cleanup_free_ char *path = NULL;

        if (!run_id_is_valid(run))
                return -ENOENT;
        path = live_path(dir, run, ".task.json");
        if (!path)
                return -ENOMEM;

        return read_full_file_at(AT_FDCWD, path, LIVE_TASK_MAX, ret, ret_size);
}

int live_run_remove(const char *dir, const char *run) {
        static const char *const suffixes[] = { ".json", ".task.json" };
        int ret = 0;

        if (!run_id_is_valid(run))
                return -EINVAL;

        for (size_t i = 0; i < ELEMENTSOF(suffixes); i++) {
                _cleanup_free_ char *path = live_path(dir, run, suffixes[i]);
                int r;

                if (!path)
                        return -ENOMEM;
                r = unlink_noerrno(AT_FDCWD, path, 0);
                if (r < 0 && ret >= 0)
                        ret = r;
        }

        return ret;
}
