# SPDX-License-Identifier: LGPL-2.1-or-later
"""The platform's daemons are restarted and killed under load: every run finishes once, with the right result and a
receipt that has its calls.
"""

import json
import threading

import pytest

import inside
from client import DEADLINE, kill, run, show, systemctl, wait_until

UNITS = ("agentd.service", "agent-bridged.service", "agent-credentiald.service")

# Calls the service again and again until it is told to stop, as a client does that tries again what broke.
CALLER = """
seen = []
while True:
    status, _, body = patient("GET", "/v1/services/%s/count/" + os.environ["AGENT_RUN_ID"])
    assert status == 200, (status, body)
    answer = json.loads(body)
    seen.append(answer["n"])
    if answer["stop"]:
        break
    time.sleep(0.05)
say({"run": os.environ["AGENT_RUN_ID"], "seen": seen})
"""


class Counter:
    """The service that is called: counts calls by run, and says when it is time to stop."""

    def __init__(self, upstream, secret):
        self.secret, self.counts, self.stop, self.naked = secret, {}, False, 0
        self.changed = threading.Condition()
        upstream.on("/api/count/", self.count)

    def count(self, request):
        key = request.path.rsplit("/", 1)[1]
        with self.changed:
            if request.headers["Authorization"] != f"Bearer {self.secret}":
                self.naked += 1
            self.counts[key] = self.counts.get(key, 0) + 1
            self.changed.notify_all()
            answer = {"n": self.counts[key], "stop": self.stop}
        request.reply(200, answer)

    def progress(self, keys, more):
        """Waits until each of KEYS has been counted MORE times than now."""
        with self.changed:
            goal = {k: self.counts.get(k, 0) + more for k in keys}
            assert self.changed.wait_for(lambda: all(self.counts.get(k, 0) >= n for k, n in goal.items()), DEADLINE), (
                goal,
                self.counts,
            )


@pytest.fixture
def flight(agentd, make_agent, make_service, upstream, unique):
    """Ten runs in flight, which end when the counter says so."""
    counter = Counter(upstream, unique("secret"))
    service = make_service(counter.secret)
    agent = make_agent(inside.COMMAND, kind="command", services=[service], concurrency=10, limits={"timeout": 7200})
    paths = [agentd.execute(agent, inside.PRELUDE + CALLER % service) for _ in range(10)]
    counter.progress([agentd.run_id(p) for p in paths], 1)
    yield counter, paths
    counter.stop = True


def restart(*units):
    systemctl("restart", *units)


def land(agentd, counter, paths, kills):
    """All finish once, successfully, in their first attempt, with all their calls in the receipt. Of each of a run's calls,
    which come one after another, a bridge that is KILLS times killed may have sent the answer and not its record: that call
    is told as interrupted.
    """
    counter.stop = True
    for path in paths:
        assert agentd.finish(path)[0] == "success", agentd.finish(path)
    agentd.drain()
    for path in paths:
        assert len(agentd.finished_runs.get(path, [1])) == 1
        result, receipt = agentd.result(path)["output"], agentd.receipt(path)
        assert result["run"] == agentd.run_id(path)
        assert receipt["attempts"] == 1 and receipt["result"] == "success"
        complete = [c for c in receipt["calls"] if c["status"] == 200]
        assert len(complete) >= len(result["seen"]) - kills
        assert len(receipt["calls"]) >= counter.counts[result["run"]], "one is not told at all"
        assert result["seen"][-1] == counter.counts[result["run"]]
        assert len({json.dumps(c, sort_keys=True) for c in receipt["calls"]}) == len(
            receipt["calls"]
        ), "one counted twice"
    assert counter.naked == 0


def test_restart_and_kill_under_load(agentd, flight):
    counter, paths = flight
    ids = [agentd.run_id(p) for p in paths]
    units = [str(agentd.get(p, "Unit")) for p in paths]
    pids = [show(u, "MainPID") for u in units]
    for act in (
        lambda: restart(*UNITS),
        *(lambda u=u: kill(u) for u in UNITS),
        *(lambda u=u: restart(u) for u in UNITS),
        lambda: systemctl("daemon-reload"),
    ):
        act()
        counter.progress(ids, 2)
    assert [show(u, "MainPID") for u in units] == pids
    for path in paths:
        assert agentd.wait_state(path, "running", "finished") == "running"
    land(agentd, counter, paths, 1)


def test_all_killed_at_once(agentd, flight):
    """What one daemon holds for another outlives the death of both."""
    counter, paths = flight
    ids = [agentd.run_id(p) for p in paths]
    for _ in range(3):
        for u in UNITS:
            # It may be on its way back from the one before.
            wait_until(
                lambda u=u: systemctl("kill", "--signal=KILL", "--kill-whom=main", u, check=False).returncode == 0, u
            )
        counter.progress(ids, 2)
    land(agentd, counter, paths, 3)


