# SPDX-License-Identifier: LGPL-2.1-or-later
"""Runners are deployed, limited to some runs, taken back and removed; runs and environments see nothing of it but the runner."""

import json
import os

import dbus
import pytest

from client import MANAGER, agentctl, call_as, wait_until
from runners import files_digest, layer_file, run_once, write_runner


@pytest.fixture
def agent(make_agent):
    return make_agent(["/bin/true"], kind="command", concurrency=20)


def environment(name):
    return [layer["digest"] for layer in json.loads(agentctl("env", "show", name).stdout)["layers"]]


def generations(agentd, name):
    return [str(g[0]) for g in agentd.call("ListGenerations", name)]


def test_the_next_run_has_it_and_keeps_its_environment(agentd, runners, agent, tmp_path):
    layers = environment(agent)
    old = runners.deploy(write_runner(tmp_path / "old", "1"))
    assert run_once(agentd, agent)[2]["parts"] == ["1"] * 3
    before = generations(agentd, agent)

    live = agentd.execute(agent, "1500")
    agentd.wait_state(live, "running")
    new = runners.deploy(write_runner(tmp_path / "new", "2"), note="the second")
    assert runners.current() == new == str(agentd.get("/org/agentd1", "Runner", MANAGER)) and runners.get(new)["note"] == "the second"

    result, message, output, receipt = run_once(agentd, agent)
    assert result == "success", message
    assert output["parts"] == ["2"] * 3 and output["start"] == output["end"] == files_digest(tmp_path / "new")
    assert receipt["runner"] == new and receipt["attempts"] == 1
    assert receipt["swap"] == {"before": old, "after": new, "swapped": True, "verdict": "checked",
                               "generation": generations(agentd, agent)[0]}
    assert receipt["steps"]["validate_usec"] > 0
    # One generation more, with the same layers; the next run has nothing to swap and nothing to check.
    assert generations(agentd, agent)[1:] == before and environment(agent) == layers
    path = agentd.execute(agent)
    assert agentd.finish(path)[0] == "success"
    assert agentd.receipt(path)["swap"] == {"before": new, "after": new, "swapped": False, "verdict": "cached", "generation": None}
    assert (str(agentd.get(path, "RunnerBefore")), bool(agentd.get(path, "RunnerSwapped")),
            str(agentd.get(path, "RunnerVerdict"))) == (new, False, "cached")
    assert len(generations(agentd, agent)) == len(before) + 1

    # The live one has had nothing but the old one.
    assert agentd.finish(live)[0] == "success"
    output = agentd.result(live)["output"]
    assert output["parts"] == ["1"] * 3 and output["start"] == output["end"] == files_digest(tmp_path / "old")
    assert agentd.receipt(live)["runner"] == old


def test_one_check_is_for_all_agents(agentd, runners, make_agent, tmp_path):
    agents = [make_agent(["/bin/true"], kind="command") for _ in range(6)]
    for a in agents:
        assert run_once(agentd, a)[0] in ("success", "exit-code")
    runners.deploy(write_runner(tmp_path / "r", "1"))
    paths = [agentd.execute(a) for a in agents]
    assert [agentd.finish(p)[0] for p in paths] == ["success"] * len(agents)
    verdicts = [agentd.receipt(p)["swap"]["verdict"] for p in paths]
    assert sorted(verdicts) == ["cached"] * 5 + ["checked"]


def test_two_runs_that_fold_make_one_generation(agentd, runners, agent, tmp_path):
    runners.deploy(write_runner(tmp_path / "r", "1"))
    before = generations(agentd, agent)
    paths = [agentd.execute(agent, "300") for _ in range(5)]
    assert [agentd.finish(p)[0] for p in paths] == ["success"] * 5
    folded = [agentd.receipt(p)["swap"]["generation"] for p in paths]
    assert len(generations(agentd, agent)) == len(before) + 1
    assert sorted(g for g in folded if g) == generations(agentd, agent)[:1]


def test_a_failed_run_folds_nothing(agentd, runners, make_agent, tmp_path):
    agent = make_agent(["/bin/true"], kind="command", limits={"timeout": 1})
    runners.deploy(write_runner(tmp_path / "r", "1"))
    before = generations(agentd, agent)
    assert run_once(agentd, agent, "30000")[0] == "timeout"
    assert generations(agentd, agent) == before


def test_a_swap_does_not_get_in_the_way_of_a_freeze(agentd, runners, make_agent):
    """The head moves when the run ends, but the environment is as it was."""
    agent = make_agent("echo kept > ~/kept", kind="command")
    shipped = "/usr/lib/agentd/runner"
    directory = f"/var/tmp/{agent}"
    os.system(f"cp -r {shipped} {directory}; echo '// changed' >> {directory}/main.cjs")
    runners.deploy(directory)
    path = agentd.execute(agent, keep=True)
    assert agentd.finish(path)[0] == "success"
    assert agentd.receipt(path)["swap"]["swapped"]
    result, detail = agentd.freeze(agent, path)
    assert result == "done", detail
    assert len(generations(agentd, agent)) == 3


