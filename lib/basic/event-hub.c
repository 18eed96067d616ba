/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* See event-hub.h. An epoll set is itself readable while one of its members is ready, which is how the outer loop
 * knows. */

#include <sys/epoll.h>

#include "basic/event-hub.h"

/* Of tasks that queue tasks, before the loop has its turn. */
#define ROUNDS_MAX 8U

struct EventHub {
        int epoll;
        sd_event_source *io, *wake;
        HubTask *first, *last;
        unsigned round; /* tasks that are queued in one have their turn in the next */
        bool running, wake_armed;
        struct epoll_event batch[HUB_BATCH];
        int at, n; /* of the batch: those before AT have had their turn */
};

static int watch_arm(HubWatch *w, uint32_t events) {
        struct epoll_event e = { .events = events, .data.ptr = w };
        int op = w->armed == 0 ? EPOLL_CTL_ADD : events == 0 ? EPOLL_CTL_DEL : EPOLL_CTL_MOD;

        if (events == w->armed)
                return 0;
        if (epoll_ctl(w->hub->epoll, op, w->fd, &e) < 0)
                return -errno;
        w->armed = events;
        return 0;
}

/* Tasks queue tasks, but one that queues itself for ever does not hold up the loop. */
static void run_tasks(EventHub *h) {
        for (unsigned i = 0; i < ROUNDS_MAX && h->first; i++) {
                h->round++;
                for (HubTask *t; (t = h->first) && t->round != h->round;) {
                        hub_task_cancel(h, t);
                        t->callback(t->userdata);
                }
        }
}

/* The tasks of this turn; what they leave is for the next one. */
static void hub_finish(EventHub *h) {
        run_tasks(h);
        h->running = false;
        if (!!h->first != h->wake_armed &&
            sd_event_source_set_enabled(h->wake, h->first ? SD_EVENT_ONESHOT : SD_EVENT_OFF) >= 0)
                h->wake_armed = h->first;
}

static void hub_turn(EventHub *h) {
        h->running = true;
        h->n = epoll_wait(h->epoll, h->batch, HUB_BATCH, 0);
        for (h->at = 0; h->at < h->n;) {
                struct epoll_event *e = h->batch + h->at++;
                HubWatch *w = e->data.ptr;
                uint32_t revents;

                if (!w) /* removed meanwhile */
                        continue;
                revents = e->events & (w->wanted | EPOLLERR | EPOLLHUP);
                if (w->armed != w->wanted)
                        (void) watch_arm(w,
                                         w->wanted); /* it woke us, perhaps for nothing: now the kernel has to know */
                if (revents != 0 && w->wanted != 0)
                        w->callback(revents, w->userdata);
        }
        h->at = h->n = 0;
        hub_finish(h);
}

static int on_io(sd_event_source *source, int fd, uint32_t revents, void *userdata) {
        hub_turn(userdata);
        return 0;
}

static int on_wake(sd_event_source *source, void *userdata) {
        EventHub *h = userdata;

        h->wake_armed = false;
        h->running = true;
        hub_finish(h);
        return 0;
}

int event_hub_new(sd_event *event, EventHub **ret) {
        _cleanup_(event_hub_freep) EventHub *h = calloc(1, sizeof(EventHub));
        if (!h)
                return -ENOMEM;

        h->epoll = epoll_create1(EPOLL_CLOEXEC);
        if (h->epoll < 0)
                return -errno;
        int r = sd_event_add_io(event, &h->io, h->epoll, EPOLLIN, on_io, h);
        if (r >= 0)
                r = sd_event_add_defer(event, &h->wake, on_wake, h);
        if (r >= 0)
                r = sd_event_source_set_enabled(h->wake, SD_EVENT_OFF);
        /* A deferred source that is enabled again and again is always the oldest of its priority, so nothing else would
         * have a turn. */
        if (r >= 0)
                r = sd_event_source_set_priority(h->wake, SD_EVENT_PRIORITY_NORMAL + 1);
        if (r < 0)
                return r;

        *ret = TAKE_PTR(h);
        return 0;
}

EventHub *event_hub_free(EventHub *h) {
        if (!h)
                return NULL;

        assert(!h->running);
        sd_event_source_disable_unref(h->io);
        sd_event_source_disable_unref(h->wake);
        while (h->first)
                hub_task_cancel(h, h->first);
        safe_close(h->epoll);
        return mfree(h);
}

int hub_watch_add(EventHub *h, HubWatch *w, int fd, uint32_t events, void (*callback)(uint32_t revents, void *userdata),
                  void *userdata) {
        assert(!w->hub);

        *w = (HubWatch) { .hub = h, .fd = fd, .wanted = events, .callback = callback, .userdata = userdata };
        int r = watch_arm(w, events);
        if (r < 0)
                *w = (HubWatch) {};
        return r;
}

int hub_watch_set(HubWatch *w, uint32_t events) {
        w->wanted = events;
        return (events & ~w->armed) == 0 ? 0 : watch_arm(w, events);
}

void hub_watch_remove(HubWatch *w) {
        if (!w->hub)
                return;

        for (int i = w->hub->at; i < w->hub->n; i++)
                if (w->hub->batch[i].data.ptr == w)
                        w->hub->batch[i].data.ptr = NULL;
        /* Fails where the descriptor was closed before, which took it out of the set as well. */
        (void) watch_arm(w, 0);
        *w = (HubWatch) {};
}

bool event_hub_has_more(const EventHub *h) {
        return h->at < h->n;
}

void hub_task_queue(EventHub *h, HubTask *t) {
        if (t->queued)
                return;

        t->queued = true;
        t->round = h->round;
        t->next = NULL;
        t->previous = h->last;
        if (h->last)
                h->last->next = t;
        else
                h->first = t;
        h->last = t;
        if (!h->running && !h->wake_armed)
                h->wake_armed = sd_event_source_set_enabled(h->wake, SD_EVENT_ONESHOT) >= 0;
}

void hub_task_cancel(EventHub *h, HubTask *t) {
        if (!t->queued)
                return;

        if (t->previous)
                t->previous->next = t->next;
        else
                h->first = t->next;
        if (t->next)
                t->next->previous = t->previous;
        else
                h->last = t->previous;
        t->queued = false;
        t->next = t->previous = NULL;
}
