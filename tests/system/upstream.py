# SPDX-License-Identifier: LGPL-2.1-or-later
"""An API as agents call one through the bridge: HTTPS on the machine's loopback, under a throw-away authority that the
machine is made to trust. Tests say what it answers, and read what it was asked.
"""

import contextlib
import datetime
import ipaddress
import json
import os
import socket
import ssl
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from client import DEADLINE, run, systemctl

AUTHORITY = "/usr/local/share/ca-certificates/agentd-test.crt"
DROPIN = "/etc/agentd/bridge.conf.d/90-test.conf"


def _certificate(name, key, issuer, issuer_key, authority, hosts=("localhost", "127.0.0.1"), age=1):
    """AGE: of how many days; it is valid for 30 more than one is old."""
    now = datetime.datetime.now(datetime.timezone.utc)
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(issuer).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now - datetime.timedelta(days=age)).not_valid_after(
        now + datetime.timedelta(days=31 - age)
    )
    builder = builder.add_extension(x509.BasicConstraints(authority, None), True)
    if not authority:
        names = [
            x509.IPAddress(ipaddress.ip_address(h)) if h[0].isdigit() else x509.DNSName(h) for h in hosts
        ]
        builder = builder.add_extension(x509.SubjectAlternativeName(names), False)
    return builder.sign(issuer_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def _name(text):
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, text)])


