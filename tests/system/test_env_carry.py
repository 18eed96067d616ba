# SPDX-License-Identifier: LGPL-2.1-or-later
"""Environments carried away and brought back."""

import hashlib
import io
import json
import os
import pathlib
import subprocess
import tarfile

import pytest

from client import STATE, agentctl, wait_until
from test_env_edit import edit, in_run
from test_env_store import fsck, layer_file, prune

SCRIPT = "cat > /tmp/s; . /tmp/s"


@pytest.fixture
def agent(agentd, make_agent):
    name = make_agent(SCRIPT, kind="command")
    edit(name, "echo one > /etc/one; rm /etc/debian_version")
    agentctl("env", "freeze", name, "--note", "first")
    edit(name, "echo two > /etc/two")
    agentctl("env", "freeze", name)
    return name


def generations(agentd, name):
    return [str(r[0]) for r in agentd.call("ListGenerations", name)]


def layers(name):
    return [x["digest"] for x in json.loads(agentctl("env", "show", name).stdout)["layers"]]


def test_there_and_back(agentd, agent, unique, tmp_path):
    file, again = tmp_path / "e.tar", tmp_path / "again.tar"
    head = agentctl("env", "export", agent, file).stdout.strip()
    assert head == generations(agentd, agent)[0]
    with open(again, "wb") as f:
        subprocess.run(["agentctl", "env", "export", agent, "-"], stdout=f, check=True)
    assert file.read_bytes() == again.read_bytes() and not os.path.exists(f"{file}.part")
    # An OCI image layout: each blob has its name's digest, descriptors tell their sizes.
    with tarfile.open(file) as t:
        names = {m.name: m for m in t.getmembers()}
        index = json.load(t.extractfile("index.json"))
        manifest = json.load(t.extractfile("blobs/sha256/" + index["manifests"][0]["digest"][7:]))
        assert json.load(t.extractfile("oci-layout")) == {"imageLayoutVersion": "1.0.0"}
        for d in [manifest["config"], *manifest["layers"]]:
            member = names["blobs/sha256/" + d["digest"][7:]]
            assert member.size == d["size"]
            assert "sha256:" + hashlib.file_digest(t.extractfile(member), "sha256").hexdigest() == d["digest"]
        assert [d["digest"] for d in manifest["layers"]] == layers(agent)

    # Another host has none of it: here all that is the agent's own goes first.
    own, before = layers(agent)[1:], generations(agentd, agent)
    agentd.call("RemoveAgent", agent)
    prune(agentd)
    assert not any(layer_file(d).exists() for d in own)
    other = unique()
    assert agentctl("env", "import", other, file).stdout.strip() == head
    try:
        assert generations(agentd, other) == before and layers(other)[1:] == own
        assert in_run(agentd, other, "cat /etc/one /etc/two; ls /etc/debian_version 2>&1 | grep -c 'No such'").split() == ["one", "two", "1"]
        assert [str(r[4]) for r in agentd.call("ListGenerations", other)][1] == "first"
        # Into one that is there: the head moves, once.
        agentctl("env", "rollback", other, "1")
        assert agentctl("env", "import", other, file).stdout.strip() == head
        assert generations(agentd, other) == before
        assert fsck(agentd)[0] == "done"
    finally:
        agentd.call("RemoveAgent", other)
    wait_until(lambda: not os.listdir(STATE + "/tmp"), "the end of staging")


def repack(source, target, change):
    """CHANGE gets (name, bytes) and gives what goes into the copy, or None."""
    with tarfile.open(source) as t, tarfile.open(target, "w") as out:
        for m in t.getmembers():
            data = change(m.name, t.extractfile(m).read())
            if data is not None:
                m.size = len(data)
                out.addfile(m, io.BytesIO(data))


def blob(data):
    return "blobs/sha256/" + hashlib.sha256(data).hexdigest()


