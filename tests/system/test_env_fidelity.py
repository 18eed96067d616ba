# SPDX-License-Identifier: LGPL-2.1-or-later
"""What an edit leaves is what a freeze takes: owners, capabilities, access lists, times, names and depths that a run cannot make, as
seen by the environment's own root before and after, and by a run.
"""

import json
import os

from client import STATE, agentctl
from test_env_edit import agent, in_run  # noqa: F401 - a fixture
from test_env_store import fsck, top_layer

MAKE = r"""
import os, struct
h = b"/srv/"
def put(name, data=b"x", mode=0o644, uid=0, gid=0, ns=1_234_567_890_123_456_789):
    with open(h + name, "wb") as f: f.write(data)
    os.chown(h + name, uid, gid); os.chmod(h + name, mode); os.utime(h + name, ns=(1, ns))
for i, (u, g) in enumerate([(0, 0), (1, 65534), (1000, 1000), (1001, 0), (65533, 65533), (4711, 12)]):
    put(b"owner%d" % i, uid=u, gid=g, mode=0o4750 | i)
put(b"n" * 255); put(b"new\nline \xe9\xff"); put(b" "); put(b"-rf"); put("ünï".encode())
put(b"ns0", ns=1); put(b"ns1", ns=999_999_999); put(b"future", ns=4_000_000_000_000_000_001); put(b"old", ns=-1_000_000_001)
put(b"empty", b""); put(b"tail", b"x" * 4097); put(b"page", b"y" * 4096); put(b"large", os.urandom(3 << 20))
with open(h + b"sparse", "wb") as f:
    f.seek(1 << 20); f.write(b"in the middle"); f.truncate(8 << 20)
put(b"caps"); os.setxattr(h + b"caps", "security.capability", struct.pack("<IIIII", 0x02000001, 1 << 13, 0, 0, 0))
entry = lambda tag, perm, who: struct.pack("<HHI", tag, perm, who)
nobody = 0xffffffff
acl = struct.pack("<I", 2) + entry(1, 6, nobody) + entry(2, 7, 1000) + entry(4, 4, nobody) + entry(16, 7, nobody) + entry(32, 0, nobody)
put(b"acl"); os.setxattr(h + b"acl", "system.posix_acl_access", acl)
os.mkdir(h + b"acl.d"); os.setxattr(h + b"acl.d", "system.posix_acl_default", acl)
for n in (b"many",):
    put(n)
    for k in (b"user.z", b"user.a", b"user.m\xc3\xa9"): os.setxattr(h + n, k, k * 100)
deep = h + b"deep"
os.mkdir(deep)
here = os.open(deep, os.O_RDONLY)
for i in range(78):
    os.mkdir(b"d" * 50, dir_fd=here)
    below = os.open(b"d" * 50, os.O_RDONLY, dir_fd=here); os.close(here); here = below
os.close(os.open(b"bottom", os.O_CREAT | os.O_WRONLY, dir_fd=here))
os.link(h + b"large", h + b"link1"); os.mkdir(h + b"sub"); os.link(h + b"large", h + b"sub/link2")
os.symlink(b"/nowhere/\xff", h + b"dangling"); os.symlink(b"t" * 4000, h + b"long"); os.lchown(h + b"dangling", 7, 8)
os.mkfifo(h + b"fifo", 0o622); os.mkdir(h + b"sticky"); os.chmod(h + b"sticky", 0o3777)
"""

LOOK = r"""
import hashlib, json, os, stat, sys
def look(dir_fd, name, path, out):
    s = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
    fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=dir_fd) if stat.S_ISREG(s.st_mode) or stat.S_ISDIR(s.st_mode) else -1
    xattrs = {x: os.getxattr(fd, x).hex() for x in os.listxattr(fd)} if fd >= 0 else {}
    what = os.readlink(name, dir_fd=dir_fd).hex() if stat.S_ISLNK(s.st_mode) else ""
    if stat.S_ISREG(s.st_mode):
        what = hashlib.file_digest(os.fdopen(os.dup(fd), "rb"), "sha256").hexdigest()
    links = s.st_nlink if not stat.S_ISDIR(s.st_mode) else 0
    out[path.hex()] = [s.st_mode, s.st_uid, s.st_gid, links, s.st_size if not stat.S_ISDIR(s.st_mode) else 0, s.st_mtime_ns, xattrs, what]
    if stat.S_ISDIR(s.st_mode):
        for n in map(os.fsencode, os.listdir(fd)):
            below = path + b"/" + n
            look(fd, n, below if len(below) < 2000 else b"deep/" + hashlib.sha256(below).digest(), out)
    if fd >= 0: os.close(fd)
out = {}
sys.setrecursionlimit(5000)
look(None, b"/srv", b"/srv", out)
json.dump(out, sys.stdout)
"""


