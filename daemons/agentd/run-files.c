/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * The files of a run outside of its root: token (root only; PID 1 hands it in as a credential), input (bound into the
 * root, since all credentials together may have 1 MiB only), the live file by which bridge and strong room know the
 * run, and the task that the bridge serves.
 */
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>

#include "basic/fs-util.h"
#include "basic/json-util.h"
#include "basic/string-util.h"
#include "run.h"
#include "token/run-token.h"

#define EXIT_RECORD_MAX 256

static int write_run_file(const Run *run, const char *name, const void *data, size_t size, uid_t owner) {
        _cleanup_free_ char *path = strprintf(AGENTD_RUNTIME_DIR "/runs/%s/%s", run->row->id, name);

        if (!path)
                return -ENOMEM;
        return write_file_atomic(AT_FDCWD, path, data, size, 0400, owner, (gid_t) -1, 0);
}

/* For EnvironmentFile= (systemd.exec(5)): within double quotes these four have a meaning. */
static int write_environment(Run *run) {
        _cleanup_free_ char *text = NULL;
        size_t size = 0;
        FILE *f = open_memstream(&text, &size);

        if (!f)
                return -ENOMEM;
        for (char **e = run->definition->environment; e && *e; e++) {
                const char *value = strchr(*e, '=') + 1;

                fprintf(f, "%.*s\"", (int) (value - *e), *e);
                for (const char *p = value; *p; p++) {
                        if (strchr("\"\\`$", *p))
                                fputc('\\', f);
                        fputc(*p, f);
                }
                fputs("\"\n", f);
        }
        if (fclose(f) != 0)
                return -ENOMEM;
        return write_run_file(run, "environment", text, size, (uid_t) -1);
}

static int write_token(Run *run) {
        _cleanup_free_ char *token = NULL;
        uint64_t now = now_realtime() / USEC_PER_SEC;
        RunClaims claims = {
                .user = run->row->user,
                .agent = run->row->agent,
                .session = run->row->session,
                .iat = now,
                .nbf = now,
                .exp = run->deadline_usec / USEC_PER_SEC + RUN_TOKEN_GRACE_SEC,
        };
        int r;

        memcpy(claims.run, run->live->run, sizeof claims.run);
        memcpy(claims.jti, run->live->jti, sizeof claims.jti);
        r = run_token_mint(run->manager->key, &claims, &token);
        if (r < 0)
                return r;
        r = write_run_file(run, "token", token, strlen(token), (uid_t) -1);
        explicit_bzero(token, strlen(token));
        return r;
}

static int fill_live(Run *run) {
        LiveRun *l = run->live;
        const RunLimits *limits = &run->definition->limits;

        memcpy(l->run, run->row->id, sizeof l->run);
        l->attempt = run->row->attempt;
        l->uid = run->row->uid;
        l->deadline_usec = run->deadline_usec;
        l->limits = LIVE_LIMITS_DEFAULT;
        l->limits.result_bytes = STORE_RESULT_MAX;
        l->limits.artifact_bytes = limits->artifact_size;
        l->limits.artifacts = limits->artifacts;
        l->limits.log_bytes = limits->log;
        if (run->definition->proxy && strv_copy(run->definition->proxy, &l->proxy) < 0)
                return -ENOMEM;
        if (free_and_strdup(&l->user, run->row->user) < 0 || free_and_strdup(&l->agent, run->row->agent) < 0 ||
            free_and_strdup(&l->session, run->row->session) < 0)
                return -ENOMEM;
        return run_token_new_jti(l->jti);
}

static int environment_object(char *const *environment, sd_json_variant **ret) {
        _cleanup_json_ sd_json_variant *v = NULL;
        int r;

        for (char *const *e = environment; e && *e; e++) {
                const char *eq = strchr(*e, '=');
                _cleanup_free_ char *name = eq ? strndup(*e, (size_t) (eq - *e)) : NULL;

                if (!name)
                        return -ENOMEM;
                r = sd_json_variant_set_field_string(&v, name, eq + 1);
                if (r < 0)
                        return r;
        }
        if (!v) {
                r = sd_json_build(&v, SD_JSON_BUILD_EMPTY_OBJECT);
                if (r < 0)
                        return r;
        }
        *ret = TAKE_PTR(v);
        return 0;
}

