# SPDX-License-Identifier: LGPL-2.1-or-later
"""What is kept of finished runs: it is bounded in number, size and age for each user, goes with all that belongs to it,
and what is still needed stays.
"""

import contextlib
import hashlib
import json
import os
import pathlib
import uuid

import dbus
import pytest

import inside
from client import MANAGER, RUN, STATE, agentctl, call_as, journal, kill, run, systemctl, wait_until

ARTIFACTS = STATE + "/artifacts"
QUOTA = "org.agentd1.Error.QuotaExceeded"
NO_SPACE = "org.agentd1.Error.NoSpace"


@pytest.fixture
def hers(users, image, unique):
    """An agent of a user who has no finished run, and what she does with it."""
    user, name = users[0], unique("kept")
    agentctl("prune-runs", "--keep=0", user=user)
    definition = {"name": name, "image": image, "kind": "command", "command": inside.COMMAND, "concurrency": 20}
    assert "value" in call_as(user, ("CreateAgent", json.dumps(definition)))[0]

    class Hers:
        agent = f"{user}/{name}"

        def execute(self, code="", **options):
            options = {k.replace("_", "-"): v for k, v in options.items()}
            return call_as(user, ("ExecuteAgent", name, inside.PRELUDE + code, {"options": options}))[0]

        def finished(self):
            rows = json.loads(agentctl("runs", "--json=short", "--lines=all", "--agent", name, user=user).stdout)
            return [row["id"] for row in rows]

    yield Hers()
    call_as(user, ("RemoveAgent", name))


def removed(agentd, path):
    try:
        agentd.get(path, "State")
        return False
    except dbus.DBusException as e:
        assert e.get_dbus_name() == "org.freedesktop.DBus.Error.UnknownObject", e
        return True


def document(*argv, **kw):
    return json.loads(agentctl(*argv, "--json=short", **kw).stdout)


def test_prune(agentd, make_agent):
    """By number and by age; the row, its documents, its files, its object on the bus; and only told with --dry-run."""
    agent, other = make_agent("echo x >$AGENT_ARTIFACTS_DIR/x", kind="command"), make_agent("exit 0")
    paths = [agentd.execute(agent) for _ in range(4)]
    for path in paths:
        assert agentd.finish(path)[0] == "success"
    stays = agentd.execute(other)
    agentd.finish(stays)
    ids = [agentd.run_id(p) for p in paths]
    gone, match = [], None
    match = agentd.bus.add_signal_receiver(
        lambda path, interfaces: gone.append((str(path), [str(i) for i in interfaces])),
        "InterfacesRemoved",
        "org.freedesktop.DBus.ObjectManager",
        None,
        "/org/agentd1",
    )
    try:
        would = document("prune-runs", agent, "--keep=1", "--dry-run")
        assert would["runs"] == 3 and would["dry_run"] and would["bytes"] > 3 * 1024
        assert document("prune-runs", agent, "--keep=1", "--older-than=1day")["runs"] == 0
        assert not any(removed(agentd, p) for p in paths) and all(os.path.exists(f"{ARTIFACTS}/{i}/x") for i in ids)

        assert document("prune-runs", agent, "--keep=1") == {**would, "dry_run": False}
        assert [removed(agentd, p) for p in paths] == [True, True, True, False]
        mine = lambda: sorted(g for g in gone if g[0] in paths)
        agentd.wait_for(lambda: len(mine()) >= 3, what="InterfacesRemoved")
        assert mine() == sorted((p, [RUN]) for p in paths[:3])
        for i in ids[:3]:
            wait_until(lambda i=i: not os.path.exists(f"{ARTIFACTS}/{i}"), "the end of the files")
            for call in ("GetReceipt", "GetResult", "GetRun", "ListArtifacts"):
                with pytest.raises(dbus.DBusException, match="There is no run"):
                    agentd.call(call, i)
        assert agentd.receipt(paths[3])["run"] == ids[3] and os.path.exists(f"{ARTIFACTS}/{ids[3]}/x")
        entry = journal("MESSAGE_ID=b5b0a7d4f21c4a7e9d0f3c6b8e5a1d72", "-o", "json", "-n", "1")
        assert json.loads(entry)["AGENT_RUNS"] == "3"
        # What it logged stays.
        assert ids[0] in journal(f"AGENT_RUN={ids[0]}", "-o", "cat")

        assert document("prune-runs", agent, "--older-than=1us")["runs"] == 1
        assert removed(agentd, paths[3]) and not removed(agentd, stays)
    finally:
        match.remove()


