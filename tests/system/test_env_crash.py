# SPDX-License-Identifier: LGPL-2.1-or-later
"""Environments when something is killed in the middle: the old state or the new one is in force, whole, and nothing leaks."""

import json
import os
import subprocess
import threading

import pytest

from client import STATE, agentctl, run, wait_until
from test_env_edit import edit, in_run
from test_env_generations import freeze_change
from test_env_store import fsck, prune


@pytest.fixture
def agent(make_agent):
    name = make_agent("cat > /tmp/s; . /tmp/s", kind="command")
    yield name
    agentctl("env", "discard", name, check=False)


def after(seconds, *argv):
    """Runs ARGV a little later, in a process of its own: the moment is the point."""
    return subprocess.Popen(["sh", "-c", f"sleep {seconds}; exec \"$@\"", "sh", *argv], stdout=subprocess.DEVNULL,
                            stderr=subprocess.DEVNULL)


KILL_AGENTD = ("systemctl", "kill", "--signal=KILL", "--kill-whom=main", "agentd")
KILL_ALL = ("systemctl", "kill", "--signal=KILL", "agentd")
KILL_UNITS = ("sh", "-c", "systemctl kill --signal=KILL 'agent-op-*.service'")


def calm(killer):
    """The kill has happened, and agentd is there again."""
    killer.wait()
    wait_until(lambda: run("busctl", "call", "org.agentd1", "/org/agentd1", "org.freedesktop.DBus.Peer", "Ping",
                           check=False).returncode == 0, "agentd", timeout=20)


def tidy(agentd):
    wait_until(lambda: not os.listdir(STATE + "/tmp"), "the end of staging", timeout=20)
    result, detail, document = fsck(agentd)
    assert result == "done", (detail, document)


@pytest.mark.parametrize("what", [KILL_AGENTD, KILL_ALL, KILL_UNITS], ids=["agentd", "worker", "unit"])
def test_freeze(agentd, agent, what):
    """At many moments of a freeze; the one after it always works."""
    expect = []
    for i in range(6):
        edit(agent, f"echo {i} >> /etc/steps; head -c 3000000 /dev/zero > /opt/zero{i}")
        before = str(agentd.call("ListGenerations", agent)[0][0])
        killer = after(0.02 * i, *what)
        agentctl("env", "freeze", agent, check=False)
        calm(killer)
        expect.append(str(i))
        head = str(agentd.call("ListGenerations", agent)[0][0])
        edits = [e for e in json.loads(agentctl("env", "edits", "--json=short").stdout) if e["agent"] == agent]
        # The old one with the edit still there, or the new one without it.
        if head == before:
            assert len(edits) == 1
            agentctl("env", "freeze", agent)
        else:
            # Between the commit and the removal, the edit may have been left: it is refused then, never applied twice.
            if edits:
                assert agentctl("env", "freeze", agent, check=False).returncode == 1
                agentctl("env", "discard", agent)
        assert in_run(agentd, agent, "cat /etc/steps").split() == expect
    tidy(agentd)


def test_prune(agentd, agent):
    for i in range(6):
        freeze_change(agentd, agent, f"head -c 2000000 /dev/urandom > ~/f; echo {i} > ~/n")
        other = agentctl("env", "show", agent).stdout
        if i % 2:
            agentctl("env", "rollback", agent, "head")
        killer = after(0.01 * i, *KILL_AGENTD)
        agentctl("env", "prune", agent, "--keep=1", check=False)
        calm(killer)
        assert json.loads(other)["digest"] in [str(r[0]) for r in agentd.call("ListGenerations", agent)]
        assert in_run(agentd, agent, "cat ~/n") == str(i)
    prune(agentd)
    tidy(agentd)
    assert fsck(agentd)[2]["unused"] == []


def test_import(agentd, agent, unique, tmp_path):
    edit(agent, "head -c 20000000 /dev/urandom > /opt/big; echo yes > /etc/yes")
    agentctl("env", "freeze", agent)
    agentctl("env", "export", agent, tmp_path / "e.tar")
    agentd.call("RemoveAgent", agent)
    prune(agentd)
    name = unique()
    for i in range(6):
        killer = after(0.1 * i, *(KILL_AGENTD if i % 2 else KILL_ALL))
        agentctl("env", "import", name, tmp_path / "e.tar", check=False)
        calm(killer)
        known = [str(a[0]) for a in agentd.call("ListAgents")]
        if name in known:
            assert in_run(agentd, name, "cat /etc/yes /etc/debian_version >/dev/null && echo ok") == "ok"
            agentd.call("RemoveAgent", name)
        prune(agentd)
        tidy(agentd)
    agentctl("env", "import", name, tmp_path / "e.tar")
    assert in_run(agentd, name, "cat /etc/yes") == "yes"
    agentd.call("RemoveAgent", name)


def test_everything_at_once(agentd, agent, make_agent):
    """Freezes, rollbacks and prunes while runs go on: each run sees one generation, whole."""
    freeze_change(agentd, agent, "echo 0 > ~/a; echo 0 > ~/b")
    stop = threading.Event()

    def disturb():
        n = 0
        while not stop.is_set():
            n += 1
            run("agentctl", "env", "edit", agent, "--", "/bin/sh", "-c",
                f"echo {n} > /home/agent/a; echo {n} > /home/agent/b", check=False)
            run("agentctl", "env", "freeze", agent, check=False)
            if n % 3 == 0:
                run("agentctl", "env", "rollback", agent, "head", check=False)
            run("agentctl", "env", "prune", agent, "--keep=2", check=False)

    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        for _ in range(6):
            paths = [agentd.execute(agent, "sleep 0.2; [ $(cat ~/a) = $(cat ~/b) ] && cat ~/a") for _ in range(2)]
            for path in paths:
                result, message = agentd.finish(path)
                assert result == "success", (message, agentd.log(path))
    finally:
        stop.set()
        thread.join()
    agentctl("env", "discard", agent, check=False)
    tidy(agentd)
