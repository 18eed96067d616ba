/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* From the files that were deployed to the tree of a runner's layer. */
#include <dirent.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/xattr.h>

#include "basic/digest.h"
#include "basic/fs-util.h"
#include "basic/json-util.h"
#include "basic/name-util.h"
#include "basic/string-util.h"
#include "report.h"
#include "runner.h"
#include "tree.h"

#define RUNNER_JSON_MAX 65536U
#define RUNNER_DEPTH_MAX 64U
#define SCRIPT_SIZE_MAX (64U << 20)
#define SCRIPTS_MAX 256U
#define SCRIPTS_LENGTH_MAX 32768U /* of all their names: they go through one line of JSON */

typedef struct RunnerJson {
        char *name, *version, *main, *node, **check;
        /* collected */
        char **scripts;
        size_t scripts_length;
        int64_t entries;
} RunnerJson;

static void runner_json_done(RunnerJson *j) {
        free(j->name);
        free(j->version);
        free(j->main);
        free(j->node);
        strv_free(j->check);
        strv_free(j->scripts);
}

static int refuse(const char *path, const char *why) {
        _cleanup_free_ char *shown = escape_name(path);

        return report_error(0, "InvalidRunner", "The runner's file \"%s\" is refused: %s", strempty(shown), why);
}

static int failed(int r, const char *path) {
        _cleanup_free_ char *shown = escape_name(path), *doing = strprintf("Preparing \"%s\"", strempty(shown));

        return report_errno(r, strempty(doing));
}

bool runner_pattern_matches(const char *pattern, const char *path) {
        const char *slash = strrchr(path, '/');

        if (strchr(pattern, '/'))
                return fnmatch(pattern, path, FNM_PATHNAME | FNM_PERIOD) == 0;
        if (startswith(path, "node_modules/") || strstr(path, "/node_modules/"))
                return false;
        return fnmatch(pattern, slash ? slash + 1 : path, FNM_PERIOD) == 0;
}

size_t utf8_bad_line(const char *text, size_t size) {
        size_t line = 1;

        if (utf8_is_valid(text, size))
                return 0;
        for (const char *p = text, *end = text + size; p < end; line++) {
                const char *nl = memchr(p, '\n', (size_t) (end - p));

                if (!utf8_is_valid(p, (size_t) ((nl ?: end) - p)))
                        return line;
                if (!nl)
                        break;
                p = nl + 1;
        }
        return line;
}

static int field_inner_path(sd_json_variant *v, void *field, char **ret_reason) {
        if (!runner_path_is_valid(sd_json_variant_string(v))) {
                *ret_reason = strdup("must be a path inside the runner");
                return -EINVAL;
        }
        return json_field_string(v, field, ret_reason);
}

static int field_name(sd_json_variant *v, void *field, char **ret_reason) {
        const char *s = sd_json_variant_string(v);

        if (isempty(s) || strlen(s) > 64 || string_has_cc(s)) {
                *ret_reason = strdup("must be 1 to 64 characters");
                return -EINVAL;
        }
        return json_field_string(v, field, ret_reason);
}

static int read_runner_json(int root, RunnerJson *ret) {
        static const JsonField fields[] = {
                { "name", SD_JSON_VARIANT_STRING, field_name, offsetof(RunnerJson, name), true },
                { "version", SD_JSON_VARIANT_STRING, field_name, offsetof(RunnerJson, version), true },
                { "main", SD_JSON_VARIANT_STRING, field_inner_path, offsetof(RunnerJson, main), true },
                { "node", SD_JSON_VARIANT_STRING, field_inner_path, offsetof(RunnerJson, node), false },
                { "check", SD_JSON_VARIANT_ARRAY, json_field_strv, offsetof(RunnerJson, check), true },
                {},
        };
        _cleanup_json_ sd_json_variant *v = NULL;
        _cleanup_free_ char *text = NULL, *reason = NULL;
        _cleanup_close_ int fd = -EBADF;
        size_t size = 0;
        int r;

        fd = tree_open(root, "runner.json", O_RDONLY | O_NONBLOCK);
        if (fd == -ENOENT)
                return report_error(0, "InvalidRunner",
                                    "There is no runner.json at the top, so this is no runner (see agentctl(1))");
        if (fd < 0)
                return failed(fd, "runner.json");
        r = read_full_fd(fd, RUNNER_JSON_MAX, &text, &size);
        if (r < 0)
                return failed(r, "runner.json");
        r = json_parse(text, size, &v, &reason);
        if (r >= 0)
                r = json_read_object(v, "", fields, ret, &reason);
        if (r == -ENOMEM)
                return failed(r, "runner.json");
        return r < 0 ? report_error(0, "InvalidRunner", "runner.json: %s", strempty(reason)) : 0;
}

