/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * Proves what is made of a token endpoint's answers, odd ones above all, and that however many ask for a
 * token, one fetch is in flight: with a fake endpoint that answers when the test says so, and a fake clock.
 */

#undef NDEBUG

#include "basic/string-util.h"
#include "token-cache.h"

#define SEC USEC_PER_SEC

/* ---- answers ---- */

static void answer(unsigned status, const char *body, TokenCode expected, const char *token, uint64_t life) {
        _cleanup_(secret_freep) Secret *s = NULL;
        const char *detail = NULL;
        uint64_t l = 0;
        TokenCode c = token_response_parse(status, body, strlen(body), &s, &l, &detail);

        if (c != expected)
                fprintf(stderr, "%u '%.100s': got %s, detail %s\n", status, body, token_code_to_string(c),
                        strempty(detail));
        assert(c == expected);
        if (c == TOKEN_OK) {
                assert(streq(secret_data(s), token) && l == life);
        } else {
                assert(!s && detail);
                /* The endpoint's words are not repeated. */
                assert(!strstr(detail, "CANARY"));
        }
}

static void test_answers(void) {
        answer(200, "{\"access_token\":\"abc\",\"token_type\":\"Bearer\",\"expires_in\":3600}", TOKEN_OK, "abc", 3600);
        answer(201, "{\"access_token\":\"abc\",\"token_type\":\"bearer\",\"expires_in\":60}", TOKEN_OK, "abc", 60);
        answer(200, "{\"access_token\":\"abc\"}", TOKEN_OK, "abc", TOKEN_LIFE_DEFAULT_SEC);
        answer(200, "{\"access_token\":\"abc\",\"expires_in\":null}", TOKEN_OK, "abc", TOKEN_LIFE_DEFAULT_SEC);
        answer(200, "{\"access_token\":\"abc\",\"expires_in\":\"3600\"}", TOKEN_OK, "abc", 3600);
        answer(200, "{\"access_token\":\"abc\",\"expires_in\":3599.9}", TOKEN_OK, "abc", 3599);
        answer(200, "{\"access_token\":\"abc\",\"expires_in\":99999999999}", TOKEN_OK, "abc", TOKEN_LIFE_MAX_SEC);
        answer(200, "{\"access_token\":\"abc\",\"expires_in\":1e300}", TOKEN_OK, "abc", TOKEN_LIFE_MAX_SEC);
        answer(200, "{\"access_token\":\"abc\",\"refresh_token\":\"CANARY\",\"scope\":\"x\"}", TOKEN_OK, "abc",
               TOKEN_LIFE_DEFAULT_SEC);

        answer(200, "{\"access_token\":\"abc\",\"expires_in\":0}", TOKEN_BAD_ANSWER, NULL, 0);
        answer(200, "{\"access_token\":\"abc\",\"expires_in\":-1}", TOKEN_BAD_ANSWER, NULL, 0);
        answer(200, "{\"access_token\":\"abc\",\"expires_in\":\"soon\"}", TOKEN_BAD_ANSWER, NULL, 0);
        answer(200, "{\"access_token\":\"abc\",\"expires_in\":[1]}", TOKEN_BAD_ANSWER, NULL, 0);
        answer(200, "{\"access_token\":\"abc\",\"token_type\":\"mac\"}", TOKEN_BAD_ANSWER, NULL, 0);
        answer(200, "{\"access_token\":\"abc\",\"token_type\":7}", TOKEN_BAD_ANSWER, NULL, 0);
        answer(200, "", TOKEN_BAD_ANSWER, NULL, 0);
        answer(200, "{}", TOKEN_BAD_ANSWER, NULL, 0);
        answer(200, "[]", TOKEN_BAD_ANSWER, NULL, 0);
        answer(200, "null", TOKEN_BAD_ANSWER, NULL, 0);
        answer(200, "<html>CANARY</html>", TOKEN_BAD_ANSWER, NULL, 0);
        answer(200, "access_token=abc&expires_in=60", TOKEN_BAD_ANSWER, NULL, 0);
        answer(200, "{\"access_token\":\"\"}", TOKEN_BAD_ANSWER, NULL, 0);
        answer(200, "{\"access_token\":\"a b\"}", TOKEN_BAD_ANSWER, NULL, 0);
        answer(200, "{\"access_token\":\"a\\r\\nX-Evil: b\"}", TOKEN_BAD_ANSWER, NULL, 0);
        answer(200, "{\"access_token\":\"a\\u0000b\"}", TOKEN_BAD_ANSWER, NULL, 0);
        answer(200, "{\"access_token\":\"a\\u00e4\"}", TOKEN_BAD_ANSWER, NULL, 0);
        answer(200, "{\"access_token\":7}", TOKEN_BAD_ANSWER, NULL, 0);
        answer(200, "{\"access_token\":\"a\",\"access_token\":\"b\"}", TOKEN_BAD_ANSWER, NULL, 0);
        answer(200, "{\"access_token\":\"a\"}{}", TOKEN_BAD_ANSWER, NULL, 0);
        answer(200, "{\"error\":\"invalid_client\"}", TOKEN_REFUSED, NULL, 0);
        answer(200, "{\"error\":\"CANARY\",\"access_token\":\"abc\"}", TOKEN_REFUSED, NULL, 0);

        answer(204, "", TOKEN_BAD_ANSWER, NULL, 0);
        answer(202, "{\"access_token\":\"abc\"}", TOKEN_BAD_ANSWER, NULL, 0);
        answer(302, "{\"access_token\":\"abc\"}", TOKEN_BAD_ANSWER, NULL, 0);
        answer(400, "{\"error\":\"invalid_scope\",\"error_description\":\"CANARY\"}", TOKEN_REFUSED, NULL, 0);
        answer(401, "{\"access_token\":\"abc\"}", TOKEN_REFUSED, NULL, 0);
        answer(403, "CANARY", TOKEN_REFUSED, NULL, 0);
        answer(429, "{}", TOKEN_UNAVAILABLE, NULL, 0);
        answer(500, "{\"access_token\":\"abc\"}", TOKEN_UNAVAILABLE, NULL, 0);
        answer(503, "", TOKEN_UNAVAILABLE, NULL, 0);

        _cleanup_free_ char *big = malloc(40000);
        strcpy(big, "{\"access_token\":\"");
        memset(big + strlen("{\"access_token\":\""), 'a', 20000);
        strcpy(big + strlen("{\"access_token\":\"") + 20000, "\"}");
        answer(200, big, TOKEN_BAD_ANSWER, NULL, 0);
}

