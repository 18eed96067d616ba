# SPDX-License-Identifier: LGPL-2.1-or-later
"""Archives that are small and become large, or never end, or have names and owners that nobody has: refused or contained, with a
reason; and the unit in which they are unpacked.
"""

import gzip
import io
import os
import pathlib
import tarfile
import threading

import dbus
import pytest

from client import DEADLINE, STATE, agentctl, run, show, systemctl, wait_until
from test_bad_images import no_units, sparse, store
from test_env_store import layer_file, prune

MIB = 1 << 20
CONF = pathlib.Path("/etc/agentd/agentd.conf.d/bombs-test.conf")


BOUNDS = "[Images]\nMaxSize=64M\nMaxEntries=3000\n"


@pytest.fixture(scope="module", autouse=True)
def small_bounds(agentd):
    CONF.parent.mkdir(parents=True, exist_ok=True)
    CONF.write_text(BOUNDS)
    systemctl("restart", "agentd.service")
    yield
    CONF.unlink()
    systemctl("restart", "agentd.service")


def member(name, kind=tarfile.REGTYPE, data=b"", **attributes):
    info = tarfile.TarInfo(name)
    info.type, info.mode = kind, 0o755
    for key, value in attributes.items():
        setattr(info, key, value)
    info.size = len(data)
    return info, data


ROOT = [member("bin", tarfile.DIRTYPE), member("etc", tarfile.DIRTYPE), member("usr/bin", tarfile.DIRTYPE)]


def tar(*members, fmt=tarfile.PAX_FORMAT):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=fmt) as t:
        for info, data in [*ROOT, *members]:
            t.addfile(info, io.BytesIO(data))
    return out.getvalue()


def patched(name, offset, raw):
    """A header of format ustar with RAW at OFFSET, its checksum made right."""
    data = bytearray(tar(member(name), fmt=tarfile.USTAR_FORMAT))
    at = data.find(name.encode())
    data[at + offset : at + offset + len(raw)] = raw
    data[at + 148 : at + 156] = b" " * 8
    data[at + 148 : at + 156] = b"%06o\0 " % sum(data[at : at + 512])
    return bytes(data)


def pax(**records):
    info, data = member("x", data=b"x")
    info.pax_headers = records
    return tar((info, data))


def many_headers(n):
    """Headers for headers, and never a file."""
    info = tarfile.TarInfo("././@PaxHeader")
    info.type, info.size = tarfile.XHDTYPE, 512
    return tar()[:1536] + (info.tobuf() + b"12 path=aaa\n".ljust(512, b"\0")) * n


def nested(data, times):
    for _ in range(times):
        data = gzip.compress(data, 1)
    return data


def oci_bomb():
    from test_images_of_others import Oci

    o = Oci(tar(member("zeros", data=bytes(200 * MIB))), packers=("+gzip",))
    path = pathlib.Path("/var/tmp/bomb.tar")
    o.write(path)
    data = path.read_bytes()
    path.unlink()
    return data


BOMBS = {
    "10 GB of a hole": (lambda: sparse(10 << 30), "larger than is allowed"),
    "200 MB of zeros in 200 kB": (lambda: gzip.compress(tar(member("zeros", data=bytes(200 * MIB))), 1), "larger than is allowed"),
    "the same twice packed": (lambda: nested(tar(member("zeros", data=bytes(200 * MIB))), 2), "larger than is allowed"),
    "in a layer": (oci_bomb, "larger than is allowed"),
    "forty times packed": (lambda: nested(tar(), 40), ""),
    "many files": (lambda: tar(*[member(f"f/{i}") for i in range(4000)]), "more files than are allowed"),
    "many links": (lambda: tar(member("f"), *[member(f"l/{i}", tarfile.LNKTYPE, linkname="f") for i in range(4000)]),
                   "more files than are allowed"),
    "many files of one name": (lambda: tar(*[member("f") for i in range(4000)]), "more files than are allowed"),
    "headers without end": (lambda: many_headers(100_000), ""),
    "header of 100 MB": (lambda: pax(comment="x" * (100 * MIB)), ""),
    "deeper than a path can be": (lambda: tar(member("d/" * 3000 + "f")), "too long"),
    "name too long": (lambda: tar(member("n" * 256)), "too long"),
    "target too long": (lambda: tar(member("l", tarfile.SYMTYPE, linkname="t" * 5000)), ""),
    "owner out of range": (lambda: pax(uid=str(1 << 32)), "no valid id"),
    "owner that means nobody": (lambda: pax(gid=str((1 << 32) - 1)), "no valid id"),
    "owner below zero": (lambda: patched("negative", 108, b"\xff" * 8), "no valid id"),
    "socket of a kind unknown": (lambda: patched("odd", 156, b"V"), ""),
}


