# SPDX-License-Identifier: LGPL-2.1-or-later
"""A session in a terminal: what people press and do there, and what happens to it when somebody else does something."""

import fcntl
import os
import struct
import subprocess
import termios

import pytest

from client import agentctl, kill, run, systemctl, wait_until
from test_env_edit import Session, closed


@pytest.fixture
def agent(make_agent):
    name = make_agent("true")
    yield name
    agentctl("env", "close", name, check=False)
    agentctl("env", "discard", name, check=False)


def sane(fd):
    """Whether the terminal echoes and waits for whole lines, as shells expect it."""
    return termios.tcgetattr(fd)[3] & (termios.ECHO | termios.ICANON | termios.ISIG) == \
        termios.ECHO | termios.ICANON | termios.ISIG


def test_a_login_shell(agent):
    """Without a command; Ctrl-D ends it, and the exit status of a shell is nobody's failure."""
    s = Session(agent)
    s.expect("# ")
    s.send("shopt -q login_shell && echo login-$((1+1)); echo at=$HOME:$PWD:$(id -un)\n")
    s.expect("login-2")
    s.expect("at=/root:/root:root")
    s.expect("# ")
    s.send("(exit 5)\n")
    s.expect("# ")  # not before: what is typed while the command runs goes to the line's editor of the kernel
    assert not sane(s.fd), "keys go to the session as they are"
    s.send("\x04")
    s.expect("logout")
    assert s.wait() == 0


def test_exit_status_of_a_command(agent):
    s = Session(agent, "--", "/bin/sh", "-c", "tty; exit 3")
    s.expect("/dev/")
    s.expect("exit status 3")
    assert s.wait() == 1
    s = Session(agent, "--", "/bin/true")
    assert s.wait() == 0
    s = Session(agent, "--", "/bin/sh", "-c", "kill -9 $$")
    s.expect("agentctl: ")
    assert s.wait() == 1


def test_the_size_is_right_from_the_start(agent):
    s = Session(agent, "--", "/bin/sh", "-c", "read -r x; stty size; read -r x; stty size", size=(21, 77))
    s.send("\n")  # typed ahead, too
    s.expect("21 77")
    assert b"\x1b]" not in s.all, "nothing is asked of, or done to, the terminal itself"
    fcntl.ioctl(s.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 44, 133, 0, 0))
    os.kill(s.pid, 28)  # SIGWINCH: the kernel tells only the foreground of the terminal itself
    wait_until(lambda: terminal_size(agent) == (44, 133), "the new size")
    s.send("\n")
    s.expect("44 133")
    assert s.wait() == 0


def terminal_size(agent):
    """As the session's outer terminal has it."""
    unit = next(u.split()[0] for u in run("systemctl", "list-units", "--plain", "--no-legend", "agent-op-*").stdout.splitlines()
                if f"/{agent} " in u)
    tty = run("systemctl", "show", "--value", "-P", "TTYPath", unit).stdout.strip()
    fd = os.open(tty, os.O_RDWR | os.O_NOCTTY)
    try:
        return struct.unpack("HHHH", fcntl.ioctl(fd, termios.TIOCGWINSZ, b"\0" * 8))[:2]
    finally:
        os.close(fd)


def test_it_goes_on_while_agentd_is_away(agent):
    s = Session(agent)
    s.expect("# ")
    systemctl("restart", "agentd")
    s.send("echo still-$((40+2))\n")
    s.expect("still-42")
    kill("agentd")
    s.send("echo still-$((41+2)); exit\n")
    s.expect("still-43")
    assert s.wait() == 0
    assert closed(agent)


def test_somebody_else_closes_it(agent):
    s = Session(agent)
    s.expect("# ")
    s.send("echo x > /etc/x; echo done-$((1+1))\n")
    s.expect("done-2")
    assert agentctl("env", "close", agent).returncode == 0
    assert closed(agent)
    s.expect("Canceled")
    assert sane(s.fd), "the terminal is as it was"
    assert s.wait() == 14
    assert agentctl("env", "edit", agent, "--", "cat", "/etc/x").stdout == "x\n"


def test_a_connection_that_is_lost(agent):
    """sshd and the like hang up; what ran in the session is told, and goes."""
    s = Session(agent, "--", "/bin/sh", "-c", "trap 'echo hup > /etc/hup; exit 0' HUP; echo ready; while :; do read -r x || :; done")
    s.expect("ready")
    os.close(s.fd)
    s.process.wait()
    wait_until(lambda: closed(agent), "the session's end")


def test_with_the_terminal_of_another_program(agent):
    """script(1) has one of its own."""
    out = run("script", "-qec", f"agentctl env edit {agent} -- /bin/sh -c 'test -t 0 && test -t 1 && stty -a | head -c 5'", "/dev/null",
              stdin="")
    assert "speed" in out.stdout


def test_no_shell_without_a_terminal(agent):
    done = subprocess.run(["agentctl", "env", "edit", agent], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.returncode == 2 and "terminal" in done.stderr
    assert agent not in agentctl("env", "edits").stdout
