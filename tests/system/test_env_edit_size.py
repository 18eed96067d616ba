# SPDX-License-Identifier: LGPL-2.1-or-later
"""How much an edit may hold, and how many there may be: a full one says so to those inside, and can be opened, frozen and
discarded; a full disk is told before a session begins.
"""

import os
import pathlib
import subprocess

from client import STATE, agentctl, call_as, run, wait_until
from test_env_edit_net import alices  # noqa: F401 - a fixture
from test_env_generations import said

EDITS = pathlib.Path(STATE, "edits")


def disks():
    return list(EDITS.glob("*/disk"))


def unmounted():
    return "/disk " not in pathlib.Path("/proc/1/mountinfo").read_text()


def test_a_full_one(agentd, shell, make_agent, settings):  # noqa: F811
    settings("Edit", SizeMax="128M")
    s = shell()
    assert 90 << 20 < int(s("df --output=size -B1 / | tail -1")) < 128 << 20
    out = s("dd if=/dev/zero of=/opt/big bs=1M; echo more > /opt/more || echo refused", check=False)
    assert out.count("No space left on device") >= 1, out
    s("i=0; while touch /opt/f$i; do i=$((i+1)); [ $i -lt 2000 ] || break; done; true", check=False)
    assert s.end()[0] == 0
    # It is full, and all the same it can be opened again, and frozen.
    again = shell(name=s.agent)
    assert int(again("stat -c %s /opt/big")) > 64 << 20
    again("rm /etc/debian_version; echo x > /etc/x || true", check=False)
    assert again.end()[0] == 0
    agentctl("env", "freeze", s.agent)
    path = agentd.execute(s.agent, "import os; print(os.path.getsize('/opt/big') >> 26, os.path.exists('/etc/debian_version'))")
    assert agentd.finish(path)[0] == "success"
    assert said(agentd, path).strip() == "1 False"
    wait_until(lambda: unmounted() and not disks(), "the disk's end")
    # Discarded as well.
    full = shell()
    full("dd if=/dev/zero of=/opt/big bs=1M 2>/dev/null", check=False)
    assert full.end()[0] == 0
    agentctl("env", "discard", full.agent)
    wait_until(lambda: unmounted() and not disks(), "the disk's end")


def test_what_it_takes_of_the_disk(shell):
    """All of it while a session is open, so that no write in it finds the disk below full; what was written afterwards."""
    s = shell()
    (disk,) = disks()
    size = os.stat(disk).st_size
    assert size == 4 << 30 and os.stat(disk).st_blocks * 512 >= size
    s("dd if=/dev/urandom of=/opt/big bs=1M count=200 2>/dev/null")
    assert s.end()[0] == 0
    wait_until(unmounted, "the disk's end")
    assert 200 << 20 <= os.stat(disk).st_blocks * 512 < 600 << 20
    s = shell(name=s.agent)
    assert s("stat -c %s /opt/big; rm /opt/big").strip() == str(200 << 20)
    assert s.end()[0] == 0
    wait_until(unmounted, "the disk's end")
    assert os.stat(disk).st_blocks * 512 < 200 << 20, "what was removed is given back"


def test_no_room_for_one(make_agent, settings):  # noqa: F811
    """One error, before anything of the session runs, and the edit stays as it was."""
    name = make_agent("true")
    agentctl("env", "edit", name, "--", "sh", "-c", "echo x > /etc/x")
    free = os.statvfs(STATE).f_bavail
    other = make_agent("true")
    settings("Edit", SizeMax="60T")
    done = agentctl("env", "edit", other, "--", "true", check=False)
    assert done.returncode == 1 and "SizeMax=" in done.stderr and "the disk has" in done.stderr, done.stderr
    assert os.statvfs(STATE).f_bavail > free / 2, "nothing was tried"
    assert agentctl("env", "edit", name, "--", "cat", "/etc/x").stdout == "x\n", "its own size is what it was"
    for n in (name, other):
        agentctl("env", "discard", n)
    wait_until(lambda: unmounted() and not disks(), "the disk's end")


def test_without_a_bound(shell, settings):  # noqa: F811
    settings("Edit", SizeMax="infinity")
    s = shell()
    s("echo x > /etc/x")
    assert s.end()[0] == 0
    assert not disks() and list(EDITS.glob("*/upper/etc/x"))
    # What was begun so goes on so.
    settings("Edit", SizeMax="64M")
    assert shell(name=s.agent)("cat /etc/x") == "x"


def test_one_disk_is_mounted_once(shell):
    """Twice would destroy it: the second waits, and then is refused."""
    s = shell()
    s("echo x > /etc/x")
    (disk,) = disks()
    done = run("flock", "--nonblock", disk, "true", check=False)
    assert done.returncode == 1, "the loop device holds the lock"
    assert s.end()[0] == 0
    wait_until(unmounted, "the disk's end")
    holder = subprocess.Popen(["flock", disk, "cat"], stdin=subprocess.PIPE)
    wait_until(lambda: run("flock", "--nonblock", disk, "true", check=False).returncode == 1, "the lock")
    done = agentctl("env", "edit", s.agent, "--", "cat", "/etc/x", check=False)
    assert done.returncode == 1 and "still in use" in done.stderr
    holder.stdin.close()
    holder.wait()
    assert agentctl("env", "edit", s.agent, "--", "cat", "/etc/x").stdout == "x\n"


def test_how_many_one_user_may_have(agentd, users, alices, settings):  # noqa: F811
    settings("Edit", MaxPerUser=2, SizeMax="64M")
    null = [{"fd": "/dev/null"}] * 3
    names = [alices() for _ in range(3)]
    answers = call_as(users[0], *(("EditEnvironment", n, ["/bin/true"], *null, {"options": {}}) for n in names))
    assert ["error" in a for a in answers] == [False, False, True], answers
    assert answers[2]["error"].endswith("LimitsExceeded") and "2 edits" in answers[2]["message"]
    agentctl("env", "close", f"{users[0]}/{names[0]}", check=False)
    wait_until(lambda: "error" not in call_as(users[0], ("DiscardEdit", names[0]))[0], "room for another")
    answer = call_as(users[0], ("EditEnvironment", names[2], ["/bin/true"], *null, {"options": {}}))[0]
    assert agentd.complete(answer["value"])[0] == "done"


def test_how_many_sessions_one_user_may_have(users, alices, settings):  # noqa: F811
    """Each may have its share of memory. Those beyond begin nothing."""
    settings("Edit", SizeMax="64M")
    names = [alices() for _ in range(9)]
    sleep = [["/bin/sleep", "1000"], *[{"fd": "/dev/null"}] * 3, {"options": {}}]
    answers = call_as(users[0], *(("EditEnvironment", n, *sleep) for n in names))
    assert [a.get("error", "").rsplit(".", 1)[-1] for a in answers] == [""] * 8 + ["TooManyOperations"]
    assert names[8] not in agentctl("env", "edits").stdout
    assert "error" in call_as(users[0], ("OpenEditTerminal", names[8], ["/bin/true"], {"options": {}}))[0]
    agentctl("env", "close", f"{users[0]}/{names[0]}")
    assert "error" not in call_as(users[0], ("EditEnvironment", names[8], *sleep))[0]

