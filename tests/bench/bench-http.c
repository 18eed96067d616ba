/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Load for the bridge's benchmarks: a client that keeps its connections, a client of many event streams, and a source
 * of events. All on one epoll each, without an event library, so that what is measured is the other side.
 *
 *     bench-http load ADDRESS PORT COUNT PARALLEL < REQUEST   →  {"usec":[…], "seconds": S, "bad": N}
 *     bench-http streams ADDRESS PORT N EVENTS < REQUEST      →  {"delay_usec":[…], "bad": N}
 *     bench-http events PORT EVENTS INTERVAL_MS               serves streams of events that say when they were sent
 *
 * REQUEST is the bytes of one request as they are to be sent, for HTTP/1.1 with a connection that is kept. "bad" counts
 * answers that were not 200.
 */
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>

#include "basic/macro.h"
#include "basic/string-util.h"

typedef struct Connection {
        int fd;
        uint64_t begin;
        char head[16384]; /* of what is being read: an answer's head, or a piece of a stream */
        size_t n;
        uint64_t body_left;
        bool in_body, streaming;
        unsigned events;
} Connection;

static char request[65536];
static size_t request_size;
static struct sockaddr_in address;

static uint64_t now_usec(void) {
        struct timespec ts;

        clock_gettime(CLOCK_MONOTONIC, &ts);
        return (uint64_t) ts.tv_sec * USEC_PER_SEC + (uint64_t) ts.tv_nsec / NSEC_PER_USEC;
}

static _Noreturn void die(const char *what) {
        perror(what);
        exit(EXIT_FAILURE);
}

static uint64_t number(const char *s) {
        uint64_t v;

        if (parse_uint64(s, &v) < 0) {
                fprintf(stderr, "bench-http: \"%s\" is no number\n", s);
                exit(2);
        }
        return v;
}

static void read_request(const char *host, const char *port) {
        ssize_t k;

        while ((k = read(STDIN_FILENO, request + request_size, sizeof(request) - request_size)) > 0)
                request_size += (size_t) k;
        address = (struct sockaddr_in) { .sin_family = AF_INET, .sin_port = htons((uint16_t) number(port)) };
        if (inet_pton(AF_INET, host, &address.sin_addr) != 1)
                die("address");
}

static void dial(Connection *c, int epoll) {
        struct epoll_event e = { .events = EPOLLIN, .data.ptr = c };

        c->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (c->fd < 0 || connect(c->fd, (struct sockaddr *) &address, sizeof(address)) < 0)
                die("connect");
        (void) setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &(int) { 1 }, sizeof(int));
        if (epoll_ctl(epoll, EPOLL_CTL_ADD, c->fd, &e) < 0)
                die("epoll_ctl");
}

static void ask(Connection *c) {
        c->begin = now_usec();
        c->n = 0;
        c->in_body = false;
        for (size_t sent = 0; sent < request_size;) {
                ssize_t k = send(c->fd, request + sent, request_size - sent, MSG_NOSIGNAL);
                if (k < 0)
                        die("send");
                sent += (size_t) k;
        }
}

/* >0: the answer is complete; its status. 0: more comes. <0: the connection is gone. */
static int receive(Connection *c) {
        for (;;) {
                char *end, *length;
                ssize_t k;

                if (c->in_body) {
                        char buf[65536];

                        if (c->body_left == 0)
                                return atoi(c->head + 9);
                        k = recv(c->fd, buf, MIN(c->body_left, (uint64_t) sizeof(buf)), MSG_DONTWAIT);
                        if (k <= 0)
                                return k < 0 && errno == EAGAIN ? 0 : -1;
                        c->body_left -= (uint64_t) k;
                        continue;
                }
                k = recv(c->fd, c->head + c->n, sizeof(c->head) - 1 - c->n, MSG_DONTWAIT);
                if (k <= 0)
                        return k < 0 && errno == EAGAIN ? 0 : -1;
                c->n += (size_t) k;
                c->head[c->n] = 0;
                end = strstr(c->head, "\r\n\r\n");
                if (!end)
                        continue;
                length = strcasestr(c->head, "\r\ncontent-length: ");
                c->in_body = true;
                c->body_left = length && length < end ? strtoull(length + 18, NULL, 10) : 0;
                c->body_left -= MIN(c->body_left, (uint64_t) (c->n - (size_t) (end + 4 - c->head)));
        }
}

