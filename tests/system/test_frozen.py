# SPDX-License-Identifier: LGPL-2.1-or-later
"""Environments stay as they are, byte for byte, until their owner freezes what a run changed: what runs leave is
gone, what is frozen is there, and a freeze moves the head only from where the run began.
"""

import hashlib
import json
import os
import re
import shutil
import uuid

import dbus
import pytest

import inside
from client import RUNTIME, STATE, agentctl, kill, run, wait_until

# Digest over the whole root as seen from inside: names, kinds, modes, owners, sizes, times, attributes, targets, bytes.
# Left out is what is not the environment's: the kernel's and the run's own trees, and the files of its identity.
DIGEST = """
SKIP = ("/proc", "/sys", "/dev", "/run", "/tmp", "/var/tmp", "/opt/agentd/runner", "/etc/hostname", "/etc/hosts",
        "/etc/machine-id")

def root_digest(tops=("/",), skip=SKIP):
    entries, links = [], {}
    for top in tops:
        for d, dirs, files in os.walk(top):
            dirs[:] = sorted(x for x in dirs if os.path.join(d, x) not in skip)
            for name in [""] + sorted(files) + [x for x in dirs if os.path.islink(os.path.join(d, x))]:
                p = os.path.join(d, name) if name else d
                if p in skip:
                    continue
                s = os.lstat(p)
                h = ""
                if stat.S_ISREG(s.st_mode):
                    if os.access(p, os.R_OK):
                        with open(p, "rb") as f:
                            h = hashlib.file_digest(f, "sha256").hexdigest()
                elif stat.S_ISLNK(s.st_mode):
                    h = os.readlink(p)
                attributes = []
                for x in os.listxattr(p, follow_symlinks=False):
                    attributes.append((x, os.getxattr(p, x, follow_symlinks=False).hex()))
                owner = "me" if s.st_uid == os.getuid() else s.st_uid
                size = 0 if stat.S_ISDIR(s.st_mode) else s.st_size
                linked = s.st_nlink > 1 and not stat.S_ISDIR(s.st_mode)
                first = links.setdefault((s.st_dev, s.st_ino), p) if linked else p
                entries.append((p, s.st_mode, owner, size, s.st_mtime_ns, sorted(attributes), h, first))
    entries.sort()
    return entries

def digest(entries):
    return hashlib.sha256(json.dumps(entries).encode()).hexdigest()
"""

# What a run can leave, in each of the ways there are; N makes every run's different.
VANDALISM = """
def vandalise(n):
    for d in ("/home/agent", "/tmp", "/var/tmp", "/dev/shm"):
        for i in range(20):
            with open("%s/v%s-%d" % (d, n, i), "wb") as f:
                f.write(os.urandom(3000))
    home = "/home/agent/"
    for name in sorted(os.listdir(home)):
        if n % 2 and os.path.isfile(home + name) and not os.path.islink(home + name):
            os.chmod(home + name, 0o777)
            os.utime(home + name, (n, n))
        elif not name.startswith("v"):
            subprocess.run(["rm", "-rf", home + name])
    os.symlink("/etc", home + "link%d" % n)
    os.link(home + "v%s-1" % n, home + "hard%d" % n)
    os.makedirs(home + ".bashrc.d/a/b/c")
    os.chmod(home, 0o700 + n % 8)
    os.utime(home, (n, n))
    os.setxattr(home + "v%s-2" % n, "user.mark", b"%d" % n)
    os.mkfifo(home + "fifo%d" % n)
    for p in ("/etc/passwd", "/usr/bin/python3", "/opt/agentd/runner/main.cjs", "/etc/ld.so.preload"):
        try:
            with open(p, "w") as f:
                f.write("x")
        except OSError:
            pass
"""


@pytest.fixture
def vandal(make_agent):
    return make_agent(inside.COMMAND, kind="command", concurrency=4)


