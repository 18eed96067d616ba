# SPDX-License-Identifier: LGPL-2.1-or-later
"""A fault at each step of a swap: no run is lost to a bad deploy, the environment stays as it was, and nothing is left over."""

import json
import os
import pathlib
import subprocess

import dbus
import pytest

from client import MANAGER, RUNTIME, STATE, agentctl, journal, kill, run, show, systemctl, wait_until
from runners import NODE, files_digest, image_with, layer_file, run_once, write_runner

QUARANTINED = "8c0d6c5d1f6e4d0f9a53f6a1f0f3f1c4"


def nothing_left():
    return (not os.listdir(f"{RUNTIME}/runs") and not os.listdir(f"{STATE}/tmp") and
            not systemctl("list-units", "--all", "--plain", "--no-legend", "agent-check-*", "agent-run-*").stdout.strip())


@pytest.fixture(autouse=True)
def leaves_nothing(agentd):
    yield
    wait_until(nothing_left, "a clean host")


@pytest.fixture
def agent(agentd, runners, make_agent, tmp_path):
    """An agent that last ran with a good test runner of version 1."""
    name = make_agent(["/bin/true"], kind="command")
    runners.deploy(write_runner(tmp_path / "good", "1"))
    assert run_once(agentd, name)[2]["parts"] == ["1"] * 3
    return name


def head(agentd, name):
    return str(agentd.call("ListGenerations", name)[0][0])


@pytest.fixture
def quick_checks(request):
    """Two seconds for each script, where that they pass is what is tested."""
    seconds = 2 if request.node.callspec.params["reason"] == "did not end in time" else 3600
    conf = pathlib.Path("/etc/agentd/agentd.conf.d/runner-test.conf")
    conf.parent.mkdir(parents=True, exist_ok=True)
    conf.write_text(f"[Run]\nRunnerCheckTimeout={seconds}s\nRetryDelay=100ms\n")
    systemctl("restart", "agentd")
    yield
    conf.unlink()
    systemctl("restart", "agentd")


@pytest.mark.parametrize("files,reason", [
    ({"lib/zz-last.cjs": "let x = 1;\nlet y = ;\n"}, "lib/zz-last.cjs:2: SyntaxError: Unexpected token ';'"),
    ({"lib/last.mjs": "import x from 'y';\nexport {;\n"}, "lib/last.mjs:2: SyntaxError"),
    ({"lib/a.cjs": b"// fine\n// \xff\xfe\nmodule.exports = '2';\n"}, "lib/a.cjs:2: this is not valid UTF-8"),
])
def test_a_script_that_is_not_valid(agentd, runners, agent, tmp_path, files, reason):
    before, seen = head(agentd, agent), []
    match = agentd.bus.add_signal_receiver(lambda *a: seen.append([str(x) for x in a]), "RunnerQuarantined", MANAGER)
    bad = runners.deploy(write_runner(tmp_path / "bad", "2", files=files))
    assert runners.current() == bad
    for _ in range(2):
        result, message, output, receipt = run_once(agentd, agent)
        assert result == "success", message
        assert output["parts"] == ["1"] * 3 and receipt["attempts"] == 1 and not receipt["swap"]["swapped"]
    assert head(agentd, agent) == before
    agentd.wait_for(lambda: seen, what="RunnerQuarantined")
    match.remove()
    [verdict] = runners.get(bad)["verdicts"]
    assert not verdict["ok"] and reason in verdict["reason"] and seen == [[bad, verdict["node"], verdict["reason"]]]
    entry = json.loads(journal("-o", "json", f"MESSAGE_ID={QUARANTINED}", "-n", "1"))
    assert entry["AGENT_RUNNER"] == bad and entry["AGENT_REASON"] == verdict["reason"]
    assert reason in agentctl("runner", "status").stdout
    # The fault is mended: the next deploy is another runner. And the same one again is tried anew.
    good = runners.deploy(write_runner(tmp_path / "good", "3"))
    assert run_once(agentd, agent)[3]["runner"] == good
    runners.deploy(tmp_path / "bad")
    assert runners.get(bad)["verdicts"] == [] and run_once(agentd, agent)[3]["runner"] == good


