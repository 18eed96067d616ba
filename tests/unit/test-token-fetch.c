/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * Proves against a real TLS server with a throw-away CA that an access token is fetched by HTTPS with the
 * client's secret in its place, that an unknown CA and an address that is not allowed are refused, and that a
 * hundred who ask at once cause one request.
 */

#undef NDEBUG

#include <arpa/inet.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>

#include "basic/fs-util.h"
#include "basic/string-util.h"
#include "token-fetch.h"

#define SECRET "s3cr3t:with/odd chars"

static char directory[] = "/tmp/test-fetch-XXXXXX";

/* ---- a token endpoint, in a thread ---- */

static struct {
        int fd;
        uint16_t port;
        SSL_CTX *ctx;
        pthread_t thread;
        char request[8192]; /* the last one */
        unsigned n_requests;
        const char *status, *body;
} server;

static EVP_PKEY *key;
static X509 *cert, *other;

static void add_extension(X509 *x, int nid, const char *value) {
        X509V3_CTX ctx;
        X509_EXTENSION *e;

        X509V3_set_ctx_nodb(&ctx);
        X509V3_set_ctx(&ctx, x, x, NULL, NULL, 0);
        e = X509V3_EXT_conf_nid(NULL, &ctx, nid, value);
        assert(e && X509_add_ext(x, e, -1) == 1);
        X509_EXTENSION_free(e);
}

/* Self-signed: CA and server in one. */
static void make_certificate(void) {
        X509_NAME *name;

        key = EVP_EC_gen("P-256");
        cert = X509_new();
        assert(key && cert && X509_set_version(cert, X509_VERSION_3) == 1);
        assert(ASN1_INTEGER_set(X509_get_serialNumber(cert), 1) == 1);
        assert(X509_gmtime_adj(X509_getm_notBefore(cert), -60) && X509_gmtime_adj(X509_getm_notAfter(cert), 3600));
        assert(X509_set_pubkey(cert, key) == 1);
        name = X509_get_subject_name(cert);
        assert(X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, (const unsigned char *) "test", -1, -1, 0) == 1);
        assert(X509_set_issuer_name(cert, name) == 1);
        add_extension(cert, NID_basic_constraints, "critical,CA:TRUE");
        add_extension(cert, NID_subject_key_identifier, "hash");
        add_extension(cert, NID_key_usage, "critical,digitalSignature,keyCertSign");
        add_extension(cert, NID_subject_alt_name, "DNS:localhost,IP:127.0.0.1");
        assert(X509_sign(cert, key, EVP_sha256()) > 0);
}

static void serve_one(int fd) {
        SSL *ssl = SSL_new(server.ctx);
        size_t n = 0;
        char answer[16384];
        int k;

        assert(SSL_set_fd(ssl, fd) == 1);
        if (SSL_accept(ssl) != 1)
                goto end;

        for (;;) {
                char *body, *length;

                k = SSL_read(ssl, server.request + n, (int) (sizeof(server.request) - 1 - n));
                if (k <= 0)
                        goto end;
                n += (size_t) k;
                server.request[n] = 0;
                body = strstr(server.request, "\r\n\r\n");
                length = strcasestr(server.request, "content-length:");
                if (body && length && strlen(body + 4) >= strtoul(length + 15, NULL, 10))
                        break;
        }
        __atomic_add_fetch(&server.n_requests, 1, __ATOMIC_SEQ_CST);
        usleep(100000); /* so that all who ask at once do so while it is under way */

        k = snprintf(answer, sizeof(answer), "HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n"
                                             "Connection: close\r\n\r\n%s",
                     server.status, strlen(server.body), server.body);
        (void) SSL_write(ssl, answer, k);
        (void) SSL_shutdown(ssl);
end:
        SSL_free(ssl);
        close(fd);
}

static void *serve(void *unused) {
        for (;;) {
                int fd = accept4(server.fd, NULL, NULL, SOCK_CLOEXEC);

                if (fd < 0)
                        return NULL;
                serve_one(fd);
        }
}

