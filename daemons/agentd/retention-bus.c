/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* PruneRuns: a caller takes away finished runs of their own, by number, by age or by both. */
#include "bus-util.h"
#include "retention.h"

static int invalid_option(sd_bus_error *e, const char *name, const char *must) {
        return sd_bus_error_setf(e, BUS_ERROR_INVALID_OPTION, "Option %s must be %s.", name, must);
}

static int read_options(sd_bus_message *m, PruneRequest *p, sd_bus_error *e) {
        uint64_t age, now = now_realtime();
        const char *name;
        uint32_t keep;
        int r, b;

        r = sd_bus_message_enter_container(m, 'a', "{sv}");
        if (r < 0)
                return r;
        while ((r = sd_bus_message_enter_container(m, 'e', "sv")) > 0) {
                r = sd_bus_message_read(m, "s", &name);
                if (r < 0)
                        return r;
                if (streq(name, "keep")) {
                        if (sd_bus_message_read(m, "v", "u", &keep) < 0 || keep > STORE_NEWEST_MAX)
                                return invalid_option(e, name, "a number of runs up to 1000000, of type u");
                        p->by_number = true;
                        p->keep = keep;
                } else if (streq(name, "older-than-usec")) {
                        if (sd_bus_message_read(m, "v", "t", &age) < 0 || age == 0)
                                return invalid_option(e, name, "a number of microseconds above 0, of type t");
                        p->before_usec = now - MIN(age, now - 1);
                } else if (streq(name, "dry-run")) {
                        if (sd_bus_message_read(m, "v", "b", &b) < 0)
                                return invalid_option(e, name, "true or false");
                        p->dry_run = b;
                } else
                        return sd_bus_error_setf(e, BUS_ERROR_INVALID_OPTION,
                                                 "There is no option \"%.64s\". Options are keep, older-than-usec, "
                                                 "dry-run.",
                                                 name);
                r = sd_bus_message_exit_container(m);
                if (r < 0)
                        return r;
        }
        if (r < 0)
                return r;
        r = sd_bus_message_exit_container(m);
        if (r < 0)
                return r;
        if (!p->by_number && p->before_usec == 0)
                return sd_bus_error_set(e, BUS_ERROR_INVALID_OPTION,
                                        "Which runs are to go? Give keep, older-than-usec or both.");
        return 0;
}

int method_prune_runs(sd_bus_message *msg, void *userdata, sd_bus_error *e) {
        _cleanup_free_ char *user = NULL, *name = NULL;
        PruneRequest request = {};
        Manager *m = userdata;
        const char *agent;
        int r;

        r = sd_bus_message_read(msg, "s", &agent);
        if (r < 0)
                return r;
        r = bus_resolve_one_or_all(m, msg, agent, POLKIT_ACTION_MANAGE, e, &user, &name);
        if (r <= 0)
                return r < 0 ? r : 1;
        r = read_options(msg, &request, e);
        if (r < 0)
                return r;
        request.user = user;
        request.agent = name;
        r = retention_prune(m, msg, &request);
        if (r == -EUSERS)
                return sd_bus_error_set(e, SD_BUS_ERROR_LIMITS_EXCEEDED,
                                        "Too much is being removed already. Try again later.");
        return r < 0 ? bus_store_error(m, e, r) : 1; /* replied to when it is done */
}
