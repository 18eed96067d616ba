# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a run cannot do: every act of SECURITY.md's first table is tried inside a run, where it must fail, and in a
plain unit of the host, where it must succeed. The acts are in acts_world.py and acts_kernel.py.
"""

import contextlib
import ctypes
import json
import os
import socket
import struct
import subprocess
import threading
import uuid

import pytest

import acts
import acts_kernel  # noqa: F401 - registers acts
import acts_world  # noqa: F401
import inside
from client import DEADLINE, agentctl, run, show

ADDRESS, ADDRESS6 = "10.99.77.1", "fd99:77::1"

# What this kind of machine does not let even root do outside of a sandbox; a machine with a kernel of its own does.
CONTAINER_CANNOT = {"open_runner_by_handle"} | {
    "call_" + name
    for name in (
        "delete_module",
        "fanotify_init",
        "finit_module",
        "init_module",
        "iopl",
        "kexec_load",
        "modify_ldt",
        "open_by_handle_at",
        "perf_event_open",
        "pidfd_getfd",
        "quotactl",
        "swapoff",
        "swapon",
    )
}


class Servers:
    """Answers with CANARY wherever a process of the host can listen."""

    def __init__(self, canary, path):
        self.canary, self.stop = canary.encode(), []
        first = self.serve(socket.AF_INET6, ("::", 0))  # IPv4, too
        self.port = first.getsockname()[1]
        self.serve(socket.AF_UNIX, "\0" + canary)
        self.serve(socket.AF_UNIX, path)
        os.chmod(path, 0o777)
        udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        udp.bind(("0.0.0.0", self.port))
        self.loop(udp, lambda: self.datagram(udp))
        dns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        dns.bind((ADDRESS, 53))
        self.loop(dns, lambda: self.resolve(dns))

    def loop(self, sock, step):
        def body():
            with contextlib.suppress(OSError):
                while True:
                    step()

        threading.Thread(target=body, daemon=True).start()
        self.stop.append(sock)

    def serve(self, family, address):
        s = socket.socket(family, socket.SOCK_STREAM)
        if family == socket.AF_INET6:
            s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        s.bind(address)
        s.listen()
        self.loop(s, lambda: self.one(s))
        return s

    def one(self, s):
        c = s.accept()[0]
        with c, contextlib.suppress(OSError):
            c.sendall(self.canary)
            c.recv(10)

    def datagram(self, s):
        text, peer = s.recvfrom(100)
        if not text:  # closed
            raise OSError
        s.sendto(self.canary, peer)

    def resolve(self, s):
        """Answers every question with 192.0.2.1, or nothing where that is no answer to it."""
        question, peer = s.recvfrom(512)
        if len(question) < 17:  # closed
            raise OSError
        body = question[12:]
        end = body.find(b"\0") + 5
        is_a = body[end - 4 : end - 2] == b"\0\x01"
        answer = b"\xc0\x0c\0\x01\0\x01" + struct.pack("!IH", 60, 4) + socket.inet_aton("192.0.2.1") if is_a else b""
        s.sendto(
            question[:2] + b"\x81\x80\0\x01" + struct.pack("!H", int(is_a)) + b"\0\0\0\0" + body[:end] + answer, peer
        )

    def close(self):
        for s in self.stop:
            with contextlib.suppress(OSError):
                s.shutdown(socket.SHUT_RDWR)
            s.close()


@pytest.fixture(scope="module")
def world(agentd, image, upstream, gate_service, unique):
    """Another run that is alive and full of canaries, the same canaries left by a plain process of the host, servers on
    each of its addresses; as the context of the acts."""
    canary = "canary" + uuid.uuid4().hex
    run("ip", "address", "replace", f"{ADDRESS}/32", "dev", "lo")
    run("ip", "-6", "address", "replace", f"{ADDRESS6}/128", "dev", "lo", "nodad")
    path = f"/run/{canary}.socket"
    servers = Servers(canary, path)
    resolv = open("/etc/resolv.conf").read() if os.path.exists("/etc/resolv.conf") else None
    with open("/etc/resolv.conf", "w") as f:
        f.write(f"nameserver {ADDRESS}\n")

    places = [f"/tmp/{canary}", f"/var/tmp/{canary}", f"/dev/shm/{canary}"]
    for p in places:
        with open(p, "w") as f:
            f.write(canary)
        os.chmod(p, 0o666)
    lib = ctypes.CDLL(None, use_errno=True)
    key = uuid.uuid4().int & 0x7FFFFFFF
    shm = lib.shmget(key, 4096, 0o1666)
    assert shm >= 0
    assert lib.mq_open(b"/" + canary.encode(), os.O_RDWR | os.O_CREAT, 0o666, None) >= 0
    assert lib.syscall(248, b"user", canary.encode(), b"x", 1, ctypes.c_long(-4)) >= 0  # add_key(), user keyring

    gate = upstream.gate(canary)
    name = unique("victim")
    agentd.call(
        "CreateAgent",
        json.dumps(
            {
                "name": name,
                "image": image,
                "kind": "exec",
                "services": [gate_service],
                "environment": {"SECRET": canary},
                "command": [
                    "/usr/bin/python3",
                    "-c",
                    inside.PRELUDE
                    + f"""
