/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* Reading a run's properties, and finding the run that the caller means. */

#include "run-info.h"

#include <time.h>

#include "basic/name-util.h"
#include "basic/string-util.h"

/* ListRuns answers at most 1000 at once; parts of ids are looked for among the newest PAGES × 1000. */
#define PAGE_SIZE UINT32_C(1000)
#define PAGES_MAX 10
#define PART_MIN 4

const Property run_properties[] = {
        { "Id", 's', offsetof(RunInfo, id) },
        { "Agent", 's', offsetof(RunInfo, agent) },
        { "User", 's', offsetof(RunInfo, user) },
        { "Trigger", 's', offsetof(RunInfo, trigger) },
        { "Session", 's', offsetof(RunInfo, session) },
        { "State", 's', offsetof(RunInfo, state) },
        { "Result", 's', offsetof(RunInfo, result) },
        { "Message", 's', offsetof(RunInfo, message) },
        { "Attempt", 'u', offsetof(RunInfo, attempt) },
        { "Unit", 's', offsetof(RunInfo, unit) },
        { "Generation", 's', offsetof(RunInfo, generation) },
        { "Environment", 's', offsetof(RunInfo, environment) },
        { "Runner", 's', offsetof(RunInfo, runner) },
        { "CreatedUSec", 't', offsetof(RunInfo, created_usec) },
        { "StartedUSec", 't', offsetof(RunInfo, started_usec) },
        { "FinishedUSec", 't', offsetof(RunInfo, finished_usec) },
        { "DeadlineUSec", 't', offsetof(RunInfo, deadline_usec) },
        {}
};

void run_info_done(RunInfo *info) {
        for (const Property *p = run_properties; p->name; p++)
                if (p->type == 's')
                        freep((uint8_t *) info + p->offset);
        *info = (RunInfo) {};
}

uint64_t run_duration(uint64_t started_usec, uint64_t finished_usec) {
        struct timespec now;

        if (started_usec == 0)
                return USEC_INFINITY;
        if (finished_usec == 0) {
                if (clock_gettime(CLOCK_REALTIME, &now) < 0)
                        return USEC_INFINITY;
                finished_usec = (uint64_t) now.tv_sec * USEC_PER_SEC + (uint64_t) now.tv_nsec / NSEC_PER_USEC;
        }
        return finished_usec > started_usec ? finished_usec - started_usec : 0;
}

int run_info_read(Client *c, const char *id, RunInfo *info, sd_bus_error *error) {
        _cleanup_(sd_bus_message_unrefp) sd_bus_message *reply = NULL;
        const char *path;
        int r;

        r = client_call_full(c, &manager_target, "GetRun", &reply, error, "s", id);
        if (r < 0)
                return r;
        r = sd_bus_message_read_basic(reply, 'o', &path);
        if (r < 0)
                return r;
        return properties_get_all(c, path, RUN_INTERFACE, run_properties, info, error);
}

int run_id_match(char *const *ids, size_t n, const char *text, size_t *ret_index) {
        size_t found = SIZE_MAX;

        for (size_t i = 0; i < n; i++) {
                if (!startswith(ids[i], text) && !endswith(ids[i], text))
                        continue;
                if (streq(ids[i], text)) {
                        found = i;
                        break;
                }
                if (found != SIZE_MAX)
                        return -ENOTUNIQ;
                found = i;
        }
        if (found == SIZE_MAX)
                return -ENOENT;
        *ret_index = found;
        return 0;
}

/* Appends up to LIMIT ids older than BEFORE (NULL: the newest). */
static int list_ids(Client *c, const char *before, uint32_t limit, char ***ids) {
        _cleanup_(sd_bus_message_unrefp) sd_bus_message *m = NULL, *reply = NULL;
        const char *id;
        int r, n = 0;

        r = client_new_call(c, &manager_target, "ListRuns", &m);
        if (r < 0)
                return r;
        if (before)
                r = sd_bus_message_append(m, "a{sv}", 2, "limit", "u", limit, "before", "s", before);
        else
                r = sd_bus_message_append(m, "a{sv}", 1, "limit", "u", limit);
        if (r < 0)
                return fail_errno(r, "Cannot make a message");
        r = client_send(c, m, &reply);
        if (r < 0)
                return r;

        r = sd_bus_message_enter_container(reply, 'a', "(sosssssttt)");
        if (r < 0)
                return client_bad_reply(r);
        while ((r = sd_bus_message_read(reply, "(sosssssttt)", &id, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
                                        NULL)) > 0) {
                if (strv_extend(ids, id) < 0)
                        return fail_oom();
                n++;
        }
        return r < 0 ? client_bad_reply(r) : n;
}

int run_id_resolve(Client *c, const char *text, char **ret) {
        _cleanup_strv_free_ char **ids = NULL;
        bool last = streq(text, "last");
        size_t n = 0, index = 0, l = strlen(text);
        int r;

        if (run_id_is_valid(text)) {
                *ret = strdup(text);
                return *ret ? 0 : fail_oom();
        }
        if (!last && (l < PART_MIN || l > RUN_ID_LEN || strspn(text, "0123456789abcdef") != l))
                return fail_usage("\"%s\" is no run: give its id, at least %d digits of the id's beginning or end, or "
                                  "\"last\".", text, PART_MIN);

        for (unsigned page = 0; page < PAGES_MAX; page++) {
                r = list_ids(c, n > 0 ? ids[n - 1] : NULL, last ? 1 : PAGE_SIZE, &ids);
                if (r < 0)
                        return r;
                n += (size_t) r;
                if (last || (uint32_t) r < PAGE_SIZE)
                        break;
        }

        if (last) {
                if (n == 0)
                        return fail("There is no run yet.");
        } else {
                r = run_id_match(ids, n, text, &index);
                if (r == -ENOTUNIQ)
                        return fail("Several runs match \"%s\"; give more digits of the one that is meant.", text);
                if (r < 0)
                        return fail("There is no run \"%s\". \"agentctl runs\" shows what there is.", text);
        }
        *ret = strdup(ids[index]);
        return *ret ? 0 : fail_oom();
}
