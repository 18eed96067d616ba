# SPDX-License-Identifier: LGPL-2.1-or-later
"""How runs end: each cause gives its own result, and a sentence that a person understands; it is the same on the bus,
in the receipt, in lists and in agentctl's exit status. (Out of memory: tests/vm.)
"""

import json
import os
import re
import signal
import subprocess

import dbus
import pytest

from client import RUNTIME, STATE, agentctl, journal, kill, run, show, systemctl, wait_until

EXIT_STATUS = {
    "success": 0,
    "failed": 1,
    "exit-code": 10,
    "signal": 11,
    "timeout": 12,
    "canceled": 14,
    "sandbox-failed": 16,
}

# result, its sentence, what else the receipt says; of a command as the run's process, and under the runner.
ENDINGS = {
    "exec success": ("exec", "exit 0", {}, "success", "status 0", {"exit_code": None, "signal": None}),
    "exec status": ("exec", "exit 7", {}, "exit-code", "status 7", {"exit_code": 7, "signal": None}),
    "exec killed": ("exec", "kill -SEGV $$", {}, "signal", "signal 11", {"signal": 11}),
    "exec timeout": ("exec", "trap '' TERM; sleep 1000", {"limits": {"timeout": 1}}, "timeout", "limit of 1 s", {}),
    "exec no program": ("exec", ["/no/such/program"], {}, "exit-code", "environment", {"exit_code": 127}),
    "exec not executable": ("exec", ["/etc/passwd"], {}, "exit-code", "executed", {"exit_code": 126}),
    "command success": ("command", "echo done", {}, "success", "", {"exit_code": None, "signal": None}),
    "command status": (
        "command",
        "echo first >&2; echo the reason >&2; exit 7",
        {},
        "exit-code",
        "the reason",
        {"exit_code": 7},
    ),
    "command killed": ("command", "kill -SEGV $$", {}, "signal", "signal 11", {"signal": 11}),
    "command timeout": ("command", "sleep 1000", {"limits": {"timeout": 1}}, "timeout", "limit of 1 s", {}),
    "command no program": ("command", ["/no/such/program"], {}, "exit-code", "/no/such/program", {"exit_code": 127}),
    # Neither gets at the runner: what they say after it counts.
    "command kills runner": ("command", "kill -9 $PPID || exit 7", {}, "exit-code", "not permit", {"exit_code": 7}),
    "command kills all": ("command", "kill -9 -1; exit 7", {}, "exit-code", "status 7", {"exit_code": 7}),
}


def check(agentd, path, result, sentence, **receipt):
    got = agentd.finish(path)
    assert got[0] == result, got
    assert sentence.lower() in got[1].lower() and len(got[1]) > 8 and got[1][0].isupper(), got[1]
    assert (str(agentd.get(path, "Result")), str(agentd.get(path, "Message"))) == got
    assert str(agentd.get(path, "State")) == "finished"
    written = agentd.receipt(path)
    assert (written["result"], written["message"]) == got
    assert {k: written[k] for k in receipt} == receipt
    row = next(r for r in agentd.call("ListRuns", dbus.Dictionary({}, signature="sv")) if r[1] == path)
    assert (row[4], row[5]) == ("finished", result)
    return written


@pytest.mark.parametrize("name", ENDINGS)
def test_ending(agentd, make_agent, name):
    kind, command, keys, result, sentence, receipt = ENDINGS[name]
    path = agentd.execute(make_agent(command, kind=kind, **keys))
    check(agentd, path, result, sentence, **receipt)


def test_runner_killed_from_outside(agentd, make_agent):
    """It is the runner that was killed, and not the agent's command that ended."""
    path = agentd.execute(make_agent("sleep 1000", kind="command"))
    agentd.wait_state(path, "running")
    cgroup = show(str(agentd.get(path, "Unit")), "ControlGroup")

    def runner():
        for pid in open(f"/sys/fs/cgroup{cgroup}/cgroup.procs").read().split():
            words = open(f"/proc/{pid}/cmdline", "rb").read().split(b"\0")
            if words[1:2] == [b"/opt/agentd/runner/main.cjs"]:
                return int(pid)

    os.kill(wait_until(runner, "the runner's process"), 9)
    check(agentd, path, "signal", "runner", signal=9)


