# SPDX-License-Identifier: LGPL-2.1-or-later
"""Acts against other runs, the network, and the sockets of the host. See acts.py."""

import ctypes
import os
import socket

from acts import ACTS, C, act, libc


def walk():
    """Every directory but those of /proc and /sys."""
    for top, dirs, files in os.walk("/"):
        if top == "/":
            dirs[:] = [d for d in dirs if d not in ("proc", "sys")]
        yield top, dirs, files


def processes():
    return [int(p) for p in os.listdir("/proc") if p.isdigit() and int(p) != os.getpid()]


def search_processes(name):
    for pid in processes():
        try:
            with open(f"/proc/{pid}/{name}", "rb") as f:
                if C["canary"].encode() in f.read():
                    return pid
        except OSError:
            pass
    raise LookupError(name)


# --- another run ---


@act
def see_files_of_another_run():
    for top, dirs, files in walk():
        for name in files + dirs:
            if C["canary"] in name:
                return f"{top}/{name}"
    raise LookupError


@act
def read_shared_memory_file():
    return open(f"/dev/shm/{C['canary']}").read() or 1


@act
def read_tmp_file():
    return open(f"/tmp/{C['canary']}").read() or 1


@act
def read_var_tmp_file():
    return open(f"/var/tmp/{C['canary']}").read() or 1


@act
def see_arguments_of_another_run():
    return search_processes("cmdline")


@act
def see_environment_of_another_run():
    return search_processes("environ")


@act
def read_token_of_another_run():
    return open(f"/run/agentd/runs/{C['victim']}/token").read()


@act
def read_credential_of_another_run():
    return open(f"/run/credentials/{C['unit']}/token").read()


@act
def read_live_file_of_another_run():
    return open(f"/run/agentd/live/{C['victim']}.json").read()


@act
def enter_root_of_another_run():
    return os.listdir(f"/proc/{C['pid']}/root/home/agent")


@act
def read_memory_of_another_run():
    with open(f"/proc/{C['pid']}/mem", "rb", 0) as f, open(f"/proc/{C['pid']}/maps") as maps:
        f.seek(int(maps.readline().split("-")[0], 16))
        return len(f.read(16))


@act
def hold_another_run():
    return os.pidfd_open(C["pid"])


@act
def signal_another_run():
    os.kill(C["pid"], 0)
    return C["pid"]


@act
def name_cgroup_of_another_unit():
    for top, dirs, _ in os.walk("/sys/fs/cgroup"):
        for d in dirs:
            if "agent" in d or d.endswith((".slice", ".service")):
                return f"{top}/{d}"
    raise LookupError


@act
def attach_system_v_memory():
    return libc("shmget", C["key"], 0, 0) or 1


@act
def open_message_queue():
    return libc("mq_open", b"/" + C["canary"].encode(), os.O_RDONLY, 0, None)


@act
def find_key_in_kernel_keyring():
    r = ctypes.CDLL(None, use_errno=True).syscall(250, 10, ctypes.c_long(-4), b"user", C["canary"].encode(), 0)
    if r < 0:
        raise OSError(ctypes.get_errno(), "keyctl")
    return r


# --- network and sockets ---


def dial(family, kind, address, text=b"x"):
    with socket.socket(family, kind) as s:
        s.settimeout(60)
        s.connect(address)
        s.send(text)
        if C["canary"].encode() not in s.recv(100):
            raise LookupError("somebody else answered")
    return str(address)


@act
def reach_host_loopback():
    return dial(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", C["port"]))


@act
def reach_host_loopback_as_any_address():
    return dial(socket.AF_INET, socket.SOCK_STREAM, ("0.0.0.0", C["port"]))


@act
def reach_address_of_host():
    return dial(socket.AF_INET, socket.SOCK_STREAM, (C["address"], C["port"]))


@act
def reach_host_loopback_v6():
    return dial(socket.AF_INET6, socket.SOCK_STREAM, ("::1", C["port"]))


@act
def reach_mapped_loopback():
    return dial(socket.AF_INET6, socket.SOCK_STREAM, ("::ffff:127.0.0.1", C["port"]))


@act
def reach_address_of_host_v6():
    return dial(socket.AF_INET6, socket.SOCK_STREAM, (C["address6"], C["port"]))


@act
def reach_host_by_udp():
    return dial(socket.AF_INET, socket.SOCK_DGRAM, (C["address"], C["port"]))


@act
def resolve_a_name():
    return socket.getaddrinfo("probe.agentd.test", 80)[0][4][0]


@act
def reach_abstract_socket():
    return dial(socket.AF_UNIX, socket.SOCK_STREAM, "\0" + C["canary"])


@act
def reach_path_socket():
    return dial(socket.AF_UNIX, socket.SOCK_STREAM, C["socket"])


@act
def find_any_socket_file():
    for top, _, files in walk():
        for name in files:
            path = f"{top}/{name}"
            try:
                # The bridge's is the only one: it asks for the run's token, as on TCP.
                if os.lstat(path).st_mode & 0o170000 == 0o140000 and path != "/run/agent-bridge.sock":
                    return path
            except OSError:
                pass
    raise LookupError


def reach_path(kind, path):
    with socket.socket(socket.AF_UNIX, kind) as s:
        s.connect(path)
    return path


for _name, _kind, _path in (
    ("system_bus", socket.SOCK_STREAM, "/run/dbus/system_bus_socket"),
    ("manager_private", socket.SOCK_STREAM, "/run/systemd/private"),
    ("notify", socket.SOCK_DGRAM, "/run/systemd/notify"),
    ("journal", socket.SOCK_DGRAM, "/run/systemd/journal/socket"),
    ("journal_stdout", socket.SOCK_STREAM, "/run/systemd/journal/stdout"),
    ("dev_log", socket.SOCK_DGRAM, "/dev/log"),
    ("varlink", socket.SOCK_STREAM, "/run/systemd/userdb/io.systemd.DynamicUser"),
    ("bridge_control", socket.SOCK_STREAM, "/run/agent-bridged/control"),
    ("strong_room", socket.SOCK_SEQPACKET, "/run/agent-credential/material"),
):
    ACTS["reach_" + _name] = lambda kind=_kind, path=_path: reach_path(kind, path)


@act
def open_other_address_family():
    for family in range(1, 48):
        if family in (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6):
            continue
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_SEQPACKET):
            try:
                socket.socket(family, kind).close()
                return f"family {family}, type {kind}"
            except OSError:
                pass
    raise PermissionError


@act
def open_raw_socket():
    socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP).close()
    return 1
