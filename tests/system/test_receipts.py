# SPDX-License-Identifier: LGPL-2.1-or-later
"""Receipts have the same keys however a run ended, and of equal runs differ only in ids, times and measures. Around
them what else admission promises: idempotency, bounds of the queue, fairness between users.
"""

import concurrent.futures
import json
import os
import subprocess

import dbus
import pytest

import inside
from client import agentctl, call_as, run, systemctl

# What may differ between two runs of the same input.
OWN = {"run", "unit", "invocation_id", "times", "steps", "usage"}


def keys(value):
    """All keys, as paths; of arrays those of their members."""
    if isinstance(value, dict):
        return {k for k in value} | {f"{k}.{x}" for k, v in value.items() for x in keys(v)}
    return set()


def finished(agentd, agent, text="", **options):
    path = agentd.execute(agent, text, **options)
    agentd.finish(path)
    return agentd.receipt(path)


def test_same_keys_for_all_results(agentd, make_agent):
    sleeper = make_agent("sleep 1000", concurrency=1)
    running, queued = agentd.execute(sleeper), agentd.execute(sleeper)
    agentd.wait_state(running, "running")
    for path in (queued, running):
        agentd.call("CancelRun", agentd.run_id(path))
        agentd.finish(path)
    receipts = [agentd.receipt(running), agentd.receipt(queued)]
    for command, extra in (
        ("exit 0", {}),
        ("exit 1", {}),
        ("kill -9 $$; kill -SEGV $$; exit 2", {}),
        ("echo 1", {"kind": "command"}),
        ("kill -SEGV $$", {"kind": "command"}),
        ("sleep 1000", {"limits": {"timeout": 1}}),
    ):
        receipts.append(finished(agentd, make_agent(command, **extra)))
    assert {r["result"] for r in receipts} >= {"success", "exit-code", "signal", "timeout", "canceled"}
    top = [set(r) for r in receipts]
    assert all(t == top[0] for t in top)
    started = [r for r in receipts if r["times"]["started_usec"]]
    assert len({frozenset(keys({k: r[k] for k in ("times", "usage", "steps")})) for r in started}) == 1


def test_equal_runs_have_equal_receipts(agentd, make_agent, gate_service, upstream, unique):
    name = unique()
    upstream.on(f"/api/{name}", lambda r: r.reply(200, {"x": 1}))
    agent = make_agent(inside.COMMAND, kind="command", services=[gate_service])
    code = (
        inside.PRELUDE
        + f"""
open(os.environ["AGENT_ARTIFACTS_DIR"] + "/a.txt", "w").write("same")
say([bridge("GET", "/v1/services/{gate_service}/{name}")[0] for _ in range(3)])
"""
    )
    options = {"labels": dbus.Dictionary({"b": "2", "a": "1"}, signature="ss"), "session": "s1"}
    one, two = (finished(agentd, agent, code, **options) for _ in range(2))
    other = json.loads(
        agentctl(
            "receipt",
            agentctl(
                "run",
                "--quiet",
                "--session=s1",
                "--label=a=1",
                "--label=b=2",
                "--input-file=-",
                agent,
                "--wait",
                "--json",
                stdin=code,
            )
            and "last",
            "--json",
        ).stdout
    )
    for r in (two, other):
        assert set(r) == set(one)
        assert {k: (one[k], r[k]) for k in one if k not in OWN | {"calls"} and one[k] != r[k]} == {}
        assert [
            [c[k] for k in ("service", "method", "path", "status", "response_bytes", "outcome")] for c in r["calls"]
        ] == [
            [c[k] for k in ("service", "method", "path", "status", "response_bytes", "outcome")] for c in one["calls"]
        ]
    assert (
        one["artifacts"] == [{"name": "a.txt", "size": 4, "content_type": "text/plain"}]
        or one["artifacts"][0]["name"] == "a.txt"
    )
    assert [c["path"] for c in one["calls"]] == [f"/{name}"] * 3 and one["labels"] == {"a": "1", "b": "2"}
    assert (
        one["environment"].startswith("sha256:")
        and one["runner"].startswith("sha256:")
        and one["policy"].startswith("sha256:")
    )


