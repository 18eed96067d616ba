# SPDX-License-Identifier: LGPL-2.1-or-later
"""Fixtures of the system tests, which run as root inside a booted machine with the project installed.

A test's own agents, images and users have names of their own, so that tests do not meet each other's.
"""

import json
import os
import pathlib
import pwd
import random
import subprocess
import tempfile
import uuid

import dbus
import pytest

import inside
import mirror as mirror_module
import runners as runners_module
from client import DEADLINE, TEST_ROOTFS, Agentd, agentctl, run, systemctl
from upstream import Upstream

NPM = "/var/cache/agentd-test/node_modules/npm"
EVERYTHING = [{"methods": ["GET", "POST", "PUT"], "paths": ["/*"]}]


# Some tests make runners that carry a node, or archives of whole environments: not in /tmp, which is memory.
if os.path.isdir("/mnt/out"):
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", "/mnt/out")


def pytest_collection_modifyitems(items):
    """In another order for whoever asks, since no test may need what another one did: AGENTD_TEST_ORDER=reverse turns the
    files round, a number shuffles files and the tests in each."""
    order = os.environ.get("AGENTD_TEST_ORDER")
    if not order:
        return
    files = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    names = list(files)
    if order == "reverse":
        names.reverse()
    else:
        r = random.Random(int(order))
        r.shuffle(names)
        for tests in files.values():
            r.shuffle(tests)
    items[:] = [item for name in names for item in files[name]]


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
    name = "test-base"  # kept: a machine that stays up need not import it again
    if name in [str(row[0]) for row in agentd.call("ListImages")]:
        return name
    result, detail = agentd.import_image(name, TEST_ROOTFS)
    assert result == "done", detail
    return name


@pytest.fixture(scope="session")
def clients_image(agentd, tmp_path_factory):
    """The tests' image with npm in it, which is no package there."""
    name = "test-clients"
    if name not in [str(row[0]) for row in agentd.call("ListImages")]:
        if not os.path.isdir(NPM):
            pytest.skip("npm is not there")
        # On tmpfs, away from the machine's small root.
        path = tmp_path_factory.mktemp("image") / "rootfs.tar"
        run("cp", TEST_ROOTFS, path)
        run("tar", "--append", "-f", path, "--transform", "s,^,opt/,", "-C", os.path.dirname(NPM), "npm")
        result, detail = agentd.import_image(name, path)
        assert result == "done", detail
        path.unlink()
    return name


@pytest.fixture(scope="session")
def unique():
    return lambda prefix="t": f"{prefix}-{uuid.uuid4().hex[:10]}"


@pytest.fixture
def make_agent(agentd, image, unique):
    """Makes agents of a command (a list, or text for /bin/sh -c); removes them after the test."""
    made = []

    def make(command, name=None, kind="exec", **keys):
        if isinstance(command, str):
            command = ["/bin/sh", "-c", command]
        name = name or unique()
        definition = {"name": name, "image": image, "kind": kind, "command": command, **keys}
        agentd.call("CreateAgent", json.dumps(definition))
        made.append(name)
        return name

    yield make
    for name in made:
        for row in agentd.call("ListRuns", dbus.Dictionary({"agent": name}, signature="sv")):
            if row[4] != "finished":
                try:
                    agentd.call("CancelRun", row[0])
                    agentd.finish(str(row[1]))
                except (dbus.DBusException, AssertionError):
                    pass  # The test that left it has failed for that already.
        try:
            agentd.call("RemoveAgent", name)
        except dbus.DBusException:
            pass


@pytest.fixture(scope="session")
def probe_agent(agentd, image, unique):
    """An agent that runs the Python program it gets as its input."""
    name = unique("probe")
    agentd.call(
        "CreateAgent",
        json.dumps(
            {
                "name": name,
                "image": image,
                "kind": "command",
                "command": inside.COMMAND,
                "concurrency": 50,
                "limits": {"timeout": 7200},
            }
        ),
    )
    yield name
    agentd.call("RemoveAgent", name)


@pytest.fixture
def probe(agentd, probe_agent):
    """Runs a Python program in a sandbox; returns the JSON that it printed. AGENT is another agent of that kind."""

    def run_inside(code, agent=probe_agent, **options):
        path = agentd.execute(agent, inside.PRELUDE + code, **options)
        result, message = agentd.finish(path)
        assert result == "success", f"{result}: {message}\n" + "\n".join(agentd.log(path)[-20:])
        return agentd.result(path)["output"]

    return run_inside