static void start_server(void) {
        struct sockaddr_in sa = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
        socklen_t n = sizeof(sa);

        server.ctx = SSL_CTX_new(TLS_server_method());
        assert(server.ctx && SSL_CTX_use_certificate(server.ctx, cert) == 1 &&
               SSL_CTX_use_PrivateKey(server.ctx, key) == 1);
        server.fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        assert(server.fd >= 0 && bind(server.fd, (struct sockaddr *) &sa, sizeof(sa)) == 0 &&
               listen(server.fd, 128) == 0);
        assert(getsockname(server.fd, (struct sockaddr *) &sa, &n) == 0);
        server.port = ntohs(sa.sin_port);
        assert(pthread_create(&server.thread, NULL, serve, NULL) == 0);
}

static void stop_server(void) {
        shutdown(server.fd, SHUT_RDWR);
        assert(pthread_join(server.thread, NULL) == 0);
        close(server.fd);
        SSL_CTX_free(server.ctx);
        X509_free(cert);
        X509_free(other);
        EVP_PKEY_free(key);
}

/* ---- the side that is tested ---- */

static sd_event *event;
static CredentialStore *store;

static Service *make_service(const char *extra) {
        _cleanup_free_ char *text = strprintf("{\"name\":\"md\",\"base_url\":\"https://h\",\"allow\":[],\"auth\":{"
                                              "\"kind\":\"oauth2-client-credentials\",\"client_id\":\"agent id\","
                                              "\"token_url\":\"https://localhost:%u/token\"%s}}",
                                              (unsigned) server.port, extra);
        Service *s = NULL;

        assert(service_parse(text, strlen(text), 0, &s, NULL) == 0);
        return s;
}

typedef struct Asker {
        bool done;
        TokenCode code;
        char token[64];
} Asker;

static unsigned n_pending;

static void take(const TokenGrant *g, void *userdata) {
        Asker *a = userdata;

        a->done = true;
        a->code = g->code;
        if (g->code == TOKEN_OK)
                snprintf(a->token, sizeof(a->token), "%s", secret_data(g->token));
        n_pending--;
}

static void ask(TokenCache *c, Service *s, Asker *a) {
        TokenWaiter *w = NULL;
        TokenGrant g;
        SealInfo info;
        int r;

        assert(credential_store_peek(store, "alice", "md", &info) == 0);
        n_pending++;
        r = token_cache_get(c, &(TokenKey) { .user = "alice", .service = s, .version = info.version }, &g, take, a, &w);
        assert(r >= 0);
        if (r == 1)
                take(&g, a);
}

static void run(void) {
        while (n_pending > 0)
                assert(sd_event_run(event, 30 * USEC_PER_SEC) > 0);
}

typedef struct Rig {
        AddressGuard *guard;
        CurlGlue *curl;
        TokenFetchContext context;
        TokenCache *cache;
} Rig;

static void rig_open(Rig *g, const char *ca, bool allow) {
        char *addresses[] = { (char *) "127.0.0.0/8", NULL };
        TokenFetcher f;

        assert(address_guard_new(allow ? addresses : NULL, &g->guard) == 0);
        assert(curl_glue_new(event, &(CurlGlueOptions) { .guard = g->guard, .ca_file = ca }, &g->curl) == 0);
        g->context = (TokenFetchContext) { .store = store, .curl = g->curl };
        f = token_fetch_fetcher(&g->context);
        assert(token_cache_new(&f, &g->cache) == 0);
}

/* What was fetched is asked for again. */
static void rig_forget(Rig *g) {
        TokenFetcher f = token_fetch_fetcher(&g->context);

        token_cache_free(g->cache);
        assert(token_cache_new(&f, &g->cache) == 0);
}

static void rig_close(Rig *g) {
        token_cache_free(g->cache);
        curl_glue_free(g->curl);
        address_guard_free(g->guard);
}

