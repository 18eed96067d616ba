# SPDX-License-Identifier: LGPL-2.1-or-later
"""Much of everything through the real bridge: bodies of all sizes and framings, a GiB each way, a thousand streams of
events, readers that stop, ten thousand connections, bytes that come one by one. What it costs is the bridge's own
resident memory; that others get through is shown by asking meanwhile.
"""

import gzip
import hashlib
import os
import re
import threading

import pytest

import inside
from client import DEADLINE, show, wait_until
from upstream import bridge_config

GIB = 1 << 30
SANITIZED = bool(os.environ.get("AGENTD_SANITIZE"))


class Memory:
    """How much the bridge grows within a block. Its sanitizer keeps what was freed, so nothing is said then."""

    def __enter__(self):
        self.pid = show("agent-bridged.service", "MainPID")
        with open(f"/proc/{self.pid}/clear_refs", "w", encoding="ascii") as f:
            f.write("5")  # the peak begins anew
        self.before = self.kib("VmRSS")
        return self

    def kib(self, name):
        with open(f"/proc/{self.pid}/status", encoding="ascii") as f:
            return int(re.search(rf"^{name}:\s+(\d+) kB", f.read(), re.M)[1])

    def __exit__(self, kind, *_):
        if kind is None:
            assert show("agent-bridged.service", "MainPID") == self.pid
            self.grown = self.kib("VmHWM") - self.before
            print(f"the bridge grew by {self.grown} KiB")

    def at_most(self, mib):
        assert SANITIZED or self.grown <= mib << 10, f"{self.grown} KiB"


# In the sandbox: bytes of a pattern that has no period near any buffer's size, made piece by piece.
PATTERN = """
BLOCK = hashlib.sha512(b"a").digest() * 1021  # no multiple of a power of two
def pattern(size, step=65536):
    at = 0
    data = BLOCK * (step // len(BLOCK) + 2)
    while at < size:
        n = min(step, size - at)
        yield data[at % len(BLOCK) : at % len(BLOCK) + n]
        at += n
def sha(pieces):
    h = hashlib.sha256()
    for p in pieces:
        h.update(p)
    return h.hexdigest()
def stream(method, path, size=None, chunked=False, headers={}, step=65536):
    '''A request whose body is never whole in memory; returns status, headers, size and hash of the answer.'''
    c = http.client.HTTPConnection("127.0.0.1", 8377, timeout=3600)
    h = {"Authorization": "Bearer " + token(), **headers}
    body = None
    if size is not None:
        body = pattern(size, step)
        if not chunked:
            h["Content-Length"] = str(size)
    c.request(method, path, body, h, encode_chunked=chunked and size is not None)
    r = c.getresponse()
    total, digest = 0, hashlib.sha256()
    while piece := r.read(65536):
        total += len(piece)
        digest.update(piece)
    c.close()
    return [r.status, {k.lower(): v for k, v in r.getheaders()}, total, digest.hexdigest()]
"""
_space = {"hashlib": hashlib}
exec(PATTERN.split("def stream")[0], _space)  # the same here
pattern, sha = _space["pattern"], _space["sha"]


def send_pattern(r, size, chunked, step=65536, headers=()):
    """An answer of that pattern; the body in chunks of their own, or with a length."""
    r.send_response(200)
    for name, value in headers:
        r.send_header(name, value)
    if chunked:
        r.send_header("Transfer-Encoding", "chunked")
    else:
        r.send_header("Content-Length", str(size))
    r.end_headers()
    for piece in pattern(size, step):
        r.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece) if chunked else piece)
    if chunked:
        r.wfile.write(b"0\r\n\r\n")


# --- bytes ---

SIZES = (0, 1, 2, 16383, 16384, 16385, 65535, 65536, 65537, 262143, 262144, 262145, 1 << 20, 5_000_001)


