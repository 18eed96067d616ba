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

bool fd_is_listener(int fd) {
        return sd_is_socket(fd, AF_INET, SOCK_STREAM, 1) > 0 || sd_is_socket(fd, AF_INET6, SOCK_STREAM, 1) > 0 ||
               sd_is_socket(fd, AF_UNIX, SOCK_STREAM, 1) > 0;
}

static int remove_name(const char *name) {
        return sd_notifyf(false, "FDSTOREREMOVE=1\nFDNAME=%s", name);
}

int fd_store_remove(const char *run) {
        _cleanup_free_ char *name = strprintf("run-%s", run);
        if (!name)
                return -ENOMEM;

        int r = remove_name(name);
        return r < 0 ? r : 0;
}

int fd_store_push(const char *run, int fd) {
        int r = fd_store_remove(run);
        if (r < 0)
                return r;

        /* FDPOLL=0: a listener whose namespace is torn down may report a hang-up, and would be dropped behind our back. */
        _cleanup_free_ char *state = strprintf("FDSTORE=1\nFDNAME=run-%s\nFDPOLL=0", run);
        if (!state)
                return -ENOMEM;
        r = sd_pid_notify_with_fds(0, false, state, &fd, 1);
        return r < 0 ? r : 0;
}

int fd_store_take_back(fd_store_take_t take, void *userdata) {
        char **names = NULL;
        int n = sd_listen_fds_with_names(true, &names);
        if (n < 0)
                return n;

        for (int i = 0; i < n; i++) {
                int fd = SD_LISTEN_FDS_START + i, r;
                const char *run = startswith(names[i], "run-");

                if (streq(names[i], CONTROL_NAME) && fd_is_listener(fd))
                        r = take(NULL, fd, userdata);
                else if (run && run_id_is_valid(run) && fd_is_listener(fd)) {
                        r = take(run, fd, userdata);
                        if (r <= 0)
                                (void) fd_store_remove(run);
                } else {
                        log_warning("Closing file descriptor \"%s\", which is none of ours.", names[i]);
                        (void) remove_name(names[i]);
                        r = 0;
                }
                if (r < 0)
                        log_warning_errno(r, "Failed to take \"%s\" back: %m", names[i]);
                if (r <= 0)
                        safe_close(fd);
        }

        strv_free(names);
        return 0;
}
