# SPDX-License-Identifier: LGPL-2.1-or-later
"""The network of a session in an edit: the bridge's forward proxy, to the hosts that were allowed, as long as the session
is open; and nothing else.
"""

import json
import os
import re

import pytest

from client import LIVE, TEST_ROOTFS, agentctl, call_as, journal, kill, run, systemctl, wait_until

CURL = "curl -sS -m 3600 -o /dev/null -w '%{http_code} %{http_connect}'"


def records(session):
    out = journal("-o", "json", f"AGENT_EDIT_SESSION={session}", "SYSLOG_IDENTIFIER=agent-bridge-audit",
                  "_SYSTEMD_UNIT=agent-bridged.service")
    return [json.loads(line) for line in out.splitlines() if line.startswith("{")]


def session_id(agent):
    """Of the one that is open."""
    units = run("systemctl", "list-units", "--plain", "--no-legend", "agent-op-*").stdout.splitlines()
    return next(re.search(r"agent-op-\d+-([0-9a-f]{32})", line).group(1) for line in units if f"/{agent} " in line)


def registered():
    out = run("busctl", "--json=short", "call", "org.agentd1.Bridge", "/org/agentd1/Bridge", "org.agentd1.Bridge",
              "ListRegistered").stdout
    return json.loads(out)["data"][0]


def edit_proxy_token(shell):
    return shell("echo $http_proxy").split(":", 2)[2].split("@")[0]


def test_only_through_the_proxy_and_only_where_allowed(shell, mirror, upstream):
    url = mirror.put("file", "hello")
    s = shell("--allow-host", mirror.host, f"--allow-host=localhost:{upstream.port}")
    session = session_id(s.agent)
    assert s(f"curl -sS {url}") == "hello"
    # CONNECT, on the way to TLS that the bridge does not see into.
    assert s(f"{CURL} -k --noproxy '' {upstream.origin}/none") == "404 200"
    # Neither other hosts nor other ports, nor addresses in any form.
    for where in (f"http://other.agentd.test:{mirror.port}/", "http://mirror.agentd.test:1/", f"http://127.0.0.1:{mirror.port}/",
                  f"http://[::1]:{mirror.port}/", f"http://2130706433:{mirror.port}/", "http://169.254.169.254/latest/",
                  "http://metadata.google.internal/"):
        assert s(f"{CURL} --noproxy '' {where}") == "403 000", where
    for where in (f"https://other.agentd.test:{mirror.port}/", f"https://127.0.0.1:{mirror.port}/", "https://169.254.169.254/"):
        assert s(f"{CURL} -k --noproxy '' {where}", check=False).endswith("000 403"), where
    # Past the proxy there is nothing: no route, no name, and no other port of the bridge.
    for where in (f"http://127.0.0.1:{mirror.port}/", "http://127.0.0.1:8377/v1/run", "http://169.254.169.254/"):
        assert s(f"curl -sS -m 3600 --noproxy '*' {where}", check=False).startswith("curl: (7)"), where
    assert "curl: (6)" in s(f"curl -sS -m 3600 --noproxy '*' {url}", check=False)
    assert run("curl", "-sS", url).stdout == "hello", "the host itself can"
    # Each connection has left one record, which names agent, owner and who it was.
    seen = records(session)
    assert {(r["AGENT_NAME"], r["AGENT_USER"], r["AGENT_HOLDER"], r["AGENT_ROUTE"]) for r in seen} == {
        (s.agent, "root", "root", "proxy")}
    assert [r["AGENT_STATUS"] for r in seen] == ["200", "200", *["403"] * 10]
    assert [r["AGENT_METHOD"] for r in seen] == ["GET", "CONNECT", *["GET"] * 7, *["CONNECT"] * 3]
    assert seen[1]["AGENT_PATH"] == f"localhost:{upstream.port}" and "AGENT_RUN" not in seen[0]
    begun = journal("-o", "json", f"AGENT_EDIT_SESSION={session}", "_COMM=agentd")
    assert f"mirror.agentd.test:{mirror.port}" in json.loads(begun.splitlines()[0])["AGENT_HOSTS"]


