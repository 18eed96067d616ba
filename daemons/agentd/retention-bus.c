/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* PruneRuns: a caller takes away finished runs of their own, by number, by age or by both. */
#include "bus-util.h"
#include "retention.h"

static int read_keep(sd_bus_message *m, const BusOption *option, void *field, sd_bus_error *e) {
        PruneRequest *p = field;

        p->by_number = true;
        return bus_option_u32(m, option, &p->keep, e);
}

static int read_age(sd_bus_message *m, const BusOption *option, void *field, sd_bus_error *e) {
        uint64_t age, now = now_realtime();
        int r = bus_option_u64(m, option, &age, e);

        if (r >= 0)
                ((PruneRequest *) field)->before_usec = now - MIN(age, now - 1);
        return r;
}

static int read_options(sd_bus_message *m, PruneRequest *p, sd_bus_error *e) {
        static const BusOption options[] = {
                { "keep", "a number of runs up to 1000000, of type u", read_keep, .max = STORE_NEWEST_MAX },
                { "older-than-usec", "a number of microseconds above 0, of type t", read_age, .min = 1 },
                { "dry-run", "true or false", bus_option_bool, offsetof(PruneRequest, dry_run) },
                {}
        };
        int r;

        r = bus_read_options(m, options, p, e);
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
