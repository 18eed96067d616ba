# SPDX-License-Identifier: LGPL-2.1-or-later
"""A disk that is full, at each step: one clear error that says what to do, what was in force stays, nothing is half made, and
all goes on when there is room again. agentd has a state directory of its own for this, on a small file system.
"""

import contextlib
import errno
import json
import os
import pathlib
import re
import tarfile

import dbus
import pytest

from client import OPERATION, PROPERTIES, RUNTIME, STATE, agentctl, journal, kill, run, show, systemctl, wait_until
from runners import layer_file
from test_env_edit import edit
from test_env_store import fsck, prune
from tiny import write_tiny_image, write_tiny_runner

NO_SPACE = "org.agentd1.Error.NoSpace"
FILLER = pathlib.Path(STATE, "filler")
CONF = pathlib.Path("/etc/agentd/agentd.conf.d/91-full-disk.conf")
MiB = 1 << 20


def loop_device(file):
    """Containers have no nodes of loop devices, and the numbers are the whole host's, so somebody may be faster."""
    for _ in range(10):
        name = run("losetup", "--find", check=False).stdout.split()[0]
        with contextlib.suppress(FileExistsError):
            os.mknod(name, 0o600 | 0o060000, os.makedev(7, int(re.search(r"\d+$", name)[0])))
        if run("losetup", name, file, check=False).returncode == 0:
            return name
    raise AssertionError("there is no free loop device")


class SmallDisk:
    def __init__(self, agentd):
        self.agentd = agentd
        self.image = pathlib.Path("/mnt/out/small.img" if os.path.isdir("/mnt/out") else "/var/tmp/small.img")
        self.aside = self.image.parent / "small"

    def begin(self):
        self.aside.mkdir(exist_ok=True)
        write_tiny_image(self.aside / "image.tar")
        with open(self.image, "wb") as f:
            f.truncate(128 * MiB)
        # No room that is kept for root, and few files.
        run("mkfs.ext4", "-q", "-F", "-m", "0", "-N", "2048", self.image)
        self.device = loop_device(self.image)
        systemctl("stop", "agentd.service")
        # Else a session would set aside more than there is (test_env_edit_size.py).
        CONF.parent.mkdir(parents=True, exist_ok=True)
        # And what is refused is to be refused by the disk.
        CONF.write_text("[Edit]\nSizeMax=infinity\n[Retention]\nKeepFree=0\n")
        run("mount", self.device, STATE)
        systemctl("start", "agentd.service")
        assert self.agentd.import_image("tiny", self.aside / "image.tar")[0] == "done"

    def end(self):
        systemctl("stop", "agentd.service")
        for line in open("/proc/1/mountinfo").read().splitlines():  # layers that are mounted from there
            if line.split()[4].startswith(f"{RUNTIME}/layers/"):
                run("umount", "--lazy", line.split()[4])
        run("umount", "--lazy", STATE)
        run("losetup", "--detach", self.device, check=False)
        CONF.unlink()
        systemctl("start", "agentd.service")
        self.image.unlink()

    @contextlib.contextmanager
    def full(self, left=0):
        """LEFT bytes are free, or not a single file."""
        if left == "inodes":
            FILLER.mkdir()
            with contextlib.suppress(OSError):
                for n in range(10000):
                    (FILLER / str(n)).touch()
        else:
            os.sync()  # what is to be written later has its blocks already
            v = os.statvfs(STATE)
            with open(FILLER, "wb") as f:
                with contextlib.suppress(OSError):
                    os.posix_fallocate(f.fileno(), 0, v.f_bavail * v.f_frsize - left)
                while left == 0:  # to the last block
                    try:
                        f.seek(0, os.SEEK_END)
                        f.write(b"\0" * 4096)
                        f.flush()
                    except OSError as e:
                        assert e.errno == errno.ENOSPC
                        break
        try:
            yield
        finally:
            run("rm", "-rf", FILLER)
            os.sync()


@pytest.fixture(scope="module")
def disk(agentd):
    d = SmallDisk(agentd)
    d.begin()
    yield d
    d.end()


