# SPDX-License-Identifier: LGPL-2.1-or-later
"""Generations: comparing them, going back and forth between them, what they take on disk."""

import json
import os
import pathlib

import dbus
import pytest

from client import STATE, agentctl, call_as, show, wait_until


def freeze_change(agentd, name, script, note=""):
    """Runs SCRIPT as the agent's input and freezes what it changed."""
    path = agentd.execute(name, script, keep=True)
    assert agentd.finish(path)[0] == "success", agentd.log(path)
    result, detail = agentd.freeze(name, path, note)
    assert result == "done", detail
    return detail


def said(agentd, path):
    """What a run wrote to its stdout."""
    return str(agentd.result(path)["output"]).strip()


@pytest.fixture
def grown(agentd, make_agent):
    """An agent with three generations: the image, one file more, and that one changed."""
    name = make_agent("cat > /tmp/s; . /tmp/s", kind="command")
    first = str(agentd.call("ListGenerations", name)[0][0])
    second = freeze_change(agentd, name, """
        cd; echo one > file; mkdir -p 'dir with space/deep'; echo x > 'dir with space/deep/y'; ln -s file link
        printf 'a\\nb' > "$(printf 'new\\nline')"; echo z > "$(printf 'latin\\351')"
        mkdir -p .local/lib/python3.13/site-packages/six-1.16.0.dist-info
        mkdir -p node_modules/left-pad; echo '{"name":"left-pad","version":"1.3.0"}' > node_modules/left-pad/package.json
        touch -d 2001-01-01 file""", "with a file")
    third = freeze_change(agentd, name, """
        cd; echo two > file; touch -d 2001-01-01 file; rm -r 'dir with space'; chmod 600 link 2>/dev/null; rm link; mkdir link
        mv .local/lib/python3.13/site-packages/six-1.16.0.dist-info .local/lib/python3.13/site-packages/six-1.17.0.dist-info
        echo '{"name":"left-pad","version":"1.3.1"}' > node_modules/left-pad/package.json""")
    return name, [first, second, third]


def diff(agentd, name, old, new):
    path = str(agentd.call("DiffGenerations", name, old, new, dbus.Dictionary({}, signature="sv")))
    result, detail = agentd.complete(path)
    assert result == "done", detail
    with os.fdopen(agentd.call("OpenResult", path=path, interface="org.agentd1.Operation").take()) as f:
        return json.load(f)


def test_diff(agentd, grown):
    name, _ = grown
    document = diff(agentd, name, "2", "3")
    paths = {p["path"]: p for p in document["paths"]}
    home = "/home/agent/"
    # The same size, the same time: only the bytes tell.
    assert paths[home + "file"]["what"] == ["content"] and paths[home + "file"]["to_size"] == 4
    assert paths[home + "link"]["what"][0] == "type" and paths[home + "link"]["type"] == "directory"
    assert paths[home + "dir with space/deep/y"]["change"] == "removed"
    assert {(p["manager"], p["name"], p.get("from"), p.get("to")) for p in document["packages"]} == {
        ("pip", "six", "1.16.0", "1.17.0"), ("npm", "left-pad", "1.3.0", "1.3.1")}
    assert not document["truncated"] and document["totals"]["changed"] >= 3

    document = diff(agentd, name, "1", "2")
    assert all(p["change"] == "added" or p["path"] in ("/home/agent", "/tmp") for p in document["paths"])
    paths = {p["path"] for p in document["paths"]}
    assert home + "new\\x0aline" in paths and home + "latin\\xe9" in paths and home + "link" in paths
    assert diff(agentd, name, "2", "2") == {"paths": [], "packages": [], "truncated": False,
                                            "totals": {"added": 0, "removed": 0, "changed": 0, "bytes": 0}}
    out = agentctl("env", "diff", name, "2").stdout
    assert "~ pip: six 1.16.0 -> 1.17.0" in out and "~ /home/agent/file (content)" in out


def test_nothing_stays_of_a_diff(agentd, grown):
    name, _ = grown
    diff(agentd, name, "1", "3")
    runs = pathlib.Path("/run/agentd/runs")
    wait_until(lambda: all((d / "rw").exists() for d in runs.iterdir()), "the end of views")
    wait_until(lambda: not os.listdir(STATE + "/tmp"), "the end of staging")


