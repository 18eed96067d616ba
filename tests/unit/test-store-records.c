/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* The contract of all else in the store: calls and artifacts, agents and heads, images, services, blobs, events. */
#include "store-contract.h"

static int sum_calls(unsigned attempt, const char *call_id, const char *json, void *userdata) {
        assert(attempt == 1 && json[0] == '{');
        return strv_extend(userdata, call_id);
}

static int sum_artifacts(const StoreArtifact *a, void *userdata) {
        *(uint64_t *) userdata += a->size;
        assert(streq(a->content_type, "image/png"));
        return 0;
}

static void test_records(void) {
        _cleanup_(store_freep) Store *s = open_store();
        _cleanup_strv_free_ char **calls = NULL;
        _cleanup_free_ char *big = malloc(STORE_CALL_SIZE_MAX + 2);
        const StoreArtifactLimits two = { .max = 2 };
        char id[RUN_ID_LEN + 1];
        uint64_t sum = 0;

        assert(big);
        add_agent(s, "a", "x", 1);
        assert(enqueue(s, "a", "x", 0, id) == 1);
        assert(store_call_add(s, id, 1, "c1", "{}") == -ESTALE); /* not claimed yet */
        store_run_free(claim(s, &no_caps));
        assert(store_call_add(s, id, 1, "c2", "{\"a\":1}") == 1);
        assert(store_call_add(s, id, 1, "c1", "{\"a\":2}") == 1);
        assert(store_call_add(s, id, 1, "c2", "{\"a\":1}") == 0);
        assert(store_call_add(s, id, 2, "c3", "{}") == -ESTALE);
        assert(store_call_add(s, id, 1, "../x", "{}") == -EINVAL);
        memset(big, 'x', STORE_CALL_SIZE_MAX + 1);
        big[STORE_CALL_SIZE_MAX + 1] = 0;
        assert(store_call_add(s, id, 1, "c4", big) == -E2BIG);
        assert(store_calls(s, id, sum_calls, &calls) == 2);
        assert(streq(calls[0], "c2") && streq(calls[1], "c1")); /* as they came */

        assert(store_artifact_commit(s, id, 1, "a.png", 5, "image/png") == -ENOENT);
        assert(store_artifact_begin(s, id, 1, "../a.png", &two) == -EINVAL);
        assert(store_artifact_begin(s, id, 1, "a.png", &two) == 0);
        assert(store_artifact_begin(s, id, 1, "a.png", &two) == 0);
        assert(store_artifact_begin(s, id, 1, "b.png", &two) == 0);
        assert(store_artifact_begin(s, id, 1, "c.png", &two) == -EDQUOT);
        assert(store_artifact_commit(s, id, 1, "a.png", 5, "image/png") == 0);
        assert(store_artifact_commit(s, id, 1, "a.png", 5, "image/png") == 0);
        assert(store_artifacts(s, id, sum_artifacts, &sum) == 1 && sum == 5); /* b was only begun */
        assert(store_run_finish(s, id, 1, &success) == 0);
        assert(store_artifact_begin(s, id, 1, "a.png", &two) == -EALREADY);
        assert(store_artifact_commit(s, id, 1, "b.png", 5, "image/png") == -EALREADY);
        assert(store_artifact_commit(s, id, 1, "a.png", 5, "image/png") == 0); /* a repeated report */
        assert(store_call_add(s, id, 1, "c1", "{\"a\":2}") == 0);
        assert(store_call_add(s, id, 1, "c9", "{}") == -EALREADY);

        /* Many at once: each has its own answer, and what is good is stored beside what is not. */
        char second[RUN_ID_LEN + 1];
        StoreCall many[] = {
                { .id = id, .attempt = 1, .call_id = "c1", .json = "{}" },       /* there already */
                { .id = id, .attempt = 1, .call_id = "c9", .json = "{}" },       /* of a run that is over */
                { .id = "nothing", .attempt = 1, .call_id = "c", .json = "{}" }, /* no id */
                { .id = id, .attempt = 1, .call_id = "../x", .json = "{}" },
        };
        assert(store_calls_add(s, many, ELEMENTSOF(many)) == 0);
        assert(many[0].result == 0 && many[1].result == -EALREADY && many[2].result == -ENOENT &&
               many[3].result == -EINVAL);
        assert(enqueue(s, "a", "x", 0, second) == 1);
        store_run_free(claim(s, &no_caps));
        calls = strv_free(calls);
        StoreCall more[] = {
                { .id = second, .attempt = 1, .call_id = "d1", .json = "{}" },
                { .id = second, .attempt = 2, .call_id = "d2", .json = "{}" }, /* no such attempt yet */
                { .id = second, .attempt = 1, .call_id = "d1", .json = "{}" },
                { .id = id, .attempt = 1, .call_id = "c9", .json = "{}" },
                { .id = second, .attempt = 1, .call_id = "d3", .json = "{}" },
        };
        assert(store_calls_add(s, more, ELEMENTSOF(more)) == 0);
        assert(more[0].result == 1 && more[1].result == -ESTALE && more[2].result == 0 && more[3].result == -EALREADY &&
               more[4].result == 1);
        assert(store_calls(s, second, sum_calls, &calls) == 2);

        /* The bound counts what is there, however it came. */
        for (unsigned i = 2; i < STORE_CALLS_MAX; i++) {
                char name[16];

                snprintf(name, sizeof(name), "e%u", i);
                StoreCall one = { .id = second, .attempt = 1, .call_id = name, .json = "{}" };
                assert(store_calls_add(s, &one, 1) == 0 && one.result == 1);
        }
        assert(store_call_add(s, second, 1, "last", "{}") == -E2BIG);
        assert(store_call_add(s, second, 1, "d1", "{}") == -E2BIG);

        /* So does the one of their bytes: all of them are in one receipt, which has to be stored. */
        char third[RUN_ID_LEN + 1];
        unsigned n = 0;

        big[STORE_CALL_SIZE_MAX] = 0;
        assert(store_run_finish(s, second, 1, &success) == 0);
        assert(enqueue(s, "a", "x", 0, third) == 1);
        store_run_free(claim(s, &no_caps));
        for (int r = 1; r == 1; n++) {
                char name[16];

                snprintf(name, sizeof(name), "f%u", n);
                r = store_call_add(s, third, 1, name, big);
                assert(r == 1 || r == -E2BIG);
        }
        assert(n - 1 == STORE_CALLS_SIZE_MAX / STORE_CALL_SIZE_MAX);
        assert(store_call_add(s, third, 1, "small", "{}") == -E2BIG);
}