def test_the_token(shell, mirror):
    """It is wanted, it is of this session, and it opens the proxy and nothing else."""
    url = mirror.put("file", "hello")
    a, b = (shell("--allow-host", mirror.host) for _ in range(2))
    assert a(f"{CURL} -x http://127.0.0.1:8378 {url}") == "407 000"
    other = edit_proxy_token(b)
    assert a(f"{CURL} -x http://edit:{other}@127.0.0.1:8378 {url}") == "407 000"
    assert b(f"{CURL} {url}") == "200 000"
    assert {r["AGENT_STATUS"] for r in records(session_id(a.agent))} == {"407"}
    # The bridge's own routes are not at this port, whatever is said.
    assert a("""curl -sS -o /dev/null -w '%{http_code}' --noproxy '*' -H "Authorization: Bearer """ + edit_proxy_token(a) +
             """" http://127.0.0.1:8378/v1/run""") in ("400", "401")
    # What PID 1 shows to everybody does not have it.
    unit = next(u.split()[0] for u in run("systemctl", "list-units", "--plain", "--no-legend", "agent-op-*").stdout.splitlines()
                if f"/{a.agent} " in u)
    assert edit_proxy_token(a)[:40] not in run("systemctl", "show", unit).stdout
    # One of an earlier session is worth nothing in the next.
    old, name = edit_proxy_token(a), a.agent
    assert a.end()[0] == 0
    again = shell("--allow-host", mirror.host, name=name)
    assert again(f"{CURL} -x http://edit:{old}@127.0.0.1:8378 {url}") == "407 000"
    assert again(f"{CURL} {url}") == "200 000"


def test_the_allowance_ends_with_the_session(shell, mirror):
    s = shell("--allow-host", mirror.host)
    session = session_id(s.agent)
    assert session in registered() and os.path.exists(f"{LIVE}/{session}.json")
    assert s.end()[0] == 0
    assert not os.path.exists(f"{LIVE}/{session}.json"), "before the end is told"
    wait_until(lambda: session not in registered(), "the bridge's end")
    # The next one is not given what this one was.
    assert shell("--allow-host", "elsewhere.example.org", name=s.agent)(f"{CURL} {mirror.url}/file") == "403 000"


def test_no_host_is_allowed_by_default(shell, mirror):
    s = shell()
    assert s(f"env | grep -ci _proxy=; {CURL} --noproxy '*' {mirror.url}/file 2>/dev/null; ls /sys/class/net") == "0\n000 000lo"


def test_close(shell, mirror):
    """Somebody else is told who, since when, and how to end it; that ends the session and its network, not the edit."""
    s = shell("--allow-host", mirror.host)
    session = session_id(s.agent)
    s("echo kept > /etc/kept")
    done = agentctl("env", "edit", s.agent, "--", "true", check=False)
    assert done.returncode == 3 and re.search(r"edited by root since 20\d\d-\d\d-\d\d \d\d:\d\d:\d\d UTC", done.stderr)
    assert "agentctl env close" in done.stderr
    assert agentctl("env", "close", s.agent).stdout == ""
    assert not os.path.exists(f"{LIVE}/{session}.json")
    assert s.process.wait() == 14
    assert shell(name=s.agent)("cat /etc/kept") == "kept"
    s.end()


def test_close_when_nothing_is_open(make_agent, users):
    name = make_agent("true")
    assert agentctl("env", "close", name, check=False).returncode == 3
    agentctl("env", "edit", name, "--", "true")
    done = agentctl("env", "close", name, check=False)
    assert done.returncode == 3 and "No session is open" in done.stderr
    assert "error" in call_as(users[0], ("CloseEdit", f"root/{name}"))[0]
    agentctl("env", "discard", name)


def test_over_a_restart_of_the_bridge(shell, mirror):
    url = mirror.put("file", "hello")
    s = shell("--allow-host", mirror.host)
    assert s(f"curl -sS {url}") == "hello"
    systemctl("restart", "agent-bridged")
    assert s(f"curl -sS {url}") == "hello"
    kill("agent-bridged")
    assert s(f"curl -sS {url}") == "hello"
    assert s(f"{CURL} --noproxy '' http://127.0.0.1:{mirror.port}/") == "403 000"


def test_over_a_restart_of_agentd(shell, mirror):
    """The session goes on, with its network; its end is found, and tells how it was."""
    url = mirror.put("file", "hello")
    s = shell("--allow-host", mirror.host)
    session = session_id(s.agent)
    for restart in (lambda: systemctl("restart", "agentd"), lambda: kill("agentd")):
        restart()
        assert s(f"curl -sS {url}; echo x >> /etc/restarts") == "hello"
    assert session in registered() and session_id(s.agent) == session
    done = agentctl("env", "edit", s.agent, "--", "true", check=False)
    assert done.returncode == 3 and "edited by root" in done.stderr
    s("echo 'exit 7' > /tmp/end")
    # Its end comes while nobody is there to see it.
    systemctl("stop", "agentd")
    s.process.stdin.write(". /tmp/end\n")
    s.process.stdin.close()
    s.process.stdout.read()
    systemctl("start", "agentd")
    assert s.process.wait() == 1 and "exit status 7" in s.process.stderr.read()
    assert not os.path.exists(f"{LIVE}/{session}.json")
    wait_until(lambda: session not in registered(), "the bridge's end")
    assert agentctl("env", "edit", s.agent, "--", "cat", "/etc/restarts").stdout == "x\nx\n"


