/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The reference of the run benchmarks: starts a run's unit "by hand". It takes the root, namespace and uid of a run
 * that is live (an agent that sleeps), gives a unit of its own exactly the properties that agentd gives to runs, and
 * measures from the call to the unit's end; one after the other, or PARALLEL at a time.
 *
 *     bench-unit RUN UID COUNT PARALLEL COMMAND…  →  a JSON array of µs
 */
#include "basic/string-util.h"
#include "manager.h"
#include "run.h"

typedef struct Bench {
        Manager manager;
        StoreRun row;
        Definition *definition;
        uint64_t count, parallel, started, ended;
        sd_event_source *defer;
} Bench;

typedef struct One {
        Bench *bench;
        Run run;
        uint64_t begin;
        Unit *unit;
        char name[64];
} One;

static int properties(sd_bus_message *m, void *userdata) {
        One *one = userdata;

        return run_unit_properties(m, &one->run);
}

static void on_unit(Unit *u, UnitEvent event, const char *message, void *userdata) {
        One *one = userdata;
        Bench *b = one->bench;

        if (event == UNIT_RUNNING)
                return;
        if (event != UNIT_ENDED || unit_result(u)->status != 0) {
                fprintf(stderr, "bench-unit: %s: %s, status %d\n", one->name, strempty(message),
                        unit_result(u)->status);
                exit(EXIT_FAILURE);
        }
        printf("%s%" PRIu64, b->ended > 0 ? "," : "", now_monotonic() - one->begin);
        unit_free(u);
        free(one);
        if (++b->ended == b->count)
                sd_event_exit(b->manager.event, 0);
        else
                sd_event_source_set_enabled(b->defer, SD_EVENT_ON);
}

static int on_defer(sd_event_source *s, void *userdata) {
        Bench *b = userdata;
        One *one;

        if (b->started == b->count || b->started - b->ended >= b->parallel) {
                sd_event_source_set_enabled(s, SD_EVENT_OFF);
                return 0;
        }
        one = calloc(1, sizeof *one);
        assert(one);
        one->bench = b;
        one->run = (Run){
                .manager = &b->manager, .row = &b->row, .definition = b->definition, .uid = b->row.sandbox_uid
        };
        snprintf(one->name, sizeof one->name, "bench-%d-%" PRIu64 ".service", (int) getpid(), b->started++);
        one->run.unit_name = one->name;
        one->begin = now_monotonic();
        assert(unit_start(b->manager.systemd, one->name, properties, on_unit, one, &one->unit) >= 0);
        return 0;
}

int main(int argc, char *argv[]) {
        Bench b = { .row = { .user = (char *) "root", .agent = (char *) "bench", .timeout_usec = 60 * USEC_PER_SEC } };
        _cleanup_free_ char *error = NULL;
        uint64_t uid;

        if (argc < 6 || !run_id_is_valid(argv[1]) || parse_uint64(argv[2], &uid) < 0 ||
            parse_uint64(argv[3], &b.count) < 0 || parse_uint64(argv[4], &b.parallel) < 0 || b.count == 0 ||
            b.parallel == 0) {
                fprintf(stderr, "Usage: bench-unit RUN UID COUNT PARALLEL COMMAND...\n");
                return 2;
        }
        log_setup("bench-unit");
        memcpy(b.row.id, argv[1], RUN_ID_LEN);
        b.row.sandbox_uid = (uid_t) uid;
        assert(settings_load("agentd.conf", &b.manager.settings, &error) >= 0);
        {
                _cleanup_json_ sd_json_variant *v = NULL;
                _cleanup_free_ char *text = NULL;

                assert(sd_json_buildo(&v, SD_JSON_BUILD_PAIR_STRING("name", "bench"),
                                      SD_JSON_BUILD_PAIR_STRING("image", "bench"),
                                      SD_JSON_BUILD_PAIR_STRING("kind", "exec"),
                                      SD_JSON_BUILD_PAIR_STRV("command", argv + 5)) >= 0);
                assert(sd_json_variant_format(v, 0, &text) >= 0);
                if (definition_parse(text, strlen(text), b.manager.settings, 0, &b.definition, &error) < 0) {
                        fprintf(stderr, "bench-unit: %s\n", error);
                        return 2;
                }
        }
        assert(sd_event_default(&b.manager.event) >= 0);
        assert(sd_bus_open_system(&b.manager.bus) >= 0);
        assert(sd_bus_attach_event(b.manager.bus, b.manager.event, 0) >= 0);
        assert(systemd_client_new(b.manager.bus, &b.manager.systemd) >= 0);
        assert(sd_event_add_defer(b.manager.event, &b.defer, on_defer, &b) >= 0);
        assert(sd_event_source_set_enabled(b.defer, SD_EVENT_ON) >= 0);
        printf("[");
        assert(sd_event_loop(b.manager.event) >= 0);
        printf("]\n");

        sd_event_source_unref(b.defer);
        systemd_client_free(b.manager.systemd);
        sd_bus_flush_close_unref(b.manager.bus);
        sd_event_unref(b.manager.event);
        definition_free(b.definition);
        settings_free(b.manager.settings);
        return 0;
}