def test_twenty_runs_leave_nothing(agentd, vandal):
    """Each of 20 runs takes the digest of its root, then changes all that it can; some end badly. All digests are
    equal, and so are those of the environment in the receipts."""
    code = inside.PRELUDE + DIGEST + VANDALISM
    paths = [
        agentd.execute(
            vandal,
            code
            + f"""
value = digest(root_digest())
vandalise({n})
say([value, value == digest(root_digest())])
if {n} % 5 == 4:
    bridge("POST", "/v1/run/result", json.dumps({{"status": "failed", "output": [value, False]}}))
    sys.stdout.flush()
    os._exit(1)
""",
        )
        for n in range(20)
    ]
    seen = set()
    for n, path in enumerate(paths):
        result, message = agentd.finish(path)
        assert result == ("failed" if n % 5 == 4 else "success"), message
        value, same = agentd.result(path)["output"]
        assert not same, "the run changed nothing, so nothing is shown"
        seen.add((value, str(agentd.get(path, "Environment")), str(agentd.get(path, "Generation"))))
    assert len(seen) == 1, seen


def generations(agentd, agent):
    return [[str(x) if isinstance(x, str) else x for x in row] for row in agentd.call("ListGenerations", agent)]


def test_freeze_takes_everything(agentd, make_agent):
    """Files, deletions, modes, times, symlinks, hard links, attributes, empty and replaced directories of a run with
    keep are in the next generation as the run left them, and nothing else has changed."""
    agent = make_agent(inside.COMMAND, kind="command")
    code = inside.PRELUDE + DIGEST
    prepare = """
h = "/home/agent/"
os.makedirs(h + "old/sub"); os.makedirs(h + "full/x"); os.makedirs(h + "gone/y")
for p in ("old/file", "old/sub/deep", "full/x/1", "gone/y/2", "rename", "replace-by-dir", "mode", "text"):
    open(h + p, "w").write(p)
"""
    change = """
h = "/home/agent/"
import shutil
os.unlink(h + "old/file")
shutil.rmtree(h + "gone")
shutil.rmtree(h + "full"); os.mkdir(h + "full"); open(h + "full/new", "w").write("only this")
os.rename(h + "rename", h + "renamed")
os.unlink(h + "replace-by-dir"); os.mkdir(h + "replace-by-dir")
os.chmod(h + "mode", 0o1711 & 0o777); os.utime(h + "mode", ns=(1, 1234567890123456789))
open(h + "text", "a").write(" more")
os.symlink("/nonexistent/target", h + "dangling"); os.symlink("renamed", h + "relative")
open(h + "fresh", "w").write("fresh"); os.link(h + "fresh", h + "fresh-too"); os.link(h + "text", h + "text-too")
os.setxattr(h + "text", "user.note", bytes(range(256)))
os.mkdir(h + "empty"); os.chmod(h + "empty", 0o555)
open(h + "sparse", "wb").truncate(1 << 22)
open(h + "name with \\u00fc \\n and newline", "w").write("odd")
os.mkfifo(h + "fifo")
"""
    first = agentd.execute(agent, code + prepare + "say(1)", keep=True)
    assert agentd.finish(first)[0] == "success"
    before = generations(agentd, agent)
    assert [row[5] for row in before] == [True]
    result, prepared = agentd.freeze(agent, first, "prepared")
    assert result == "done", prepared

    # All of home, and the digest of the rest.
    whole = 'say([root_digest(["/home/agent"]), digest(root_digest(["/"], SKIP + ("/home/agent",)))])'
    second = agentd.execute(agent, code + change + whole, keep=True)
    assert agentd.finish(second)[0] == "success"
    left, rest = agentd.result(second)["output"]
    assert str(agentd.get(second, "Generation")) == prepared
    result, digest = agentd.freeze(agent, second, "changed")
    assert result == "done", digest

    third = agentd.execute(agent, code + whole)
    assert agentd.finish(third)[0] == "success"
    found, found_rest = agentd.result(third)["output"]
    assert found_rest == rest
    assert str(agentd.get(third, "Generation")) == digest

    def comparable(entries):
        return {e[0]: e[1:] for e in entries}

    left, found = comparable(left), comparable(found)
    # A link to a file of a lower layer shows in the live run as a file of its own (overlayfs); the layer has the link.
    assert found["/home/agent/text-too"][-1] == "/home/agent/text"
    assert found["/home/agent/fresh-too"][-1] == "/home/agent/fresh"
    left["/home/agent/text-too"][-1] = "/home/agent/text"
    assert set(found) == set(left)
    assert {p: (left[p], found[p]) for p in left if left[p] != found[p]} == {}
    home = {p.removeprefix("/home/agent/") for p in found if p.startswith("/home/agent/")}
    assert "gone" not in home and "full/x" not in home and "full/new" in home and "old/sub/deep" in home
    log = generations(agentd, agent)
    assert [(row[0], row[1], row[4], bool(row[5])) for row in log[:2]] == [
        (digest, prepared, "changed", True),
        (prepared, before[0][0], "prepared", False),
    ]
    shown = json.loads(agentctl("env", "log", agent, "--json").stdout)
    assert digest in json.dumps(shown) and "changed" in json.dumps(shown)