static int format_task(Run *run, const char *input, size_t input_size, char **ret) {
        _cleanup_json_ sd_json_variant *v = NULL, *environment = NULL, *parsed = NULL;
        const Definition *d = run->definition;
        time_t deadline = (time_t) (run->deadline_usec / USEC_PER_SEC);
        bool is_json;
        struct tm tm;
        char when[32];
        int r;

        is_json = json_parse(input, input_size, &parsed, NULL) >= 0;
        strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&deadline, &tm));
        r = environment_object(d->environment, &environment);
        if (r < 0)
                return r;
        r = sd_json_buildo(
                &v, SD_JSON_BUILD_PAIR_INTEGER("v", 1), SD_JSON_BUILD_PAIR_STRING("run", run->row->id),
                SD_JSON_BUILD_PAIR_UNSIGNED("attempt", run->row->attempt),
                SD_JSON_BUILD_PAIR_STRING("agent", run->row->agent), SD_JSON_BUILD_PAIR_STRING("user", run->row->user),
                SD_JSON_BUILD_PAIR_CONDITION(run->row->session != NULL, "session",
                                             SD_JSON_BUILD_STRING(run->row->session)),
                SD_JSON_BUILD_PAIR_CONDITION(run->row->session == NULL, "session", SD_JSON_BUILD_NULL),
                SD_JSON_BUILD_PAIR_STRING("kind", agent_kind_to_string(d->kind)),
                SD_JSON_BUILD_PAIR_STRV("command", d->command), SD_JSON_BUILD_PAIR_VARIANT("environment", environment),
                SD_JSON_BUILD_PAIR_STRV("services", d->services),
                SD_JSON_BUILD_PAIR_STRING("input_type", is_json ? "json" : "text"),
                SD_JSON_BUILD_PAIR_STRING("input", input), SD_JSON_BUILD_PAIR_STRING("deadline", when),
                SD_JSON_BUILD_PAIR("limits",
                                   SD_JSON_BUILD_OBJECT(
                                           SD_JSON_BUILD_PAIR_UNSIGNED("memory", d->limits.memory),
                                           SD_JSON_BUILD_PAIR_UNSIGNED("timeout_usec", run->row->timeout_usec),
                                           SD_JSON_BUILD_PAIR_UNSIGNED("result_bytes", run->live->limits.result_bytes),
                                           SD_JSON_BUILD_PAIR_UNSIGNED("artifact_bytes", d->limits.artifact_size),
                                           SD_JSON_BUILD_PAIR_UNSIGNED("artifacts", d->limits.artifacts),
                                           SD_JSON_BUILD_PAIR_UNSIGNED("log_bytes", d->limits.log))));
        if (r < 0)
                return r;
        return sd_json_variant_format(v, 0, ret);
}

int run_write_files(Run *run, char **ret_error) {
        _cleanup_free_ char *input = NULL, *task = NULL;
        const char *what = "live file";
        size_t size;
        int r;

        r = fill_live(run);
        if (r >= 0) {
                what = "input";
                r = store_run_get_input(run->manager->store, run->row->id, &input, &size);
        }
        if (r >= 0)
                r = write_run_file(run, "input", input, size, run->uid);
        if (r >= 0) {
                what = "token";
                r = write_token(run);
        }
        if (r >= 0 && run->definition->kind == AGENT_EXEC) {
                what = "environment";
                r = write_environment(run);
        }
        if (r >= 0) {
                what = "task";
                r = format_task(run, input, size, &task);
        }
        if (r >= 0)
                r = live_task_write(LIVE_DIRECTORY, run->row->id, task, strlen(task), run->manager->bridge_gid);
        if (r >= 0) {
                what = "live file";
                r = live_run_write(LIVE_DIRECTORY, run->live, run->manager->bridge_gid);
        }
        if (r < 0)
                *ret_error = strprintf("the %s cannot be written: %s", what, strerror(-r));
        return r;
}

