/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* systemd-creds as a child, the key over pipes; the plain text is never in a file, in argv or in the environment. */
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <systemd/sd-journal.h>
#include <time.h>

#include "basic/fs-util.h"
#include "basic/log.h"
#include "basic/string-util.h"
#include "bus-util.h"
#include "key-store.h"
#include "manager.h"
#include "token/key-set.h"
#include "token/run-token.h"

#define CREDSTORE "/etc/credstore.encrypted"
#define CREDENTIAL_NAME "agentd.signing-key"
#define KEY_FILE CREDSTORE "/" CREDENTIAL_NAME
#define ASIDE ".unreadable"

#define MESSAGE_KEY_PROBLEM "4d1c6a0f7b2e4f6c8a35e9d07c1b2f84"

/* Runs ARGV with INPUT on stdin and gives what it wrote. INPUT must fit into a pipe, which keys do. */
static int run_filter(char *const argv[], const void *input, size_t size, char **ret, size_t *ret_size) {
        _cleanup_close_ int in_r = -EBADF, in_w = -EBADF, out_r = -EBADF, out_w = -EBADF;
        posix_spawn_file_actions_t actions;
        char *env[] = { (char *) "PATH=/usr/sbin:/usr/bin", NULL };
        posix_spawnattr_t attr;
        int p[2], status, r, k;
        sigset_t none;
        pid_t pid;

        if (pipe2(p, O_CLOEXEC) < 0)
                return -errno;
        in_r = p[0];
        in_w = p[1];
        if (pipe2(p, O_CLOEXEC) < 0)
                return -errno;
        out_r = p[0];
        out_w = p[1];
        sigemptyset(&none);
        posix_spawnattr_init(&attr);
        posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK);
        posix_spawnattr_setsigmask(&attr, &none);
        posix_spawn_file_actions_init(&actions);
        posix_spawn_file_actions_adddup2(&actions, in_r, STDIN_FILENO);
        posix_spawn_file_actions_adddup2(&actions, out_w, STDOUT_FILENO);
        r = -posix_spawnp(&pid, argv[0], &actions, &attr, argv, env);
        posix_spawn_file_actions_destroy(&actions);
        posix_spawnattr_destroy(&attr);
        if (r < 0)
                return r;
        in_r = safe_close(in_r);
        out_w = safe_close(out_w);
        r = write_full(in_w, input, size);
        in_w = safe_close(in_w);
        k = read_full_fd(out_r, 1 << 20, ret, ret_size);
        if (waitpid(pid, &status, 0) < 0)
                return -errno;
        if (r < 0)
                return r;
        if (k < 0)
                return k;
        return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? 0 : -EIO;
}

static const char *const state_table[_KEY_STATE_MAX] = {
        [KEY_SEALED] = "sealed",
        [KEY_REPLACED] = "replaced",
        [KEY_VOLATILE] = "volatile",
};

const char *key_state_to_string(KeyState s) {
        return s >= 0 && s < _KEY_STATE_MAX ? state_table[s] : NULL;
}

typedef enum Old {
        OLD_NONE,
        OLD_REPLACE, /* there is one already, which is to go */
        OLD_ASIDE,   /* there is one that cannot be opened: perhaps somebody still can */
} Old;

static int seal_key(const SigningKey *key, char **ret, size_t *ret_size) {
        char *argv[] = { (char *) "systemd-creds", (char *) "encrypt", (char *) "--name=" CREDENTIAL_NAME,
                         (char *) "--with-key=auto", (char *) "-", (char *) "-", NULL };
        const char *pem = signing_key_private_pem(key);
        int r;

        r = run_filter(argv, pem, strlen(pem), ret, ret_size);
        if (r < 0) {
                /* "auto" refuses the host's key where /var is volatile, though it would do. */
                argv[3] = (char *) "--with-key=host";
                *ret = mfree(*ret);
                r = run_filter(argv, pem, strlen(pem), ret, ret_size);
        }
        return r < 0 ? log_error_errno(r, "systemd-creds cannot encrypt the signing key: %m") : 0;
}

