/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * agent-image: makes the file of a layer from a tar on stdin, from Debian's packages, or from the changes of a run; or
 * compares two environments.
 * agentd runs it in a sandboxed unit of its own and checks what comes out of it; it decides nothing and knows no
 * store.
 */
#include <fcntl.h>
#include <getopt.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>

#include "basic/fs-util.h"
#include "basic/json-util.h"
#include "basic/log.h"
#include "basic/string-util.h"
#include "build.h"
#include "carry.h"
#include "diff.h"
#include "erofs.h"
#include "finish.h"
#include "freeze.h"
#include "merge.h"
#include "report.h"
#include "runner.h"
#include "stall.h"
#include "tree.h"
#include "unpack.h"

typedef struct Arguments {
        const char *staging, *out, *upper, *mirror, *from, *to, *raw, *config, *name;
        char **layer_files;
        uint64_t raw_base;
        char **packages;
        uint64_t idle_timeout;
        UnpackLimits limits;
} Arguments;

static int usage(void) {
        fputs("Usage: agent-image import --staging DIR --out FILE [--max-size BYTES] [--max-entries N] < TAR\n"
              "       agent-image build  --staging DIR --out FILE [--mirror URL] [--packages NAME…]\n"
              "       agent-image runner --staging DIR --out FILE [--max-size BYTES] [--max-entries N] (--from DIR | < TAR)\n"
              "       agent-image freeze --staging DIR --out FILE --upper DIR [--raw DIR --raw-base UID] [--max-size BYTES]\n"
              "       agent-image diff   --staging DIR --out FILE --from DIR --to DIR <> RESULT\n"
              "       agent-image export --staging DIR --out FILE --config FILE --name NAME --layer FILE… > ARCHIVE (stdin)\n"
              "       agent-image flatten --staging DIR --out FILE --layer DIR… --from BASE\n"
              "       agent-image import-environment --staging DIR --out FILE < ARCHIVE\n"
              "What is read from stdin, or written to it, may be bounded in its pauses: --idle-timeout USEC\n",
              stderr);
        return report_error(0, "InvalidOption", "agent-image was called with wrong arguments");
}

static int parse(int argc, char *argv[], Arguments *a) {
        static const struct option options[] = {
                { "staging",     required_argument, NULL, 's' }, { "out",         required_argument, NULL, 'o' },
                { "upper",       required_argument, NULL, 'u' }, { "mirror",      required_argument, NULL, 'm' },
                { "packages",    required_argument, NULL, 'p' }, { "max-size",    required_argument, NULL, 'b' },
                { "max-entries", required_argument, NULL, 'e' }, { "from",        required_argument, NULL, 'f' },
                { "to",          required_argument, NULL, 't' }, { "raw",         required_argument, NULL, 'r' },
                { "raw-base",    required_argument, NULL, 'B' }, { "config",      required_argument, NULL, 'c' },
                { "name",        required_argument, NULL, 'n' }, { "layer",       required_argument, NULL, 'l' },
                { "idle-timeout", required_argument, NULL, 'i' }, {}
        };
        int c, r = 0;

        while (r >= 0 && (c = getopt_long(argc, argv, "+", options, NULL)) >= 0)
                switch (c) {
                case 's':
                        a->staging = optarg;
                        break;
                case 'o':
                        a->out = optarg;
                        break;
                case 'u':
                        a->upper = optarg;
                        break;
                case 'c':
                        a->config = optarg;
                        break;
                case 'n':
                        a->name = optarg;
                        break;
                case 'l':
                        r = strv_extend(&a->layer_files, optarg);
                        break;
                case 'r':
                        a->raw = optarg;
                        break;
                case 'B':
                        r = parse_uint64(optarg, &a->raw_base);
                        break;
                case 'f':
                        a->from = optarg;
                        break;
                case 't':
                        a->to = optarg;
                        break;
                case 'm':
                        a->mirror = optarg;
                        break;
                case 'p':
                        r = strv_extend(&a->packages, optarg);
                        /* All up to the next option. */
                        while (r >= 0 && optind < argc && !startswith(argv[optind], "--"))
                                r = strv_extend(&a->packages, argv[optind++]);
                        break;
                case 'i':
                        r = parse_uint64(optarg, &a->idle_timeout);
                        break;
                case 'b':
                        r = parse_uint64(optarg, &a->limits.bytes_max);
                        break;
                case 'e':
                        r = parse_uint64(optarg, &a->limits.entries_max);
                        break;
                default:
                        r = -EINVAL;
                }
        return r < 0 || optind < argc || !a->staging || !a->out ? usage() : 0;
}

