/* SPDX-License-Identifier: LGPL-2.1-or-later */
#undef NDEBUG

/* A path that comes through is stable, starts with '/', and holds no dot segment, double slash or byte outside of
 * a URL's path. */

#include "http/http-path.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
        _cleanup_free_ char *out = NULL, *again = NULL;

        _cleanup_free_ char *slashes = NULL, *slashes_again = NULL;

        /* With escaped slashes: stable as well, what comes through plainly comes through the same, and between slashes
         * of either kind there is no dot segment. */
        if (http_path_canonicalize_slashes((const char *) data, size, &slashes) >= 0) {
                assert(http_path_canonicalize_slashes(slashes, strlen(slashes), &slashes_again) == 0);
                assert(streq(slashes, slashes_again));
                for (char *p; (p = strstr(slashes_again, "%2F"));) {
                        *p = '/';
                        memmove(p + 1, p + 3, strlen(p + 3) + 1);
                }
                assert(!strstr(slashes_again, "/../") && !strstr(slashes_again, "/./"));
                assert(!endswith(slashes_again, "/..") && !endswith(slashes_again, "/."));
        }

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
