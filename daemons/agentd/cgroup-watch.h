/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Tells when the last process of a control group is gone, by cgroup.events of cgroup v2. */

#include <systemd/sd-event.h>

#include "basic/macro.h"

typedef struct CgroupWatch CgroupWatch;

typedef void (*cgroup_watch_handler_t)(void *userdata);

/* 0, and nothing in RET, where no process is in CONTROL_GROUP (as PID 1 names it; "" or gone is empty, too). Else 1;
 * HANDLER is called when that has become so, and may free the watch. */
int cgroup_watch_new(sd_event *event, const char *control_group, cgroup_watch_handler_t handler, void *userdata,
                     CgroupWatch **ret);
/* True as long as a process is in it. */
bool cgroup_watch_populated(CgroupWatch *w);
CgroupWatch *cgroup_watch_free(CgroupWatch *w);
DEFINE_CLEANUP(CgroupWatch *, cgroup_watch_free);