def test_addresses_that_the_bridge_does_not_dial(shell, mirror, upstream):
    """A name of the attacker's leads to the host's loopback or to the cloud's metadata."""
    mirror.name("rebind.agentd.test", "127.0.0.1")
    mirror.name("metadata.agentd.test", "169.254.169.254")
    s = shell("--allow-host", f"rebind.agentd.test:{mirror.port}", "--allow-host=metadata.agentd.test")
    assert s(f"{CURL} http://rebind.agentd.test:{mirror.port}/") == "200 000", "the tests' bridge may"
    assert s(f"{CURL} http://metadata.agentd.test/latest/") == "502 000"
    upstream.allow(None)
    try:
        assert s(f"{CURL} http://rebind.agentd.test:{mirror.port}/") == "502 000"
        assert s(f"{CURL} -k https://rebind.agentd.test:{mirror.port}/", check=False).endswith("000 502")
    finally:
        upstream.allow("127.0.0.0/8 ::1")


@pytest.fixture(scope="module")
def alices(agentd, users, unique):
    """Makes agents of an ordinary user."""
    alice, image, made = users[0], unique("img"), []
    (answer,) = call_as(alice, ("ImportImage", image, {"fd": TEST_ROOTFS}, {"options": {}}))
    assert agentd.complete(answer["value"])[0] == "done"

    def make():
        name = unique("t")
        definition = {"name": name, "image": image, "kind": "exec", "command": ["/bin/true"]}
        (a,) = call_as(alice, ("CreateAgent", json.dumps(definition)))
        assert "error" not in a, a
        made.append(name)
        return name

    yield make
    for name in made:
        agentctl("env", "close", f"{alice}/{name}", check=False)
        agentctl("env", "discard", f"{alice}/{name}", check=False)
        assert "error" not in call_as(alice, ("RemoveAgent", name))[0]
    call_as(alice, ("RemoveImage", image))


def test_who_may_name_hosts(shell, mirror, agentd, settings, users, alices):
    url = mirror.put("file", "hello")
    settings("Edit", AllowHosts=["", f"{mirror.host} *.example.org:443"], AllowOtherHosts="no")
    # What holds for everybody needs no option; an empty one drops it; then there is no proxy at all.
    assert shell()(f"curl -sS {url}") == "hello"
    none = shell("--allow-host=")
    assert "proxy" not in none("env").lower() and "curl: (6)" in none(f"curl -sS -m 3600 {url}", check=False)
    other = shell("--allow-host=", f"--allow-host=localhost:{mirror.port}")
    assert other(f"{CURL} {url}") == "403 000", "root may name others, and drop what holds for all"
    # Another user may ask for less, not for more; and what is refused begins nothing.
    name = alices()
    nul = [{"fd": "/dev/null"}] * 3

    def ask(*hosts):
        return call_as(users[0], ("EditEnvironment", name, ["/bin/true"], *nul, {"options": {"allow-hosts": hosts}}))[0]

    for hosts in (["evil.example"], ["*.org:443"], ["x.example.org"]):
        answer = ask(*hosts)
        assert answer.get("error", "").endswith("AccessDenied") and "AllowOtherHosts" in answer["message"], answer
    assert name not in agentctl("env", "edits").stdout
    for hosts in ([""], ["x.example.org:443"], ["*.deep.example.org:443"]):
        assert agentd.complete(ask(*hosts)["value"])[0] == "done"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:80", "[::1]:80", "2130706433", "0x7f000001:80", "a b", "x:0",
                                  "x:65536", "http://x", "x/", "-x", "*", "*:80", "x.*.y", "\x01"])
def test_what_is_no_host(make_agent, host):
    """Refused in words, and no edit is begun by it."""
    name = make_agent("true")
    done = agentctl("env", "edit", name, "--allow-host", host, "--", "true", check=False)
    assert done.returncode == 2 or done.returncode == 3 or done.returncode == 1
    assert "no HOST" in done.stderr
    assert name not in agentctl("env", "edits").stdout
