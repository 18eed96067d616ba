/* SPDX-License-Identifier: LGPL-2.1-or-later */
#undef NDEBUG

/* Proves which connections to upstreams are used again, and by whom. Some upstreams do not read a body that they do
 * not expect, and take it for the beginning of the next request on that connection. That request is another one's,
 * with a credential: so there is none after such a body, and never one of another service or another user. The far
 * side speaks raw bytes. */

#include "bridge-harness.h"

static int far_listener;
static struct sockaddr_in far_address;

static LiveRun *make_run(const char *id, const char *jti, const char *user, const char *const *services) {
        LiveRun *live;

        assert(live_run_new(&live) == 0);
        strcpy(live->run, id);
        strcpy(live->jti, jti);
        live->user = strdup(user);
        live->uid = 1000;
        live->agent = strdup("analyst");
        live->deadline_usec = ((uint64_t) time(NULL) + 600) * USEC_PER_SEC;
        for (; *services; services++) {
                _cleanup_(service_unrefp) Service *s = NULL;
                _cleanup_free_ char *text = strprintf(
                        "{\"name\":\"%s\",\"base_url\":\"http://127.0.0.1:%u\",\"auth\":{\"kind\":\"none\"},\"allow\":[{"
                        "\"methods\":[\"GET\",\"POST\",\"PUT\",\"PATCH\",\"DELETE\",\"OPTIONS\"],\"paths\":[\"/*\"]}]}",
                        *services, ntohs(far_address.sin_port));

                assert(service_parse(text, strlen(text), SERVICE_ALLOW_HTTP, &s, NULL) == 0);
                assert(live_run_add_service(live, s) == 0);
        }
        assert(live_run_write(live_dir, live, (gid_t) -1) == 0);
        return live;
}