/* The directory in which a root file system is put together; taken away again before the end. */
static int make_tree(const Arguments *a, char **ret_path, int *ret_fd) {
        _cleanup_free_ char *path = strprintf("%s/tree", a->staging);
        int fd;

        if (!path)
                return report_errno(-ENOMEM, "Starting");
        if (mkdir(path, 0700) < 0)
                return report_errno(-errno, "Making the staging directory");
        fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
        if (fd < 0)
                return report_errno(-errno, "Making the staging directory");
        *ret_path = TAKE_PTR(path);
        *ret_fd = fd;
        return 0;
}

typedef struct Newest {
        int64_t started, newest;
} Newest;

static int find_newest(int dir, const char *name, const struct stat *st, void *userdata) {
        Newest *n = userdata;

        if (st->st_mtim.tv_sec < n->started)
                n->newest = MAX(n->newest, (int64_t) st->st_mtim.tv_sec);
        return 0;
}

static int build(const Arguments *a, const char *tree, int root, int64_t started, int64_t *ret_newest) {
        Newest n = { .started = started };
        int r;

        r = build_debian(tree, a->mirror, a->packages);
        if (r < 0)
                return r;
        if (tree_walk(root, find_newest, &n) < 0)
                return report_errno(-EIO, "Reading what was installed");
        *ret_newest = n.newest;
        return 0;
}

/* A directory below staging for the parts of an archive. */
static int make_spool(const Arguments *a, char **ret_path, int *ret_fd) {
        _cleanup_free_ char *path = strprintf("%s/blobs", a->staging);
        int fd;

        if (!path)
                return report_errno(-ENOMEM, "Starting");
        if (mkdir(path, 0700) < 0 || (fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW)) < 0)
                return report_errno(-errno, "Making the staging directory");
        *ret_path = TAKE_PTR(path);
        *ret_fd = fd;
        return 0;
}

static int import_image(const Arguments *a, int root, int64_t *ret_newest) {
        _cleanup_close_ int spool = -EBADF;
        _cleanup_free_ char *path = NULL;
        int r;

        r = make_spool(a, &path, &spool);
        if (r < 0)
                return r;
        r = unpack_image(STDIN_FILENO, root, spool, &a->limits, ret_newest);
        (void) rm_rf_at(AT_FDCWD, path);
        return r;
}

/* What was laid out stays in staging for agentd, which takes it from there. */
static int import_environment(const Arguments *a) {
        _cleanup_close_ int spool = -EBADF;
        char config[DIGEST_LEN + 1];
        _cleanup_free_ char *path = NULL;
        int r;

        r = make_spool(a, &path, &spool);
        if (r >= 0)
                r = carry_import(STDIN_FILENO, spool, path, &a->limits, config);
        if (r >= 0)
                report_result(config, 0, 0);
        return r;
}

static int make_image(const Arguments *a, bool import) {
        _cleanup_free_ char *tree = NULL;
        _cleanup_close_ int root = -EBADF;
        int64_t started = time(NULL), newest = 0, entries = 0;
        uint64_t size = 0;
        int r;

        r = make_tree(a, &tree, &root);
        if (r < 0)
                return r;
        r = import ? import_image(a, root, &newest) : build(a, tree, root, started, &newest);
        if (r >= 0)
                entries = finish_image(root, started, newest);
        if (r >= 0 && entries < 0)
                r = (int) entries;
        if (r >= 0)
                r = erofs_make(tree, a->out, &size);
        (void) rm_rf_at(AT_FDCWD, tree);
        if (r >= 0)
                report_result(NULL, size, (uint64_t) entries);
        return r;
}

static int make_runner(const Arguments *a) {
        _cleanup_json_ sd_json_variant *manifest = NULL;
        _cleanup_free_ char *tree = NULL;
        _cleanup_close_ int root = -EBADF, inner = -EBADF;
        int64_t entries = 0, newest;
        uint64_t size = 0;
        int r;

        r = make_tree(a, &tree, &root);
        if (r < 0)
                return r;
        r = tree_mkdir(root, RUNNER_SUBDIR, 0700, 0, 0);
        if (r >= 0)
                r = inner = tree_open(root, RUNNER_SUBDIR, O_RDONLY | O_DIRECTORY);
        if (r < 0)
                return report_errno(r, "Making the staging directory");
        r = a->from ? copy_runner(a->from, root) : unpack_tar(STDIN_FILENO, inner, &a->limits, &newest);
        if (r >= 0)
                entries = finish_runner(root, &manifest);
        if (r >= 0 && entries < 0)
                r = (int) entries;
        if (r >= 0)
                r = erofs_make(tree, a->out, &size);
        (void) rm_rf_at(AT_FDCWD, tree);
        if (r >= 0)
                report_runner(size, (uint64_t) entries, manifest);
        return r;
}

