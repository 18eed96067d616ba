/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* See audit.h. */

#include <endian.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "audit.h"

#define SNDBUF (8 * 1024 * 1024)

static int journal_connect(void) {
        static const struct sockaddr_un sa = { .sun_family = AF_UNIX, .sun_path = "/run/systemd/journal/socket" };
        _cleanup_close_ int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);

        /* What journald has not read yet counts as ours: as much as the system grants, as libsystemd does. */
        if (fd >= 0)
                (void) setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &(int) { SNDBUF }, sizeof(int));
        if (fd < 0 || connect(fd, (const struct sockaddr *) &sa, sizeof(sa)) < 0)
                return -errno;
        return TAKE_FD(fd);
}

/* Waits while journald is behind: there are to be no holes. */
static void send_to_journal(const Text *record) {
        static int fd = -EBADF;

        for (unsigned i = 0; i < 2; i++) {
                if (fd < 0)
                        fd = journal_connect();
                if (fd < 0)
                        return; /* no journal */

                ssize_t n;
                do
                        n = send(fd, record->start, text_size(record), MSG_NOSIGNAL);
                while (n < 0 && errno == EINTR);
                if (n >= 0)
                        return;
                fd = safe_close(fd); /* its socket was made anew: so is ours */
        }
}

audit_sink_t audit_sink = send_to_journal;

static void audit_add_n(Text *t, const char *name, const char *value, size_t n) {
        char *before = t->at;
        bool was_cut = t->cut;

        t->cut = false;
        text_add(t, name);
        if (memchr(value, '\n', n)) {
                uint64_t size = htole64(n);

                text_add_n(t, "\n", 1);
                text_add_n(t, (const char *) &size, sizeof(size));
        } else
                text_add_n(t, "=", 1);
        text_add_n(t, value, n);
        text_add_n(t, "\n", 1);
        if (t->cut)
                t->at = before; /* the others are good without it */
        t->cut = t->cut || was_cut;
}

void audit_add(Text *t, const char *name, const char *value) {
        audit_add_n(t, name, value, strlen(value));
}

void audit_add_u64(Text *t, const char *name, uint64_t value) {
        char buf[24];
        Text digits = text_in(buf, sizeof(buf));

        text_add_u64(&digits, value);
        audit_add_n(t, name, buf, text_size(&digits));
}