def test_every_byte(caller, make_service, upstream, unique):
    """Bodies of any size, both framings, up and down at once: the same hash on both sides."""
    name = unique()

    def echo(r):
        query = r.path.partition("?")[2]
        size, chunked = int(query.split("&")[0]), query.endswith("c")
        got = hashlib.sha256()
        n = 0
        for piece in r.pieces():
            got.update(piece)
            n += len(piece)
        framing = "chunked" if r.headers["Transfer-Encoding"] else "length"
        send_pattern(r, size, chunked, 7919, [("X-Sha", got.hexdigest()), ("X-Size", str(n)), ("X-Framing", framing)])

    upstream.on_stream(f"/api/{name}", echo)
    service = make_service("the-real-one")
    seen = caller(
        PATTERN
        + f"""
out = []
for size in {SIZES!r}:
    for up in (False, True):
        for down in "lc":
            path = "/v1/services/{service}/{name}?%d&%s" % (size, down)
            out.append([size, up, stream("POST", path, size, up, step=8191)])
say(out)
""",
        service,
        limits={"timeout": 7200},
    )
    assert len(seen) == 4 * len(SIZES)
    for size, chunked, (status, headers, got, digest) in seen:
        want = sha(pattern(size))
        assert (status, got, digest) == (200, size, want), size
        assert (headers["x-size"], headers["x-sha"]) == (str(size), want), size
        # A length stays one, chunks stay chunks.
        assert headers["x-framing"] == ("chunked" if chunked else "length"), size


def test_answers_without_bodies_and_encoded_ones(caller, make_service, upstream, unique):
    """HEAD keeps its length and has no body, 204 and 304 have neither; what is encoded passes as it is, also what would
    not decode. Many requests on one connection: nothing of one answer is left for the next."""
    name = unique()
    zipped = gzip.compress(os.urandom(100_000) + b"x" * 100_000)

    def handler(r):
        kind = r.path.rsplit("/", 1)[1]
        if kind in ("204", "304"):
            r.send_response(int(kind))
            r.send_header("ETag", '"x"')
            r.end_headers()
        elif kind == "gzip":
            r.reply(200, zipped, [("Content-Encoding", "gzip")])
        elif kind == "broken":
            r.reply(200, b"\x1f\x8b\x08\x00broken", [("Content-Encoding", "gzip")])
        elif kind == "bomb":
            send_pattern(r, 100_000, True, headers=[("Content-Encoding", "br, zstd, gzip")])
        elif r.command == "HEAD":
            r.send_response(200)
            r.send_header("Content-Length", "123456789")
            r.end_headers()
        else:
            r.reply(200, b"plain")

    upstream.on(f"/api/{name}/", handler)
    service = make_service(allow=[{"methods": ["GET", "HEAD"], "paths": ["/*"]}])
    seen = caller(
        f"""
c = connect()
out = []
for method, kind in [("HEAD", "x"), ("GET", "204"), ("GET", "x"), ("GET", "304"), ("GET", "gzip"), ("GET", "broken"),
                     ("GET", "bomb"), ("HEAD", "204"), ("GET", "x")] * 3:
    c.request(method, "/v1/services/{service}/{name}/" + kind, headers={{"Authorization": "Bearer " + token(),
                                                                       "Accept-Encoding": "gzip, br"}})
    r = c.getresponse()
    body = r.read()
    headers = {{k.lower(): v for k, v in r.getheaders()}}
    out.append([kind, method, r.status, headers, len(body), hashlib.sha256(body).hexdigest()])
say(out)
""",
        service,
    )
    for kind, method, status, headers, size, digest in seen:
        assert status == {"204": 204, "304": 304}.get(kind, 200), kind
        if kind in ("204", "304") or method == "HEAD":
            assert size == 0, kind
            if kind in ("204", "304") and method == "GET":
                assert "content-length" not in headers and headers["etag"] == '"x"'
            elif method == "HEAD" and kind == "x":
                assert headers["content-length"] == "123456789"
        elif kind == "gzip":
            assert headers["content-encoding"] == "gzip" and digest == hashlib.sha256(zipped).hexdigest()
        elif kind == "broken":
            assert size == 10 and headers["content-encoding"] == "gzip"
        elif kind == "bomb":
            assert digest == sha(pattern(100_000)) and headers["content-encoding"] == "br, zstd, gzip"
        else:
            assert size == 5


