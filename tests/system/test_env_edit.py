# SPDX-License-Identifier: LGPL-2.1-or-later
"""Edits: an environment opened as its root, frozen or discarded; what is captured, and that nothing is lost or leaks."""

import fcntl
import json
import os
import pathlib
import select
import signal
import struct
import subprocess
import termios
import time

import dbus
import pytest

from client import DEADLINE, STATE, agentctl, call_as, run, systemctl, wait_until
from test_env_generations import said

EDITS = pathlib.Path(STATE, "edits")


@pytest.fixture
def agent(make_agent):
    name = make_agent("cat > /tmp/s; . /tmp/s", kind="command")
    yield name
    agentctl("env", "discard", name, check=False)


def edit(name, script, check=True, **kw):
    return agentctl("env", "edit", name, "--", "/bin/sh", "-euc", script, check=check, **kw)


def in_run(agentd, name, script):
    path = agentd.execute(name, script)
    result, message = agentd.finish(path)
    assert result == "success", (message, agentd.log(path))
    return said(agentd, path)


def nothing_left():
    """Of edits, their roots and containers; changes that runs of other tests keep are none of ours."""
    roots = [d for d in pathlib.Path("/run/agentd/runs").iterdir() if not (d / "rw").exists()]
    mounts = pathlib.Path("/proc/1/mountinfo").read_text()
    return not list(EDITS.iterdir()) and not roots and "agentd-edit" not in mounts and "/edit-" not in mounts


def test_edit_and_freeze(agentd, agent):
    assert edit(agent, "id -u; cat; echo oops >&2", stdin="from stdin\n").stdout == "0\nfrom stdin\n"
    edit(agent, """
        useradd --create-home joe; su joe -c 'echo mine > ~/file'
        echo two > /etc/two; rm /etc/debian_version; chmod 4755 /etc/two
        mkdir -p /opt/app; echo app > /opt/app/x; ln /opt/app/x /opt/app/hard; ln -s x /opt/app/soft
        setfattr -n user.k -v v /opt/app/x 2>/dev/null || python3 -c "import os; os.setxattr('/opt/app/x', 'user.k', b'v')"
        rm -r /etc/apt; mkdir /etc/apt; echo only > /etc/apt/only
        rm /etc/issue; mkdir /etc/issue; touch /etc/issue/inside
        truncate -s 1M /opt/app/sparse; : > /opt/app/empty
        touch "/opt/app/$(printf 'a b\\nc\\351')"; touch -d 1999-12-31T23:59:59.123456789Z /opt/app/empty
        mkfifo /opt/app/fifo; mkdir -p /var/cache/apt/archives; echo junk > /var/cache/apt/archives/x.deb; echo t > /tmp/t
        echo a > /home/agent/a; chown agent: /home/agent/a""")
    # Runs see nothing of it before it is frozen.
    assert in_run(agentd, agent, "ls /etc/two /opt/app 2>/dev/null; cat /etc/debian_version") != ""
    done = agentctl("env", "freeze", agent, "--note", "by hand")
    head = done.stdout.strip()
    rows = agentd.call("ListGenerations", agent)
    assert str(rows[0][0]) == head and str(rows[0][4]) == "by hand" and bool(rows[0][5])
    lines = in_run(agentd, agent, r"""
        cat /etc/two; stat -c '%a %U' /etc/two; ls /etc/debian_version 2>&1 | grep -c 'No such'
        stat -c '%h %U' /opt/app/hard; readlink /opt/app/soft; ls /etc/apt; ls /etc/issue; stat -c '%s %b' /opt/app/sparse
        stat -c '%s %y' /opt/app/empty; ls -b /opt/app | grep a; stat -c %F /opt/app/fifo; ls /var/cache/apt /tmp/t 2>&1 | wc -l
        python3 -c "import os; print(os.getxattr('/opt/app/x', 'user.k').decode())"
        [ $(stat -c %u /home/agent/a) = $(id -u) ] && echo mine; echo more >> /home/agent/a; cat /home/agent/a | wc -l""").splitlines()
    assert lines[0:3] == ["two", "4755 root", "1"]
    assert lines[3] == "2 root" and lines[4] == "x" and lines[5] == "only" and lines[6] == "inside"
    assert lines[7].split()[0] == str(1 << 20) and lines[8].startswith("0 1999-12-31 23:59:59.123456789")
    assert "fifo" in " ".join(lines) and lines[-3:] == ["v", "mine", "2"], lines
    assert edit(agent, "stat -c '%U %u' /home/joe/file /home/agent/a").stdout.split() == ["joe", "1001", "agent", "1000"]
    agentctl("env", "discard", agent)
    wait_until(nothing_left, "the edit's end")
    assert agentctl("env", "edits").stdout.startswith("No edits")