def test_killed_from_outside(agentd, make_agent):
    """SIGKILL by the administrator: a signal, not a failure of the platform, and no second attempt."""
    path = agentd.execute(make_agent("sleep 1000"))
    agentd.wait_state(path, "running")
    os.kill(int(show(str(agentd.get(path, "Unit")), "MainPID")), 9)
    written = check(agentd, path, "signal", "signal 9", signal=9)
    assert written["attempts"] == 1


def test_unit_stopped_from_outside(agentd, make_agent):
    """systemctl stop by the administrator ends a run; it is not taken for a success."""
    path = agentd.execute(make_agent("sleep 1000"))
    agentd.wait_state(path, "running")
    systemctl("stop", str(agentd.get(path, "Unit")))
    result, message = agentd.finish(path)
    assert result in ("signal", "canceled", "exit-code") and message, (result, message)


def test_the_agent_says_failed(agentd, make_agent):
    """A result of its own making that says so, posted by an agent's own code."""
    import inside

    code = 'bridge("POST", "/v1/run/result", json.dumps({"status": "failed", "message": "The moon is down."}))'
    path = agentd.execute(make_agent(inside.COMMAND, kind="command"), inside.PRELUDE + code)
    check(agentd, path, "failed", "The moon is down.")
    assert agentd.result(path)["status"] == "failed"


def test_a_result_does_not_hide_a_timeout(agentd, make_agent):
    """What was posted counts only where the run then ends by itself."""
    import inside

    code = 'bridge("POST", "/v1/run/result", json.dumps({"status": "success", "output": 1})); signal.pause()'
    path = agentd.execute(make_agent(inside.COMMAND, kind="command", limits={"timeout": 2}), inside.PRELUDE + code)
    check(agentd, path, "timeout", "limit of 2 s")


# --- what PID 1 does not see ---

INIT = "/usr/lib/agentd/agent-init"
# Ends well at SIGUSR1, and says nothing of it: for PID 1 what it sees of a run whose start and end it takes for one.
SILENT = """#!/bin/sh
echo began >&3
trap 'exit 0' USR1
while :; do sleep 0.1; done
"""


@pytest.fixture
def another_init(tmp_path):
    """Puts a program in the place of the runs' first one."""

    def put(text):
        file = tmp_path / "init"
        file.write_text(text)
        file.chmod(0o755)
        run("mount", "--bind", file, INIT)

    yield put
    run("umount", INIT)


@pytest.fixture
def adrift(agentd, make_agent, another_init):
    """Begins a run that goes on, by a process of its cgroup, while its unit is "active (exited)": systemd 257 may take the
    end of the process from which it has the run's first one for that of the run."""
    processes = []

    def begin(**keys):
        another_init(SILENT)
        path = agentd.execute(make_agent("true", **keys))
        agentd.wait_state(path, "running")
        unit = str(agentd.get(path, "Unit"))
        processes.append(subprocess.Popen(["sleep", "infinity"]))
        with open(f"/sys/fs/cgroup{show(unit, 'ControlGroup')}/cgroup.procs", "w") as f:
            f.write(str(processes[0].pid))
        os.kill(int(show(unit, "MainPID")), signal.SIGUSR1)
        wait_until(lambda: show(unit, "SubState") == "exited", "the end that PID 1 sees")
        wait_until(lambda: lost_sight(agentd, path) == 1, "agentd's word")
        return path, processes[0]

    yield begin
    for p in processes:
        p.kill()
        p.wait()


def lost_sight(agentd, path):
    return journal("-u", "agentd.service", "-o", "cat").count(f"Run {agentd.run_id(path)}: PID 1 has lost sight of it")