def test_what_is_needed_stays(agentd, make_agent, image, unique):
    """A run whose caller is live, one with changes that may be frozen, one with a young idempotency key."""
    sleeper, agent, name = make_agent("sleep infinity"), make_agent("touch /home/agent/x"), unique("key")
    parent = agentd.execute(sleeper)
    assert agentd.wait_state(parent, "running")
    plain, child, kept, keyed = (
        agentd.execute(agent),
        agentd.execute(agent, parent_run=agentd.run_id(parent)),
        agentd.execute(agent, keep=True),
        agentd.execute(agent, idempotency_key=name),
    )
    for path in (plain, child, kept, keyed):
        assert agentd.finish(path)[0] == "success"
    assert document("prune-runs", agent, "--keep=0")["runs"] == 1
    assert [removed(agentd, p) for p in (plain, child, kept, keyed, parent)] == [True, False, False, False, False]
    assert agentd.execute(agent, idempotency_key=name) == keyed

    agentd.call("CancelRun", agentd.run_id(parent))
    agentd.finish(parent)
    assert agentd.freeze(agent, kept)[0] == "done"
    assert document("prune-runs", agent, "--keep=0")["runs"] == 2
    assert [removed(agentd, p) for p in (child, kept, keyed)] == [True, True, False]


def test_rights(agentd, users, make_agent, hers):
    """One's own; another's are not even counted. Options that make no sense are refused."""
    agent = make_agent("exit 0")
    path = agentd.execute(agent)
    agentd.finish(path)
    answers = call_as(
        users[0],
        ("PruneRuns", f"root/{agent}", {"options": {"keep": dbus.UInt32(0)}}),
        ("PruneRuns", "", {"options": {}}),
        ("PruneRuns", "", {"options": {"keep": "many"}}),
        ("PruneRuns", "", {"options": {"older-than-usec": 5}}),
        ("PruneRuns", "", {"options": {"keeps": 5}}),
    )
    errors = [a["error"].rsplit(".", 1)[1] for a in answers]
    assert errors[0] in ("AccessDenied", "InteractiveAuthorizationRequired") and errors[1:] == ["InvalidOption"] * 4
    for user in users[:2]:  # what other tests left
        document("prune-runs", "--keep=0", user=user)
    mine = hers.execute()["value"]
    agentd.finish(mine)
    assert document("prune-runs", "--keep=0", user=users[1])["runs"] == 0
    assert document("prune-runs", "--keep=0", user=users[0])["runs"] == 1
    assert removed(agentd, mine) and not removed(agentd, path)


def test_number_and_age(agentd, hers, settings):
    """Beyond its bounds the history shrinks by itself, while runs go on; and at the latest when it is too old."""
    settings("Retention", MaxRunsPerUser=6, MaxAge="1h", IdempotencyWindow="1s")
    paths = [hers.execute()["value"] for _ in range(15)]
    agentd.wait_for(lambda: all(p in agentd.finished_runs for p in paths), what="the end of all runs")
    wait_until(lambda: len(hers.finished()) <= 6, "the end of the oldest runs")
    left = hers.finished()
    assert left and set(left) <= {agentd.run_id(p) for p in paths[-6:]}  # the newest
    settings("Retention", MaxAge="2s", IdempotencyWindow="1s")
    wait_until(lambda: not hers.finished(), "the end of all runs")


def test_size(agentd, hers, settings, users):
    """More bytes than allowed: the oldest go. Where they may not, by a key, the next run is refused, and a repeated call
    is not; what makes room lets runs in again."""
    settings("Retention", MaxSizePerUser="64K", IdempotencyWindow="1h", MaxAge="1h")
    code = "say('x' * 20000)"
    first = [hers.execute(code)["value"] for _ in range(6)]
    agentd.wait_for(lambda: all(p in agentd.finished_runs for p in first), what="the end of all runs")
    wait_until(lambda: len(hers.finished()) <= 2, "the end of the oldest runs")

    def let_in():
        key = uuid.uuid4().hex
        answer = hers.execute(code, idempotency_key=key)
        return (key, answer) if "value" in answer else None

    first = wait_until(let_in, "room for a run")  # the older ones make it
    for known in (first, wait_until(let_in, "room for a run"), wait_until(let_in, "room for a run")):
        assert agentd.finish(known[1]["value"])[0] == "success"
    refused = hers.execute(code, idempotency_key=uuid.uuid4().hex)
    assert refused.get("error") == QUOTA and "prune-runs" in refused["message"], refused
    assert hers.execute(code, idempotency_key=first[0]) == first[1]
    settings("Retention", MaxSizePerUser="64K", IdempotencyWindow="1us", MaxAge="1h")
    wait_until(lambda: len(hers.finished()) <= 2, "the end of the oldest runs")
    agentd.finish(hers.execute(code)["value"])


