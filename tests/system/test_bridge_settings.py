# SPDX-License-Identifier: LGPL-2.1-or-later
"""bridge.conf(5): each setting does what it says, in the real bridge; one that has no valid value is told, and holds up
nothing once it is mended. (AllowAddresses=, ConnectionsMax=, DrainSec=: test_bridge_calls, _load, _restart.)
"""

import json
import os
import re

import pytest

import inside
from client import agentctl, journal, run, show, systemctl, wait_until
from test_bridge_calls import Authority
from upstream import DROPIN, Upstream, bridge_config

UNIT = "agent-bridged.service"


@pytest.fixture
def target(make_service, upstream, unique):
    """A service that answers at once, and where it is at the bridge."""
    name = unique()
    upstream.on(f"/api/{name}", lambda r: r.reply(200, {}))
    service = make_service()
    return service, f"/v1/services/{service}/{name}"


# All are asked before any answer is read, so that no time is given back meanwhile, however slow the machine is.
HAMMER = """
open_now, answers = [connect() for _ in range(100)], []
for c in open_now:
    c.request("GET", "%s", headers={"Authorization": "Bearer " + token()})
for c in open_now:
    r = c.getresponse()
    answers.append((r.status, r.getheader("Retry-After"), r.read()))
say([[a[0] for a in answers], {a[1] for a in answers if a[0] == 429} == {"1"},
     {json.loads(a[2])["type"] for a in answers if a[0] == 429} == {"urn:agentd:problem:too-many-requests"}])
"""


@pytest.mark.parametrize("prefix", ["RunRequests", "UserCalls"])
def test_so_many_in_a_time(caller, target, prefix):
    service, path = target
    assert caller(HAMMER % path, service)[0] == [200] * 100
    with bridge_config(f"[Limits]\n{prefix}PerSecond=1\n{prefix}Burst=15\n"):
        statuses, retry, told = caller(HAMMER % path, service)
    # Some seconds pass meanwhile, and the runner asks for some things itself.
    assert statuses.count(200) >= 5 and statuses.count(429) >= 5 and set(statuses) == {200, 429} and retry and told


@pytest.mark.parametrize("key", ["RunCallsMax", "UserCallsMax"])
def test_so_many_at_once(agentd, make_agent, make_service, upstream, unique, key):
    """Calls that may be open: of one run, or of all runs of a user. Other routes, and other runs where it is a run's, are
    not concerned; and the place comes back."""
    name = unique()
    gate = upstream.gate(name)
    upstream.on(f"/api/{name}", lambda r: r.reply(200, {}))
    service = make_service()
    agent = make_agent(inside.COMMAND, kind="command", services=[service], concurrency=2)
    first = """
from concurrent.futures import ThreadPoolExecutor
def hold():
    while (answer := bridge("GET", "/v1/services/%(service)s/gate/%(name)s"))[0] == 429:
        pass  # it was the other one's turn
    return answer
with ThreadPoolExecutor(1) as pool:
    held = pool.submit(hold)
    while bridge("GET", "/v1/services/%(service)s/%(name)s")[0] != 429:  # until that is under way
        time.sleep(0.02)
    other = bridge("GET", "/v1/run")[0]
    result = held.result()[0]
say([other, result, bridge("GET", "/v1/services/%(service)s/%(name)s")[0]])
""" % {"service": service, "name": name}
    with bridge_config(f"[Limits]\n{key}=1\n"):
        path = agentd.execute(agent, inside.PRELUDE + first)
        gate.arrived(1)
        second = agentd.execute(agent, inside.PRELUDE + f'say(bridge("GET", "/v1/services/{service}/{name}")[0])')
        assert agentd.finish(second)[0] == "success"
        assert agentd.result(second)["output"] == (200 if key == "RunCallsMax" else 429)
        gate.open()
        assert agentd.finish(path)[0] == "success", agentd.log(path)
        assert agentd.result(path)["output"] == [200, 200, 200]


def test_body_max(caller, target):
    service, path = target
    code = f'say([bridge("POST", "{path}", b"x" * n)[0] for n in (1024, 1025, 100000)])'
    with bridge_config("[Limits]\nBodyMax=1K\n"):
        assert caller(code, service) == [200, 413, 413]
    assert caller(code, service) == [200, 200, 200]


