# SPDX-License-Identifier: LGPL-2.1-or-later
"""Acts against the kernel's privileges and against the runner. See acts.py."""

import ctypes
import errno
import fcntl
import mmap
import os
import platform
import shutil
import signal
import subprocess
import tempfile

from acts import ACTS, C, act, libc, user_act

# --- privileges ---


def status(field):
    with open("/proc/self/status") as f:
        return next(line.split()[1] for line in f if line.startswith(field + ":"))


@act
def have_a_capability():
    for field in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        if int(status(field), 16):
            return field
    raise PermissionError


@act
def be_free_to_gain_privileges():
    if status("NoNewPrivs") == "0":
        return 1
    raise PermissionError


@act
def be_root():
    if 0 in (*os.getresuid(), *os.getresgid(), *os.getgroups()):
        return 1
    raise PermissionError


@user_act
def use_a_setuid_program():
    # It reads /etc/shadow, for the caller's own entry.
    return subprocess.run(["passwd", "-S"], check=True, capture_output=True).stdout.decode()


def file_with_bits(bits):
    path = os.path.expanduser(f"~/bits-{bits:o}")
    with open(path, "w"):
        pass
    os.chmod(path, bits | 0o755)
    got = os.stat(path).st_mode & bits
    os.unlink(path)
    if not got:
        raise PermissionError
    return 1


@user_act
def make_a_setuid_file():
    return file_with_bits(0o4000)


@user_act
def make_a_setgid_file():
    return file_with_bits(0o2000)


@act
def change_execution_domain():
    if ctypes.CDLL(None, use_errno=True).personality(0x0040000) < 0:  # ADDR_NO_RANDOMIZE
        raise PermissionError
    return 1


@act
def go_realtime():
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    return 1


@act
def take_another_processor():
    # More than this process was given.
    os.sched_setaffinity(0, range(os.sysconf("SC_NPROCESSORS_CONF") + 1024))
    n = len(os.sched_getaffinity(0))
    if n < C["cpus"]:
        raise PermissionError
    return n


@act
def call_by_another_abi():
    # getpid() by the 32-bit gate.
    code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    code.write(b"\xb8\x14\x00\x00\x00\xcd\x80\xc3")
    r = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))()
    if r <= 0:
        raise OSError(-r, "int 0x80")
    return r


# --- the runner ---


def runner(name=""):
    """The runner in a sandbox; elsewhere a fresh copy of it, which belongs to whoever asks."""
    directory = C["runner"]
    if not directory.startswith("/opt/"):
        directory = shutil.copytree(directory, tempfile.mkdtemp() + "/runner")
    return f"{directory}/{name}" if name else directory


@act
def write_to_runner():
    with open(runner("main.cjs"), "r+b") as f:
        f.write(b"x")
    return 1


@act
def add_file_to_runner():
    open(runner("new"), "w").close()
    return 1


@act
def rename_file_of_runner():
    path = runner("main.cjs")
    os.rename(path, path + ".moved")
    return 1


@act
def remove_file_of_runner():
    os.unlink(runner("logs.mjs"))
    return 1


@act
def link_into_runner():
    os.symlink("/tmp", runner("link"))
    return 1


@act
def change_mode_of_runner():
    os.chmod(runner("main.cjs"), 0o777)
    return 1


@act
def change_times_of_runner():
    os.utime(runner("main.cjs"), (1, 1))
    return 1


@act
def change_attributes_of_runner():
    # FS_IOC_GETFLAGS, FS_IOC_SETFLAGS: what chattr(1) does.
    fd = os.open(runner("main.cjs"), os.O_RDONLY)
    value = fcntl.ioctl(fd, 0x80086601, b"\0" * 8)
    fcntl.ioctl(fd, 0x40086602, bytes([value[0] | 0x40]) + value[1:])
    return 1


@act
def mount_over_runner():
    path = runner().encode()
    libc("mount", b"/tmp", path, None, 4096, None)
    libc("umount2", path, 0)
    return 1


@act
def replace_runner():
    path = runner()
    os.rename(path, path + ".old")
    return 1


@act
def truncate_file_of_runner():
    os.truncate(runner("main.cjs"), 0)
    return 1


@act
def replace_file_of_runner_by_hard_link():
    path = runner("main.cjs")
    mine = (
        os.path.join(os.path.dirname(os.path.dirname(path)), "mine")
        if not path.startswith("/opt/")
        else os.path.expanduser("~/mine")
    )
    with open(mine, "w") as f:
        f.write("mine")
    os.unlink(path)
    os.link(mine, path)
    return 1


@act
def move_directory_above_runner():
    path = os.path.dirname(runner())
    os.rename(path, path + ".old")
    return 1