def test_a_run_of_which_pid_1_lost_sight(agentd, adrift):
    """It goes on, also for another agentd, until its last process is gone; its end is what its first one wrote."""
    path, process = adrift()
    assert str(agentd.get(path, "State")) == "running"
    kill("agentd.service")
    wait_until(lambda: lost_sight(agentd, path) == 2, "the word of another agentd")
    assert str(agentd.get(path, "State")) == "running"
    with open(f"{RUNTIME}/runs/{agentd.run_id(path)}/exit", "a") as f:
        f.write("exited 3\n")
    process.kill()
    process.wait()
    written = check(agentd, path, "exit-code", "status 3", exit_code=3)
    assert written["attempts"] == 1


def test_the_time_of_a_run_of_which_pid_1_lost_sight(agentd, adrift):
    path, process = adrift(limits={"timeout": 10})
    check(agentd, path, "timeout", "limit of 10 s")
    assert process.wait() == -9


def test_cancel_of_a_run_of_which_pid_1_lost_sight(agentd, adrift):
    path, process = adrift()
    agentd.call("CancelRun", agentd.run_id(path))
    check(agentd, path, "canceled", "root")
    assert process.wait() == -9


def test_the_time_of_a_run_is_told_by_another_agentd(agentd, make_agent):
    """The limit of the definition, which the one that began the run had in hand."""
    path = agentd.execute(make_agent("sleep 1000", limits={"timeout": 9}))
    agentd.wait_state(path, "running")
    kill("agentd.service")
    written = check(agentd, path, "timeout", "limit of 9 s")
    assert written["times"]["started_usec"] is not None


def test_a_run_that_never_began(agentd, make_agent, another_init):
    """Its sandbox could not be set up, and PID 1 missed how that ended: the platform's fault, and not a signal's."""
    another_init("#!/bin/sh\nexit 0\n")
    written = check(agentd, agentd.execute(make_agent("exit 0")), "sandbox-failed", "set up")
    assert written["attempts"] == 3


def test_canceled_while_queued(agentd, make_agent):
    agent = make_agent("sleep 1000", concurrency=1)
    first = agentd.execute(agent)
    agentd.wait_state(first, "running")
    second = agentd.execute(agent)
    agentd.call("CancelRun", agentd.run_id(second))
    written = check(agentd, second, "canceled", "root")
    assert written["unit"] is None and written["times"]["started_usec"] is None
    agentd.call("CancelRun", agentd.run_id(first))
    check(agentd, first, "canceled", "root")


def test_canceled_at_once(agentd, make_agent):
    """While it is prepared, whatever step that is; twenty times, for they differ."""
    agent = make_agent("sleep 1000", concurrency=4)
    paths = []
    for _ in range(20):
        path = agentd.execute(agent)
        agentd.call("Cancel", path=path, interface="org.agentd1.Run")
        paths.append(path)
    for path in paths:
        check(agentd, path, "canceled", "cancel")


@pytest.mark.parametrize("command", ["sleep 1000", "trap '' TERM; while :; do sleep 1000; done"])
@pytest.mark.parametrize("kind", ["exec", "command"])
def test_canceled_while_running(agentd, make_agent, kind, command):
    path = agentd.execute(make_agent(command, kind=kind))
    agentd.wait_state(path, "running")
    agentd.call("CancelRun", agentd.run_id(path))
    check(agentd, path, "canceled", "root")


def test_cancel_of_what_is_over(agentd, make_agent):
    path = agentd.execute(make_agent("exit 0"))
    before = check(agentd, path, "success", "")
    with pytest.raises(dbus.DBusException) as e:
        agentd.call("CancelRun", agentd.run_id(path))
    assert e.value.get_dbus_name() == "org.agentd1.Error.RunFinished"
    assert agentd.receipt(path) == before