static int load(uint64_t count, uint64_t parallel) {
        Connection *connections = calloc(parallel, sizeof(Connection));
        uint64_t *usec = calloc(count, sizeof(uint64_t)), started = 0, done = 0, bad = 0, begin;
        int epoll = epoll_create1(EPOLL_CLOEXEC);

        if (!connections || !usec || epoll < 0)
                die("load");
        for (uint64_t i = 0; i < parallel; i++)
                dial(connections + i, epoll);
        begin = now_usec();
        for (uint64_t i = 0; i < parallel && started < count; i++, started++)
                ask(connections + i);
        while (done < count) {
                struct epoll_event events[64];
                int n = epoll_wait(epoll, events, ELEMENTSOF(events), 30000);

                if (n <= 0)
                        die("epoll_wait");
                for (int i = 0; i < n; i++) {
                        Connection *c = events[i].data.ptr;
                        int status = receive(c);

                        if (status == 0)
                                continue;
                        if (status < 0) { /* closed after an answer, as it may be */
                                close(c->fd);
                                dial(c, epoll);
                                ask(c);
                                continue;
                        }
                        usec[done++] = now_usec() - c->begin;
                        bad += status != 200;
                        if (started < count) {
                                started++;
                                ask(c);
                        }
                }
        }
        printf("{\"seconds\":%f,\"bad\":%" PRIu64 ",\"usec\":[", (double) (now_usec() - begin) / 1e6, bad);
        for (uint64_t i = 0; i < count; i++)
                printf("%s%" PRIu64, i > 0 ? "," : "", usec[i]);
        printf("]}\n");
        return 0;
}

/* Every "data: USEC\n" in what came. Returns how many; keeps what may be the beginning of another. */
static unsigned take_events(Connection *c, uint64_t at, uint64_t *delays, size_t *n_delays, size_t max) {
        unsigned n = 0;
        char *p = c->head, *data;

        while ((data = strstr(p, "data: "))) {
                char *end = strchr(data, '\n');

                if (!end)
                        break;
                uint64_t sent = strtoull(data + 6, NULL, 10);
                if (sent > 0 && *n_delays < max)
                        delays[(*n_delays)++] = at > sent ? at - sent : 0;
                n++;
                p = end + 1;
        }
        size_t left = strlen(p);
        if (left > 64) { /* chunk borders, no event */
                p += left - 64;
                left = 64;
        }
        memmove(c->head, p, left + 1);
        c->n = left;
        return n;
}

