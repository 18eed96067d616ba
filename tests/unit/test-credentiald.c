/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * Proves over the real protocol that material is given for a live run's own token and a service in its scope,
 * and for nothing else: other run, other attempt, other user, ended run, forged token, service out of scope,
 * no credential, unfit credential, a peer that is not the bridge. The caller is a child process.
 */

#undef NDEBUG

#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>

#include "basic/fs-util.h"
#include "basic/json-util.h"
#include "basic/string-util.h"
#include "credentiald.h"

#define CANARY "s3cr3t-canary-0123456789"

static char directory[] = "/tmp/test-credentiald-XXXXXX";
static char *keys_dir, *live_dir, *store_dir, *socket_path;
static Credentiald daemon_state;
static SigningKey *key, *other_key;
static bool answer_fetch = true;
static void *pending; /* the fake's */
static token_fetched_t pending_fetched;
static unsigned n_fetches;

typedef struct Run {
        char id[RUN_ID_LEN + 1], jti[RUN_ID_LEN + 1];
        char *token;
} Run;

static Run alice_run, bob_run, ended_run;

static uint64_t now_sec(void) {
        return (uint64_t) time(NULL);
}

static char *mint(const SigningKey *k, const Run *r, const char *user, const char *jti) {
        RunClaims c = { .user = (char *) user,
                        .agent = (char *) "analyst",
                        .iat = now_sec(),
                        .nbf = now_sec(),
                        .exp = now_sec() + 600 };
        char *t = NULL;

        memcpy(c.run, r->id, sizeof(c.run));
        memcpy(c.jti, jti, sizeof(c.jti));
        assert(run_token_mint(k, &c, &t) == 0);
        return t;
}

static void add_service(LiveRun *l, const char *name, const char *auth) {
        _cleanup_free_ char *text =
                strprintf("{\"name\":\"%s\",\"base_url\":\"https://h\",\"allow\":[],\"auth\":%s}", name, auth);
        _cleanup_(service_unrefp) Service *s = NULL;

        assert(service_parse(text, strlen(text), 0, &s, NULL) == 0);
        assert(live_run_add_service(l, s) == 0);
}

static void make_run(Run *r, const char *user) {
        _cleanup_(live_run_unrefp) LiveRun *l = NULL;

        assert(run_id_new(r->id) == 0 && run_token_new_jti(r->jti) == 0);
        assert(live_run_new(&l) == 0);
        memcpy(l->run, r->id, sizeof(l->run));
        memcpy(l->jti, r->jti, sizeof(l->jti));
        l->user = strdup(user);
        l->uid = 1000;
        l->agent = strdup("analyst");
        l->deadline_usec = (now_sec() + 540) * USEC_PER_SEC;
        add_service(l, "bearer", "{\"kind\":\"bearer\"}");
        add_service(l, "empty", "{\"kind\":\"bearer\"}");
        add_service(l, "open", "{\"kind\":\"none\"}");
        add_service(l, "unfit", "{\"kind\":\"basic\"}");
        add_service(l, "oauth",
                    "{\"kind\":\"oauth2-client-credentials\",\"token_url\":\"https://i/t\",\"client_id\":\"x\"}");
        assert(live_run_write(live_dir, l, (gid_t) -1) == 0);
        r->token = mint(key, r, user, r->jti);
}

/* ---- a token endpoint ---- */

static int on_fetch(sd_event_source *s, void *userdata) {
        static const char body[] = "{\"access_token\":\"access-token-1\",\"expires_in\":600}";

        pending_fetched(200, body, strlen(body), TOKEN_OK, NULL, userdata);
        return 0;
}

static int fake_start(void *context, const TokenKey *k, token_fetched_t fetched, void *userdata, void **ret) {
        n_fetches++;
        pending = userdata;
        pending_fetched = fetched;
        *ret = userdata;
        return answer_fetch ? sd_event_add_defer(daemon_state.event, NULL, on_fetch, userdata) : 0;
}

static void fake_cancel(void *handle) {
        pending = NULL;
}

/* ---- the caller ---- */

static sd_varlink *vl_link;

