# SPDX-License-Identifier: LGPL-2.1-or-later
"""What tests use to speak to agentd: programs, the bus as root, and the bus as somebody else.

Nothing here sleeps: ends are waited for by the signals that announce them, with a deadline that only a hung system
meets.
"""

import json
import os
import subprocess

import dbus
import dbus.mainloop.glib
from gi.repository import GLib

BUS_NAME = "org.agentd1"
MANAGER_PATH = "/org/agentd1"
MANAGER = "org.agentd1.Manager"
AGENT = "org.agentd1.Agent"
RUN = "org.agentd1.Run"
OPERATION = "org.agentd1.Operation"
PROPERTIES = "org.freedesktop.DBus.Properties"
TEST_ROOTFS = "/var/cache/agentd-test/rootfs.tar"
RUNTIME = "/run/agentd"
LIVE = "/run/agentd/live"
STATE = "/var/lib/agentd"
DEADLINE = 600 * (3 if os.environ.get("AGENTD_SANITIZE") or os.environ.get("AGENTD_VM") else 1)


# What a caller is told whose question finds agentd between two lives: the bus of its unit, or nobody, answers.
AWAY = tuple(f"org.freedesktop.DBus.Error.{e}" for e in ("NoReply", "ServiceUnknown", "NameHasNoOwner", "Disconnected"))


def run(*argv, user=None, check=True, stdin=None, timeout=DEADLINE):
    """Runs a program, as USER if given; returns the finished process with text output."""
    argv = [str(a) for a in argv]
    if user is not None:
        argv = ["runuser", "-u", user, "--", *argv]
    done = subprocess.run(argv, input=stdin, capture_output=True, text=not isinstance(stdin, bytes), timeout=timeout)
    if check and done.returncode != 0:
        raise AssertionError(f"{argv} ended with {done.returncode}\n{done.stdout}{done.stderr}")
    return done


def agentctl(*argv, **kw):
    return run("agentctl", *argv, **kw)


def busctl(*argv, **kw):
    return run("busctl", *argv, **kw)


def systemctl(*argv, **kw):
    return run("systemctl", *argv, **kw)


def show(unit, name):
    """One property of a unit."""
    return systemctl("show", "--value", "-P", name, unit).stdout.strip()


def wait_until(predicate, what, timeout=DEADLINE, every=0.02):
    """The last resort, for what nobody announces: asks again, at a bounded rate, by the loop's own timer."""
    loop, context = [], GLib.MainContext.default()
    source = GLib.timeout_source_new(int(every * 1000))
    source.set_callback(lambda *_: loop.append(True) or True)
    source.attach(context)
    try:
        while not (value := predicate()):
            assert len(loop) * every < timeout, f"{what} did not come within {timeout} s"
            context.iteration(True)
        return value
    finally:
        source.destroy()


def kill(unit):
    """SIGKILL to its main process; waits until another one is there."""
    pid = int(show(unit, "MainPID"))
    assert pid > 1, f"{unit} is not running"
    os.kill(pid, 9)
    wait_until(
        lambda: int(show(unit, "MainPID")) not in (0, pid) and show(unit, "ActiveState") == "active", f"another {unit}"
    )


def journal(*argv, **kw):
    """The journal as text, with all that was logged by now: what is written to it is not in it at once."""
    run("journalctl", "--sync")
    return run("journalctl", "--no-pager", *argv, **kw).stdout


