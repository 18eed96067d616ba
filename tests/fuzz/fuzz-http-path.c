/* SPDX-License-Identifier: LGPL-2.1-or-later */
#undef NDEBUG

/* A path that comes through is stable, starts with '/', and holds no dot segment, double slash or byte outside of
 * a URL's path. */

#include "http/http-path.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
        _cleanup_free_ char *out = NULL, *again = NULL;

        if (http_path_canonicalize((const char *) data, size, &out) < 0)
                return 0;

        assert(out[0] == '/' && strlen(out) <= HTTP_PATH_MAX);
        assert(http_path_canonicalize(out, strlen(out), &again) == 0);
        assert(streq(out, again));
        assert(!strstr(out, "//") && !strstr(out, "/../") && !strstr(out, "/./"));
        assert(!endswith(out, "/..") && !endswith(out, "/."));
        assert(!strcasestr(out, "%2f") && !strcasestr(out, "%5c") && !strstr(out, "%00") && !strcasestr(out, "%2e"));
        assert(out[strcspn(out, "?#\\\r\n \"<>")] == 0);
        return 0;
}
