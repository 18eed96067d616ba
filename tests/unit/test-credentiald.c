/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * Proves over the real protocol that material is given for a live run's own token and a service in its scope,
 * and for nothing else: other run, other attempt, other user, ended run, forged token, service out of scope,
 * no credential, unfit credential, a peer that is not the bridge. The caller is a child process.
 */

#undef NDEBUG

#include <fcntl.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>

#include "basic/fs-util.h"
#include "basic/json-util.h"
#include "basic/string-util.h"
#include "credentiald.h"
#include "material/material-wire.h"

#define LARGE 20000U
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
        add_service(l, "large", "{\"kind\":\"bearer\"}");
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

static int link_fd = -EBADF;
static uint64_t cookie;
static char buffer[MATERIAL_ANSWER_MAX];

static bool link_open(void) {
        struct sockaddr_un sa = { .sun_family = AF_UNIX };

        link_fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        strcpy(sa.sun_path, socket_path);
        assert(link_fd >= 0);
        return connect(link_fd, (struct sockaddr *) &sa, sizeof(sa)) == 0;
}

static void link_close(void) {
        link_fd = safe_close(link_fd);
}

static void ask(MaterialVerb verb, const char *run, const char *service, const char *token, uint64_t generation) {
        char packet[MATERIAL_QUESTION_MAX];
        MaterialQuestion q = {
                .verb = verb,
                .cookie = ++cookie,
                .generation = generation,
                .run = run,
                .service = service,
                .token = token,
        };
        ssize_t n = material_question_encode(&q, packet, sizeof(packet));

        assert(n > 0 && send(link_fd, packet, (size_t) n, MSG_NOSIGNAL) == n);
}

/* The strings are good until the next one. */
static MaterialAnswer hear(void) {
        ssize_t n = recv(link_fd, buffer, sizeof(buffer), 0);
        MaterialAnswer a[MATERIAL_BATCH_MAX];

        assert(n > 0 && material_answers_decode(buffer, (size_t) n, a) == 1);
        /* Whatever is refused, no secret is in the words. */
        assert(a[0].status == MATERIAL_OK || (!memmem(buffer, (size_t) n, CANARY, strlen(CANARY)) &&
                                              !memmem(buffer, (size_t) n, "eyJ", 3)));
        return a[0];
}

static MaterialAnswer get_full(const char *run, const char *service, const char *token, MaterialStatus expected) {
        ask(MATERIAL_GET, run, service, token, 0);
        MaterialAnswer a = hear();

        if (a.status != expected)
                fprintf(stderr, "%s: got %d, expected %d\n", service, (int) a.status, (int) expected);
        assert(a.status == expected && a.cookie == cookie);
        return a;
}

static void refused(const char *run, const char *service, const char *token, MaterialStatus status) {
        (void) get_full(run, service, token, status);
}

static void given(const char *service, const char *value) {
        MaterialAnswer a = get_full(alice_run.id, service, alice_run.token, MATERIAL_OK);

        if (!value) {
                assert(a.n_headers == 0 && a.n_redact == 0);
                return;
        }
        assert(a.n_headers == 1 && a.n_redact == 1);
        assert(streq(a.headers[0].name, "authorization") && streq(a.headers[0].value, value));
        assert(strstr(value, a.redact[0]));
}

/* What makes no sense ends the connection, and that one alone. */
static void senseless(const void *packet, size_t size) {
        int good = link_fd;
        char c;

        assert(link_open());
        assert(send(link_fd, packet, size, MSG_NOSIGNAL) == (ssize_t) size);
        assert(recv(link_fd, &c, 1, 0) <= 0);
        link_close();
        link_fd = good;
        given("bearer", "Bearer " CANARY);
}

static size_t add_question(char *packet, size_t at, const char *run, const char *service, const char *token) {
        MaterialQuestion q = {
                .verb = MATERIAL_GET, .cookie = ++cookie, .run = run, .service = service, .token = token,
        };
        ssize_t n = material_question_encode(&q, packet + at, MATERIAL_QUESTION_MAX - at);

        assert(n > 0);
        return at + (size_t) n;
}

