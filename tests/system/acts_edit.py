# SPDX-License-Identifier: LGPL-2.1-or-later
"""What root of a session in an edit must not be able to do, beside acts of acts_world.py and acts_kernel.py. See acts.py."""

import ctypes
import fcntl
import os
import signal
import socket
import stat
import subprocess
import tempfile

from acts import C, libc

EDIT_ACTS = {}


def edit_act(f):
    EDIT_ACTS[f.__name__] = f
    return f


# --- devices and file systems of the host ---


@edit_act
def open_a_device_that_it_made():
    path = "/dev/zero-of-mine"
    os.mknod(path, 0o20600, os.makedev(1, 5))
    try:
        with open(path, "rb") as f:
            return f.read(1)
    finally:
        os.unlink(path)


@edit_act
def make_a_whiteout():
    path = tempfile.mkdtemp(dir=C["whiteouts"]) + "/gone"
    os.mknod(path, 0o20600, os.makedev(0, 0))
    return stat.S_ISCHR(os.lstat(path).st_mode)


@edit_act
def open_the_kernel_log():
    return os.open("/dev/kmsg", os.O_RDONLY)


@edit_act
def open_loop_control():
    return os.open("/dev/loop-control", os.O_RDWR)


@edit_act
def mount_an_image():
    """A file system whose driver reads what somebody else wrote."""
    with open("/tmp/image", "wb") as f:
        f.write(bytes.fromhex(C["erofs"]))
    os.makedirs("/tmp/point", exist_ok=True)
    subprocess.run(["mount", "-t", "erofs", "-o", "ro,loop", "/tmp/image", "/tmp/point"], check=True, capture_output=True)
    subprocess.run(["umount", "/tmp/point"], check=True)
    return 1


@edit_act
def open_a_layer_by_handle():
    """By the handle of a file in a layer, which is that of every mount of its file system."""

    class Handle(ctypes.Structure):
        _fields_ = [("size", ctypes.c_uint), ("type", ctypes.c_int), ("bytes", ctypes.c_char * 128)]

    data = bytes.fromhex(C["handle"])
    handle = Handle(size=len(data), type=C["handle_type"])
    ctypes.memmove(ctypes.addressof(handle) + 8, data, len(data))
    for place in (C["layer"], "/", "/etc"):
        try:
            directory = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
            fd = libc("open_by_handle_at", directory, ctypes.byref(handle), os.O_RDONLY)
            return os.read(fd, 10)
        except OSError as e:
            error = e
    raise error


# --- attributes that overlayfs reads ---


def set_attribute(name):
    path = tempfile.mkdtemp(dir="/root")
    os.setxattr(path, name, b"y")
    return os.getxattr(path, name)


@edit_act
def forge_an_opaque_directory():
    return set_attribute("trusted.overlay.opaque")


@edit_act
def forge_a_redirect():
    return set_attribute("trusted.overlay.redirect")


@edit_act
def forge_metadata_only():
    return set_attribute("trusted.overlay.metacopy")


@edit_act
def make_a_file_immutable():
    """Nobody could freeze or discard it."""
    path = tempfile.mkdtemp(dir="/root") + "/file"
    with open(path, "w") as f:
        f.write("x")
        value = fcntl.ioctl(f, 0x80086601, b"\0" * 8)
        fcntl.ioctl(f, 0x40086602, bytes([value[0] | 0x10]) + value[1:])
    try:
        os.unlink(path)
    except OSError:
        return subprocess.run(["chattr", "-i", path], check=True) and 1
    raise LookupError("it could be removed")


# --- the kernel's settings ---


def write_setting(path):
    with open(path) as f:
        value = f.read()
    with open(path, "w") as f:
        f.write(value)
    return value.strip()[:40] or 1


for _name, _path in (
    ("core_pattern", "/proc/sys/kernel/core_pattern"),
    ("modprobe", "/proc/sys/kernel/modprobe"),
    ("overcommit", "/proc/sys/vm/overcommit_memory"),
    ("swappiness", "/proc/sys/vm/swappiness"),
    ("file_limit", "/proc/sys/fs/nr_open"),
):
    EDIT_ACTS["write_" + _name] = lambda path=_path: write_setting(path)


@edit_act
def write_settings_through_a_proc_of_its_own():
    """A new PID namespace may have a new /proc."""
    script = "mkdir -p /tmp/p; mount -t proc proc /tmp/p; cat /tmp/p/sys/vm/swappiness > /tmp/p/sys/vm/swappiness"
    subprocess.run(["unshare", "--mount", "--pid", "--fork", "/bin/sh", "-ec", script], check=True, capture_output=True)
    return 1


@edit_act
def make_proc_sys_writable():
    libc("unshare", 0x20000)  # CLONE_NEWNS, so that nothing of it stays
    libc("mount", None, b"/", None, 0x44000, None)  # MS_REC | MS_PRIVATE
    if not os.path.ismount("/proc/sys"):
        libc("mount", b"/proc/sys", b"/proc/sys", None, 4096, None)
        libc("mount", None, b"/proc/sys", None, 4096 | 32 | 1, None)  # MS_BIND | MS_REMOUNT | MS_RDONLY
    libc("mount", None, b"/proc/sys", None, 4096 | 32, None)
    return write_setting("/proc/sys/vm/swappiness")


@edit_act
def press_the_magic_key():
    with open("/proc/sysrq-trigger", "w") as f:
        f.write("h")  # help
    return 1


@edit_act
def name_a_helper_for_uevents():
    with open("/sys/kernel/uevent_helper", "w") as f:
        f.write("")
    return 1


@edit_act
def enter_the_control_group_of_another_unit():
    """Out of that of its session, where its limits are; by a mount of its own, if need be."""
    os.makedirs("/tmp/cgroup", exist_ok=True)
    libc("mount", b"cgroup", b"/tmp/cgroup", b"cgroup2", 0, None)
    pid = os.fork()
    if pid == 0:
        signal.pause()
    try:
        for top in ("/sys/fs/cgroup", "/tmp/cgroup", "/sys/fs/cgroup/..", "/tmp/cgroup/.."):
            try:
                with open(top + C["cgroup"] + "/cgroup.procs", "w") as f:
                    f.write(str(pid))
                return top
            except OSError as e:
                error = e
        raise error
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
        libc("umount2", b"/tmp/cgroup", 2)


@edit_act
def set_the_clock():
    class Timespec(ctypes.Structure):
        _fields_ = [("sec", ctypes.c_long), ("nsec", ctypes.c_long)]

    now = Timespec()
    libc("clock_gettime", 0, ctypes.byref(now))
    libc("clock_settime", 0, ctypes.byref(now))
    return 1


# --- the network ---


@edit_act
def change_an_address():
    """Of its own loopback, on which the bridge listens."""
    subprocess.run(["ip", "address", "add", "127.0.0.5/32", "dev", "lo"], check=True, capture_output=True)
    subprocess.run(["ip", "address", "del", "127.0.0.5/32", "dev", "lo"], check=True)
    return 1


@edit_act
def reach_the_hypervisor():
    """AF_VSOCK knows no network namespaces."""
    socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM).close()
    return 1


@edit_act
def listen_to_packets():
    socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 3).close()
    return 1
