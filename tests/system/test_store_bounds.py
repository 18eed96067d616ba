# SPDX-License-Identifier: LGPL-2.1-or-later
"""What takes room in the store is refused before it begins where the disk has to be left to others, or its owner has kept
enough already; what makes room goes on.
"""

import json
import os
import pathlib
import tarfile

import dbus
import pytest

from client import OPERATION, PROPERTIES, STATE, agentctl, call_as, run, wait_until
from test_env_edit import edit
from test_env_store import fsck, layer_file, prune
from tiny import write_tiny_image, write_tiny_runner

NO_SPACE = "org.agentd1.Error.NoSpace"
QUOTA = "org.agentd1.Error.QuotaExceeded"


def options(**keys):
    return dbus.Dictionary({k.replace("_", "-"): v for k, v in keys.items()}, signature="sv")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    path = tmp_path_factory.mktemp("tiny") / "image.tar"
    write_tiny_image(path)
    return path


def listing():
    return sorted(os.listdir(f"{STATE}/edits")), sorted(os.listdir(f"{STATE}/tmp"))


def test_less_room_than_is_left_to_others(agentd, make_agent, unique, users, settings, runners, tiny, tmp_path):
    """Each kind of operation that writes is refused at once, by a sentence that says what to do; each other one works."""
    one, other = make_agent(". $AGENT_INPUT_FILE", kind="command"), make_agent("true")
    kept = agentd.execute(one, "echo kept > /home/agent/kept", keep=True)
    assert agentd.finish(kept)[0] == "success"
    edit(one, "echo changed > /etc/changed")
    archive = tmp_path / "e.oci"
    agentctl("env", "export", one, archive)
    runner = write_tiny_runner(tmp_path / "runner", unique(), 10)
    before = listing()
    settings("Retention", KeepFree="1000T")

    def imports(member, name):
        with open(archive if member == "ImportEnvironment" else tiny, "rb") as f:
            return agentd.call(member, name, dbus.types.UnixFd(f), options())

    def session(agent):
        null = os.open("/dev/null", os.O_RDWR)
        try:
            return agentd.call("EditEnvironment", agent, ["true"], *[dbus.types.UnixFd(null)] * 3, options())
        finally:
            os.close(null)

    writes = {
        "image import": lambda: imports("ImportImage", unique("img")),
        "image build": lambda: agentd.call("BuildImage", unique("img"), options()),
        "environment import": lambda: imports("ImportEnvironment", unique()),
        "freeze of an edit": lambda: agentd.call("FreezeEnvironment", one, options()),
        "freeze of a run": lambda: agentd.call("FreezeEnvironment", one, options(from_run=agentd.run_id(kept))),
        "session": lambda: session(one),
        "first session": lambda: session(other),
        "terminal": lambda: agentd.call("OpenEditTerminal", other, ["true"], options()),
        "deploy": lambda: runners.begin(runner),
    }
    for what, start in writes.items():
        with pytest.raises(dbus.DBusException) as e:
            start()
        assert e.value.get_dbus_name() == NO_SPACE, (what, e.value)
        text = e.value.get_dbus_message()
        assert "KeepFree=" in text and "agentctl env prune" in text and "nothing was changed" in text, (what, text)
    wait_until(lambda: listing() == before, "the end of what was begun")

    assert agentctl("env", "diff", one, "head").returncode == 0
    assert fsck(agentd)[0] == "done"
    agentctl("env", "export", one, tmp_path / "again.oci")
    agentctl("env", "discard", one)
    assert prune(agentd) is not None
    agentctl("prune-runs", "--keep=0", "--agent", one, check=False)

    settings("Retention", KeepFree="0")
    edit(one, "echo changed > /etc/changed")
    agentctl("env", "freeze", one)
    edit(other, "true")
    agentctl("env", "discard", other)
    name = unique("img")
    assert agentd.complete(str(imports("ImportImage", name)))[0] == "done"
    agentd.call("RemoveImage", name)