def layers():
    return {
        name: hashlib.sha256(open(f"{STATE}/layers/{name}", "rb").read()).hexdigest()
        for name in os.listdir(f"{STATE}/layers")
    }


def keep_run(agentd, agent, text):
    path = agentd.execute(agent, inside.PRELUDE + f'open("/home/agent/f", "w").write({text!r}); say(1)', keep=True)
    assert agentd.finish(path)[0] == "success"
    return path


def test_layers_are_named_by_their_bytes(agentd, make_agent):
    """And never change: neither by a freeze nor by runs on them."""
    agent = make_agent(inside.COMMAND, kind="command")
    before = layers()
    assert all(name == f"sha256-{digest}.erofs" for name, digest in before.items())
    path = keep_run(agentd, agent, uuid.uuid4().hex)
    assert agentd.freeze(agent, path)[0] == "done"
    after = layers()
    assert {k: after.get(k) for k in before} == before and len(after) == len(before) + 1
    assert all(name == f"sha256-{digest}.erofs" for name, digest in after.items())
    assert run("find", f"{STATE}/layers", "-type", "f", "!", "-perm", "0444").stdout == ""


def test_same_changes_same_layer(agentd, make_agent):
    """A freeze is reproducible: two runs that leave the same bytes and times make the same environment."""
    text = uuid.uuid4().hex
    code = (
        inside.PRELUDE
        + f"""
open("/home/agent/f", "w").write({text!r})
for p in ("/home/agent/f", "/home/agent"):
    os.utime(p, (1e9, 1e9))
say(1)
"""
    )
    environments = []
    for _ in range(2):
        agent = make_agent(inside.COMMAND, kind="command")
        path = agentd.execute(agent, code, keep=True)
        assert agentd.finish(path)[0] == "success"
        result, detail = agentd.freeze(agent, path)
        assert result == "done", detail
        path = agentd.execute(agent, inside.PRELUDE + "say(1)")
        agentd.finish(path)
        environments.append(agentd.receipt(path)["environment"])
    assert environments[0] == environments[1]


def refused(agentd, agent, path, error):
    try:
        result, detail = agentd.freeze(agent, path)
    except dbus.DBusException as e:
        assert e.get_dbus_name() == f"org.agentd1.Error.{error}" and e.get_dbus_message()
    else:
        assert result == "failed" and len(detail) > 10, (result, detail)


