/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Lines of JSON on stdout. */
#include <stdarg.h>
#include <time.h>

#include "basic/json-util.h"
#include "basic/string-util.h"
#include "report.h"

#define STEP_INTERVAL_NSEC (200 * 1000 * 1000)

static void put(sd_json_variant *v) {
        (void) sd_json_variant_dump(v, SD_JSON_FORMAT_NEWLINE | SD_JSON_FORMAT_FLUSH, stdout, NULL);
}

void report_step(const char *step, uint64_t progress) {
        static const char *last;
        static struct timespec when;
        _cleanup_json_ sd_json_variant *v = NULL;
        struct timespec now;

        clock_gettime(CLOCK_MONOTONIC, &now);
        if (last && streq(last, step) &&
            (now.tv_sec - when.tv_sec) * INT64_C(1000000000) + now.tv_nsec - when.tv_nsec < STEP_INTERVAL_NSEC)
                return;
        last = step;
        when = now;
        if (sd_json_buildo(&v, SD_JSON_BUILD_PAIR_STRING("step", step),
                           SD_JSON_BUILD_PAIR_UNSIGNED("progress", progress)) >= 0)
                put(v);
}

void report_result(const char *digest, uint64_t size, uint64_t entries) {
        _cleanup_json_ sd_json_variant *v = NULL;

        if (sd_json_buildo(&v, SD_JSON_BUILD_PAIR_CONDITION(!!digest, "digest", SD_JSON_BUILD_STRING(digest)),
                           SD_JSON_BUILD_PAIR_UNSIGNED("size", size),
                           SD_JSON_BUILD_PAIR_UNSIGNED("entries", entries)) >= 0)
                put(v);
}

void report_runner(uint64_t size, uint64_t entries, sd_json_variant *manifest) {
        _cleanup_json_ sd_json_variant *v = NULL;

        if (sd_json_buildo(&v, SD_JSON_BUILD_PAIR_UNSIGNED("size", size),
                           SD_JSON_BUILD_PAIR_UNSIGNED("entries", entries),
                           SD_JSON_BUILD_PAIR_VARIANT("manifest", manifest)) >= 0)
                put(v);
}

int report_error(int r, const char *name, const char *format, ...) {
        static bool told;
        _cleanup_json_ sd_json_variant *v = NULL;
        char message[2048];
        va_list ap;

        va_start(ap, format);
        vsnprintf(message, sizeof message, format, ap);
        va_end(ap);
        if (!told && sd_json_buildo(&v, SD_JSON_BUILD_PAIR_STRING("error", name),
                                    SD_JSON_BUILD_PAIR_STRING("message", message)) >= 0)
                put(v);
        told = true;
        return r < 0 ? r : -EINVAL;
}

int report_errno(int r, const char *doing) {
        switch (r) {
        case -ENOSPC:
        case -EDQUOT:
                return report_error(r, "NoSpace", "The disk of the store is full (%s). Make room, for example with "
                                                  "\"agentctl env prune\", and try again.", doing);
        case -ENOMEM:
                return report_error(r, "NoMemory", "There is not enough memory (%s)", doing);
        default:
                return report_error(r, "Failed", "%s failed: %s", doing, strerror(-r));
        }
}

char *escape_name(const char *name) {
        size_t n = strlen(name), o = 0;
        char *s;

        if (utf8_is_valid(name, n) && !string_has_cc(name) && n <= 256)
                return strdup(name);
        s = malloc(MIN(n, (size_t) 256) * 4 + 4);
        if (!s)
                return NULL;
        for (size_t i = 0; i < n && i < 256; i++) {
                unsigned char c = (unsigned char) name[i];

                if (c >= 0x20 && c < 0x7f && c != '\\')
                        s[o++] = (char) c;
                else
                        o += (size_t) sprintf(s + o, "\\x%02x", c);
        }
        strcpy(s + o, n > 256 ? "..." : "");
        return s;
}