void run_remove_live(Manager *m, const char *id) {
        int r;

        r = live_run_remove(LIVE_DIRECTORY, id);
        if (r < 0)
                log_error_errno(r, "Run %s: its live file cannot be removed, its token is still good: %m", id);
}

int run_open_exit_record(const Run *run) {
        _cleanup_free_ char *path = strprintf(AGENTD_RUNTIME_DIR "/runs/%s/exit", run->row->id);
        int fd;

        if (!path)
                return -ENOMEM;
        fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (fd < 0)
                return -errno;
        /* What is written to it must not fail for want of memory later. */
        if (fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, EXIT_RECORD_MAX) < 0)
                return -errno;
        return TAKE_FD(fd);
}

static char *exit_record_path(const Run *run) {
        _cleanup_free_ char *path = strprintf(ENDED_DIRECTORY "/%s", run->row->id);

        if (path && access(path, F_OK) < 0) {
                free(path);
                path = strprintf(AGENTD_RUNTIME_DIR "/runs/%s/exit", run->row->id);
        }
        return TAKE_PTR(path);
}

/* The folder of a run goes before its end is stored; whoever takes over in between must not have to believe PID 1. */
void run_keep_exit_record(const Run *run) {
        _cleanup_free_ char *from = strprintf(AGENTD_RUNTIME_DIR "/runs/%s/exit", run->row->id),
                            *to = strprintf(ENDED_DIRECTORY "/%s", run->row->id);

        if (!from || !to)
                log_oom();
        else if (rename(from, to) < 0 && errno != ENOENT)
                log_warning_errno(errno, "Run %s: how it ended cannot be kept: %m", run->row->id);
}

void run_drop_exit_record(const char *id) {
        _cleanup_free_ char *path = strprintf(ENDED_DIRECTORY "/%s", id);

        if (!path || (unlink(path) < 0 && errno != ENOENT))
                log_warning_errno(path ? errno : ENOMEM, "Run %s: the record of its end cannot be removed: %m", id);
}

/* PID 1 takes the exit of the process that starts the first one for that of the run, where it has not heard of the first
 * one yet (systemd-client.h), so that one whose sandbox could not be set up, or that was not executed, is a success. */
bool run_never_began(const Run *run, const UnitResult *u) {
        _cleanup_free_ char *path = exit_record_path(run);
        struct stat st;

        return path && streq(u->result, "success") && u->code != CLD_KILLED && u->code != CLD_DUMPED && u->status == 0 &&
               stat(path, &st) >= 0 && st.st_size == 0;
}

/*
 * PID 1 may miss how the first process of a PID namespace ended (see agent-init.c), and then says "success". What
 * agent-init wrote is exact. Where it wrote nothing but that it began, it was itself killed; an end for a reason of PID
 * 1's own (time, memory) stands in any case.
 */
void run_read_exit_record(const Run *run, UnitResult *u) {
        _cleanup_free_ char *path = exit_record_path(run), *text = NULL;
        const char *last;
        char word[8];
        int n;

        if (!path || read_full_file_at(AT_FDCWD, path, 4096, &text, NULL) < 0)
                return;
        if (!streq(u->result, "success") && !streq(u->result, "exit-code") && !streq(u->result, "signal"))
                return;
        last = strrchr(text, '\n');
        while (last && last > text && last[-1] != '\n')
                last--;
        if (last && sscanf(last, "%7s %d", word, &n) == 2 && (streq(word, "exited") || streq(word, "killed"))) {
                bool killed = word[0] == 'k';

                u->code = killed ? CLD_KILLED : CLD_EXITED;
                u->status = n;
                snprintf(u->result, sizeof u->result, "%s", killed ? "signal" : n == 0 ? "success" : "exit-code");
        } else if (u->code != CLD_KILLED && u->code != CLD_DUMPED && u->status == 0) {
                u->code = CLD_KILLED;
                u->status = SIGKILL;
                snprintf(u->result, sizeof u->result, "signal");
        }
}
