/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * One check of one runner by one node, for all runs that wait for it. It is carried out in the sandbox of the run that
 * came first, under the restrictions of a run, by a unit of its own. The verdict is committed before anybody goes on.
 * When the check itself fails, no verdict is kept: all that wait end this attempt, and the next one checks anew.
 */
#include <fcntl.h>
#include <sys/mman.h>
#include <systemd/sd-journal.h>

#include "basic/fs-util.h"
#include "basic/string-util.h"
#include "run.h"
#include "runner-check.h"

#define OUTPUT_MAX 65536U

/* In the journal entry of a runner that is quarantined. */
#define MESSAGE_RUNNER_QUARANTINED "8c0d6c5d1f6e4d0f9a53f6a1f0f3f1c4"

struct RunnerCheck {
        Manager *manager;
        char *key; /* runner and node */
        Runner *runner;
        char node[DIGEST_LEN + 1];
        Run *owner;   /* whose sandbox it is */
        Run *waiting; /* the others, in the order in which they came */
        Unit *unit;
        int output_fd; /* a memfd; LimitFSIZE= bounds what can be written there */
        int record_fd; /* another: agent-check's exit status */
};

static void check_free(RunnerCheck *c) {
        if (c->key)
                strmap_remove(c->manager->checks, c->key);
        unit_free(c->unit);
        safe_close(c->output_fd);
        safe_close(c->record_fd);
        runner_unref(c->runner);
        free(c->key);
        free(c);
}

static void announce(RunnerCheck *c, const char *reason) {
        sd_journal_send("MESSAGE=Runner %s (%s %s) is quarantined for the node %s: %s", c->runner->digest,
                        c->runner->name, c->runner->version, c->node, reason, "MESSAGE_ID=" MESSAGE_RUNNER_QUARANTINED,
                        "PRIORITY=%i", LOG_WARNING, "AGENT_RUNNER=%s", c->runner->digest, "AGENT_NODE=%s", c->node,
                        "AGENT_REASON=%s", reason, "AGENT_RUN=%s", c->owner->row->id, NULL);
        sd_bus_emit_signal(c->manager->bus, BUS_PATH, BUS_INTERFACE_MANAGER, "RunnerQuarantined", "sss",
                           c->runner->digest, c->node, reason);
}

/* All that wait, the owner first; the check is gone before anybody is told. */
static void check_tell(RunnerCheck *c, CheckVerdict verdict, const char *reason) {
        _cleanup_free_ char *text = strdup(strempty(reason));
        Run *run = c->owner;

        run->next_waiting = c->waiting;
        for (Run *w = run; w; w = w->next_waiting)
                w->check = NULL;
        check_free(c);
        while (run) {
                Run *next = run->next_waiting; /* RUN may be gone afterwards */

                run->next_waiting = NULL;
                if (verdict == CHECK_ERROR)
                        run_fail(run, "validate", -EIO, text);
                else
                        run_runner_settle(run);
                run = next;
        }
}

static void check_end(RunnerCheck *c, CheckVerdict verdict, const char *reason) {
        int r;

        /* Where the runner brings its own node along, that is part of it: what goes wrong in a second sandbox too is
         * the runner's fault. */
        if (verdict == CHECK_ERROR && c->runner->node && c->owner->row->attempt > 1)
                verdict = CHECK_BROKEN;
        if (verdict != CHECK_ERROR) {
                r = store_verdict_add(c->manager->store, c->runner->digest, c->node, verdict == CHECK_OK, reason);
                if (r == -ENOENT) {
                        verdict = CHECK_ERROR; /* it was removed meanwhile */
                        reason = "the runner was removed meanwhile";
                } else if (r < 0) {
                        log_error_errno(r, "The verdict about runner %s cannot be stored: %s", c->runner->digest,
                                        store_error(c->manager->store));
                        verdict = CHECK_ERROR;
                        reason = "the verdict cannot be stored";
                } else if (r > 0 && verdict == CHECK_BROKEN)
                        announce(c, reason);
        }
        c->owner->checked = verdict == CHECK_OK;
        check_tell(c, verdict, reason);
}

static void check_judge(RunnerCheck *c) {
        _cleanup_free_ char *output = NULL, *reason = NULL;
        const UnitResult *u = unit_result(c->unit);
        int status = CHECK_STATUS_NONE;
        CheckVerdict verdict;
        uint8_t record;
        size_t size = 0;

        if (pread(c->record_fd, &record, 1, 0) == 1)
                status = record;

        if (lseek(c->output_fd, 0, SEEK_SET) < 0 || read_full_fd(c->output_fd, OUTPUT_MAX * 2, &output, &size) < 0 ||
            !(output = output ?: strdup("")))
                verdict = CHECK_ERROR;
        else {
                for (size_t i = 0; i < size; i++)
                        if (!output[i])
                                output[i] = ' ';
                verdict = runner_check_judge(output, u->result, status, &reason);
        }
        check_end(c, verdict, reason ?: "its output cannot be read");
}