static bool is_script(const char *path) {
        return endswith(path, ".js") || endswith(path, ".cjs") || endswith(path, ".mjs");
}

static int add_script(RunnerJson *j, const char *path) {
        if (strv_contains(j->scripts, path))
                return 0;
        if (!runner_path_is_valid(path))
                return refuse(path,
                              "a script that is to be checked has a plain name, not hidden, of at most 255 bytes");
        j->scripts_length += strlen(path);
        if (strv_length(j->scripts) >= SCRIPTS_MAX || j->scripts_length > SCRIPTS_LENGTH_MAX)
                return report_error(0, "InvalidRunner",
                                    "runner.json: \"check\" names more than %u scripts; bundle them, or name fewer",
                                    SCRIPTS_MAX);
        return strv_extend(&j->scripts, path) < 0 ? failed(-ENOMEM, path) : 0;
}

static int strip_xattrs(int fd) {
        char list[65536];
        ssize_t n = flistxattr(fd, list, sizeof list);

        if (n < 0)
                return errno == EOPNOTSUPP ? 0 : -errno;
        for (const char *x = list; x < list + n; x += strlen(x) + 1)
                if (!startswith(x, "security.selinux") && fremovexattr(fd, x) < 0 && errno != ENODATA)
                        return -errno;
        return 0;
}

/* A link may point anywhere inside the runner, and nowhere else: a run would see something that was not deployed. */
static int check_link(int root, int dir, const char *name, const char *path) {
        struct open_how how = { .flags = O_PATH | O_CLOEXEC, .resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS };
        char target[PATH_MAX];
        ssize_t n;
        int fd;

        n = readlinkat(dir, name, target, sizeof target);
        if (n < 0)
                return failed(-errno, path);
        if (n == 0 || (size_t) n >= sizeof target || target[0] == '/')
                return refuse(path, "it is a symbolic link that leads out of the runner");
        fd = (int) syscall(SYS_openat2, root, path, &how, sizeof how);
        if (fd < 0)
                return errno == ENOENT ? refuse(path, "it is a symbolic link to something that is not there") :
                                         refuse(path, "it is a symbolic link that leads out of the runner");
        close(fd);
        return 0;
}

static const struct timespec no_times[2]; /* 1970 */

static int normalise(int root, int dir, const char *prefix, unsigned depth, RunnerJson *j);

static int normalise_entry(int root, int dir, const char *name, const char *path, unsigned depth, RunnerJson *j) {
        struct stat st;
        int r;

        j->entries++;
        report_step("preparing", (uint64_t) j->entries);
        if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
                return failed(-errno, path);
        if (S_ISLNK(st.st_mode)) {
                r = check_link(root, dir, name, path);
                if (r < 0)
                        return r;
        } else if (S_ISREG(st.st_mode) || S_ISDIR(st.st_mode)) {
                _cleanup_close_ int fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);

                if (fd < 0)
                        return failed(-errno, path);
                if (S_ISDIR(st.st_mode)) {
                        r = normalise(root, fd, path, depth + 1, j);
                        if (r < 0)
                                return r;
                } else if (is_script(path)) {
                        for (char **p = j->check; p && *p; p++)
                                if (runner_pattern_matches(*p, path)) {
                                        r = add_script(j, path);
                                        if (r < 0)
                                                return r;
                                        break;
                                }
                }
                if (fchown(fd, 0, 0) < 0 || fchmod(fd, S_ISDIR(st.st_mode) || (st.st_mode & 0111) ? 0555 : 0444) < 0)
                        return failed(-errno, path);
                r = strip_xattrs(fd);
                if (r < 0)
                        return failed(r, path);
        } else
                return refuse(path, "a runner has files, directories and symbolic links only");
        if (fchownat(dir, name, 0, 0, AT_SYMLINK_NOFOLLOW) < 0 ||
            utimensat(dir, name, no_times, AT_SYMLINK_NOFOLLOW) < 0)
                return failed(-errno, path);
        return 0;
}

static int compare_names(const void *a, const void *b) {
        return strcmp(*(char *const *) a, *(char *const *) b);
}