@pytest.mark.parametrize("name", BOMBS)
def test_bomb(agentd, text_file, unique, name):
    make, words = BOMBS[name]
    image, before = unique("img"), store()
    result, detail = agentd.import_image(image, text_file(make()))
    if result == "done":
        assert words == ""
        agentd.call("RemoveImage", image)
        prune(agentd)
    else:
        assert result == "failed" and words in detail and len(detail) > 15, (result, detail)
    no_units()
    wait_until(lambda: store() == before, "the end of what was half-made")


def extracted(agentd, unique, text_file, tmp_path, data):
    image = unique("img")
    result, detail = agentd.import_image(image, text_file(data))
    assert result == "done", detail
    layer = next(str(r[1]) for r in agentd.call("ListImages") if r[0] == image)
    run("fsck.erofs", f"--extract={tmp_path / image}", "--preserve", layer_file(layer))
    agentd.call("RemoveImage", image)
    prune(agentd)
    return tmp_path / image


def test_odd_names_are_kept(agentd, unique, text_file, tmp_path):
    names = ["new\nline", "tab\t", "sp ace", "back\\slash", "-rf", "latin\udce9", "n" * 255, "é", "\x7f\x01", "*?[", "'\""]
    data = tar(*[member("odd/" + n) for n in names], member("deep/" + "d/" * 1000 + "f"), fmt=tarfile.GNU_FORMAT)
    root = os.fsencode(extracted(agentd, unique, text_file, tmp_path, data))
    assert set(os.listdir(root + b"/odd")) == {n.encode("utf-8", "surrogateescape") for n in names}
    assert os.path.exists(root + b"/deep/" + b"d/" * 1000 + b"f")


def test_what_comes_twice(agentd, unique, text_file, tmp_path):
    """The last one counts, as with tar; also where it is of another kind."""
    data = tar(member("a", data=b"1"), member("a", data=b"22"), member("b", data=b"x"), member("b", tarfile.SYMTYPE, linkname="a"),
               member("c", tarfile.SYMTYPE, linkname="/etc"), member("c", data=b"3"), member("d", tarfile.DIRTYPE), member("d", data=b"4"),
               member("e", data=b"5"), member("e", tarfile.DIRTYPE, mode=0o700), member("f", tarfile.DIRTYPE), member("f", tarfile.DIRTYPE, mode=0o711))
    root = extracted(agentd, unique, text_file, tmp_path, data)
    assert (root / "a").read_bytes() == b"22" and os.readlink(root / "b") == "a" and (root / "c").read_bytes() == b"3"
    assert (root / "d").read_bytes() == b"4" and (root / "e").is_dir() and (root / "f").stat().st_mode & 0o777 == 0o711


def test_setuid_and_odd_owners_are_kept_and_worth_nothing(agentd, unique, text_file, tmp_path):
    """They are the image's own; where it is mounted set-id bits do not count, and no run gains anything (test_isolation)."""
    owners = [(0, 0), (1000, 1000), (65534, 65534), (61184, 65519), (123456789, (1 << 32) - 2)]
    data = tar(*[member(f"s{i}", data=b"x", mode=0o6755, uid=u, gid=g) for i, (u, g) in enumerate(owners)])
    root = extracted(agentd, unique, text_file, tmp_path, data)
    for i, owner in enumerate(owners):
        st = (root / f"s{i}").stat()
        assert (st.st_uid, st.st_gid) == owner and st.st_mode & 0o7777 == 0o6755


def test_nul_in_a_name(agentd, text_file, unique):
    """In a record of pax a name may have one. It ends there, or the archive is refused."""
    record = b"path=ni\0ce\n"
    body = (b"%d " % (len(record) + 3)) + record
    info = tarfile.TarInfo("././@PaxHeader")
    info.type, info.size = tarfile.XHDTYPE, len(body)
    data = tar()[:1536] + info.tobuf() + body.ljust(512, b"\0") + member("x")[0].tobuf() + bytes(1024)
    result, detail = agentd.import_image(unique("img"), text_file(data))
    assert result in ("done", "failed")
    no_units()
    agentctl("env", "prune")


# ---- what never ends ----

class Pipe(threading.Thread):
    """Writes what it is given, again and again; until nobody reads."""

    def __init__(self, *parts, forever=b""):
        super().__init__(daemon=True)
        self.reader, self.writer = os.pipe()
        self.parts, self.forever, self.broken = parts, forever, False

    def run(self):
        try:
            for part in self.parts:
                os.write(self.writer, part)
            while self.forever:
                os.write(self.writer, self.forever)
        except BrokenPipeError:
            self.broken = True


