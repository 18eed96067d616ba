/* SPDX-License-Identifier: LGPL-2.1-or-later */
#undef NDEBUG

/* Proves, against our own server in the same loop, that transfers run in sd-event, that the guard is asked, that
 * no redirect is followed, no proxy of the environment used and no path rewritten, that pausing bounds memory, and
 * that the fetch holds its limits. */

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "curl/http-fetch.h"
#include "http/http-server.h"

static sd_event *event;
static unsigned n_running, n_requests;
static uint16_t port;
static char last_request[4096], collected[4096];

static void note_body(HttpRequest *req, const char *data, size_t size, void *userdata) {
        static const HttpField fields[] = { { "Content-Type", "application/json" } };

        assert(data && size < sizeof(collected));
        memcpy(collected, data, size);
        collected[size] = 0;
        http_request_set_ops(req, NULL, NULL);
        assert(http_response_send(req, 201, fields, 1, "{\"access_token\":\"x\"}", 20) == 0);
}

static void flow(HttpRequest *req, void *userdata) {
        static char block[4096];

        while (http_response_writable(req))
                if (http_response_write(req, block, sizeof(block)) < 0)
                        return;
}

static void handler(HttpRequest *req, void *userdata) {
        static const HttpRequestOps flowing = { .writable = flow };
        const HttpHead *h = http_request_head(req);
        char *p = last_request;

        n_requests++;
        p += sprintf(p, "%s %s?%s\n", h->method, h->path, strempty(h->query));
        for (size_t i = 0; i < h->n_fields; i++)
                p += sprintf(p, "%s: %s\n", h->fields[i].name, h->fields[i].value);

        if (streq(h->path, "/redirect")) {
                static const HttpField fields[] = { { "Location", "/elsewhere" } };
                assert(http_response_send(req, 302, fields, 1, NULL, 0) == 0);
        } else if (streq(h->path, "/flow")) {
                http_request_set_ops(req, &flowing, NULL);
                assert(http_response_start(req, 200, NULL, 0, HTTP_LENGTH_UNKNOWN) == 0);
                flow(req, NULL);
        } else if (streq(h->path, "/token"))
                assert(http_request_collect(req, 4000, note_body, NULL) == 0);
        else if (streq(h->path, "/silent"))
                ;
        else
                assert(http_response_send(req, 200, NULL, 0, "hello", 5) == 0);
}

typedef struct Got {
        CURLcode code;
        long status;
        size_t size;
        bool paused, refused;
        CurlTransfer *transfer;
} Got;

static size_t take(char *data, size_t size, size_t n, void *userdata) {
        Got *g = userdata;

        if (g->paused)
                return CURL_WRITEFUNC_PAUSE;
        g->size += n;
        return n;
}

static void done(CurlTransfer *t, CURLcode code, void *userdata) {
        Got *g = userdata;

        g->code = code;
        g->refused = curl_transfer_refused(t);
        curl_easy_getinfo(curl_transfer_handle(t), CURLINFO_RESPONSE_CODE, &g->status);
        g->transfer = curl_transfer_free(t);
        n_running--;
}

static void start(CurlGlue *g, const char *path, Got *got) {
        char url[256];

        snprintf(url, sizeof(url), "http://127.0.0.1:%u%s", port, path);
        got->code = CURLE_FAILED_INIT;
        assert(curl_transfer_new(g, url, &got->transfer) == 0);
        curl_easy_setopt(curl_transfer_handle(got->transfer), CURLOPT_WRITEFUNCTION, take);
        curl_easy_setopt(curl_transfer_handle(got->transfer), CURLOPT_WRITEDATA, got);
        assert(curl_transfer_start(got->transfer, done, got) == 0);
        n_running++;
}

static void run(void) {
        while (n_running > 0)
                assert(sd_event_run(event, UINT64_MAX) >= 0);
}

static Got get(CurlGlue *g, const char *path) {
        Got got = {};

        start(g, path, &got);
        run();
        return got;
}