static void test_build(void) {
        _cleanup_(secret_freep) Secret *text = NULL, *json = NULL, *bad = NULL;
        _cleanup_(service_unrefp)
                Service *post = make_service(",\"client_auth\":\"post\",\"scope\":\"a b\",\"audience\":\"x&y\""),
                        *basic = make_service("");
        char *form = NULL, *authorization = NULL;

        assert(secret_new_from(SECRET, strlen(SECRET), &text) == 0);
        assert(secret_new_from("{\"client_secret\":\"a&b=c\"}", 25, &json) == 0);
        assert(secret_new_from("{\"password\":\"a\"}", 16, &bad) == 0);

        assert(token_fetch_build(&post->auth, SEAL_FORM_TEXT, text, &form, &authorization) == 0);
        assert(streq(form, "grant_type=client_credentials&scope=a%20b&audience=x%26y&client_id=agent%20id"
                           "&client_secret=s3cr3t%3Awith%2Fodd%20chars") &&
               !authorization);
        form = secret_string_free(form);

        assert(token_fetch_build(&basic->auth, SEAL_FORM_JSON, json, &form, &authorization) == 0);
        /* base64("agent%20id:a%26b%3Dc") */
        assert(streq(form, "grant_type=client_credentials") &&
               streq(authorization, "Basic YWdlbnQlMjBpZDphJTI2YiUzRGM="));
        form = secret_string_free(form);
        authorization = secret_string_free(authorization);

        assert(token_fetch_build(&basic->auth, SEAL_FORM_JSON, bad, &form, &authorization) == -EINVAL);
}

static void test_fetch(const char *ca) {
        _cleanup_(service_unrefp) Service *s = make_service("");
        Asker a[100] = {}, b = {};
        Rig g = {};

        server.status = "200 OK";
        server.body = "{\"access_token\":\"tok-1\",\"token_type\":\"Bearer\",\"expires_in\":600}";
        rig_open(&g, ca, true);
        for (size_t i = 0; i < ELEMENTSOF(a); i++)
                ask(g.cache, s, a + i);
        run();
        for (size_t i = 0; i < ELEMENTSOF(a); i++)
                assert(a[i].done && a[i].code == TOKEN_OK && streq(a[i].token, "tok-1"));
        assert(server.n_requests == 1);
        assert(startswith(server.request, "POST /token HTTP/1.1\r\n"));
        assert(strcasestr(server.request, "\r\nauthorization: Basic "));
        assert(!strstr(server.request, "s3cr3t"));
        assert(endswith(server.request, "\r\n\r\ngrant_type=client_credentials"));

        ask(g.cache, s, &b);
        assert(b.done && server.n_requests == 1);
        rig_close(&g);
}

static void expect(const char *ca, bool allow, TokenCode code) {
        _cleanup_(service_unrefp) Service *s = make_service("");
        Asker a = {};
        Rig g = {};

        rig_open(&g, ca, allow);
        ask(g.cache, s, &a);
        run();
        if (a.code != code)
                fprintf(stderr, "expected %s, got %s\n", token_code_to_string(code), token_code_to_string(a.code));
        assert(a.done && a.code == code);
        rig_close(&g);
}

static void test_failures(const char *ca) {
        unsigned n;

        server.status = "401 Unauthorized";
        server.body = "{\"error\":\"invalid_client\"}";
        expect(ca, true, TOKEN_REFUSED);
        server.status = "500 Oops";
        expect(ca, true, TOKEN_UNAVAILABLE);
        server.status = "302 Found\r\nLocation: https://localhost/elsewhere";
        expect(ca, true, TOKEN_BAD_ANSWER);
        server.status = "200 OK";
        server.body = "";
        expect(ca, true, TOKEN_BAD_ANSWER);

        n = server.n_requests;
        server.body = "{\"access_token\":\"tok\"}";
        expect(NULL, true, TOKEN_UNAVAILABLE); /* nobody vouches for the server: no secret is sent */
        expect(ca, false, TOKEN_NOT_ALLOWED);  /* loopback is not for everybody */
        assert(server.n_requests == n);
}