def test_discard(agentd, agent):
    edit(agent, "echo x > /etc/x")
    assert [e["agent"] for e in json.loads(agentctl("env", "edits", "--json=short").stdout)] == [agent]
    agentctl("env", "discard", agent)
    assert in_run(agentd, agent, "ls /etc/x 2>&1 | grep -c 'No such'") == "1"
    wait_until(nothing_left, "the edit's end")
    assert agentctl("env", "discard", agent, check=False).returncode == 3
    assert "not being edited" in agentctl("env", "freeze", agent, check=False).stderr


def test_a_failed_command_says_so(agent):
    done = edit(agent, "exit 7", check=False)
    assert done.returncode == 1 and "exit status 7" in done.stderr
    assert "missing-program" in agentctl("env", "edit", agent, "--", "/missing-program", check=False).stderr


def test_nothing_of_the_host(agent):
    out = edit(agent, """
        ls /sys/class/net; ls /run; [ ! -e /run/dbus/system_bus_socket ]; cat /proc/1/comm; ls /proc | grep -c '^[0-9]' || true
        mount -t tmpfs tmpfs /mnt && umount /mnt
        mknod /tmp/sda b 8 0 2>/dev/null && echo BAD-DEVICE; ls /var/lib/agentd 2>/dev/null && echo BAD-STATE
        date -s 2001-01-01 >/dev/null 2>&1 && echo BAD-CLOCK; hostname""").stdout
    assert "lo\n" in out and "BAD" not in out and agent in out


def closed(agent):
    """No session of its edit is open."""
    return [e["open"] for e in json.loads(agentctl("env", "edits", "--json=short").stdout) if e["agent"] == agent] == [False]


class Session:
    """agentctl env edit in a terminal of its own."""

    def __init__(self, *argv, size=(24, 80)):
        self.fd, inner = os.openpty()
        fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
        # Not pty.fork(), whose child would run Python in a copy of a process with threads.
        self.process = subprocess.Popen(["setsid", "--ctty", "agentctl", "env", "edit", *argv], stdin=inner, stdout=inner,
                                        stderr=inner, env={**os.environ, "TERM": "xterm"})
        os.close(inner)
        self.pid = self.process.pid
        self.seen = self.all = b""

    def expect(self, text):
        end = time.monotonic() + DEADLINE
        while text.encode() not in self.seen:
            assert time.monotonic() < end, self.seen
            if select.select([self.fd], [], [], 1)[0]:
                try:
                    chunk = os.read(self.fd, 4096)
                except OSError:
                    chunk = b""
                assert chunk, self.seen
                self.seen += chunk
                self.all += chunk
        self.seen = self.seen.split(text.encode(), 1)[1]

    def send(self, text):
        os.write(self.fd, text.encode())

    def wait(self):
        try:
            while os.read(self.fd, 4096):
                pass
        except OSError:
            pass
        return self.process.wait()


def test_terminal(agentd, agent, users):
    s = Session(agent)
    s.expect("# ")
    fcntl.ioctl(s.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 101, 0, 0))
    os.kill(s.pid, signal.SIGWINCH)
    s.send("tty; echo term=$TERM; until [ \"$(stty size)\" = \"33 101\" ]; do sleep 0.1; done; echo size-$(stty size | tr ' ' x); "
           "echo done$((1+1))\n")
    s.expect("term=xterm")
    s.expect("size-33x101")
    s.expect("done2")
    # A second one is told who holds it.
    done = edit(agent, "true", check=False)
    assert done.returncode == 3 and "edited by root" in done.stderr
    assert "edited by root since" in agentctl("env", "freeze", agent, check=False).stderr
    assert agentctl("env", "discard", agent, check=False).returncode == 3
    with pytest.raises(dbus.DBusException):
        agentd.call("RemoveAgent", agent)
    # Job control works: Ctrl-C goes to the program inside, not to agentctl.
    s.send("sh -c 'echo on-$((40+1)); exec sleep 1000'\n")
    s.expect("on-41")
    s.send("\x03")
    s.expect("# ")
    s.send("echo still-$((40+2)) > /etc/still\n")
    s.send("exit\n")
    assert s.wait() == 0
    agentctl("env", "freeze", agent)
    assert in_run(agentd, agent, "cat /etc/still") == "still-42"


