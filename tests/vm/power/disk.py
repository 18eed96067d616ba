# SPDX-License-Identifier: LGPL-2.1-or-later
"""A disk with a write cache, for virtual machines whose power is cut. It is an NBD server (the protocol's simple part) on a
file: what is written stays in memory until the guest says FLUSH. When the connection breaks, which it does when qemu is
killed, each block that was written since is lost, or has on the disk any of the versions that it had: as a real
drive would leave it.

A cut can be set to the N-th request that changes something: that one and all later ones are never carried out.
"""

import os
import random
import socket
import struct
import threading

BLOCK = 4096
OPTION_MAGIC = b"IHAVEOPT"
READ, WRITE, DISCONNECT, FLUSH = 0, 1, 2, 3
FLAGS = 1 | 4 | 8  # flags are there, FLUSH, FUA


class Gone(Exception):
    """The other side is."""


class Disk:
    def __init__(self, file, path, seed):
        self.fd = os.open(file, os.O_RDWR)
        self.size = os.fstat(self.fd).st_size
        self.random = random.Random(seed)
        self.unflushed = {}  # block: its versions since the last flush
        self.count = 0  # of writes and flushes since arm()
        self.limit = None
        self.on_cut = None
        self.lost = None  # of the last connection: blocks lost, blocks written since the last flush
        self.lock = threading.Lock()
        self.gone = threading.Event()
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(path)
        self.listener.listen(1)
        threading.Thread(target=self._serve, daemon=True).start()

    def arm(self, limit, on_cut):
        """The power goes at the LIMIT-th change from now on (None: never); ON_CUT is called when it does."""
        with self.lock:
            self.count, self.limit, self.on_cut = 0, limit, on_cut

    def wait_for_the_end(self):
        """Until the connection is no more; (blocks lost, blocks that were written since the last flush)."""
        self.gone.wait(60)
        return self.lost

    def _serve(self):
        while True:
            s, _ = self.listener.accept()
            self.gone.clear()
            try:
                self._greet(s)
                while True:
                    self._request(s)
            except (Gone, OSError):
                self._power_cut()
            finally:
                s.close()
                self.gone.set()

    @staticmethod
    def _read(s, n):
        data = bytearray()
        while len(data) < n:
            chunk = s.recv(n - len(data))
            if not chunk:
                raise Gone
            data += chunk
        return bytes(data)

    def _greet(self, s):
        s.sendall(b"NBDMAGIC" + OPTION_MAGIC + struct.pack(">H", 1 | 2))  # fixed newstyle, no zeroes
        self._read(s, 4)
        while True:
            magic, option, n = struct.unpack(">8sII", self._read(s, 16))
            assert magic == OPTION_MAGIC
            self._read(s, n)

            def answer(kind, data=b"", option=option):
                s.sendall(struct.pack(">QIII", 0x3E889045565A9, option, kind, len(data)) + data)

            if option == 7:  # GO
                answer(3, struct.pack(">HQH", 0, self.size, FLAGS))
                answer(1)
                return
            if option == 2:
                raise Gone
            answer(0x80000001)  # not supported

    def _request(self, s):
        magic, flags, kind, handle, offset, n = struct.unpack(">IHHQQI", self._read(s, 28))
        assert magic == 0x25609513
        data = self._read(s, n) if kind == WRITE else b""
        if kind == DISCONNECT:
            raise Gone
        if kind in (WRITE, FLUSH) and self._is_cut():
            while True:  # no answer any more, until qemu is dead
                self._read(s, 1)
        error = 0
        if kind == READ:
            data = self._get(offset, n)
        elif kind == WRITE:
            self._put(offset, data, flags & 1)
            data = b""
        elif kind == FLUSH:
            self._flush(self.unflushed)
        else:
            error = 22
        s.sendall(struct.pack(">IIQ", 0x67446698, error, handle) + data)

    def _is_cut(self):
        with self.lock:
            self.count += 1
            if self.limit is None or self.count < self.limit:
                return False
            callback, self.on_cut = self.on_cut, None
        if callback:
            callback()
        return True

    def _block(self, n):
        versions = self.unflushed.get(n)
        return versions[-1] if versions else os.pread(self.fd, BLOCK, n * BLOCK)

    def _get(self, offset, n):
        first, last = offset // BLOCK, (offset + n - 1) // BLOCK
        data = b"".join(self._block(i) for i in range(first, last + 1))
        return data[offset - first * BLOCK :][:n]

    def _put(self, offset, data, through):
        blocks = {}
        while data:
            i, at = divmod(offset, BLOCK)
            part = data[: BLOCK - at]
            if len(part) < BLOCK:
                old = self._block(i)
                part = old[:at] + part + old[at + len(part) :]
            self.unflushed.setdefault(i, []).append(part)
            blocks[i] = self.unflushed[i]
            offset, data = offset + BLOCK - at, data[BLOCK - at :]
        if through:
            self._flush(blocks)

    def _flush(self, blocks):
        for i, versions in list(blocks.items()):
            os.pwrite(self.fd, versions[-1], i * BLOCK)
            del self.unflushed[i]

    def _power_cut(self):
        lost = 0
        for i, versions in self.unflushed.items():
            kept = self.random.choice([None, *versions])
            if kept is None:
                lost += 1
            else:
                os.pwrite(self.fd, kept, i * BLOCK)
        self.lost = (lost, len(self.unflushed))
        self.unflushed = {}