def test_artifacts(agentd, hers, settings, users):
    """Their bytes are bounded, those of a user's other runs and those that are being written included; what was begun and
    not finished is gone with the run."""
    settings("Retention", MaxArtifactsPerUser="100K")
    code = """
put = lambda name, n: bridge("PUT", "/v1/artifacts/" + name, b"x" * n)[0]
c = socket.create_connection(("127.0.0.1", 8377))
seen = [put("a", 60000), put("b", 60000), put("a", 30000), put("b", 20000)]
c.sendall(b"PUT /v1/artifacts/half HTTP/1.1\\r\\nHost: x\\r\\nAuthorization: Bearer " + token().encode() +
          b"\\r\\nContent-Length: 40000\\r\\n\\r\\n" + b"x" * 20000)
while seen[-1] != 507:
    seen.append(put("c", 20000))
c.close()
status, _, body = bridge("PUT", "/v1/artifacts/d", b"x" * 70000)
say([seen[:4], seen[-1], status, json.loads(body)])
"""
    path = hers.execute(code)["value"]
    assert agentd.finish(path)[0] == "success", agentd.log(path)
    first, second, status, problem = agentd.result(path)["output"]
    assert first == [201, 507, 201, 201] and second == 507 and status == 507
    assert "prune-runs" in problem["detail"], problem
    directory = f"{ARTIFACTS}/{agentd.run_id(path)}"
    wait_until(lambda: not [n for n in os.listdir(directory) if n.startswith(".")], "the end of what was begun")
    used = sum(os.path.getsize(f"{directory}/{n}") for n in os.listdir(directory))
    assert 50000 <= used <= 102400

    # The runner says so, too; and there is room again when the run is gone.
    fill = "open(os.environ['AGENT_ARTIFACTS_DIR'] + '/big', 'w').write('x' * 90000)"
    path = hers.execute(fill)["value"]
    result, message = agentd.finish(path)
    assert result == "success" and "prune-runs" in message, message
    assert document("prune-runs", "--keep=0", user=users[0])["runs"] == 2
    path = hers.execute(fill)["value"]
    agentd.finish(path)
    assert [str(row[0]) for row in agentd.call("ListArtifacts", agentd.run_id(path))] == ["big"]


def test_sessions(agentd, hers, settings):
    """So are the states of sessions."""
    settings("Retention", MaxSessionsPerUser="10K")
    code = """
put = lambda n: bridge("PUT", "/v1/session", b"x" * n, {"Content-Type": "text/plain"})[0]
say([put(8000), put(12000), put(9000)])
"""
    path = hers.execute(code, session="one")["value"]
    assert agentd.finish(path)[0] == "success"
    assert agentd.result(path)["output"] == [204, 507, 204]
    path = hers.execute("say(bridge('PUT', '/v1/session', b'x' * 3000)[0])", session="two")["value"]
    assert agentd.finish(path)[0] == "success"
    assert agentd.result(path)["output"] == 507


def test_free_space(agentd, hers, settings):
    """A disk that is too full takes no new runs and no artifacts; what is live goes on to its end."""
    key = uuid.uuid4().hex
    known = hers.execute(idempotency_key=key)
    agentd.finish(known["value"])
    live = hers.execute(
        """
while bridge("PUT", "/v1/artifacts/x", b"x")[0] != 507:
    pass
say(bridge("PUT", "/v1/artifacts/x", b"x")[0])
"""
    )["value"]
    agentd.wait_state(live, "running")
    settings("Retention", KeepFree="1000T")
    refused = hers.execute()
    assert refused["error"] == NO_SPACE and "KeepFree=" in refused["message"]
    assert hers.execute(idempotency_key=key) == known
    assert agentd.finish(live)[0] == "success" and agentd.result(live)["output"] == 507
    settings("Retention", KeepFree="0")
    assert agentd.finish(hers.execute()["value"])[0] == "success"