@pytest.fixture
def broken_layer(agentd, make_agent, unique, text_file, tmp_path):
    """An agent whose layer's file is damaged after it was made."""
    import subprocess

    name = unique("img")
    root = tmp_path / "root"
    for d in ("bin", "etc", "usr/bin"):
        (root / d).mkdir(parents=True)
    (root / "etc/os-release").write_text(f"ID={name}\n")  # a layer of its own
    subprocess.run(["cp", "/bin/true", root / "bin/sh"], check=True)
    tar = tmp_path / "root.tar"
    subprocess.run(["tar", "-C", root, "-cf", tar, "."], check=True)
    result, digest = agentd.import_image(name, tar)
    assert result == "done", digest
    agent = make_agent(["/bin/sh"], image=name)
    path = f"{STATE}/layers/{digest.replace(':', '-')}.erofs"
    assert os.path.exists(path)
    original = open(path, "rb").read()
    os.chmod(path, 0o644)
    with open(path, "r+b") as f:
        f.write(b"\0" * 4096)
    yield agent
    with open(path, "wb") as f:
        f.write(original)
    os.chmod(path, 0o444)
    agentd.call("RemoveAgent", agent)
    agentd.call("RemoveImage", name)


def test_sandbox_failed(agentd, broken_layer):
    """The platform's fault: tried again, a bounded number of times, and the receipt says how often and where."""
    path = agentd.execute(broken_layer)
    written = check(agentd, path, "sandbox-failed", "compose", attempts=3)
    assert re.search("layer", written["message"])
    assert not os.path.exists(f"{RUNTIME}/runs/{agentd.run_id(path)}")


@pytest.mark.parametrize("command,result", [("echo 1", "success"), ("exit 3", "exit-code"), ("kill -9 $$", "signal")])
def test_exit_status_of_agentctl(agentd, make_agent, command, result):
    done = agentctl("run", "--wait", make_agent(command, kind="command"), check=False)
    assert done.returncode == EXIT_STATUS[result], done.stderr
    assert done.stdout.strip() == ("1" if result == "success" else "")
    assert result == "success" or len(done.stderr.strip().splitlines()) == 1


def test_times_are_in_order(agentd, make_agent):
    path = agentd.execute(make_agent("exit 0"))
    agentd.finish(path)
    times = agentd.receipt(path)["times"]
    order = [times[k] for k in ("created_usec", "queued_usec", "claimed_usec", "started_usec", "finished_usec")]
    assert order == sorted(order) and all(order), times
    assert [int(agentd.get(path, k)) for k in ("CreatedUSec", "StartedUSec", "FinishedUSec")] == [
        times[k] for k in ("created_usec", "started_usec", "finished_usec")
    ]


def test_result_document(agentd, make_agent):
    path = agentd.execute(make_agent("cat", kind="command"), '{"a": [1, 2.5, "ü", null]}')
    agentd.finish(path)
    assert agentd.result(path)["output"] == {"a": [1, 2.5, "ü", None]}
    assert json.loads(agentctl("result", agentd.run_id(path), "--json").stdout)["output"] == {"a": [1, 2.5, "ü", None]}


def test_unit_is_gone_when_the_end_is_told(agentd, make_agent):
    path = agentd.execute(make_agent("exit 0"))
    agentd.finish(path)
    unit = str(agentd.get(path, "Unit"))
    wait_until(lambda: show(unit, "LoadState") == "not-found", f"the end of {unit}")


@pytest.mark.parametrize("follow", [False, True])
def test_all_that_a_run_said_is_in_its_log_when_its_end_is_told(agentd, make_agent, follow):
    """However far the journal is behind: here it does not even take anything until the log is asked for."""
    agent = make_agent("echo the first; echo the last >&2")
    systemctl("kill", "--signal=STOP", "systemd-journald.service")
    try:
        path = agentd.execute(agent)
        assert agentd.finish(path)[0] == "success"
        fd = agentd.call("OpenRunLog", agentd.run_id(path), follow).take()
        systemctl("show", "agentd.service")  # a reader that does not wait is done by now
    finally:
        systemctl("kill", "--signal=CONT", "systemd-journald.service")
    with os.fdopen(fd) as f:
        lines = [json.loads(line)["message"] for line in f]
    assert {"the first", "the last"} <= set(lines) and any("finished: success" in line for line in lines), lines
