# SPDX-License-Identifier: LGPL-2.1-or-later
"""Layers on a file system with fs-verity, which this kernel has: sealed when they enter the store, told apart in no time, and
a block that went bad on the disk reaches nobody.
"""

import os
import pathlib
import re
import shutil
import subprocess

import dbus
import pytest

from client import STATE, agentctl, run, systemctl, wait_until
from test_env_generations import freeze_change
from test_env_store import fsck, layer_file, top_layer

DISK = pathlib.Path("/mnt/verity.img")
SEALS = pathlib.Path(STATE, "seals")
LOOK = "md5sum < ~/noise; cat ~/me"
# Few bytes to read, for what reads all of them. Nothing here needs a runner.
PROGRAMS = ("sh", "cat", "head", "md5sum")
COMMAND = ["/bin/sh", "-c", '. "$AGENT_INPUT_FILE"']


@pytest.fixture(scope="module")
def disk(agentd):
    """The store on ext4 with the feature "verity" (blocks as large as the tree's), in a file; the store from before is back afterwards."""
    systemctl("stop", "agentd.service")
    run("truncate", "-s", "300M", DISK)
    run("mkfs.ext4", "-q", "-b", "4096", "-O", "verity", DISK)
    run("mount", "-o", "loop", DISK, STATE)
    try:
        systemctl("start", "agentd.service")
        yield DISK
    finally:
        systemctl("stop", "agentd.service")
        for layer in os.listdir("/run/agentd/layers"):
            run("umount", f"/run/agentd/layers/{layer}", check=False)
        run("umount", "-l", STATE)
        DISK.unlink()
        systemctl("start", "agentd.service")


@pytest.fixture(scope="module")
def image(agentd, disk, tmp_path_factory):
    root = tmp_path_factory.mktemp("root")
    (root / "usr/bin").mkdir(parents=True)
    (root / "etc").mkdir()
    for name in ("bin", "lib", "lib64"):
        (root / name).symlink_to("usr/" + name)
    for program in PROGRAMS:
        shutil.copy(f"/usr/bin/{program}", root / "usr/bin")
        for library in re.findall(r"/\S+", run("ldd", f"/usr/bin/{program}").stdout):
            target = root / "usr" / library.removeprefix("/usr").lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(library, target)
    run("tar", "-C", root, "-cf", f"{root}.tar", ".")
    result, detail = agentd.import_image("sealed", f"{root}.tar")
    assert result == "done", detail
    return "sealed"


@pytest.fixture
def agent(agentd, make_agent):
    name = make_agent(COMMAND)
    freeze_change(agentd, name, f"echo {name} > ~/me; head -c 4000000 /dev/urandom > ~/noise")
    return name


def said(agentd, path):
    return "\n".join(line for line in agentd.log(path) if not line.startswith("Run "))


def drop_caches():
    run("sync")
    pathlib.Path("/proc/sys/vm/drop_caches").write_text("3")


class Flip:
    """A bit of a layer's block, on the disk under the file system."""

    def __init__(self, digest, block):
        inode = layer_file(digest).stat().st_ino
        run("sync")
        at = run("debugfs", "-R", f"bmap <{inode}> {block}", DISK).stdout.strip()
        assert re.fullmatch(r"[1-9][0-9]*", at), at
        self.at = int(at) * 4096 + 100

    def _turn(self):
        with open(DISK, "r+b") as f:
            f.seek(self.at)
            byte = f.read(1)
            f.seek(self.at)
            f.write(bytes([byte[0] ^ 1]))
            os.fsync(f.fileno())
        drop_caches()

    def __enter__(self):
        self._turn()

    def __exit__(self, *_):
        self._turn()


def release_layers(agentd):
    """So that nothing of them is in memory."""
    agentctl("env", "prune")
    for name in os.listdir("/run/agentd/layers"):
        run("umount", f"/run/agentd/layers/{name}", check=False)
    drop_caches()


def is_sealed(file):
    return "V" in run("lsattr", file).stdout.split()[0]


def test_sealed_and_told_in_no_time(agentd, agent):
    digest = top_layer(agent)
    assert is_sealed(layer_file(digest))
    assert re.fullmatch(r"sha256:[0-9a-f]{64}\n", (SEALS / digest.replace(":", "-")).read_text())
    with pytest.raises(PermissionError):
        layer_file(digest).open("r+b")
    for options in ({}, {"verify": True}):
        path = agentd.execute(agent, LOOK, **options)
        assert agentd.finish(path)[0] == "success" and said(agentd, path).endswith(agent)
        assert agentd.receipt(path)["verified"] == "fs-verity"