@pytest.mark.parametrize("node,reason", [
    ("#!/bin/sh\nexec sleep 1000\n", "did not end in time"),
    ("#!/bin/sh\nexit 0\n", "does not check"),
    ("#!/bin/sh\nkill -9 $$\n", "killed by a signal"),
    ("#!/nonexistent\n", "cannot be executed"),
])
def test_a_runner_whose_own_node_is_no_good(agentd, runners, agent, quick_checks, tmp_path, node, reason):
    """A second sandbox shows that it is not the sandbox's fault; then the runner is quarantined like any other."""
    bad = runners.deploy(write_runner(tmp_path / "bad", "2", files={"bin/node": node}, node="bin/node"))
    result, message, output, receipt = run_once(agentd, agent)
    assert result == "success", message
    assert output["parts"] == ["1"] * 3 and receipt["attempts"] == 2
    [verdict] = runners.get(bad)["verdicts"]
    assert not verdict["ok"] and reason in verdict["reason"]


@pytest.mark.parametrize("node,reason,attempts", [
    (None, "has no program /usr/bin/node", 1),
    (b"#!/bin/sh\nexec sleep 1000\n", "did not end in time", 3),
    (b"#!/bin/sh\nexit 0\n", "does not check", 3),
])
def test_an_image_whose_node_is_no_good(agentd, runners, make_agent, unique, quick_checks, tmp_path, node, reason, attempts):
    """No runner would do: the platform says at which step it gave up."""
    image = image_with(agentd, unique("i"), {"usr/bin/node": node})
    agent = make_agent(["/bin/true"], kind="command", image=image)
    runners.deploy(write_runner(tmp_path / "r", "1"))
    before = head(agentd, agent)
    result, message, _, receipt = run_once(agentd, agent)
    assert result == "sandbox-failed" and "step validate" in message and reason in message
    assert receipt["attempts"] == attempts and head(agentd, agent) == before
    assert all(v["ok"] for v in runners.get(runners.current())["verdicts"])
    # A runner with an interpreter of its own needs none of the image's.
    if NODE[24].exists() and node is None:
        own = write_runner(tmp_path / "own", "2", files={"bin/node": NODE[24].read_bytes()}, node="bin/node")
        digest = runners.deploy(own)
        result, message, output, receipt = run_once(agentd, agent)
        assert result == "success", message
        assert output["node"].startswith("v24.") and receipt["runner"] == digest


def test_nodes_are_told_apart(agentd, runners, make_agent, unique, tmp_path):
    """What only a newer Node understands is refused for the images with the older ones, and for these only."""
    missing = [v for v, f in NODE.items() if not f.exists()]
    if missing:
        pytest.skip(f"there are no npm packages of Node {missing}")
    agents = {20: make_agent(["/bin/true"], kind="command")}
    for version, file in NODE.items():
        agents[version] = make_agent(["/bin/true"], kind="command", image=image_with(agentd, unique("i"), {"usr/bin/node": file}))
    runners.deploy(write_runner(tmp_path / "plain", "1"))
    for version, agent in agents.items():
        result, message, output, _ = run_once(agentd, agent)
        assert result == "success" and output["node"].startswith(f"v{version}."), message
    for syntax, newest, accepted in (("/[\\p{L}--[a-z]]/v", "2", {20, 22, 24}), ("/(?i:a)/", "3", {24})):
        digest = runners.deploy(write_runner(tmp_path / newest, newest, files={"lib/new.cjs": f"exports.x = {syntax};\n"}))
        got = {v: run_once(agentd, a)[3]["runner"] == digest for v, a in agents.items()}
        assert got == {v: v in accepted for v in agents}
        verdicts = runners.get(digest)["verdicts"]
        assert sorted(v["ok"] for v in verdicts) == sorted(v in accepted for v in agents)
        assert all("Invalid r" in v["reason"] for v in verdicts if not v["ok"])
        assert len({v["node"] for v in verdicts}) == 4