static int streams(uint64_t n, uint64_t events_each) {
        Connection *connections = calloc(n, sizeof(Connection));
        size_t n_delays = 0, max = n * events_each;
        uint64_t *delays = calloc(max, sizeof(uint64_t)), bad = 0, open = n;
        int epoll = epoll_create1(EPOLL_CLOEXEC);

        if (!connections || !delays || epoll < 0)
                die("streams");
        for (uint64_t i = 0; i < n; i++) {
                dial(connections + i, epoll);
                ask(connections + i);
        }
        while (open > 0) {
                struct epoll_event ready[256];
                int k = epoll_wait(epoll, ready, ELEMENTSOF(ready), 30000);

                if (k <= 0) {
                        bad += open;
                        break;
                }
                for (int i = 0; i < k; i++) {
                        Connection *c = ready[i].data.ptr;
                        ssize_t got = recv(c->fd, c->head + c->n, sizeof(c->head) - 1 - c->n, MSG_DONTWAIT);
                        uint64_t at = now_usec();

                        if (got < 0 && errno == EAGAIN)
                                continue;
                        if (got > 0) {
                                c->n += (size_t) got;
                                c->head[c->n] = 0;
                                if (!c->streaming) {
                                        c->streaming = true;
                                        if (strncmp(c->head, "HTTP/1.1 200", 12) != 0)
                                                bad++;
                                }
                                c->events += take_events(c, at, delays, &n_delays, max);
                        }
                        if (got <= 0 || c->events >= events_each) {
                                bad += c->events < events_each;
                                close(c->fd);
                                open--;
                        }
                }
        }
        printf("{\"bad\":%" PRIu64 ",\"delay_usec\":[", bad);
        for (size_t i = 0; i < n_delays; i++)
                printf("%s%" PRIu64, i > 0 ? "," : "", delays[i]);
        printf("]}\n");
        return 0;
}

static int serve_events(uint16_t port, unsigned events, uint64_t interval_ms) {
        struct sockaddr_in sa = { .sin_family = AF_INET,
                                  .sin_port = htons(port),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
        int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0),
            timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC), epoll = epoll_create1(EPOLL_CLOEXEC);
        struct itimerspec its = { .it_interval.tv_nsec = (long) (interval_ms * 1000000), .it_value.tv_nsec = 1000000 };
        struct epoll_event el = { .events = EPOLLIN, .data.fd = listener },
                           et = { .events = EPOLLIN, .data.fd = timer };
        static struct {
                int fd;
                unsigned sent;
        } clients[16384];
        size_t n = 0;

        (void) setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &(int) { 1 }, sizeof(int));
        if (bind(listener, (struct sockaddr *) &sa, sizeof(sa)) < 0 || listen(listener, 4096) < 0 ||
            timerfd_settime(timer, 0, &its, NULL) < 0 || epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &el) < 0 ||
            epoll_ctl(epoll, EPOLL_CTL_ADD, timer, &et) < 0)
                die("events");
        for (;;) {
                struct epoll_event e;
                char buf[8192];
                int fd;

                if (epoll_wait(epoll, &e, 1, -1) <= 0)
                        continue;
                if (e.data.fd == listener) {
                        static const char head
                                [] = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n";

                        while (n < ELEMENTSOF(clients) && (fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC)) >= 0) {
                                (void) setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int) { 1 }, sizeof(int));
                                (void) recv(fd, buf, sizeof(buf), 0); /* heads here fit into one piece */
                                (void) send(fd, head, strlen(head), MSG_NOSIGNAL);
                                clients[n].fd = fd;
                                clients[n++].sent = 0;
                        }
                        continue;
                }
                (void) !read(timer, buf, sizeof(buf));
                for (size_t i = 0; i < n;) {
                        int k = snprintf(buf, sizeof(buf), "data: %" PRIu64 "\n\n", now_usec());

                        if (send(clients[i].fd, buf, (size_t) k, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 ||
                            ++clients[i].sent >= events) {
                                close(clients[i].fd);
                                clients[i] = clients[--n];
                        } else
                                i++;
                }
        }
}

int main(int argc, char *argv[]) {
        if (argc == 6 && (streq(argv[1], "load") || streq(argv[1], "streams"))) {
                read_request(argv[2], argv[3]);
                return streq(argv[1], "load") ? load(number(argv[4]), number(argv[5])) :
                                                streams(number(argv[4]), number(argv[5]));
        }
        if (argc == 5 && streq(argv[1], "events"))
                return serve_events((uint16_t) number(argv[2]), (unsigned) number(argv[3]), number(argv[4]));
        fprintf(stderr,
                "Usage: bench-http load|streams ADDRESS PORT COUNT PARALLEL|EVENTS, or events PORT EVENTS INTERVAL_MS\n");
        return 2;
}
