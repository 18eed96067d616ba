# SPDX-License-Identifier: LGPL-2.1-or-later
"""After 200 runs that ended in every way there is, nothing of them is left on the host: no unit, mount, namespace,
directory, live file, user, entry in the bridge's descriptor store, process, log stream or open descriptor.
"""

import collections
import json
import os
import signal
import subprocess

import dbus
import pytest

from client import LIVE, RUNTIME, call_as, kill, run, show, wait_until

DAEMONS = ("agentd.service", "agent-bridged.service", "agent-credentiald.service")
RESULTS = {"success", "failed", "exit-code", "signal", "timeout", "canceled"}


def lines(*argv):
    return {line for line in run(*argv).stdout.splitlines() if line.strip()}


def namespaces():
    """Network namespaces that anything of the host holds: by a process or by a mount."""
    return {line.split()[0] for line in lines("lsns", "--noheadings", "--output", "NS", "--type", "net")}


def processes():
    """Command lines of everything that runs, but for the tests' own and the kernel's."""
    found = {}
    mine = os.getpid()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            cgroup = open(f"/proc/{pid}/cgroup").read()
            command = open(f"/proc/{pid}/cmdline", "rb").read().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if command and int(pid) != mine and "agentd-dev" not in cgroup:
            found[pid] = f"{command.strip()} in {cgroup.strip()}"
    return found


def descriptors(unit):
    """What the unit's processes hold open, sockets and pipes by kind."""
    held = []
    for pid in open(f"/sys/fs/cgroup{show(unit, 'ControlGroup')}/cgroup.procs").read().split():
        for fd in os.listdir(f"/proc/{pid}/fd"):
            try:
                held.append(os.readlink(f"/proc/{pid}/fd/{fd}").split(":")[0])
            except OSError:
                pass
    return sorted(held)


def listed(directory):
    return set(os.listdir(directory)) if os.path.exists(directory) else set()


class Traces:
    """All that runs could leave. What may rightly stay (shared layers, the daemons' own connections) is left out."""

    def __init__(self):
        self.units = lines("systemctl", "list-units", "--all", "--plain", "--no-legend", "agent-run-*", "agent-op-*")
        self.mounts = {
            line
            for line in open("/proc/1/mountinfo").read().splitlines()
            if "/run/agentd/runs" in line or "/run/credentials" in line
        }
        self.namespaces = namespaces()
        self.directories = listed(f"{RUNTIME}/runs")
        self.live = listed(LIVE)
        self.users = listed("/run/systemd/dynamic-uid")
        self.stored = set(range(int(show("agent-bridged.service", "NFileDescriptorStore"))))
        self.credentials = listed("/run/credentials")
        self.propagated = listed("/run/systemd/propagate")
        self.cgroups = {d for d, _, _ in os.walk("/sys/fs/cgroup") if "agent-run-" in d}
        self.registered = busy_runs()
        self.transient = {f for f in listed("/run/systemd/transient") if f.startswith(("agent-run", "agent-op"))}
        self.staging = listed("/var/lib/agentd/tmp")


