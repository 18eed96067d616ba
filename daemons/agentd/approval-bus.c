/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Requests that a person has to allow. The bridge holds such a request and asks by RequestApproval; the question is
 * announced, listed, and answered by whoever may start the run's agent. The bridge repeats its call (by the request's
 * id) while nobody has answered, also to an agentd that was restarted meanwhile; when it stops to, the question is
 * over. Questions live in memory only: without the request that is held they mean nothing.
 */
#include "basic/string-util.h"
#include "bus-util.h"
#include "run.h"

#define APPROVALS_MAX 1000U
#define APPROVALS_USER_MAX 100U
/* The bridge repeats a call that got no answer after 30 s. */
#define FORGET_USEC (90 * USEC_PER_SEC)

typedef struct Approval {
        Manager *manager;
        char id[RUN_ID_LEN + 1]; /* the request's */
        char *run, *service, *method, *path;
        uid_t uid;
        uint64_t since_usec, left_usec; /* left: from then on, as the bridge holds the request */
        sd_bus_message *msg; /* the call that waits */
        sd_event_source *timer;
} Approval;

static Approval *approval_free(Approval *a) {
        if (!a)
                return NULL;
        if (a->manager->approvals)
                strmap_remove(a->manager->approvals, a->id);
        sd_event_source_disable_unref(a->timer);
        sd_bus_message_unref(a->msg);
        free(a->run);
        free(a->service);
        free(a->method);
        free(a->path);
        return mfree(a);
}
DEFINE_CLEANUP(Approval *, approval_free);

void approvals_free_all(Manager *m) {
        Approval *a;

        while (m->approvals && (a = strmap_first(m->approvals)))
                approval_free(a);
        m->approvals = strmap_free(m->approvals);
}

static int on_forget(sd_event_source *s, uint64_t usec, void *userdata) {
        approval_free(userdata);
        return 0;
}

static int approval_touch(Approval *a) {
        uint64_t now = now_realtime(), gone = now - MIN(a->since_usec, now),
                 usec = MIN(FORGET_USEC, a->left_usec - MIN(gone, a->left_usec));
        int r;

        if (!a->timer)
                return sd_event_add_time_relative(a->manager->event, &a->timer, CLOCK_MONOTONIC, usec, 0, on_forget, a);
        r = sd_event_source_set_time_relative(a->timer, usec);
        return r < 0 ? r : sd_event_source_set_enabled(a->timer, SD_EVENT_ONESHOT);
}

static unsigned approvals_of(Manager *m, uid_t uid) {
        unsigned n = 0;
        size_t i = 0;

        for (Approval *a; (a = strmap_next(m->approvals, &i));)
                n += a->uid == uid;
        return n;
}

static int approval_new(Manager *m, const StoreRun *row, const char *id, const char *service, const char *method,
                        const char *path, uint64_t timeout_usec, Approval **ret) {
        _cleanup_(approval_freep) Approval *a = calloc(1, sizeof *a);
        int r;

        if (!a)
                return -ENOMEM;
        a->manager = m;
        a->uid = row->uid;
        a->since_usec = now_realtime();
        a->left_usec = timeout_usec;
        strcpy(a->id, id);
        if (free_and_strdup(&a->run, row->id) < 0 || free_and_strdup(&a->service, service) < 0 ||
            free_and_strdup(&a->method, method) < 0 || free_and_strdup(&a->path, path) < 0)
                return -ENOMEM;
        if (!m->approvals && !(m->approvals = strmap_new()))
                return -ENOMEM;
        if (strmap_size(m->approvals) >= APPROVALS_MAX || approvals_of(m, row->uid) >= APPROVALS_USER_MAX)
                return -EDQUOT;
        r = strmap_put(m->approvals, a->id, a);
        if (r < 0)
                return r;
        *ret = TAKE_PTR(a);
        return 0;
}

