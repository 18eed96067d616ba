# SPDX-License-Identifier: LGPL-2.1-or-later
"""The bridge goes and comes back with requests in flight. A restart or an upgrade loses none that had begun, and fails
none that begins after; where it is killed, what had begun breaks, visibly, and nothing else. Clients here never try
again.
"""

import hashlib
import os
import shutil
import threading

import inside
from client import DEADLINE, kill, show, systemctl, wait_until
from upstream import bridge_config

UNIT = "agent-bridged.service"
BINARY = "/usr/lib/agentd/agent-bridged"

# Held calls, a download and an upload in the midst, and meanwhile one new request after the other, each on a connection
# of its own. Says what became of each.
FLIGHT = """
from concurrent.futures import ThreadPoolExecutor
def held(i):
    s, h, b = bridge("POST", "/v1/services/%(service)s/gate/%(name)s", b"x" * i)
    return [s, json.loads(b)]
def download():
    c = http.client.HTTPConnection("127.0.0.1", 8377, timeout=3600)
    c.request("GET", "/v1/services/%(service)s/%(name)s/down", headers={"Authorization": "Bearer " + token()})
    r = c.getresponse()
    return [r.status, hashlib.sha256(r.read()).hexdigest()]
def upload():
    def pieces():
        yield b"a" * 100000
        yield bridge("GET", "/v1/services/%(service)s/%(name)s/middle")[2] and b"b" * 100000
    c = http.client.HTTPConnection("127.0.0.1", 8377, timeout=3600)
    auth = {"Authorization": "Bearer " + token()}
    c.request("PUT", "/v1/services/%(service)s/%(name)s/up", pieces(), auth, encode_chunked=True)
    r = c.getresponse()
    return [r.status, r.read().decode()]
def broken(f, *args):
    try:
        return f(*args)
    except (OSError, http.client.HTTPException, ValueError) as e:
        return [type(e).__name__]
with ThreadPoolExecutor(32) as pool:
    jobs = [pool.submit(broken, held, i) for i in range(20)]
    down, up = pool.submit(broken, download), pool.submit(broken, upload)
    ticks = []
    while True:
        s, _, b = bridge("GET", "/v1/services/%(service)s/%(name)s/tick")
        ticks.append(s)
        if s != 200 or json.loads(b)["stop"]:
            break
    say([[j.result() for j in jobs], down.result(), up.result(), ticks])
"""


class Flight:
    """The upstream of a run in that state."""

    def __init__(self, agentd, make_agent, make_service, upstream, name):
        self.agentd, self.stop, self.ticks = agentd, False, 0
        self.changed = threading.Condition()
        self.go, self.middle, self.started = threading.Event(), threading.Event(), threading.Event()
        self.gate = upstream.gate(name)
        upstream.on(f"/api/{name}/tick", self.tick)
        upstream.on_stream(f"/api/{name}/down", self.down)
        upstream.on_stream(f"/api/{name}/up", self.up)
        upstream.on(f"/api/{name}/middle", self.half_way)
        self.service = make_service("the-real-one")
        self.path = agentd.execute(
            make_agent(inside.COMMAND, kind="command", services=[self.service], limits={"timeout": 7200}),
            inside.PRELUDE + FLIGHT % {"service": self.service, "name": name},
        )
        self.gate.arrived(20)
        assert self.middle.wait(DEADLINE) and self.started.wait(DEADLINE)
        self.progress(3)

    def half_way(self, r):
        self.middle.set()
        assert self.go.wait(DEADLINE)
        r.reply(200, b"go on")

    def tick(self, r):
        with self.changed:
            self.ticks += 1
            self.changed.notify_all()
        r.reply(200, {"stop": self.stop})

    def progress(self, more):
        with self.changed:
            goal = self.ticks + more
            assert self.changed.wait_for(lambda: self.ticks >= goal, DEADLINE)

    def down(self, r):
        r.send_response(200)
        r.send_header("Content-Length", "200000")
        r.end_headers()
        r.wfile.write(b"c" * 100000)
        self.started.set()
        assert self.go.wait(DEADLINE)
        r.wfile.write(b"d" * 100000)

    def up(self, r):
        r.reply(200, {"size": sum(len(p) for p in r.pieces())})

    def release(self):
        self.gate.open()
        self.go.set()

    def land(self):
        self.stop = True
        assert self.agentd.finish(self.path)[0] == "success", self.agentd.log(self.path)
        return self.agentd.result(self.path)["output"]


