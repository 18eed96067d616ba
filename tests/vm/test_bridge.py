# SPDX-License-Identifier: LGPL-2.1-or-later
"""Address lists of the bridge's units, which only a kernel of its own is sure to enforce: of the listener for sandbox
hosts elsewhere, and of the service itself, where the daemon's own guard should fail.
"""

import os
import socket
import subprocess

import pytest
from client import run, show, systemctl
from test_bridge_state import test_remote_listener  # noqa: F401 - here it does not skip


@pytest.fixture
def metadata():
    """A machine at a link-local address, as clouds have one for what nobody else must ask; here it listens."""
    run("ip", "netns", "add", "t-meta")
    try:
        run("ip", "link", "add", "v-meta", "type", "veth", "peer", "name", "eth0", "netns", "t-meta")
        run("ip", "addr", "add", "169.254.169.1/24", "dev", "v-meta")
        run("ip", "link", "set", "v-meta", "up")
        run("ip", "-n", "t-meta", "addr", "add", "169.254.169.254/24", "dev", "eth0")
        run("ip", "-n", "t-meta", "link", "set", "eth0", "up")
        server = subprocess.Popen(
            ["ip", "netns", "exec", "t-meta", "python3", "-u", "-c",
             "import socket; s = socket.create_server(('169.254.169.254', 80)); print('ready')\n"
             "while True: s.accept()[0].close()"],
            stdout=subprocess.PIPE,
        )
        assert server.stdout.readline() == b"ready\n"
        yield "169.254.169.254"
        server.kill()
        server.wait()
    finally:
        run("ip", "netns", "del", "t-meta", check=False)


@pytest.mark.parametrize("unit", ["agent-bridged.service", "agent-credentiald.service"])
def test_metadata_is_out_of_reach(metadata, unit):
    """A process in the unit's own cgroup, whatever it runs, does not get there; the same one outside of it does."""
    systemctl("start", unit)
    procs = f"/sys/fs/cgroup{show(unit, 'ControlGroup')}/cgroup.procs"

    def dial(inside):
        pid = os.fork()
        if pid == 0:
            try:
                if inside:
                    with open(procs, "w", encoding="ascii") as f:
                        f.write(str(os.getpid()))
                socket.create_connection((metadata, 80), 10 if inside else 600).close()
                os._exit(0)
            except OSError:
                os._exit(1)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    assert dial(inside=False) == 0
    assert dial(inside=True) == 1