/* ---- the cache ---- */

typedef struct Fake {
        token_fetched_t fetched;
        void *userdata;
        bool running;
        unsigned n_started, n_canceled;
        int refuse; /* of start */
} Fake;

static Fake fake;
static uint64_t now = 1000 * SEC;

static uint64_t fake_now(void) {
        return now;
}

static int fake_start(void *context, const TokenKey *key, token_fetched_t fetched, void *userdata, void **ret) {
        assert(context == &fake && !fake.running);
        if (fake.refuse < 0)
                return fake.refuse;
        fake.n_started++;
        fake.running = true;
        fake.fetched = fetched;
        fake.userdata = userdata;
        *ret = &fake;
        return 0;
}

static void fake_cancel(void *handle) {
        assert(handle == &fake && fake.running);
        fake.running = false;
        fake.n_canceled++;
}

static void fake_answer(unsigned status, const char *body) {
        assert(fake.running);
        fake.running = false;
        fake.fetched(status, body, strlen(body), TOKEN_OK, NULL, fake.userdata);
}

static void fake_fail(TokenCode code) {
        assert(fake.running);
        fake.running = false;
        fake.fetched(0, NULL, 0, code, "failed", fake.userdata);
}

static const TokenFetcher fetcher = {
        .start = fake_start,
        .cancel = fake_cancel,
        .context = &fake,
        .now = fake_now,
};

static TokenCache *cache;
static Service *svc;
static uint64_t version = 1;

static Service *make_service(const char *client) {
        _cleanup_free_ char *text =
                strprintf("{\"name\":\"md\",\"base_url\":\"https://h\",\"allow\":[],\"auth\":{"
                          "\"kind\":\"oauth2-client-credentials\",\"token_url\":\"https://idp/token\","
                          "\"client_id\":\"%s\"}}",
                          client);
        Service *s = NULL;

        assert(service_parse(text, strlen(text), 0, &s, NULL) == 0);
        return s;
}

