# SPDX-License-Identifier: LGPL-2.1-or-later
"""Environments when something is killed in the middle: the old state or the new one is in force, whole, and nothing leaks.

What is worked on, and how the state afterwards is judged, is the same as for power cuts (tests/vm/power/guest.py).
AGENTD_KILLS=N: how many kills for each kind of work; AGENTD_KILLS_SEED=N: at the same moments again.
"""

import os
import pathlib
import random
import sys
import threading
import time

import pytest

from client import agentctl, run, show, systemctl, wait_until
from test_env_generations import freeze_change
from test_env_store import fsck, prune

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "vm" / "power"))

import guest  # noqa: E402

SEED = int(os.environ.get("AGENTD_KILLS_SEED") or random.randrange(1 << 32))
KILLS = int(os.environ.get("AGENTD_KILLS") or 2)


def kill_agentd():
    systemctl("kill", "--signal=KILL", "--kill-whom=main", "agentd", check=False)


def kill_all():
    systemctl("kill", "--signal=KILL", "agentd", check=False)


def kill_worker():
    for pid in open(f"/sys/fs/cgroup{show('agentd.service', 'ControlGroup')}/cgroup.procs").read().split():
        with open(f"/proc/{pid}/comm") as f:
            if f.read().strip() == "agentd-worker":
                os.kill(int(pid), 9)
                return


def kill_units():
    """The session of an edit, or agent-image: of a freeze, a merging, an import, a deploy."""
    systemctl("kill", "--signal=KILL", "agent-op-*.service", check=False)


VICTIMS = {"agentd": kill_agentd, "agentd-and-worker": kill_all, "worker": kill_worker, "unit": kill_units}


@pytest.fixture(scope="module")
def work_place(agentd):
    """What the kinds of work need, in a store in which everything is needed by somebody."""
    guest.DISK = pathlib.Path("/mnt/out/crash" if os.path.isdir("/mnt/out") else "/var/tmp/crash")
    guest.IMAGE, guest.TALL = guest.DISK / "image.tar", guest.DISK / "tall.oci"
    before = next(str(r[0]) for r in agentd.call("ListRunners") if str(r[3]) == "current")
    prune(agentd)
    guest.set_up()
    yield
    for name in ("edited", "frozen", "tall", "pruned", "carried", "runs"):
        agentctl("env", "discard", name, check=False)
        agentctl("agent", "remove", name, check=False)
    agentctl("image", "remove", "small", check=False)
    agentd.call("RollbackRunner", before)
    for r in agentd.call("ListRunners"):
        if str(r[1]) == "tiny":
            agentd.call("RemoveRunner", str(r[0]))
    prune(agentd)
    run("rm", "-rf", guest.DISK)


def do_work(work, expect, victim, delay):
    """Whether it was told to be done, and what was told before."""
    marks = []
    timer = threading.Timer(delay, victim) if victim else None
    if timer:
        timer.start()
    try:
        work.work(expect, marks.append)
        done = True
    except guest.Wrong:
        done = False
    if timer:
        timer.join()
    return marks, done


def calm():
    wait_until(lambda: run("busctl", "call", "org.agentd1", "/org/agentd1", "org.freedesktop.DBus.Peer", "Ping",
                           check=False).returncode == 0, "agentd")


@pytest.mark.parametrize("kind", guest.KINDS)
def test_killed(agentd, work_place, kind):
    """Once undisturbed, to know how long it takes; then with somebody killed at a random moment."""
    rng = random.Random(f"{SEED} {kind}")
    victims = [v for v in VICTIMS if (kind, v) != ("run", "unit")]  # a run's own unit: the tests of endings kill it
    order = []
    while len(order) < KILLS:
        order += rng.sample(victims, len(victims))
    print(f"AGENTD_KILLS_SEED={SEED}")
    for victim in [None, *order[:KILLS]]:
        work = guest.KINDS[kind]()
        expect = work.prepare()
        guest.agentctl("env", "prune")
        started = time.monotonic()
        if victim is None:
            marks, done = do_work(work, expect, None, 0)
            duration = time.monotonic() - started
            assert done
        else:
            delay = rng.uniform(0, duration)
            marks, done = do_work(work, expect, VICTIMS[victim], delay)
            print(f"{victim} killed after {delay:.3f} of {duration:.3f} s; done: {done}, told: {marks}")
        calm()
        if kind == "flatten" and victim == "unit" and not done:
            systemctl("restart", "agentd.service")  # it is tried again after a start, or the next freeze
        guest.check_store(kind)
        print("  ", work.check(expect, marks, done))
        guest.check_quiet()


@pytest.fixture
def agent(make_agent):
    name = make_agent("cat > /tmp/s; . /tmp/s", kind="command")
    yield name
    agentctl("env", "discard", name, check=False)


def tidy(agentd):
    wait_until(lambda: not os.listdir(guest.STATE / "tmp"), "the end of staging")
    result, detail, document = fsck(agentd)
    assert result == "done", (detail, document)


def test_everything_at_once(agentd, agent, make_agent):
    """Freezes, rollbacks and prunes while runs go on: each run sees one generation, whole."""
    freeze_change(agentd, agent, "echo 0 > ~/a; echo 0 > ~/b")
    stop = threading.Event()

    def disturb():
        n = 0
        while not stop.is_set():
            n += 1
            run("agentctl", "env", "edit", agent, "--", "/bin/sh", "-c",
                f"echo {n} > /home/agent/a; echo {n} > /home/agent/b", check=False)
            run("agentctl", "env", "freeze", agent, check=False)
            if n % 3 == 0:
                run("agentctl", "env", "rollback", agent, "head", check=False)
            run("agentctl", "env", "prune", agent, "--keep=2", check=False)

    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        for _ in range(6):
            paths = [agentd.execute(agent, "sleep 0.2; [ $(cat ~/a) = $(cat ~/b) ] && cat ~/a") for _ in range(2)]
            for path in paths:
                result, message = agentd.finish(path)
                assert result == "success", (message, agentd.log(path))
    finally:
        stop.set()
        thread.join()
    agentctl("env", "discard", agent, check=False)
    tidy(agentd)