def test_a_block_that_went_bad(agentd, agent):
    """Nobody reads it; who asked for a check is told which layer it is, and what hangs on it."""
    digest = top_layer(agent)
    blocks = layer_file(digest).stat().st_size // 4096
    path = agentd.execute(agent, LOOK)
    assert agentd.finish(path)[0] == "success"
    before = said(agentd, path)
    release_layers(agentd)
    with Flip(digest, blocks // 2):
        path = agentd.execute(agent, LOOK + "; test -s ~/noise && md5sum ~/noise || exit 7", verify=True)
        result, message = agentd.finish(path)
        assert result == "sandbox-failed" and f"The layer {digest} is damaged" in message, (result, message)
        assert f"generation 2 of {agent} (head)" in message
        result, detail, document = fsck(agentd)
        assert result == "failed" and [p["kind"] for p in document["problems"]] == ["layer-damaged"] and digest in detail
        # One that did not ask gets an error for what it reads, never the wrong bytes.
        path = agentd.execute(agent, "md5sum < ~/noise || exit 7")
        assert agentd.finish(path)[0] == "exit-code"
        release_layers(agentd)
    path = agentd.execute(agent, LOOK, verify=True)
    assert agentd.finish(path)[0] == "success" and said(agentd, path) == before


def test_a_bad_superblock(agentd, agent):
    """It cannot even be mounted; the run says what is wrong instead."""
    digest = top_layer(agent)
    release_layers(agentd)
    with Flip(digest, 0):
        result, message = agentd.finish(agentd.execute(agent, LOOK, verify=True))
        assert result == "sandbox-failed" and f"The layer {digest} is damaged" in message, message
        release_layers(agentd)
    assert agentd.finish(agentd.execute(agent, LOOK, verify=True))[0] == "success"


def test_another_file_in_its_place(agentd, agent):
    """Sealed as well, by whoever put it there: told without reading it, whether or not anybody asked."""
    digest = top_layer(agent)
    file, aside = layer_file(digest), layer_file(digest).with_name("aside")
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.rename(aside)
    try:
        file.write_bytes(data)
        file.chmod(0o444)
        result, message = agentd.finish(agentd.execute(agent, LOOK, verify=True))
        assert result == "sandbox-failed" and f"The layer {digest} is damaged" in message
        # Not sealed any more: read in full even where nobody asked.
        assert agentd.finish(agentd.execute(agent, LOOK))[0] == "sandbox-failed"
        subprocess.run(["python3", "-c", ENABLE, str(file)], check=True)
        assert is_sealed(file)
        result, message = agentd.finish(agentd.execute(agent, LOOK))
        assert result == "sandbox-failed" and f"The layer {digest} is damaged" in message
    finally:
        file.unlink()
        aside.rename(file)
    assert agentd.finish(agentd.execute(agent, LOOK))[0] == "success"


# FS_IOC_ENABLE_VERITY with SHA-256 and blocks of 4096 bytes.
ENABLE = """
import fcntl, os, struct, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
fcntl.ioctl(fd, 0x40806685, struct.pack("<IIII112x", 1, 1, 4096, 0))
"""


def test_a_copy_that_was_brought_back(agentd, agent):
    """It has no seal: the next run reads it in full once and seals it again."""
    digest = top_layer(agent)
    file, copy = layer_file(digest), layer_file(digest).with_name("copy")
    copy.write_bytes(file.read_bytes())
    copy.chmod(0o444)
    copy.rename(file)
    assert not is_sealed(file)
    path = agentd.execute(agent, LOOK)
    assert agentd.finish(path)[0] == "success" and agentd.receipt(path)["verified"] is None
    assert is_sealed(file)
    path = agentd.execute(agent, LOOK)
    assert agentd.finish(path)[0] == "success" and agentd.receipt(path)["verified"] == "fs-verity"


def test_seals_go_with_their_layers(agentd, make_agent):
    name = make_agent(COMMAND)
    freeze_change(agentd, name, f"echo {name} > ~/me")
    digest = top_layer(name)
    seal = SEALS / digest.replace(":", "-")
    assert seal.exists()
    agentd.call("RemoveAgent", name)
    agentd.call("PruneEnvironments", "", dbus.Dictionary({}, signature="sv"))
    wait_until(lambda: not layer_file(digest).exists(), "the layer's end")
    assert not seal.exists()
    assert fsck(agentd)[0] == "done"