static HttpFetchResult fetched;

static void on_fetched(const HttpFetchResult *r, void *userdata) {
        HttpFetch **f = userdata;

        fetched = *r;
        if (r->code == CURLE_OK && r->status == 201) {
                assert(streq(r->body, "{\"access_token\":\"x\"}") && r->size == 20);
                assert(streq(r->content_type, "application/json"));
        }
        fetched.body = fetched.content_type = NULL;
        *f = http_fetch_free(*f);
        n_running--;
}

static void fetch(CurlGlue *g, const char *path, uint64_t timeout) {
        _cleanup_free_ char *form = NULL;
        static HttpFetch *f;
        char url[256];

        assert(http_fetch_form_append(&form, "grant_type", "client_credentials") == 0);
        assert(http_fetch_form_append(&form, "scope", "a b&c=d+\xc3\xa9") == 0);
        snprintf(url, sizeof(url), "http://127.0.0.1:%u%s", port, path);
        assert(http_fetch_start(g, &(HttpFetchRequest) { .url = url, .form = form, .authorization = "Basic eA==",
                                                         .timeout_usec = timeout },
                                on_fetched, &f, &f) == 0);
        n_running++;
        run();
}

/* More at once than connections are made at once, some of which are given up while they wait. And a server that never
 * says a word does not hold up others. */
static void test_many(CurlGlue *g) {
        static Got got[120];
        struct sockaddr_in sa = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
        socklen_t len = sizeof(sa);
        char url[64];

        for (size_t i = 0; i < ELEMENTSOF(got); i++)
                start(g, "/", got + i);
        for (size_t i = 0; i < ELEMENTSOF(got); i += 3) {
                got[i].transfer = curl_transfer_free(got[i].transfer);
                n_running--;
        }
        run();
        for (size_t i = 0; i < ELEMENTSOF(got); i++)
                assert(i % 3 == 0 || (got[i].code == CURLE_OK && got[i].status == 200));

        int silent = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        assert(silent >= 0 && bind(silent, (struct sockaddr *) &sa, sizeof(sa)) == 0 && listen(silent, 128) == 0);
        assert(getsockname(silent, (struct sockaddr *) &sa, &len) == 0);
        snprintf(url, sizeof(url), "https://127.0.0.1:%u/", ntohs(sa.sin_port));
        for (size_t i = 0; i < 60; i++) {
                assert(curl_transfer_new(g, url, &got[i].transfer) == 0);
                assert(curl_transfer_start(got[i].transfer, done, got + i) == 0);
        }
        for (size_t i = 60; i < ELEMENTSOF(got); i++)
                start(g, "/", got + i);
        run();
        for (size_t i = 60; i < ELEMENTSOF(got); i++)
                assert(got[i].code == CURLE_OK && got[i].status == 200);
        for (size_t i = 0; i < 60; i++)
                got[i].transfer = curl_transfer_free(got[i].transfer);
        safe_close(silent);
}