typedef struct Asker {
        TokenWaiter *waiter;
        unsigned n_called;
        TokenCode code;
        char token[64];
        uint64_t remaining, generation;
        struct Asker *ask_again; /* from within the callback */
        struct Asker *drop;
} Asker;

static void asker_take(Asker *a, const TokenGrant *g) {
        a->n_called++;
        a->code = g->code;
        a->remaining = g->remaining_usec;
        a->generation = g->generation;
        a->token[0] = 0;
        if (g->code == TOKEN_OK)
                snprintf(a->token, sizeof(a->token), "%s", secret_data(g->token));
}

static int ask(Asker *a);

static void on_ready(const TokenGrant *g, void *userdata) {
        Asker *a = userdata;

        asker_take(a, g);
        a->waiter = NULL;
        if (a->ask_again)
                ask(a->ask_again);
        if (a->drop)
                a->drop->waiter = token_waiter_free(a->drop->waiter);
}

static int ask_for(Asker *a, Service *s, uint64_t v) {
        TokenKey key = { .user = "alice", .service = s, .version = v };
        TokenGrant g;
        int r;

        r = token_cache_get(cache, &key, &g, on_ready, a, &a->waiter);
        if (r == 1)
                asker_take(a, &g);
        return r;
}

static int ask(Asker *a) {
        return ask_for(a, svc, version);
}

static void invalidate(uint64_t generation) {
        TokenKey key = { .user = "alice", .service = svc, .version = version };
        token_cache_invalidate(cache, &key, generation);
}

#define ANSWER(token, life) fake_answer(200, "{\"access_token\":\"" token "\",\"expires_in\":" #life "}")

static void test_single_flight(void) {
        Asker a[100] = {}, late = {};

        for (size_t i = 0; i < ELEMENTSOF(a); i++)
                assert(ask(a + i) == 0);
        assert(fake.n_started == 1);

        /* Some go away meanwhile, also from within another's callback. One asks again from there. */
        a[10].waiter = token_waiter_free(a[10].waiter);
        a[20].drop = &a[21];
        a[30].ask_again = &late;

        ANSWER("one", 1000);
        for (size_t i = 0; i < ELEMENTSOF(a); i++)
                if (i == 10 || i == 21)
                        assert(a[i].n_called == 0);
                else
                        assert(a[i].n_called == 1 && a[i].code == TOKEN_OK && streq(a[i].token, "one") &&
                               a[i].remaining == 1000 * SEC && a[i].generation == a[0].generation);
        assert(late.n_called == 1 && streq(late.token, "one"));
        assert(fake.n_started == 1);
}

static void test_refresh(void) {
        Asker a = {}, b = {}, c = {};

        /* In its youth it is given without another word. */
        now += 700 * SEC;
        assert(ask(&a) == 1 && streq(a.token, "one") && a.remaining == 300 * SEC && fake.n_started == 1);

        /* After 80 % it is given, and a new one is fetched beside it, once. */
        now += 101 * SEC;
        assert(ask(&a) == 1 && streq(a.token, "one") && fake.n_started == 2);
        assert(ask(&a) == 1 && streq(a.token, "one") && fake.n_started == 2);
        ANSWER("two", 1000);
        assert(ask(&a) == 1 && streq(a.token, "two"));

        /* In the margin before the end those who ask wait for the new one. */
        now += 980 * SEC;
        assert(ask(&a) == 0 && ask(&b) == 0 && fake.n_started == 3);
        ANSWER("three", 1000);
        assert(streq(a.token, "three") && streq(b.token, "three"));

        /* The endpoint is down in the margin: the old one, which is still good. */
        now += 980 * SEC;
        assert(ask(&a) == 0);
        fake_answer(503, "");
        assert(a.code == TOKEN_OK && streq(a.token, "three") && a.remaining == 20 * SEC);
        assert(fake.n_started == 4);
        /* It is not asked again at once. */
        assert(ask(&a) == 1 && streq(a.token, "three") && fake.n_started == 4);
        /* But after its end there is nothing, and that is said at once during the pause ... */
        now += 2 * SEC;
        assert(ask(&b) == 0 && fake.n_started == 5);
        fake_fail(TOKEN_UNAVAILABLE);
        assert(b.code == TOKEN_OK && streq(b.token, "three"));
        now += 19 * SEC;
        assert(ask(&c) == 0 && fake.n_started == 6);
        fake_fail(TOKEN_UNAVAILABLE);
        assert(c.code == TOKEN_UNAVAILABLE);
        now += 1 * SEC;
        assert(ask(&c) == 1 && c.code == TOKEN_UNAVAILABLE && fake.n_started == 6);
        /* ... and asked again after it. */
        now += 10 * SEC;
        assert(ask(&c) == 0 && fake.n_started == 7);
        ANSWER("four", 1000);
        assert(streq(c.token, "four"));
}