def test_rollback(agentd, grown):
    name, digests = grown
    look = "cat ~/file 2>/dev/null || echo none"
    expect = ["none", "one", "two"]
    for index in (0, 2, 1, 0):
        assert str(agentd.call("RollbackEnvironment", name, str(index + 1), dbus.Dictionary({}, signature="sv"))) == digests[index]
        path = agentd.execute(name, look)
        assert agentd.finish(path)[0] == "success"
        assert said(agentd, path) == expect[index]
        assert agentd.receipt(path)["generation"] == digests[index]
    rows = agentd.call("ListGenerations", name)
    assert [int(r[6]) for r in rows] == [3, 2, 1] and [bool(r[5]) for r in rows] == [False, False, True]
    # On top of an earlier one, the next number is a new one.
    freeze_change(agentd, name, "echo three > ~/file")
    rows = agentd.call("ListGenerations", name)
    assert int(rows[0][6]) == 4 and rows[0][1] == digests[0]


def test_rollback_compares_and_swaps(agentd, grown):
    name, digests = grown
    options = dbus.Dictionary({"expected-head": digests[0]}, signature="sv")
    with pytest.raises(dbus.DBusException) as e:
        agentd.call("RollbackEnvironment", name, "2", options)
    assert e.value.get_dbus_name().endswith(".HeadMoved")
    assert agentctl("env", "rollback", name, digests[1][7:15], "--expected-head", digests[2]).stdout.strip() == digests[1]
    for wrong in ("9", "head~1", "abc", "sha256:" + "0" * 64, digests[1][:10] + "x"):
        with pytest.raises(dbus.DBusException) as e:
            agentd.call("RollbackEnvironment", name, wrong, dbus.Dictionary({}, signature="sv"))
        assert e.value.get_dbus_name().endswith(".NoSuchGeneration")


def test_a_live_run_keeps_what_it_started_with(agentd, grown):
    name, digests = grown
    path = agentd.execute(name, "until [ -e /tmp/go ]; do sleep 0.1; done; cat ~/file", timeout_usec=dbus.UInt64(7200_000_000))
    agentd.wait_state(path, "running")
    agentd.call("RollbackEnvironment", name, "1", dbus.Dictionary({}, signature="sv"))
    agentctl("env", "prune", name, "--keep", "1")
    rows = [str(r[0]) for r in agentd.call("ListGenerations", name)]
    assert rows == [digests[2], digests[0]]  # the newest (on which the run stands), and the head
    run_id = agentd.run_id(path)
    pid = int(open(f"/sys/fs/cgroup{control_group(run_id)}/cgroup.procs").read().split()[0])
    pathlib.Path(f"/proc/{pid}/root/tmp/go").touch()
    assert agentd.finish(path)[0] == "success" and said(agentd, path) == "two"
    agentctl("env", "prune", name, "--keep=1")
    assert agentctl("env", "fsck").returncode == 0


def control_group(run_id):
    return show(f"agent-run-{run_id}.service", "ControlGroup")


def test_show(agentd, grown):
    name, digests = grown
    document = json.loads(agentctl("env", "show", name).stdout)
    assert document["digest"] == digests[2] and document["number"] == 3 and document["head"] and document["intact"]
    assert len(document["layers"]) == 3 and all(layer["present"] and layer["size"] > 0 for layer in document["layers"])
    assert document["manifest"]["parent"] == digests[1]
    assert json.loads(agentctl("env", "show", name, "2").stdout)["note"] == "with a file"


def test_usage_tells_what_is_shared(agentd, grown, make_agent):
    name, _ = grown
    other = make_agent("true")
    document = json.loads(agentd.call("GetDiskUsage"))
    rows = {r["agent"]: r for r in document["agents"]}
    assert rows["root/" + other]["own"] == 0 and rows["root/" + other]["shared"] > 1 << 20
    assert rows["root/" + name]["layers"] == 3 and 0 < rows["root/" + name]["own"] < 1 << 20
    assert document["total"] >= rows["root/" + name]["bytes"]
    assert name in agentctl("env", "du").stdout


def test_strangers_see_nothing(agentd, grown, users):
    name, _ = grown
    ref = "root/" + name
    answers = call_as(users[0], ("ShowGeneration", ref, "head"), ("RollbackEnvironment", ref, "1", {"options": {}}),
                      ("DiffGenerations", ref, "1", "2", {"options": {}}), ("PruneEnvironments", ref, {"options": {}}))
    assert all("error" in a for a in answers), answers
    assert json.loads(call_as(users[0], ("GetDiskUsage",))[0]["value"])["agents"] == []
