# SPDX-License-Identifier: LGPL-2.1-or-later
"""A deploy every second under load (for AGENTD_STORM seconds): no run fails, none sees a mixture, no environment changes."""

import json
import os
import time

from client import DEADLINE, agentctl
from runners import files_digest, write_runner

SECONDS = float(os.environ.get("AGENTD_STORM", "15"))
AGENTS = 20


def environment(name):
    return [layer["digest"] for layer in json.loads(agentctl("env", "show", name).stdout)["layers"]]


def test_a_deploy_every_second(agentd, runners, make_agent, tmp_path):
    agents = [make_agent(["/bin/true"], kind="command") for _ in range(AGENTS)]
    layers = [environment(a) for a in agents]
    expected = {}

    def deploy(n):
        directory = write_runner(tmp_path / str(n), str(n))
        # The last one is broken every fifth time: that must not matter to anybody.
        if n % 5 == 4:
            (directory / "lib/zzz.cjs").write_text("let = ;\n")
        return directory, runners.begin(directory)

    def done(pending):
        directory, path = pending
        result, detail = agentd.complete(path)
        assert result == "done", detail
        expected[detail] = (directory.name, files_digest(directory))

    done(deploy(0))
    live, finished, used, n = {a: agentd.execute(a, "100") for a in agents}, [], set(), 1
    begin = time.monotonic()
    pending, due = None, begin + 1
    while live:
        now = time.monotonic()
        # As long as it takes for that to have happened of which this test is.
        over = now - begin > SECONDS and n >= 6 and len(used) >= 3
        assert now - begin < SECONDS + DEADLINE, (n, used)
        if pending and agentd.finished_operations.get(pending[1]):
            done(pending)
            pending = None
        if now >= due and not pending and not over:
            pending, due, n = deploy(n), due + 1, n + 1
        for a, path in list(live.items()):
            if path in agentd.finished_runs:
                finished.append((a, path))
                used.add(agentd.receipt(path)["runner"])
                del live[a]
                if not over:
                    live[a] = agentd.execute(a, "100")
        agentd.context.iteration(False) or time.sleep(0.005)
    if pending:
        done(pending)

    assert len(finished) >= AGENTS
    for _, path in finished:
        result, message = agentd.finished_runs[path][0]
        assert result == "success", message
        receipt, output = agentd.receipt(path), agentd.result(path)["output"]
        version, digest = expected[receipt["runner"]]
        assert output["parts"] == [version] * 3 and output["start"] == output["end"] == digest
        assert receipt["attempts"] == 1 and int(version) % 5 != 4
    assert [environment(a) for a in agents] == layers
    print(f"{len(finished)} runs, {n} deploys, {len(used)} runners in use")
