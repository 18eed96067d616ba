# SPDX-License-Identifier: LGPL-2.1-or-later
"""Fixtures of the system tests, which run as root inside a booted machine with the project installed.

Nothing here sleeps: ends are waited for by the signals that announce them, with a deadline that only a hung system
meets. A test's own agents, images and users have names of their own, so that tests do not meet each other's.
"""

import json
import os
import pwd
import subprocess
import tempfile
import uuid

import dbus
import dbus.mainloop.glib
import pytest
from gi.repository import GLib

BUS_NAME = "org.agentd1"
MANAGER_PATH = "/org/agentd1"
MANAGER = "org.agentd1.Manager"
RUN = "org.agentd1.Run"
OPERATION = "org.agentd1.Operation"
TEST_ROOTFS = "/var/cache/agentd-test/rootfs.tar"
DEADLINE = 120 * (5 if os.environ.get("AGENTD_SANITIZE") else 1)


def run(*argv, user=None, check=True, stdin=None, timeout=DEADLINE):
    """Runs a program, as USER if given; returns the finished process with text output."""
    argv = [str(a) for a in argv]
    if user is not None:
        argv = ["runuser", "-u", user, "--", *argv]
    done = subprocess.run(argv, input=stdin, capture_output=True, text=True, timeout=timeout)
    if check and done.returncode != 0:
        raise AssertionError(f"{argv} ended with {done.returncode}\n{done.stdout}{done.stderr}")
    return done


def agentctl(*argv, **kw):
    return run("agentctl", *argv, **kw)


def busctl(*argv, **kw):
    return run("busctl", *argv, **kw)


class Agentd:
    """The manager's object as a client sees it, and the signals it has sent since the session began."""

    def __init__(self):
        dbus.mainloop.glib.DBusGMainLoop(set_as_default=True)
        self.bus = dbus.bus.BusConnection(dbus.bus.BusConnection.TYPE_SYSTEM)
        self.context = GLib.MainContext.default()
        self.finished_runs = {}
        self.finished_operations = {}
        # Matches are on interface and path, not on the sender, so agentd may be restarted meanwhile.
        self.bus.add_signal_receiver(self._run_finished, "RunFinished", MANAGER, None, MANAGER_PATH)
        self.bus.add_signal_receiver(self._operation_finished, "OperationFinished", MANAGER, None, MANAGER_PATH)

    def _run_finished(self, run_id, path, result, message):
        self.finished_runs.setdefault(str(path), []).append((str(result), str(message)))

    def _operation_finished(self, op_id, path, result, detail):
        self.finished_operations.setdefault(str(path), []).append((str(result), str(detail)))

    def wait_for(self, predicate, timeout=DEADLINE, what="an event"):
        """Turns the loop until PREDICATE is true."""
        late = []
        source = GLib.timeout_source_new(int(timeout * 1000))
        source.set_callback(lambda *_: late.append(True))
        source.attach(self.context)
        try:
            while not (value := predicate()):
                assert not late, f"{what} did not come within {timeout} s"
                self.context.iteration(True)
            return value
        finally:
            source.destroy()

    def call(self, member, *args, path=MANAGER_PATH, interface=MANAGER, timeout=DEADLINE):
        proxy = self.bus.get_object(BUS_NAME, path, introspect=False)
        return dbus.Interface(proxy, interface).get_dbus_method(member)(*args, timeout=timeout)

    def get(self, path, name, interface=RUN):
        return self.call("Get", interface, name, path=path, interface="org.freedesktop.DBus.Properties")

    def execute(self, agent, text="", **options):
        """ExecuteAgent; options by their names with _ for -. Returns the run's object path."""
        options = {k.replace("_", "-"): v for k, v in options.items()}
        return str(self.call("ExecuteAgent", agent, text, dbus.Dictionary(options, signature="sv")))

    def finish(self, path, timeout=DEADLINE):
        """Waits for the end of a run; returns (result, message)."""
        return self.wait_for(lambda: self.finished_runs.get(path), timeout, f"the end of {path}")[0]

    def complete(self, path, timeout=DEADLINE):
        """Waits for the end of an operation; returns (result, detail)."""
        return self.wait_for(lambda: self.finished_operations.get(path), timeout, f"the end of {path}")[0]

    def run_id(self, path):
        return str(self.get(path, "Id"))

    def receipt(self, path):
        return json.loads(self.call("GetReceipt", self.run_id(path)))

    def result(self, path):
        text = str(self.call("GetResult", self.run_id(path)))
        return json.loads(text) if text else None


@pytest.fixture(scope="session")
def agentd():
    return Agentd()


@pytest.fixture(scope="session")
def users():
    """Two ordinary users, strangers to each other."""
    for name in ("alice", "bob"):
        try:
            pwd.getpwnam(name)
        except KeyError:
            run("useradd", "--create-home", "--shell", "/bin/bash", name)
    return ("alice", "bob")


@pytest.fixture(scope="session")
def image(agentd):
    """Name of an image with python3, node and the usual tools."""
    name = "test-base"
    with open(TEST_ROOTFS, "rb") as f:
        operation = agentd.call("ImportImage", name, dbus.types.UnixFd(f), dbus.Dictionary({}, signature="sv"))
    result, detail = agentd.complete(str(operation))
    assert result == "done", detail
    return name


@pytest.fixture
def make_agent(agentd, image):
    """Makes agents of a command (a list, or text for /bin/sh -c); removes them after the test."""
    made = []

    def make(command, name=None, **keys):
        if isinstance(command, str):
            command = ["/bin/sh", "-c", command]
        name = name or f"t-{uuid.uuid4().hex[:10]}"
        definition = {"name": name, "image": image, "kind": "exec", "command": command, **keys}
        agentd.call("CreateAgent", json.dumps(definition))
        made.append(name)
        return name

    yield make
    for name in made:
        try:
            agentd.call("RemoveAgent", name)
        except dbus.DBusException:
            pass  # The test that keeps it busy has failed for that already.


@pytest.fixture
def text_file():
    """Writes text to a file that anyone can read; returns its name."""
    names = []

    def write(text):
        with tempfile.NamedTemporaryFile("w", delete=False) as f:
            f.write(text)
        os.chmod(f.name, 0o644)
        names.append(f.name)
        return f.name

    yield write
    for name in names:
        os.unlink(name)
