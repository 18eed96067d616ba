# SPDX-License-Identifier: LGPL-2.1-or-later
"""Environments in which something else is where the platform mounts something (or on the way to it), and where nothing that is
read may be a file: it is refused, by its path, and nothing hangs or is written outside of the environment.
"""

import hashlib
import io
import os
import pathlib
import shutil
import tarfile

import dbus
import pytest

from client import OPERATION, PROPERTIES, agentctl, run
from test_bad_images import tar
from test_env_carry import blob, rewrite
from test_env_edit import edit
from tiny import write_tiny_image

EMPTY = dbus.Dictionary({}, signature="sv")
VICTIM = pathlib.Path("/srv/agentd-victim")  # is on the host, and in no environment

# Path that is to be named: how it is made in an edit.
CHANGES = {
    "opt/agentd/runner": f"rm -rf /opt/agentd/runner; ln -s {VICTIM} /opt/agentd/runner",
    "opt/agentd": "rm -rf /opt/agentd; mkdir -p /home/agent/x/y; ln -s /home/agent/x/y /opt/agentd",
    "opt": "rm -rf /opt; ln -s /home/agent /opt",
    "opt ": "rm -rf /opt; ln -s opt /opt",
    "opt  ": "rm -rf /opt; mkfifo /opt",
    "opt   ": "rm -rf /opt; : > /opt",
    "home": f"mv /home /usr/home; ln -s {VICTIM} /home",
    "home/agent": "rm -rf /home/agent; ln -s /usr /home/agent",
    "home/agent ": "rm -rf /home/agent; mkfifo /home/agent",
    "var": "rm -rf /var; ln -s usr /var",
    "etc/hosts": "rm -f /etc/hosts; mkfifo /etc/hosts",
    "etc/hostname": f"rm -f /etc/hostname; ln -s {VICTIM}/hostname /etc/hostname",
    "etc/machine-id": "rm -f /etc/machine-id; mkdir /etc/machine-id",
}


@pytest.fixture(autouse=True)
def victim():
    """Nobody goes there."""
    VICTIM.mkdir(mode=0o700)
    before = os.stat(VICTIM)
    yield
    after = os.stat(VICTIM)
    assert os.listdir(VICTIM) == [] and (after.st_mode, after.st_uid, after.st_mtime_ns, after.st_ctime_ns) == (
        before.st_mode, before.st_uid, before.st_mtime_ns, before.st_ctime_ns)
    VICTIM.rmdir()


@pytest.fixture(scope="module")
def tiny(agentd, unique, tmp_path_factory):
    """An image with mkfifo."""
    path, name = tmp_path_factory.mktemp("tiny") / "image.tar", unique("tiny")
    write_tiny_image(path)
    with tarfile.open(path, "a") as t:
        t.add("/usr/bin/mkfifo", "./usr/bin/mkfifo", filter=lambda i: i.replace(uid=0, gid=0, deep=False))
        for library in ("libselinux.so.1", "libpcre2-8.so.0"):
            t.add(os.path.realpath(f"/usr/lib/x86_64-linux-gnu/{library}"), f"./usr/lib/x86_64-linux-gnu/{library}",
                  filter=lambda i: i.replace(uid=0, gid=0, deep=False))
    assert agentd.import_image(name, path)[0] == "done"
    yield name
    agentd.call("RemoveImage", name)


@pytest.fixture
def agent(agentd, make_agent, tiny):
    return make_agent(". $AGENT_INPUT_FILE", image=tiny)


def head(agentd, name):
    return [str(r[0]) for r in agentd.call("ListGenerations", name) if r[5]]


@pytest.mark.parametrize("path", CHANGES)
def test_an_edit_that_takes_a_mount_point_away(agentd, agent, path):
    """Cannot be frozen, by a sentence that names it; the edit can be mended, or discarded."""
    before = head(agentd, agent)
    edit(agent, CHANGES[path])
    operation = str(agentd.call("FreezeEnvironment", agent, EMPTY))
    result, detail = agentd.complete(operation)
    kind = str(agentd.call("Get", OPERATION, "Error", path=operation, interface=PROPERTIES))
    assert (result, kind) == ("failed", "NotFreezable") and f"/{path.strip()} is no " in detail, (result, kind, detail)
    assert head(agentd, agent) == before
    edit(agent, "echo again > /etc/again", check=False)  # may be refused; must not hang
    agentctl("env", "discard", agent)
    assert agentd.finish(agentd.execute(agent, "true"))[0] == "success"


def test_what_is_replaced_by_links_and_comes_back(agentd, agent):
    """What is of a moment only is not frozen, whatever it was replaced by; what was removed is made anew."""
    edit(agent, f"cd /; rm -rf var/tmp opt etc/hosts home/agent; ln -s {VICTIM} /var/tmp; echo x > /etc/x")
    agentctl("env", "freeze", agent)
    path = agentd.execute(agent, "set -e; [ -d /var/tmp -a ! -L /var/tmp ]; : > /home/agent/x; cat /etc/x")
    assert agentd.finish(path)[0] == "success", agentd.log(path)


