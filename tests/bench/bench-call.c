/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * Our side of the run benchmarks: ExecuteAgent over sd-bus, until RunFinished of that run has come; one after the
 * other, or PARALLEL at a time.
 *
 *     bench-call AGENT COUNT PARALLEL  →  a JSON array of {"run","call_usec","usec"}: when called (CLOCK_REALTIME), how
 * long
 */
#include <systemd/sd-bus.h>
#include <systemd/sd-event.h>
#include <time.h>

#include "basic/macro.h"
#include "basic/string-util.h"
#include "basic/strmap.h"

typedef struct Bench {
        sd_event *event;
        sd_bus *bus;
        const char *agent;
        uint64_t count, parallel, started, ended;
        StrMap *calls;    /* Call, by object path */
        StrMap *finished; /* paths whose end came before their reply */
        sd_event_source *defer;
} Bench;

typedef struct Call {
        Bench *bench;
        char *path;
        uint64_t begin, begin_realtime, end;
} Call;

static uint64_t now(clockid_t clock) {
        struct timespec ts;

        clock_gettime(clock, &ts);
        return (uint64_t) ts.tv_sec * USEC_PER_SEC + (uint64_t) ts.tv_nsec / NSEC_PER_USEC;
}

static void call_end(Call *c) {
        Bench *b = c->bench;

        printf("%s{\"run\":\"%s\",\"call_usec\":%" PRIu64 ",\"usec\":%" PRIu64 "}", b->ended > 0 ? "," : "",
               strrchr(c->path, '/') + 1, c->begin_realtime, c->end - c->begin);
        strmap_remove(b->calls, c->path);
        free(c->path);
        free(c);
        if (++b->ended == b->count)
                sd_event_exit(b->event, 0);
        else
                sd_event_source_set_enabled(b->defer, SD_EVENT_ON);
}

static int on_reply(sd_bus_message *m, void *userdata, sd_bus_error *e) {
        Call *c = userdata;
        const char *path;

        if (sd_bus_message_get_error(m)) {
                fprintf(stderr, "bench-call: %s\n", sd_bus_message_get_error(m)->message);
                exit(EXIT_FAILURE);
        }
        assert(sd_bus_message_read(m, "o", &path) >= 0);
        c->path = strdup(path);
        assert(c->path && strmap_put(c->bench->calls, c->path, c) >= 0);
        if (strmap_get(c->bench->finished, path)) {
                c->end = now(CLOCK_MONOTONIC);
                call_end(c);
        }
        return 0;
}

static int on_finished(sd_bus_message *m, void *userdata, sd_bus_error *e) {
        const char *id, *path, *result, *message;
        Bench *b = userdata;
        Call *c;

        assert(sd_bus_message_read(m, "soss", &id, &path, &result, &message) >= 0);
        c = strmap_get(b->calls, path);
        if (!c) { /* somebody else's, or one of ours whose reply is still under way */
                char *p = strdup(path);

                assert(p && strmap_put(b->finished, p, p) >= 0);
                return 0;
        }
        if (!streq(result, "success")) {
                fprintf(stderr, "bench-call: %s: %s: %s\n", id, result, message);
                exit(EXIT_FAILURE);
        }
        c->end = now(CLOCK_MONOTONIC);
        call_end(c);
        return 0;
}

static int on_defer(sd_event_source *s, void *userdata) {
        Bench *b = userdata;
        Call *c;

        if (b->started == b->count || b->started - b->ended >= b->parallel) {
                sd_event_source_set_enabled(s, SD_EVENT_OFF);
                return 0;
        }
        c = calloc(1, sizeof *c);
        assert(c);
        *c = (Call) { .bench = b, .begin = now(CLOCK_MONOTONIC), .begin_realtime = now(CLOCK_REALTIME) };
        assert(sd_bus_call_method_async(b->bus, NULL, "org.agentd1", "/org/agentd1", "org.agentd1.Manager",
                                        "ExecuteAgent", on_reply, c, "ssa{sv}", b->agent, "", 0) >= 0);
        b->started++;
        return 0;
}

int main(int argc, char *argv[]) {
        Bench b = {};
        char *p;

        if (argc != 4 || parse_uint64(argv[2], &b.count) < 0 || parse_uint64(argv[3], &b.parallel) < 0 ||
            b.count == 0 || b.parallel == 0) {
                fprintf(stderr, "Usage: bench-call AGENT COUNT PARALLEL\n");
                return 2;
        }
        b.agent = argv[1];
        assert((b.calls = strmap_new()) && (b.finished = strmap_new()));
        assert(sd_event_default(&b.event) >= 0 && sd_bus_open_system(&b.bus) >= 0);
        assert(sd_bus_attach_event(b.bus, b.event, 0) >= 0);
        assert(sd_bus_match_signal(b.bus, NULL, "org.agentd1", "/org/agentd1", "org.agentd1.Manager", "RunFinished",
                                   on_finished, &b) >= 0);
        assert(sd_event_add_defer(b.event, &b.defer, on_defer, &b) >= 0);
        assert(sd_event_source_set_enabled(b.defer, SD_EVENT_ON) >= 0);
        printf("[");
        assert(sd_event_loop(b.event) >= 0);
        printf("]\n");
        while ((p = strmap_first(b.finished))) {
                strmap_remove(b.finished, p);
                free(p);
        }
        strmap_free(b.finished);
        strmap_free(b.calls);
        sd_event_source_unref(b.defer);
        sd_bus_flush_close_unref(b.bus);
        sd_event_unref(b.event);
        return 0;
}
