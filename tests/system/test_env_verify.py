# SPDX-License-Identifier: LGPL-2.1-or-later
"""Runs that check their layers first. Here on a file system without fs-verity; tests/vm has one with it."""

import contextlib
import os
import pathlib

import dbus
import pytest

from client import agentctl, systemctl
from test_env_generations import control_group, freeze_change, said
from test_env_store import layer_file, top_layer

LOOK = "cat ~/me"


@contextlib.contextmanager
def flipped(digest, at=None):
    """One bit of a layer is another one."""
    file = layer_file(digest)
    at = file.stat().st_size // 2 if at is None else at
    with open(file, "r+b") as f:
        for turn in range(2):
            f.seek(at)
            byte = f.read(1)
            f.seek(at)
            f.write(bytes([byte[0] ^ 1]))
            f.flush()
            os.fsync(f.fileno())
            if turn == 0:
                yield


@pytest.fixture
def agent(agentd, make_agent):
    name = make_agent("cat > /tmp/s; . /tmp/s", kind="command", concurrency=8)
    freeze_change(agentd, name, f"echo {name} > ~/me; head -c 300000 /dev/urandom > ~/noise")
    return name


def verified(agentd, path):
    return agentd.receipt(path)["verified"], str(agentd.get(path, "LayersVerified"))


def test_a_run_that_checks(agentd, agent):
    path = agentd.execute(agent, LOOK, verify=True)
    assert agentd.finish(path)[0] == "success" and said(agentd, path) == agent
    assert verified(agentd, path) == ("digest", "digest")
    path = agentd.execute(agent, LOOK)
    assert agentd.finish(path)[0] == "success" and verified(agentd, path) == (None, "")


def test_a_flipped_bit_ends_the_run(agentd, agent, make_agent):
    digest = top_layer(agent)
    freeze_change(agentd, agent, "echo more > ~/more")
    other = make_agent("true")
    with flipped(digest):
        path = agentd.execute(agent, LOOK, verify=True)
        result, message = agentd.finish(path)
        assert result == "sandbox-failed" and f"The layer {digest} is damaged" in message, message
        assert f"generation 3 of {agent} (head)" in message and f"generation 2 of {agent}" in message
        assert other not in message and agentd.receipt(path)["attempts"] == 1
        done = agentctl("run", "--wait", "--verify", agent, "--input", LOOK, check=False)
        assert done.returncode == 16 and digest in done.stderr
        # What does not hang on it goes on.
        assert agentd.finish(agentd.execute(other, verify=True))[0] == "success"
        agentd.call("RollbackEnvironment", agent, "1", dbus.Dictionary({}, signature="sv"))
        assert agentd.finish(agentd.execute(agent, "true", verify=True))[0] == "success"
        agentd.call("RollbackEnvironment", agent, "3", dbus.Dictionary({}, signature="sv"))
    path = agentd.execute(agent, LOOK, verify=True)
    assert agentd.finish(path)[0] == "success" and said(agentd, path) == agent


def test_a_missing_layer_ends_the_run(agentd, agent):
    digest = top_layer(agent)
    file = layer_file(digest)
    aside = file.with_name("aside")
    file.rename(aside)
    try:
        result, message = agentd.finish(agentd.execute(agent, LOOK, verify=True))
        assert result == "sandbox-failed" and f"The layer {digest} is missing" in message
    finally:
        aside.rename(file)


def test_many_at_once(agentd, agent):
    """One reading serves all that wait for it; whoever is canceled meanwhile does not get in the way of the others."""
    paths = [agentd.execute(agent, LOOK, verify=True) for _ in range(12)]
    with contextlib.suppress(dbus.DBusException):  # it is over already
        agentd.call("CancelRun", agentd.run_id(paths[5]))
    results = [agentd.finish(p)[0] for p in paths]
    assert results[5] in ("canceled", "success")  # success: it was over already
    assert {r for i, r in enumerate(results) if i != 5} == {"success"}
    with flipped(top_layer(agent)):
        paths = [agentd.execute(agent, LOOK, verify=True) for _ in range(12)]
        assert {agentd.finish(p)[0] for p in paths} == {"sandbox-failed"}


def test_for_all_runs(agentd, agent):
    conf = pathlib.Path("/etc/agentd/agentd.conf.d/verify-test.conf")
    conf.parent.mkdir(parents=True, exist_ok=True)
    conf.write_text("[Run]\nVerifyLayers=yes\n")
    systemctl("restart", "agentd.service")
    try:
        path = agentd.execute(agent, LOOK)
        assert agentd.finish(path)[0] == "success" and agentd.receipt(path)["verified"] == "digest"
        with flipped(top_layer(agent)):
            assert agentd.finish(agentd.execute(agent, LOOK))[0] == "sandbox-failed"
        # A layer that goes bad while the run reads it: the agent is not blamed for it.
        path = agentd.execute(agent, "until [ -e /tmp/go ]; do sleep 0.1; done; exit 3", timeout_usec=dbus.UInt64(7200_000_000))
        agentd.wait_state(path, "running")
        with flipped(top_layer(agent)):
            release(agentd, path)
            result, message = agentd.finish(path)
            assert result == "sandbox-failed" and "is damaged" in message
        path = agentd.execute(agent, "exit 3")
        assert agentd.finish(path)[0] == "exit-code"
    finally:
        conf.unlink()
        systemctl("restart", "agentd.service")
    path = agentd.execute(agent, LOOK)
    assert agentd.finish(path)[0] == "success" and agentd.receipt(path)["verified"] is None


def release(agentd, path):
    for pid in open(f"/sys/fs/cgroup{control_group(agentd.run_id(path))}/cgroup.procs").read().split():
        with contextlib.suppress(OSError):
            pathlib.Path(f"/proc/{pid}/root/tmp/go").touch()
            return
    raise AssertionError("the run has no process")


def test_option_and_its_type(agentd, agent):
    with pytest.raises(dbus.DBusException) as e:
        agentd.execute(agent, LOOK, verify="yes")
    assert e.value.get_dbus_name().endswith(".InvalidOption")