def test_what_cannot_be_frozen(agentd, make_agent):
    agent, other = (make_agent(inside.COMMAND, kind="command") for _ in range(2))
    head = generations(agentd, agent)
    failed = agentd.execute(agent, "import sys; sys.exit(1)", keep=True)
    assert agentd.finish(failed)[0] == "exit-code"
    plain = agentd.execute(agent, inside.PRELUDE + "say(1)")
    assert agentd.finish(plain)[0] == "success"
    kept = keep_run(agentd, agent, "x")
    refused(agentd, agent, failed, "NotFreezable")
    refused(agentd, agent, plain, "NotFreezable")
    refused(agentd, other, kept, "NoSuchRun")
    refused(agentd, agent, "/x/" + "0" * 32, "NoSuchRun")
    assert generations(agentd, agent) == head
    assert agentd.freeze(agent, kept)[0] == "done"
    refused(agentd, agent, kept, "NotFreezable")  # its changes are used up


def test_freeze_after_the_head_moved(agentd, make_agent):
    """Of two runs that began at the same head, the second cannot be frozen over the first."""
    agent = make_agent(inside.COMMAND, kind="command")
    one, two = keep_run(agentd, agent, "one"), keep_run(agentd, agent, "two")
    result, head = agentd.freeze(agent, one)
    assert result == "done"
    files = set(os.listdir(f"{STATE}/layers"))
    refused(agentd, agent, two, "NotFreezable")
    assert [row[0] for row in generations(agentd, agent) if row[5]] == [head]
    path = agentd.execute(agent, inside.PRELUDE + 'say(open("/home/agent/f").read())')
    agentd.finish(path)
    assert agentd.result(path)["output"] == "one"
    assert set(os.listdir(f"{STATE}/layers")) >= files


def test_kept_changes_survive_a_restart(agentd, make_agent):
    agent = make_agent(inside.COMMAND, kind="command")
    path = keep_run(agentd, agent, "kept")
    run("systemctl", "restart", "agentd.service")
    result, detail = agentd.freeze(agent, path)
    assert result == "done", detail


def test_image_changed_under_an_agent(agentd, make_agent, image):
    """An agent keeps its environment when its image goes."""
    agent = make_agent("exit 0")
    head = generations(agentd, agent)
    definition = json.loads(
        agentd.get(f"/org/agentd1/agent/root/{agent.replace('-', '_2d')}", "Definition", "org.agentd1.Agent")
    )
    assert definition["image"] == image
    with pytest.raises(dbus.DBusException) as e:
        agentd.call("RemoveImage", "no-such-image")
    assert e.value.get_dbus_name() == "org.agentd1.Error.NoSuchImage"
    assert generations(agentd, agent) == head


def test_changes_go_with_their_agent(agentd, make_agent):
    """What a keep run left can be frozen for its agent only, so it goes when the agent does."""
    name = make_agent("echo kept > ~/kept")
    path = agentd.execute(name, "", keep=True)
    assert agentd.finish(path)[0] == "success"
    rest = f"{RUNTIME}/runs/{path.rsplit('/', 1)[1]}"
    assert os.path.isdir(rest)
    agentd.call("RemoveAgent", name)
    wait_until(lambda: not os.path.exists(rest), "the kept changes of a removed agent to go")


LOOK = inside.PRELUDE + DIGEST + """
say([digest(root_digest()), sorted(k for k in os.environ), sys.version, sorted(os.listdir("/")), time.tzname, os.path.realpath("/proc/self/exe")])
"""


def look(agentd, agent):
    """What a run sees, and on which environment."""
    path = agentd.execute(agent, LOOK)
    result, message = agentd.finish(path)
    assert result == "success", message
    receipt = agentd.receipt(path)
    return agentd.result(path)["output"], receipt["environment"], receipt["runner"]


def repack(package, folder, change):
    """A package as it is installed, with all of its files as CHANGE(name, bytes) makes them; another version of it."""
    root = folder / "root"
    (root / "DEBIAN").mkdir(parents=True)
    control = run("dpkg-query", "-s", package).stdout
    control = re.sub(r"(?m)^(Status|Conffiles):.*\n( .*\n)*", "", control)
    (root / "DEBIAN/control").write_text(re.sub(r"(?m)^Version: .*$", f"Version: {change(None, None)}", control))
    for name in run("dpkg-query", "-L", package).stdout.splitlines():
        if os.path.islink(name):
            (root / name[1:]).parent.mkdir(parents=True, exist_ok=True)
            (root / name[1:]).symlink_to(os.readlink(name))
        elif os.path.isfile(name):
            (root / name[1:]).parent.mkdir(parents=True, exist_ok=True)
            with open(name, "rb") as f:
                (root / name[1:]).write_bytes(change(name, f.read()))
            (root / name[1:]).chmod(os.stat(name).st_mode & 0o7777)
    run("dpkg-deb", "--root-owner-group", "-Znone", "--build", root, folder / "p.deb")
    shutil.rmtree(root)
    return folder / "p.deb"