static void on_unit(Unit *u, UnitEvent event, const char *message, void *userdata) {
        RunnerCheck *c = userdata;
        const UnitResult *result = unit_result(u);
        _cleanup_free_ char *reason = NULL;

        switch (event) {
        case UNIT_RUNNING:
        case UNIT_ADRIFT: /* agent-check keeps the time of each script */
                return;
        case UNIT_START_FAILED:
                /* A oneshot's failure is one of its start job, too; 200 and more are PID 1's own. */
                if (isempty(result->result) || unit_result_is_setup(result)) {
                        reason = strdup(strempty(message));
                        check_end(c, CHECK_ERROR, strempty(reason));
                        return;
                }
                break;
        case UNIT_GONE:
                check_end(c, CHECK_ERROR, "its unit is gone");
                return;
        case UNIT_ENDED:
                break;
        }
        check_judge(c);
}

static int unit_properties(sd_bus_message *m, void *userdata) {
        RunnerCheck *c = userdata;

        return run_check_properties(m, c->owner, c->output_fd, c->record_fd);
}

static int check_start(RunnerCheck *c) {
        _cleanup_free_ char *name = NULL;
        int r;

        c->unit = unit_free(c->unit);
        c->output_fd = safe_close(c->output_fd);
        c->record_fd = safe_close(c->record_fd);
        c->output_fd = memfd_create("agentd-check", MFD_CLOEXEC);
        c->record_fd = memfd_create("agentd-check-exit", MFD_CLOEXEC);
        if (c->output_fd < 0 || c->record_fd < 0)
                return -errno;
        name = strprintf("agent-check-%s-%u-%u.service", c->owner->row->id, c->owner->row->attempt, c->owner->composed);
        r = name ? unit_start(c->manager->systemd, name, unit_properties, on_unit, c, &c->unit) : -ENOMEM;
        if (r >= 0)
                unit_hold(c->unit);
        return r;
}

int runner_check_join(Run *run) {
        _cleanup_free_ char *key = strprintf("%s %s", run->runner->digest, run->node);
        Manager *m = run->manager;
        RunnerCheck *c;
        int r;

        if (!key)
                return -ENOMEM;
        c = strmap_get(m->checks, key);
        if (c) {
                Run **tail = &c->waiting;

                while (*tail)
                        tail = &(*tail)->next_waiting;
                run->next_waiting = NULL;
                *tail = run;
                run->check = c;
                return 0;
        }
        c = calloc(1, sizeof *c);
        if (!c)
                return -ENOMEM;
        *c = (RunnerCheck) { .manager = m, .owner = run, .output_fd = -EBADF, .record_fd = -EBADF };
        memcpy(c->node, run->node, sizeof c->node);
        c->runner = runner_ref(run->runner);
        c->key = TAKE_PTR(key);
        r = strmap_put(m->checks, c->key, c);
        if (r < 0) {
                c->key = mfree(c->key);
                check_free(c);
                return r;
        }
        if (c->runner->invalid) { /* no node may run it */
                check_end(c, CHECK_BROKEN, c->runner->invalid);
                return 0;
        }
        r = check_start(c);
        if (r < 0) {
                check_free(c);
                return r;
        }
        run->check = c;
        return 0;
}

void runner_check_leave(Run *run) {
        RunnerCheck *c = run->check;
        int r;

        if (!c)
                return;
        run->check = NULL;
        if (c->owner != run) {
                for (Run **w = &c->waiting; *w; w = &(*w)->next_waiting)
                        if (*w == run) {
                                *w = run->next_waiting;
                                break;
                        }
                return;
        }
        /* Its sandbox goes away, and the unit in it. */
        if (c->unit)
                unit_stop(c->unit);
        c->unit = unit_free(c->unit);
        c->owner = c->waiting;
        if (!c->owner) {
                check_free(c);
                return;
        }
        c->waiting = c->owner->next_waiting;
        r = check_start(c);
        if (r < 0)
                check_end(c, CHECK_ERROR, strerror(-r));
}

void runner_checks_free_all(Manager *m) {
        RunnerCheck *c;

        while ((c = strmap_first(m->checks))) {
                c->owner->next_waiting = c->waiting;
                for (Run *w = c->owner; w; w = w->next_waiting)
                        w->check = NULL;
                check_free(c);
        }
}