static sd_json_variant *get_full(const char *run, const char *service, const char *token, const char *expected_error) {
        sd_json_variant *reply = NULL;
        const char *error = NULL;

        assert(sd_varlink_callbo(vl_link, "org.agentd1.Material.Get", &reply, &error,
                                 SD_JSON_BUILD_PAIR_STRING("run", run), SD_JSON_BUILD_PAIR_STRING("service", service),
                                 SD_JSON_BUILD_PAIR_STRING("token", token)) >= 0);
        if (!streq_ptr(error, expected_error))
                fprintf(stderr, "%s: got %s, expected %s\n", service, strempty(error), strempty(expected_error));
        assert(streq_ptr(error, expected_error));

        /* Whatever is refused, no secret is in the words. */
        if (error && reply) {
                _cleanup_free_ char *text = NULL;

                assert(sd_json_variant_format(reply, 0, &text) >= 0 && !strstr(text, CANARY) && !strstr(text, "eyJ"));
        }
        return reply;
}

static void refused(const char *run, const char *service, const char *token, const char *error) {
        _cleanup_free_ char *name = strprintf("org.agentd1.Material.%s", error);
        get_full(run, service, token, name);
}

static void given(const char *service, const char *value) {
        sd_json_variant *v = get_full(alice_run.id, service, alice_run.token, NULL), *headers, *redact;

        headers = sd_json_variant_by_key(v, "headers");
        redact = sd_json_variant_by_key(v, "redact");
        assert(sd_json_variant_is_array(headers) && sd_json_variant_is_array(redact));
        if (!value) {
                assert(sd_json_variant_elements(headers) == 0 && sd_json_variant_elements(redact) == 0);
                return;
        }
        assert(sd_json_variant_elements(headers) == 1 && sd_json_variant_elements(redact) == 1);
        assert(streq(json_string(sd_json_variant_by_index(headers, 0), "name"), "authorization"));
        assert(streq(json_string(sd_json_variant_by_index(headers, 0), "value"), value));
}

static void caller(void) {
        _cleanup_free_ char *forged = mint(other_key, &alice_run, "alice", alice_run.jti),
                            *stale = mint(key, &alice_run, "alice", bob_run.jti),
                            *as_bob = mint(key, &alice_run, "bob", alice_run.jti);
        const char *error = NULL;
        sd_json_variant *reply = NULL, *v;

        assert(sd_varlink_connect_address(&vl_link, socket_path) >= 0);

        given("bearer", "Bearer " CANARY);
        given("open", NULL);
        given("oauth", "Bearer access-token-1");
        given("oauth", "Bearer access-token-1");

        refused(alice_run.id, "empty", alice_run.token, "NoCredential");
        refused(alice_run.id, "unfit", alice_run.token, "CredentialUnusable");
        refused(alice_run.id, "other", alice_run.token, "ServiceNotInScope");
        refused(alice_run.id, "../bearer", alice_run.token, "ServiceNotInScope");

        /* Bob's run names the same service, and Bob has no credential: Alice's is not his. */
        refused(bob_run.id, "bearer", bob_run.token, "NoCredential");

        refused(bob_run.id, "bearer", alice_run.token, "TokenRefused");
        refused(alice_run.id, "bearer", bob_run.token, "TokenRefused");
        refused(alice_run.id, "bearer", forged, "TokenRefused");
        refused(alice_run.id, "bearer", stale, "TokenRefused");
        refused(alice_run.id, "bearer", as_bob, "TokenRefused");
        refused(alice_run.id, "bearer", "", "TokenRefused");
        refused(alice_run.id, "bearer", "eyJhbGciOiJub25lIn0.e30.", "TokenRefused");
        refused(ended_run.id, "bearer", ended_run.token, "TokenRefused");
        refused("../../etc/passwd", "bearer", alice_run.token, "TokenRefused");
        refused("", "bearer", alice_run.token, "TokenRefused");

        /* Wrong parameters. */
        assert(sd_varlink_callbo(vl_link, "org.agentd1.Material.Get", &reply, &error,
                                 SD_JSON_BUILD_PAIR_STRING("run", alice_run.id)) >= 0);
        assert(streq_ptr(error, SD_VARLINK_ERROR_INVALID_PARAMETER));
        assert(sd_varlink_call(vl_link, "org.agentd1.Material.Dump", NULL, &reply, &error) >= 0);
        assert(streq_ptr(error, SD_VARLINK_ERROR_METHOD_NOT_FOUND));

        /* Invalidate: by number, and it must be of the present one. */
        v = get_full(alice_run.id, "oauth", alice_run.token, NULL);
        assert(sd_varlink_callbo(vl_link, "org.agentd1.Material.Invalidate", &reply, &error,
                                 SD_JSON_BUILD_PAIR_STRING("run", alice_run.id),
                                 SD_JSON_BUILD_PAIR_STRING("service", "oauth"),
                                 SD_JSON_BUILD_PAIR_STRING("token", alice_run.token),
                                 SD_JSON_BUILD_PAIR_UNSIGNED("generation",
                                                             sd_json_variant_unsigned(
                                                                     sd_json_variant_by_key(v, "generation")))) >= 0);
        assert(!error);
        given("oauth", "Bearer access-token-1");
        v = get_full(alice_run.id, "oauth", alice_run.token, NULL);
        assert(sd_json_variant_unsigned(sd_json_variant_by_key(v, "generation")) == 2);
        assert(sd_varlink_callbo(vl_link, "org.agentd1.Material.Invalidate", &reply, &error,
                                 SD_JSON_BUILD_PAIR_STRING("run", alice_run.id),
                                 SD_JSON_BUILD_PAIR_STRING("service", "oauth"),
                                 SD_JSON_BUILD_PAIR_STRING("token", bob_run.token)) >= 0);
        assert(streq_ptr(error, "org.agentd1.Material.TokenRefused"));

        sd_varlink_close_unref(vl_link);
}

