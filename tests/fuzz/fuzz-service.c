/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * Feeds service_parse() and live_run_parse(). What is accepted must survive being written and read
 * again, and no definition may match a path that is not canonical.
 */

#undef NDEBUG

#include "basic/string-util.h"
#include "service/live-run.h"
#include "service/service.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
        _cleanup_(service_unrefp) Service *s = NULL, *again = NULL;
        _cleanup_(live_run_unrefp) LiveRun *l = NULL, *m = NULL;
        _cleanup_free_ char *text = NULL, *error = NULL, *json = NULL, *json2 = NULL, *live = NULL;
        int r;

        text = malloc(size + 1);
        assert(text);
        memcpy(text, data, size);
        text[size] = 0;

        r = service_parse(text, size, SERVICE_ALLOW_HTTP, &s, &error);
        if (r >= 0) {
                assert(object_name_is_valid(s->name) && s->base_url.host && s->base_url.port > 0);
                assert(service_to_json(s, &json) >= 0);
                assert(service_parse(json, strlen(json), SERVICE_ALLOW_HTTP, &again, NULL) >= 0);
                assert(service_to_json(again, &json2) >= 0 && streq(json, json2));
                for (size_t i = 0; i < s->n_allow; i++)
                        if (s->allow[i].methods[0]) {
                                assert(!service_match(s, s->allow[i].methods[0], "/a/../b", NULL));
                                assert(!service_match(s, s->allow[i].methods[0], "//", NULL));
                                service_match(s, s->allow[i].methods[0], "/a/b/c", NULL);
                        }
        } else
                assert(r == -EINVAL && !s);

        error = mfree(error);
        r = live_run_parse(text, size, &l, &error);
        if (r >= 0) {
                assert(live_run_to_json(l, &live) >= 0);
                assert(live_run_parse(live, strlen(live), &m, NULL) >= 0);
        }

        return 0;
}
