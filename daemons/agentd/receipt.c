/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The receipt of a run: one JSON document that says who asked, what ran, how it ended and what it used. Two runs of the
 * same input by different triggers differ only in ids, times, measured amounts and the trigger's name. It never has
 * a body or a secret: only what it is made from here.
 */
#include "basic/json-util.h"
#include "basic/string-util.h"
#include "run.h"

#define RECEIPT_VERSION 1

static sd_json_variant *unsigned_or_null(uint64_t t, uint64_t unknown) {
        sd_json_variant *v = NULL;

        if (t != unknown)
                sd_json_variant_new_unsigned(&v, t);
        return v;
}

/* Nothing is left out: what is not known is null, so that every receipt has the same keys. */
static int set(sd_json_variant **v, const char *key, sd_json_variant *value /* consumed; NULL is null */) {
        _cleanup_json_ sd_json_variant *x = value;

        if (!x && sd_json_variant_new_null(&x) < 0)
                return -ENOMEM;
        return sd_json_variant_set_field(v, key, x);
}

static int set_string(sd_json_variant **v, const char *key, const char *s) {
        sd_json_variant *x = NULL;

        if (!isempty(s) && sd_json_variant_new_string(&x, s) < 0)
                return -ENOMEM;
        return set(v, key, x);
}

static int set_time(sd_json_variant **v, const char *key, uint64_t usec) {
        return set(v, key, unsigned_or_null(usec, 0));
}

static int set_json(sd_json_variant **v, const char *key, const char *text) {
        sd_json_variant *x = NULL;

        if (text)
                json_parse(text, strlen(text), &x, NULL);
        return set(v, key, x);
}

static int on_call(unsigned attempt, const char *call_id, const char *json, void *userdata) {
        sd_json_variant **calls = userdata;
        _cleanup_json_ sd_json_variant *v = NULL;

        if (json_parse(json, strlen(json), &v, NULL) < 0)
                return 0; /* checked when it came in */
        return sd_json_variant_append_array(calls, v);
}

static int on_artifact(const StoreArtifact *a, void *userdata) {
        sd_json_variant **artifacts = userdata;
        _cleanup_json_ sd_json_variant *v = NULL;
        int r;

        r = sd_json_buildo(&v, SD_JSON_BUILD_PAIR_STRING("name", a->name), SD_JSON_BUILD_PAIR_UNSIGNED("size", a->size),
                           SD_JSON_BUILD_PAIR_STRING("content_type", a->content_type));
        return r < 0 ? r : sd_json_variant_append_array(artifacts, v);
}

static int on_usage(const char *key, uint64_t amount, const char *description, uint64_t created_usec, void *userdata) {
        sd_json_variant **debits = userdata;
        _cleanup_json_ sd_json_variant *v = NULL;
        int r;

        r = sd_json_buildo(&v, SD_JSON_BUILD_PAIR_STRING("kind", "usage"), SD_JSON_BUILD_PAIR_STRING("key", key),
                           SD_JSON_BUILD_PAIR_UNSIGNED("amount", amount),
                           SD_JSON_BUILD_PAIR_STRING("description", description));
        return r < 0 ? r : sd_json_variant_append_array(debits, v);
}

int run_steps(const Run *run, char **ret) {
        _cleanup_json_ sd_json_variant *v = NULL;
        const struct {
                const char *name;
                uint64_t from, to;
        } steps[] = {
                { "compose_usec", run->t_claimed, run->t_sandbox },
                { "validate_usec", run->t_checked ? run->t_sandbox : 0, run->t_checked },
                { "register_usec", run->t_checked ?: run->t_sandbox, run->t_registered },
                { "start_usec", run->t_registered, run->t_started },
                { "run_usec", run->t_started, run->t_ended },
                { "settle_usec", run->t_ended, now_monotonic() },
        };

        for (size_t i = 0; i < ELEMENTSOF(steps); i++) {
                bool known = steps[i].from != 0 && steps[i].to >= steps[i].from;
                int r = set(&v, steps[i].name,
                            known ? unsigned_or_null(steps[i].to - steps[i].from, UINT64_MAX) : NULL);

                if (r < 0)
                        return r;
        }
        return sd_json_variant_format(v, 0, ret);
}