def test_canary_by_share(agentd, runners, agent, tmp_path):
    stable = runners.deploy(write_runner(tmp_path / "stable", "1"))
    assert run_once(agentd, agent)[0] == "success"
    canary = runners.deploy(write_runner(tmp_path / "canary", "2"), canary=50)
    assert runners.current() == stable and runners.get(canary)["percent"] == 50
    before = generations(agentd, agent)
    paths = [agentd.execute(agent) for _ in range(24)]
    assert {agentd.finish(p)[0] for p in paths} == {"success"}
    seen = [agentd.receipt(p)["runner"] for p in paths]
    assert set(seen) == {stable, canary}  # by chance not so once in 8 million
    assert generations(agentd, agent) == before  # what comes and goes is not folded
    assert str(agentd.call("PromoteRunner")) == canary == runners.current()
    assert {run_once(agentd, agent)[3]["runner"] for _ in range(3)} == {canary}
    with pytest.raises(dbus.DBusException, match="no canary"):
        agentd.call("PromoteRunner")


def test_canary_by_agents(agentd, runners, agent, make_agent, tmp_path):
    other = make_agent(["/bin/true"], kind="command")
    stable = runners.deploy(write_runner(tmp_path / "stable", "1"))
    canary = runners.deploy(write_runner(tmp_path / "canary", "2"), agents=[agent])
    assert runners.get(canary)["agents"] == ["root/" + agent]
    assert {run_once(agentd, agent)[3]["runner"] for _ in range(3)} == {canary}
    assert run_once(agentd, other)[3]["runner"] == stable
    assert str(agentd.call("WithdrawRunner")) == canary
    assert run_once(agentd, agent)[3]["runner"] == stable


def test_rollback(agentd, runners, agent, tmp_path):
    a, b, c = (runners.deploy(write_runner(tmp_path / v, v)) for v in "123")
    assert str(agentd.call("RollbackRunner", "")) == b == runners.current()
    assert str(agentd.call("RollbackRunner", "")) == a
    assert run_once(agentd, agent)[3]["runner"] == a
    assert str(agentd.call("RollbackRunner", c[7:20])) == c == runners.current()
    assert {r["digest"]: r["state"] for r in runners.list()}[b] == "stored"


def test_remove(agentd, runners, agent, tmp_path):
    a = runners.deploy(write_runner(tmp_path / "a", "1"))
    live = agentd.execute(agent, "1500")
    agentd.wait_state(live, "running")
    b = runners.deploy(write_runner(tmp_path / "b", "2"))
    with pytest.raises(dbus.DBusException, match="current runner"):
        agentd.call("RemoveRunner", b)
    agentd.call("RemoveRunner", a)
    assert not layer_file(a).exists() and a not in [r["digest"] for r in runners.list()]
    assert agentd.finish(live)[0] == "success" and agentd.result(live)["output"]["end"] == files_digest(tmp_path / "a")
    # Its environment names the one that is gone; that does not matter.
    assert run_once(agentd, agent)[3]["swap"]["before"] in (a, runners.before) and runners.current() == b


def test_same_name_size_and_time_but_new_code(agentd, runners, agent, tmp_path):
    directory = write_runner(tmp_path / "r", "1", extra="() => 'aaaa'")
    for f in directory.rglob("*"):
        os.utime(f, (1, 1))
    sizes = {f: f.stat().st_size for f in directory.rglob("*")}
    runners.deploy(directory)
    assert run_once(agentd, agent)[2]["extra"] == "aaaa"
    write_runner(directory, "1", extra="() => 'bbbb'")
    for f in directory.rglob("*"):
        os.utime(f, (1, 1))
    assert sizes == {f: f.stat().st_size for f in directory.rglob("*")}
    runners.deploy(directory)
    assert run_once(agentd, agent)[2]["extra"] == "bbbb"


def test_the_same_runner_has_the_same_digest(runners, tmp_path):
    one = runners.deploy(write_runner(tmp_path / "one", "1"))
    two = write_runner(tmp_path / "two", "1")
    os.utime(two / "main.cjs", (1, 1))
    os.chmod(two / "main.cjs", 0o600)
    assert runners.deploy(two) == one and runners.current() == one


@pytest.mark.parametrize("change,reason", [
    (lambda d: (d / "runner.json").unlink(), "no runner.json"),
    (lambda d: (d / "runner.json").write_text("{"), "runner.json: line 1"),
    (lambda d: (d / "runner.json").write_text('{"name":"x","version":"1","main":"gone.js","check":[]}'), "no file \"gone.js\""),
    (lambda d: (d / "runner.json").write_text('{"name":"x","version":"1","main":"../x","check":[]}'), "inside the runner"),
    (lambda d: (d / "runner.json").write_text('{"name":"x","version":"1","main":"main.cjs","check":[],"node":"n"}'), "no file \"n\""),
    (lambda d: (d / "out").symlink_to("/etc/passwd"), "leads out"),
    (lambda d: (d / "out").symlink_to("../../etc/passwd"), "leads out"),
    (lambda d: os.mkfifo(d / "fifo"), "files, directories and symbolic links"),
])
def test_what_is_no_runner_is_refused(agentd, runners, tmp_path, change, reason):
    directory = write_runner(tmp_path / "r", "1")
    change(directory)
    before = runners.list()
    result, detail = agentd.complete(runners.begin(directory))
    assert result == "failed" and reason in detail
    assert runners.list() == before
    wait_until(lambda: not os.listdir("/var/lib/agentd/tmp"), "the end of staging")


