# SPDX-License-Identifier: LGPL-2.1-or-later
"""Limits that only a kernel with all cgroup controllers enforces."""

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
    code = "import os, time\nfor _ in range(64):\n  os.fork() or time.sleep(5) or os._exit(0)"
    agent = make_agent(["/usr/bin/python3", "-c", code], limits={"tasks": 16})
    result, message = agentd.finish(agentd.execute(agent))
    assert result == "exit-code", message