/* Not the bridge: not a word. */
static void stranger(void) {
        sd_json_variant *reply = NULL;
        const char *error = NULL;
        int r;

        if (sd_varlink_connect_address(&vl_link, socket_path) < 0)
                return;
        r = sd_varlink_callbo(vl_link, "org.agentd1.Material.Get", &reply, &error,
                              SD_JSON_BUILD_PAIR_STRING("run", alice_run.id),
                              SD_JSON_BUILD_PAIR_STRING("service", "bearer"),
                              SD_JSON_BUILD_PAIR_STRING("token", alice_run.token));
        assert(r < 0 || error);
        sd_varlink_close_unref(vl_link);
}

/* Waits for a token while its run ends. */
static void patient(void) {
        assert(sd_varlink_connect_address(&vl_link, socket_path) >= 0);
        refused(alice_run.id, "oauth", alice_run.token, "TokenRefused");
        sd_varlink_close_unref(vl_link);
}

/* Goes away while it waits. */
static void impatient(void) {
        assert(sd_varlink_connect_address(&vl_link, socket_path) >= 0);
        assert(sd_varlink_invokebo(vl_link, "org.agentd1.Material.Get", SD_JSON_BUILD_PAIR_STRING("run", alice_run.id),
                                   SD_JSON_BUILD_PAIR_STRING("service", "oauth"),
                                   SD_JSON_BUILD_PAIR_STRING("token", alice_run.token)) >= 0);
        assert(sd_varlink_flush(vl_link) >= 0);
        sd_varlink_close_unref(vl_link);
}

static pid_t spawn(void (*f)(void)) {
        pid_t pid = fork();

        assert(pid >= 0);
        if (pid == 0) {
                prctl(PR_SET_PDEATHSIG, SIGKILL);
                alarm(60);
                f();
                _exit(0);
        }
        return pid;
}

static bool done;

static int on_child_done(sd_event_source *s, const siginfo_t *si, void *userdata) {
        assert(si->si_code == CLD_EXITED && si->si_status == 0);
        done = true;
        return 0;
}

static void run_until(bool (*condition)(void)) {
        while (!condition())
                assert(sd_event_run(daemon_state.event, 20 * USEC_PER_SEC) > 0);
}

static bool is_done(void) {
        return done;
}
static bool is_pending(void) {
        return pending;
}
static bool nobody_waits(void) {
        return daemon_state.n_requests == 0;
}

static void run_child(void (*f)(void)) {
        done = false;
        assert(sd_event_add_child(daemon_state.event, NULL, spawn(f), WEXITED, on_child_done, NULL) >= 0);
        run_until(is_done);
}

static int listen_on(const char *path) {
        struct sockaddr_un sa = { .sun_family = AF_UNIX };
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

        strcpy(sa.sun_path, path);
        assert(fd >= 0 && bind(fd, (struct sockaddr *) &sa, sizeof(sa)) == 0 && listen(fd, 16) == 0);
        return fd;
}

