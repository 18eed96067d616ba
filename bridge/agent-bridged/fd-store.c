/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* See fd-store.h. */

#include <fcntl.h>
#include <sys/socket.h>
#include <systemd/sd-daemon.h>

#include "basic/log.h"
#include "basic/name-util.h"
#include "basic/string-util.h"
#include "fd-store.h"

#define CONTROL_NAME "control" /* FileDescriptorName= in agent-bridged.socket */
#define REMOTE_NAME "remote"   /* and in agent-bridged-remote.socket */

bool fd_is_listener(int fd) {
        return sd_is_socket(fd, AF_INET, SOCK_STREAM, 1) > 0 || sd_is_socket(fd, AF_INET6, SOCK_STREAM, 1) > 0 ||
               sd_is_socket(fd, AF_UNIX, SOCK_STREAM, 1) > 0;
}

static char *entry_name(FdKind kind, const char *run) {
        switch (kind) {
        case FD_RUN:
                return strprintf("run-%s", run);
        case FD_RUN_UNIX:
                return strprintf("unix-%s", run);
        case FD_RUN_PROXY:
                return strprintf("proxy-%s", run);
        case FD_REMOTE:
                return strdup(REMOTE_NAME);
        case FD_REPORTS:
                return strdup("reports");
        case FD_CONTROL:
                return strdup(CONTROL_NAME);
        }
        return NULL;
}

static int remove_name(const char *name) {
        int r = sd_notifyf(false, "FDSTOREREMOVE=1\nFDNAME=%s", name);
        return r < 0 ? r : 0;
}

int fd_store_remove(FdKind kind, const char *run) {
        _cleanup_free_ char *name = entry_name(kind, run);

        return name ? remove_name(name) : -ENOMEM;
}

int fd_store_push(FdKind kind, const char *run, int fd) {
        _cleanup_free_ char *name = entry_name(kind, run), *state = NULL;
        if (!name)
                return -ENOMEM;

        int r = remove_name(name);
        if (r < 0)
                return r;

        /* FDPOLL=0: a listener whose namespace is torn down may report a hang-up, and would be dropped behind our
         * back. */
        state = strprintf("FDSTORE=1\nFDNAME=%s\nFDPOLL=0", name);
        if (!state)
                return -ENOMEM;
        r = sd_pid_notify_with_fds(0, false, state, &fd, 1);
        return r < 0 ? r : 0;
}

static int take_one(const char *name, int fd, fd_store_take_t take, void *userdata) {
        static const struct {
                const char *prefix;
                FdKind kind;
        } prefixes[] = { { "run-", FD_RUN }, { "unix-", FD_RUN_UNIX }, { "proxy-", FD_RUN_PROXY } };

        if (streq(name, CONTROL_NAME) && fd_is_listener(fd))
                return take(FD_CONTROL, NULL, fd, userdata);
        if (streq(name, "reports") && sd_is_fifo(fd, NULL) == 0 && sd_is_socket(fd, AF_UNSPEC, 0, -1) == 0)
                return take(FD_REPORTS, NULL, fd, userdata);
        if (streq(name, REMOTE_NAME) && fd_is_listener(fd))
                return take(FD_REMOTE, NULL, fd, userdata);
        for (size_t i = 0; i < ELEMENTSOF(prefixes); i++) {
                const char *run = startswith(name, prefixes[i].prefix);

                if (run && run_id_is_valid(run) && fd_is_listener(fd))
                        return take(prefixes[i].kind, run, fd, userdata);
        }
        log_warning("Closing file descriptor \"%s\", which is none of ours.", name);
        return 0;
}

int fd_store_take_back(fd_store_take_t take, void *userdata) {
        char **names = NULL;
        int n = sd_listen_fds_with_names(true, &names);
        if (n < 0)
                return n;

        for (int i = 0; i < n; i++) {
                int fd = SD_LISTEN_FDS_START + i, r = take_one(names[i], fd, take, userdata);

                if (r < 0)
                        log_warning_errno(r, "Failed to take \"%s\" back: %m", names[i]);
                if (r <= 0) {
                        safe_close(fd);
                        (void) remove_name(names[i]);
                }
        }

        strv_free(names);
        return 0;
}