@pytest.fixture
def agent(agentd, disk, unique):
    """An agent of the tiny image, whose disk is tidy before and after."""
    name = unique()
    agentd.call("CreateAgent", json.dumps({"name": name, "image": "tiny", "kind": "exec",
                                           "command": ["/bin/sh", "-c", ". $AGENT_INPUT_FILE"]}))
    yield name
    agentctl("env", "discard", name, check=False)
    agentd.call("RemoveAgent", name)
    prune(agentd)
    tidy(agentd)


def tidy(agentd):
    wait_until(lambda: not os.listdir(STATE + "/tmp"), "the end of staging")
    result, detail, document = fsck(agentd)
    assert result == "done" and document["unused"] == [] and document["repaired"] == [], (detail, document)
    odd = [n for d in ("layers", "generations") for n in os.listdir(f"{STATE}/{d}") if not n.startswith("sha256-")]
    assert odd == [] and not [n for n in os.listdir(STATE + "/edits") if n.startswith(".")]


def refused(agentd, start):
    """START begins an operation; that, or its end, is refused for want of room."""
    try:
        path = str(start())
    except dbus.DBusException as e:
        assert e.get_dbus_name() == NO_SPACE, e
        message = e.get_dbus_message()
    else:
        result, message = agentd.complete(path)
        kind = str(agentd.call("Get", OPERATION, "Error", path=path, interface=PROPERTIES))
        assert (result, kind) == ("failed", "NoSpace"), message
    assert "is full" in message and "agentctl env prune" in message and "try again" in message, message


def head(agentd, name):
    return [(str(r[0]), bool(r[5])) for r in agentd.call("ListGenerations", name)]


def options(**keys):
    return dbus.Dictionary(keys, signature="sv")


def works(agentd, name, script="true"):
    path = agentd.execute(name, "set -eu\n" + script)
    result, message = agentd.finish(path)
    assert result == "success", (message, agentd.log(path))


# Of each step, those that come first fail with no room at all, the later ones with a little.
ROOM = [0, 8192, 256 * 1024, MiB, "inodes"]


@pytest.mark.parametrize("room", ROOM)
def test_freeze(agentd, disk, agent, room):
    edit(agent, "head -c 4000000 /dev/urandom > /opt/big; echo yes > /etc/yes")
    before = head(agentd, agent)
    with disk.full(room):
        refused(agentd, lambda: agentd.call("FreezeEnvironment", agent, options()))
        assert head(agentd, agent) == before
        if room == MiB:
            works(agentd, agent, "[ ! -e /etc/yes ]")
        tidy(agentd)
    assert agent in agentctl("env", "edits").stdout
    agentctl("env", "freeze", agent)
    works(agentd, agent, "[ $(cat /etc/yes) = yes ]")


@pytest.mark.parametrize("room", ROOM)
def test_a_run_is_frozen(agentd, disk, agent, room):
    path = agentd.execute(agent, "head -c 4000000 /dev/urandom > /home/agent/big", keep=True)
    assert agentd.finish(path)[0] == "success"
    before = head(agentd, agent)
    with disk.full(room):
        refused(agentd, lambda: agentd.call("FreezeEnvironment", agent, options(**{"from-run": agentd.run_id(path)})))
        assert head(agentd, agent) == before
    assert agentd.freeze(agent, path)[0] == "done"
    works(agentd, agent, "[ -s /home/agent/big ]")


@pytest.mark.parametrize("room", ROOM)
def test_image_import(agentd, disk, agent, unique, room):
    name = unique("i")

    def start():
        with open(disk.aside / "image.tar", "rb") as f:
            return agentd.call("ImportImage", name, dbus.types.UnixFd(f), options())

    # A tar that is not the image's, for the same bytes would be the same layer.
    with tarfile.open(disk.aside / "image.tar", "a") as t:
        (disk.aside / "x").write_bytes(os.urandom(2000))
        t.add(disk.aside / "x", f"./opt/{name}")
    with disk.full(room):
        refused(agentd, start)
        assert name not in [str(i[0]) for i in agentd.call("ListImages")]
    assert agentd.complete(str(start()))[0] == "done"
    agentd.call("RemoveImage", name)