/* ---- agents and heads ---- */

static int count_agent(const StoreAgent *a, void *userdata) {
        assert(a->name && a->user && a->head && !a->definition);
        return strv_extend(userdata, a->name);
}

static int collect_generation(const StoreGeneration *g, void *userdata) {
        _cleanup_free_ char *line = strprintf("%" PRIu64 " %s %s %s%s", g->number, g->digest, strempty(g->parent),
                                              strempty(g->note), g->is_head ? " head" : "");

        assert(line && !g->manifest);
        return strv_extend(userdata, line);
}

static void test_agents(void) {
        _cleanup_(store_freep) Store *s = open_store();
        _cleanup_(store_agent_freep) StoreAgent *a = NULL;
        _cleanup_(store_generation_freep) StoreGeneration *g = NULL;
        _cleanup_strv_free_ char **names = NULL, **generations = NULL;
        StoreAgent again = { .user = (char *) "a", .name = (char *) "x", .definition = (char *) "{}",
                             .concurrency = 1 };
        StoreGeneration first = { .digest = (char *) D3, .manifest = (char *) "{}" };
        StoreGeneration next = { .digest = (char *) D2, .parent = (char *) D1, .author = (char *) "a",
                                 .note = (char *) "pip install", .manifest = (char *) "{\"v\":2}" };
        StoreGeneration back = { .digest = (char *) D1 }, unknown = { .digest = (char *) D3 };
        char id[RUN_ID_LEN + 1];
        uint64_t rev = 0;

        add_agent(s, "a", "y", 1);
        add_agent(s, "a", "x", 3);
        add_agent(s, "b", "x", 1);
        assert(store_agent_add(s, &again, &first) == -EEXIST);
        assert(store_agent_get(s, "a", "x", &a) == 0);
        assert(a->concurrency == 3 && streq(a->head, D1) && a->head_rev == 1 && a->uid == 1000);
        assert(store_agent_get(s, "a", "X", &a) == -ENOENT);
        assert(store_agent_list(s, "a", count_agent, &names) == 2 && streq(names[0], "x") && streq(names[1], "y"));
        assert(store_agent_list(s, NULL, count_agent, &names) == 3);
        assert(store_agent_list(s, "nobody", count_agent, &names) == 0);

        /* Two editors start from revision 1: the second one is told, and its generation is not there. */
        assert(store_head_swap(s, "a", "x", 1, &next, &rev) == 0 && rev == 2);
        next.digest = (char *) D3;
        assert(store_head_swap(s, "a", "x", 1, &next, &rev) == -ESTALE && rev == 2);
        assert(store_generation_get(s, "a", "x", D3, &g) == -ENOENT);
        assert(store_generation_get(s, "a", "x", D2, &g) == 0);
        assert(g->number == 2 && g->is_head && streq(g->manifest, "{\"v\":2}") && streq(g->parent, D1));

        /* Back to what was before; what never was is refused. */
        assert(store_head_swap(s, "a", "x", 2, &unknown, &rev) == -ENOENT);
        assert(store_head_swap(s, "a", "x", 2, &back, &rev) == 0 && rev == 3);
        assert(store_generation_list(s, "a", "x", collect_generation, &generations) == 2);
        assert(streq(generations[0], "2 " D2 " " D1 " pip install") && streq(generations[1], "1 " D1 "   head"));
        assert(store_generation_list(s, "b", "x", collect_generation, &generations) == 1);
        assert(store_generation_list(s, "b", "y", collect_generation, &generations) == -ENOENT);

        assert(store_agent_update(s, "a", "x", "{\"n\":1}", 7) == 0);
        assert(store_agent_update(s, "a", "z", "{}", 7) == -ENOENT);
        a = store_agent_free(a);
        assert(store_agent_get(s, "a", "x", &a) == 0);
        assert(streq(a->definition, "{\"n\":1}") && a->concurrency == 7 && a->head_rev == 3 && streq(a->head, D1));

        assert(enqueue(s, "a", "x", 0, id) == 1);
        assert(store_agent_remove(s, "a", "x") == -EBUSY);
        assert(store_run_finish(s, id, 0, &success) == 0);
        assert(store_agent_remove(s, "a", "x") == 0);
        assert(store_agent_remove(s, "a", "x") == -ENOENT);
        assert(enqueue(s, "a", "x", 0, id) == -ENOENT);
        add_agent(s, "a", "x", 1); /* of the same name, from the start */
        assert(store_generation_list(s, "a", "x", collect_generation, &generations) == 1);
}

