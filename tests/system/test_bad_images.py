# SPDX-License-Identifier: LGPL-2.1-or-later
"""Archives that are no image, or that try to write where they must not, are refused with a sentence; nothing of them
is left in the store, and nothing was written outside of it.
"""

import contextlib
import gzip
import io
import os
import pathlib
import tarfile

import dbus
import pytest

from client import OPERATION, PROPERTIES, STATE, TEST_ROOTFS, agentctl, call_as, kill, systemctl, wait_until

CANARY = "/var/tmp/agentd-escaped"
EMPTY = dbus.Dictionary({}, signature="sv")


def tar(*members, fmt=tarfile.GNU_FORMAT):
    """A tar of (name, kind, data or link or device) on top of what makes a root."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=fmt) as t:
        for name, kind, value in (
            ("bin", "dir", 0),
            ("etc", "dir", 0),
            ("usr", "dir", 0),
            ("usr/bin", "dir", 0),
            *members,
        ):
            info = tarfile.TarInfo(name)
            info.mode = 0o755
            if kind == "file":
                data = value.encode() if isinstance(value, str) else value
                info.size = len(data)
                t.addfile(info, io.BytesIO(data))
                continue
            info.type = {
                "dir": tarfile.DIRTYPE,
                "link": tarfile.LNKTYPE,
                "symlink": tarfile.SYMTYPE,
                "char": tarfile.CHRTYPE,
                "block": tarfile.BLKTYPE,
                "fifo": tarfile.FIFOTYPE,
            }[kind]
            if kind in ("link", "symlink"):
                info.linkname = value
            if kind in ("char", "block"):
                info.devmajor, info.devminor = value
            t.addfile(info)
    return out.getvalue()


SHELL = ("bin/sh", "file", "x")
ARCHIVES = {
    "empty": b"",
    "text": b"This is no archive at all.\n" * 100,
    "zeros": b"\0" * 10240,
    "random": os.urandom(5000),
    "truncated": lambda: open(TEST_ROOTFS, "rb").read(3 << 20),
    "truncated header": tar(SHELL)[:700],
    "truncated gzip": gzip.compress(tar(SHELL))[:-20],
    "gzip of text": gzip.compress(b"hello"),
    "parent": tar(SHELL, ("../../../../../../.." + CANARY, "file", "x")),
    "parent inside": tar(SHELL, ("usr/../../../../.." + CANARY, "file", "x")),
    "symlink then below": tar(SHELL, ("out", "symlink", "/var/tmp"), ("out/agentd-escaped", "file", "x")),
    "relative symlink then below": tar(
        SHELL, ("out", "symlink", "../../../../../../var/tmp"), ("out/agentd-escaped", "file", "x")
    ),
    "symlink replaced": tar(SHELL, ("d", "dir", 0), ("d", "symlink", "/var/tmp"), ("d/agentd-escaped", "file", "x")),
    "hard link outside": tar(SHELL, ("out", "link", "../../../../../../etc/passwd")),
    "hard link through symlink": tar(SHELL, ("e", "symlink", "/etc"), ("out", "link", "e/passwd")),
    "huge": lambda: sparse(1 << 45),
}


def sparse(size):
    """A file that says it has SIZE bytes, in the format of sparse files, in a few kilobytes."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as t:
        for name in ("bin", "etc", "usr"):
            info = tarfile.TarInfo(name)
            info.type = tarfile.DIRTYPE
            t.addfile(info)
        body = f"1\n{size - 512}\n512\n".encode().ljust(512, b"\0") + b"x" * 512
        info = tarfile.TarInfo("GNUSparseFile.0/huge")
        info.pax_headers = {
            "GNU.sparse.major": "1",
            "GNU.sparse.minor": "0",
            "GNU.sparse.name": "huge",
            "GNU.sparse.realsize": str(size),
        }
        info.size = len(body)
        t.addfile(info, io.BytesIO(body))
    return out.getvalue()


def no_root():
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as t:
        info = tarfile.TarInfo("letters/to/nobody.txt")
        info.size = 5
        t.addfile(info, io.BytesIO(b"hello"))
    return out.getvalue()


ARCHIVES["no root"] = no_root()


def store():
    """What is there; without what earlier ones left for a moment."""
    wait_until(lambda: not os.listdir(f"{STATE}/tmp"), "the end of staging")
    return sorted(os.listdir(f"{STATE}/layers"))


