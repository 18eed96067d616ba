/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* mmdebstrap, with its output on our stderr (the journal) and its last words in the error. */
#include <fcntl.h>
#include <glob.h>
#include <spawn.h>
#include <sys/wait.h>

#include "basic/fs-util.h"
#include "basic/string-util.h"
#include "build.h"
#include "report.h"

#define SUITE "trixie"
#define SOURCES_SIZE_MAX (1U << 20)

static const char default_packages[] = "ca-certificates,curl,git,nodejs,python3";

static bool package_is_valid(const char *s) {
        return ((*s >= 'a' && *s <= 'z') || (*s >= '0' && *s <= '9')) && strlen(s) <= 128 &&
                s[strspn(s, "abcdefghijklmnopqrstuvwxyz0123456789+-.:")] == 0;
}

static bool mirror_is_valid(const char *s) {
        if (!startswith(s, "http://") && !startswith(s, "https://") && !startswith(s, "file:///"))
                return false;
        return strlen(s) < 1024 && !string_has_cc(s) && !strpbrk(s, " '\"\\");
}

/* The first URI of a Debian archive in one of apt's files, of either form. */
static int find_uri(const char *path, char **ret) {
        _cleanup_free_ char *text = NULL;
        char *save = NULL;
        int r;

        r = read_full_file_at(AT_FDCWD, path, SOURCES_SIZE_MAX, &text, NULL);
        if (r < 0)
                return r;
        for (char *l = strtok_r(text, "\n", &save); l; l = strtok_r(NULL, "\n", &save)) {
                char *words = NULL;

                if (!startswith(l, "deb ") && !startswith(l, "URIs:"))
                        continue;
                for (char *w = strtok_r(l, " \t", &words); w; w = strtok_r(NULL, " \t", &words))
                        /* Other archives than the distribution's own, and its security part, have other layouts. */
                        if (mirror_is_valid(w) && strstr(w, "/debian") && !strstr(w, "-security")) {
                                *ret = strdup(w);
                                return *ret ? 0 : -ENOMEM;
                        }
        }
        return -ENOENT;
}

static int host_mirror(char **ret) {
        static const char *const patterns[] = { "/etc/apt/sources.list", "/etc/apt/sources.list.d/*.list",
                                                "/etc/apt/sources.list.d/*.sources" };
        glob_t g = {};
        int r = -ENOENT;

        for (size_t i = 0; i < ELEMENTSOF(patterns); i++)
                (void) glob(patterns[i], i > 0 ? GLOB_APPEND : 0, NULL, &g);
        for (size_t i = 0; r < 0 && i < g.gl_pathc; i++)
                r = find_uri(g.gl_pathv[i], ret);
        globfree(&g);
        return r;
}

static int run(char *const *argv, char **ret_last) {
        char line[4096], last[512] = "";
        posix_spawn_file_actions_t actions;
        int pipe_fds[2], status, r;
        pid_t pid;
        FILE *f;

        if (pipe2(pipe_fds, O_CLOEXEC) < 0)
                return -errno;
        r = -posix_spawn_file_actions_init(&actions);
        if (r >= 0)
                r = -posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
        if (r >= 0)
                r = -posix_spawn_file_actions_adddup2(&actions, pipe_fds[1], STDOUT_FILENO);
        if (r >= 0)
                r = -posix_spawn_file_actions_adddup2(&actions, pipe_fds[1], STDERR_FILENO);
        if (r >= 0)
                r = -posix_spawnp(&pid, argv[0], &actions, NULL, argv, environ);
        posix_spawn_file_actions_destroy(&actions);
        close(pipe_fds[1]);
        f = r < 0 ? NULL : fdopen(pipe_fds[0], "r");
        if (!f) {
                close(pipe_fds[0]);
                return r < 0 ? r : -ENOMEM;
        }
        for (uint64_t n = 0; fgets(line, sizeof line, f);) {
                fputs(line, stderr);
                line[strcspn(line, "\r\n")] = 0;
                if (startswith(line, "E: ") || !last[0])
                        snprintf(last, sizeof last, "%.500s", line);
                report_step("installing", ++n);
        }
        fclose(f);
        while (waitpid(pid, &status, 0) < 0)
                if (errno != EINTR)
                        return -errno;
        *ret_last = escape_name(last);
        return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

int build_debian(const char *tree, const char *mirror, char *const *packages) {
        _cleanup_free_ char *found = NULL, *include = strprintf("--include=%s", default_packages), *last = NULL;
        int r;

        for (char *const *p = packages; include && p && *p; p++) {
                char *k;

                if (!package_is_valid(*p)) {
                        _cleanup_free_ char *shown = escape_name(*p);

                        return report_error(0, "InvalidOption", "\"%s\" is no name of a package", strempty(shown));
                }
                k = strprintf("%s,%s", include, *p);
                free(include);
                include = k;
        }
        if (!include)
                return report_errno(-ENOMEM, "Building the image");
        if (!mirror) {
                r = host_mirror(&found);
                if (r < 0)
                        return report_error(0, "InvalidOption",
                                            "The host's apt has no Debian mirror configured: name one with mirror=");
                mirror = found;
        } else if (!mirror_is_valid(mirror))
                return report_error(0, "InvalidOption", "The mirror must be an http://, https:// or file:// address");
        report_step("installing", 0);
        r = run((char *const[]) { (char *) "mmdebstrap", (char *) "--mode=root", (char *) "--variant=minbase",
                                  (char *) "--aptopt=Acquire::Languages \"none\"",
                                  (char *) "--dpkgopt=path-exclude=/usr/share/man/*",
                                  (char *) "--dpkgopt=path-exclude=/usr/share/doc/*",
                                  (char *) "--dpkgopt=path-include=/usr/share/doc/*/copyright",
                                  include, (char *) "--format=directory", (char *) SUITE, (char *) tree,
                                  (char *) mirror, NULL },
                &last);
        if (r == -ENOENT)
                return report_error(r, "Failed", "mmdebstrap is not installed");
        if (r < 0)
                return report_errno(r, "Running mmdebstrap");
        if (r > 0)
                return report_error(0, "BuildFailed", "mmdebstrap failed (%d): %s", r, strempty(last));
        return 0;
}