def rewrite(source, target, change):
    """As repack(), for the configuration: the digests above it are made right again."""
    with tarfile.open(source) as t:
        index = json.load(t.extractfile("index.json"))
        old = index["manifests"][0]["digest"]
        manifest = json.load(t.extractfile("blobs/sha256/" + old[7:]))
        old_config = manifest["config"]["digest"]
        config = json.load(t.extractfile("blobs/sha256/" + old_config[7:]))
        change(config["org.agentd1.environment"], manifest)
        config["rootfs"]["diff_ids"] = [d["digest"] for d in manifest["layers"]]
        files = {m.name: t.extractfile(m).read() for m in t.getmembers()
                 if m.name not in ("index.json", "blobs/sha256/" + old[7:], "blobs/sha256/" + old_config[7:])}
    text = json.dumps(config).encode()
    files[blob(text)] = text
    manifest["config"].update(digest="sha256:" + blob(text)[13:], size=len(text))
    text = json.dumps(manifest).encode()
    files[blob(text)] = text
    index["manifests"][0].update(digest="sha256:" + blob(text)[13:], size=len(text))
    files["index.json"] = json.dumps(index).encode()
    with tarfile.open(target, "w") as out:
        for name, data in files.items():
            m = tarfile.TarInfo(name)
            m.size = len(data)
            out.addfile(m, io.BytesIO(data))


def test_wrong_archives_are_refused(agentd, agent, unique, tmp_path, make_agent):
    good, bad = tmp_path / "good.tar", tmp_path / "bad.tar"
    agentctl("env", "export", agent, good)
    before = generations(agentd, agent)
    stored = sorted(os.listdir(pathlib.Path(STATE, "layers")))
    top = layers(agent)[-1]

    def refused(words, name=agent):
        done = agentctl("env", "import", name, bad, check=False)
        assert done.returncode == 1 and words in done.stderr, done.stderr
        assert generations(agentd, agent) == before and sorted(os.listdir(pathlib.Path(STATE, "layers"))) == stored
        wait_until(lambda: not os.listdir(STATE + "/tmp"), "the end of staging")

    flip = lambda name, data: data[:100] + bytes([data[100] ^ 1]) + data[101:] if name.endswith(top[7:]) else data
    repack(good, bad, flip)
    refused("does not have the digest of its name")
    repack(good, bad, lambda name, data: None if name.endswith(top[7:]) else data)
    refused("does not contain the blob")
    bad.write_bytes(good.read_bytes()[:-2_000_000])
    refused("")
    bad.write_bytes(b"\0" * 100)
    refused("")
    rewrite(good, bad, lambda c, m: c["generations"][-1].update(digest="sha256:" + "0" * 64))
    refused("does not have that digest")
    rewrite(good, bad, lambda c, m: c["generations"][-1].update(
        manifest=c["generations"][-1]["manifest"].replace("x86_64", "s390x")))
    refused("")
    rewrite(good, bad, lambda c, m: c.update(extra=1))
    refused("unknown key")
    # A layer that is named but not brought: it might be somebody else's.
    rewrite(good, bad, lambda c, m: m["layers"].pop())
    repack(bad, tmp_path / "worse.tar", lambda name, data: None if name.endswith(top[7:]) else data)
    (tmp_path / "worse.tar").rename(bad)
    refused("does not bring all of its layers")
    # No EROFS image.
    junk = b"junk" * 1000
    rewrite(good, bad, lambda c, m: m["layers"].append({"mediaType": "application/vnd.erofs.layer.v1", "size": len(junk),
                                                        "digest": "sha256:" + hashlib.sha256(junk).hexdigest()}))
    with tarfile.open(bad, "a") as t:
        info = tarfile.TarInfo(blob(junk))
        info.size = len(junk)
        t.addfile(info, io.BytesIO(junk))
    refused("no intact EROFS image")
    # A service that the new owner does not have.
    rewrite(good, bad, lambda c, m: c["definition"].update(services=["not-there"]))
    refused("needs the service", unique())