def images(agentd):
    return sorted(str(r[0]) for r in agentd.call("ListImages"))


def no_units():
    wait_until(
        lambda: "agent-op-" not in os.popen("systemctl list-units --all --plain --no-legend 'agent-op-*'").read(),
        "the end of the operations' units",
    )


@pytest.mark.parametrize("name", ARCHIVES)
def test_archive(agentd, text_file, unique, name):
    data = ARCHIVES[name]() if callable(ARCHIVES[name]) else ARCHIVES[name]
    image, before, known = unique("img"), store(), images(agentd)
    result, detail = agentd.import_image(image, text_file(data))
    if result == "done":  # taken, but then harmless: what lay outside is not there
        assert "symlink" in name, f"{name} was taken for an image"
        agentd.call("RemoveImage", image)
    else:
        assert result == "failed" and len(detail) > 15 and detail[0].isupper(), (result, detail)
        assert store() == before and images(agentd) == known
    assert not os.path.exists(CANARY)
    assert open("/etc/passwd").read().startswith("root:") and os.stat("/etc/passwd").st_nlink == 1
    no_units()


def test_absolute_names_stay_inside(agentd, text_file, unique, make_agent):
    """An absolute name is one below the image's root."""
    image = unique("img")
    result, detail = agentd.import_image(image, text_file(tar(SHELL, (CANARY, "file", "x"))))
    assert not os.path.exists(CANARY)
    if result == "done":
        agentd.call("RemoveImage", image)
    else:
        assert len(detail) > 15


@pytest.mark.parametrize("device", [("char", (1, 1)), ("block", (8, 0))], ids=["memory", "disk"])
def test_devices_cannot_be_used(agentd, make_agent, unique, tmp_path, probe, device):
    """Device nodes of an image are left out, or refused, or of no use in a run."""
    image = unique("img")
    path = tmp_path / "root.tar"
    with open(TEST_ROOTFS, "rb") as f:
        path.write_bytes(f.read())
    with tarfile.open(path, "a") as t:
        info = tarfile.TarInfo("home/evil")
        info.type = tarfile.CHRTYPE if device[0] == "char" else tarfile.BLKTYPE
        info.devmajor, info.devminor = device[1]
        info.mode = 0o666
        t.addfile(info)
    result, detail = agentd.import_image(image, path)
    if result == "done":
        import inside

        agent = make_agent(inside.COMMAND, kind="command", image=image)
        assert (
            probe(
                """
try:
    os.open("/home/evil", os.O_RDONLY)
    say("opened")
except OSError as e:
    say("no")
""",
                agent=agent,
            )
            == "no"
        )
        agentd.call("RemoveAgent", agent)
        agentd.call("RemoveImage", image)
    else:
        assert "device" in detail.lower(), detail


def test_setuid_files_are_of_no_use_on_the_host(agentd, image):
    """Where layers are mounted nobody but root can go, and setuid does not count."""
    for line in open("/proc/1/mountinfo"):
        if "/run/agentd/layers/" in line:
            assert "nosuid" in line.split()[5].split(","), line
    assert os.stat("/run/agentd/layers").st_mode & 0o777 == 0o700


def test_image_that_exists(agentd, image):
    with pytest.raises(dbus.DBusException) as e:
        agentd.import_image(image, TEST_ROOTFS)
    assert e.value.get_dbus_name() == "org.agentd1.Error.ImageExists"


def test_descriptor_that_is_no_file(agentd, unique):
    """A directory, the null device, a pipe whose writer went away, a write-only file."""
    before, known = store(), images(agentd)
    reader, writer = os.pipe()
    os.close(writer)
    for fd in (os.open("/", os.O_RDONLY), os.open("/dev/null", os.O_RDONLY), reader, os.open("/dev/null", os.O_WRONLY)):
        try:
            path = agentd.call("ImportImage", unique("img"), dbus.types.UnixFd(fd), dbus.Dictionary({}, signature="sv"))
            result, detail = agentd.complete(str(path))
            assert result == "failed" and len(detail) > 15, (result, detail)
        except dbus.DBusException as e:
            assert e.get_dbus_name().startswith("org.agentd1.Error."), e
        finally:
            os.close(fd)
    assert store() == before and images(agentd) == known


