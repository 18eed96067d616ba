/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Names of states, and the destructors of rows. */
#include "basic/string-util.h"

#include "store-backend.h"

/* ---- names ---- */

static const char *const run_state_table[_RUN_STATE_MAX] = {
        [RUN_QUEUED] = "queued",
        [RUN_PREPARING] = "preparing",
        [RUN_RUNNING] = "running",
        [RUN_FINISHED] = "finished",
};

static const char *const run_result_table[_RUN_RESULT_MAX] = {
        [RUN_RESULT_SUCCESS] = "success",
        [RUN_RESULT_FAILED] = "failed",
        [RUN_RESULT_EXIT_CODE] = "exit-code",
        [RUN_RESULT_SIGNAL] = "signal",
        [RUN_RESULT_TIMEOUT] = "timeout",
        [RUN_RESULT_OOM_KILL] = "oom-kill",
        [RUN_RESULT_CANCELED] = "canceled",
        [RUN_RESULT_OUT_OF_CREDIT] = "out-of-credit",
        [RUN_RESULT_SANDBOX_FAILED] = "sandbox-failed",
        [RUN_RESULT_LOST] = "lost",
};

static int table_lookup(const char *const *table, size_t n, const char *s) {
        for (size_t i = 0; s && i < n; i++)
                if (streq(table[i], s))
                        return (int) i;
        return -EINVAL;
}

const char *run_state_to_string(RunState s) {
        return s >= 0 && s < _RUN_STATE_MAX ? run_state_table[s] : NULL;
}

RunState run_state_from_string(const char *s) {
        return table_lookup(run_state_table, ELEMENTSOF(run_state_table), s);
}

const char *run_result_to_string(RunResult r) {
        return r >= 0 && r < _RUN_RESULT_MAX ? run_result_table[r] : NULL;
}

RunResult run_result_from_string(const char *s) {
        return table_lookup(run_result_table, ELEMENTSOF(run_result_table), s);
}

static const char *const store_runner_state_table[_RUNNER_STATE_MAX] = {
        [RUNNER_CURRENT] = "current",
        [RUNNER_PREVIOUS] = "previous",
        [RUNNER_CANARY] = "canary",
        [RUNNER_STORED] = "stored",
};

const char *store_runner_state_to_string(StoreRunnerState s) {
        return s >= 0 && s < _RUNNER_STATE_MAX ? store_runner_state_table[s] : NULL;
}

/* ---- rows ---- */

void store_runner_done(StoreRunner *r) {
        char **const strings[] = {
                &r->digest, &r->name, &r->version, &r->manifest, &r->source, &r->author, &r->note, &r->agents,
        };

        for (size_t i = 0; i < ELEMENTSOF(strings); i++)
                *strings[i] = mfree(*strings[i]);
}

StoreRunner *store_runner_free(StoreRunner *r) {
        if (!r)
                return NULL;
        store_runner_done(r);
        return mfree(r);
}

void store_verdict_done(StoreVerdict *v) {
        v->runner = mfree(v->runner);
        v->node = mfree(v->node);
        v->reason = mfree(v->reason);
}

StoreVerdict *store_verdict_free(StoreVerdict *v) {
        if (!v)
                return NULL;
        store_verdict_done(v);
        return mfree(v);
}

void store_run_done(StoreRun *run) {
        char **const strings[] = {
                &run->user, &run->agent, &run->trigger, &run->session, &run->labels, &run->idempotency_key,
                &run->parent, &run->input_digest, &run->unit, &run->invocation_id, &run->boot_id, &run->generation,
                &run->environment, &run->runner, &run->policy, &run->cancel_by, &run->message, &run->steps,
                &run->caller, &run->runner_before, &run->verdict, &run->verified,
        };

        for (size_t i = 0; i < ELEMENTSOF(strings); i++)
                *strings[i] = mfree(*strings[i]);
}

StoreRun *store_run_free(StoreRun *run) {
        if (!run)
                return NULL;
        store_run_done(run);
        return mfree(run);
}

void store_agent_done(StoreAgent *a) {
        a->user = mfree(a->user);
        a->name = mfree(a->name);
        a->definition = mfree(a->definition);
        a->head = mfree(a->head);
}

StoreAgent *store_agent_free(StoreAgent *a) {
        if (!a)
                return NULL;
        store_agent_done(a);
        return mfree(a);
}

void store_generation_done(StoreGeneration *g) {
        g->digest = mfree(g->digest);
        g->parent = mfree(g->parent);
        g->author = mfree(g->author);
        g->note = mfree(g->note);
        g->manifest = mfree(g->manifest);
}

StoreGeneration *store_generation_free(StoreGeneration *g) {
        if (!g)
                return NULL;
        store_generation_done(g);
        return mfree(g);
}

void store_image_done(StoreImage *i) {
        i->user = mfree(i->user);
        i->name = mfree(i->name);
        i->digest = mfree(i->digest);
}

StoreImage *store_image_free(StoreImage *i) {
        if (!i)
                return NULL;
        store_image_done(i);
        return mfree(i);
}

void store_service_done(StoreService *v) {
        v->user = mfree(v->user);
        v->name = mfree(v->name);
        v->definition = mfree(v->definition);
}

StoreService *store_service_free(StoreService *v) {
        if (!v)
                return NULL;
        store_service_done(v);
        return mfree(v);
}

StoreSession *store_session_free(StoreSession *v) {
        if (!v)
                return NULL;
        free(v->content_type);
        free(v->data);
        return mfree(v);
}