@pytest.mark.parametrize("chunked", [False, True])
def test_a_gib_each_way(caller, make_service, upstream, unique, chunked):
    """At once, through one bridge, which holds no more than its buffers."""
    name = unique()

    def up(r):
        h = hashlib.sha256()
        n = 0
        for piece in r.pieces():
            h.update(piece)
            n += len(piece)
        r.reply(200, {"size": n, "sha": h.hexdigest()})

    upstream.on_stream(f"/api/{name}/up", up)
    upstream.on_stream(f"/api/{name}/down", lambda r: (list(r.pieces()), send_pattern(r, GIB, chunked, 1 << 17)))
    service = make_service("the-real-one", limits={"body": "2G"})
    with Memory() as memory:
        down, up = caller(
            PATTERN
            + f"""
down = stream("GET", "/v1/services/{service}/{name}/down")
c = http.client.HTTPConnection("127.0.0.1", 8377, timeout=3600)
h = {{"Authorization": "Bearer " + token()}}
if not {chunked}:
    h["Content-Length"] = str({GIB})
c.request("POST", "/v1/services/{service}/{name}/up", pattern({GIB}, 1 << 17), h, encode_chunked={chunked})
say([down, json.loads(c.getresponse().read())])
""",
            service,
            limits={"timeout": 7200},
        )
    want = sha(pattern(GIB, 1 << 17))
    assert (down[0], down[2], down[3]) == (200, GIB, want)
    assert up == {"size": GIB, "sha": want}
    memory.at_most(16)


# --- many streams ---

STREAMS = """
import selectors
def streams(n, path):
    '''Opens N streams of events, reads them all to their ends; returns the bytes of each.'''
    sel = selectors.DefaultSelector()
    head = ("GET " + path + " HTTP/1.1\\r\\nHost: x\\r\\nAuthorization: Bearer " + token() + "\\r\\n\\r\\n").encode()
    all = []
    for i in range(n):
        s = socket.create_connection(("127.0.0.1", 8377), 3600)
        s.sendall(head)
        s.setblocking(False)
        all.append((s, []))
        sel.register(s, selectors.EVENT_READ, all[-1])
    left = n
    while left:
        for key, _ in sel.select(120):
            entry = key.data
            try:
                piece = entry[0].recv(65536)
            except BlockingIOError:
                continue
            entry[1].append(piece)
            if not piece or piece.endswith(b"\\r\\n0\\r\\n\\r\\n") or piece == b"0\\r\\n\\r\\n":
                sel.unregister(entry[0])
                entry[0].close()
                left -= 1
    return [b"".join(e[1]) for e in all]
"""