def whole(flight, output):
    """Nothing was lost, nothing failed, all of it is in the receipt once."""
    jobs, down, up, ticks = output
    assert jobs == [[200, {"open": True}]] * 20
    assert down == [200, hashlib.sha256(b"c" * 100000 + b"d" * 100000).hexdigest()]
    assert up == [200, '{"size": 200000}']
    assert set(ticks) == {200} and len(ticks) == flight.ticks
    calls = flight.agentd.receipt(flight.path)["calls"]
    assert {c["outcome"] for c in calls} == {"complete"}
    assert len(calls) == 20 + 3 + len(ticks)


def restart_under(flight):
    """Restarts the bridge; what is in flight is let go once it is draining."""
    before = show(UNIT, "MainPID")
    job = threading.Thread(target=systemctl, args=("restart", UNIT))
    job.start()
    wait_until(lambda: show(UNIT, "ActiveState") == "deactivating", "the drain")
    assert show(UNIT, "MainPID") == before
    flight.release()
    job.join(DEADLINE)
    assert not job.is_alive() and show(UNIT, "MainPID") not in ("0", before)


def test_restart(agentd, make_agent, make_service, upstream, unique):
    flight = Flight(agentd, make_agent, make_service, upstream, unique())
    restart_under(flight)
    flight.progress(10)
    whole(flight, flight.land())


def test_upgrade(agentd, make_agent, make_service, upstream, unique):
    """The program is replaced, as a package manager does it, and restarted: the new one has the same runs."""
    flight = Flight(agentd, make_agent, make_service, upstream, unique())
    shutil.copy2(BINARY, BINARY + ".new")
    old = os.stat(BINARY).st_ino
    os.rename(BINARY + ".new", BINARY)
    restart_under(flight)
    assert os.stat(f"/proc/{show(UNIT, 'MainPID')}/exe").st_ino == os.stat(BINARY).st_ino != old
    flight.progress(10)
    whole(flight, flight.land())


def test_stop_and_start(agentd, make_agent, make_service, upstream, unique):
    """An administrator stops it for a while: what had begun ends, what begins meanwhile waits."""
    flight = Flight(agentd, make_agent, make_service, upstream, unique())
    job = threading.Thread(target=systemctl, args=("stop", UNIT))
    job.start()
    wait_until(lambda: show(UNIT, "ActiveState") == "deactivating", "the drain")
    flight.release()
    job.join(DEADLINE)
    assert show(UNIT, "ActiveState") == "inactive"
    systemctl("start", UNIT)
    flight.progress(10)
    whole(flight, flight.land())


def test_kill(agentd, make_agent, make_service, upstream, unique):
    """What had begun is told as broken, to the client at once and in the receipt; whatever begins after is served."""
    name = unique()
    gate = upstream.gate(name)
    upstream.on(f"/api/{name}/after", lambda r: r.reply(200, {}))
    service = make_service("the-real-one")
    path = agentd.execute(
        make_agent(inside.COMMAND, kind="command", services=[service], limits={"timeout": 7200}),
        inside.PRELUDE
        + f"""
from concurrent.futures import ThreadPoolExecutor
def held(i):
    try:
        return bridge("GET", "/v1/services/{service}/gate/{name}")[0]
    except (OSError, http.client.HTTPException) as e:
        return "broken"
with ThreadPoolExecutor(20) as pool:
    first = list(pool.map(held, range(20)))
say([first, [bridge("GET", "/v1/services/{service}/{name}/after")[0] for _ in range(20)], bridge("GET", "/v1/run")[0]])
""",
    )
    gate.arrived(20)
    kill(UNIT)
    assert agentd.finish(path)[0] == "success", agentd.log(path)
    gate.open()
    assert agentd.result(path)["output"] == [["broken"] * 20, [200] * 20, 200]
    outcomes = sorted(c["outcome"] for c in agentd.receipt(path)["calls"])
    assert outcomes == ["complete"] * 20 + ["interrupted"] * 20


def test_drain_has_an_end(agentd, make_agent, make_service, upstream, unique):
    """A call that does not end is cut when DrainSec= is over, and told as cut."""
    name = unique()
    gate = upstream.gate(name)
    service = make_service("the-real-one")
    with bridge_config("[Bridge]\nDrainSec=1\n"):
        path = agentd.execute(
            make_agent(inside.COMMAND, kind="command", services=[service], limits={"timeout": 7200}),
            inside.PRELUDE
            + f"""
try:
    first = bridge("GET", "/v1/services/{service}/gate/{name}")[0]
except (OSError, http.client.HTTPException):
    first = "broken"
say([first, bridge("GET", "/v1/run")[0]])
""",
        )
        gate.arrived(1)
        systemctl("restart", UNIT)
        assert agentd.finish(path)[0] == "success"
    gate.open()
    assert agentd.result(path)["output"] == ["broken", 200]
    assert [c["outcome"] for c in agentd.receipt(path)["calls"]] == ["interrupted"]