def test_approval_timeout(caller, make_service, upstream, unique):
    """No answer is a no, and then it is no question any more."""
    name = unique()
    upstream.on(f"/api/{name}", lambda r: r.reply(200, {}))
    service = make_service(allow=[{"methods": ["GET"], "paths": ["/*"], "approval": True}])
    with bridge_config("[Bridge]\nApprovalTimeoutSec=1\n"):
        seen = caller(f"""
s, _, b = bridge("GET", "/v1/services/{service}/{name}")
say([s, json.loads(b)["type"]])
""", service)
    assert seen == [403, "urn:agentd:problem:approval-timeout"]
    assert upstream.asked(f"/api/{name}") == []
    wait_until(lambda: json.loads(agentctl("approvals", "--json=short").stdout or "[]") == [], "the end of the question")


@pytest.mark.parametrize("text", ["[Bridge]\nConnectionsMax=0\n", "[Bridge]\nConnectionsMax=many\n", "[Bridge\n",
                                  "[Upstream]\nAllowAddresses=10.0.0.1/8\n", "[Limits]\nBodyMax=-1\n", "no equals sign\n"])
def test_what_is_no_setting(caller, target, text):
    """The bridge says so and does not start, rather than with less than was asked for; runs wait, and go on once it is
    mended."""
    service, path = target
    bad = os.path.join(os.path.dirname(DROPIN), "96-bad.conf")
    with open(bad, "w", encoding="ascii") as f:
        f.write(text)
    try:
        assert run("systemctl", "restart", UNIT, check=False).returncode != 0
        told = journal("-u", UNIT, "-n", "50")
        assert "96-bad.conf" in told or "bridge.conf" in told
        assert show(UNIT, "MainPID") == "0" or show(UNIT, "SubState") != "running"
    finally:
        os.unlink(bad)
        systemctl("restart", UNIT)
    assert caller(f'say(bridge("GET", "{path}")[0])', service) == 200


@pytest.mark.parametrize("unit", [UNIT, "agent-credentiald.service"])
def test_each_setting_is_known_to_both(caller, target, unit):
    """One file for two programs: neither warns of what is the other's."""
    service, path = target
    with open("/etc/agentd/bridge.conf", encoding="ascii") as f:
        sample = re.sub(r"^#(\w+=)", r"\1", f.read(), flags=re.M).replace("BodyMax=", "BodyMax=64M")
    assert len(re.findall(r"^\w+=", sample, re.M)) > 10
    with bridge_config(sample + "[Bridge]\nNoSuchKey=1\n"):
        systemctl("restart", unit)
        invocation = show(unit, "InvocationID")
        told = journal("--output=cat", f"_SYSTEMD_INVOCATION_ID={invocation}")
        assert [line for line in told.splitlines() if "95-test.conf" in line and "NoSuchKey" not in line] == []
        assert "NoSuchKey" in told
    systemctl("restart", unit)
    assert caller(f'say(bridge("GET", "{path}")[0])', service) == 200


def test_unknown_key_is_told_and_left(caller, target):
    service, path = target
    with bridge_config("[Bridge]\nNoSuchKey=1\n"):
        assert caller(f'say(bridge("GET", "{path}")[0])', service) == 200
        assert "NoSuchKey" in journal("-u", UNIT, "-n", "50")


def test_ca_file(caller, make_service, upstream, unique, target):
    """An authority that the machine does not know is trusted where it is named, by the bridge for its calls and by the strong
    room for its tokens; the system's own ones stay trusted."""
    path = f"/etc/agentd/{unique('ca')}.pem"
    private = Upstream(path)
    authority = Authority(private, unique)
    name = unique()
    private.on(f"/api/{name}", lambda r: r.reply(200, {}))
    plain = make_service(base_url=private.url)
    tokens = make_service(authority.secret, base_url=private.url, auth={
        "kind": "oauth2-client-credentials", "client_id": "client", "token_url": f"{private.url}/{authority.name}/token"})
    # Its token comes from there, its data from where everybody is trusted.
    mixed = make_service(authority.secret, auth={
        "kind": "oauth2-client-credentials", "client_id": "client", "token_url": f"{private.url}/{authority.name}/token"})
    upstream.on(f"/api/{authority.name}/data", authority.data)
    service, known = target
    code = f"""
say([bridge("GET", p)[0] for p in ("{known}", "/v1/services/{plain}/{name}", "/v1/services/{tokens}/{authority.name}/data",
                                   "/v1/services/{mixed}/{authority.name}/data")])
"""
    services = (service, plain, tokens, mixed)
    try:
        assert caller(code, *services) == [200, 502, 503, 503] and private.requests == []
        with bridge_config(f"[Upstream]\nCAFile={path}\n"):
            systemctl("restart", "agent-credentiald.service")
            assert caller(code, *services) == [200] * 4 and authority.issued == 2
        systemctl("restart", "agent-credentiald.service")
        assert caller(code, *services) == [200, 502, 503, 503]
    finally:
        private.close()
        os.unlink(path)
