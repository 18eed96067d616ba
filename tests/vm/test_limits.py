# SPDX-License-Identifier: LGPL-2.1-or-later
"""Limits that only a kernel of its own enforces: one with all cgroup controllers, and whose settings are ours."""

import pathlib

import pytest

from client import run

GREEDY = "x = []\nwhile True: x.append(b'x' * 2**20)"


def test_controllers():
    with open("/sys/fs/cgroup/cgroup.controllers", encoding="ascii") as f:
        assert {"cpu", "io", "memory", "pids"} <= set(f.read().split())


def test_out_of_memory(agentd, make_agent):
    """An agent that takes more than its limit ends as oom-kill, and the message says what to do."""
    agent = make_agent(["/usr/bin/python3", "-c", GREEDY], limits={"memory": "64M"})
    result, message = agentd.finish(agentd.execute(agent))
    assert result == "oom-kill", message
    assert "memory" in message.lower(), message


def test_within_memory(agentd, make_agent):
    """The same limit does not hurt an agent that keeps to it, and the receipt tells its peak."""
    agent = make_agent(["/usr/bin/python3", "-c", "x = b'x' * (16 * 2**20)"], limits={"memory": "64M"})
    path = agentd.execute(agent)
    result, message = agentd.finish(path)
    assert result == "success", message
    peak = agentd.receipt(path)["usage"]["memory_peak_bytes"]
    assert 16 * 2**20 <= peak <= 64 * 2**20, peak


def test_tasks(agentd, make_agent):
    """The limit of tasks holds: the kernel refuses the fork, not the machine's own limits."""
    code = "import os, time\nfor _ in range(64):\n  os.fork() or time.sleep(600) or os._exit(0)"
    agent = make_agent(["/usr/bin/python3", "-c", code], limits={"tasks": 16})
    result, message = agentd.finish(agentd.execute(agent))
    assert result == "exit-code", message


CRASH = """
import os, resource, signal
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
for _ in range(3):
    if os.fork() == 0:
        os.kill(os.getpid(), signal.SIGSEGV)
    os.wait()
print("crashed")
"""


@pytest.fixture
def dumps(tmp_path):
    """A program of the host's that the kernel starts for each crash; returns what it has seen."""
    pattern, taker, seen = pathlib.Path("/proc/sys/kernel/core_pattern"), tmp_path / "taker", tmp_path / "seen"
    before = pattern.read_text()
    taker.write_text(f"#!/bin/sh\necho $1 >>{seen}\n")
    taker.chmod(0o755)
    pattern.write_text(f"|{taker} %e")
    yield lambda: seen.read_text().split() if seen.exists() else []
    pattern.write_text(before)


def test_crashes_start_nothing_on_the_host(agentd, make_agent, dumps):
    """What the kernel starts for them is in no run's control group, and works at its expense."""
    for kind in ("exec", "command"):
        path = agentd.execute(make_agent(["/usr/bin/python3", "-c", CRASH], kind=kind))
        assert agentd.finish(path)[0] == "success" and "crashed" in agentd.log(path)
    assert dumps() == []
    assert run("python3", "-c", CRASH).stdout == "crashed\n"
    assert len(dumps()) == 3