static int make_key(Old old, SigningKey **ret) {
        _cleanup_(signing_key_freep) SigningKey *key = NULL;
        _cleanup_free_ char *sealed = NULL;
        size_t size;
        int r;

        r = signing_key_generate(&key);
        if (r >= 0)
                r = seal_key(key, &sealed, &size);
        if (r < 0)
                return r;
        r = mkdir_parents(CREDSTORE, 0700);
        if (r >= 0 && old == OLD_ASIDE && rename(KEY_FILE, KEY_FILE ASIDE) < 0)
                r = -errno;
        if (r >= 0)
                r = write_file_atomic(AT_FDCWD, KEY_FILE, sealed, size, 0600, 0, 0,
                                      WRITE_FILE_SYNC | (old == OLD_REPLACE ? 0 : WRITE_FILE_NOREPLACE));
        if (r < 0)
                return log_error_errno(r, "The signing key cannot be written to " CREDSTORE ": %m");
        log_info("Made a new key for run tokens: %s.", signing_key_kid(key));
        *ret = TAKE_PTR(key);
        return 0;
}

static int publish_key(const SigningKey *key) {
        _cleanup_free_ char *path = strprintf(AGENTD_RUNTIME_DIR "/keys/%s.pem", signing_key_kid(key));
        const char *pem = signing_key_public_pem(key);
        int r;

        if (!path)
                return -ENOMEM;
        r = mkdir_parents(AGENTD_RUNTIME_DIR "/keys", 0755);
        if (r < 0)
                return r;
        return write_file_atomic(AT_FDCWD, path, pem, strlen(pem), 0644, 0, 0, 0);
}