def test_a_thousand_streams_of_a_hundred_events(caller, make_service, upstream, unique):
    """Each gets its own, all and in order. The upstream sends an event to all before it sends the next to any."""
    name, n, events = unique(), 1000, 100
    server = upstream.event_server(n, events)
    # They all come at once, and its handshakes take their time.
    service = make_service("the-real-one", base_url=server.url, timeouts={"connect": 300, "first_byte": 600})
    with bridge_config(f"[Bridge]\nConnectionsMax={n + 10}\n[Limits]\nRunRequestsPerSecond=0\n"):
        with Memory() as memory:
            seen = caller(
                STREAMS
                + f"""
out = []
for data in streams({n}, "/v1/services/{service}/{name}"):
    head, _, body = data.partition(b"\\r\\n\\r\\n")
    events, at = [], 0
    while at < len(body):
        size, _, rest = body[at:].partition(b"\\r\\n")
        size = int(size, 16)
        events.append(rest[:size].decode())
        at = len(body) - len(rest) + size + 2
    number = events[0].split()[1].split(".")[0]
    want = ["data: %s.%d\\n\\n" % (number, i) for i in range({events})] + [""]
    out.append([head.split()[1].decode(), int(number), events == want])
say(out)
""",
                service,
                limits={"files": 4096, "timeout": 7200},
            )
            wait_until(
                lambda: SANITIZED or memory.kib("VmRSS") <= memory.before + (24 << 10), "what they had did not come back"
            )
        print(f"{n} streams: {memory.grown / n:.0f} KiB each")
    assert {s[0] for s in seen} == {"200"}
    assert sorted(s[1] for s in seen) == list(range(n))
    assert all(s[2] for s in seen)
    memory.at_most(100)


def test_readers_that_stop(agentd, make_agent, make_service, upstream, unique, probe):
    """A hundred downloads and as many uploads that nobody takes: each stops, costs its buffers, and holds up nobody."""
    name = unique()
    upstream.on_stream(f"/api/{name}/down", lambda r: send_pattern(r, GIB, False))
    gate = threading.Event()
    upstream.on_stream(f"/api/{name}/up", lambda r: gate.wait(DEADLINE))
    told = threading.Event()
    upstream.on(f"/api/{name}/told", lambda r: (told.set(), r.reply(200, {})))
    upstream.on(f"/api/{name}/wait", lambda r: (gate.wait(DEADLINE), r.reply(200, {})))
    service = make_service(limits={"body": "2G"})
    with Memory() as memory:
        path = agentd.execute(
            make_agent(inside.COMMAND, kind="command", services=[service], limits={"files": 4096, "timeout": 7200}),
            inside.PRELUDE
            + f"""
import selectors
def open_one(method, what, rest=""):
    s = socket.create_connection(("127.0.0.1", 8377), 3600)
    s.sendall(("%s /v1/services/{service}/{name}/%s HTTP/1.1\\r\\nHost: x\\r\\nAuthorization: Bearer %s\\r\\n%s\\r\\n" %
               (method, what, token(), rest)).encode())
    return s
DOWNS, UPS = 100, 100
downs = [open_one("GET", "down") for _ in range(DOWNS)]
for s in downs:
    s.recv(1)
ups = [open_one("POST", "up", "Content-Length: {GIB}\\r\\n") for _ in range(UPS)]
sel = selectors.DefaultSelector()
for s in ups:
    s.setblocking(False)
    sel.register(s, selectors.EVENT_WRITE)
block, sent, quiet = b"x" * 65536, 0, 0
while quiet < 3:  # until none takes any more
    ready = sel.select(1)
    for key, _ in ready:
        try:
            sent += key.fileobj.send(block)
        except BlockingIOError:
            pass
    quiet = 0 if ready else quiet + 1
bridge("GET", "/v1/services/{service}/{name}/told")
bridge("GET", "/v1/services/{service}/{name}/wait")
say(sent)
""",
        )
        assert told.wait(DEADLINE)
        assert probe('say([bridge("GET", "/v1/run")[0] for _ in range(20)])') == [200] * 20
        gate.set()
        assert agentd.finish(path)[0] == "success", agentd.log(path)
    assert agentd.result(path)["output"] < 100 * (32 << 20)
    memory.at_most(100)


# --- many connections ---


