/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Runner objects: read from their manifests, and the choice of which ones a run may get. */
#include "runner.h"

#include "basic/json-util.h"
#include "basic/log.h"
#include "basic/name-util.h"
#include "basic/string-util.h"

Runner *runner_ref(Runner *r) {
        r->n_ref++;
        return r;
}

Runner *runner_unref(Runner *r) {
        if (!r || --r->n_ref > 0)
                return NULL;
        free(r->name);
        free(r->version);
        free(r->main);
        strv_free(r->check);
        free(r->node);
        free(r->node_digest);
        free(r->invalid);
        free(r->agents);
        return mfree(r);
}

static int field_inner_path(sd_json_variant *v, void *field, char **ret_reason) {
        if (!runner_path_is_valid(sd_json_variant_string(v))) {
                *ret_reason = strdup("must be a path inside the runner");
                return -EINVAL;
        }
        return json_field_string(v, field, ret_reason);
}

static int field_inner_paths(sd_json_variant *v, void *field, char **ret_reason) {
        int r;

        r = json_field_strv(v, field, ret_reason);
        if (r < 0)
                return r;
        for (char **p = *(char ***) field; p && *p; p++)
                if (!runner_path_is_valid(*p)) {
                        *ret_reason = strdup("must be paths inside the runner");
                        return -EINVAL;
                }
        return 0;
}

static int field_digest(sd_json_variant *v, void *field, char **ret_reason) {
        if (!digest_is_valid(sd_json_variant_string(v))) {
                *ret_reason = strdup("must be a digest");
                return -EINVAL;
        }
        return json_field_string(v, field, ret_reason);
}

static int field_line(sd_json_variant *v, void *field, char **ret_reason) {
        const char *s = sd_json_variant_string(v);

        if (isempty(s) || string_has_cc(s) || strlen(s) > 1024) {
                *ret_reason = strdup("must be one line");
                return -EINVAL;
        }
        return json_field_string(v, field, ret_reason);
}

int runner_from_manifest(const char *digest, const char *manifest, Runner **ret, char **ret_error) {
        static const JsonField fields[] = {
                { "name", SD_JSON_VARIANT_STRING, field_line, offsetof(Runner, name), true },
                { "version", SD_JSON_VARIANT_STRING, field_line, offsetof(Runner, version), true },
                { "main", SD_JSON_VARIANT_STRING, field_inner_path, offsetof(Runner, main), true },
                { "check", SD_JSON_VARIANT_ARRAY, field_inner_paths, offsetof(Runner, check), true },
                { "node", SD_JSON_VARIANT_STRING, field_inner_path, offsetof(Runner, node), false },
                { "node_digest", SD_JSON_VARIANT_STRING, field_digest, offsetof(Runner, node_digest), false },
                { "invalid", SD_JSON_VARIANT_STRING, field_line, offsetof(Runner, invalid), false },
                {},
        };
        _cleanup_(runner_unrefp) Runner *n = NULL;
        _cleanup_json_ sd_json_variant *v = NULL;
        int r;

        if (!digest_is_valid(digest))
                return -EINVAL;
        n = calloc(1, sizeof *n);
        if (!n)
                return -ENOMEM;
        *n = (Runner) { .n_ref = 1, .state = RUNNER_STORED };
        r = json_parse(manifest, strlen(manifest), &v, ret_error);
        if (r >= 0)
                r = json_read_object(v, "", fields, n, ret_error);
        if (r >= 0 && (!n->check || !n->check[0] || (n->node != NULL) != (n->node_digest != NULL)))
                r = -EINVAL;
        if (r < 0)
                return r;
        memcpy(n->digest, digest, sizeof n->digest);
        *ret = TAKE_PTR(n);
        return 0;
}

int runner_node_path(const Runner *r, char **ret) {
        char *p = r->node ? strprintf(RUNNER_INSIDE "/%s", r->node) : strdup(RUNNER_IMAGE_NODE);

        if (!p)
                return -ENOMEM;
        *ret = p;
        return 0;
}

static bool is_named(const char *list, const char *user, const char *agent) {
        size_t u = strlen(user), a = strlen(agent);

        for (const char *p = list; p && *p; p += strcspn(p, " "), p += *p == ' ')
                if (strcspn(p, " ") == u + 1 + a && memcmp(p, user, u) == 0 && p[u] == '/' &&
                    memcmp(p + u + 1, agent, a) == 0)
                        return true;
        return false;
}

bool runner_canary_takes(const Runner *canary, const char *user, const char *agent, const char *run) {
        char digest[DIGEST_LEN + 1], part[9] = "";

        if (canary->agents)
                return is_named(canary->agents, user, agent);
        /* Of the run's id alone, so that a retry gets the same answer. */
        if (digest_bytes(run, strlen(run), digest) < 0)
                return false;
        memcpy(part, digest + 7, 8);
        return strtoul(part, NULL, 16) % 100 < canary->percent;
}

void runner_set_done(RunnerSet *set) {
        for (size_t i = 0; i < set->n; i++)
                runner_unref(set->runners[i]);
        free(set->runners);
        *set = (RunnerSet) {};
}

static int add_row(const StoreRunner *row, void *userdata) {
        _cleanup_(runner_unrefp) Runner *n = NULL;
        _cleanup_free_ char *error = NULL;
        RunnerSet *set = userdata;
        Runner **k;
        int r;

        if (row->state == RUNNER_STORED || set->n > RUNNER_CANDIDATES_MAX + 1)
                return 0;
        r = runner_from_manifest(row->digest, row->manifest, &n, &error);
        if (r == -ENOMEM)
                return r;
        if (r < 0) {
                log_error("Runner %s is left out: its manifest is not valid: %s", row->digest, strempty(error));
                return 0;
        }
        n->state = row->state;
        n->percent = row->percent;
        r = free_and_strdup(&n->agents, row->agents);
        if (r < 0)
                return r;
        k = reallocarray(set->runners, set->n + 1, sizeof *k);
        if (!k)
                return -ENOMEM;
        set->runners = k;
        set->runners[set->n++] = TAKE_PTR(n);
        return 0;
}

int runner_set_load(Store *s, RunnerSet *ret) {
        RunnerSet set = {};
        int r;

        r = store_runner_list(s, add_row, &set);
        if (r < 0) {
                runner_set_done(&set);
                return r;
        }
        runner_set_done(ret);
        *ret = set;
        return 0;
}

Runner *runner_set_current(const RunnerSet *set) {
        for (size_t i = 0; i < set->n; i++)
                if (set->runners[i]->state == RUNNER_CURRENT)
                        return set->runners[i];
        return NULL;
}

int runner_set_candidates(const RunnerSet *set, const char *user, const char *agent, const char *run,
                          Runner *ret[static RUNNER_CANDIDATES_MAX + 1]) {
        size_t n = 0;

        for (size_t i = 0; i < set->n && n < RUNNER_CANDIDATES_MAX; i++)
                if (set->runners[i]->state != RUNNER_CANARY || runner_canary_takes(set->runners[i], user, agent, run))
                        ret[n++] = runner_ref(set->runners[i]);
        ret[n] = NULL;
        return (int) n;
}