def test_cancel_of_an_import(agentd, unique):
    """Nothing half-made stays of one whose source never ends."""
    image, before = unique("img"), store()
    reader, writer = os.pipe()
    path = str(agentd.call("ImportImage", image, dbus.types.UnixFd(reader), dbus.Dictionary({}, signature="sv")))
    os.close(reader)
    os.write(writer, tar(SHELL)[:2048])
    agentd.call("Cancel", path=path, interface="org.agentd1.Operation")
    assert agentd.complete(path)[0] == "canceled"
    os.close(writer)
    no_units()
    assert store() == before and image not in images(agentd)


def test_agentd_killed_during_an_import(agentd, unique):
    image, before = unique("img"), store()
    reader, writer = os.pipe()
    agentd.call("ImportImage", image, dbus.types.UnixFd(reader), dbus.Dictionary({}, signature="sv"))
    os.write(writer, tar(SHELL)[:2048])
    kill("agentd.service")
    assert image not in images(agentd)  # waits until it answers
    os.close(reader)
    os.close(writer)
    no_units()
    wait_until(lambda: store() == before, "the end of what was half-made")


def test_too_many_operations(agentd, unique, users):
    """One user cannot take all places."""
    pipes, paths = [], []
    try:
        for n in range(3):
            reader, writer = os.pipe()
            pipes += [reader, writer]
            args = (unique("img"), dbus.types.UnixFd(reader), dbus.Dictionary({}, signature="sv"))
            if n < 2:
                paths.append(str(agentd.call("ImportImage", *args)))
            else:
                with pytest.raises(dbus.DBusException) as e:
                    agentd.call("ImportImage", *args)
                assert e.value.get_dbus_name() == "org.agentd1.Error.TooManyOperations"
        (answer,) = call_as(users[0], ("ImportImage", unique("img"), {"fd": "/dev/null"}, {"options": {}}))
        assert "value" in answer, answer
    finally:
        for fd in pipes:
            os.close(fd)
        for path in paths:
            agentd.complete(path)


@pytest.fixture
def impatient():
    conf = pathlib.Path("/etc/agentd/agentd.conf.d/impatient-test.conf")
    conf.parent.mkdir(parents=True, exist_ok=True)
    conf.write_text("[Images]\nIdleTimeout=1s\n")
    systemctl("restart", "agentd.service")
    yield
    conf.unlink()
    systemctl("restart", "agentd.service")


def test_who_feeds_bytes_now_and_then_holds_no_place(agentd, unique, users, impatient, text_file):
    """Two users with imports that come byte by byte take all places but root's, and not for long."""
    before, pipes, paths = store(), [], []
    for user in users:
        for n in range(2):
            fifo = f"/var/tmp/{unique('fifo')}"
            os.mkfifo(fifo)
            os.chmod(fifo, 0o644)
            pipes.append(os.open(fifo, os.O_RDWR | os.O_NONBLOCK))
            os.write(pipes[-1], tar(SHELL)[:1500])
            answer = call_as(user, ("ImportImage", unique("img"), {"fd": fifo}, {"options": {}}))[0]
            os.unlink(fifo)
            paths.append(answer["value"])
    assert agentd.import_image(unique("img"), text_file(b"no tar"))[0] == "failed"  # and was begun

    def over():
        for fd in pipes:
            with contextlib.suppress(BlockingIOError):
                os.write(fd, b"\0")
        return all(path in agentd.finished_operations for path in paths)

    wait_until(over, "the end of the imports")
    for path in paths:
        result, detail = agentd.complete(path)
        kind = str(agentd.call("Get", OPERATION, "Error", path=path, interface=PROPERTIES))
        assert (result, kind) == ("failed", "Stalled") and "IdleTimeout=" in detail, (result, kind, detail)
    for fd in pipes:
        os.close(fd)
    no_units()
    assert store() == before


def test_who_takes_nothing_of_an_export_holds_no_place(agentd, make_agent, impatient):
    name = make_agent("true")
    reader, writer = os.pipe()
    path = str(agentd.call("ExportEnvironment", name, "head", dbus.types.UnixFd(writer), EMPTY))
    os.close(writer)
    result, detail = agentd.complete(path)
    kind = str(agentd.call("Get", OPERATION, "Error", path=path, interface=PROPERTIES))
    assert (result, kind) == ("failed", "Stalled") and "IdleTimeout=" in detail, (result, kind, detail)
    os.close(reader)
    no_units()


def test_agentctl_says_why(text_file):
    done = agentctl("image", "import", "test-broken", text_file("no tar"), check=False)
    assert done.returncode == 1 and len(done.stderr.strip()) > 15