def test_a_library_makes_another_node(agentd, runners, make_agent, agent, tmp_path):
    """Debian's /usr/bin/node is a stub: what is loaded with it belongs to its identity. One's own preload is in nobody else's way."""
    def nodes():
        return {v["node"] for v in runners.get(runners.current())["verdicts"]}

    assert len(nodes()) == 1
    other = make_agent(["/bin/true"], kind="command")
    assert run_once(agentd, other)[3]["swap"]["verdict"] == "cached"
    # The agent's user cannot write there, so the image brings it.
    name = image_with(agentd, "preload-" + other, {"etc/ld.so.preload": b"\n"})
    third = make_agent(["/bin/true"], kind="command", image=name)
    assert run_once(agentd, third)[3]["swap"]["verdict"] == "checked"
    assert len(nodes()) == 2


def test_what_an_image_plants_is_covered(agentd, runners, make_agent, unique, tmp_path):
    """Neither a runner of the image's own, nor a package.json above it that would change what its scripts are."""
    image = image_with(agentd, unique("i"), {"opt/agentd/runner/main.cjs": b"process.exit(0);", "opt/agentd/package.json": b'{"type": "module"}',
                                             "opt/package.json": b'{"type": "module"}', "package.json": b"{broken"})
    agent = make_agent(["/bin/true"], kind="command", image=image)
    # Sloppy mode, which a module has not.
    digest = runners.deploy(write_runner(tmp_path / "r", "1", files={"lib/old.js": "with ({}) { exports.x = 010; }\n"}))
    result, message, output, receipt = run_once(agentd, agent)
    assert result == "success", message
    assert receipt["runner"] == digest and output["parts"] == ["1"] * 3 and output["start"] == files_digest(tmp_path / "r")


def test_a_layer_that_cannot_be_mounted(agentd, runners, agent, tmp_path):
    before = head(agentd, agent)
    bad = runners.deploy(write_runner(tmp_path / "new", f"2-{agent}"))  # one that is not mounted yet
    file = layer_file(bad)
    good = file.read_bytes()
    file.chmod(0o644)
    file.write_bytes(b"\0" * len(good))
    result, message, _, receipt = run_once(agentd, agent)
    assert result == "sandbox-failed" and "step stage" in message and receipt["attempts"] == 3
    assert head(agentd, agent) == before
    file.write_bytes(good)
    file.chmod(0o444)
    assert run_once(agentd, agent)[3]["runner"] == bad


def test_a_layer_that_is_gone(agentd, runners, agent, tmp_path):
    bad = runners.deploy(write_runner(tmp_path / "new", f"2-{agent}"))  # one that is not mounted yet
    layer_file(bad).rename(f"{STATE}/aside")
    result, message, _, _ = run_once(agentd, agent)
    assert result == "sandbox-failed" and "step stage" in message
    os.rename(f"{STATE}/aside", layer_file(bad))
    assert run_once(agentd, agent)[0] == "success"


@pytest.mark.parametrize("cache", ["ln -s /etc ~/.cache/v8-compile-cache", "mkdir -p ~/.cache/v8-compile-cache/x; echo stale > ~/.cache/v8-compile-cache/x/y"])
def test_stale_bytecode_is_gone_and_nothing_else(agentd, runners, make_agent, tmp_path, cache):
    """Also where somebody has put a link in its place."""
    agent = make_agent("cat > /tmp/s; . /tmp/s", kind="command",
                       environment={"NODE_COMPILE_CACHE": "/home/agent/cc"})
    path = agentd.execute(agent, f"mkdir -p ~/.cache ~/cc/v20.19.2-x64-12345678-1000 ~/cc/mine; {cache}; echo a > ~/.cache/other", keep=True)
    assert agentd.finish(path)[0] == "success"
    assert agentd.freeze(agent, path)[0] == "done"
    look = "ls -A ~/.cache ~/cc | tr '\\n' ' '; test -e ~/.cache/v8-compile-cache/x/y && echo stale; cat /etc/passwd | wc -l"
    directory = tmp_path / "shipped"
    subprocess.run(["cp", "-r", "/usr/lib/agentd/runner", directory], check=True)
    with open(directory / "main.cjs", "a") as f:
        f.write(f"// {agent}\n")
    runners.deploy(directory)
    result, message, output, receipt = run_once(agentd, agent, look)
    assert result == "success", message
    assert receipt["swap"]["swapped"]
    assert "v8-compile-cache" not in output and "stale" not in output and "v20" not in output
    assert "other" in output and "mine" in output and int(output.split()[-1]) > 10