def test_a_commit_after_the_end(agentd, make_agent):
    """What was still on its way when its run ended changes nothing of what is kept, and does not stay."""
    agent = make_agent("printf old >$AGENT_ARTIFACTS_DIR/x", kind="command")
    path = agentd.execute(agent)
    assert agentd.finish(path)[0] == "success"
    run_id = agentd.run_id(path)
    mine = pathlib.Path(ARTIFACTS, run_id)

    def late(name):
        """As if the removal of what was not committed had not come yet; should it come just now, once more."""
        (mine / f".part-{hashlib.sha256(name.encode()).hexdigest()[:32]}").write_text("late")
        commit = ("org.agentd1", "/org/agentd1/report", "org.agentd1.Report", "CommitArtifact",
                  [run_id, {"u": 1}, name, {"t": 4}, "text/plain"])
        return call_as("agent-bridge", commit)[0]["error"] == "org.agentd1.Error.NoSuchRun"

    for name in ("x", "y"):
        wait_until(lambda: late(name), "the refusal")
        assert os.listdir(mine) == ["x"] and (mine / "x").read_text() == "old", (name, os.listdir(mine))


def test_leftovers(agentd, make_agent):
    """Files whose rows are gone, and what a finished run had begun, do not outlive the next start."""
    path = agentd.execute(make_agent("echo x >$AGENT_ARTIFACTS_DIR/x", kind="command"))
    agentd.finish(path)
    mine = f"{ARTIFACTS}/{agentd.run_id(path)}"
    lost = [f"{ARTIFACTS}/{uuid.uuid4().hex}" for _ in range(200)]
    for d in lost:
        os.mkdir(d)
        pathlib.Path(d, "file").write_text("x")
    pathlib.Path(mine, ".part-0123").write_text("x")
    os.mkdir(f"{ARTIFACTS}/no-run")
    kill("agentd.service")
    wait_until(lambda: not any(os.path.exists(d) for d in lost), "the end of the leftovers")
    wait_until(lambda: os.listdir(mine) == ["x"], "the end of what was begun")
    assert os.path.exists(f"{ARTIFACTS}/no-run")  # not ours to judge
    os.rmdir(f"{ARTIFACTS}/no-run")


def test_killed_while_it_removes(agentd, make_agent):
    """A removal that is cut off has removed whole runs, and goes on when it is asked for again."""
    agent = make_agent("echo x >$AGENT_ARTIFACTS_DIR/x", kind="command", concurrency=20)
    paths = [agentd.execute(agent) for _ in range(20)]
    for path in paths:
        agentd.finish(path)
    proxy = agentd.bus.get_object("org.agentd1", "/org/agentd1", introspect=False)
    options = dbus.Dictionary({"keep": dbus.UInt32(0)}, signature="sv")
    proxy.PruneRuns(agent, options, dbus_interface=MANAGER, reply_handler=lambda *_: 0, error_handler=lambda *_: 0)
    agentd.bus.flush()
    kill("agentd.service")
    for path in paths:
        with contextlib.suppress(dbus.DBusException):
            assert agentd.receipt(path) and not removed(agentd, path)
            assert os.path.exists(f"{ARTIFACTS}/{agentd.run_id(path)}/x")
    document("prune-runs", agent, "--keep=0")
    assert all(removed(agentd, p) for p in paths)
    places = [f"{ARTIFACTS}/{agentd.run_id(p)}" for p in paths]
    wait_until(lambda: not any(os.path.exists(p) for p in places), "the end of the files")


def test_kept_changes(agentd, make_agent, settings):
    """So many a user, and the oldest goes first."""
    settings("Retention", MaxKeptPerUser=2)
    agents = [make_agent("touch /home/agent/x") for _ in range(3)]
    paths = []
    for agent in agents:
        paths.append(agentd.execute(agent, keep=True))
        assert agentd.finish(paths[-1])[0] == "success"
    with pytest.raises(dbus.DBusException, match="NotFreezable"):
        agentd.freeze(agents[0], paths[0])
    assert agentd.freeze(agents[1], paths[1])[0] == "done"
    assert agentd.freeze(agents[2], paths[2])[0] == "done"


@pytest.mark.parametrize(
    "text",
    ["MaxAge=1min\nIdempotencyWindow=1h", "MaxAge=never", "MaxRunsPerUser=0", "KeepFree=some", "MaxSizePerUser=-1"],
)
def test_settings_that_make_no_sense(text):
    """Refused with the name of the key, before anything is touched."""
    path = pathlib.Path("/etc/agentd/agentd.conf.d/bad-test.conf")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"[Retention]\n{text}\n")
    try:
        done = run("/usr/lib/agentd/agentd", check=False)
        assert done.returncode != 0 and text.split("=")[0] + "=" in done.stderr + done.stdout
    finally:
        path.unlink()
