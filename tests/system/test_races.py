# SPDX-License-Identifier: LGPL-2.1-or-later
"""Calls about one thing at the same time, in no order: each ends as if it had been alone, or with an error of its own
that says why not, and what is left is whole.
"""

import json
import subprocess

import dbus

from client import BUS_NAME, MANAGER, MANAGER_PATH, call_as, run, show

OURS = "org.agentd1.Error."

# Makes the calls that it is given COUNT times, in an order of its own, and prints what came of them: how often each error
# (or none) came, and the numbers of operations that were begun.
CALLER = r"""
import collections, dbus, json, os, random, sys
name, path, interface, count, seed, calls = *sys.argv[1:4], int(sys.argv[4]), int(sys.argv[5]), json.loads(sys.argv[6])
manager = dbus.Interface(dbus.SystemBus().get_object(name, path, introspect=False), interface)
seen, operations, r = collections.Counter(), [], random.Random(seed)
def value(v):
    if isinstance(v, dict) and "open" in v:
        return dbus.types.UnixFd(os.open(v["open"], os.O_RDWR))
    if isinstance(v, dict):
        return dbus.Dictionary({k: dbus.UInt32(x) if type(x) is int else x for k, x in v.items()}, signature="sv")
    return v
for i in range(count):
    for member, *args in r.sample(calls, len(calls)):
        try:
            got = manager.get_dbus_method(member)(*map(value, args), timeout=600)
            seen[member + " ok"] += 1
            if isinstance(got, dbus.types.UnixFd):
                with os.fdopen(got.take(), "rb") as f:
                    f.read()
            if isinstance(got, dbus.ObjectPath) and "/operation/" in got:
                operations.append(got)
        except dbus.DBusException as e:
            seen[member + " " + e.get_dbus_name()] += 1
print(json.dumps([seen, operations]))
"""


def race(*callers, count):
    """CALLERS are lists of calls; all are made at the same time."""
    argv = ["python3", "-c", CALLER, BUS_NAME, MANAGER_PATH, MANAGER, str(count)]
    children = [subprocess.Popen([*argv, str(i), json.dumps(calls)], stdout=subprocess.PIPE, text=True)
                for i, calls in enumerate(callers)]
    seen, operations = {}, []
    for child in children:
        out = child.communicate()[0]
        assert child.returncode == 0
        counts, begun = json.loads(out)
        operations += begun
        for what, n in counts.items():
            seen[what] = seen.get(what, 0) + n
    return seen, operations


def errors(seen):
    return {what.split()[1] for what in seen if not what.endswith(" ok")}


def test_runs_are_read_while_they_are_removed(agentd, make_agent):
    """What is open stays readable; what has gone is not there."""
    name = make_agent(["/bin/sh", "-c", "echo hello; head -c 300000 /dev/zero >$AGENT_ARTIFACTS_DIR/file"],
                      kind="command", concurrency=8)
    pid, gone = show("agentd.service", "MainPID"), 0
    for turn in range(3):
        paths = [agentd.execute(name) for _ in range(8)]
        for path in paths:
            assert agentd.finish(path)[0] == "success"
        ids = [agentd.run_id(path) for path in paths]
        reads = [[m, i] for i in ids for m in ("GetReceipt", "GetResult", "ListArtifacts", "GetRun")]
        opens = [["OpenArtifact", i, "file"] for i in ids] + [["OpenRunLog", i, True] for i in ids]
        prunes = [["PruneRuns", name, {"keep": n}] for n in (7, 5, 3, 2, 0)]
        seen, _ = race(reads, opens, prunes, reads, count=2)
        assert errors(seen) <= {OURS + "NoSuchRun", OURS + "NoSuchArtifact"}, seen
        gone += OURS + "NoSuchRun" in errors(seen)
        assert not agentd.call("ListRuns", dbus.Dictionary({"agent": name}, signature="sv"))
    assert gone and show("agentd.service", "MainPID") == pid


def test_an_environment_is_changed_by_everybody(agentd, make_agent, image, unique, text_file):
    """Frozen, rolled back, imported, pruned, edited, updated, removed and made again at the same time: agentd lives, what
    was begun ends, and the store is whole."""
    name, other, pid = unique(), make_agent("true"), show("agentd.service", "MainPID")
    definition = json.dumps({"name": name, "image": image, "kind": "exec", "command": ["/bin/true"]})
    archive = text_file("")
    run("agentctl", "env", "export", other, archive)
    generation = str(agentd.call("ListGenerations", other)[0][0])
    edit = ["EditEnvironment", name, ["/bin/sh", "-c", "echo x >>/srv/file"], *[{"open": "/dev/null"}] * 3, {}]
    try:
        seen, operations = race(
            [["CreateAgent", definition], ["UpdateAgent", definition]],
            [edit, ["FreezeEnvironment", name, {}], ["CloseEdit", name]],
            [edit, ["DiscardEdit", name], ["FreezeEnvironment", name, {}]],
            [["RemoveAgent", name], ["CreateAgent", definition]],
            [["RollbackEnvironment", name, generation, {}], ["PruneEnvironments", name, {"keep": 1}],
             ["DiffGenerations", name, generation, generation, {}], ["ShowGeneration", name, "1"]],
            [["ImportEnvironment", name, {"open": archive}, {}], ["ListGenerations", name]],
            count=12,
        )
        for path in operations:
            agentd.wait_for(lambda: agentd.finished_operations.get(str(path)), what=f"the end of {path}")
        assert all(e.startswith(OURS) for e in errors(seen)), seen
        assert show("agentd.service", "MainPID") == pid
        path = str(agentd.call("CheckEnvironments", dbus.Dictionary({}, signature="sv")))
        assert agentd.complete(path)[0] == "done"
    finally:
        call_as("root", ("DiscardEdit", name), ("RemoveAgent", name))
    assert not [e for e in agentd.call("ListEdits") if str(e[1]) == name]