def test_a_terminal_that_goes_away_ends_the_session(agent):
    s = Session(agent)
    s.expect("# ")
    os.kill(s.pid, signal.SIGKILL)
    s.process.wait()
    wait_until(lambda: closed(agent), "the session's end")
    edit(agent, "true")


def test_an_edit_outlives_agentd(agentd, agent):
    """kill -9 in the middle of a session: it goes on, and what was changed is there in the next one."""
    edit(agent, "echo one > /etc/one")
    p = subprocess.Popen(["agentctl", "env", "edit", agent, "--", "/bin/sh", "-c", "echo two > /etc/two; echo ready; sleep 1000"],
                         stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert p.stdout.readline() == "ready\n"
    systemctl("kill", "--signal=KILL", "--kill-whom=main", "agentd")
    assert agentctl("env", "freeze", agent, check=False).returncode == 3, "it is open"
    agentctl("env", "close", agent)
    assert p.wait(timeout=DEADLINE) == 14
    assert edit(agent, "cat /etc/one /etc/two").stdout == "one\ntwo\n"
    agentctl("env", "freeze", agent)
    assert in_run(agentd, agent, "cat /etc/one /etc/two").split() == ["one", "two"]
    wait_until(nothing_left, "the edit's end")
    assert agentctl("env", "fsck").returncode == 0


def test_an_edit_stands_on_its_generation(agentd, agent):
    edit(agent, "echo one > /etc/one")
    agentctl("env", "freeze", agent)
    edit(agent, "echo two > /etc/two")
    agentctl("env", "rollback", agent, "1")
    agentctl("env", "prune", agent, "--keep=1")
    done = agentctl("env", "freeze", agent, check=False)
    assert done.returncode == 1 and "changed after the edit began" in done.stderr
    agentctl("env", "rollback", agent, "2")
    agentctl("env", "freeze", agent)
    assert in_run(agentd, agent, "cat /etc/one /etc/two").split() == ["one", "two"]


def test_the_same_changes_are_the_same_bytes(agentd, agent, make_agent):
    other = make_agent("true")
    heads = []
    for name in (agent, other):
        edit(name, "echo x > /etc/x; rm /etc/debian_version; touch -d @1 /etc/x /etc; chown 7:8 /etc/x")
        agentctl("env", "freeze", name)
        heads.append(json.loads(agentctl("env", "show", name).stdout)["layers"][-1]["digest"])
    agentctl("env", "discard", other, check=False)
    assert heads[0] == heads[1]


def test_packages(agentd, agent, tmp_path):
    """dpkg and pip install from local files; diff names the packages."""
    root = tmp_path / "p"
    (root / "DEBIAN").mkdir(parents=True)
    (root / "DEBIAN/control").write_text("Package: hello-agent\nVersion: 1.2-3\nArchitecture: all\nMaintainer: x <x@x>\nDescription: x\n")
    (root / "DEBIAN/postinst").write_text("#!/bin/sh\nadduser --system --no-create-home helloagent 2>/dev/null || useradd -r helloagent\n")
    (root / "DEBIAN/postinst").chmod(0o755)
    (root / "usr/bin").mkdir(parents=True)
    (root / "usr/bin/hello-agent").write_text("#!/bin/sh\necho hello\n")
    (root / "usr/bin/hello-agent").chmod(0o755)
    run("dpkg-deb", "--root-owner-group", "--build", root, tmp_path / "p.deb")
    edit(agent, "cat > /tmp/p.deb; dpkg -i /tmp/p.deb", stdin=(tmp_path / "p.deb").read_bytes())
    agentctl("env", "freeze", agent)
    assert in_run(agentd, agent, "hello-agent; id -u helloagent >/dev/null && echo user") == "hello\nuser"
    assert "+ dpkg: hello-agent 1.2-3" in agentctl("env", "diff", agent, "1").stdout


def test_others_may_not(agent, users):
    ref = "root/" + agent
    answers = call_as(users[0], ("DiscardEdit", ref), ("OpenEditTerminal", ref, ["/bin/true"], {"options": {}}), ("ListEdits",))
    assert "error" in answers[0] and "error" in answers[1] and answers[2]["value"] == []
