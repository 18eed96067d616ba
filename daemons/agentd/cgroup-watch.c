/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* See the header. The kernel wakes up whoever polls cgroup.events for POLLPRI at each change, after he read it once. */
#include <fcntl.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "basic/fs-util.h"
#include "basic/string-util.h"
#include "cgroup-watch.h"

#define CGROUP_ROOT "/sys/fs/cgroup"

struct CgroupWatch {
        int fd;
        sd_event_source *source;
        cgroup_watch_handler_t handler;
        void *userdata;
};

bool cgroup_watch_populated(CgroupWatch *w) {
        char text[256];
        ssize_t n;

        n = pread(w->fd, text, sizeof text - 1, 0);
        if (n < 0) /* ENODEV: it is gone */
                return false;
        text[n] = 0;
        return strstr(text, "populated 1\n");
}

static int on_event(sd_event_source *s, int fd, uint32_t revents, void *userdata) {
        CgroupWatch *w = userdata;

        if (cgroup_watch_populated(w))
                return 0;
        /* One that is gone would report an error for ever. */
        w->source = sd_event_source_disable_unref(w->source);
        w->handler(w->userdata);
        return 0;
}

int cgroup_watch_new(sd_event *event, const char *control_group, cgroup_watch_handler_t handler, void *userdata,
                     CgroupWatch **ret) {
        _cleanup_(cgroup_watch_freep) CgroupWatch *w = NULL;
        _cleanup_free_ char *path = NULL;
        int r;

        *ret = NULL;
        if (isempty(control_group))
                return 0;
        path = strprintf(CGROUP_ROOT "%s/cgroup.events", control_group);
        w = calloc(1, sizeof *w);
        if (!path || !w)
                return -ENOMEM;
        *w = (CgroupWatch) { .handler = handler, .userdata = userdata };
        w->fd = open(path, O_RDONLY | O_CLOEXEC);
        if (w->fd < 0)
                return errno == ENOENT || errno == ENODEV ? 0 : -errno;
        if (!cgroup_watch_populated(w))
                return 0;
        r = sd_event_add_io(event, &w->source, w->fd, EPOLLPRI, on_event, w);
        if (r < 0)
                return r;
        *ret = TAKE_PTR(w);
        return 1;
}

CgroupWatch *cgroup_watch_free(CgroupWatch *w) {
        if (!w)
                return NULL;
        sd_event_source_disable_unref(w->source);
        safe_close(w->fd);
        return mfree(w);
}