@act
def unmount_runner():
    path = runner().encode()
    if not path.startswith(b"/opt/"):
        libc("mount", path, path, None, 4096, None)
    libc("umount2", path, 2)  # MNT_DETACH
    return 1


@act
def make_runner_writable():
    path = runner().encode()
    if not path.startswith(b"/opt/"):
        libc("mount", path, path, None, 4096, None)
    try:
        libc("mount", None, path, None, 4096 | 32, None)  # MS_BIND | MS_REMOUNT
    finally:
        if not path.startswith(b"/opt/"):
            libc("umount2", path, 2)
    return 1


@act
def hard_link_into_runner():
    path = runner("main.cjs")
    os.link(path, path + ".linked")
    return 1


@act
def name_runner_elsewhere():
    # A name for its file where the caller may write; what is written to the one then is written to the other.
    path = runner("main.cjs")
    mine = os.path.expanduser("~/mine") if path.startswith("/opt/") else path + ".mine"
    os.link(path, mine)
    return 1


@act
def set_attribute_of_runner():
    path = runner("main.cjs")
    os.setxattr(path, "user.x", b"x")
    return 1


@act
def open_runner_by_handle():
    # A handle of a file opens it whatever lies above it, and by whatever mount of its file system.
    class Handle(ctypes.Structure):
        _fields_ = [("size", ctypes.c_uint), ("type", ctypes.c_int), ("bytes", ctypes.c_char * 128)]

    path = runner("main.cjs").encode()
    handle, mount_id = Handle(size=128), ctypes.c_int()
    libc("name_to_handle_at", -100, path, ctypes.byref(handle), ctypes.byref(mount_id), 0)
    directory = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY)
    return libc("open_by_handle_at", directory, ctypes.byref(handle), os.O_RDONLY)


# --- the runner's process, which has the same user ---


def runner_process():
    """The process that started this program in a sandbox; elsewhere a child, which anybody may trace."""
    if C["runner"].startswith("/opt/"):
        return PARENT
    no = subprocess.DEVNULL
    return subprocess.Popen(["sleep", "60"], stdin=no, stdout=no, stderr=no).pid


def region(pid):
    """Where its stack begins."""
    with open(f"/proc/{pid}/maps") as f:
        return next(int(line.split("-")[0], 16) for line in f if "[stack]" in line)


@user_act
def see_runner_in_proc():
    return os.listdir(f"/proc/{runner_process()}")


@user_act
def see_environment_of_runner():
    with open(f"/proc/{runner_process()}/environ", "rb") as f:
        return f.read()


@user_act
def see_descriptors_of_runner():
    pid = runner_process()
    return [os.readlink(f"/proc/{pid}/fd/{n}") for n in os.listdir(f"/proc/{pid}/fd")]


@user_act
def take_descriptor_of_runner():
    return os.open(f"/proc/{runner_process()}/fd/0", os.O_RDONLY)


@user_act
def write_memory_of_runner():
    pid = runner_process()
    with open(f"/proc/{pid}/mem", "r+b", 0) as f:
        f.seek(region(pid))
        old = f.read(8)
        f.seek(region(pid))
        f.write(old)
    return old


def vm_call(number):
    # With an address that nobody has: EFAULT is the answer of a kernel that would do it.
    byte = ctypes.create_string_buffer(1)
    mine = (ctypes.c_ulong * 2)(ctypes.addressof(byte), 1)
    theirs = (ctypes.c_ulong * 2)(8, 1)
    return call(number, (runner_process(), ctypes.byref(mine), 1, ctypes.byref(theirs), 1, 0))


@user_act
def read_memory_of_runner_by_call():
    return vm_call(310)  # process_vm_readv()


@user_act
def write_memory_of_runner_by_call():
    return vm_call(311)  # process_vm_writev()


@user_act
def signal_runner():
    pid = runner_process()
    os.kill(pid, 0)
    return pid


@user_act
def signal_runner_by_descriptor():
    signal.pidfd_send_signal(os.pidfd_open(runner_process()), 0)
    return 1


@act
def signal_first_process():
    os.kill(1, 0)
    return 1


def set_limit_of(pid):
    """To what it is already."""
    limit = (ctypes.c_ulong * 2)()
    libc("syscall", ctypes.c_long(302), ctypes.c_long(pid), ctypes.c_long(1), None, ctypes.byref(limit))
    libc("syscall", ctypes.c_long(302), ctypes.c_long(pid), ctypes.c_long(1), ctypes.byref(limit), None)
    return list(limit)


@user_act
def set_limit_of_runner():
    return set_limit_of(runner_process())