for p in ("/home/agent", "/tmp", "/var/tmp", "/dev/shm"):
    open(p + "/{canary}", "w").write("{canary}")
ctypes.CDLL(None).shmget({key}, 4096, 0o1666)
s = socket.socket(socket.AF_UNIX); s.bind("\\0{canary}"); s.listen()
p = subprocess.Popen(["sleep", "infinity"], executable="/usr/bin/sleep", env={{"SECRET": "{canary}"}})
bridge("GET", "/v1/services/{gate_service}/gate/{canary}")
""",
                    canary,
                ],
            }
        ),
    )
    victim = agentd.execute(name)
    gate.arrived(1)
    unit = str(agentd.get(victim, "Unit"))
    yield {
        "canary": canary,
        "victim": agentd.run_id(victim),
        "unit": unit,
        "pid": int(show(unit, "MainPID")),
        "key": key,
        "port": servers.port,
        "address": ADDRESS,
        "address6": ADDRESS6,
        "socket": path,
        "runner": "/usr/lib/agentd/runner",
        "cpus": 2,
    }
    gate.open()
    agentd.finish(victim)
    agentd.call("RemoveAgent", name)
    servers.close()
    os.unlink(path)
    for p in places:
        os.unlink(p)
    lib.shmctl(shm, 0, None)
    lib.mq_unlink(b"/" + canary.encode())
    if resolv is None:
        os.unlink("/etc/resolv.conf")
    else:
        with open("/etc/resolv.conf", "w") as f:
            f.write(resolv)
    run("ip", "address", "del", f"{ADDRESS}/32", "dev", "lo")
    run("ip", "-6", "address", "del", f"{ADDRESS6}/128", "dev", "lo")


def outside_program(context, names, user=None):
    argv = [
        "systemd-run",
        "--quiet",
        "--wait",
        "--collect",
        "--pipe",
        *(["--uid", user] if user else []),
        *inside.COMMAND,
    ]
    done = subprocess.run(
        argv, input=inside.PRELUDE + acts.program(context, names), capture_output=True, text=True, timeout=DEADLINE
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def outcome(world, agentd, probe_agent, users):
    """What came of every act, inside and outside, each tried once for all tests."""
    context = dict(world, runner="/opt/agentd/runner")
    path = agentd.execute(probe_agent, inside.PRELUDE + acts.program(context, set(acts.ACTS)))
    result, message = agentd.finish(path)
    assert result == "success", message
    there = agentd.result(path)["output"]
    here = outside_program(world, set(acts.ACTS) - acts.USER_ACTS)
    here.update(outside_program(world, acts.USER_ACTS, users[0]))
    return there, here


@pytest.mark.parametrize("name", sorted(acts.ACTS))
def test_act(outcome, name):
    there, here = outcome
    assert not there[name][0], f"a run could {name}: {there[name][1]}"
    if not here[name][0] and name in CONTAINER_CANNOT and "AGENTD_VM" not in os.environ:
        pytest.skip(f"fails in the run, but in this container even root cannot: {here[name][1]}")
    assert here[name][0], f"the act itself does not work, so nothing is shown: {here[name][1]}"


def test_runner_is_unchanged_by_a_run(probe):
    """Not even by a private mapping of its files that is written through /proc/self/mem."""

    def digest():
        return set(run("sh", "-c", "sha256sum /run/agentd/layers/*/runner/*").stdout.splitlines())

    probe("say(1)")  # so that it is mounted
    before = digest()
    assert (
        probe(
            """
import mmap
with open("/opt/agentd/runner/main.cjs", "rb") as f:
    m = mmap.mmap(f.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(m))
    with open("/proc/self/mem", "r+b", 0) as mem:
        mem.seek(address)
        mem.write(b"XXXX")
    say([bytes(m[:4]).decode(), open(f.name).read(4)])
"""
        )[0]
        == "XXXX"
    )
    assert before and digest() >= before


def test_own_children_are_its_own(probe):
    """What sets an agent's program apart from its runner takes nothing from it: it traces and signals its own children, and
    files go from one directory to another."""
    seen = probe(
        """
pid = os.fork()
if pid == 0:
    os.setsid()
    signal.pause()
with open(f"/proc/{pid}/maps") as f:
    stack = next(int(line.split("-")[0], 16) for line in f if "[stack]" in line)
with open(f"/proc/{pid}/mem", "r+b", 0) as f:
    f.seek(stack)
    f.write(b"mine")
byte = ctypes.create_string_buffer(4)
mine, theirs = (ctypes.c_ulong * 2)(ctypes.addressof(byte), 4), (ctypes.c_ulong * 2)(stack, 4)
n = ctypes.CDLL(None).process_vm_readv(pid, ctypes.byref(mine), 1, ctypes.byref(theirs), 1, 0)
env = open(f"/proc/{pid}/environ").read()
os.kill(pid, signal.SIGTERM)
ended = os.waitpid(pid, 0)[1]
os.makedirs("/home/agent/a"); os.makedirs("/home/agent/b")
open("/home/agent/a/file", "w").close()
os.link("/home/agent/a/file", "/home/agent/b/link"); os.rename("/home/agent/a/file", "/home/agent/b/file")
say([n, byte.raw.decode(), "AGENT_RUN_ID" in env, ended, sorted(os.listdir("/home/agent/b")),
     "AGENT_LAUNCHER" in os.environ])
