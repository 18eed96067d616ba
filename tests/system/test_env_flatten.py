# SPDX-License-Identifier: LGPL-2.1-or-later
"""A tall stack of layers becomes one, and nobody can tell but by the log."""

import json
import pathlib

import dbus

from client import agentctl, run, show, wait_until
from test_env_edit import edit
from test_env_generations import diff, said
from test_env_store import fsck, prune

STEPS = [
    "mkdir -p /opt/d/sub /opt/e; echo 1 > /opt/d/a; ln /opt/d/a /opt/d/hard; ln -s a /opt/d/soft; echo s > /opt/d/sub/x",
    "rm /etc/debian_version; rm /opt/d/a; echo big > /opt/d/b; chmod 4711 /opt/d/b; setcap cap_net_raw+ep /opt/d/b || true",
    "rm -r /etc/apt; mkdir /etc/apt; echo only > /etc/apt/only",          # opaque over the image's
    "rm -r /opt/d/sub; echo file > /opt/d/sub",                           # a file where a directory was
    "rm /opt/d/sub; mkdir /opt/d/sub; echo again > /opt/d/sub/y",         # and back
    "echo x > /etc/debian_version; chown 12:34 /etc/debian_version; rm -r /opt/e",
    "rm /etc/apt/only; touch -d 2001-02-03 /etc/apt; mkfifo /opt/d/fifo; mkdir /opt/e; echo e > /opt/e/e",
    "python3 -c \"import os; os.setxattr('/opt/e/e', 'user.k', b'v')\"; printf x > \"/opt/d/$(printf 'o\\nd\\351d')\"",
    "rm -r /usr/share/doc; ln -s /opt /usr/share/doc; truncate -s 100k /opt/d/sparse",
]


def rows(agentd, name):
    return [(int(r[6]), str(r[3]), bool(r[5]), str(r[4])) for r in agentd.call("ListGenerations", name)]


def test_flatten(agentd, make_agent):
    name = make_agent("cat > /tmp/s; . /tmp/s", kind="command")
    for step in STEPS[:-1]:
        edit(name, step)
        agentctl("env", "freeze", name)
    assert len(rows(agentd, name)) == len(STEPS)  # 8 layers are not too many
    edit(name, STEPS[-1])
    agentctl("env", "freeze", name)
    edit(name, "echo edit > /etc/edit")  # begins on the tall stack
    wait_until(lambda: len(rows(agentd, name)) == len(STEPS) + 2, "the flattening")
    number, author, head, note = rows(agentd, name)[0]
    assert author == "agentd" and head and "9 layers" in note
    layers = json.loads(agentctl("env", "show", name).stdout)["layers"]
    assert len(layers) == 2
    document = diff(agentd, name, str(number - 1), "head")
    assert document["paths"] == [] and document["packages"] == [], document["paths"]
    # What was deleted from the image is still gone, with only the flat layer above it.
    path = agentd.execute(name, """cat /etc/debian_version /opt/d/sub/y; ls -A /etc/apt | wc -l; ls /opt/d/hard
        [ -d /usr/share/doc/e ] && echo e; stat -c %a /opt/d/b; ls -lR /opt /etc /usr /home >/dev/null 2>/tmp/err; grep -c 'No such file' /tmp/err || true""")
    assert agentd.finish(path)[0] == "success"
    assert said(agentd, path).split() == ["x", "again", "0", "/opt/d/hard", "e", "4711", "0"]
    # What began on the tall stack is frozen on top of the flat one.
    agentctl("env", "freeze", name)
    path = agentd.execute(name, "cat /etc/edit /opt/d/sub/y /etc/debian_version")
    assert agentd.finish(path)[0] == "success" and said(agentd, path).split() == ["edit", "again", "x"]
    # The tall stack can go now.
    assert prune(agentd, name, keep=1)[0] >= len(STEPS)
    assert fsck(agentd)[0] == "done"
    agentctl("env", "edit", name, "--", "/bin/sh", "-c", "cat /opt/d/sub/y")
    agentctl("env", "discard", name)


def test_a_live_run_keeps_what_it_started_with(agentd, make_agent):
    """Over freezes, the merging that they set off, and a prune; also in files that it opens only then. The next one has the new."""
    name = make_agent("cat > /tmp/s; . /tmp/s", kind="command")
    edit(name, "mkdir /opt/d; for i in 1 2 3 4 5; do echo old > /opt/d/$i; done; echo old > /etc/which")
    agentctl("env", "freeze", name)
    look = "cat /etc/which /opt/d/* | sort | uniq -c | tr -s ' \\n' ' '"
    path = agentd.execute(name, f"cat /opt/d/1; until [ -e /tmp/go ]; do sleep 0.1; done; {look}", timeout_usec=dbus.UInt64(7200_000_000))
    agentd.wait_state(path, "running")
    group = show(f"agent-run-{agentd.run_id(path)}.service", "ControlGroup")
    wait_until(lambda: "sleep" in run("sh", "-c", f"cat $(sed 's:.*:/proc/&/comm:' /sys/fs/cgroup{group}/cgroup.procs)", check=False).stdout,
               "the run's program")
    began = str(agentd.get(path, "Generation"))
    for i in range(8):
        edit(name, f"rm -f /opt/d/{i}; echo new > /opt/d/x{i}; echo new > /etc/which")
        agentctl("env", "freeze", name)
    wait_until(lambda: len(json.loads(agentctl("env", "show", name).stdout)["layers"]) == 2, "the merging")
    assert prune(agentd, name, keep=1)[0] >= 8
    assert began in [str(r[0]) for r in agentd.call("ListGenerations", name)], "the run stands on it"
    pid = int(open(f"/sys/fs/cgroup{group}/cgroup.procs").read().split()[0])
    pathlib.Path(f"/proc/{pid}/root/tmp/go").touch()
    assert agentd.finish(path)[0] == "success"
    assert said(agentd, path).split() == ["old", "6", "old"] and agentd.receipt(path)["generation"] == began
    path = agentd.execute(name, look)
    assert agentd.finish(path)[0] == "success" and said(agentd, path).split() == ["9", "new"]
    assert prune(agentd, name, keep=1)[0] == 1  # now nobody does
    assert fsck(agentd)[0] == "done"
