/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The shipped packaging/agentd.conf tells the truth: each line that is commented out says what holds without it, and
 * agentd knows each key. Settings that contradict each other stop the start with a sentence.
 */
#include <sched.h>
#include <sys/mount.h>

#include "basic/fs-util.h"
#include "basic/log.h"
#include "basic/string-util.h"

#include "settings.h"

#define CONF "/run/agentd-config/agentd.conf"

static void put(const char *text) {
        assert(write_file_atomic(AT_FDCWD, CONF, text, strlen(text), 0644, (uid_t) -1, (gid_t) -1, 0) == 0);
}

static void equal(const Settings *a, const Settings *b) {
        Settings x = *a, y = *b;

        assert(streq_ptr(a->runner_directory, b->runner_directory) && streq_ptr(a->image_mirror, b->image_mirror));
        assert(strv_length(a->edit_hosts) == strv_length(b->edit_hosts));
        for (size_t i = 0; a->edit_hosts && a->edit_hosts[i]; i++)
                assert(streq(a->edit_hosts[i], b->edit_hosts[i]));
        x.edit_hosts = y.edit_hosts = NULL;
        x.runner_directory = y.runner_directory = x.image_mirror = y.image_mirror = NULL;
        assert(memcmp(&x, &y, sizeof x) == 0);
}

int main(void) {
        _cleanup_(settings_freep) Settings *defaults = NULL, *shipped = NULL, *none = NULL;
        _cleanup_free_ char *text = NULL, *active = NULL, *error = NULL, *section = NULL;
        unsigned n = 0;
        size_t size;

        log_setup("test-settings");
        if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
            mount("tmpfs", "/run", "tmpfs", 0, NULL) < 0) {
                printf("skipped, cannot mount a tmpfs: %m\n");
                return 77;
        }
        assert(mkdir_parents("/run/agentd-config", 0755) == 0);
        assert(read_full_file_at(AT_FDCWD, SOURCE_ROOT "/packaging/agentd.conf", 1 << 20, &text, &size) == 0);
        assert(settings_new(&defaults) == 0);

        put(text);
        assert(settings_load("agentd.conf", &none, &error) == 0);
        equal(none, defaults);

        /* "#Key=value" is a setting, "# text" is not. */
        active = malloc(size + 1);
        assert(active);
        {
                char *out = active;

                for (const char *p = text; *p; p++)
                        if (!(*p == '#' && (p == text || p[-1] == '\n') && p[1] >= 'A' && p[1] <= 'Z'))
                                *out++ = *p;
                *out = 0;
        }
        put(active);
        assert(settings_load("agentd.conf", &shipped, &error) == 0);
        equal(shipped, defaults);

        /* A key that agentd does not know would only be warned about, so see that each is judged. */
        for (char *line = active, *next; line; line = next) {
                _cleanup_free_ char *bad = NULL;
                Settings *s = NULL;

                next = strchr(line, '\n');
                if (next)
                        *next++ = 0;
                if (line[0] == '[')
                        assert(free_and_strdup(&section, line) == 0);
                if (line[0] < 'A' || line[0] > 'Z' || !strchr(line, '=') || startswith(line, "Mirror="))
                        continue;
                *strchr(line, '=') = 0;
                bad = strprintf("%s\n%s=!\n", section, line);
                assert(bad);
                put(bad);
                assert(settings_load("agentd.conf", &s, NULL) == -EINVAL && !s);
                n++;
                if (streq(line, "AllowOtherHosts") || streq(line, "VerifyLayers")) /* booleans */
                        continue;
                free(bad);
                bad = strprintf("%s\n%s=0\n", section, line);
                assert(bad);
                put(bad);
                if (streq(line, "KeepFree")) /* 0 is off */
                        continue;
                assert(settings_load("agentd.conf", &s, NULL) < 0 && !s);
        }
        assert(n >= 30);

        put("[Run]\nDefaultMemory=9G\n");
        none = settings_free(none);
        assert(settings_load("agentd.conf", &none, &error) == -EINVAL && !none);
        assert(error && strstr(error, "DefaultMemory= is above MaxMemory="));
        put("[Retention]\nMaxAge=1h\n");
        error = mfree(error);
        assert(settings_load("agentd.conf", &none, &error) == -EINVAL && !none);
        assert(error && strstr(error, "MaxAge= is below IdempotencyWindow="));
        put("[Retention]\nMaxAge=infinity\nKeepFree=0\n");
        assert(settings_load("agentd.conf", &none, &error) == 0);
        assert(none->max_age_usec == UINT64_MAX && none->keep_free == 0 && defaults->keep_free == KEEP_FREE_AUTO);
        none = settings_free(none);
        put("[Images]\nMaxLayersPerUser=infinity\nIdleTimeout=infinity\n");
        assert(settings_load("agentd.conf", &none, &error) == 0);
        assert(none->max_layers_per_user == UINT64_MAX && none->image_idle_usec == UINT64_MAX);
        assert(defaults->max_layers_per_user < UINT64_MAX && defaults->image_idle_usec < UINT64_MAX);
        none = settings_free(none);
        put("[Run]\nDefaultMemory=9G\nMaxMemory=10G\nMaxCPU=50%\nDefaultCPU=0.25\n");
        assert(settings_load("agentd.conf", &none, &error) == 0);
        assert(none->maximum.cpu == 500000 && none->defaults.cpu == 250000);
        return 0;
}