int method_request_approval(sd_bus_message *msg, void *userdata, sd_bus_error *e) {
        _cleanup_(store_run_freep) StoreRun *row = NULL;
        _cleanup_free_ char *object = NULL;
        const char *run, *id, *service, *method, *path;
        Manager *m = userdata;
        uint32_t attempt;
        uint64_t timeout;
        bool fresh = false;
        Approval *a;
        int r;

        r = report_check_bridge(m, msg, e);
        if (r < 0)
                return r;
        r = sd_bus_message_read(msg, "susssst", &run, &attempt, &id, &service, &method, &path, &timeout);
        if (r < 0)
                return r;
        if (!run_id_is_valid(id) || strlen(path) > 8192 || string_has_cc(path) || !object_name_is_valid(service))
                return sd_bus_error_set(e, BUS_ERROR_INVALID_INPUT, "Not a valid question.");
        r = run_id_is_valid(run) ? store_run_get(m->store, run, &row) : -ENOENT;
        if (r >= 0 && (row->state == RUN_FINISHED || row->attempt != attempt))
                r = -ESTALE;
        if (r < 0)
                return report_error(m, e, r, run);

        a = m->approvals ? strmap_get(m->approvals, id) : NULL;
        if (a && !streq(a->run, run))
                return report_error(m, e, -ESTALE, run);
        if (!a) {
                r = approval_new(m, row, id, service, method, path, timeout, &a);
                if (r < 0)
                        return report_error(m, e, r, run);
                fresh = true;
        }
        r = approval_touch(a);
        if (r < 0) {
                approval_free(a);
                return r;
        }
        /* The one before has timed out on the other side. */
        sd_bus_message_unref(a->msg);
        a->msg = sd_bus_message_ref(msg);
        if (fresh && run_object_path(run, &object) >= 0)
                (void) sd_bus_emit_signal(m->bus, BUS_PATH, BUS_INTERFACE_MANAGER, "ApprovalRequested", "so", id,
                                          object);
        return 1; /* method_approve() replies */
}

int method_approve(sd_bus_message *msg, void *userdata, sd_bus_error *e) {
        _cleanup_(store_run_freep) StoreRun *row = NULL;
        Manager *m = userdata;
        const char *id;
        int granted, r;
        Approval *a;

        r = sd_bus_message_read(msg, "sb", &id, &granted);
        if (r < 0)
                return r;
        a = m->approvals ? strmap_get(m->approvals, id) : NULL;
        if (!a)
                return sd_bus_error_set(e, BUS_ERROR_NO_SUCH_APPROVAL, "Nothing of that id waits for an answer.");
        r = bus_resolve_run(m, msg, a->run, POLKIT_ACTION_EXECUTE, e, &row);
        if (r <= 0)
                return r < 0 ? r : 1;
        log_info("Run %s: request %s (%s %s) was %s.", a->run, a->id, a->method, a->service,
                 granted ? "approved" : "refused");
        r = sd_bus_reply_method_return(a->msg, "b", granted);
        (void) sd_bus_emit_signal(m->bus, BUS_PATH, BUS_INTERFACE_MANAGER, "ApprovalDecided", "sb", id, granted);
        approval_free(a);
        return r < 0 ? r : sd_bus_reply_method_return(msg, NULL);
}

int method_list_approvals(sd_bus_message *msg, void *userdata, sd_bus_error *e) {
        _cleanup_(sd_bus_message_unrefp) sd_bus_message *reply = NULL;
        Manager *m = userdata;
        size_t i = 0;
        uid_t uid;
        int r;

        r = bus_sender_euid(msg, &uid);
        if (r < 0)
                return r;
        r = bus_list_open(msg, "(ssssst)", &reply);
        if (r < 0)
                return r;
        for (Approval *a; m->approvals && (a = strmap_next(m->approvals, &i));) {
                if (uid != 0 && uid != a->uid)
                        continue;
                r = sd_bus_message_append(reply, "(ssssst)", a->id, a->run, a->service, a->method,
                                          a->path, a->since_usec);
                if (r < 0)
                        return r;
        }
        return bus_list_send(reply);
}