static int count_image(const StoreImage *i, void *userdata) {
        return strv_extend(userdata, i->user);
}

static void test_images(void) {
        _cleanup_(store_freep) Store *s = open_store();
        StoreImage i = { .user = (char *) "a", .name = (char *) "base", .digest = (char *) D1, .size = 5 };
        StoreImage system = { .user = (char *) "root", .name = (char *) "base", .digest = (char *) D2 };
        StoreImage bad = { .user = (char *) "a", .name = (char *) "bad", .digest = (char *) "sha256:xyz" };
        _cleanup_(store_image_freep) StoreImage *found = NULL;
        _cleanup_strv_free_ char **users = NULL;

        assert(store_image_add(s, &bad) == -EINVAL);
        assert(store_image_add(s, &i) == 0);
        assert(store_image_add(s, &i) == -EEXIST);
        assert(store_image_find(s, "b", "base", &found) == -ENOENT); /* another user's is not mine */
        assert(store_image_add(s, &system) == 0);
        assert(store_image_find(s, "b", "base", &found) == 0 && streq(found->digest, D2));
        found = store_image_free(found);
        assert(store_image_find(s, "a", "base", &found) == 0 && streq(found->digest, D1) && found->size == 5);
        assert(found->created_usec > 0);
        assert(store_image_list(s, "b", count_image, &users) == 1);
        assert(store_image_list(s, "a", count_image, &users) == 2);
        assert(store_image_list(s, NULL, count_image, &users) == 2);
        assert(store_image_remove(s, "b", "base") == -ENOENT);
        assert(store_image_remove(s, "a", "base") == 0);
        found = store_image_free(found);
        assert(store_image_find(s, "a", "base", &found) == 0 && streq(found->user, "root"));
}

static int count_service(const StoreService *v, void *userdata) {
        return strv_extend(userdata, v->name);
}