@pytest.mark.parametrize("room", ROOM)
def test_environment_import_and_export(agentd, disk, agent, unique, room):
    name, archive = unique(), disk.aside / "e.oci"
    edit(agent, "head -c 3000000 /dev/urandom > /opt/big")
    agentctl("env", "freeze", agent)
    if room == MiB:
        with disk.full(room), open(FILLER.parent / "archive", "wb") as f:
            path = str(agentd.call("ExportEnvironment", agent, "head", dbus.types.UnixFd(f), options()))
            result, message = agentd.complete(path)
            assert result == "failed" and "no room for the archive where it is written to" in message
            os.unlink(FILLER.parent / "archive")
    agentctl("env", "export", agent, archive)
    agentctl("env", "edit", agent, "--", "/bin/sh", "-c", "rm /opt/big")
    agentctl("env", "freeze", agent)
    top = json.loads(agentctl("env", "show", agent, "2").stdout)["layers"][-1]["digest"]
    agentctl("env", "prune", agent, "--keep=1")
    layer_file(top)

    def start():
        with open(archive, "rb") as f:
            return agentd.call("ImportEnvironment", name, dbus.types.UnixFd(f), options())

    with disk.full(room):
        refused(agentd, start)
        assert name not in [str(a[0]) for a in agentd.call("ListAgents")]
    assert agentd.complete(str(start()))[0] == "done"
    works(agentd, name, "[ -s /opt/big ]")
    agentd.call("RemoveAgent", name)


@pytest.mark.parametrize("room", ROOM)
def test_deploy(agentd, disk, agent, runners, room):
    before = runners.list()
    new = write_tiny_runner(disk.aside / "runner", f"of {agent}", 500000)
    with disk.full(room):
        refused(agentd, lambda: runners.begin(new))
        assert runners.list() == before
        if room == MiB:
            works(agentd, agent)
    runners.deploy(new)


@pytest.mark.parametrize("room", ROOM)
def test_edit(agentd, disk, agent, room):
    """Whoever works in a session sees it as on any full disk, and what was there before stays."""
    edit(agent, "echo before > /etc/before")
    with disk.full(room):
        done = edit(agent, "head -c 4000000 /dev/zero > /opt/big; touch /opt/more", check=False)
        assert done.returncode in (1, 3) and ("No space left" in done.stderr or "is full" in done.stderr), done.stderr
    assert edit(agent, "cat /etc/before; rm -f /opt/big").stdout == "before\n"
    agentctl("env", "freeze", agent)
    works(agentd, agent, "[ $(cat /etc/before) = before ]; [ ! -e /opt/big ]")


@pytest.mark.parametrize("room", [0, "inodes"])
def test_the_first_session(agentd, disk, agent, room):
    with disk.full(room):
        with pytest.raises(dbus.DBusException) as e:
            agentd.call("OpenEditTerminal", agent, ["/bin/true"], options())
        assert e.value.get_dbus_name() == NO_SPACE and "agentctl env prune" in e.value.get_dbus_message()
        assert agent not in agentctl("env", "edits").stdout
        assert not os.listdir(STATE + "/edits")
    edit(agent, "true")


def test_flatten(agentd, disk, agent):
    """A freeze for which there is room just so, and none for the merging that it sets off: that comes to nothing, and is made up
    for after a start.
    """
    for i in range(8):
        edit(agent, f"head -c 300000 /dev/urandom > /opt/{i}")
        agentctl("env", "freeze", agent)
    edit(agent, "echo last > /opt/last")
    layers = json.loads(agentctl("env", "show", agent).stdout)["layers"]
    with disk.full(MiB):
        agentctl("env", "freeze", agent)
        stack = [layer["digest"] for layer in json.loads(agentctl("env", "show", agent).stdout)["layers"]]
        assert stack[:-1] == [layer["digest"] for layer in layers]
        flatten = wait_until(lambda: [p for p in operations(agentd) if p["Kind"] == "flatten" and p["State"] != "running"], "the merging")
        assert [(p["State"], p["Error"]) for p in flatten] == [("failed", "NoSpace")]
        tidy(agentd)
        works(agentd, agent, "[ $(cat /opt/last) = last ]; [ -s /opt/7 ]; [ -s /opt/0 ]")
    systemctl("restart", "agentd.service")
    wait_until(lambda: len(json.loads(agentctl("env", "show", agent).stdout)["layers"]) == 2, "the merging after a start")
    works(agentd, agent, "[ $(cat /opt/last) = last ]; [ -s /opt/7 ]; [ -s /opt/0 ]")


