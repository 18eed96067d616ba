/* SPDX-License-Identifier: LGPL-2.1-or-later */

/*
 * Feeds definition_parse(). What is refused says why in one harmless line; what is accepted holds only values that may
 * go into a path, a unit's property and a log, stays within the bounds, and survives being written and read again.
 */

#undef NDEBUG

#include "basic/name-util.h"
#include "basic/string-util.h"

#include "definition.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
        _cleanup_(definition_freep) Definition *d = NULL, *again = NULL;
        _cleanup_free_ char *exact = NULL, *error = NULL, *text = NULL, *text2 = NULL, *policy = NULL;
        char digest[DIGEST_LEN + 1], digest2[DIGEST_LEN + 1];
        static Settings *settings;
        int r;

        if (!settings)
                assert(settings_new(&settings) == 0);
        /* Of its exact size, so that a read beyond the end is seen. */
        exact = malloc(size > 0 ? size : 1);
        assert(exact);
        memcpy(exact, data, size);

        r = definition_parse(exact, size, settings, 0, &d, &error);
        if (r < 0) {
                assert((r == -EINVAL || r == -E2BIG) && !d);
                assert(error && !string_has_cc(error) && utf8_is_valid(error, strlen(error)) && strlen(error) < 1024);
                return 0;
        }
        assert(!error);
        assert(object_name_is_valid(d->name) && object_name_is_valid(d->image) && d->command[0][0] == '/');
        assert(agent_kind_to_string(d->kind));
        assert(d->concurrency >= 1 && d->concurrency <= DEFINITION_CONCURRENCY_MAX);
        assert(d->limits.memory <= settings->maximum.memory && d->limits.cpu <= settings->maximum.cpu);
        assert(d->limits.timeout_usec <= settings->maximum.timeout_usec && d->limits.tasks <= settings->maximum.tasks);
        assert(d->limits.tasks > 0 && d->limits.memory > 0 && d->limits.cpu > 0 && d->limits.timeout_usec > 0);
        for (char **e = d->environment; *e; e++)
                assert(strchr(*e, '=') && !startswith(*e, "AGENT_") && utf8_is_valid(*e, strlen(*e)));
        for (char **s = d->services; *s; s++)
                assert(object_name_is_valid(*s));

        assert(definition_format(d, &text) >= 0);
        assert(definition_parse(text, strlen(text), settings, 0, &again, NULL) >= 0);
        assert(definition_format(again, &text2) >= 0 && streq(text, text2));
        assert(definition_policy(d, NULL, &policy, digest) >= 0);
        assert(definition_policy(again, NULL, NULL, digest2) >= 0 && streq(digest, digest2));
        return 0;
}
