# SPDX-License-Identifier: LGPL-2.1-or-later
"""What agentd finds after a reboot, staged: no units, no /run, and rows in the store of another boot. Runs that were
live are lost, and say so; queued ones are run; what was kept in memory is gone.
"""

import json
import os
import shutil
import subprocess
import uuid

import dbus
import pytest

from client import RUNTIME, agentctl, run, systemctl, wait_until


@pytest.fixture
def reboot():
    """Takes away what a reboot takes away, while agentd is down, and makes the store's boot another one."""

    def do():
        systemctl("stop", "agentd.service", "agent-bridged.service", "agent-credentiald.service")
        units = run("systemctl", "list-units", "--all", "--plain", "--no-legend", "agent-run-*", "agent-op-*").stdout.split("\n")
        for unit in (line.split()[0] for line in units if line.strip()):
            systemctl("kill", "--signal=KILL", unit, check=False)
            systemctl("stop", unit, check=False)
            systemctl("reset-failed", unit, check=False)
        points = [line.split()[4] for line in open("/proc/1/mountinfo")]
        for point in sorted(
            (p for p in points if p.startswith((f"{RUNTIME}/runs", f"{RUNTIME}/layers"))), reverse=True
        ):
            run("umount", "--lazy", point, check=False)  # one below another goes with it
        for name in os.listdir(RUNTIME):
            path = f"{RUNTIME}/{name}"
            shutil.rmtree(path) if os.path.isdir(path) and not os.path.islink(path) else None
        run("systemd-tmpfiles", "--create", "/usr/lib/tmpfiles.d/agentd.conf")
        done = run(
            "sqlite3",
            "/var/lib/agentd/store.db",
            f"update runs set boot_id = '{uuid.uuid4().hex}' where boot_id is not null; select changes();",
        )
        assert int(done.stdout) > 0
        run("systemctl", "start", "agentd.service")

    return do


def test_runs_over_a_reboot(agentd, make_agent, reboot):
    agent = make_agent("exec sleep 1000", concurrency=2)
    quick = make_agent("exit 0", concurrency=1)
    live = [agentd.execute(agent) for _ in range(2)]
    for path in live:
        agentd.wait_state(path, "running")
    queued = agentd.execute(agent)
    over = agentd.execute(quick)
    agentd.finish(over)
    before = agentd.receipt(over)
    reboot()
    for path in live:
        result, message = agentd.finish(path)
        assert result == "lost" and "restarted" in message, (result, message)
        receipt = agentd.receipt(path)
        assert receipt["result"] == "lost" and set(receipt) == set(before)
    assert agentd.receipt(over) == before
    agentd.wait_state(queued, "running")  # its turn has come
    agentd.call("CancelRun", agentd.run_id(queued))
    assert agentd.finish(queued)[0] == "canceled"
    wait_until(lambda: not os.listdir(f"{RUNTIME}/runs"), "an empty folder of runs")


def test_environments_over_a_reboot(agentd, make_agent, reboot):
    """A frozen environment is there after it; the changes of a run that were kept in memory are not."""
    agent = make_agent("echo x >> /home/agent/f; grep -c x /home/agent/f", kind="command")
    one = agentd.execute(agent, keep=True)
    agentd.finish(one)
    assert agentd.freeze(agent, one)[0] == "done"
    two = agentd.execute(agent, keep=True)
    agentd.finish(two)
    assert agentd.result(two)["output"] == 2
    reboot()
    with pytest.raises(dbus.DBusException) as e:
        agentd.freeze(agent, two)
    assert e.value.get_dbus_name() == "org.agentd1.Error.NotFreezable"
    three = agentd.execute(agent)
    agentd.finish(three)
    assert agentd.result(three)["output"] == 2, "the frozen one and its own"
    assert agentd.receipt(three)["environment"] == agentd.receipt(two)["environment"]


def is_open(agent):
    (edit,) = [e for e in json.loads(agentctl("env", "edits", "--json=short").stdout) if e["agent"] == agent]
    return edit["open"]


def test_an_edit_over_a_reboot(agentd, make_agent, reboot):
    """With a session open, and one that was over: what both changed is there, and a freeze makes the layer that it had been
    without the reboot, byte for byte.
    """
    change = ["rm -r /etc/apt; mkdir /etc/apt; echo only > /etc/apt/only; rm /etc/debian_version; chown 7:8 /etc/issue",
              "useradd joe; mkdir -p /opt/d; echo x > /opt/d/x; ln /opt/d/x /opt/d/y; rm -r /usr/share/doc; touch /usr/share/doc"]
    same = "; find / -xdev -newermt 2020-01-01 ! -path '/proc*' ! -path '/sys*' ! -path '/dev*' ! -path '/run*' -exec touch -hd @1 {} +"
    top = []
    for interrupted in (False, True):
        agent = make_agent("cat > /tmp/s; . /tmp/s", kind="command")
        over = agentd.execute(agent, "exit 0")  # a row of this boot, for the fixture
        agentd.finish(over)
        agentctl("env", "edit", agent, "--", "/bin/sh", "-euc", change[0])
        if interrupted:
            live = agentd.execute(make_agent("sleep 1000"))
            agentd.wait_state(live, "running")
            p = subprocess.Popen(["agentctl", "env", "edit", agent, "--", "/bin/sh", "-euc", change[1] + "; echo ready; sleep 1000"],
                                 stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            assert p.stdout.readline() == "ready\n"
            p.kill()  # it would have agentd started again in the middle of what stands for a reboot
            p.wait()
            assert is_open(agent) is True
            reboot()
            assert is_open(agent) is False
            assert agentd.finish(live)[0] == "lost"
        else:
            agentctl("env", "edit", agent, "--", "/bin/sh", "-euc", change[1])
        agentctl("env", "edit", agent, "--", "/bin/sh", "-euc", "ls /opt/d/y /etc/apt/only; true" + same)
        agentctl("env", "freeze", agent)
        path = agentd.execute(agent, "cat /opt/d/y /etc/apt/*; ls /etc/debian_version 2>/dev/null; stat -c %h,%u /opt/d/x; id -u joe >/dev/null; "
                              "stat -c %u:%g /etc/issue; stat -c %F /usr/share/doc")
        assert agentd.finish(path)[0] == "success", agentd.log(path)
        assert agentd.result(path)["output"].split("\n") == ["x", "only", "2,0", "65534:65534", "regular empty file", ""]
        top.append(json.loads(agentctl("env", "show", agent).stdout)["layers"][-1]["digest"])
    assert top[0] == top[1]
    assert agentctl("env", "fsck").returncode == 0


def test_edits_over_a_reboot(agentd, make_agent, reboot, shell):
    """What a session had changed is there, although it was open; nobody holds the edit, nothing of the session is left, and
    it can be gone on with and frozen."""
    agentd.finish(agentd.execute(make_agent("exit 0")))
    s = shell("--allow-host=example.org")
    s("echo one > /etc/one; rm /etc/debian_version; sync")
    reboot()
    assert is_open(s.agent) is False
    assert os.listdir(f"{RUNTIME}/live") == [] and os.listdir(f"{RUNTIME}/runs") == []
    again = shell(name=s.agent)
    assert again("cat /etc/one; ls /etc/debian_version || true").startswith("one\nls: cannot access")
    assert "example.org" not in again("env")
    again.end()
    agentctl("env", "freeze", s.agent)
    path = agentd.execute(s.agent, "import os; print(open('/etc/one').read(), os.path.exists('/etc/debian_version'))")
    assert agentd.finish(path)[0] == "success"
    assert agentd.result(path)["output"].split() == ["one", "False"]