static int accept_far(void) {
        for (unsigned i = 0; i < 20; i++) {
                int fd = accept4(far_listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
                if (fd >= 0)
                        return fd;
                pump();
        }
        return -EBADF;
}

/* One request, answered at once at the connection FAR; where it is -EBADF or the request comes through another one,
 * that is the new FAR. True: through the same one. FAR is not closed by us. */
static bool exchange(const struct sockaddr_in *sa, const char *token, const char *service, const char *method,
                     const char *rest, int *far) {
        static const char answer[] = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
        _cleanup_free_ char *text = strprintf(
                "%s /v1/services/%s/x HTTP/1.1\r\nHost: x\r\nConnection: close\r\nx-api-key: "
                "%s\r\n%s",
                method, service, token, rest);
        char buf[8192];
        int fd = dial(sa);
        ssize_t n = -1;

        assert(send(fd, text, strlen(text), MSG_NOSIGNAL) > 0);
        pump();
        if (*far >= 0)
                n = recv(*far, buf, sizeof(buf), MSG_DONTWAIT);
        bool same = n > 0;
        if (!same) {
                safe_close(*far);
                *far = accept_far();
                assert(*far >= 0);
                pump();
                while ((n = recv(*far, buf, sizeof(buf), MSG_DONTWAIT)) > 0)
                        pump();
        }
        assert(send(*far, answer, strlen(answer), MSG_NOSIGNAL) == (ssize_t) strlen(answer));
        pump();
        char *s = receive(fd);
        EXPECT(s, 200);
        safe_close(fd);
        pump();
        return same;
}

static void test_bodies(void) {
        static const struct {
                const char *method, *rest;
                bool kept;
        } cases[] = {
                { "GET", "\r\n", true },
                { "POST", "Content-Length: 5\r\n\r\nhello", true },
                { "PUT", "Content-Length: 5\r\n\r\nhello", true },
                { "PATCH", "Content-Length: 5\r\n\r\nhello", true },
                { "DELETE", "\r\n", true },
                { "POST", "Content-Length: 0\r\n\r\n", true },
                { "GET", "Content-Length: 20\r\n\r\nGET /evil HTTP/1.1\r\n", false },
                { "DELETE", "Content-Length: 5\r\n\r\nhello", false },
                { "OPTIONS", "Content-Length: 5\r\n\r\nhello", false },
                { "POST", "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", false },
                { "GET", "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", false },
        };

        for (size_t i = 0; i < ELEMENTSOF(cases); i++) {
                int far = -EBADF;

                (void) exchange(&address_a, token_a, "s", cases[i].method, cases[i].rest, &far);
                bool same = exchange(&address_a, token_a, "s", "GET", "\r\n", &far);
                if (same != cases[i].kept)
                        fprintf(stderr, "%s %s", cases[i].method, cases[i].rest);
                assert(same == cases[i].kept);
                safe_close(far);
                pump();
        }
}

/* The same host, the same user or not, the same service or not. */
static void test_whose(void) {
        int alice = -EBADF, other = -EBADF, bob = -EBADF;

        (void) exchange(&address_a, token_a, "s", "POST", "Content-Length: 5\r\n\r\nhello", &alice);
        (void) exchange(&address_a, token_a, "t", "GET", "\r\n", &other);
        (void) exchange(&address_b, token_b, "s", "GET", "\r\n", &bob);
        assert(alice != other && other != bob);
        /* Nobody has lost his own meanwhile. */
        assert(exchange(&address_a, token_a, "s", "GET", "\r\n", &alice));
        assert(exchange(&address_a, token_a, "t", "GET", "\r\n", &other));
        assert(exchange(&address_b, token_b, "s", "GET", "\r\n", &bob));
        safe_close(alice);
        safe_close(other);
        safe_close(bob);
        pump();
}

/* Bytes that came before they were asked for are no answer to the next request. */
static void test_early_answer(void) {
        static const char evil[] = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil";
        int far = -EBADF;

        (void) exchange(&address_a, token_a, "s", "GET", "\r\n", &far);
        assert(send(far, evil, strlen(evil), MSG_NOSIGNAL) > 0);
        pump();
        assert(!exchange(&address_a, token_a, "s", "GET", "\r\n", &far));
        safe_close(far);
        pump();
}

static void test_pool(void) {
        _cleanup_(upstream_pool_freep) UpstreamPool *p = NULL;
        _cleanup_(curl_transfer_freep) CurlTransfer *t = NULL;
        CurlGlue *first, *again, *g;

        assert(upstream_pool_new(bridge->event, &(CurlGlueOptions) { .guard = guard, .allow_http = true }, &p) == 0);
        assert(upstream_pool_get(p, "a", "s", &first) == 0 && upstream_pool_get(p, "a", "s", &again) == 0 &&
               again == first);
        assert(upstream_pool_get(p, "a", "t", &g) == 0 && g != first);
        assert(upstream_pool_get(p, "b", "s", &g) == 0 && g != first);
        assert(upstream_pool_size(p) == 3);
        /* Bounded; one with a transfer stays. */
        assert(curl_transfer_new(first, "http://127.0.0.1/", &t) == 0);
        for (unsigned i = 0; i < 3 * UPSTREAM_POOLS_MAX; i++) {
                char user[16];

                snprintf(user, sizeof(user), "u%u", i);
                assert(upstream_pool_get(p, user, "s", &g) == 0);
                assert(upstream_pool_size(p) <= UPSTREAM_POOLS_MAX);
        }
        assert(upstream_pool_get(p, "a", "s", &again) == 0 && again == first);
        t = curl_transfer_free(t);
}

int main(void) {
        static const char *const two[] = { "s", "t", NULL };

        harness_start();
        far_listener = listen_tcp(&far_address);
        assert(fcntl(far_listener, F_SETFL, O_NONBLOCK) == 0);
        LiveRun *alice = make_run("77777777777777777777777777777777", "17777777777777777777777777777777", "alice", two);
        LiveRun *bob = make_run("88888888888888888888888888888888", "18888888888888888888888888888888", "bob", two);
        free(token_a);
        free(token_b);
        token_a = mint(key, alice, alice->jti);
        token_b = mint(key, bob, bob->jti);
        assert(register_run(alice->run, listen_tcp(&address_a), -EBADF, -EBADF) == 0);
        assert(register_run(bob->run, listen_tcp(&address_b), -EBADF, -EBADF) == 0);
        test_bodies();
        test_whose();
        test_early_answer();
        test_pool();
        safe_close(far_listener);
        live_run_unref(alice);
        live_run_unref(bob);
        return harness_end();
}