def test_an_open_session_can_be_closed_and_dropped(agentd, make_agent, settings):
    """Without room as well: that is what makes some."""
    name = make_agent("true")
    stdin, stdout = os.pipe(), os.pipe()
    path = str(agentd.call("EditEnvironment", name, ["/bin/cat"],
                           *[dbus.types.UnixFd(fd) for fd in (stdin[0], stdout[1], stdout[1])], options()))
    os.close(stdin[0])
    os.close(stdout[1])
    os.write(stdin[1], b"open\n")
    assert os.read(stdout[0], 100) == b"open\n"
    settings("Retention", KeepFree="1000T")
    assert str(agentd.call("CloseEdit", name)) == path and agentd.complete(path)[0] == "canceled"
    os.close(stdin[1])
    os.close(stdout[0])
    agentctl("env", "discard", name)


def test_a_session_can_be_closed_while_it_begins(agentd, make_agent):
    """Before its unit is there, while that is set up, and just after: it is canceled, and not a failure."""
    systemd = dbus.Interface(agentd.bus.get_object("org.freedesktop.systemd1", "/org/freedesktop/systemd1", introspect=False),
                             "org.freedesktop.systemd1.Manager")
    name = make_agent("true")
    for n in range(12):
        with open("/dev/null", "r+") as null:
            path = str(agentd.call("EditEnvironment", name, ["/bin/sleep", "1000"],
                                   *[dbus.types.UnixFd(null.fileno())] * 3, options()))
        unit = f"agent-op-{path.rsplit('/', 1)[1]}-*"
        wait_until(lambda n=n, unit=unit: n % 4 == 0 or systemd.ListUnitsByPatterns(dbus.Array(signature="s"), [unit]), "its unit", every=0.001)
        assert str(agentd.call("CloseEdit", name)) == path and agentd.complete(path) == ("canceled", "Canceled.")
    agentctl("env", "discard", name)


def test_layers_that_nobody_needs_go_where_room_is_short(agentd, unique, settings, image_with_noise):
    """They are nobody's, so nobody else can be asked to make that room."""
    name = unique("img")
    assert agentd.import_image(name, image_with_noise(1 << 20))[0] == "done"
    digest = next(str(i[1]) for i in agentd.call("ListImages") if i[0] == name)
    agentd.call("RemoveImage", name)
    assert layer_file(digest).exists()
    settings("Retention", KeepFree="1000T")
    with pytest.raises(dbus.DBusException) as e:
        agentd.import_image(name, image_with_noise(1 << 20))
    assert e.value.get_dbus_name() == NO_SPACE
    wait_until(lambda: not layer_file(digest).exists(), "the layer's removal")


@pytest.fixture
def image_with_noise(tiny, unique, tmp_path):
    """Makes files that become images of their own, larger by SIZE bytes."""
    made = []

    def make(size):
        path, noise = pathlib.Path("/var/tmp", unique("image")), tmp_path / unique("noise")
        noise.write_bytes(os.urandom(size))
        with tarfile.open(tiny) as old, tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as new:
            for m in old:  # what is as young as its import is not told from what that makes
                new.addfile(m.replace(mtime=10**9, deep=False), old.extractfile(m) if m.isfile() else None)
            new.add(noise, f"./opt/{noise.name}",
                    filter=lambda i: i.replace(uid=0, gid=0, mode=0o644, mtime=10**9, deep=False))
        path.chmod(0o644)
        made.append(path)
        return path

    yield make
    for path in made:
        path.unlink()