/* Several in one packet: each is judged by itself, and answered together with the others. */
static void several(void) {
        char packet[MATERIAL_QUESTION_MAX];
        MaterialAnswer a[MATERIAL_BATCH_MAX];
        uint64_t first = cookie + 1;
        size_t n = 0;

        n = add_question(packet, n, alice_run.id, "bearer", alice_run.token);
        n = add_question(packet, n, alice_run.id, "other", alice_run.token);
        n = add_question(packet, n, bob_run.id, "bearer", alice_run.token);
        n = add_question(packet, n, bob_run.id, "bearer", bob_run.token);
        n = add_question(packet, n, alice_run.id, "bearer", alice_run.token);
        assert(send(link_fd, packet, n, MSG_NOSIGNAL) == (ssize_t) n);
        ssize_t k = recv(link_fd, buffer, sizeof(buffer), 0);
        assert(k > 0 && material_answers_decode(buffer, (size_t) k, a) == 5);
        static const MaterialStatus expected[] = { MATERIAL_OK, MATERIAL_NOT_IN_SCOPE, MATERIAL_TOKEN_REFUSED,
                                                   MATERIAL_NO_CREDENTIAL, MATERIAL_OK };
        for (size_t i = 0; i < ELEMENTSOF(expected); i++) {
                assert(a[i].cookie == first + i && a[i].status == expected[i]);
                assert(a[i].n_headers == (expected[i] == MATERIAL_OK ? 1 : 0));
                assert(a[i].n_headers == 0 || streq(a[i].headers[0].value, "Bearer " CANARY));
        }

        /* What makes no sense at the end has nothing before it answered; nor have more than there may be. */
        n = add_question(packet, 0, alice_run.id, "bearer", alice_run.token);
        memset(packet + n, 0, 64);
        senseless(packet, n + 64);
        n = 0;
        for (unsigned i = 0; i <= MATERIAL_BATCH_MAX; i++)
                n = add_question(packet, n, alice_run.id, "bearer", "x");
        senseless(packet, n);
}

static void caller(void) {
        _cleanup_free_ char *forged = mint(other_key, &alice_run, "alice", alice_run.jti),
                            *stale = mint(key, &alice_run, "alice", bob_run.jti),
                            *as_bob = mint(key, &alice_run, "bob", alice_run.jti);
        MaterialAnswer a;

        assert(link_open());

        given("bearer", "Bearer " CANARY);
        given("bearer", "Bearer " CANARY); /* the one that is open by now */
        given("open", NULL);
        given("oauth", "Bearer access-token-1");
        given("oauth", "Bearer access-token-1");

        refused(alice_run.id, "empty", alice_run.token, MATERIAL_NO_CREDENTIAL);
        refused(alice_run.id, "unfit", alice_run.token, MATERIAL_UNUSABLE);
        refused(alice_run.id, "other", alice_run.token, MATERIAL_NOT_IN_SCOPE);
        refused(alice_run.id, "../bearer", alice_run.token, MATERIAL_NOT_IN_SCOPE);

        /* Bob's run names the same service, and Bob has no credential: Alice's is not his. */
        refused(bob_run.id, "bearer", bob_run.token, MATERIAL_NO_CREDENTIAL);

        refused(bob_run.id, "bearer", alice_run.token, MATERIAL_TOKEN_REFUSED);
        refused(alice_run.id, "bearer", bob_run.token, MATERIAL_TOKEN_REFUSED);
        refused(alice_run.id, "bearer", forged, MATERIAL_TOKEN_REFUSED);
        refused(alice_run.id, "bearer", stale, MATERIAL_TOKEN_REFUSED);
        refused(alice_run.id, "bearer", as_bob, MATERIAL_TOKEN_REFUSED);
        refused(alice_run.id, "bearer", "", MATERIAL_TOKEN_REFUSED);
        refused(alice_run.id, "bearer", "eyJhbGciOiJub25lIn0.e30.", MATERIAL_TOKEN_REFUSED);
        refused(ended_run.id, "bearer", ended_run.token, MATERIAL_TOKEN_REFUSED);
        refused("../../etc/passwd", "bearer", alice_run.token, MATERIAL_TOKEN_REFUSED);
        refused("", "bearer", alice_run.token, MATERIAL_TOKEN_REFUSED);

        /* No packets of ours: too short, with bytes left over, an answer, too long. */
        char packet[MATERIAL_QUESTION_MAX + 1] = {};
        ssize_t n = material_question_encode(&(MaterialQuestion) { .verb = MATERIAL_GET, .run = alice_run.id,
                                                                   .service = "bearer", .token = alice_run.token },
                                             packet, sizeof(packet));
        assert(n > 0);
        senseless(packet, (size_t) n - 1);
        senseless(packet, (size_t) n + 1);
        senseless(packet, 3);
        senseless(packet, sizeof(packet));
        n = material_answer_encode(&(MaterialAnswer) { .status = MATERIAL_NO_CREDENTIAL }, packet, sizeof(packet));
        senseless(packet, (size_t) n);

        several();

        /* Invalidate: by number, and it must be of the present one. */
        a = get_full(alice_run.id, "oauth", alice_run.token, MATERIAL_OK);
        ask(MATERIAL_INVALIDATE, alice_run.id, "oauth", alice_run.token, a.generation);
        assert(hear().status == MATERIAL_OK);
        given("oauth", "Bearer access-token-1");
        a = get_full(alice_run.id, "oauth", alice_run.token, MATERIAL_OK);
        assert(a.generation == 2);
        ask(MATERIAL_INVALIDATE, alice_run.id, "oauth", bob_run.token, 0);
        assert(hear().status == MATERIAL_TOKEN_REFUSED);

        link_close();
}

/* A credential that is open does not outlive its file, nor a newer one. */
static void caller_of_new(void) {
        assert(link_open());
        given("bearer", "Bearer " CANARY "-new");
        link_close();
}

static void caller_of_none(void) {
        assert(link_open());
        refused(alice_run.id, "bearer", alice_run.token, MATERIAL_NO_CREDENTIAL);
        link_close();
}

