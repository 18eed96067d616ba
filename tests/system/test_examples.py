# SPDX-License-Identifier: LGPL-2.1-or-later
"""What is shown in examples/ is taken as it is, and allows what its description says."""

import json
import pathlib

import pytest

import inside
from client import agentctl

EXAMPLES = pathlib.Path("/src/examples")
SERVICES = sorted(EXAMPLES.glob("services/*.json"))


def test_there_are_some():
    assert {"anthropic", "gemini", "github", "github-git", "market-data", "openai"} <= {p.stem for p in SERVICES}


@pytest.mark.parametrize("file", SERVICES, ids=lambda p: p.stem)
def test_service(file):
    assert json.loads(file.read_text())["name"] == file.stem
    agentctl("service", "add", file)
    agentctl("service", "remove", file.stem)


# Where calls go that each of them is there for, and those that it is not.
CALLS = {
    "openai": ([("POST", "/v1/chat/completions"), ("POST", "/v1/responses"), ("GET", "/v1/models/gpt-4")],
               [("POST", "/v1/organization/admin_api_keys"), ("GET", "/v1/files"), ("DELETE", "/v1/models/x")]),
    "anthropic": ([("POST", "/v1/messages"), ("POST", "/v1/messages/count_tokens")],
                  [("GET", "/v1/organizations/api_keys"), ("POST", "/v1/models/x")]),
    "gemini": ([("POST", "/v1beta/models/gemini-pro:generateContent"), ("GET", "/v1beta/models")],
               [("POST", "/v1beta/tunedModels"), ("DELETE", "/v1beta/models/x")]),
    "github": ([("GET", "/repos/o/r/contents/a"), ("POST", "/repos/o/r/issues"), ("PATCH", "/repos/o/r/pulls/1")],
               [("GET", "/repos/o/r/actions/secrets"), ("POST", "/repos/o/r/keys"), ("DELETE", "/repos/o/r"),
                ("POST", "/graphql")]),
    "github-git": ([("GET", "/o/r.git/info/refs"), ("POST", "/o/r.git/git-upload-pack")],
                   [("GET", "/o/r.git/HEAD"), ("GET", "/settings/tokens")]),
}

CODE = """
say([[bridge(method, f"/v1/services/%s{path}")[0] for method, path in calls] for calls in %r])
"""


@pytest.mark.parametrize("name", CALLS)
def test_what_a_service_allows(agentd, make_agent, make_service, upstream, unique, name):
    """The rules of the example, with an upstream of this test behind them."""
    rules = json.loads((EXAMPLES / f"services/{name}.json").read_text())
    service = make_service(allow=rules["allow"], deny=rules.get("deny", []))
    allowed, refused = CALLS[name]
    for method, path in allowed + refused:
        upstream.on(f"/api{path}", lambda r: r.reply(200, {}))
    agent = make_agent(inside.COMMAND, kind="command", services=[service])
    run = agentd.execute(agent, inside.PRELUDE + CODE % (service, [allowed, refused]))
    assert agentd.finish(run)[0] == "success", agentd.log(run)
    assert agentd.result(run)["output"] == [[200] * len(allowed), [403] * len(refused)]