def busy_runs():
    answer = subprocess.run(
        [
            "busctl",
            "--json=short",
            "call",
            "org.agentd1.Bridge",
            "/org/agentd1/Bridge",
            "org.agentd1.Bridge",
            "ListRegistered",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(json.loads(answer.stdout)["data"][0])


def added(before):
    """What there is now that was not there BEFORE."""
    return {k: v - getattr(before, k) for k, v in vars(Traces()).items() if v - getattr(before, k)}


def cancel(agentd, path):
    try:
        agentd.call("CancelRun", agentd.run_id(path))
    except dbus.DBusException as e:
        assert e.get_dbus_name() == "org.agentd1.Error.RunFinished"


def kill_main(agentd, path):
    if agentd.wait_state(path, "running", "finished") == "running":
        # Whatever PID 1 takes for its main process; and it may be over already.
        run("systemctl", "kill", "--signal=KILL", str(agentd.get(path, "Unit")), check=False)


def burst(agentd, agents):
    """Starts 40 runs and sees to it that they end in all ways."""
    paths = []
    for n in range(4):
        for name, agent in agents.items():
            path = agentd.execute(agent, f'{{"n": {n}}}')
            paths.append(path)
            if name == "queued":  # behind another of its agent
                cancel(agentd, path)
            elif name == "preparing":
                agentd.wait_state(path, "preparing", "running")
                cancel(agentd, path)
            elif name == "running":
                agentd.wait_state(path, "running")
                cancel(agentd, path)
            elif name == "killed":
                kill_main(agentd, path)
    return paths


def check(before):
    """Units are taken away by PID 1 a moment after the end of a run is told, so this waits for a moment."""
    try:
        wait_until(lambda: not added(before), "the end of all traces")
    except AssertionError:
        assert added(before) == {}


@pytest.fixture
def agents(make_agent):
    hog = "i=0; while [ $i -lt 50 ]; do sleep 1000 & i=$((i+1)); done; "
    return {
        "good": make_agent("exit 0"),
        "bad": make_agent("exit 3"),
        "runner": make_agent("echo hello; exit 0", kind="command"),
        "timeout": make_agent(hog + "wait", limits={"timeout": 1}),
        "missing": make_agent(["/no/such/program"]),
        "killed": make_agent(hog + "wait"),
        "queued": make_agent("sleep 1000", concurrency=1),
        "preparing": make_agent("sleep 1000"),
        "running": make_agent(hog + "wait"),
        "orphans": make_agent(hog + "setsid sleep 1000 & exit 0"),
    }


def test_200_runs(agentd, agents):
    for agent in ("good", "runner"):  # warm: layers are mounted, daemons are up
        agentd.finish(agentd.execute(agents[agent]))
    before, held = Traces(), {u: collections.Counter(descriptors(u)) for u in DAEMONS[:2]}
    alive = set(processes().values())
    seen = {}
    for _ in range(5):
        for path in burst(agentd, agents):
            result = agentd.finish(path)[0]
            seen[result] = seen.get(result, 0) + 1
    assert sum(seen.values()) == 200 and set(seen) >= RESULTS - {"failed"} and set(seen) <= RESULTS, seen
    check(before)

    def more():
        """Descriptors that were not open before, and processes of runs. The bridge lets go of a run's live file when other
        runs ask for something; of 200 there are few that it has still."""
        fds = {u: list((collections.Counter(descriptors(u)) - held[u]).elements()) for u in held}
        ended = [p for u in fds for p in fds[u] if p.startswith("/run/agentd/live/") and p.endswith(" (deleted)")]
        others = {u: [p for p in fds[u] if p not in ended] for u in fds}
        return ({u: f for u, f in others.items() if f}, ended[5:],
                {p for p in processes().values() if "agent-run" in p or "sleep 1000" in p})

    nothing = ({}, [], set())
    try:
        wait_until(lambda: more() == nothing, "the end of all descriptors and processes")
    except AssertionError:
        assert more() == nothing, alive


def test_nothing_after_kills_in_between(agentd, agents):
    """The same where the daemons themselves are killed meanwhile."""
    agentd.finish(agentd.execute(agents["runner"]))
    before = Traces()
    paths = []
    for unit in DAEMONS[:2]:
        paths += burst(agentd, agents)
        kill(unit)
    for path in paths:
        assert agentd.finish(path)[0] in RESULTS
    check(before)


def test_a_worker_that_dies_while_it_takes_a_run_away(agentd, make_agent):
    """The next one does."""
    path = agentd.execute(make_agent("sleep 1000"))
    agentd.wait_state(path, "running")
    group = f"/sys/fs/cgroup{show('agentd.service', 'ControlGroup')}/cgroup.procs"
    worker = next(int(p) for p in open(group).read().split() if open(f"/proc/{p}/comm").read() == "agentd-worker\n")
    os.kill(worker, signal.SIGSTOP)
    agentd.call("CancelRun", agentd.run_id(path))
    wait_until(lambda: not os.path.exists(f"{LIVE}/{agentd.run_id(path)}.json"), "the end of the live file, then the worker's turn")
    os.kill(worker, signal.SIGKILL)
    assert agentd.finish(path)[0] == "canceled"
    assert not os.path.exists(f"{RUNTIME}/runs/{agentd.run_id(path)}")


def test_log_streams_end(agentd, make_agent, users):
    """A reader of a log that goes away takes its program along; so does the end of the run."""
    path = agentd.execute(make_agent("echo one; exec sleep 1000"))
    agentd.wait_state(path, "running")

    def readers():
        return [p for p in processes().values() if "agentd-log" in p]

    fd = agentd.call("OpenRunLog", agentd.run_id(path), True).take()
    other = agentd.call("OpenRunLog", agentd.run_id(path), True).take()
    wait_until(lambda: len(readers()) == 2, "two readers")
    os.close(fd)
    wait_until(lambda: len(readers()) == 1, "the end of the reader whose pipe was closed")
    agentd.call("CancelRun", agentd.run_id(path))
    agentd.finish(path)
    with os.fdopen(other) as f:
        assert any('"one"' in line for line in f)  # and ends
    wait_until(lambda: not readers(), "the end of the last reader")


def test_refused_imports_leave_nothing(agentd, text_file, users):
    before = Traces()
    for text in ("", "not a tar", b"\x1f\x8b\x08\x00garbage"):
        assert agentd.import_image("test-broken", text_file(text))[0] == "failed"
    assert "error" in call_as(users[0], ("ImportImage", "../x", {"fd": text_file("x")}, {"options": {}}))[0]
    check(before)