def test_a_receipt_has_no_body_and_no_secret(agentd, make_agent, make_service, upstream, unique):
    secret, body, query, path = (unique(x) for x in ("secret", "body", "query", "path"))
    service = make_service(secret)
    upstream.on(f"/api/{path}", lambda r: r.reply(200, {"b": body}))
    code = inside.PRELUDE + f'bridge("POST", "/v1/services/{service}/{path}?q={query}", "{body}"); say(1)'
    receipt = finished(agentd, make_agent(inside.COMMAND, kind="command", services=[service]), code)
    text = json.dumps(receipt)
    assert path in text and not [x for x in (secret, body, query) if x in text]
    assert "eyJ" not in text


def test_digest_of_the_input(agentd, make_agent):
    agent = make_agent("exit 0")
    a, b, c = (finished(agentd, agent, text)["input_digest"] for text in ("one", "one", "two"))
    assert a == b != c


def test_policy_follows_definition_and_service(agentd, make_agent, make_service):
    """The digest of the policy changes with what may be called, not with other things."""
    service = make_service(allow=[{"methods": ["GET"], "paths": ["/a"]}])
    agent = make_agent("exit 0", services=[service])
    first = finished(agentd, agent)["policy"]
    assert finished(agentd, agent)["policy"] == first
    definition = json.loads(agentd.call("GetService", service))
    definition["allow"] = [{"methods": ["GET"], "paths": ["/b"]}]
    agentd.call("UpdateService", json.dumps(definition))
    assert finished(agentd, agent)["policy"] != first


def test_usage_is_of_the_run(agentd, make_agent):
    """What a run burnt in CPU time shows; what the container cannot measure is null, not zero."""
    busy = finished(agentd, make_agent(["/usr/bin/python3", "-c", "x = 0\nfor i in range(3000000): x += i"]))
    idle = finished(agentd, make_agent("exit 0"))
    assert busy["usage"]["cpu_usec"] > idle["usage"]["cpu_usec"] > 0
    assert set(busy["usage"]) == {"cpu_usec", "memory_peak_bytes", "io_read_bytes", "io_write_bytes"}
    if "memory" not in open("/sys/fs/cgroup/cgroup.controllers").read():
        assert busy["usage"]["memory_peak_bytes"] is None


def test_receipt_of_what_is_not_over(agentd, make_agent):
    path = agentd.execute(make_agent("exec sleep 1000"))
    with pytest.raises(dbus.DBusException) as e:
        agentd.receipt(path)
    assert e.value.get_dbus_name() == "org.agentd1.Error.RunNotFinished"


# --- admission ---