def operations(agentd):
    proxy = agentd.bus.get_object("org.agentd1", "/org/agentd1/operation", introspect=False)
    text = str(dbus.Interface(proxy, "org.freedesktop.DBus.Introspectable").Introspect())
    paths = [f"/org/agentd1/operation/{n}" for n in re.findall(r'<node name="(\d+)"', text)]
    return [{str(k): v for k, v in agentd.call("GetAll", OPERATION, path=p, interface=PROPERTIES).items()} for p in paths]


def until_refused(agentd, name, made):
    """Makes agents until there is no room for a row; the name of the one that was refused."""
    for n in range(2000):
        definition = {"name": f"{name}-{n}", "image": "tiny", "kind": "exec", "command": ["/bin/sh", "x" * 4000]}
        try:
            agentd.call("CreateAgent", json.dumps(definition))
        except dbus.DBusException as e:
            assert e.get_dbus_name() == NO_SPACE, e
            return definition["name"]
        made.append(definition["name"])
    raise AssertionError("the disk was never full")


@pytest.mark.parametrize("room", [0, "inodes"])
def test_calls_and_runs(agentd, disk, agent, unique, room):
    """What is only a row: as long as there is room in the database's log it is taken, then refused; whoever was told of
    success finds it afterwards. A run that ends on a full disk ends when there is room.
    """
    slow = agentd.execute(agent, "until [ -e /home/agent/go ]; do sleep 0.1; done; mkdir /home/agent/done")
    agentd.wait_state(slow, "running")
    unit, made, name = str(agentd.get(slow, "Unit")), [], unique()
    with disk.full(room):
        refused = until_refused(agentd, name, made)
        if room == 0:
            with pytest.raises(dbus.DBusException) as e:
                agentd.call("ExecuteAgent", agent, "x" * 100000, options())
            assert e.value.get_dbus_name() == NO_SPACE
        known = [str(a[0]) for a in agentd.call("ListAgents")]
        assert set(made) <= set(known) and refused not in known
        go(unit)
        wait_until(lambda: show(unit, "SubState") != "running", "the end of the run's program")
    assert agentd.finish(slow)[0] == "success"
    for n in made:
        agentd.call("RemoveAgent", n)
    works(agentd, agent)


def test_an_end_that_cannot_be_stored_is_known_to_the_next(agentd, disk, agent, unique):
    """PID 1 has only the status of the run's first process, which is not that of its command, or none at all."""
    path = agentd.execute(agent, "until [ -e /home/agent/go ]; do sleep 0.1; done; kill -SEGV $$")
    agentd.wait_state(path, "running")
    unit, made = str(agentd.get(path, "Unit")), []
    with disk.full(0):
        until_refused(agentd, unique(), made)
        go(unit)
        folder = pathlib.Path(f"{RUNTIME}/runs/{agentd.run_id(path)}")
        wait_until(lambda: not folder.exists(), "the end of the run's folder")
        assert str(agentd.get(path, "State")) == "running"
        kill("agentd.service")
    assert agentd.finish(path)[0] == "signal" and agentd.receipt(path)["signal"] == 11
    for n in made:
        agentd.call("RemoveAgent", n)
    wait_until(lambda: not os.listdir(f"{RUNTIME}/ended"), "the end of what was kept for that")


@pytest.mark.parametrize("room", [0, "inodes"])
def test_fold(agentd, disk, agent, runners, unique, room):
    """A run that swapped its runner ends on a full disk: it stays a success, and the next one swaps and folds."""
    name = unique()
    agentd.call("CreateAgent", json.dumps({"name": name, "image": "tiny", "kind": "command", "command": ["/bin/true"]}))
    runners.deploy(write_tiny_runner(disk.aside / "runner", f"first of {name}"))
    assert agentd.finish(agentd.execute(name))[0] == "success"
    before = head(agentd, name)
    assert len(before) == 2
    runners.deploy(write_tiny_runner(disk.aside / "runner", f"second of {name}", wait=True))
    path = agentd.execute(name)
    agentd.wait_state(path, "running")
    unit = str(agentd.get(path, "Unit"))
    with disk.full(room):
        go(unit)
        refused = pathlib.Path(f"{RUNTIME}/runs/{agentd.run_id(path)}/rw/upper/home/agent/refused")
        if room == 0:  # not even its result can be taken; a runner asks again
            wait_until(refused.exists, "the result to be refused")
        else:  # that needs no file, but the fold does
            wait_until(lambda: show(unit, "SubState") != "running", "the end of the run's program")
            assert agentd.finish(path)[0] == "success"
            assert head(agentd, name) == before
            assert "No space left" in journal("-b", "-u", "agentd", "--grep", "is not folded", "-n", "1")
    assert agentd.finish(path)[0] == "success"
    path = agentd.execute(name)
    agentd.wait_state(path, "running")
    go(str(agentd.get(path, "Unit")))
    assert agentd.finish(path)[0] == "success"
    after = head(agentd, name)
    assert len(after) == 3 and after[1:] == [(before[0][0], False), before[1]]
    agentd.call("RemoveAgent", name)