def test_ten_thousand_idle_connections(agentd, make_agent, make_service, upstream, unique, probe):
    """One run opens as many as it may: beyond its own number they wait in its own backlog, and the bridge's share of
    open files stays small. Another run is served meanwhile, and so is this one."""
    name = unique()
    gate = upstream.gate(name)
    service = make_service()
    path = agentd.execute(
        make_agent(
            inside.COMMAND, kind="command", services=[service], limits={"files": 20000, "timeout": 7200, "memory": "1G"}
        ),
        inside.PRELUDE
        + f"""
held = []
for i in range(10000):
    s = socket.socket()
    s.setblocking(False)
    s.connect_ex(("127.0.0.1", 8377))
    held.append(s)
first = bridge("GET", "/v1/services/{service}/gate/{name}")[0]
say([first, len(held), bridge("GET", "/v1/run")[0]])
""",
    )
    with Memory() as memory:
        gate.arrived(1)  # through, past all the others
        fds = len(os.listdir(f"/proc/{memory.pid}/fd"))
        for _ in range(3):
            assert probe('say([bridge("GET", "/v1/run")[0] for _ in range(20)])') == [200] * 20
    gate.open()
    assert agentd.finish(path)[0] == "success", agentd.log(path)
    assert agentd.result(path)["output"] == [200, 10000, 200]
    assert fds < 600, fds
    assert int(show("agent-bridged.service", "LimitNOFILE")) >= 65536
    memory.at_most(32)


def test_a_byte_now_and_then(agentd, make_agent, make_service, upstream, unique):
    """A request's body that comes a byte at a time, longer in all than any silence that is allowed, and an answer that
    does: both come to their ends. Limits are shortened instead of waiting: only silence ends a call. All three at once,
    with a limit that is far more than the pauses, for machines that pause by themselves.
    """
    name = unique()
    upstream.on_stream(f"/api/{name}/up", lambda r: r.reply(200, {"size": sum(len(p) for p in r.pieces())}))

    def slow(r):
        r.send_response(200)
        r.send_header("Transfer-Encoding", "chunked")
        r.end_headers()
        for _ in range(60):
            threading.Event().wait(0.2)  # what is tested is time passing, in steps below the limit
            r.wfile.write(b"1\r\nx\r\n")
        r.wfile.write(b"0\r\n\r\n")

    upstream.on_stream(f"/api/{name}/down", slow)

    def silent(r):
        r.send_response(200)
        r.send_header("Transfer-Encoding", "chunked")
        r.end_headers()
        r.wfile.write(b"1\r\nx\r\n")
        threading.Event().wait(DEADLINE)

    upstream.on_stream(f"/api/{name}/silent", silent)
    service = make_service(timeouts={"first_byte": 10, "idle": 10})
    path = agentd.execute(
        make_agent(inside.COMMAND, kind="command", services=[service]),
        inside.PRELUDE
        + f"""
from concurrent.futures import ThreadPoolExecutor
def up():
    s = socket.create_connection(("127.0.0.1", 8377), 3600)
    s.sendall(("POST /v1/services/{service}/{name}/up HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n"
               "Content-Length: 70000\\r\\nAuthorization: Bearer " + token() + "\\r\\n\\r\\n").encode())
    s.sendall(b"x" * (70000 - 60))
    for _ in range(60):
        time.sleep(0.2)
        s.sendall(b"x")
    data = b""
    while piece := s.recv(65536):
        data += piece
    return json.loads(data.partition(b"\\r\\n\\r\\n")[2])
def down():
    return len(bridge("GET", "/v1/services/{service}/{name}/down")[2])
def silent():
    try:
        return bridge("GET", "/v1/services/{service}/{name}/silent")[0]
    except (OSError, http.client.HTTPException) as e:
        return "cut"
with ThreadPoolExecutor(3) as pool:
    say([j.result() for j in [pool.submit(f) for f in (up, down, silent)]])
""",
    )
    assert agentd.finish(path)[0] == "success", agentd.log(path)
    assert agentd.result(path)["output"] == [{"size": 70000}, 60, "cut"]
    outcomes = {c["path"].rsplit("/", 1)[1]: c["outcome"] for c in agentd.receipt(path)["calls"]}
    assert outcomes == {"up": "complete", "down": "complete", "silent": "upstream_error"}