def test_special_files_of_an_edit(agentd, agent):
    """FIFOs and sockets where nothing is mounted: they are files as others, and nobody opens them."""
    edit(agent, "mkfifo -m 666 /home/agent/fifo /etc/os-release /usr/bin/node /etc/environment; ln -s loop /etc/loop;"
                "mkdir -p /var/lib/dpkg /home/agent/.cache/v8-compile-cache;"
                "mkfifo /var/lib/dpkg/status /home/agent/.cache/v8-compile-cache/x;"
                "ln -s .node-compile-cache /home/agent/.cache/node-compile-cache")
    agentctl("env", "freeze", agent)
    agentctl("env", "diff", agent, "1")
    path = agentd.execute(agent, "set -e; [ -p /home/agent/fifo -a -p /etc/os-release -a -L /etc/loop ]")
    assert agentd.finish(path)[0] == "success", agentd.log(path)
    edit(agent, "[ -p /home/agent/fifo ]")
    agentctl("env", "discard", agent)


def test_an_archive_whose_layer_takes_a_mount_point_away(agentd, agent, unique, tmp_path):
    """Nobody looks into a layer that is imported as it is; no run begins on it, and says why."""
    edit(agent, "echo x > /etc/x")
    agentctl("env", "freeze", agent)
    good, bad, other = tmp_path / "good.tar", tmp_path / "bad.tar", unique()
    agentctl("env", "export", agent, good)
    for n, (path, target) in enumerate({"opt": "/home/agent", "opt/agentd/runner": VICTIM, "home/agent": VICTIM,
                                        "tmp": VICTIM, "etc/hosts": VICTIM, "run": "var"}.items()):
        tree, image = tmp_path / f"tree{n}", tmp_path / f"layer{n}"
        (tree / path).parent.mkdir(parents=True)
        (tree / path).symlink_to(target)
        run("mkfs.erofs", "-T0", image, tree)
        data = image.read_bytes()
        new = "sha256:" + hashlib.sha256(data).hexdigest()

        def change(config, manifest):
            top = manifest["layers"][-1]
            g = config["generations"][-1]
            g["manifest"] = g["manifest"].replace(top["digest"], new)
            g["digest"] = config["head"] = "sha256:" + hashlib.sha256(g["manifest"].encode()).hexdigest()
            top.update(digest=new, size=len(data))

        rewrite(good, bad, change)
        with tarfile.open(bad, "a") as t:
            info = tarfile.TarInfo(blob(data))
            info.size = len(data)
            t.addfile(info, io.BytesIO(data))
        agentctl("env", "import", other, bad)
        result, message = agentd.finish(agentd.execute(other, "true"))
        assert result == "sandbox-failed" and f"/{path} in the environment" in message.replace(
            "/opt/agentd/runner", "/opt" if path == "opt" else "/opt/agentd/runner"), (path, result, message)
        assert "symbolic link" in message, message
        agentd.call("RemoveAgent", other)
        shutil.rmtree(tree)
    assert agentd.finish(agentd.execute(agent, "true"))[0] == "success"


SHELL = ("bin/sh", "file", "x")
IMAGES = {
    "opt": ("opt", "symlink", "/home/agent"),
    "opt/agentd": ("opt/agentd", "symlink", "../home/agent"),
    "home": ("home", "symlink", str(VICTIM)),
    "home/agent": ("home/agent", "fifo", None),
    "run": ("run", "fifo", None),
    "proc": ("proc", "symlink", "proc"),
    "dev": ("dev", "file", "x"),
    "tmp": ("tmp", "symlink", str(VICTIM)),
    "var/tmp": ("var", "symlink", "/usr"),
    "opt/agentd/runner": ("opt/agentd/runner", "symlink", str(VICTIM)),
}


@pytest.mark.parametrize("path", IMAGES)
def test_an_image_without_a_mount_point(agentd, text_file, unique, path):
    result, detail = agentd.import_image(unique("img"), text_file(tar(SHELL, IMAGES[path])))
    assert result == "failed" and f"/{path}" in detail, (result, detail)
    assert "symbolic link" in detail or "not a directory" in detail, detail


def test_an_image_with_special_files(agentd, make_agent, text_file, unique, tiny, tmp_path):
    """Where its files are looked at, too."""
    path = tmp_path / "image.tar"
    write_tiny_image(path)
    with tarfile.open(path, "a") as t:
        for name in ("home/agent/fifo", "etc/hosts", "etc/machine-id", "etc/os-release", "usr/bin/node"):
            info = tarfile.TarInfo("./" + name)
            info.type, info.mode = tarfile.FIFOTYPE, 0o666
            t.addfile(info)
        info = tarfile.TarInfo("./etc/loop")
        info.type, info.linkname = tarfile.SYMTYPE, "loop"
        t.addfile(info)
    name = unique("img")
    assert agentd.import_image(name, path)[0] == "done"
    agent = make_agent("set -e; [ -f /etc/hosts -a -p /home/agent/fifo -a -p /usr/bin/node ]", image=name)
    run_path = agentd.execute(agent, "")
    assert agentd.finish(run_path)[0] == "success", agentd.log(run_path)
    # With a runner, whose node is that FIFO.
    with_runner = make_agent("true", kind="command", image=name)
    result, message = agentd.finish(agentd.execute(with_runner, ""))
    assert result == "sandbox-failed" and "node" in message, (result, message)
    agentd.call("RemoveImage", name)