class Request(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 600

    def handle_one_request(self):
        try:
            super().handle_one_request()
        except (ConnectionError, ssl.SSLError, TimeoutError):
            self.close_connection = True

    def pieces(self):
        """The request's body as it comes."""
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            while size := int(self.rfile.readline().split(b";")[0], 16):
                while size and (piece := self.rfile.read1(min(size, 1 << 20))):
                    size -= len(piece)
                    yield piece
                assert size == 0 and self.rfile.readline() == b"\r\n"
            while self.rfile.readline() not in (b"\r\n", b""):
                pass
            return
        size = int(self.headers.get("Content-Length") or 0)
        while size and (piece := self.rfile.read1(min(size, 1 << 20))):
            size -= len(piece)
            yield piece
        assert size == 0

    def answer(self):
        owner = self.server.owner
        with owner.lock:
            handler = owner.streams.get(self.path.split("?")[0])
        if handler:
            try:
                handler(self)
            except AssertionError:
                self.close_connection = True
            return
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            self.body = b""
            while size := int(self.rfile.readline().split(b";")[0], 16):
                self.body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = self.path.split("?")[0]
        with owner.lock:
            owner.requests.append((self.command, self.path, list(self.headers.items()), self.body))
            handler = next(
                (h for p, h in owner.handlers.items() if path == p or p.endswith("/") and path.startswith(p)), None
            )
        if handler is None:
            self.reply(404, {"error": "no handler"})
        else:
            handler(self)

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = do_PATCH = answer

    def reply(self, status, body=b"", headers=()):
        if not isinstance(body, bytes):
            body, headers = json.dumps(body).encode(), [("Content-Type", "application/json"), *headers]
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def finish_request(self, request, address):
        # The handshake in the connection's own thread, so that one that hangs holds up nobody.
        request.settimeout(60)
        try:
            secure = self.owner.context.wrap_socket(request, server_side=True)
        except (OSError, ssl.SSLError):
            return
        self.RequestHandlerClass(secure, address, self)

    def handle_error(self, *_):
        pass


class Upstream:
    """AUTHORITY_FILE is where its authority is written to; the default one is trusted by the whole machine."""

    def __init__(self, authority_file=AUTHORITY):
        self.lock = threading.Lock()
        self.handlers = {}
        self.streams = {}
        self.requests = []
        name, key = self.authority = (
            _name(f"authority of {os.path.basename(authority_file)}"),  # they are looked up by their names
            ec.generate_private_key(ec.SECP256R1()),
        )
        with open(authority_file, "wb") as f:
            f.write(_certificate(name, key, name, key, True))
        if authority_file == AUTHORITY:
            run("update-ca-certificates")
        self.context = self.identity()
        self.server = _Server(("127.0.0.1", 0), Request)
        self.server.owner = self
        self.port = self.server.server_address[1]
        self.origin = f"https://localhost:{self.port}"
        self.url = f"{self.origin}/api"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        if authority_file == AUTHORITY:
            self.allow("127.0.0.0/8 ::1")

    def identity(self, authority=None, **different):
        """What a server shows: a certificate by the authority that the machine trusts, or by another one."""
        key, context = ec.generate_private_key(ec.SECP256R1()), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        with tempfile.NamedTemporaryFile() as f:
            form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            f.write(key.private_bytes(*form))
            f.write(_certificate(_name("localhost"), key, *(authority or self.authority), False, **different))
            f.flush()
            context.load_cert_chain(f.name)
        return context

    def stranger(self):
        """Somebody with the name of the authority, but another key."""
        return self.authority[0], ec.generate_private_key(ec.SECP256R1())

    def changing_server(self, *identities):
        """Another server, whose connections see one identity after the other."""
        return ChangingServer(identities)

    @staticmethod
    def allow(addresses):
        """Which private addresses the host's side may dial; None for what holds by default."""
        os.makedirs(os.path.dirname(DROPIN), exist_ok=True)
        if addresses is None:
            os.unlink(DROPIN)
        else:
            with open(DROPIN, "w") as f:
                f.write(f"[Upstream]\nAllowAddresses={addresses}\n")
        systemctl("try-restart", "agent-bridged.service", "agent-credentiald.service")

    def on(self, path, handler):
        """Answers requests of PATH (with a slash at its end: all below it) by HANDLER(request)."""
        with self.lock:
            self.handlers[path] = handler

    def on_stream(self, path, handler):
        """The same for one path, by a HANDLER that reads the body by itself (request.pieces()); is not recorded."""
        with self.lock:
            self.streams[path] = handler

    def event_server(self, n, events):
        """Another server, which sends N streams of EVENTS events in step."""
        return EventServer(self.context, n, events)

    def asked(self, path):
        """The requests of PATH so far."""
        with self.lock:
            return [r for r in self.requests if r[1].split("?")[0] == path]

    def close(self):
        self.server.shutdown()

    def gate(self, name):
        return Gate(self, name)


class ChangingServer:
    """Answers each request by a body that does not end, but the requests of /api/short."""

    def __init__(self, identities):
        self.identities, self.asked, self.threads = list(identities), [], []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"https://127.0.0.1:{self.listener.getsockname()[1]}/api"
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        for identity in self.identities:
            plain, _ = self.listener.accept()
            threading.Thread(target=self.serve, args=(plain, identity), daemon=True).start()
        self.listener.close()

    def serve(self, plain, identity):
        plain.settimeout(DEADLINE)
        try:
            with identity.wrap_socket(plain, server_side=True) as secure:
                head = b""
                while b"\r\n\r\n" not in head and (piece := secure.recv(65536)):
                    head += piece
                path = head.split(b" ")[1].decode()
                self.asked.append(path)
                length = b"2" if path == "/api/short" else b"3"
                secure.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: " + length + b"\r\n\r\n{}")
                secure.recv(1)  # until the other side goes
        except (OSError, IndexError):
            pass


class EventServer:
    """Waits for N requests, then sends each an event "NUMBER.EVENT", EVENTS times, to all before the next to any. One
    thread for all, as a thousand would be slow."""

    HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"

    def __init__(self, context, n, events):
        self.context, self.n, self.events = context, n, events
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.url = f"https://localhost:{self.listener.getsockname()[1]}"
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        streams = []
        while len(streams) < self.n:
            plain, _ = self.listener.accept()
            plain.settimeout(DEADLINE)
            try:
                stream = self.context.wrap_socket(plain, server_side=True)
                head = b""
                while not head.endswith(b"\r\n\r\n"):
                    if not (piece := stream.recv(65536)):
                        raise ConnectionError
                    head += piece
                stream.sendall(self.HEAD)
            except (OSError, ConnectionError):
                continue
            streams.append(stream)
        for event in range(self.events + 1):
            for number, stream in enumerate(streams):
                data = b"data: %d.%d\n\n" % (number, event) if event < self.events else b""
                stream.sendall(b"%x\r\n%s\r\n" % (len(data), data))
        self.listener.close()


@contextlib.contextmanager
def bridge_config(text):
    """Lets the bridge run with these settings for a while."""
    path = os.path.join(os.path.dirname(DROPIN), "95-test.conf")
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)
    systemctl("restart", "agent-bridged.service")
    try:
        yield
    finally:
        os.unlink(path)
        systemctl("restart", "agent-bridged.service")


class Gate:
    """Holds requests of /api/gate/NAME until it is opened, and tells how many have come."""

    def __init__(self, upstream, name):
        self.count, self.changed, self.opened = 0, threading.Condition(), threading.Event()
        upstream.on(f"/api/gate/{name}", self.pass_through)

    def pass_through(self, request):
        with self.changed:
            self.count += 1
            self.changed.notify_all()
        assert self.opened.wait(DEADLINE)
        request.reply(200, {"open": True})

    def arrived(self, n):
        """Waits until N requests have come."""
        with self.changed:
            assert self.changed.wait_for(lambda: self.count >= n, DEADLINE), f"{self.count} of {n} came"

    def open(self):
        self.opened.set()
