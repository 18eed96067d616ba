/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* What a connection sends: at once as far as the kernel takes it, the rest when it takes more. */

#include <sys/socket.h>
#include <sys/uio.h>

#include "http/http-internal.h"

int connection_flush(HttpConnection *c) {
        while (c->out.size > 0) {
                ssize_t n = send(c->fd, http_buffer_data(&c->out), c->out.size, MSG_NOSIGNAL | MSG_DONTWAIT);

                if (n < 0) {
                        if (errno == EINTR)
                                continue;
                        return errno == EAGAIN || errno == ENOBUFS ? 0 : -errno;
                }
                http_buffer_consume(&c->out, (size_t) n);
                connection_touch(c);
        }
        return 0;
}

int connection_write(HttpConnection *c, const struct iovec *pieces, size_t n_pieces) {
        bool behind = c->out.size > 0;
        size_t sent = 0;

        /* Where nothing waits before it, an event of a stream goes out of the memory that it lies in. */
        if (!behind) {
                struct msghdr m = { .msg_iov = (struct iovec *) pieces, .msg_iovlen = n_pieces };
                ssize_t n;

                connection_touch(c);
                do
                        n = sendmsg(c->fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
                while (n < 0 && errno == EINTR);
                if (n < 0 && errno != EAGAIN && errno != ENOBUFS)
                        return -errno;
                sent = n < 0 ? 0 : (size_t) n;
        }

        for (size_t i = 0; i < n_pieces; i++) {
                size_t skip = MIN(sent, pieces[i].iov_len);

                sent -= skip;
                if (http_buffer_append(&c->out, (const char *) pieces[i].iov_base + skip, pieces[i].iov_len - skip) < 0)
                        return -ENOMEM;
        }
        return behind ? connection_flush(c) : 0;
}
