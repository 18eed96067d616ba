# SPDX-License-Identifier: LGPL-2.1-or-later
"""Images in the forms of others: what skopeo, podman, buildah and docker write, and what is wrong with some of it."""

import ctypes
import gzip
import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile

import pytest

from client import STATE, agentctl, run, wait_until
from test_env_store import layer_file, prune

TAR = "application/vnd.oci.image.layer.v1.tar"
CONFIG = "application/vnd.oci.image.config.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"


def zstd(data):
    """systemd brings the library."""
    z = ctypes.CDLL("libzstd.so.1")
    z.ZSTD_compressBound.restype = z.ZSTD_compress.restype = ctypes.c_size_t
    room = ctypes.create_string_buffer(z.ZSTD_compressBound(ctypes.c_size_t(len(data))))
    n = z.ZSTD_compress(room, ctypes.c_size_t(len(room)), data, ctypes.c_size_t(len(data)), 3)
    return room.raw[:n]


PACKERS = {"": bytes, "+gzip": gzip.compress, "+zstd": zstd}


def digest(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


def tar_of(*entries):
    """(NAME, CONTENT): None is a directory, "-> X" a symlink, "=> X" a hard link, else a file's."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as t:
        for name, data in entries:
            m = tarfile.TarInfo(name)
            if data is None:
                m.type, m.mode = tarfile.DIRTYPE, 0o755
                t.addfile(m)
            elif isinstance(data, str) and data[:3] in ("-> ", "=> "):
                m.type, m.linkname = tarfile.SYMTYPE if data[0] == "-" else tarfile.LNKTYPE, data[3:]
                t.addfile(m)
            else:
                data = data.encode() if isinstance(data, str) else data
                m.size, m.mode = len(data), 0o644
                t.addfile(m, io.BytesIO(data))
    return out.getvalue()


class Oci:
    """An image layout; whatever is wrong is changed before write()."""

    def __init__(self, *layers, packers=("", "+gzip"), arch="amd64"):
        self.raw, self.arch, self.blobs = layers, arch, {}
        self.packed = [(packers[i % len(packers)], PACKERS[packers[i % len(packers)]](raw)) for i, raw in enumerate(layers)]
        self.config = {"architecture": arch, "os": "linux", "rootfs": {"type": "layers", "diff_ids": [digest(x) for x in layers]}}
        self.layers = [self.blob(data, TAR + suffix) for suffix, data in self.packed]
        self.config_type, self.manifest, self.platform = CONFIG, {}, None
        self.index = None

    def blob(self, data, kind):
        data = data if isinstance(data, bytes) else json.dumps(data).encode()
        self.blobs[digest(data)] = data
        return {"mediaType": kind, "digest": digest(data), "size": len(data)}

    def descriptor(self):
        config = self.blob(self.config, self.config_type)
        d = self.blob({"schemaVersion": 2, "config": config, "layers": self.layers, **self.manifest}, MANIFEST)
        return d | ({"platform": self.platform} if self.platform else {})

    def write(self, path, first=()):
        index = self.index or {"schemaVersion": 2, "manifests": [self.descriptor()]}
        write_files(path, {**dict.fromkeys(first), "blobs": None, "blobs/sha256": None,
                           **{"blobs/sha256/" + d[7:]: data for d, data in self.blobs.items()},
                           "index.json": json.dumps(index).encode(), "oci-layout": b'{"imageLayoutVersion":"1.0.0"}'})


def write_files(path, files):
    with tarfile.open(path, "w") as t:
        for name, data in files.items():
            m = tarfile.TarInfo(name)
            if data is None:
                m.type = tarfile.DIRTYPE
            elif isinstance(data, str):
                m.type, m.linkname = tarfile.SYMTYPE, data
            else:
                m.size = len(data)
            t.addfile(m, io.BytesIO(data) if isinstance(data, bytes) else None)


BASE = [("etc", None), ("etc/a", "a"), ("etc/b", "b"), ("usr/bin", None), ("usr/bin/x", "x"), ("opt/d", None), ("opt/d/one", "1"),
        ("opt/d/sub", None), ("opt/d/sub/two", "2"), ("opt/l", "-> d"), ("opt/gone", None), ("opt/gone/x", "x"), ("opt/h", "=> etc/b")]
TOP = [("etc/.wh.a", ""), ("etc/c", "c"), ("opt/d/.wh..wh..opq", ""), ("opt/d/new", "n"), ("opt/l", None), ("opt/l/inside", "i"),
       ("opt/gone", "a file now"), (".wh..wh.plnk", "")]


@pytest.fixture
def imported(agentd, unique, tmp_path):
    """Imports a file; gives its tree."""
    made = []

    def do(file):
        name = unique("i")
        result, detail = agentd.import_image(name, file)
        assert result == "done", detail
        made.append(name)
        layer = next(str(i[1]) for i in agentd.call("ListImages") if i[0] == name)
        tree = tmp_path / name
        run("fsck.erofs", f"--extract={tree}", layer_file(layer))
        return tree, layer

    yield do
    for name in made:
        agentd.call("RemoveImage", name)
    prune(agentd)


@pytest.fixture
def refused(agentd, unique, tmp_path):
    def check(words, file=tmp_path / "i.tar"):
        before = sorted(os.listdir(STATE + "/layers"))
        result, detail = agentd.import_image(unique("i"), file)
        assert result == "failed" and words in detail, (result, detail)
        wait_until(lambda: not os.listdir(STATE + "/tmp"), "the end of staging")
        assert sorted(os.listdir(STATE + "/layers")) == before
        assert not os.path.exists("/var/tmp/agentd-escaped")

    return check


def check_tree(tree):
    assert sorted(os.listdir(tree / "opt/d")) == ["new"] and os.listdir(tree / "opt/l") == ["inside"]
    assert (tree / "opt/gone").read_text() == "a file now"
    assert {"b", "c"} <= set(os.listdir(tree / "etc")) and not (tree / "etc/a").exists()
    assert (tree / "opt/h").stat().st_ino == (tree / "etc/b").stat().st_ino
    assert not list(tree.rglob(".wh.*"))


@pytest.mark.parametrize("packers", [("",), ("+gzip",), ("+zstd",), ("+zstd", "+gzip")], ids=lambda p: "".join(p) or "plain")
def test_layers(imported, tmp_path, packers):
    Oci(tar_of(*BASE), tar_of(*TOP), packers=packers).write(tmp_path / "i.tar")
    tree, layer = imported(tmp_path / "i.tar")
    check_tree(tree)
    # Whatever it was packed with, and where the tar begins with the directory itself, it is the same image.
    Oci(tar_of(*BASE), tar_of(*TOP)).write(tmp_path / "j.tar", first=["./"])
    assert imported(tmp_path / "j.tar")[1] == layer


def docker(path, links=False):
    """What "docker save" writes, and "podman save" by default; LINKS: a layer that is there twice is a link."""
    layers = [tar_of(*BASE), tar_of(("srv/x", "x")), tar_of(*TOP)]
    names = [f"{i:064x}/layer.tar" for i in range(len(layers))]
    files = dict(zip(names, layers))
    if links:
        files = {names[0]: f"../{'e' * 64}.tar", names[1]: layers[1], names[2]: layers[2], "e" * 64 + ".tar": layers[0]}
    config = {"architecture": "amd64", "os": "linux", "rootfs": {"type": "layers", "diff_ids": [digest(x) for x in layers]}}
    files["c.json"] = json.dumps(config).encode()
    files["manifest.json"] = json.dumps([{"Config": "c.json", "RepoTags": ["x:y"], "Layers": names}]).encode()
    write_files(path, files)


@pytest.mark.parametrize("links", [False, True], ids=["files", "links"])
def test_docker_archives(imported, tmp_path, links):
    docker(tmp_path / "i.tar", links)
    check_tree(imported(tmp_path / "i.tar")[0])


def test_one_of_several_machines(imported, refused, tmp_path):
    """An index within an index, a signature for a machine called "unknown", and another machine's image before ours."""
    ours, other = Oci(tar_of(*BASE), tar_of(*TOP)), Oci(tar_of(*BASE), arch="s390x")
    ours.platform, other.platform = ({"architecture": a, "os": "linux"} for a in ("amd64", "s390x"))
    windows = Oci(tar_of(*BASE))
    windows.platform = {"architecture": "amd64", "os": "windows"}
    entries = [other.descriptor(), windows.descriptor(), {**other.descriptor(), "platform": {"architecture": "unknown", "os": "unknown"}},
               ours.descriptor()]
    inner = ours.blob({"schemaVersion": 2, "mediaType": INDEX, "manifests": entries}, INDEX)
    ours.index = {"schemaVersion": 2, "manifests": [inner]}
    ours.blobs |= other.blobs
    ours.write(tmp_path / "i.tar")
    check_tree(imported(tmp_path / "i.tar")[0])

    other.index = {"schemaVersion": 2, "manifests": entries[:3]}
    other.write(tmp_path / "i.tar")
    refused("no image for this machine")
    # As skopeo writes it: one manifest, and nothing but the configuration says which machine.
    alone = Oci(tar_of(*BASE), arch="arm64")
    alone.write(tmp_path / "i.tar")
    refused("only one for arm64")
    alone = Oci(tar_of(*BASE))
    alone.config["os"] = "windows"
    alone.write(tmp_path / "i.tar")
    refused("windows")
    several = Oci(tar_of(*BASE))
    several.index = {"schemaVersion": 2, "manifests": [several.descriptor(), several.descriptor()]}
    several.write(tmp_path / "i.tar")
    refused("several images")


def deep(o):
    d = o.descriptor()
    for _ in range(10):
        d = o.blob({"schemaVersion": 2, "manifests": [d]}, INDEX)
    o.index = {"schemaVersion": 2, "manifests": [d]}


def circle(o):
    o.index = {"schemaVersion": 2, "manifests": [{"mediaType": INDEX, "digest": digest(b"x"), "size": 1}]}


WRONG = {
    "diff_id": (lambda o: o.config["rootfs"].update(diff_ids=[digest(b"x"), *o.config["rootfs"]["diff_ids"][1:]]),
                "does not have the digest that the image's configuration says"),
    "fewer diff_ids": (lambda o: o.config["rootfs"]["diff_ids"].pop(), "another number of layers"),
    "diff_id that is none": (lambda o: o.config["rootfs"].update(diff_ids=["md5:1", "x"]), "not valid"),
    "layer's size": (lambda o: o.layers[0].update(size=7), "size that is said"),
    "layer's digest": (lambda o: o.layers[0].update(digest=digest(b"elsewhere")), "does not contain the blob"),
    "blob's digest": (lambda o: o.blobs.update({o.layers[0]["digest"]: b"x" * o.layers[0]["size"]}), "digest of its name"),
    "sha512": (lambda o: o.layers[0].update(digest="sha512:" + "0" * 128), "not valid"),
    "negative size": (lambda o: o.layers[0].update(size=-1), "not valid"),
    "foreign layer": (lambda o: o.layers[0].update(mediaType="application/vnd.docker.image.rootfs.foreign.diff.tar.gzip",
                                                   urls=["https://example.com/x"]), "somewhere else"),
    "encrypted layer": (lambda o: o.layers[1].update(mediaType=TAR + "+gzip+encrypted"), "not known"),
    "unknown layer": (lambda o: o.layers[1].pop("mediaType"), "not known"),
    "helm chart": (lambda o: setattr(o, "config_type", "application/vnd.cncf.helm.config.v1+json"), "something else"),
    "index and image at once": (lambda o: o.manifest.update(manifests=[]), "at once"),
    "no layers": (lambda o: (o.layers.clear(), o.config["rootfs"]["diff_ids"].clear()), "no layers"),
    "layers that are none": (lambda o: o.manifest.update(layers={}), "no manifest"),
    "deep index": (deep, "too deeply"),
    "missing manifest": (circle, "does not contain"),
    "not JSON": (lambda o: setattr(o, "index", [1]), "no manifest"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_layouts_are_refused(refused, tmp_path, name):
    change, words = WRONG[name]
    o = Oci(tar_of(*BASE), tar_of(*TOP))
    change(o)
    o.write(tmp_path / "i.tar")
    refused(words)


def test_what_is_twice_or_damaged(refused, tmp_path):
    o = Oci(tar_of(*BASE))
    o.write(tmp_path / "i.tar")
    with tarfile.open(tmp_path / "i.tar", "a") as t:
        m = tarfile.TarInfo("index.json")
        m.size = 2
        t.addfile(m, io.BytesIO(b"{}"))
    refused("twice")
    # A layer that is shorter than its compression says has the digest of its name, and is damaged all the same.
    o = Oci(tar_of(*BASE))
    cut = gzip.compress(tar_of(*BASE))[:-9]
    o.layers = [o.blob(cut, TAR + "+gzip")]
    o.write(tmp_path / "i.tar")
    refused("truncated gzip")


TRICKS = {
    "above": [("../../etc/x", "x")],
    "through what a layer below has": [("opt/l/../../x", "x")],
    "below a symlink": [("opt/l/x", "x")],
    "whiteout of a dot": [("etc/.wh...", "")],
    "below a symlink to outside": [("opt/out", "-> /var/tmp"), ("opt/out/agentd-escaped", "x")],
    "hard link through a symlink": [("opt/out", "-> /etc"), ("opt/mine", "=> opt/out/passwd")],
    "hard link outside": [("opt/mine", "=> ../../../etc/passwd")],
}


@pytest.mark.parametrize("name", TRICKS)
def test_tricks_of_layers_are_refused(refused, tmp_path, name):
    Oci(tar_of(*BASE), tar_of(*TRICKS[name])).write(tmp_path / "i.tar")
    refused("")


def test_whiteouts_stay_inside(imported, tmp_path):
    """Below a symlink that leads out, in this layer or in the one before: nothing is removed there."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("here")
    base = [*BASE, ("opt/out", f"-> {outside}"), ("opt/up", f"-> ../../../../../..{outside}")]
    top = [("opt/out/.wh.file", ""), ("opt/up/.wh.file", ""), ("opt/out/.wh..wh..opq", ""), ("opt/up/.wh..wh..opq", "")]
    Oci(tar_of(*base), tar_of(*top)).write(tmp_path / "i.tar")
    tree, _ = imported(tmp_path / "i.tar")
    assert (outside / "file").read_text() == "here" and os.path.islink(tree / "opt/out")


# ---- with the programs of others, where they are installed ----

needs_skopeo = pytest.mark.skipif(not shutil.which("skopeo"), reason="skopeo is not installed")


def skopeo(*argv):
    return subprocess.run(["skopeo", "--insecure-policy", *argv], check=True, capture_output=True, text=True).stdout


@needs_skopeo
def test_skopeo_copies_of_images(imported, tmp_path):
    """From what we take to all that it can write, and each of those is the same image again."""
    Oci(tar_of(*BASE), tar_of(*TOP)).write(tmp_path / "i.tar")
    layer = imported(tmp_path / "i.tar")[1]
    source = f"oci-archive:{tmp_path}/i.tar"
    for target in (f"oci-archive:{tmp_path}/a.tar:x", f"docker-archive:{tmp_path}/d.tar:x:y"):
        skopeo("copy", source, target)
        assert imported(target.split(":")[1])[1] == layer
    skopeo("copy", "--dest-compress-format=zstd", source, f"oci:{tmp_path}/layout:x")
    run("tar", "-C", tmp_path / "layout", "-cf", tmp_path / "z.tar", ".")
    assert imported(tmp_path / "z.tar")[1] == layer


@needs_skopeo
def test_skopeo_carries_environments(agentd, make_agent, unique, tmp_path):
    from test_env_generations import freeze_change

    name = make_agent("cat > /tmp/s; . /tmp/s", kind="command")
    freeze_change(agentd, name, "echo carried > ~/me")
    file = tmp_path / "e.tar"
    head = agentctl("env", "export", name, file).stdout.strip()
    seen = json.loads(skopeo("inspect", f"oci-archive:{file}"))
    assert seen["Labels"] == {"org.agentd1.agent": name, "org.agentd1.head": head} and seen["Architecture"] == "amd64"
    assert seen["Layers"] == [x["digest"] for x in json.loads(agentctl("env", "show", name).stdout)["layers"]]
    skopeo("copy", f"oci-archive:{file}", f"dir:{tmp_path}/dir")
    skopeo("copy", f"dir:{tmp_path}/dir", f"oci-archive:{tmp_path}/again.tar:{name}")
    other = unique()
    assert agentctl("env", "import", other, tmp_path / "again.tar").stdout.strip() == head
    agentd.call("RemoveAgent", other)
