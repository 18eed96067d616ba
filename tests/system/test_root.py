# SPDX-License-Identifier: LGPL-2.1-or-later
"""The world as a run sees it: what it can write, which devices and mounts there are, and what it learns of the host."""

import os
import re
import uuid

import pytest

from client import run

WRITABLE = ("/home/agent", "/tmp", "/var/tmp", "/dev/shm")
# Devices that anybody may write to on any Linux, and the process' own terminals.
DEVICES = {
    "/dev/null",
    "/dev/zero",
    "/dev/full",
    "/dev/random",
    "/dev/urandom",
    "/dev/tty",
    "/dev/ptmx",
    "/dev/pts/ptmx",
}

WRITE_EVERYWHERE = """
def tries(top):
    found = []
    for d, dirs, files in os.walk(top):
        if d == "/":
            dirs[:] = [x for x in dirs if x not in ("proc", "sys")]
        try:
            os.mkdir(d + "/agentd-probe")
            os.rmdir(d + "/agentd-probe")
            found.append(d)
        except OSError:
            pass
        for name in files:
            path = d + "/" + name
            try:
                kind = os.lstat(path).st_mode
                if stat.S_ISLNK(kind):
                    continue
                # Nothing is written: being let in is enough, and what hangs is not opened.
                os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY))
                found.append(path)
            except OSError:
                pass
    return found
"""


def below(path, tops):
    return any(path == t or path.startswith(t + "/") for t in tops)


def test_writable_paths(probe, outside):
    """Every directory and file of the root is tried. In a plain unit the same walk finds much to write."""
    found = probe(WRITE_EVERYWHERE + 'say(tries("/"))')
    assert {"/home/agent", "/tmp", "/var/tmp", "/dev/shm"} <= set(found)
    assert [p for p in found if not below(p, WRITABLE) and p not in DEVICES] == []
    assert {"/etc", "/usr/bin", "/run"} <= set(
        outside(
            WRITE_EVERYWHERE + 'say([p for t in ("/etc", "/usr/bin", "/run") '
            'for p in tries(t) if "/agentd" not in p])'
        )
    )


def test_kernel_settings_cannot_be_written(probe, outside):
    code = WRITE_EVERYWHERE + 'say([p for t in ("/proc/sys", "/sys") for p in tries(t)])'
    assert probe(code) == []
    assert "/proc/sys/net/ipv4/ip_forward" in outside(WRITE_EVERYWHERE + 'say(tries("/proc/sys/net/ipv4"))')


def test_removing_and_renaming(probe):
    """Directories that are not to be written cannot lose anything either."""
    assert (
        probe(
            """
seen = {}
for path in ("/etc/passwd", "/usr/bin/python3", "/opt/agentd/runner/main.cjs", "/etc/hostname", "/etc/machine-id",
             "/run/credentials", "/proc/cpuinfo", os.environ["AGENT_TOKEN_FILE"]):
    for act in (os.unlink, lambda p: os.rename(p, p + "x"), lambda p: os.chmod(p, 0o777), lambda p: os.truncate(p, 0)):
        try:
            act(path)
            seen[path] = "changed"
        except OSError:
            pass
say(seen)
"""
        )
        == {}
    )


def test_devices(probe):
    found = probe(
        """
nodes = {}
for d, dirs, files in os.walk("/"):
    if d == "/":
        dirs[:] = [x for x in dirs if x not in ("proc", "sys")]
    for name in files:
        mode = os.lstat(d + "/" + name).st_mode
        if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
            nodes[d + "/" + name] = "block" if stat.S_ISBLK(mode) else "char"
say(nodes)
"""
    )
    assert set(found.values()) == {"char"}
    usable = {p for p in found if not p.startswith("/run/systemd/inaccessible")}
    assert usable - DEVICES == set()
    assert {"/dev/null", "/dev/urandom", "/dev/pts/ptmx"} <= usable


def test_terminals(probe):
    """Terminals of its own work in a run; it sees none of the host's, and can take only so many of the kernel's."""
    host, mine = os.openpty()
    try:
        before, name, said, own, many = probe(
            """
before = sorted(os.listdir("/dev/pts"))
a, b = os.openpty()
os.write(a, b"hello\\n")
name, said, own = os.ttyname(b), os.read(b, 10).decode(), os.stat(b).st_uid == os.getuid()
many = []
try:
    for _ in range(1000):
        many.append(os.openpty())
except OSError:
    pass
say([before, name, said, own, len(many)])
"""
        )
    finally:
        os.close(host)
        os.close(mine)
    assert (before, name, said, own) == (["ptmx"], "/dev/pts/0", "hello\n", True)
    assert 8 <= many < 100


def test_first_process_is_closed(probe):
    """What the run's first process holds, the record of how the command ended among it, is out of reach for the
    command, though both have the same user."""
    assert (
        probe(
            """
seen = []
for name in ("fd", "fd/3", "fdinfo", "mem", "environ", "maps", "cwd", "exe", "root"):
    try:
        path = "/proc/1/" + name
        if name in ("fd", "fdinfo", "cwd", "root"):
            os.listdir(path)
        else:
            open(path, "r+b" if name in ("mem", "fd/3") else "rb")
        seen.append(name)
    except OSError:
        pass
say([seen, os.path.exists("/proc/1"), [int(x) for x in os.listdir("/proc/self/fd")][:3]])
"""
        )[0]
        == []
    )