/* The runner before and after; whether its verdict was remembered ("cached") or found for this run ("checked"). */
static int set_swap(sd_json_variant **v, const StoreRun *row, const Run *run) {
        _cleanup_json_ sd_json_variant *swap = NULL, *swapped = NULL;
        int r = 0;

        if (row->runner)
                r = sd_json_variant_new_boolean(&swapped, !streq_ptr(row->runner, row->runner_before));
        if (r >= 0)
                r = set_string(&swap, "before", row->runner_before);
        if (r >= 0)
                r = set_string(&swap, "after", row->runner);
        if (r >= 0)
                r = set(&swap, "swapped", TAKE_PTR(swapped));
        if (r >= 0)
                r = set_string(&swap, "verdict", row->verdict);
        if (r >= 0)
                r = set_string(&swap, "generation", run ? run->folded : NULL);
        return r < 0 ? r : set(v, "swap", TAKE_PTR(swap));
}

int run_receipt(Manager *m, const StoreRun *row, const Run *run, const RunEnd *end, uint64_t finished_usec,
                char **ret) {
        _cleanup_json_ sd_json_variant *v = NULL, *times = NULL, *usage = NULL;
        sd_json_variant *calls = NULL, *artifacts = NULL, *debits = NULL;
        _cleanup_free_ char *steps = NULL;
        int r = 0;

#define TRY(e)                                                                                                         \
        do {                                                                                                           \
                r = (e);                                                                                               \
                if (r < 0)                                                                                             \
                        return r;                                                                                      \
        } while (0)
        TRY(sd_json_variant_set_field_unsigned(&v, "v", RECEIPT_VERSION));
        TRY(set_string(&v, "run", row->id));
        TRY(set_string(&v, "user", row->user));
        TRY(sd_json_variant_set_field_unsigned(&v, "uid", row->uid));
        TRY(set_string(&v, "agent", row->agent));
        TRY(set_string(&v, "caller", row->caller ?: row->user));
        TRY(set_string(&v, "trigger", row->trigger));
        TRY(set_string(&v, "session", row->session));
        TRY(set_string(&v, "parent", row->parent));
        TRY(set_string(&v, "idempotency_key", row->idempotency_key));
        TRY(set_json(&v, "labels", row->labels));
        TRY(set_string(&v, "input_digest", row->input_digest));
        TRY(set_string(&v, "generation", row->generation));
        TRY(set_string(&v, "verified", row->verified));
        TRY(set_string(&v, "environment", run ? run->environment : row->environment));
        TRY(set_string(&v, "runner", row->runner));
        TRY(set_swap(&v, row, run));
        TRY(set_string(&v, "policy", run ? run->policy : row->policy));
        TRY(sd_json_variant_set_field_unsigned(&v, "attempts", row->attempt));
        TRY(set_string(&v, "unit", run ? run->unit_name : row->unit));
        TRY(set_string(&v, "invocation_id", row->invocation_id));
        TRY(set_string(&v, "result", run_result_to_string(end->result)));
        TRY(set_string(&v, "message", end->message));
        TRY(set(&v, "exit_code", unsigned_or_null((uint64_t) (int64_t) end->exit_code, UINT64_MAX)));
        TRY(set(&v, "signal", unsigned_or_null((uint64_t) (int64_t) end->exit_signal, UINT64_MAX)));

        TRY(set_time(&times, "created_usec", row->created_usec));
        TRY(set_time(&times, "queued_usec", row->queued_usec));
        TRY(set_time(&times, "claimed_usec", row->claimed_usec));
        TRY(set_time(&times, "started_usec", row->started_usec));
        TRY(set_time(&times, "finished_usec", finished_usec));
        TRY(sd_json_variant_set_field(&v, "times", times));
        if (run)
                TRY(run_steps(run, &steps));
        TRY(set_json(&v, "steps", steps));

        TRY(set(&usage, "cpu_usec", unsigned_or_null(end->usage.cpu_usec, STORE_UNKNOWN)));
        TRY(set(&usage, "memory_peak_bytes", unsigned_or_null(end->usage.memory_peak, STORE_UNKNOWN)));
        TRY(set(&usage, "io_read_bytes", unsigned_or_null(end->usage.io_read_bytes, STORE_UNKNOWN)));
        TRY(set(&usage, "io_write_bytes", unsigned_or_null(end->usage.io_write_bytes, STORE_UNKNOWN)));
        TRY(sd_json_variant_set_field(&v, "usage", usage));

        TRY(sd_json_variant_new_array(&calls, NULL, 0));
        r = store_calls(m->store, row->id, on_call, &calls);
        TRY(set(&v, "calls", calls));
        TRY(sd_json_variant_new_array(&artifacts, NULL, 0));
        r = store_artifacts(m->store, row->id, on_artifact, &artifacts);
        TRY(set(&v, "artifacts", artifacts));
        TRY(sd_json_variant_new_array(&debits, NULL, 0));
        r = store_usages(m->store, row->id, on_usage, &debits);
        TRY(set(&v, "debits", debits));
#undef TRY
        return json_format_canonical(v, ret);
}