static int list_directory(int dir, char ***ret) {
        _cleanup_strv_free_ char **l = calloc(1, sizeof(char *));
        int fd = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), r = l ? 0 : -ENOMEM;
        struct dirent *de;
        DIR *d;

        if (fd < 0)
                return -errno;
        d = fdopendir(fd);
        if (!d) {
                r = -errno;
                close(fd);
                return r;
        }
        while (r >= 0 && (de = readdir(d)))
                if (!streq(de->d_name, ".") && !streq(de->d_name, ".."))
                        r = strv_extend(&l, de->d_name);
        closedir(d);
        if (r < 0)
                return r;
        qsort(l, strv_length(l), sizeof(char *), compare_names);
        *ret = TAKE_PTR(l);
        return 0;
}

/* In the order of names, so that scripts are checked in the same order everywhere. */
static int normalise(int root, int dir, const char *prefix, unsigned depth, RunnerJson *j) {
        _cleanup_strv_free_ char **names = NULL;
        int r;

        if (depth > RUNNER_DEPTH_MAX)
                return refuse(prefix, "it is nested too deeply");
        r = list_directory(dir, &names);
        if (r < 0)
                return failed(r, prefix);
        for (char **n = names; *n; n++) {
                _cleanup_free_ char *path = isempty(prefix) ? strdup(*n) : strprintf("%s/%s", prefix, *n);

                if (!path)
                        return failed(-ENOMEM, prefix);
                r = normalise_entry(root, dir, *n, path, depth, j);
                if (r < 0)
                        return r;
        }
        return 0;
}

/* Node replaces what is no UTF-8 without a word, so a damaged script would run as something else. */
static int check_utf8(int root, RunnerJson *j, char **ret_invalid) {
        for (char **s = j->scripts; s && *s; s++) {
                _cleanup_close_ int fd = tree_open(root, *s, O_RDONLY);
                _cleanup_free_ char *text = NULL;
                size_t size = 0, line;
                int r;

                if (fd < 0)
                        return fd == -ELOOP ? refuse(*s, "a script that is checked is a file, not a link")
                                            : failed(fd, *s);
                r = read_full_fd(fd, SCRIPT_SIZE_MAX, &text, &size);
                if (r == -EFBIG)
                        return refuse(*s, "a script has at most 64 MiB");
                if (r < 0)
                        return failed(r, *s);
                line = utf8_bad_line(text, size);
                if (line > 0) {
                        *ret_invalid = strprintf("%s:%zu: this is not valid UTF-8", *s, line);
                        return *ret_invalid ? 0 : failed(-ENOMEM, *s);
                }
        }
        return 0;
}

static int check_node(int root, const char *node, char digest[static DIGEST_LEN + 1]) {
        _cleanup_close_ int fd = tree_open(root, node, O_RDONLY | O_NONBLOCK);
        struct stat st;
        int r;

        if (fd < 0)
                return report_error(0, "InvalidRunner", "runner.json: node: there is no file \"%s\" in the runner",
                                    node);
        if (fstat(fd, &st) < 0)
                return failed(-errno, node);
        if (!S_ISREG(st.st_mode) || (st.st_mode & 0111) == 0)
                return report_error(0, "InvalidRunner", "runner.json: node: \"%s\" cannot be executed", node);
        r = digest_fd(fd, digest);
        return r < 0 ? failed(r, node) : 0;
}

static int make_companion(int tree, const char *name, const char *text) {
        int r = write_file_atomic(tree, name, text, strlen(text), 0444, 0, 0, 0);

        if (r < 0)
                return failed(r, name);
        return utimensat(tree, name, no_times, 0) < 0 ? failed(-errno, name) : 0;
}

