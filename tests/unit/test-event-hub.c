/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * The hub: every ready descriptor is dispatched once for what it has, in few turns of the loop; what is removed, also
 * by a callback before its turn, is never called again; interest that was withdrawn and given back is still met; tasks
 * run once, in order, and one that queues itself for ever does not hold up the loop.
 */

#undef NDEBUG
#include <assert.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "basic/event-hub.h"

#define N 200

typedef struct Pair {
        int near, far;
        HubWatch watch;
        unsigned calls, bytes;
        uint32_t revents;
        struct Pair *victim;
} Pair;

static unsigned total;

static void on_pair(uint32_t revents, void *userdata) {
        Pair *p = userdata;
        char buf[16];
        ssize_t n = recv(p->near, buf, sizeof(buf), MSG_DONTWAIT);

        p->calls++;
        p->revents |= revents;
        p->bytes += n > 0 ? (unsigned) n : 0;
        total++;
        if (p->victim)
                hub_watch_remove(&p->victim->watch);
        if (n == 0)
                assert(hub_watch_set(&p->watch, 0) >= 0);
}

static void pair_new(EventHub *h, Pair *p) {
        int fds[2];

        assert(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) >= 0);
        *p = (Pair) { .near = fds[0], .far = fds[1] };
        assert(hub_watch_add(h, &p->watch, p->near, EPOLLIN, on_pair, p) >= 0);
}

static void pair_done(Pair *p) {
        hub_watch_remove(&p->watch);
        safe_close(p->near);
        safe_close(p->far);
}

/* Turns of the loop until nothing is ready. */
static unsigned settle(sd_event *e) {
        unsigned n = 0;
        int r;

        while ((r = sd_event_run(e, 0)) > 0)
                assert(++n < 10000);
        assert(r == 0);
        return n;
}

static void test_batch(sd_event *e, EventHub *h) {
        static Pair pairs[N];

        total = 0;
        for (size_t i = 0; i < N; i++) {
                pair_new(h, pairs + i);
                assert(write(pairs[i].far, "x", 1) == 1);
        }
        unsigned turns = settle(e);
        assert(total == N);
        assert(turns <= N / HUB_BATCH + 2); /* and not one for each */
        for (size_t i = 0; i < N; i++) {
                assert(pairs[i].calls == 1 && pairs[i].bytes == 1);
                pair_done(pairs + i);
        }
}

static void test_remove(sd_event *e, EventHub *h) {
        Pair a, b;

        /* Whichever comes first takes the other one out. */
        pair_new(h, &a);
        pair_new(h, &b);
        a.victim = &b;
        b.victim = &a;
        assert(write(a.far, "x", 1) == 1 && write(b.far, "x", 1) == 1);
        settle(e);
        assert(a.calls + b.calls == 1);
        pair_done(&a);
        pair_done(&b);
}

static void test_interest(sd_event *e, EventHub *h) {
        Pair a;

        pair_new(h, &a);
        assert(hub_watch_set(&a.watch, 0) >= 0);
        assert(write(a.far, "x", 1) == 1);
        settle(e);
        assert(a.calls == 0); /* not even though the kernel still told us */
        assert(hub_watch_set(&a.watch, EPOLLIN) >= 0);
        settle(e);
        assert(a.calls == 1 && a.bytes == 1);

        /* Off and on again without anything between: no system call, no loss. */
        assert(hub_watch_set(&a.watch, 0) >= 0 && hub_watch_set(&a.watch, EPOLLIN) >= 0);
        assert(write(a.far, "y", 1) == 1);
        settle(e);
        assert(a.calls == 2 && a.bytes == 2);

        assert(hub_watch_set(&a.watch, EPOLLIN | EPOLLOUT) >= 0);
        assert(sd_event_run(e, 0) > 0);
        assert(a.revents & EPOLLOUT);
        assert(hub_watch_set(&a.watch, EPOLLIN) >= 0);
        settle(e); /* ends: what is always writable does not wake us for ever */

        /* A hang-up is told while anything is wanted, and not for ever. */
        a.far = safe_close(a.far);
        settle(e);
        assert(a.revents & EPOLLHUP);
        assert(a.watch.armed == 0);
        pair_done(&a);
}

static HubTask first, second, again;
static EventHub *hub;
static unsigned order[8];
static size_t n_order;

static void on_first(void *userdata) {
        order[n_order++] = 1;
        hub_task_queue(hub, &second);
        hub_task_queue(hub, &second);
}

static void on_second(void *userdata) {
        order[n_order++] = 2;
}

static void on_again(void *userdata) {
        ++*(unsigned *) userdata;
        hub_task_queue(hub, &again);
}

static int on_defer(sd_event_source *source, void *userdata) {
        *(bool *) userdata = true;
        return 0;
}

static void test_tasks(sd_event *e) {
        sd_event_source *defer = NULL;
        bool seen = false;
        unsigned n = 0;

        first = (HubTask) { .callback = on_first };
        second = (HubTask) { .callback = on_second };
        hub_task_queue(hub, &first);
        assert(n_order == 0); /* not from within the call */
        settle(e);
        assert(n_order == 2 && order[0] == 1 && order[1] == 2);

        hub_task_queue(hub, &second);
        hub_task_cancel(hub, &second);
        settle(e);
        assert(n_order == 2);

        again = (HubTask) { .callback = on_again, .userdata = &n };
        hub_task_queue(hub, &again);
        for (unsigned i = 0; i < 3; i++)
                assert(sd_event_run(e, 0) > 0);
        assert(n > 0);
        assert(sd_event_add_defer(e, &defer, on_defer, &seen) >= 0);
        for (unsigned i = 0; i < 3 && !seen; i++)
                assert(sd_event_run(e, 0) > 0);
        assert(seen);
        hub_task_cancel(hub, &again);
        settle(e);
        sd_event_source_unref(defer);
}

int main(void) {
        sd_event *e = NULL;

        assert(sd_event_new(&e) >= 0);
        assert(event_hub_new(e, &hub) >= 0);
        test_batch(e, hub);
        test_remove(e, hub);
        test_interest(e, hub);
        test_tasks(e);
        event_hub_free(hub);
        sd_event_unref(e);
        return 0;
}