def go(unit):
    """Lets a run's program go on that waits for a file."""
    for pid in open(f"/sys/fs/cgroup{show(unit, 'ControlGroup')}/cgroup.procs").read().split():
        with contextlib.suppress(OSError):
            pathlib.Path(f"/proc/{pid}/root/home/agent/go").touch()
            return
    raise AssertionError(f"{unit} has no process")


def several(agent, n):
    """Generations with 3 MB each, side by side on the first one."""
    for i in range(n):
        agentctl("env", "rollback", agent, "1")
        edit(agent, f"head -c 3000000 /dev/urandom > /opt/{i}")
        agentctl("env", "freeze", agent)


def test_prune_on_a_full_disk(agentd, disk, agent):
    """The very thing that the errors ask for."""
    several(agent, 3)
    with disk.full(0):
        assert prune(agentd, agent, keep=1) == (3, 2, pytest.approx(6000000, rel=0.1))
        wait_until(lambda: os.statvfs(STATE).f_bavail * 4096 > 5000000, "the room that it made")
        edit(agent, "echo room > /etc/room")
        agentctl("env", "freeze", agent)
    works(agentd, agent, "[ $(cat /etc/room) = room ]; [ -s /opt/2 ]")


def test_a_start_on_a_full_disk(agentd, disk, agent):
    """agentd comes up, so that it can be asked for a prune."""
    several(agent, 2)
    with disk.full(0):
        systemctl("restart", "agentd.service")
        assert prune(agentd, agent, keep=1)[1] == 1
        works(agentd, agent, "[ -s /opt/1 ]")
    systemctl("restart", "agentd.service")
    works(agentd, agent, "[ -s /opt/1 ]")


@contextlib.contextmanager
def full_run(what):
    """/run has no room for another byte, or another file."""
    options = next(line.split()[3] for line in open("/proc/mounts") if line.split()[1] == "/run")
    before = {k: v for k, _, v in (o.partition("=") for o in options.split(",")) if k in ("size", "nr_inodes")}
    v = os.statvfs("/run")
    used = (v.f_blocks - v.f_bfree) * v.f_frsize
    run("mount", "-o", "remount," + (f"size={used}" if what == "bytes" else f"nr_inodes={v.f_files - v.f_ffree}"), "/run")
    try:
        yield
    finally:
        run("mount", "-o", "remount," + ",".join(f"{k}={v}" for k, v in before.items()), "/run")


@pytest.mark.parametrize("what", ["bytes", "inodes"])
def test_run_directory_is_full(agentd, agent, what):
    """Where the sandboxes are made. A run ends as the platform's fault, which names the step and says why; what was there stays,
    and with room it goes on.
    """
    path = agentd.execute(agent)
    assert agentd.finish(path)[0] == "success"
    unit = str(agentd.get(path, "Unit"))  # what PID 1 has of it in /run would make room later
    wait_until(lambda: show(unit, "LoadState") == "not-found", f"the end of {unit}")
    before = head(agentd, agent)
    with full_run(what):
        result, message = agentd.finish(agentd.execute(agent))
        assert result == "sandbox-failed" and "step " in message, (result, message)
        assert "No space left" in message and "make room there" in message, message
        edit(agent, "true", check=False)  # may or may not do
    assert head(agentd, agent) == before
    agentctl("env", "discard", agent, check=False)
    wait_until(lambda: not os.listdir(f"{RUNTIME}/runs"), "the end of what was begun")
    assert agentd.finish(agentd.execute(agent))[0] == "success"
    edit(agent, "true")
    agentctl("env", "freeze", agent)