@pytest.fixture
def upgrade(tmp_path):
    """Upgrades packages of the host for real; the old versions are back after the test."""
    back = []

    def do(package):
        version = run("dpkg-query", "-W", "-f", "${Version}", package).stdout
        for name in ("old", "new"):
            (tmp_path / package / name).mkdir(parents=True)
        back.append(repack(package, tmp_path / package / "old", lambda n, data: version if n is None else data))

        def newer(name, data):
            if name is None:
                return version + "+upgraded"
            # Bytes of text files; of programs only the time and the inode, for the machine is to go on.
            return data if b"\\0" in data[:4096] or name.startswith(("/usr/bin", "/usr/sbin")) else data + b"\\n# upgraded\\n"

        new = repack(package, tmp_path / package / "new", newer)
        run("dpkg", "--force-confnew", "--force-downgrade", "-i", new)
        assert run("dpkg-query", "-W", "-f", "${Version}", package).stdout.endswith("+upgraded")

    yield do
    for deb in back:
        run("dpkg", "--force-confnew", "--force-downgrade", "-i", deb)


def test_what_the_platform_does_changes_no_byte(agentd, make_agent, runners, upgrade, tmp_path):
    """Ten deploys, upgrades of the host's packages, and restarts of everything, with runs in between: all that a run can see
    but the runner is the same, and so are the digests.
    """
    agent = make_agent(inside.COMMAND, kind="command")
    first = keep_run(agentd, agent, "mine")
    assert agentd.freeze(agent, first)[0] == "done"
    seen, environment, runner = look(agentd, agent)
    before, shipped = layers(), "/usr/lib/agentd/runner"
    head = [row[0] for row in generations(agentd, agent) if row[5]]
    packages = iter(["base-files", "tzdata", "ca-certificates", "debianutils"])
    for n in range(10):
        shutil.copytree(shipped, tmp_path / str(n))
        with open(tmp_path / str(n) / "main.cjs", "a") as f:
            f.write(f"// of another day: {n} {uuid.uuid4().hex}\\n")
        new = runners.deploy(tmp_path / str(n))
        if n % 3 == 0:
            with open("/etc/debian_version") as f:
                was = f.read()
            upgrade(next(packages))
            with open("/etc/debian_version") as f:
                assert n or f.read() != was, "nothing was upgraded, so nothing is shown"
        if n % 3 == 1:
            run("systemctl", "restart", "agentd.service", "agent-bridged.service", "agent-credentiald.service")
        if n % 3 == 2:
            run("systemctl", "daemon-reexec")
            kill("agentd.service")
        if n % 3 != 0:  # to hash all of it takes a while
            path = agentd.execute(agent, inside.PRELUDE + "say(1)")
            assert agentd.finish(path)[0] == "success" and agentd.receipt(path)["runner"] == new
            continue
        again, same, ran = look(agentd, agent)
        assert ran == new != runner, "the run had an old runner, so nothing is shown"
        assert again == seen and same == environment
    after = layers()
    assert {k: after.get(k) for k in before} == before
    assert head[0] in [row[0] for row in generations(agentd, agent)]
    # What was frozen before all of it, as its owner finds it when they go back to it.
    agentctl("env", "rollback", agent, "2")
    again, same, _ = look(agentd, agent)
    assert again == seen and same == environment
    assert run("agentctl", "env", "fsck").returncode == 0