def python(name, code):
    done = agentctl("env", "edit", name, "--", "/usr/bin/python3", "-c", code)
    return done.stdout


def test_all_that_root_can_make(agentd, agent, make_agent):  # noqa: F811
    python(agent, MAKE)
    before = json.loads(python(agent, LOOK))
    assert len(before) > 100
    agentctl("env", "freeze", agent)
    after = json.loads(python(agent, LOOK))
    agentctl("env", "discard", agent)
    # EROFS has no time before its epoch; all else is as it was.
    assert {bytes.fromhex(p): (before[p], after.get(p)) for p in before if before[p] != after.get(p)} == {}
    assert set(before) == set(after)
    # In the layer ids are the image's own, also within a capability: no number of this host is in it.
    # A run knows root and its own user; whoever else is nobody to it.
    assert in_run(agentd, agent, "getcap /srv/caps; stat -c '%u %g %a' /srv/owner5").split("\n") == [
        "/srv/caps cap_net_raw=ep", "65534 65534 4755"]
    mount = f"/run/agentd/layers/{top_layer(agent)[7:]}/srv"
    assert os.getxattr(f"{mount}/caps", "security.capability")[3] == 2 and [os.stat(f"{mount}/owner{i}").st_uid for i in (0, 5)] == [0, 4711]
    assert os.getxattr(f"{mount}/acl", "system.posix_acl_access")[12:20] == bytes([2, 0, 7, 0]) + (1000).to_bytes(4, "little")

    assert fsck(agentd)[0] == "done"


def test_a_path_that_nobody_can_open(agentd, agent):  # noqa: F811
    """Made step by step. It is refused in words, and the changes stay for whoever mends them."""
    python(agent, """
import os
os.mkdir("/srv/deep"); os.chdir("/srv/deep")
for i in range(90): os.mkdir("d" * 50); os.chdir("d" * 50)
open("/srv/kept", "w").write("kept")
""")
    done = agentctl("env", "freeze", agent, check=False)
    assert done.returncode == 1 and "longer than" in done.stderr, done.stderr
    agentctl("env", "edit", agent, "--", "/bin/sh", "-c", "rm -r /srv/deep; cat /srv/kept")
    agentctl("env", "freeze", agent)
    assert in_run(agentd, agent, "cat /srv/kept") == "kept"


def test_the_same_tree_is_stored_once(agentd, agent, make_agent):  # noqa: F811
    """Made in another order, in an agent of its own, at another time."""
    other = make_agent("cat > /tmp/s; . /tmp/s", kind="command")
    times = "; find /srv /srv/.. -maxdepth 0 -exec touch -h -d @1000000000 {} +; find /srv -exec touch -h -d @1000000000 {} +"
    files = [f"mkdir -p /srv/{i % 7}; echo {i} > /srv/{i % 7}/{i}" for i in range(40)]
    one = "; ".join(files) + times
    two = "; ".join(["mkdir -p /srv/3; echo gone > /srv/3/gone", *reversed(files), "rm /srv/3/gone"]) + times
    for name, script in ((agent, one), (other, two)):
        agentctl("env", "edit", name, "--", "/bin/sh", "-euc", script)
        agentctl("env", "freeze", name)
    assert top_layer(agent) == top_layer(other)
    usage = {r["agent"]: r for r in json.loads(agentd.call("GetDiskUsage"))["agents"]}
    assert usage["root/" + agent]["own"] == usage["root/" + other]["own"] == 0
    names = [n for n in os.listdir(STATE + "/layers") if top_layer(agent)[7:] in n]
    assert len(names) == 1
    agentctl("env", "discard", other, check=False)