def test_same_key_fifty_times(agentd, make_agent, unique):
    """From fifty clients at once: one run, and the same answer for all."""
    agent, key = make_agent("exit 0"), unique("key")

    def ask(_):
        return subprocess.run(
            [
                "busctl",
                "call",
                "org.agentd1",
                "/org/agentd1",
                "org.agentd1.Manager",
                "ExecuteAgent",
                "ssa{sv}",
                agent,
                "same",
                "1",
                "idempotency-key",
                "s",
                key,
            ],
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = set(pool.map(ask, range(50)))
    assert len(answers) == 1
    path = answers.pop().split('"')[1]
    assert agentd.finish(path)[0] == "success"
    rows = agentd.call("ListRuns", dbus.Dictionary({"agent": agent}, signature="sv"))
    assert [str(r[1]) for r in rows] == [path]
    assert agentd.receipt(path)["idempotency_key"] == key
    assert agentd.execute(agent, "same", idempotency_key=key) == path, "also after its end"
    with pytest.raises(dbus.DBusException) as e:
        agentd.execute(agent, "other", idempotency_key=key)
    assert e.value.get_dbus_name() == "org.agentd1.Error.IdempotencyConflict"


def test_keys_are_of_an_agent(agentd, make_agent, unique):
    key = unique("key")
    paths = {agentd.execute(make_agent("exit 0"), "x", idempotency_key=key) for _ in range(2)}
    assert len(paths) == 2


def test_key_over_a_restart(agentd, make_agent, unique):
    agent, key = make_agent("exit 0"), unique("key")
    path = agentd.execute(agent, "x", idempotency_key=key)
    systemctl("restart", "agentd.service")
    assert agentd.execute(agent, "x", idempotency_key=key) == path


@pytest.fixture
def one_at_a_time(agentd):
    """The whole host runs one run at a time."""
    path = "/etc/agentd/agentd.conf.d/90-test.conf"
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as f:
        f.write("[Queue]\nMaxLive=1\nMaxQueuedPerUser=60\n")
    systemctl("restart", "agentd.service")
    yield
    os.unlink(path)
    systemctl("restart", "agentd.service")


def order(agentd, paths):
    times = {p: agentd.receipt(p)["times"]["claimed_usec"] for p in paths}
    return sorted(paths, key=times.get)


def test_fair_between_users(agentd, users, make_agent, one_at_a_time, image):
    """Who asks for one run is not behind the thirty of somebody else; priority and age count among one's own."""
    agent = make_agent("exit 0")
    definition = {"name": "fair", "image": image, "kind": "exec", "command": ["/bin/true"]}
    assert "value" in call_as(users[0], ("CreateAgent", json.dumps(definition)))[0]
    flood = [agentd.execute(agent) for _ in range(30)]
    answer = call_as(users[0], *[("ExecuteAgent", "fair", "", {"options": {}})] * 2)
    hers = [a["value"] for a in answer]
    urgent = agentd.execute(agent, priority=dbus.Int32(50))
    for path in flood + hers + [urgent]:
        assert agentd.finish(path)[0] == "success"
    seen = order(agentd, flood + hers + [urgent])
    left = [p for p in seen if p in flood]
    assert left == flood, "one user's runs of the same priority are in the order they came"
    waiting = [
        p for p in flood if agentd.receipt(p)["times"]["claimed_usec"] > agentd.receipt(hers[1])["times"]["queued_usec"]
    ]
    between = [p for p in waiting if seen.index(p) < seen.index(hers[0])]
    assert len(between) <= 2, "she waited for more than her turn"
    behind = [
        p for p in flood if agentd.receipt(p)["times"]["claimed_usec"] > agentd.receipt(urgent)["times"]["queued_usec"]
    ]
    assert len([p for p in behind if seen.index(p) < seen.index(urgent)]) <= 2
    call_as(users[0], ("RemoveAgent", "fair"))


def test_full_queue_refuses(agentd, users, make_agent, one_at_a_time):
    """Beyond its bound, with an error of its own; all that were let in are run."""
    gate = agentd.execute(make_agent("exec sleep 1000"))
    agentd.wait_state(gate, "running")
    agent, let_in = make_agent("exit 0"), []
    with pytest.raises(dbus.DBusException) as e:
        for _ in range(70):
            let_in.append(agentd.execute(agent))
    assert e.value.get_dbus_name() == "org.agentd1.Error.QueueFull" and "later" in e.value.get_dbus_message()
    assert len(let_in) == 60
    agentd.call("CancelRun", agentd.run_id(gate))
    assert {agentd.finish(p)[0] for p in let_in} == {"success"}


def test_burst_of_ten_times_the_cap(agentd, make_agent):
    """All complete, in order, none lost."""
    agent = make_agent("exit 0", concurrency=2)
    paths = [agentd.execute(agent) for _ in range(20)]
    assert [agentd.finish(p)[0] for p in paths] == ["success"] * 20
    assert order(agentd, paths) == paths


def test_concurrency_of_an_agent(agentd, make_agent, gate_service, upstream, unique):
    """Never more at once than its definition says."""
    name = unique("gate")
    gate = upstream.gate(name)
    agent = make_agent(
        ["/usr/bin/python3", "-c", inside.PRELUDE + f'bridge("GET", "/v1/services/{gate_service}/gate/{name}")'],
        services=[gate_service],
        concurrency=2,
    )
    paths = [agentd.execute(agent) for _ in range(5)]
    gate.arrived(2)
    for path in paths[:2]:  # what they do may be seen sooner than that they run
        agentd.wait_state(path, "running")
    states = sorted(str(agentd.get(p, "State")) for p in paths)
    assert states == ["queued", "queued", "queued", "running", "running"]
    assert gate.count == 2
    gate.open()
    assert {agentd.finish(p)[0] for p in paths} == {"success"}
    assert run("true").returncode == 0