@act
def set_limit_of_first_process():
    return set_limit_of(1)


@act
def make_a_device():
    path = "/tmp/device"
    os.mknod(path, 0o20600, os.makedev(1, 3))
    os.unlink(path)
    return 1


# --- system calls ---

# Numbers of x86_64. Each with arguments that are harmless where the call is let through: it then fails by another error
# than "not permitted", or does nothing.
CALLS = {
    "ptrace": (101, 0, 0, 0, 0),  # PTRACE_TRACEME
    "pidfd_getfd": (438, -1, 0, 0),
    "open_by_handle_at": (304, -1, 0, 0),
    "bpf": (321, 999, 0, 0),
    "perf_event_open": (298, 0, 0, -1, -1, 0),
    "userfaultfd": (323, 1),  # UFFD_USER_MODE_ONLY
    "io_uring_setup": (425, 1, None),
    "io_uring_enter": (426, -1, 0, 0, 0, None, 0),
    "mount": (165, b"none", b"/nonexistent", b"tmpfs", 0, None),
    "umount2": (166, b"/nonexistent", 0),
    "pivot_root": (155, b"/nonexistent", b"/nonexistent"),
    "chroot": (161, b"/nonexistent"),
    "open_tree_clone": (428, -100, b"/nonexistent", 1),
    "fsopen": (430, b"nonexistent", 0),
    "move_mount": (429, -1, b"", -1, b"", 0),
    "mount_setattr": (442, -1, b"", 0, None, 0),
    "setns": (308, -1, 0),
    "kexec_load": (246, 0, 0, None, 0xFFFF),
    "init_module": (175, None, 0, b""),
    "finit_module": (313, -1, b"", 0),
    "delete_module": (176, b"nonexistent", 0),
    "reboot": (169, 0, 0, 0, None),
    "swapon": (167, b"/nonexistent", 0),
    "swapoff": (168, b"/nonexistent"),
    "settimeofday": (164, None, None),
    "clock_settime": (227, 99, None),
    "sethostname": (170, None, 0),
    "setdomainname": (171, None, 0),
    "iopl": (172, 0),
    "syslog": (103, 10, None, 0),  # size of the kernel's log
    "quotactl": (179, 0xFFFF, None, 0, None),
    "acct": (163, b"/nonexistent"),
    "fanotify_init": (300, 0, 0),
    "move_pages": (279, 0, 0, None, None, None, 0),
    "vhangup": (153,),
    "add_key": (248, b"user", b"", None, 0, -1),
    "request_key": (249, b"nonexistent", b"", None, 0),
    "keyctl": (250, 999),
    "modify_ldt": (154, 99, None, 0),
}
NAMESPACES = {
    "mount": 0x20000,
    "cgroup": 0x2000000,
    "uts": 0x4000000,
    "ipc": 0x8000000,
    "user": 0x10000000,
    "pid": 0x20000000,
    "net": 0x40000000,
    "time": 0x80,
}


def call(number, args):
    if platform.machine() != "x86_64":
        raise NotImplementedError
    args = [ctypes.c_long(a) if isinstance(a, int) else a for a in args]
    try:
        return f"returned {libc('syscall', ctypes.c_long(number), *args)}"
    except OSError as e:
        if e.errno in (errno.EPERM, errno.ENOSYS):
            raise
        return f"let through: {errno.errorcode[e.errno]}"


def clone(flag):
    # SIGCHLD in the low bits; CLONE_NEWTIME lies among them and is for unshare() only.
    pid = libc("syscall", ctypes.c_long(56), ctypes.c_long(flag | signal.SIGCHLD), None, None, None, None)
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return pid


def clone3(flag):
    args = (ctypes.c_ulonglong * 11)(flag, 0, 0, 0, signal.SIGCHLD)
    pid = libc("syscall", ctypes.c_long(435), ctypes.byref(args), ctypes.c_long(64))
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return pid


def enter(name):
    with open(f"/proc/self/ns/{name}") as f:
        libc("setns", f.fileno(), 0)
    return name


for _name, (_number, *_args) in CALLS.items():
    ACTS["call_" + _name] = lambda number=_number, args=_args: call(number, args)
for _name, _flag in NAMESPACES.items():
    ACTS[f"unshare_{_name}"] = lambda flag=_flag: libc("unshare", flag) or 1
    if _name != "time":
        ACTS[f"clone_{_name}"] = lambda flag=_flag: clone(flag)
        ACTS[f"clone3_{_name}"] = lambda flag=_flag: clone3(flag)
for _name in ("mnt", "net", "uts", "ipc", "cgroup"):
    ACTS[f"enter_{_name}"] = lambda name=_name: enter(name)
