/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/*
 * Thousands of file descriptors behind one source of an sd-event loop. sd-event dispatches one source for each call of
 * epoll_wait(), and the kernel then looks again at all that are ready: with n of them at once the work is n². A hub has
 * an epoll set of its own; when the loop comes to it, it takes up to HUB_BATCH events in one go and dispatches them
 * all, then the tasks that were queued meanwhile, and gives the loop back to its other sources.
 *
 * What a watch waits for is told to the kernel late: bits that are not wanted any more stay until they would wake us.
 * So a connection that goes from reading to idle and back costs no system call.
 *
 * Objects are embedded in what they belong to, zero-initialised, and must not move while they are in use. All functions
 * may be called from within callbacks, also for a watch or task whose turn would be next.
 */

#include <systemd/sd-event.h>

#include "basic/macro.h"

#define HUB_BATCH 64

typedef struct EventHub EventHub;

typedef struct HubWatch {
        EventHub *hub; /* NULL: not added */
        int fd;
        uint32_t wanted, armed; /* EPOLLIN, …; errors and hang-ups are always told while there is something armed */
        void (*callback)(uint32_t revents, void *userdata);
        void *userdata;
} HubWatch;

/* Something to be done when the present callbacks are through, once however often it is queued. */
typedef struct HubTask {
        struct HubTask *next, *previous;
        bool queued;
        unsigned round;
        void (*callback)(void *userdata);
        void *userdata;
} HubTask;

int event_hub_new(sd_event *event, EventHub **ret);
/* All watches must be removed before. */
EventHub *event_hub_free(EventHub *h);
DEFINE_CLEANUP(EventHub *, event_hub_free);

int hub_watch_add(EventHub *h, HubWatch *w, int fd, uint32_t events, void (*callback)(uint32_t revents, void *userdata),
                  void *userdata);
/* EVENTS 0: nothing, not even a hang-up. */
int hub_watch_set(HubWatch *w, uint32_t events);
/* Before its fd is closed. Does nothing for one that was never added. */
void hub_watch_remove(HubWatch *w);

/* From within a callback of a watch: whether others have their turn after it, before the tasks. */
bool event_hub_has_more(const EventHub *h);

void hub_task_queue(EventHub *h, HubTask *t);
void hub_task_cancel(EventHub *h, HubTask *t);
