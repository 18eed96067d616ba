# SPDX-License-Identifier: LGPL-2.1-or-later
"""The output of agents of kind exec, which goes to the journal without a runner and without the bridge."""

import json

from client import run

NOTE = "The run's log limit is reached; further lines are dropped."


def entries(agentd, path):
    """What the run's unit has said, as the journal has it."""
    run_id = agentd.run_id(path)
    run("journalctl", "--sync")
    out = run("journalctl", "--no-pager", "-o", "json", "--all", "-u", f"agent-run-{run_id}", f"AGENT_RUN={run_id}",
              "_TRANSPORT=stdout").stdout
    return [json.loads(line) for line in out.splitlines()]


def said(agentd, make_agent, code, **keys):
    path = agentd.execute(make_agent(["/usr/bin/python3", "-c", code], **keys))
    assert agentd.finish(path)[0] == "success"
    return entries(agentd, path)


def test_bytes_have_a_limit(agentd, make_agent):
    """Beyond it the command goes on, and is not heard; nobody else's lines go from the journal for its."""
    code = "import os\nfor i in range(200): os.write(1, b'%040000d\\n' % i)\nprint('last')"
    lines = [e["MESSAGE"] for e in said(agentd, make_agent, code, limits={"log": "100K"})]
    assert lines[-1] == NOTE and "last" not in lines
    assert [int(text[-9:]) for text in lines[:2]] == [0, 1] and sum(map(len, lines)) < 100 * 1024
    lines = [e["MESSAGE"] for e in said(agentd, make_agent, code, limits={"log": "10M"})]
    assert [int(text[-9:]) for text in lines[:-1]] == list(range(200)) and lines[-1] == "last"


def test_lines_cost_more_than_their_bytes(agentd, make_agent):
    lines = [e["MESSAGE"] for e in said(agentd, make_agent, "print('a\\n' * 20000)", limits={"log": "64K"})]
    assert lines[-1] == NOTE and 100 < len(lines) < 1000


def test_nobody_else_is_alarmed(agentd, make_agent):
    """An emergency is written on the terminals of all who are logged in: what a run says is what it says."""
    seen = {e["MESSAGE"]: e["PRIORITY"] for e in said(agentd, make_agent, "print('<0>the house is on fire\\n<7>no')")}
    assert seen == {"<0>the house is on fire": "6", "<7>no": "6"}


def test_nothing_is_lost_at_the_end(agentd, make_agent):
    """Also not what comes in the moment of the end, on either stream; what outlives the command is not waited for."""
    code = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    time.sleep(100000)
os.write(2, b"first\\n")
os.write(1, b"".join(b"%d\\n" % i for i in range(2000)))
os.write(2, b"without an end")
os._exit(0)
"""
    lines = [e["MESSAGE"] for e in said(agentd, make_agent, code)]
    assert lines == ["first", *map(str, range(2000)), "without an end"]