/* Two that trust differently, side by side and one after the other: neither has what the other trusts, though all
 * connections of each have much in common. */
static void test_trust_apart(const char *ca) {
        _cleanup_(service_unrefp) Service *s = make_service("");
        Rig trusting = {}, strict = {};

        server.status = "200 OK";
        server.body = "{\"access_token\":\"tok\"}"; /* good for this once */
        rig_open(&trusting, ca, true);
        rig_open(&strict, NULL, true);
        for (unsigned i = 0; i < 3; i++) {
                Asker a = {}, b = {};
                unsigned n = server.n_requests;

                ask(i == 1 ? strict.cache : trusting.cache, s, i == 1 ? &b : &a);
                ask(i == 1 ? trusting.cache : strict.cache, s, i == 1 ? &a : &b);
                run();
                assert(a.done && a.code == TOKEN_OK && b.done && b.code == TOKEN_UNAVAILABLE);
                assert(server.n_requests == n + 1);
                rig_forget(&trusting);
                rig_forget(&strict);
        }

        /* The administrator takes it back: what was trusted is not any more, by the next connection that shows who it
         * is (and does not just go on with a session of one that did). */
        assert(SSL_CTX_set_num_tickets(server.ctx, 0) == 1);
        for (unsigned i = 0; i < 3; i++) {
                Asker used = {};

                rig_forget(&trusting);
                ask(trusting.cache, s, &used);
                run();
                assert(used.done && used.code == TOKEN_OK);
        }
        _cleanup_free_ char *aside = strprintf("%s.aside", ca);
        assert(rename(ca, aside) == 0);
        FILE *f = fopen(ca, "we");
        assert(f && PEM_write_X509(f, other) == 1 && fclose(f) == 0);
        Asker a = {};
        rig_forget(&trusting);
        ask(trusting.cache, s, &a);
        run();
        assert(a.done && a.code == TOKEN_UNAVAILABLE);
        assert(rename(aside, ca) == 0);
        assert(SSL_CTX_set_num_tickets(server.ctx, 2) == 1);
        rig_close(&trusting);
        rig_close(&strict);
}

/* Whoever asked has gone, and everything with it, while the request is under way. */
static void test_cancel(const char *ca) {
        _cleanup_(service_unrefp) Service *s = make_service("");
        Asker a = {};
        Rig g = {};

        rig_open(&g, ca, true);
        ask(g.cache, s, &a);
        for (unsigned i = 0; i < 5; i++)
                assert(sd_event_run(event, 20000) >= 0);
        rig_close(&g);
        n_pending = 0;
}

int main(void) {
        _cleanup_free_ char *ca = NULL;
        _cleanup_(secret_freep) Secret *credential = NULL;
        Secret *sealing = NULL;

        signal(SIGPIPE, SIG_IGN);
        assert(mkdtemp(directory));
        ca = strprintf("%s/ca.pem", directory);
        make_certificate();
        other = TAKE_PTR(cert); /* of the same name, by another key */
        EVP_PKEY_free(key);
        make_certificate();
        FILE *f = fopen(ca, "we");
        assert(f && PEM_write_X509(f, cert) == 1 && fclose(f) == 0);
        start_server();

        assert(sd_event_default(&event) >= 0);
        assert(secret_new(SEAL_KEY_SIZE, &sealing) == 0);
        assert(credential_store_open(directory, sealing, &store) == 0);
        assert(secret_new_from(SECRET, strlen(SECRET), &credential) == 0);
        assert(credential_store_set(store, "alice", "md", SEAL_FORM_TEXT, credential) == 0);

        test_build();
        test_fetch(ca);
        test_failures(ca);
        test_trust_apart(ca);
        test_cancel(ca);

        credential_store_free(store);
        sd_event_unref(event);
        stop_server();
        assert(rm_rf_at(AT_FDCWD, directory) == 0);
        return 0;
}
