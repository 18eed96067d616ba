# SPDX-License-Identifier: LGPL-2.1-or-later
"""Freezing a change against tar and podman, and starting a run from a small and from a large environment."""
import io
import json
import os
import pathlib
import shutil
import subprocess
import tarfile
import time

# On the disk that the store is on, as the machine's own root is memory.
DISK = pathlib.Path("/mnt/out/bench")
IMAGE_TAR = "/var/cache/agentd-test/rootfs.tar"
ROUNDS = 5
CHANGE = """
import os
os.makedirs("{where}/data", exist_ok=True)
for d in range(40):
    os.mkdir(f"{where}/data/{{d}}")
    for f in range(50):
        with open(f"{where}/data/{{d}}/{{f}}", "wb") as out: out.write(os.urandom(100000))
"""
PODMAN = ("podman", "--root", str(DISK / "podman"), "--runroot", "/run/bench-podman", "--storage-driver", "overlay",
          "--cgroup-manager", "cgroupfs", "--log-level", "error")


def sh(*argv, stdin=None):
    return subprocess.run(argv, input=stdin, check=True, text=True, capture_output=True).stdout


def timed(*argv):
    begin = time.monotonic()
    sh(*argv)
    return (time.monotonic() - begin) * 1e6


def podman_change():
    """A container with the same change, or None where podman does not work here, with why."""
    if not shutil.which("podman"):
        return None, "podman is not installed"
    try:
        if "bench-base" not in sh(*PODMAN, "images", "--format", "{{.Names}}"):
            sh(*PODMAN, "import", "--quiet", IMAGE_TAR, "bench-base")
        return sh(*PODMAN, "create", "--network=none", "--cgroups=disabled", "--security-opt=seccomp=unconfined", "bench-base",
                  "python3", "-c", CHANGE.format(where="/srv")).strip(), None
    except subprocess.CalledProcessError as e:
        return None, (e.stderr.strip().splitlines() or ["podman failed"])[-1]


def freeze(row, ensure_agent):
    ensure_agent("bench-freeze", kind="command", command=["/usr/bin/python3", "-c", CHANGE.format(where="/home/agent")],
                 limits={"memory": "2G", "disk": "1G"})
    DISK.mkdir(parents=True, exist_ok=True)
    ours, tar, podman, why = [], [], [], None
    for i in range(ROUNDS + 1):
        run = sh("agentctl", "run", "--wait", "--keep", "--json=short", "bench-freeze")
        run = json.loads(run)
        run_id = run.get("run") or run.get("id")
        upper = f"/run/agentd/runs/{run_id}/rw/upper"
        os.sync()
        # A generation is on the disk when a freeze ends, so the tar has to be, too.
        t = timed("sh", "-c", f"tar -cf {DISK}/change.tar -C {upper} . && sync {DISK}/change.tar")
        (DISK / "change.tar").unlink()
        os.sync()
        f = timed("agentctl", "--quiet", "env", "freeze", "bench-freeze", "--from-run", run_id)
        container, why = podman_change()
        p = None
        if container:
            try:
                sh(*PODMAN, "start", "--attach", container)
                os.sync()
                p = timed(*PODMAN, "commit", "--quiet", container, "bench-changed")
                sh(*PODMAN, "rm", "--force", container)
            except subprocess.CalledProcessError as e:
                why = (e.stderr.strip().splitlines() or ["podman failed"])[-1]
        sh("agentctl", "env", "rollback", "bench-freeze", "1")
        sh("agentctl", "env", "prune", "bench-freeze", "--keep=1")
        if i > 0:  # the first one warms up
            ours.append(f), tar.append(t)
            podman += [p] if p else []
    yield row("freeze", "200 MB in 2,000 files", "tar -cf of the same tree, and sync", ours, tar, 2.0)
    if podman:
        yield row("freeze", "200 MB in 2,000 files", "podman commit", ours, podman, 0.3)
    else:
        yield row("freeze", "200 MB in 2,000 files", f"podman commit: cannot be run here ({why})", ours, None, None)
    shutil.rmtree(DISK, ignore_errors=True)


def make_root(path, megabytes):
    """A root file system of that size, in a hundred times as many files."""
    with tarfile.open(path, "w") as t:
        for name in ("etc", "usr/bin", "usr/lib", "usr/lib64", "srv"):
            info = tarfile.TarInfo(name)
            info.type, info.mode = tarfile.DIRTYPE, 0o755
            t.addfile(info)
        for name in ("bin", "lib", "lib64"):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, "usr/" + name
            t.addfile(info)
        for line in ["/usr/bin/true", *sh("ldd", "/usr/bin/true").split()]:
            if line.startswith("/") and os.path.exists(line):
                info = t.gettarinfo(os.path.realpath(line), "usr/" + line.removeprefix("/usr").lstrip("/"))
                info.type, info.linkname = tarfile.REGTYPE, ""
                info.size = os.path.getsize(line)
                with open(line, "rb") as f:
                    t.addfile(info, f)
        data = os.urandom(10000) * 1
        for i in range(megabytes * 100):
            info = tarfile.TarInfo(f"srv/{i // 1000}/{i}")
            info.size = len(data)
            t.addfile(info, io.BytesIO(data))


def boot_size(row, ensure_agent, calls, turns):
    DISK.mkdir(parents=True, exist_ok=True)
    for name, megabytes in (("bench-small", 50), ("bench-large", 5000)):
        if f'"{name}"' not in sh("agentctl", "image", "list", "--json=short"):
            make_root(DISK / "root.tar", megabytes)
            sh("agentctl", "image", "import", name, str(DISK / "root.tar"))
            (DISK / "root.tar").unlink()
        ensure_agent(name, image=name, kind="exec", command=["/bin/true"])
    ours, ref = turns(lambda n: [c["usec"] for c in calls("bench-large", n)], lambda n: [c["usec"] for c in calls("bench-small", n)])
    yield row("boot-size", "5 GB", "50 MB", ours, ref, 1.05)
    for name in ("bench-small", "bench-large"):
        sh("agentctl", "agent", "remove", name)
        sh("agentctl", "image", "remove", name)
    sh("agentctl", "env", "prune")
    shutil.rmtree(DISK, ignore_errors=True)