static void set_credential(const char *user, const char *service, SealForm form, const char *text) {
        _cleanup_(secret_freep) Secret *s = NULL;

        assert(secret_new_from(text, strlen(text), &s) == 0);
        assert(credential_store_set(daemon_state.store, user, service, form, s) == 0);
}

int main(void) {
        _cleanup_free_ char *path = NULL;
        Credentiald *c = &daemon_state;
        Secret *sealing = NULL;
        TokenFetcher fetcher = { .start = fake_start, .cancel = fake_cancel };
        sigset_t mask;

        assert(mkdtemp(directory));
        keys_dir = strprintf("%s/keys", directory);
        live_dir = strprintf("%s/live", directory);
        store_dir = strprintf("%s/store", directory);
        socket_path = strprintf("%s/socket", directory);
        assert(mkdir(keys_dir, 0700) == 0 && mkdir(live_dir, 0700) == 0 && mkdir(store_dir, 0700) == 0);
        assert(sigemptyset(&mask) == 0 && sigaddset(&mask, SIGCHLD) == 0 && sigprocmask(SIG_BLOCK, &mask, NULL) == 0);

        assert(signing_key_generate(&key) == 0 && signing_key_generate(&other_key) == 0);
        path = strprintf("%s/%s.pem", keys_dir, signing_key_kid(key));
        assert(write_file_atomic(AT_FDCWD, path, signing_key_public_pem(key), strlen(signing_key_public_pem(key)), 0644,
                                 (uid_t) -1, (gid_t) -1, 0) == 0);

        assert(sd_event_default(&c->event) >= 0);
        assert(key_set_load(keys_dir, &c->keys) == 0 && live_cache_new(live_dir, &c->live) == 0);
        assert(secret_new(SEAL_KEY_SIZE, &sealing) == 0 && credential_store_open(store_dir, sealing, &c->store) == 0);
        assert(token_cache_new(&fetcher, &c->tokens) == 0);
        c->bridge_uid = geteuid();
        assert(credentiald_varlink_startup(c, listen_on(socket_path)) == 0);

        set_credential("alice", "bearer", SEAL_FORM_TEXT, CANARY);
        set_credential("alice", "unfit", SEAL_FORM_TEXT, CANARY);
        set_credential("alice", "oauth", SEAL_FORM_TEXT, CANARY);
        make_run(&alice_run, "alice");
        make_run(&bob_run, "bob");
        make_run(&ended_run, "alice");
        assert(live_run_remove(live_dir, ended_run.id) == 0);

        run_child(caller);
        assert(n_fetches == 2); /* the first, and the one after Invalidate */

        c->bridge_uid = geteuid() + 1;
        run_child(stranger);
        c->bridge_uid = geteuid();

        /* A new credential, and an endpoint that takes its time. */
        answer_fetch = false;
        pending = NULL;
        set_credential("alice", "oauth", SEAL_FORM_TEXT, CANARY "2");
        run_child(impatient);
        run_until(is_pending);
        run_until(nobody_waits);
        assert(n_fetches == 3 && pending); /* it goes on without those who asked */

        done = false;
        assert(sd_event_add_child(c->event, NULL, spawn(patient), WEXITED, on_child_done, NULL) >= 0);
        while (c->n_requests == 0)
                assert(sd_event_run(c->event, 20 * USEC_PER_SEC) > 0);
        assert(n_fetches == 3);
        assert(live_run_remove(live_dir, alice_run.id) == 0);
        pending_fetched(200, "{\"access_token\":\"x\"}", strlen("{\"access_token\":\"x\"}"), TOKEN_OK, NULL, pending);
        run_until(is_done);

        credentiald_varlink_stop(c);
        token_cache_free(c->tokens);
        live_cache_free(c->live);
        key_set_free(c->keys);
        credential_store_free(c->store);
        sd_event_unref(c->event);
        signing_key_free(key);
        signing_key_free(other_key);
        free(alice_run.token);
        free(bob_run.token);
        free(ended_run.token);
        assert(rm_rf_at(AT_FDCWD, directory) == 0);
        free(keys_dir);
        free(live_dir);
        free(store_dir);
        free(socket_path);
        return 0;
}