class Keeper:
    """A user of whose layers nobody else has any."""

    def __init__(self, agentd, name):
        self.agentd, self.name = agentd, name
        run("useradd", "--create-home", "--shell", "/bin/bash", name)

    def call(self, *args):
        return call_as(self.name, args)[0]

    def begin(self, member, name, path):
        return self.call(member, name, {"fd": str(path)}, {"options": {}})

    def done(self, answer):
        assert "value" in answer, answer
        assert self.agentd.complete(answer["value"])[0] == "done"

    def refused(self, answer):
        """Begun, and found to be too much when its size was known."""
        assert "value" in answer, answer
        result, detail = self.agentd.complete(answer["value"])
        kind = str(self.agentd.call("Get", OPERATION, "Error", path=answer["value"], interface=PROPERTIES))
        assert (result, kind) == ("failed", "QuotaExceeded") and "MaxLayersPerUser=" in detail, (result, kind, detail)


@pytest.fixture
def keeper(agentd, unique):
    k = Keeper(agentd, unique("k"))
    yield k
    for agent in k.call("ListAgents")["value"]:
        agentctl("env", "discard", agent[0], user=k.name, check=False)
        k.call("RemoveAgent", agent[0])
    for row in k.call("ListImages")["value"]:
        k.call("RemoveImage", row[0])
    run("userdel", "--remove", k.name, check=False)
    prune(agentd)


def test_what_one_user_keeps_in_layers(agentd, make_agent, unique, users, keeper, settings, image_with_noise, tmp_path):
    """Is bounded in bytes: what goes beyond comes to nothing, and with as much as that nothing more is begun."""
    MiB, one, other = 1 << 20, unique("img"), unique("img")
    small, large = image_with_noise(0), image_with_noise(8 * MiB)
    keeper.done(keeper.begin("ImportImage", one, small))
    size = next(row[2] for row in keeper.call("ListImages")["value"] if row[0] == one)
    definition = {"name": "mine", "image": one, "kind": "exec", "command": ["/bin/true"]}
    assert "value" in keeper.call("CreateAgent", json.dumps(definition))
    # Of root, with a layer that is larger than what the user may have beside the image.
    owners = make_agent("true")
    edit(owners, "head -c 8388608 /dev/urandom > /opt/noise")
    agentctl("env", "freeze", owners)
    archive = pathlib.Path("/var/tmp", unique("archive"))
    agentctl("env", "export", owners, archive)
    archive.chmod(0o644)

    settings("Images", MaxLayersPerUser=size + 4 * MiB)
    stored = sorted(os.listdir(f"{STATE}/layers"))
    keeper.refused(keeper.begin("ImportImage", other, large))
    keeper.refused(keeper.begin("ImportEnvironment", "theirs", archive))
    assert [a[0] for a in keeper.call("ListAgents")["value"]] == ["mine"]
    keeper.done(keeper.begin("ImportImage", other, small))  # the same layer, so no more of it
    agentctl("env", "edit", "mine", "--", "/bin/sh", "-c", "head -c 8388608 /dev/urandom > /opt/noise", user=keeper.name)
    keeper.refused(keeper.call("FreezeEnvironment", "mine", {"options": {}}))
    assert sorted(os.listdir(f"{STATE}/layers")) == stored
    assert len(keeper.call("ListGenerations", "mine")["value"]) == 1
    agentctl("env", "edit", "mine", "--", "/bin/sh", "-c", "rm /opt/noise; echo > /opt/little", user=keeper.name)
    agentctl("env", "freeze", "mine", user=keeper.name)

    settings("Images", MaxLayersPerUser=size)
    for answer in (
        keeper.begin("ImportImage", unique("img"), small),
        keeper.begin("ImportEnvironment", "theirs", archive),
        keeper.call("BuildImage", unique("img"), {"options": {}}),
    ):
        assert answer.get("error") == QUOTA and "MaxLayersPerUser=" in answer["message"], answer
        assert "agentctl env prune" in answer["message"]
    name = unique("img")
    assert agentd.import_image(name, large)[0] == "done"  # root's is not bounded
    agentd.call("RemoveImage", name)
    keeper.call("RemoveAgent", "mine")
    keeper.call("RemoveImage", one)
    keeper.call("RemoveImage", other)
    keeper.done(keeper.begin("ImportImage", one, small))
    archive.unlink()
