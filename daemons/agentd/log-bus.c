/* SPDX-License-Identifier: LGPL-2.1-or-later */
/*
 * OpenRunLog: the owner of a run may read what it logged, though not the journal. A small program reads the journal for
 * exactly this run and writes to a pipe; the caller gets the other end. When the caller closes it, the program ends.
 */
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>

#include "basic/string-util.h"
#include "bus-util.h"

/* A program each, for as long as somebody does not read to the end. Root's are counted apart, so that there are always
 * some for who looks after the host. */
#define LOG_STREAMS_MAX 128U
#define LOG_STREAMS_MAX_PER_USER 32U

struct LogStream {
        Manager *manager;
        LogStream *next;
        uid_t uid; /* who asked */
};

static int on_child(sd_event_source *s, const siginfo_t *si, void *userdata) {
        LogStream *l = userdata;

        for (LogStream **p = &l->manager->log_streams; *p; p = &(*p)->next)
                if (*p == l) {
                        *p = l->next;
                        break;
                }
        free(l);
        sd_event_source_unref(s);
        return 0;
}

static bool has_room(const Manager *m, uid_t uid) {
        unsigned n_all = 0, n_own = 0;

        for (const LogStream *l = m->log_streams; l; l = l->next) {
                n_own += l->uid == uid;
                n_all += (l->uid == 0) == (uid == 0);
        }
        return n_all < LOG_STREAMS_MAX && (uid == 0 || n_own < LOG_STREAMS_MAX_PER_USER);
}

void log_streams_free_all(Manager *m) {
        for (LogStream *l = m->log_streams, *next; l; l = next) {
                next = l->next;
                free(l);
        }
        m->log_streams = NULL;
}

static int spawn_log(const char *id, bool follow, int out, pid_t *ret) {
        posix_spawn_file_actions_t actions;
        posix_spawnattr_t attr;
        char *argv[] = { (char *) LIBEXECDIR "/agentd-log", (char *) id, (char *) (follow ? "--follow" : NULL), NULL };
        char *env[] = { NULL };
        sigset_t none;
        int r;

        sigemptyset(&none);
        posix_spawnattr_init(&attr);
        posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK);
        posix_spawnattr_setsigmask(&attr, &none);
        posix_spawn_file_actions_init(&actions);
        posix_spawn_file_actions_adddup2(&actions, out, STDOUT_FILENO);
        r = -posix_spawn(ret, argv[0], &actions, &attr, argv, env);
        posix_spawn_file_actions_destroy(&actions);
        posix_spawnattr_destroy(&attr);
        return r;
}

int method_open_run_log(sd_bus_message *msg, void *userdata, sd_bus_error *e) {
        _cleanup_(store_run_freep) StoreRun *row = NULL;
        _cleanup_close_ int reader = -EBADF, writer = -EBADF;
        _cleanup_free_ LogStream *stream = NULL;
        _cleanup_free_ char *sender = NULL;
        sd_event_source *child = NULL;
        Manager *m = userdata;
        const char *id;
        int follow, p[2], r;
        pid_t pid;
        uid_t uid;

        r = sd_bus_message_read(msg, "sb", &id, &follow);
        if (r < 0)
                return r;
        r = bus_resolve_run(m, msg, id, POLKIT_ACTION_EXECUTE, e, &row);
        if (r <= 0)
                return r < 0 ? r : 1;
        r = bus_sender_user(msg, &uid, &sender);
        if (r < 0)
                return r;
        if (!has_room(m, uid))
                return sd_bus_error_set(e, SD_BUS_ERROR_LIMITS_EXCEEDED,
                                        "Too many logs are being read. Try again later.");
        stream = malloc(sizeof *stream);
        if (!stream)
                return -ENOMEM;
        if (pipe2(p, O_CLOEXEC) < 0)
                return -errno;
        reader = p[0];
        writer = p[1];
        r = spawn_log(id, follow && row->state != RUN_FINISHED, writer, &pid);
        if (r < 0)
                return sd_bus_error_set_errnof(e, r, "The log cannot be read: %s", strerror(-r));
        r = sd_event_add_child(m->event, &child, pid, WEXITED, on_child, stream);
        if (r < 0) {
                kill(pid, SIGKILL);
                return r;
        }
        *stream = (LogStream) { .manager = m, .next = m->log_streams, .uid = uid };
        m->log_streams = TAKE_PTR(stream);
        return sd_bus_reply_method_return(msg, "h", reader);
}