def test_only_administrators_change_runners(users, runners, tmp_path):
    archive = tmp_path / "r.tar"
    archive.write_bytes(b"")
    os.chmod(archive, 0o644)
    answers = call_as("alice", ("DeployRunner", {"fd": "/dev/null"}, {"options": {}}), ("RollbackRunner", ""), ("PromoteRunner",),
                      ("WithdrawRunner",), ("RemoveRunner", "sha256:000000"))
    assert all(a.get("error", "").endswith(("AccessDenied", "InteractiveAuthorizationRequired")) for a in answers), answers
    assert "value" in call_as("alice", ("ListRunners",))[0]


def test_signals(agentd, runners, tmp_path):
    seen = []
    match = agentd.bus.add_signal_receiver(lambda *a: seen.append([str(x) for x in a]), "RunnerDeployed", MANAGER)
    try:
        one = runners.deploy(write_runner(tmp_path / "one", "1"))
        two = runners.deploy(write_runner(tmp_path / "two", "2"), canary=10)
        agentd.call("PromoteRunner")
        agentd.call("RollbackRunner", "")
        agentd.wait_for(lambda: len(seen) == 4, what="signals")
        assert seen == [[one, "current"], [two, "canary"], [two, "current"], [one, "current"]]
    finally:
        match.remove()


def test_agentctl(runners, agent, tmp_path):
    directory = write_runner(tmp_path / "r", "7")
    digest = agentctl("runner", "deploy", directory, "--note=by hand").stdout.strip()
    runners.mine.add(digest)
    row = json.loads(agentctl("runner", "list", "--json=short").stdout)[0]
    assert (row["digest"], row["version"], row["state"], row["note"]) == (digest, "7", "current", "by hand")
    assert "not tried yet" in agentctl("runner", "status").stdout
    agentctl("run", agent, "--wait")
    status = json.loads(agentctl("runner", "status", "--json=short").stdout)[0]
    assert status["verdict"] == "accepted" and status["node"].startswith("sha256:")
    archive = tmp_path / "r.tar.gz"
    agentctl("runner", "deploy", "-", stdin=os.popen(f"tar -C {directory} -cz .").buffer.read())
    assert agentctl("runner", "deploy", "/etc/passwd", check=False).returncode != 0 and not archive.exists()
    assert agentctl("runner", "rollback").stdout.strip() == runners.before
    agentctl("runner", "remove", digest[7:19])


def test_layers_of_runners_are_not_pruned(agentd, runners, agent, tmp_path):
    a = runners.deploy(write_runner(tmp_path / "a", "1"))
    assert run_once(agentd, agent)[0] == "success"
    b = runners.deploy(write_runner(tmp_path / "b", "2"))
    agentd.call("PruneEnvironments", "", dbus.Dictionary({}, signature="sv"))
    assert layer_file(a).exists() and layer_file(b).exists()
    assert str(agentd.call("RollbackRunner", "")) == a
    wait_until(lambda: run_once(agentd, agent)[3]["runner"] == a, "the old one")


def test_generations_of_old_runners_are_forgotten(agentd, runners, make_agent, settings, tmp_path):
    """What its owner made stays, and what something stands on; of what the platform's deployments made, the newest do."""
    settings("Retention", MaxRunnerGenerations=4)
    agent = make_agent(["/bin/true"], kind="command", concurrency=20, limits={"timeout": 3000})

    def deploy(i):
        return runners.deploy(write_runner(tmp_path / f"{i}", f"{i}"))

    def notes():
        return [(int(g[6]), str(g[4])) for g in agentd.call("ListGenerations", agent)]

    deploy(0)
    assert run_once(agentd, agent)[0] == "success"
    agentctl("env", "edit", agent, "--", "/bin/sh", "-c", "echo mine > /etc/mine")
    agentctl("env", "freeze", agent, "--note", "mine")

    def stay():
        path = agentd.execute(agent, "100000000")
        agentd.wait_state(path, "running")
        return path

    live = [stay()]
    for i in range(1, 9):
        deploy(i)
        assert run_once(agentd, agent)[0] == "success"
        if i == 1:
            stands = generations(agentd, agent)[0]
            live.append(stay())
    numbers = dict(notes())
    assert max(numbers) == 11 and len(numbers) < 11, "3 by hand or by the first runner, one for each of 8 deployments"
    assert [n for n in numbers if n > 7 and numbers[n] != "runner"] == []
    assert {8, 9, 10, 11} <= set(numbers) and "mine" in numbers.values() and 1 in numbers
    assert stands in generations(agentd, agent)
    for path in live:
        assert str(agentd.get(path, "State")) == "running"
        agentd.call("CancelRun", agentd.run_id(path))
        assert agentd.finish(path)[0] == "canceled"
    assert agentctl("env", "fsck").returncode == 0