/* Not the bridge: not a word. */
static void stranger(void) {
        char packet[MATERIAL_QUESTION_MAX], c;
        ssize_t n = material_question_encode(&(MaterialQuestion) { .verb = MATERIAL_GET, .run = alice_run.id,
                                                                   .service = "bearer", .token = alice_run.token },
                                             packet, sizeof(packet));

        if (!link_open())
                return;
        (void) send(link_fd, packet, (size_t) n, MSG_NOSIGNAL);
        assert(recv(link_fd, &c, 1, 0) <= 0);
        link_close();
}

/* Waits for a token while its run ends. */
static void patient(void) {
        assert(link_open());
        refused(alice_run.id, "oauth", alice_run.token, MATERIAL_TOKEN_REFUSED);
        link_close();
}

/* Goes away while it waits for a token; others on the same connection did not wait with it. */
static void impatient(void) {
        assert(link_open());
        ask(MATERIAL_GET, alice_run.id, "oauth", alice_run.token, 0);
        given("bearer", "Bearer " CANARY "-new");
        link_close();
}

/* Asks for more than the socket takes, and listens when it is told to. */
static int asked[2], listen_now[2];

static void slow_reader(void) {
        char go;

        assert(link_open());
        uint64_t first = cookie + 1;
        for (unsigned i = 0; i < 100; i++)
                ask(MATERIAL_GET, alice_run.id, i % 2 ? "empty" : "large", alice_run.token, 0);
        assert(write(asked[1], "", 1) == 1 && read(listen_now[0], &go, 1) == 1);
        for (unsigned i = 0; i < 100; i++) {
                MaterialAnswer a = hear();
                assert(a.cookie == first + i && a.status == (i % 2 ? MATERIAL_NO_CREDENTIAL : MATERIAL_OK));
                assert(i % 2 || strlen(a.redact[0]) == LARGE);
        }
        link_close();
}

static pid_t spawn(void (*f)(void)) {
        pid_t pid = fork();

        assert(pid >= 0);
        if (pid == 0) {
                prctl(PR_SET_PDEATHSIG, SIGKILL);
                alarm(1200);
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

static int on_asked(sd_event_source *s, int fd, uint32_t revents, void *userdata) {
        done = true;
        return sd_event_source_set_enabled(s, SD_EVENT_OFF);
}

static void run_until(bool (*condition)(void)) {
        while (!condition())
                assert(sd_event_run(daemon_state.event, 600 * USEC_PER_SEC) > 0);
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
        int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

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
        assert(credentiald_material_startup(c, listen_on(socket_path)) == 0);

        set_credential("alice", "bearer", SEAL_FORM_TEXT, CANARY);
        set_credential("alice", "unfit", SEAL_FORM_TEXT, CANARY);
        char large[LARGE + 1] = {};
        memset(large, 'x', LARGE);
        set_credential("alice", "large", SEAL_FORM_TEXT, large);
        set_credential("alice", "oauth", SEAL_FORM_TEXT, CANARY);
        make_run(&alice_run, "alice");
        make_run(&bob_run, "bob");
        make_run(&ended_run, "alice");
        assert(live_run_remove(live_dir, ended_run.id) == 0);

        run_child(caller);
        assert(n_fetches == 2); /* the first, and the one after Invalidate */

        done = false;
        assert(pipe2(asked, O_CLOEXEC) == 0 && pipe2(listen_now, O_CLOEXEC) == 0);
        assert(sd_event_add_child(c->event, NULL, spawn(slow_reader), WEXITED, on_child_done, NULL) >= 0);
        assert(sd_event_add_io(c->event, NULL, asked[0], EPOLLIN, on_asked, NULL) >= 0);
        run_until(is_done);
        done = false;
        while (sd_event_run(c->event, 0) > 0) /* until nothing more can be done */
                ;
        assert(write(listen_now[1], "", 1) == 1);
        run_until(is_done);

        assert(credential_store_remove(c->store, "alice", "bearer") == 0);
        run_child(caller_of_none);
        set_credential("alice", "bearer", SEAL_FORM_TEXT, CANARY "-new");
        run_child(caller_of_new);
        run_child(caller_of_new);
        _cleanup_free_ char *sealed = strprintf("%s/alice/bearer", store_dir),
                            *aside = strprintf("%s/aside", store_dir);
        assert(rename(sealed, aside) == 0); /* by whoever */
        run_child(caller_of_none);
        assert(rename(aside, sealed) == 0);
        run_child(caller_of_new);
        assert(credential_store_forget_unused(c->store)); /* was used just now */
        assert(!credential_store_forget_unused(c->store));

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
                assert(sd_event_run(c->event, 600 * USEC_PER_SEC) > 0);
        assert(n_fetches == 3);
        assert(live_run_remove(live_dir, alice_run.id) == 0);
        pending_fetched(200, "{\"access_token\":\"x\"}", strlen("{\"access_token\":\"x\"}"), TOKEN_OK, NULL, pending);
        run_until(is_done);

        credentiald_material_stop(c);
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