static int flatten(const Arguments *a) {
        _cleanup_free_ char *tree = NULL;
        _cleanup_close_ int root = -EBADF, base = -EBADF;
        uint64_t size = 0;
        int r;

        r = a->layer_files && a->from ? make_tree(a, &tree, &root) : usage();
        for (char **l = r >= 0 ? a->layer_files : NULL; r >= 0 && *l; l++) {
                _cleanup_close_ int layer = open(*l, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);

                r = layer < 0 ? report_errno(-errno, "Opening a layer") : merge_layer(layer, root);
        }
        if (r >= 0) {
                base = open(a->from, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
                r = base < 0 ? report_errno(-errno, "Opening a layer") : merge_finish(root, base);
        }
        if (r >= 0)
                r = erofs_make(tree, a->out, &size);
        if (tree)
                (void) rm_rf_at(AT_FDCWD, tree);
        if (r >= 0)
                report_result(NULL, size, 0);
        return r;
}

static int freeze(const Arguments *a) {
        _cleanup_close_ int upper = -EBADF;
        uint64_t size = 0;
        int64_t entries;
        int r;

        if (!a->upper)
                return usage();
        upper = open(a->upper, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
        if (upper < 0)
                return report_errno(-errno, "Opening the run's changes");
        if (a->raw) {
                _cleanup_close_ int raw = open(a->raw, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);

                if (raw < 0)
                        return report_errno(-errno, "Opening the edit's changes");
                entries = freeze_own_whiteouts(raw, (uid_t) a->raw_base);
                if (entries < 0)
                        return (int) entries;
        }
        entries = freeze_upper(upper, a->limits.bytes_max);
        if (entries < 0)
                return (int) entries;
        r = erofs_make(a->upper, a->out, &size);
        if (r >= 0)
                report_result(NULL, size, (uint64_t) entries);
        return r;
}

/* The result goes to stdin, which is open for writing: stdout is for telling how it goes. */
static int diff(const Arguments *a) {
        _cleanup_close_ int from = -EBADF, to = -EBADF;

        if (!a->from || !a->to)
                return usage();
        from = open(a->from, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
        to = open(a->to, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
        if (from < 0 || to < 0)
                return report_errno(-errno, "Opening the environments");
        return diff_trees(from, to, STDIN_FILENO);
}

int main(int argc, char *argv[]) {
        Arguments a = { .limits = { .bytes_max = UINT64_C(16) << 30, .entries_max = 2000000 } };
        const char *verb = argc > 1 ? argv[1] : "";
        struct rlimit files;
        int r;

        log_setup("agent-image");
        umask(0022);
        /* A walk holds one fd for each level of the tree. */
        if (getrlimit(RLIMIT_NOFILE, &files) >= 0) {
                files.rlim_cur = files.rlim_max;
                (void) setrlimit(RLIMIT_NOFILE, &files);
        }
        r = argc > 1 ? parse(argc - 1, argv + 1, &a) : usage();
        if (r >= 0)
                r = stall_begin(a.idle_timeout);
        if (r >= 0) {
                if (streq(verb, "import"))
                        r = make_image(&a, true);
                else if (streq(verb, "build"))
                        r = make_image(&a, false);
                else if (streq(verb, "runner"))
                        r = make_runner(&a);
                else if (streq(verb, "freeze"))
                        r = freeze(&a);
                else if (streq(verb, "export"))
                        r = a.config && a.name && a.layer_files ?
                                carry_export(STDIN_FILENO, a.config, a.layer_files, a.name) : usage();
                else if (streq(verb, "flatten"))
                        r = flatten(&a);
                else if (streq(verb, "import-environment"))
                        r = import_environment(&a);
                else if (streq(verb, "diff"))
                        r = diff(&a);
                else
                        r = usage();
        }
        strv_free(a.packages);
        strv_free(a.layer_files);
        return r < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}