def test_mounts(probe):
    """None of the host's mounts is there, and each one is either its own, read-only, or unable to carry programs that
    gain rights."""
    name = f"/run/agentd-test-{uuid.uuid4().hex}"
    os.mkdir(name)
    run("mount", "-t", "tmpfs", "-o", "size=64k", name.rsplit("/", 1)[1], name)
    try:
        lines = [line.split() for line in probe('say(open("/proc/self/mountinfo").read().splitlines())')]
    finally:
        run("umount", name)
        os.rmdir(name)
    assert name.rsplit("/", 1)[1] not in str(lines)
    points = {line[4]: line[5].split(",") for line in lines}
    assert "/" in points and "/proc" in points
    assert [p for p, options in points.items() if "nosuid" not in options and "ro" not in options] == []
    host = {line.split()[4] for line in open("/proc/self/mountinfo")}
    assert not {p for p in points if p.startswith(("/var/lib", "/src", "/run/agentd", "/mnt"))}, host


def test_identity_of_the_machine(probe, probe_agent):
    """What programs read of the machine is the run's own."""
    code = """
def text(p):
    try:
        return open(p).read()
    except OSError as e:
        return ""
def out(*argv):
    return subprocess.run(argv, capture_output=True, text=True).stdout
say({"boot": text("/proc/sys/kernel/random/boot_id"), "machine": text("/etc/machine-id"),
     "cmdline": text("/proc/cmdline"),
     "hostname": text("/etc/hostname"), "kernel": text("/proc/sys/kernel/hostname"), "cpus": os.cpu_count(),
     "affinity": len(os.sched_getaffinity(0)), "conf": os.sysconf("SC_NPROCESSORS_CONF"),
     "online": os.sysconf("SC_NPROCESSORS_ONLN"), "cpuinfo": text("/proc/cpuinfo").count("processor\\t"),
     "stat": len(re.findall("^cpu[0-9]", text("/proc/stat"), re.M)), "memory": text("/proc/meminfo").split()[1],
     "cgroup": text("/proc/self/cgroup"), "nproc": out("nproc"),
     "node": out("node", "-p", "os.cpus().length + ' ' + os.totalmem()").split()})
"""
    first, second = probe(code), probe(code)

    def host(path):
        with open(path) as f:
            return f.read().strip()

    for key, path in (("boot", "/proc/sys/kernel/random/boot_id"), ("machine", "/etc/machine-id")):
        assert re.fullmatch(r"[0-9a-f-]{32,36}", first[key].strip()), first[key]
        assert len({first[key].strip(), second[key].strip(), host(path)}) == 3, key
    assert host("/proc/cmdline") and host("/proc/cmdline") not in first["cmdline"]
    assert first["hostname"].strip() == first["kernel"].strip() == probe_agent != host("/etc/hostname")
    assert {first[k] for k in ("cpus", "affinity", "conf", "online", "cpuinfo", "stat")} == {1}
    assert first["nproc"].strip() == "1"
    assert first["memory"] == str(512 * 1024) and first["node"] == ["1", str(512 << 20)]
    assert first["cgroup"].strip().endswith("::/")


@pytest.mark.parametrize("path", ["/proc/kallsyms", "/proc/1/environ"])
def test_kernel_tells_nothing(probe, path):
    text = probe(
        f"""
try:
    say(open({path!r}).read()[:100000])
except OSError as e:
    say("")
"""
    )
    if path == "/proc/kallsyms":
        assert not re.search(r"^(?!0+ )[0-9a-f]+ ", text, re.M)
    else:
        assert "AGENTD" not in text and "NOTIFY_SOCKET" not in text


def test_nothing_is_left_to_the_next_run(probe):
    """Wherever a run may write, the next one finds nothing; nor does it by a leftover of IPC."""
    mark = f"leftover-{uuid.uuid4().hex}"
    places = [f"{d}/{mark}" for d in WRITABLE]
    assert (
        probe(
            f"""
for p in {places!r}:
    open(p, "w").write("x")
    os.chmod(p, 0o777)
lib = ctypes.CDLL(None)
say([lib.shmget(0x7777, 4096, 0o1777) >= 0, lib.mq_open(b"/{mark}", os.O_CREAT | os.O_RDWR, 0o777, None) >= 0])
"""
        )
        == [True, True]
    )
    assert (
        probe(
            f"""
lib = ctypes.CDLL(None)
say([[p for p in {places!r} if os.path.exists(p)], lib.shmget(0x7777, 0, 0) >= 0,
     lib.mq_open(b"/{mark}", os.O_RDONLY) >= 0, os.listdir("/dev/shm"),
     [x for x in os.listdir("/tmp") if {mark!r} in x]])
"""
        )
        == [[], False, False, [], []]
    )


def test_environment(probe):
    """Nothing of the platform's but what an agent needs; none of the host's sockets."""
    env = probe("say(dict(os.environ))")
    assert not [
        k
        for k in env
        if k.startswith(("NOTIFY_", "LISTEN_", "INVOCATION", "JOURNAL", "SYSTEMD", "DBUS", "MEMORY_", "WATCHDOG"))
    ]
    assert env["AGENT_BRIDGE"] == "http://127.0.0.1:8377" and env["HOME"] == "/home/agent"


def test_files_in_run(probe):
    """/run holds the run's credentials, and nothing else that is not empty (but the version of the host's system, which
    systemd tells every service)."""
    files = probe(
        """
found = []
for d, dirs, names in os.walk("/run"):
    found += [d + "/" + n for n in names if not d.startswith(("/run/systemd/inaccessible", "/run/host"))]
say(found)
"""
    )
    own = r"/run/credentials/agent-run-[0-9a-f]{32}\.service/token|/run/agent-(input|init|bridge\.sock)"
    assert [f for f in files if not re.fullmatch(own, f)] == []
    assert len(files) == 4