/* Public keys whose last token has run out by now. Others must stay: there may be live runs with tokens of theirs. */
static int forget_old_keys(unsigned *ret_left) {
        DIR *d = opendir(AGENTD_RUNTIME_DIR "/keys");
        struct dirent *de;
        struct timespec now;

        *ret_left = 0;
        if (!d)
                return errno == ENOENT ? 0 : -errno;
        clock_gettime(CLOCK_REALTIME, &now);
        while ((de = readdir(d))) {
                struct stat st;

                if (!endswith(de->d_name, ".pem") || fstatat(dirfd(d), de->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0)
                        continue;
                if (st.st_ctim.tv_sec + (time_t) RUN_TOKEN_TTL_MAX_SEC < now.tv_sec)
                        (void) unlinkat(dirfd(d), de->d_name, 0);
                else
                        (*ret_left)++;
        }
        closedir(d);
        return 0;
}

/* Keys that are only in memory leave a public half each time agentd starts, and verifiers look at so many only: the
 * oldest go then. */
static void make_room(void) {
        for (;;) {
                _cleanup_free_ char *oldest = NULL;
                DIR *d = opendir(AGENTD_RUNTIME_DIR "/keys");
                struct timespec when = {};
                struct dirent *de;
                unsigned n = 0;
                bool gone = false;

                if (!d)
                        return;
                while ((de = readdir(d))) {
                        struct stat st;

                        if (!endswith(de->d_name, ".pem") ||
                            fstatat(dirfd(d), de->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0)
                                continue;
                        n++;
                        if (oldest && (st.st_ctim.tv_sec > when.tv_sec ||
                                       (st.st_ctim.tv_sec == when.tv_sec && st.st_ctim.tv_nsec >= when.tv_nsec)))
                                continue;
                        when = st.st_ctim;
                        if (free_and_strdup(&oldest, de->d_name) < 0)
                                break;
                }
                if (n >= KEY_SET_MAX)
                        gone = oldest && unlinkat(dirfd(d), oldest, 0) >= 0;
                closedir(d);
                if (!gone)
                        return;
        }
}

static int open_key(SigningKey **ret) {
        char *argv[] = { (char *) "systemd-creds",   (char *) "decrypt", (char *) "--name=" CREDENTIAL_NAME,
                         (char *) "-", (char *) "-", NULL };
        _cleanup_free_ char *sealed = NULL;
        char *pem = NULL;
        size_t size, pem_size = 0;
        int r;

        r = read_full_file_at(AT_FDCWD, KEY_FILE, 1 << 20, &sealed, &size);
        if (r >= 0)
                r = run_filter(argv, sealed, size, &pem, &pem_size);
        if (r >= 0)
                r = signing_key_from_pem(pem, pem_size, ret);
        if (pem)
                explicit_bzero(pem, pem_size);
        free(pem);
        return r;
}

/* Another one is as good: tokens are short-lived, and those of live runs are verified by the public halves, which are
 * still in /run/agentd/keys. */
static int replace_key(int reason, SigningKey **ret, KeyState *ret_state) {
        int r;

        r = make_key(reason == -ENOENT ? OLD_NONE : OLD_ASIDE, ret);
        if (r >= 0) {
                *ret_state = reason == -ENOENT ? KEY_SEALED : KEY_REPLACED;
                if (reason != -ENOENT)
                        sd_journal_send("MESSAGE=The key for run tokens (" KEY_FILE ") could not be opened (%s): the "
                                        "machine's secret that systemd-creds keeps it under is perhaps lost or "
                                        "another one. There is a new key; nothing else is lost, and live runs go on. "
                                        "The old file was put aside as " KEY_FILE ASIDE " and may be removed.",
                                        strerror(-reason),
                                        "MESSAGE_ID=" MESSAGE_KEY_PROBLEM, "PRIORITY=%i", LOG_WARNING, NULL);
                return 0;
        }
        r = signing_key_generate(ret);
        if (r < 0)
                return log_error_errno(r, "No key for run tokens can be made: %m");
        *ret_state = KEY_VOLATILE;
        sd_journal_send("MESSAGE=The key for run tokens (" KEY_FILE ") cannot be opened (%s), and no other one be kept "
                        "there. Until agentd is restarted it has a key that is in its memory only; runs are not affected. See "
                        "to it that \"systemd-creds encrypt\" works, then restart agentd.", strerror(-reason),
                        "MESSAGE_ID=" MESSAGE_KEY_PROBLEM, "PRIORITY=%i", LOG_ERR, NULL);
        return 0;
}

int key_store_load(SigningKey **ret, KeyState *ret_state) {
        _cleanup_(signing_key_freep) SigningKey *key = NULL;
        KeyState state = KEY_SEALED;
        int r;

        r = open_key(&key);
        if (r == -ENOMEM)
                return log_oom();
        if (r < 0)
                r = replace_key(r, &key, &state);
        if (r >= 0) {
                make_room();
                r = publish_key(key);
        }
        if (r < 0)
                return log_error_errno(r, "The key for run tokens cannot be used: %m");
        *ret = TAKE_PTR(key);
        *ret_state = state;
        return 0;
}

int key_store_rotate(const SigningKey *old, SigningKey **ret) {
        _cleanup_(signing_key_freep) SigningKey *key = NULL;
        unsigned left;
        int r;

        /* The one that goes was perhaps written long ago; its tokens were not. */
        r = publish_key(old);
        if (r >= 0)
                r = forget_old_keys(&left);
        if (r < 0)
                return r;
        if (left + 1 > KEY_SET_MAX)
                return -EBUSY;
        /* On disk first. If we die between these, the next start publishes it. */
        r = make_key(OLD_REPLACE, &key);
        if (r >= 0)
                r = publish_key(key);
        if (r < 0)
                return r;
        *ret = TAKE_PTR(key);
        return 0;
}

int method_rotate_key(sd_bus_message *msg, void *userdata, sd_bus_error *e) {
        SigningKey *key = NULL;
        Manager *m = userdata;
        uid_t uid;
        int r;

        r = bus_sender_euid(msg, &uid);
        if (r < 0)
                return r;
        if (uid != 0)
                return sd_bus_error_set(e, SD_BUS_ERROR_ACCESS_DENIED, "Only root may replace the key for run tokens.");
        r = key_store_rotate(m->key, &key);
        if (r == -EBUSY)
                return sd_bus_error_set(
                        e, SD_BUS_ERROR_LIMITS_EXCEEDED,
                        "The key was replaced too often lately; tokens of the earlier ones may be in use.");
        if (r < 0)
                return sd_bus_error_set_errnof(e, r, "The key cannot be replaced: %s", strerror(-r));
        /* Tokens of live runs stay good: bridge and strong room know all keys that are published. */
        signing_key_free(m->key);
        m->key = key;
        m->key_state = KEY_SEALED;
        return sd_bus_reply_method_return(msg, "s", signing_key_kid(key));
}
