# SPDX-License-Identifier: LGPL-2.1-or-later
"""What only a machine with a clock of its own can show: an environment is the same in a year."""

import contextlib
import json
import time

import inside
from client import agentctl, run, systemctl
from test_frozen import LOOK

YEAR = 366 * 24 * 3600


@contextlib.contextmanager
def in_a_year():
    run("date", "--set", f"@{int(time.time()) + YEAR}")
    try:
        yield
    finally:
        run("date", "--set", f"@{int(time.time()) - YEAR}")


def look(agentd, agent):
    path = agentd.execute(agent, LOOK)
    result, message = agentd.finish(path)
    assert result == "success", message
    return agentd.result(path)["output"], agentd.receipt(path)["environment"]


def test_a_generation_in_a_year(agentd, make_agent):
    agent = make_agent(inside.COMMAND, kind="command", limits={"timeout": 600})
    agentctl("env", "edit", agent, "--", "/bin/sh", "-c", "echo mine > /etc/mine")
    agentctl("env", "freeze", agent)
    generation = json.loads(agentctl("env", "show", agent).stdout)
    seen = look(agentd, agent)
    with in_a_year():
        assert run("date", "+%Y").stdout != time.strftime("%Y", time.localtime(time.time() - YEAR))
        assert look(agentd, agent) == seen, "with agentd as it was"
        systemctl("restart", "agentd.service", "agent-bridged.service", "agent-credentiald.service")
        assert look(agentd, agent) == seen
        assert run("agentctl", "env", "fsck").returncode == 0
        assert json.loads(agentctl("env", "show", agent).stdout)["digest"] == generation["digest"]
    assert look(agentd, agent) == seen