"""
    )
    assert seen == [4, "mine", True, 15, ["file", "link"], False]


def test_files_do_not_signal_the_runner(probe):
    """The kernel signals the owner of a file by any signal; a child is killed by it, the runner goes on."""
    assert probe(
        """
import fcntl

def kill_by_file(pid):
    r, w = os.pipe()
    fcntl.fcntl(r, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(r, fcntl.F_SETFL, os.O_ASYNC)
    fcntl.fcntl(r, fcntl.F_SETOWN, pid)
    os.write(w, b"x")

child = os.fork()
if child == 0:
    signal.pause()
kill_by_file(child)
kill_by_file(os.getppid())
kill_by_file(1)
say(os.waitpid(child, 0)[1])
"""
    ) == 9  # SIGKILL


def test_limits_are_set_of_oneself_only(probe):
    """Of nobody else, not even of a child; by setrlimit() and ulimit all works as ever, and so does reading."""
    seen = probe(
        """
import resource

def act(f, *args):
    try:
        return f(*args)
    except PermissionError:
        return "refused"

child = os.fork()
if child == 0:
    signal.pause()
cpu = resource.RLIMIT_CPU
seen = [act(resource.prlimit, pid, cpu, (1, 1)) for pid in (os.getppid(), 1, child)]
seen += [act(resource.prlimit, pid, cpu) == resource.getrlimit(cpu) for pid in (os.getppid(), 1, child)]
os.kill(child, signal.SIGKILL)
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 200))
resource.prlimit(0, resource.RLIMIT_NOFILE, (50, 150))
seen.append(resource.getrlimit(resource.RLIMIT_NOFILE))
seen.append(subprocess.run(["/bin/sh", "-c", "ulimit -Sn 20; ulimit -n"], capture_output=True, text=True).stdout)
say(seen)
"""
    )
    assert seen == ["refused"] * 3 + [True] * 3 + [[50, 150], "20\n"]


def test_program_that_cannot_be_started(agentd, make_agent):
    """The launcher tells as a shell does."""
    for command, code, why in (
        (["/nonexistent"], 127, "/nonexistent: No such file or directory"),
        (["/etc/passwd"], 126, "/etc/passwd: Permission denied"),
    ):
        path = agentd.execute(make_agent(command, kind="command"))
        result, message = agentd.finish(path)
        assert (result, why in message) == ("exit-code", True), message
        assert agentd.receipt(path)["exit_code"] == code


def test_tokens_of_others(probe, agentd, make_agent, upstream, gate_service, world):
    """Another run's token is refused at one's own listener while that run lives and after its end; its own is taken."""
    name = uuid.uuid4().hex
    gate = upstream.gate(name)
    other = make_agent(
        ["/usr/bin/python3", "-c", inside.PRELUDE + f'bridge("GET", "/v1/services/{gate_service}/gate/{name}")'],
        services=[gate_service],
    )
    path = agentd.execute(other)
    gate.arrived(1)
    stolen = open(f"/run/agentd/runs/{agentd.run_id(path)}/token").read()
    code = f'say([bridge("GET", "/v1/run")[0], bridge("GET", "/v1/run", auth={stolen!r})[0]])'
    assert probe(code) == [200, 401]
    gate.open()
    assert agentd.finish(path)[0] == "success"
    assert probe(code) == [200, 401]


def test_no_listener_outside(agentd, world):
    """Nothing listens on the bridge's port in the namespace of the host, whatever the address."""
    for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET, ADDRESS), (socket.AF_INET6, "::1")):
        with socket.socket(family) as s, pytest.raises(ConnectionRefusedError):
            s.connect((address, 8377))
    assert ":8377" not in run("ss", "-Hltn").stdout


def test_exposure(agentd, world):
    """systemd's own judgement of a run that is alive: 1.0 or better."""
    done = run("systemd-analyze", "security", "--no-pager", "--threshold=10", world["unit"], check=False)
    assert done.returncode == 0, done.stdout[-2000:]
    assert "Overall exposure level" in done.stdout


def test_bus_shows_no_secret(users, world):
    """What anybody on the host can read of a run's unit has no token in it, and the token's file is closed to them."""
    token = open(f"/run/agentd/runs/{world['victim']}/token").read().strip()
    shown = run("systemctl", "show", "--all", world["unit"], user=users[1]).stdout
    assert "token" in shown and token not in shown and token.split(".")[2] not in shown
    for path in (
        f"/run/agentd/runs/{world['victim']}/token",
        f"/run/credentials/{world['unit']}/token",
        f"/run/agentd/live/{world['victim']}.json",
    ):
        assert run("cat", path, user=users[1], check=False).returncode != 0
    assert token not in agentctl("status", world["victim"], "--json").stdout