static void test_pause_is_bounded(void) {
        Asker a = {};

        now += 2000 * SEC;
        for (unsigned i = 0; i < 20; i++) {
                unsigned n = fake.n_started;

                assert(ask(&a) == 0);
                fake_answer(400, "{\"error\":\"invalid_client\"}");
                assert(a.code == TOKEN_REFUSED && fake.n_started == n + 1);
                assert(ask(&a) == 1 && a.code == TOKEN_REFUSED && fake.n_started == n + 1);
                now += 61 * SEC;
        }
        assert(ask(&a) == 0);
        ANSWER("five", 1000);
}

static void test_invalidate(void) {
        Asker a = {}, b = {};
        uint64_t old;
        unsigned n;

        now += 60 * SEC;
        assert(ask(&a) == 1 && streq(a.token, "five"));
        old = a.generation;
        n = fake.n_started;

        /* A hundred requests were refused with the same token: one refresh. */
        for (unsigned i = 0; i < 50; i++)
                invalidate(old);
        assert(ask(&a) == 0 && ask(&b) == 0 && fake.n_started == n + 1);
        for (unsigned i = 0; i < 25; i++)
                invalidate(old);
        ANSWER("six", 1000);
        assert(streq(a.token, "six") && streq(b.token, "six"));
        for (unsigned i = 0; i < 25; i++) {
                invalidate(old);
                invalidate(0);
        }
        assert(ask(&a) == 1 && streq(a.token, "six") && fake.n_started == n + 1);

        /* Refused again at once: not faster than every ten seconds. */
        invalidate(a.generation);
        assert(ask(&a) == 1 && fake.n_started == n + 1);
        now += 11 * SEC;
        invalidate(a.generation);
        assert(ask(&a) == 0 && fake.n_started == n + 2);
        /* A token that was refused is not given while the endpoint is down. */
        fake_answer(500, "");
        assert(a.code == TOKEN_UNAVAILABLE);
        now += 5 * SEC;
        assert(ask(&a) == 0);
        ANSWER("seven", 1000);
        assert(streq(a.token, "seven"));
}

static void test_versions(void) {
        _cleanup_(service_unrefp) Service *other = make_service("another");
        Asker a = {}, b = {};

        /* A new credential, or a changed definition, is another token. */
        assert(ask_for(&a, svc, version + 1) == 0);
        ANSWER("v2", 1000);
        assert(streq(a.token, "v2"));
        assert(ask_for(&b, other, version + 1) == 0);
        ANSWER("c2", 1000);
        assert(streq(b.token, "c2"));
        assert(ask_for(&a, svc, version + 1) == 1 && streq(a.token, "v2"));

        token_cache_forget(cache, "alice", "md");
        assert(ask_for(&a, svc, version + 1) == 0);
        ANSWER("v2b", 1000);
        assert(streq(a.token, "v2b"));

        /* A credential that cannot be used. */
        fake.refuse = -EINVAL;
        assert(ask_for(&a, svc, version + 7) == 1 && a.code == TOKEN_CREDENTIAL);
        fake.refuse = 0;
}

static void test_end(void) {
        Asker a = {};

        assert(ask_for(&a, svc, 1000) == 0);
        cache = token_cache_free(cache);
        assert(a.n_called == 0 && fake.n_canceled == 1);
}

int main(void) {
        test_answers();

        svc = make_service("agent");
        assert(token_cache_new(&fetcher, &cache) == 0);
        test_single_flight();
        test_refresh();
        test_pause_is_bounded();
        test_invalidate();
        test_versions();
        test_end();
        service_unref(svc);
        return 0;
}