def test_daemons_away_while_runs_end(agentd, flight):
    """All is stopped when the agents want to tell their results, and comes back: nothing is lost."""
    counter, paths = flight
    for unit in UNITS[:2]:
        systemctl("kill", "--signal=STOP", unit)
    counter.stop = True
    # Each is now somewhere between its last call and its end.
    for unit in UNITS[:2]:
        systemctl("kill", "--signal=KILL", unit)
    wait_until(lambda: all(show(u, "ActiveState") == "active" for u in UNITS[:2]), "the daemons again")
    land(agentd, counter, paths, 1)


@pytest.fixture
def ran(upstream):
    """How often each run's program has begun."""
    counts, lock = {}, threading.Lock()

    def begin(request):
        with lock:
            key = request.path.rsplit("/", 1)[1]
            counts[key] = counts.get(key, 0) + 1
        request.reply(200, {})

    upstream.on("/api/ran/", begin)
    return counts


def test_agentd_killed_in_every_phase(agentd, make_agent, gate_service, ran):
    """Wherever agentd dies in a run's life, the run's program is run once and its end is told once."""
    code = (
        inside.PRELUDE
        + f"""
status = bridge("GET", "/v1/services/{gate_service}/ran/" + os.environ["AGENT_RUN_ID"])[0]
sys.exit(0 if status == 200 else 9)
"""
    )
    agent = make_agent(["/usr/bin/python3", "-c", code], services=[gate_service], concurrency=4)
    paths = []
    for n in range(12):
        batch = [agentd.execute(agent) for _ in range(3)]
        if n % 4 == 1:
            agentd.wait_state(batch[0], "preparing", "running", "finished")
        elif n % 4 == 2:
            agentd.wait_state(batch[0], "running", "finished")
        elif n % 4 == 3:
            agentd.finish(batch[0])
        kill("agentd.service")
        paths += batch
    for path in paths:
        result, message = agentd.finish(path)
        assert result == "success", (path, message, agentd.receipt(path))
    assert {agentd.run_id(p): ran.get(agentd.run_id(p)) for p in paths} == {agentd.run_id(p): 1 for p in paths}
    agentd.drain()
    assert all(len(agentd.finished_runs.get(p, [1])) == 1 for p in paths)


def test_bridge_killed_while_runs_are_made(agentd, make_agent, gate_service):
    """A run whose listener is being handed over when the bridge dies begins all the same, in its first attempt."""
    code = inside.PRELUDE + 'sys.exit(0 if patient("GET", "/v1/run")[0] == 200 else 9)'
    agent = make_agent(["/usr/bin/python3", "-c", code], concurrency=4)
    paths = []
    for _ in range(6):
        paths += [agentd.execute(agent) for _ in range(3)]
        kill("agent-bridged.service")
    for path in paths:
        result, message = agentd.finish(path)
        assert (result, agentd.receipt(path)["attempts"]) == ("success", 1), message


def test_reload_of_the_manager_while_runs_are_made(agentd, make_agent):
    """systemd may be reloaded, or replace itself, at any moment; announcements that get lost there are caught up."""
    agent = make_agent("exit 3", concurrency=4)
    paths = []
    for n in range(4):
        paths += [agentd.execute(agent) for _ in range(4)]
        systemctl("daemon-reexec" if n == 2 else "daemon-reload")
    for path in paths:
        result, message = agentd.finish(path)
        assert (result, agentd.receipt(path)["attempts"]) == ("exit-code", 1), message


def test_the_bus_is_restarted(agentd, make_agent, gate_service, upstream, unique):
    """agentd ends with the bus, comes back with it, and knows its runs."""
    name = unique("gate")
    gate = upstream.gate(name)
    agent = make_agent(inside.COMMAND, kind="command", services=[gate_service])
    path = agentd.execute(
        agent,
        inside.PRELUDE
        + f"""
patient("GET", "/v1/services/{gate_service}/gate/{name}")
say(patient("GET", "/v1/run")[0])
""",
    )
    gate.arrived(1)
    systemctl("restart", "dbus.service")
    wait_until(
        lambda: run(
            "busctl",
            "--timeout=5",
            "get-property",
            "org.freedesktop.systemd1",
            "/org/freedesktop/systemd1",
            "org.freedesktop.systemd1.Manager",
            "Version",
            check=False,
        ).returncode
        == 0,
        "PID 1 on the bus",
    )
    agentd.connect()
    assert str(agentd.get(path, "State")) == "running"
    gate.open()
    assert agentd.finish(path)[0] == "success" and agentd.result(path)["output"] == 200
    assert agentd.receipt(path)["attempts"] == 1


def test_a_token_outlives_a_restart(agentd, make_agent, gate_service, upstream, unique):
    """The signing key is the same one after a restart: tokens of live runs stay good."""
    name = unique("gate")
    gate = upstream.gate(name)
    code = (
        inside.PRELUDE
        + f"""
bridge("GET", "/v1/services/{gate_service}/gate/{name}")
say(patient("GET", "/v1/run")[0])
"""
    )
    path = agentd.execute(make_agent(inside.COMMAND, kind="command", services=[gate_service]), code)
    gate.arrived(1)
    systemctl("restart", "agentd.service")
    gate.open()
    assert agentd.finish(path)[0] == "success" and agentd.result(path)["output"] == 200