static void test_services(void) {
        _cleanup_(store_freep) Store *s = open_store();
        _cleanup_(store_service_freep) StoreService *v = NULL;
        _cleanup_strv_free_ char **names = NULL;

        assert(store_service_add(s, "a", "market", "{}") == 0);
        assert(store_service_add(s, "a", "market", "{}") == -EEXIST);
        assert(store_service_add(s, "b", "market", "{\"b\":1}") == 0);
        assert(store_service_update(s, "a", "market", "{\"a\":1}") == 0);
        assert(store_service_update(s, "c", "market", "{}") == -ENOENT);
        assert(store_service_get(s, "a", "market", &v) == 0 && streq(v->definition, "{\"a\":1}"));
        assert(v->changed_usec >= v->created_usec && v->created_usec > 0);
        assert(store_service_list(s, "a", count_service, &names) == 1);
        assert(store_service_list(s, NULL, count_service, &names) == 2);
        assert(store_service_remove(s, "a", "market") == 0);
        assert(store_service_remove(s, "a", "market") == -ENOENT);
        v = store_service_free(v);
        assert(store_service_get(s, "a", "market", &v) == -ENOENT);
}

static void test_blobs(void) {
        _cleanup_(store_freep) Store *s = open_store();
        _cleanup_free_ char *data = NULL, *empty = NULL;
        char digest[DIGEST_LEN + 1], second[DIGEST_LEN + 1], found[DIGEST_LEN + 1];
        _cleanup_close_ int fd = -EBADF;
        size_t size;

        assert(store_blob_put(s, "a\0b", 3, digest) == 0);
        assert(store_blob_put(s, "a\0b", 3, second) == 0 && streq(digest, second));
        assert(store_blob_get(s, digest, &data, &size) == 0 && size == 3 && memcmp(data, "a\0b", 4) == 0);
        fd = store_blob_open(s, digest);
        assert(fd >= 0 && digest_fd(fd, found) == 0 && streq(found, digest));
        assert(write(fd, "x", 1) < 0 && errno == EPERM);
        assert(store_blob_get(s, D1, &data, &size) == -ENOENT);
        assert(store_blob_get(s, "sha256:../x", &data, &size) == -ENOENT);
        assert(store_blob_put(s, "", 0, digest) == 0 && store_blob_get(s, digest, &empty, &size) == 0 && size == 0);
        assert(store_blob_put(s, "", STORE_BLOB_MAX + 1, digest) == -E2BIG);
}

/* ---- events: after the commit, and only where something changed ---- */

static void note_event(const StoreEvent *event, void *userdata) {
        static const char *const types[_STORE_EVENT_TYPE_MAX] = {
                "queued", "changed", "finished", "removed", "agent-new", "agent-changed", "agent-removed",
        };

        assert(strv_extend(userdata, types[event->type]) >= 0);
        assert(event->type < STORE_EVENT_AGENT_NEW ? !!event->run : event->user && event->name);
}

static void test_events(void) {
        static const char *const expected[] = {
                "agent-new", "queued", "changed", "changed", "queued", "finished", "agent-changed", "agent-removed",
        };
        _cleanup_(store_freep) Store *s = open_store();
        _cleanup_strv_free_ char **seen = NULL;
        StoreRunRequest req = request("a", "x", "1");
        StoreGeneration next = { .digest = (char *) D2, .manifest = (char *) "{}" };
        char id[RUN_ID_LEN + 1];
        RunState state;

        assert(store_subscribe(s, note_event, &seen) == 0);
        add_agent(s, "a", "x", 1);
        req.idempotency_key = "k";
        assert(store_run_enqueue(s, &req, &no_bounds, id) == 1);
        assert(store_run_enqueue(s, &req, &no_bounds, id) == 0);
        store_run_free(claim(s, &no_caps));
        assert(!claim(s, &no_caps));
        assert(store_run_finish(s, id, 7, &success) == -ESTALE);
        assert(store_run_cancel_request(s, id, "a", &state) == 1);
        assert(store_run_cancel_request(s, id, "a", &state) == 0);
        assert(store_run_requeue(s, id, 1, NULL, 0) == 0);
        assert(!claim(s, &no_caps)); /* it is to be canceled */
        assert(store_run_finish(s, id, 1, &success) == 0);
        assert(store_run_finish(s, id, 1, &success) == -EALREADY);
        assert(store_head_swap(s, "a", "x", 1, &next, NULL) == 0);
        assert(store_head_swap(s, "a", "x", 1, &next, NULL) == -ESTALE);
        assert(store_agent_remove(s, "a", "x") == 0);
        store_unsubscribe(s, note_event, &seen);
        add_agent(s, "a", "x", 1);

        size_t i = 0;
        for (char **e = seen; *e; e++, i++)
                assert(i < ELEMENTSOF(expected) && streq(*e, expected[i]));
        assert(i == ELEMENTSOF(expected));
}