def checking():
    return systemctl("list-units", "--plain", "--no-legend", "agent-check-*").stdout.split()[:1]


def pids(unit):
    try:
        return open(f"/sys/fs/cgroup{show(unit, 'ControlGroup')}/cgroup.procs").read().split()
    except OSError:
        return []


def slow_runner(directory):
    """Takes some seconds to check."""
    return write_runner(directory, "2", files={f"lib/many{i}.cjs": "// nothing\n" for i in range(25)})


def test_agentd_is_killed_in_the_middle_of_a_check(agentd, runners, agent, tmp_path):
    before = head(agentd, agent)
    new = runners.deploy(slow_runner(tmp_path / "slow"))
    path = agentd.execute(agent)
    wait_until(checking, "a check")
    run("kill", "-9", show("agentd.service", "MainPID"))
    result, message = agentd.finish(path)
    assert result == "success", message
    receipt = agentd.receipt(path)
    assert receipt["runner"] == new and receipt["attempts"] == 2 and head(agentd, agent) == receipt["swap"]["generation"] != before


def test_the_worker_is_killed_in_the_middle_of_a_check(agentd, runners, agent, tmp_path):
    new = runners.deploy(slow_runner(tmp_path / "slow"))
    path = agentd.execute(agent)
    wait_until(checking, "a check")
    run("pkill", "-9", "-x", "agentd-worker")
    result, message = agentd.finish(path)
    assert result == "success", message
    assert agentd.receipt(path)["runner"] == new


def test_the_check_itself_is_killed(agentd, runners, agent, tmp_path):
    new = runners.deploy(slow_runner(tmp_path / "slow"))
    path = agentd.execute(agent)
    [unit] = wait_until(checking, "a check")
    wait_until(lambda: pids(unit), "its processes")
    systemctl("kill", "--signal=KILL", unit)
    result, message = agentd.finish(path)
    assert result == "success", message
    assert agentd.receipt(path)["runner"] == new and agentd.receipt(path)["attempts"] == 2


def test_cancel_in_the_middle_of_a_check(agentd, runners, agent, make_agent, tmp_path):
    """The others that wait for the verdict get it from another sandbox."""
    other = make_agent(["/bin/true"], kind="command")
    new = runners.deploy(slow_runner(tmp_path / "slow"))
    first = agentd.execute(agent)
    wait_until(checking, "a check")
    second = agentd.execute(other)
    agentd.wait_state(second, "preparing")
    agentd.call("CancelRun", agentd.run_id(first))
    assert agentd.finish(first)[0] == "canceled"
    assert agentd.finish(second)[0] == "success" and agentd.receipt(second)["runner"] == new


def test_agentd_is_killed_in_the_middle_of_a_deploy(agentd, runners, agent, tmp_path):
    """Whole or not at all."""
    before = runners.list()
    runners.begin(write_runner(tmp_path / "big", "2", files={"big.bin": os.urandom(64 << 20)}))
    kill("agentd.service")
    now = runners.list()
    assert now == before or (len(now) == len(before) + 1 and now[0]["state"] == "current"), now
    assert run_once(agentd, agent)[0] == "success"
    assert isinstance(agentd.call("GetDiskUsage"), (str, dbus.String))


def test_a_start_without_a_good_shipped_runner(agentd, runners, agent, tmp_path):
    """The last good one stays."""
    conf = pathlib.Path("/etc/agentd/agentd.conf.d/runner-test.conf")
    conf.parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / "broken").mkdir()
    os.chmod(tmp_path, 0o755)
    try:
        for directory in (tmp_path / "broken", "/nonexistent"):
            conf.write_text(f"[Run]\nRunnerDirectory={directory}\n")
            systemctl("restart", "agentd")
            assert run_once(agentd, agent)[0] == "success"
    finally:
        conf.unlink()
        systemctl("restart", "agentd")