class Agentd:
    """The manager's object as a client sees it, and the signals it has sent since the session began."""

    def __init__(self):
        dbus.mainloop.glib.DBusGMainLoop(set_as_default=True)
        self.context = GLib.MainContext.default()
        self.finished_runs = {}
        self.finished_operations = {}
        self.changes = {}  # object path: number of PropertiesChanged
        self.owners = 0  # changes of the name's owner
        self.connect()

    def connect(self):
        """To the bus; again where that was restarted."""
        self.bus = dbus.bus.BusConnection(dbus.bus.BusConnection.TYPE_SYSTEM)
        self.bus.set_exit_on_disconnect(False)
        self.owners += 1
        # Matches are on interface and path, not on the sender, so agentd may be restarted meanwhile.
        self.bus.add_signal_receiver(self._run_finished, "RunFinished", MANAGER, None, MANAGER_PATH)
        self.bus.add_signal_receiver(self._operation_finished, "OperationFinished", MANAGER, None, MANAGER_PATH)
        self.bus.add_signal_receiver(
            self._changed, "PropertiesChanged", PROPERTIES, None, None, arg0=RUN, path_keyword="path"
        )
        self.bus.add_signal_receiver(self._owner, "NameOwnerChanged", "org.freedesktop.DBus", None, None, arg0=BUS_NAME)

    def _run_finished(self, run_id, path, result, message):
        self.finished_runs.setdefault(str(path), []).append((str(result), str(message)))

    def _operation_finished(self, op_id, path, result, detail):
        self.finished_operations.setdefault(str(path), []).append((str(result), str(detail)))

    def _changed(self, *_, path):
        self.changes[str(path)] = self.changes.get(str(path), 0) + 1

    def _owner(self, name, old, new):
        self.owners += 1

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

    def drain(self):
        """Takes in the signals that have come already."""
        while self.context.iteration(False):
            pass

    def call(self, member, *args, path=MANAGER_PATH, interface=MANAGER, timeout=DEADLINE):
        proxy = self.bus.get_object(BUS_NAME, path, introspect=False)
        return dbus.Interface(proxy, interface).get_dbus_method(member)(*args, timeout=timeout)

    def get(self, path, name, interface=RUN):
        """A property. Asked for again where agentd went away with the question in hand, or is between two lives: reading may
        be repeated."""

        def ask():
            try:
                return [self.call("Get", interface, name, path=path, interface=PROPERTIES)]
            except dbus.DBusException as e:
                if e.get_dbus_name() not in AWAY:
                    raise
                return None

        return wait_until(ask, f"{name} of {path}")[0]

    def execute(self, agent, text="", **options):
        """ExecuteAgent; options by their names with _ for -. Returns the run's object path."""
        options = {k.replace("_", "-"): v for k, v in options.items()}
        return str(self.call("ExecuteAgent", agent, text, dbus.Dictionary(options, signature="sv")))

    def finish(self, path, timeout=DEADLINE):
        """Waits for the end of a run as a client is told to (org.agentd1(5)); returns (result, message)."""
        seen = None  # it may be over already, and agentd another one since

        def over():
            nonlocal seen
            if path not in self.finished_runs and seen != self.owners:
                seen = self.owners
                if str(self.get(path, "State")) == "finished":
                    return [(str(self.get(path, "Result")), str(self.get(path, "Message")))]
            return self.finished_runs.get(path)

        return self.wait_for(over, timeout, f"the end of {path}")[0]

    def wait_state(self, path, *states, timeout=DEADLINE):
        """Waits until a run is in one of STATES, by its announcements."""
        seen = None

        def there():
            nonlocal seen
            now = (self.changes.get(path, 0), self.owners)
            if now == seen:
                return None
            seen = now
            state = str(self.get(path, "State"))
            return state if state in states else None

        return self.wait_for(there, timeout, f"{path} in state {states}")

    def complete(self, path, timeout=DEADLINE):
        """Waits for the end of an operation; returns (result, detail)."""
        ends = self.wait_for(lambda: self.finished_operations.get(path), timeout, f"the end of {path}")
        assert len(ends) == 1, f"{path} ended more than once: {ends}"
        return ends[0]

    def run_id(self, path):
        return path.rsplit("/", 1)[1]

    def receipt(self, path):
        return json.loads(self.call("GetReceipt", self.run_id(path)))

    def result(self, path):
        text = str(self.call("GetResult", self.run_id(path)))
        return json.loads(text) if text else None

    def log(self, path):
        """The messages of a run's log."""
        fd = self.call("OpenRunLog", self.run_id(path), False).take()
        with os.fdopen(fd) as f:
            return [json.loads(line)["message"] for line in f]

    def import_image(self, name, tar):
        with open(tar, "rb") as f:
            path = str(self.call("ImportImage", name, dbus.types.UnixFd(f), dbus.Dictionary({}, signature="sv")))
        return self.complete(path)

    def freeze(self, agent, run_path, note=""):
        options = dbus.Dictionary({"from-run": self.run_id(run_path), "note": note}, signature="sv")
        return self.complete(str(self.call("FreezeEnvironment", agent, options)))


# Runs as another user: reads calls, answers with what came back or with the error's name and message.
_CALLER = f"TIMEOUT = {DEADLINE}" + r"""
import dbus, json, os, sys
bus = dbus.SystemBus()
def value(v):
    if isinstance(v, dict) and "fd" in v:
        return dbus.types.UnixFd(os.open(v["fd"], os.O_RDONLY))
    if isinstance(v, dict) and "options" in v:
        return dbus.Dictionary(v["options"], signature="sv")
    if isinstance(v, dict) and len(v) == 1 and v.keys() <= {"u", "t"}:
        return dbus.UInt32(v["u"]) if "u" in v else dbus.UInt64(v["t"])
    if isinstance(v, dict) and "struct" in v:
        return dbus.Struct(v["struct"])
    return [value(x) for x in v] if isinstance(v, list) else v
def plain(v):
    if isinstance(v, dbus.types.UnixFd):
        return os.fdopen(v.take(), "rb").read().decode("utf-8", "replace")
    if isinstance(v, (dbus.Struct, list, tuple)):
        return [plain(x) for x in v]
    if isinstance(v, dict):
        return {str(k): plain(x) for k, x in v.items()}
    return v
out = []
for name, path, interface, member, args in json.load(sys.stdin):
    try:
        proxy = bus.get_object(name, path, introspect=False)
        call = dbus.Interface(proxy, interface).get_dbus_method(member)
        out.append({"value": plain(call(*map(value, args), timeout=TIMEOUT))})
    except dbus.DBusException as e:
        out.append({"error": e.get_dbus_name(), "message": e.get_dbus_message()})
json.dump(out, sys.stdout)
"""


def call_as(user, *calls):
    """Calls (MEMBER, ARGS…) of the Manager as USER, or (NAME, PATH, INTERFACE, MEMBER, [ARGS]) of anything. Returns
    {"value"} or {"error", "message"} of each. {"fd": FILE} as an argument is an open file, {"options": {…}} an a{sv},
    {"struct": […]} a struct.
    """
    full = [
        c if len(c) == 5 and isinstance(c[4], list) else (BUS_NAME, MANAGER_PATH, MANAGER, c[0], list(c[1:]))
        for c in calls
    ]
    return json.loads(run("python3", "-c", _CALLER, user=user, stdin=json.dumps(full)).stdout)