static int finish(int tree, int root, RunnerJson *j, sd_json_variant **ret_manifest) {
        char digest[DIGEST_LEN + 1] = "";
        _cleanup_free_ char *invalid = NULL;
        _cleanup_close_ int main_fd = -EBADF;
        int r;

        r = read_runner_json(root, j);
        if (r >= 0)
                r = normalise(root, root, "", 0, j);
        if (r < 0)
                return r;
        main_fd = tree_open(root, j->main, O_RDONLY | O_NONBLOCK);
        if (main_fd < 0)
                return report_error(0, "InvalidRunner", "runner.json: main: there is no file \"%s\" in the runner",
                                    j->main);
        r = add_script(j, j->main);
        if (r >= 0 && j->node)
                r = check_node(root, j->node, digest);
        if (r >= 0)
                r = check_utf8(root, j, &invalid);
        if (r >= 0)
                r = make_companion(tree, "package.json", "{}\n");
        if (r >= 0)
                r = make_companion(tree, RUNNER_BROKEN_NAME,
                                   "// No Node accepts this; see agentd's check of runners.\nlet = = ;\n");
        if (r < 0)
                return r;
        if (fchown(root, 0, 0) < 0 || fchmod(root, 0555) < 0 || futimens(root, no_times) < 0 ||
            fchown(tree, 0, 0) < 0 || fchmod(tree, 0755) < 0 || futimens(tree, no_times) < 0)
                return failed(-errno, "");
        r = sd_json_buildo(ret_manifest, SD_JSON_BUILD_PAIR_STRING("name", j->name),
                           SD_JSON_BUILD_PAIR_STRING("version", j->version), SD_JSON_BUILD_PAIR_STRING("main", j->main),
                           SD_JSON_BUILD_PAIR_CONDITION(j->node != NULL, "node", SD_JSON_BUILD_STRING(j->node)),
                           SD_JSON_BUILD_PAIR_CONDITION(j->node != NULL, "node_digest", SD_JSON_BUILD_STRING(digest)),
                           SD_JSON_BUILD_PAIR_STRV("check", j->scripts),
                           SD_JSON_BUILD_PAIR_CONDITION(invalid != NULL, "invalid", SD_JSON_BUILD_STRING(invalid)));
        return r < 0 ? failed(r, "runner.json") : 0;
}

int64_t finish_runner(int tree, sd_json_variant **ret_manifest) {
        _cleanup_close_ int root = tree_open(tree, RUNNER_SUBDIR, O_RDONLY | O_DIRECTORY);
        RunnerJson j = {};
        int64_t entries;
        int r;

        if (root < 0)
                return failed(root, RUNNER_SUBDIR);
        r = finish(tree, root, &j, ret_manifest);
        entries = j.entries;
        runner_json_done(&j);
        return r < 0 ? r : entries;
}

/* --- from a directory of the host --------------------------------------------------------------------------------- */

static int copy_file(int from, int to, const char *name, mode_t mode) {
        _cleanup_close_ int in = -EBADF, out = -EBADF;
        char buf[65536];

        in = openat(from, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
        out = openat(to, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode & 0777);
        if (in < 0 || out < 0)
                return -errno;
        for (;;) {
                ssize_t n = read(in, buf, sizeof buf);
                int r;

                if (n <= 0)
                        return n < 0 ? -errno : 0;
                r = write_full(out, buf, (size_t) n);
                if (r < 0)
                        return r;
        }
}

static int copy_tree(int from, int to, unsigned depth) {
        _cleanup_strv_free_ char **names = NULL;
        int r;

        if (depth > RUNNER_DEPTH_MAX)
                return -ELOOP;
        r = list_directory(from, &names);
        for (char **n = names; r >= 0 && *n; n++) {
                struct stat st;

                if (fstatat(from, *n, &st, AT_SYMLINK_NOFOLLOW) < 0)
                        r = -errno;
                else if (S_ISREG(st.st_mode))
                        r = copy_file(from, to, *n, st.st_mode);
                else if (S_ISDIR(st.st_mode)) {
                        _cleanup_close_ int a = openat(from, *n, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC),
                                            b = -EBADF;

                        if (a < 0 || mkdirat(to, *n, 0755) < 0)
                                return -errno;
                        b = openat(to, *n, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
                        r = b < 0 ? -errno : copy_tree(a, b, depth + 1);
                } else if (S_ISLNK(st.st_mode)) {
                        char target[PATH_MAX];
                        ssize_t k = readlinkat(from, *n, target, sizeof target - 1);

                        if (k < 0)
                                return -errno;
                        target[k] = 0;
                        r = symlinkat(target, to, *n) < 0 ? -errno : 0;
                } else
                        r = -EINVAL;
        }
        return r;
}

int copy_runner(const char *from, int tree) {
        _cleanup_close_ int a = open(from, O_RDONLY | O_DIRECTORY | O_CLOEXEC), b = -EBADF;
        int r;

        if (a < 0)
                return failed(-errno, from);
        b = tree_open(tree, RUNNER_SUBDIR, O_RDONLY | O_DIRECTORY);
        r = b < 0 ? b : copy_tree(a, b, 0);
        return r < 0 ? failed(r, from) : 0;
}