int main(void) {
        AddressGuard *guard;
        HttpServer *server;
        HttpListener *listener;
        CurlGlue *glue, *strict, *tls_only;
        struct sockaddr_in sa = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
        socklen_t len = sizeof(sa);
        Got got;

        /* None of these may matter. */
        setenv("http_proxy", "http://127.0.0.1:1/", 1);
        setenv("https_proxy", "http://127.0.0.1:1/", 1);
        setenv("ALL_PROXY", "socks5://127.0.0.1:1/", 1);

        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        assert(fd >= 0 && bind(fd, (struct sockaddr *) &sa, sizeof(sa)) == 0 && listen(fd, 16) == 0);
        assert(getsockname(fd, (struct sockaddr *) &sa, &len) == 0);
        port = ntohs(sa.sin_port);

        assert(sd_event_new(&event) == 0);
        assert(http_server_new(event, &HTTP_SERVER_OPTIONS_DEFAULT, &server) == 0);
        assert(http_listener_new(server, fd, handler, NULL, &listener) == 0);
        assert(address_guard_new((char *[]) { (char *) "127.0.0.0/8", NULL }, &guard) == 0);
        assert(curl_glue_new(event, &(CurlGlueOptions) { .guard = guard, .allow_http = true }, &glue) == 0);
        assert(curl_glue_new(event, &(CurlGlueOptions) { .allow_http = true }, &strict) == 0);
        assert(curl_glue_new(event, &(CurlGlueOptions) { .guard = guard }, &tls_only) == 0);

        got = get(glue, "/a/%2e%2e/b/./c//d?x=%2B%zz");
        assert(got.code == CURLE_OK && got.status == 200 && got.size == 5);
        assert(startswith(last_request, "GET /a/%2e%2e/b/./c//d?x=%2B%zz\n"));
        assert(!strcasestr(last_request, "expect:") && !strcasestr(last_request, "accept-encoding:"));

        test_many(glue);

        got = get(glue, "/redirect");
        assert(got.code == CURLE_OK && got.status == 302 && startswith(last_request, "GET /redirect?"));

        n_requests = 0;
        got = get(strict, "/a");
        assert(got.code == CURLE_COULDNT_CONNECT && got.refused && n_requests == 0);
        got = get(tls_only, "/a");
        assert(got.code == CURLE_UNSUPPORTED_PROTOCOL && n_requests == 0);

        /* Many at once. */
        Got many[100] = {};
        for (size_t i = 0; i < ELEMENTSOF(many); i++)
                start(glue, "/a", many + i);
        run();
        for (size_t i = 0; i < ELEMENTSOF(many); i++)
                assert(many[i].code == CURLE_OK && many[i].size == 5);

        /* A paused transfer takes a bounded amount from the server, and goes on. */
        got = (Got) { .paused = true };
        start(glue, "/flow", &got);
        for (unsigned i = 0; i < 200; i++)
                assert(sd_event_run(event, 1000) >= 0);
        assert(got.size == 0);
        got.paused = false;
        curl_transfer_unpause(got.transfer);
        for (unsigned i = 0; i < 200 && got.size < 1 << 20; i++)
                assert(sd_event_run(event, 1000) >= 0);
        assert(got.size >= 1 << 20);
        got.transfer = curl_transfer_free(got.transfer); /* in flight */
        n_running--;
        for (unsigned i = 0; i < 20; i++)
                assert(sd_event_run(event, 1000) >= 0);

        /* Header lines. */
        CurlTransfer *t;
        assert(curl_transfer_new(glue, "http://127.0.0.1/", &t) == 0);
        assert(curl_transfer_add_header(t, "X", "a\r\nY: b") == -EINVAL);
        assert(curl_transfer_add_header(t, "X", "a\n") == -EINVAL);
        assert(curl_transfer_add_header(t, "X: a\r\nY", "b") == -EINVAL);
        assert(curl_transfer_add_header(t, "", "b") == -EINVAL);
        assert(curl_transfer_add_header(t, "X-A", "") == 0);
        curl_transfer_free(t);

        /* The fetch. */
        fetch(glue, "/token", 0);
        assert(fetched.code == CURLE_OK && fetched.status == 201);
        assert(streq(collected, "grant_type=client_credentials&scope=a%20b%26c%3Dd%2B%C3%A9"));
        assert(strstr(last_request, "\nAuthorization: Basic eA==\n") && startswith(last_request, "POST /token?\n"));
        fetch(glue, "/flow", 0);
        assert(fetched.code == CURLE_FILESIZE_EXCEEDED);
        fetch(glue, "/silent", 100 * USEC_PER_MSEC);
        assert(fetched.code == CURLE_OPERATION_TIMEDOUT);
        fetch(strict, "/token", 0);
        assert(fetched.refused && fetched.code == CURLE_COULDNT_CONNECT);

        curl_glue_free(glue);
        curl_glue_free(strict);
        curl_glue_free(tls_only);
        address_guard_free(guard);
        http_server_free(server);
        sd_event_unref(event);
        return 0;
}