def import_pipe(agentd, unique, pipe):
    pipe.start()
    path = str(agentd.call("ImportImage", unique("img"), dbus.types.UnixFd(pipe.reader), dbus.Dictionary({}, signature="sv")))
    os.close(pipe.reader)
    return path


def block(name, size):
    return member(name, data=bytes(size))[0].tobuf() + bytes(size)


ENDLESS = {
    "zeros": (Pipe(forever=bytes(65536)), ""),
    "noise": (Pipe(forever=os.urandom(65536)), ""),
    "the same file": (Pipe(tar()[:1536], forever=block("f", 512)), "more files than are allowed"),
    "a file that is larger and larger": (Pipe(tar()[:1536], forever=block("f", 32 * MIB)), "larger than is allowed"),
    "a file of a terabyte": (Pipe(patched("terabyte", 124, b"\x80" + (1 << 40).to_bytes(11))[:2048], forever=bytes(65536)),
                             "larger than is allowed"),
}


@pytest.mark.parametrize("name", ENDLESS)
def test_a_pipe_that_never_ends(agentd, unique, name):
    pipe, words = ENDLESS[name]
    before = store()
    result, detail = agentd.complete(import_pipe(agentd, unique, pipe))
    assert result == "failed" and words in detail and len(detail) > 15, (result, detail)
    pipe.join(DEADLINE)
    assert pipe.broken
    os.close(pipe.writer)
    no_units()
    wait_until(lambda: store() == before, "the end of what was half-made")


def test_a_pipe_that_stalls(agentd, unique):
    """Its time is bounded, and meanwhile it is in a unit from which there is nothing to be reached."""
    CONF.write_text(BOUNDS + "Timeout=20s\n")
    systemctl("restart", "agentd.service")
    pipe, before = Pipe(tar()[:2048]), store()
    path = import_pipe(agentd, unique, pipe)
    unit = wait_until(lambda: os.popen("systemctl list-units --plain --no-legend 'agent-op-*'").read().split()[:1], "the unit")[0]
    properties = {name: show(unit, name) for name in (
        "MemoryMax", "MemorySwapMax", "TasksMax", "RuntimeMaxUSec", "PrivateNetwork", "PrivateDevices", "TemporaryFileSystem",
        "NoNewPrivileges", "RestrictNamespaces", "ProtectProc", "CapabilityBoundingSet", "SystemCallArchitectures", "LimitCORE", "Slice")}
    capabilities = set(properties.pop("CapabilityBoundingSet").split())
    assert capabilities == {"cap_chown", "cap_dac_override", "cap_dac_read_search", "cap_fowner", "cap_fsetid", "cap_setfcap"}
    memory = "infinity" if os.environ.get("AGENTD_SANITIZE") else str(4 << 30)  # a sanitizer needs more
    assert properties == {
        "MemoryMax": memory, "MemorySwapMax": "0", "TasksMax": "512", "RuntimeMaxUSec": "20s", "PrivateNetwork": "yes",
        "PrivateDevices": "yes", "TemporaryFileSystem": "/:mode=0755,ro", "NoNewPrivileges": "yes",
        "RestrictNamespaces": "yes", "ProtectProc": "invisible", "SystemCallArchitectures": "native", "LimitCORE": "1",
        "Slice": "agents.slice"}
    run("systemd-analyze", "security", "--threshold=40", unit)
    # It sees programs, what it works on, and nothing else that is mounted on the host or in runs.
    with open(f"/proc/{show(unit, 'MainPID')}/mountinfo", encoding="utf-8") as f:
        places = [line.split()[4] for line in f]
    own = ("/usr", "/bin", "/lib", "/lib64", "/etc/ld.so.cache", "/proc", "/sys", "/dev", "/tmp", "/var/tmp", "/run/host", "/run/systemd/incoming")
    staging = [p for p in places if p.startswith("/var/lib/agentd/")]
    assert len(staging) == 1 and "/usr" in places
    assert not [p for p in places if p not in ("/", "/run") and p not in staging and not (p + "/").startswith(tuple(o + "/" for o in own))], places
    root = f"/proc/{show(unit, 'MainPID')}/root"
    assert set(os.listdir(root + "/run")) <= {"host", "systemd"} and os.listdir(root + "/run/systemd") == ["incoming"]
    assert os.listdir(root + "/etc") == ["ld.so.cache"] and os.listdir(root + "/var/lib/agentd") == [staging[0].split("/")[4]]
    result, detail = agentd.complete(path)
    assert result == "failed" and "longer than is allowed" in detail
    os.close(pipe.writer)
    CONF.write_text(BOUNDS)
    systemctl("restart", "agentd.service")
    no_units()
    wait_until(lambda: store() == before, "the end of what was half-made")