static int list_generation(const char *user, const char *name, const StoreGeneration *g, void *userdata) {
        char ***l = userdata;
        char *s = strprintf("%s/%s %" PRIu64 " %.2s%s", user, name, g->number, g->digest + strlen("sha256:"),
                            g->is_head ? " head" : "");

        assert(s && g->manifest && strv_extend(l, s) == 0);
        free(s);
        return 0;
}

static void test_generations(void) {
        _cleanup_(store_freep) Store *s = open_store();
        const StoreGeneration second = { .digest = (char *) D2, .manifest = (char *) "{}" },
                              third = { .digest = (char *) D3, .manifest = (char *) "{}" },
                              first = { .digest = (char *) D1 };
        const StoreAgent x = { .user = (char *) "a", .name = (char *) "x", .definition = (char *) "{}" },
                         n = { .user = (char *) "a",
                               .name = (char *) "new",
                               .definition = (char *) "{}",
                               .concurrency = 1,
                               .head = (char *) D2 };
        bool made;
        _cleanup_strv_free_ char **all = NULL, **of_a = NULL, **of_x = NULL;

        add_agent(s, "a", "x", 1);
        add_agent(s, "a", "y", 1);
        add_agent(s, "b", "x", 1);
        assert(store_head_swap(s, "a", "x", 1, &second, NULL) == 0);
        assert(store_head_swap(s, "a", "x", 2, &third, NULL) == 0);
        assert(store_head_swap(s, "a", "x", 3, &first, NULL) == 0);
        assert(store_generation_walk(s, NULL, NULL, list_generation, &all) == 5);
        assert(streq(all[0], "a/x 3 33") && streq(all[1], "a/x 2 22") && streq(all[2], "a/x 1 11 head") &&
               streq(all[3], "a/y 1 11 head") && streq(all[4], "b/x 1 11 head"));
        assert(store_generation_walk(s, "a", NULL, list_generation, &of_a) == 4);
        assert(store_generation_walk(s, NULL, "x", list_generation, &of_a) == -EINVAL);
        assert(store_generation_walk(s, "c", "x", list_generation, &of_a) == 0);

        /* All or none. */
        assert(store_generation_remove(s, "a", "x", (char *[]) { (char *) D2, (char *) D1, NULL }) == -EBUSY);
        assert(store_generation_remove(s, "a", "nobody", (char *[]) { (char *) D2, NULL }) == -ENOENT);
        assert(store_generation_remove(s, "a", "x", (char *[]) { (char *) D2, (char *) D2, NULL }) == 1);
        assert(store_generation_walk(s, "a", "x", list_generation, &of_x) == 2 && streq(of_x[0], "a/x 3 33"));
        assert(store_head_swap(s, "a", "x", 4, &(StoreGeneration) { .digest = (char *) D2 }, NULL) == -ENOENT);

        /* An import: those that are missing, and the head, in one step; the agent too where there is none. */
        assert(store_generations_import(s, &x, (StoreGeneration[]) { third, second }, 2, &made) == 0 && !made);
        of_x = strv_free(of_x);
        assert(store_generation_walk(s, "a", "x", list_generation, &of_x) == 3 && streq(of_x[0], "a/x 4 22 head") &&
               streq(of_x[1], "a/x 3 33"));
        assert(store_generations_import(s, &x, (StoreGeneration[]){ third, first }, 2, &made) ==
               -EINVAL); /* no manifest */
        assert(store_generations_import(s, &n, (StoreGeneration[]) { second, third }, 2, &made) == 0 && made);
        of_x = strv_free(of_x);
        assert(store_generation_walk(s, "a", "new", list_generation, &of_x) == 2 && streq(of_x[0], "a/new 2 33 head") &&
               streq(of_x[1], "a/new 1 22"));
}

int main(void) {
        static const ContractCase cases[] = {
                { "records", test_records },
                { "agents", test_agents },
                { "generations", test_generations },
                { "images", test_images },
                { "services", test_services },
                { "blobs", test_blobs },
                { "events", test_events },
        };

        return run_contract(cases, ELEMENTSOF(cases));
}