@pytest.fixture
def caller(make_agent, probe):
    """Runs a program in a sandbox of its own agent, which may call SERVICES."""

    def call(code, *services, **keys):
        return probe(code, agent=make_agent(inside.COMMAND, kind="command", services=list(services), **keys))

    return call


@pytest.fixture
def outside():
    """Runs the same kind of program in a plain unit of the host, as root or as USER; returns the JSON it printed."""

    def run_outside(code, user=None):
        argv = [
            "systemd-run",
            "--quiet",
            "--wait",
            "--collect",
            "--pipe",
            *(["--uid", user] if user else []),
            *inside.COMMAND,
        ]
        done = subprocess.run(argv, input=inside.PRELUDE + code, capture_output=True, text=True, timeout=DEADLINE)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run_outside


@pytest.fixture(scope="session")
def upstream():
    """An HTTPS server of this process, trusted by bridge and strong room, which may dial it."""
    server = Upstream()
    yield server
    server.close()


@pytest.fixture(scope="session")
def gate_service(agentd, upstream, unique):
    """A service without a secret, of which everything is allowed."""
    name = unique("gate")
    agentd.call(
        "CreateService",
        json.dumps({"name": name, "base_url": upstream.url, "auth": {"kind": "none"}, "allow": EVERYTHING}),
    )
    yield name
    agentd.call("RemoveService", name)


@pytest.fixture
def make_service(agentd, upstream, unique):
    """Adds services of the test's own upstream, with their secrets; removes them after the test."""
    made = []

    def make(secret=None, allow=None, name=None, **keys):
        name = name or unique("s")
        keys.setdefault("auth", {"kind": "bearer" if secret else "none"})
        keys.setdefault("base_url", upstream.url)
        agentd.call(
            "CreateService", json.dumps({"name": name, "allow": EVERYTHING if allow is None else allow, **keys})
        )
        made.append(name)
        if secret:
            agentctl("credential", "set", name, stdin=secret)
        return name

    yield make
    for name in made:
        agentctl("credential", "remove", name, check=False)
        try:
            agentd.call("RemoveService", name)
        except dbus.DBusException:
            pass  # An agent that names it goes later; its name is nobody else's.


@pytest.fixture
def settings():
    """Writes a section of agentd's settings, instead of what was written before, and restarts it; puts everything back. A list
    is a key that is given several times."""
    conf = pathlib.Path("/etc/agentd/agentd.conf.d/50-test.conf")
    conf.parent.mkdir(parents=True, exist_ok=True)

    def put(section, **keys):
        lines = [f"{k}={v}" for k, values in keys.items() for v in (values if isinstance(values, list) else [values])]
        conf.write_text("\n".join([f"[{section}]", *lines, ""]))
        systemctl("restart", "agentd.service")

    yield put
    conf.unlink(missing_ok=True)
    systemctl("restart", "agentd.service")


@pytest.fixture
def text_file():
    """Writes text to a file that anyone can read; returns its name."""
    names = []

    def write(text):
        mode = "wb" if isinstance(text, bytes) else "w"
        with tempfile.NamedTemporaryFile(mode, delete=False) as f:
            f.write(text)
        os.chmod(f.name, 0o644)
        names.append(f.name)
        return f.name

    yield write
    for name in names:
        os.unlink(name)


@pytest.fixture
def runners(agentd):
    """Deploys runners; the one from before is current again after the test."""
    r = runners_module.Runners(agentd)
    yield r
    r.restore()


@pytest.fixture(scope="session")
def mirror(upstream):
    """A plain HTTP server of this process, by a name of its own, that bridge and strong room may dial."""
    server = mirror_module.Mirror()
    yield server
    server.close()


@pytest.fixture
def shell(make_agent):
    """Opens sessions in edits of agents of its own; discards them after the test."""
    opened = []

    def open_one(*options, name=None):
        s = mirror_module.Shell(name or make_agent(inside.COMMAND, kind="command"), *options)
        opened.append(s)
        return s

    yield open_one
    for s in opened:
        s.end()
    for name in {s.agent for s in opened}:
        agentctl("env", "discard", name, check=False)
