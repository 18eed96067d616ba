# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the bridge keeps for runs and tells of them: sessions, usage, events, metrics, artifacts, runs; its socket in the
sandbox; the forward proxy; and what the host sees of all that: records, counters, questions, keys.
"""

import json
import os
import socket
import threading
import uuid

import dbus
import pytest

import inside
from client import RUNTIME, agentctl, call_as, journal, run, show, systemctl, wait_until

SOCKET = "/run/agent-bridge.sock"


def entries(*matches):
    return [json.loads(line) for line in journal("-o", "json", *matches, check=False).splitlines() if line.startswith("{")]


def records(run_id):
    """The bridge's records of a run's requests."""
    return entries(f"AGENT_RUN={run_id}", "SYSLOG_IDENTIFIER=agent-bridge-audit", "_SYSTEMD_UNIT=agent-bridged.service")


def metrics():
    text = run("curl", "-sS", "--fail", "--unix-socket", "/run/agent-bridged/control", "http://x/metrics").stdout
    assert text.endswith("# EOF\n")
    return dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))


# --- what is kept ---

def test_session_goes_from_run_to_run(agentd, make_agent):
    agent, other = (make_agent(inside.COMMAND, kind="command") for _ in range(2))

    def in_session(name, code, of=agent):
        path = agentd.execute(of, inside.PRELUDE + code, **({"session": name} if name else {}))
        assert agentd.finish(path)[0] == "success", agentd.log(path)
        return agentd.result(path)["output"]

    first = """
a = bridge("GET", "/v1/session")[0]
status, headers, _ = bridge("PUT", "/v1/session", bytes(range(256)) * 4096, {"Content-Type": "application/x-mine"})
say([a, status, headers["etag"], bridge("PUT", "/v1/session", b"x" * (1 << 20) + b"y")[0]])
"""
    second = """
status, headers, body = bridge("GET", "/v1/session")
say([status, headers["content-type"], hashlib.sha256(body).hexdigest(),
     bridge("PUT", "/v1/session", b"late", {"If-Match": '"7"'})[0],
     bridge("PUT", "/v1/session", b"next", {"If-Match": headers["etag"]})[0], bridge("GET", "/v1/session")[2].decode()])
"""
    import hashlib
    digest = hashlib.sha256(bytes(range(256)) * 4096).hexdigest()
    assert in_session("monday", first) == [404, 204, '"1"', 413]
    assert in_session("monday", second) == [200, "application/x-mine", digest, 412, 204, "next"]
    # Another session, another agent's session of that name, no session.
    ask = 'say(bridge("GET", "/v1/session")[0])'
    assert in_session("tuesday", ask) == 404
    assert in_session("monday", ask, other) == 404
    assert in_session(None, ask) == 404
    assert in_session("monday", 'say(bridge("GET", "/v1/session")[2].decode())') == "next"


def test_usage_is_counted_once_and_is_in_the_receipt(agentd, make_agent):
    path = agentd.execute(make_agent(inside.COMMAND, kind="command"), inside.PRELUDE + """
def use(key, amount, **more):
    return bridge("POST", "/v1/usage", json.dumps({"key": key, "amount": amount, **more}))[0]
say([use("a", 5, description="a chart"), use("a", 5), use("a", 6), use("b", 7), use("c", 0), use("d", -1), use("e", 10**13)])
""")
    assert agentd.finish(path)[0] == "success"
    assert agentd.result(path)["output"] == [201, 200, 409, 201, 422, 422, 402]
    assert [(d["key"], d["amount"]) for d in agentd.receipt(path)["debits"]] == [("a", 5), ("b", 7)]


def test_events_metrics_artifacts_runs(agentd, make_agent):
    path = agentd.execute(make_agent(inside.COMMAND, kind="command"), inside.PRELUDE + """
run = os.environ["AGENT_RUN_ID"]
events = [{"type": "step", "n": i, "AGENT_RUN": "forged"} for i in range(5)]
e = bridge("POST", "/v1/run/events", "\\n".join(map(json.dumps, events)))
m = bridge("POST", "/v1/metrics", '{"name":"rows","value":3}\\n{"name":"rows","value":4}')
bridge("PUT", "/v1/artifacts/a.bin", bytes(range(256)) * 1000)
a = bridge("GET", "/v1/artifacts/a.bin")
r = bridge("GET", "/v1/runs/" + run)
say([e[0], json.loads(e[2]), m[0], a[0], a[2] == bytes(range(256)) * 1000, bridge("GET", "/v1/artifacts/b.bin")[0],
     json.loads(r[2])["state"], bridge("GET", "/v1/runs/" + "0" * 32)[0]])
""")
    assert agentd.finish(path)[0] == "success"
    assert agentd.result(path)["output"] == [200, {"lines": 5, "refused": 0}, 200, 200, True, 404, "running", 404]
    seen = entries(f"AGENT_RUN={agentd.run_id(path)}", "AGENT_EVENT=step")
    assert [json.loads(e["MESSAGE"])["n"] for e in seen] == list(range(5))
    assert not any("step" in line or "rows" in line for line in agentd.log(path))  # are no lines of its log
    values = [e["AGENT_METRIC_VALUE"] for e in entries(f"AGENT_RUN={agentd.run_id(path)}", "AGENT_METRIC=rows")]
    assert values == ["3", "4"]


# --- the socket ---

ASK_SOCKET = """
def over_socket(text):
    s = socket.socket(socket.AF_UNIX)
    s.settimeout(3600)
    s.connect("/run/agent-bridge.sock")
    s.sendall(text.encode())
    data = b""
    while piece := s.recv(65536):
        data += piece
    return int(data.split()[1])
def request(path, host, auth):
    return over_socket(f"GET {path} HTTP/1.1\\r\\nHost: {host}\\r\\nConnection: close\\r\\n{auth}\\r\\n\\r\\n")
"""


def test_services_by_host_name(caller, make_service, upstream, unique):
    """As gh speaks: plain HTTP over the socket, the API's own Host, "Authorization: token"."""
    name = unique()
    upstream.on(f"/api/{name}", lambda r: r.reply(200, {}))
    host = upstream.origin.split("//")[1]
    code = ASK_SOCKET + f"""
auth = "Authorization: token " + token()
say([request("/api/{name}", "{host}", auth), request("/api/{name}", "{host}", "X-None: 1"),
     request("/other", "{host}", auth), request("/api/{name}", "api.github.com", auth),
     request("/v1/run", "agent-bridge", auth), oct(os.stat("/run/agent-bridge.sock").st_mode)])
"""
    assert caller(code, make_service("the-real-one")) == [200, 401, 404, 404, 200, "0o140600"]
    assert ("authorization", "Bearer the-real-one") in [(k.lower(), v) for k, v in upstream.asked(f"/api/{name}")[0][2]]


def test_of_two_services_of_one_url_none_is_guessed(caller, make_service, upstream, unique):
    """Each has a credential of its own; by their names they are told apart, and a longer path is an answer."""
    name = unique()
    upstream.on(f"/api/{name}/", lambda r: r.reply(200, {}))
    host = upstream.origin.split("//")[1]
    first, second = make_service("one"), make_service("two")
    below = make_service("three", base_url=f"{upstream.url}/{name}/below")
    code = ASK_SOCKET + f"""
auth = "Authorization: token " + token()
say([request("/api/{name}/x", "{host}", auth), request("/api/{name}/below/x", "{host}", auth),
     request("/v1/services/{first}/{name}/y", "agent-bridge", auth),
     request("/v1/services/{second}/{name}/z", "agent-bridge", auth)])
"""
    assert caller(code, first, second, below) == [409, 200, 200, 200]
    for path, secret in (("below/x", "three"), ("y", "one"), ("z", "two")):
        asked = [v for r in upstream.asked(f"/api/{name}/{path}") for k, v in r[2] if k.lower() == "authorization"]
        assert asked == [f"Bearer {secret}"], path
    assert not upstream.asked(f"/api/{name}/x")


def test_socket_of_another_run_is_out_of_reach(agentd, make_agent):
    """Its file is in a folder that only root enters, and its owner is the run's own user."""
    path = agentd.execute(make_agent("sleep 1000"))
    agentd.wait_state(path, "running")
    sock = f"{RUNTIME}/runs/{agentd.run_id(path)}/bridge.sock"
    uid = int(show(str(agentd.get(path, "Unit")), "UID") or 0) or int(show(str(agentd.get(path, "Unit")), "User"))
    assert os.stat(sock).st_uid == uid and os.stat(sock).st_mode & 0o777 == 0o600
    assert run("curl", "-sS", "--unix-socket", sock, "http://agent-bridge/v1/run", user="nobody", check=False).returncode
    agentd.call("CancelRun", agentd.run_id(path))
    agentd.finish(path)
    assert not os.path.exists(sock)


# --- the forward proxy ---

def test_proxy_goes_where_the_definition_says(agentd, caller, upstream, unique):
    name = unique()
    upstream.on(f"/{name}", lambda r: r.reply(200, b"through"))
    code = f"""
import ssl
basic = "Basic " + base64.b64encode(("run:" + token()).encode()).decode()
def connect_to(host, auth=basic):
    s = socket.create_connection(("127.0.0.1", 8378), 3600)
    s.sendall(f"CONNECT {{host}} HTTP/1.1\\r\\nHost: {{host}}\\r\\nProxy-Authorization: {{auth}}\\r\\n\\r\\n".encode())
    return s, int(s.recv(4096).split()[1])
s, status = connect_to("localhost:{upstream.port}")
c = ssl.create_default_context()
c.check_hostname, c.verify_mode = False, ssl.CERT_NONE
t = c.wrap_socket(s, server_hostname="localhost")
t.sendall(b"GET /{name} HTTP/1.0\\r\\nHost: localhost\\r\\n\\r\\n")
got = b""
while piece := t.recv(4096):
    got += piece
say([os.environ["AGENT_PROXY"], status, got.endswith(b"through"), connect_to("localhost:1")[1],
     connect_to("example.com:443")[1], connect_to("127.0.0.1:{upstream.port}")[1],
     connect_to("localhost:{upstream.port}", "Basic eDp5")[1]])
"""
    assert caller(code, proxy=[f"localhost:{upstream.port}"]) == ["http://127.0.0.1:8378", 200, True, 403, 403, 403, 407]
    assert not any("eyJ" in str(r) for r in upstream.asked(f"/{name}"))


def test_no_proxy_by_default(probe):
    assert probe("""
try:
    socket.create_connection(("127.0.0.1", 8378), 5)
    say("there")
except OSError as e:
    say([errno.errorcode[e.errno], "AGENT_PROXY" in os.environ])
""") == ["ECONNREFUSED", False]


@pytest.mark.parametrize("entry", ["*:443", "127.0.0.1:80", "example.com", "example.com:0", "a b:1", "*.*.com:1", 7])
def test_proxy_of_nonsense_is_refused(agentd, image, unique, entry):
    with pytest.raises(dbus.DBusException) as e:
        agentd.call("CreateAgent", json.dumps({"name": unique(), "image": image, "kind": "exec", "command": ["/bin/true"],
                                               "proxy": [entry]}))
    assert "proxy" in e.value.get_dbus_message()


# --- policy ---

def test_limits_of_a_service(caller, make_service, upstream, unique):
    name = unique()
    upstream.on(f"/api/{name}", lambda r: r.reply(200, {}))
    service = make_service(limits={"requests_per_second": 1, "burst": 3})
    seen = caller(f"""
# All are asked before any answer is read, so that no time is given back meanwhile.
open_now, answers = [connect() for _ in range(40)], []
for c in open_now:
    c.request("GET", "/v1/services/{service}/{name}", headers={{"Authorization": "Bearer " + token()}})
for c in open_now:
    r = c.getresponse()
    answers.append((r.status, r.getheader("Retry-After")))
    r.read()
say([sorted(a[0] for a in answers), all(int(a[1]) >= 1 for a in answers if a[0] == 429)])
""", service)
    assert seen[1] and seen[0].count(200) >= 3 and seen[0].count(429) >= 2
    assert len(upstream.asked(f"/api/{name}")) == seen[0].count(200)


def test_deny_comes_first(caller, make_service, upstream, unique):
    name = unique()
    upstream.on(f"/api/{name}/", lambda r: r.reply(200, {}))
    service = make_service(deny=[{"methods": ["GET", "POST"], "paths": [f"/{name}/keys/*", f"/{name}/token"]}])
    assert caller(f"""
say([bridge("GET", "/v1/services/{service}/{name}" + p)[0]
     for p in ("/x", "/keys/1", "/keys", "/keys/", "/token", "/token/", "/%74oken", "/token2")])
""", service) == [200, 403, 403, 403, 403, 403, 403, 200]


def test_approval(agentd, users, make_agent, make_service, upstream, unique):
    name = unique()
    upstream.on(f"/api/{name}", lambda r: r.reply(200, {"done": True}))
    service = make_service("the-real-one", allow=[{"methods": ["POST"], "paths": ["/*"], "approval": True}])
    agent = make_agent(inside.COMMAND, kind="command", services=[service])
    for verb, status in (("approve", 200), ("deny", 403)):
        path = agentd.execute(agent, inside.PRELUDE + f'say(bridge("POST", "/v1/services/{service}/{name}", b"{{}}")[0])')
        mine = lambda: [row for row in json.loads(agentctl("approvals", "--json=short").stdout or "[]")
                        if row["run"] == agentd.run_id(path)]
        (row,) = wait_until(mine, "the question")
        assert (row["run"], row["service"], row["method"], row["path"]) == (agentd.run_id(path), service, "POST", f"/{name}")
        before = len(upstream.asked(f"/api/{name}"))
        # A stranger neither sees it nor may answer.
        listed, answered = call_as(users[0], ["ListApprovals"], ["Approve", row["request"], True])
        assert listed["value"] == [] and "AccessDenied" in answered["error"] or "InteractiveAuth" in answered["error"]
        assert len(upstream.asked(f"/api/{name}")) == before
        systemctl("restart", "agentd.service")  # the question outlives it
        wait_until(lambda: row["request"] in agentctl("approvals", "--json=short").stdout, "the question again")
        agentctl(verb, row["request"])
        assert agentd.finish(path)[0] == "success"
        assert agentd.result(path)["output"] == status
    assert len(upstream.asked(f"/api/{name}")) == 1
    assert run("agentctl", "approve", "0" * 32, check=False).returncode != 0


# As the bridge: questions about a run, of which it does not wait for the answers, as nobody gives any; and one that is to be
# refused at once.
ASKER = """
import dbus, json, sys
from dbus.lowlevel import MethodCallMessage
run, ids, refused = json.load(sys.stdin)
bus = dbus.SystemBus()
args = lambda id: (run, dbus.UInt32(1), id, "service", "GET", "/x", dbus.UInt64(60000000))
for id in ids:
    m = MethodCallMessage("org.agentd1", "/org/agentd1/report", "org.agentd1.Report", "RequestApproval")
    m.append(*args(id), signature="susssst")
    m.set_no_reply(True)
    bus.send_message(m)
report = bus.get_object("org.agentd1", "/org/agentd1/report", introspect=False)
report.Ping(dbus_interface="org.freedesktop.DBus.Peer", timeout=120)  # comes after them
try:
    if refused:
        report.RequestApproval(*args(refused), dbus_interface="org.agentd1.Report", timeout=120)
except dbus.DBusException as e:
    print(e.get_dbus_name())
"""


def test_approvals_of_one_user(agentd, users, make_agent, image, unique):
    """A hundred questions of one user may wait, then further ones are refused; the same one again is not a further one, others
    may ask, and an answer makes room."""
    path = agentd.execute(make_agent("sleep 1000"))
    agentd.wait_state(path, "running")
    name = unique()
    definition = {"name": name, "image": image, "kind": "exec", "command": ["/bin/sleep", "1000"]}
    call_as(users[0], ("CreateAgent", json.dumps(definition)))
    theirs = call_as(users[0], ("ExecuteAgent", name, "", {"options": {}}))[0]["value"]
    agentd.wait_state(theirs, "running")

    def ask(of, ids=(), refused=""):
        question = json.dumps([agentd.run_id(of), list(ids), refused])
        return run("python3", "-c", ASKER, user="agent-bridge", stdin=question).stdout.strip()

    def waiting(of):
        return {str(r[0]) for r in agentd.call("ListApprovals") if str(r[1]) == agentd.run_id(of)}

    ids = [uuid.uuid4().hex for _ in range(102)]
    limit = "org.freedesktop.DBus.Error.LimitsExceeded"
    assert ask(path, ids[:100], ids[100]) == limit and waiting(path) == set(ids[:100])
    ask(path, ids[5:6])
    ask(theirs, ids[101:])
    assert waiting(path) == set(ids[:100]) and waiting(theirs) == {ids[101]}
    agentd.call("Approve", ids[0], False)
    ask(path, ids[100:101])
    assert waiting(path) == set(ids[1:101]) and ask(path, [], ids[0]) == limit
    for question in ids[1:]:
        agentd.call("Approve", question, False)
    assert waiting(path) == waiting(theirs) == set()
    for run_path in (path, theirs):
        agentd.call("CancelRun", agentd.run_id(run_path))
        agentd.finish(run_path)
    call_as(users[0], ("RemoveAgent", name))


# --- what the host sees ---

def test_one_record_for_each_request(agentd, make_agent, make_service, upstream, unique):
    name, secret = unique(), "the-secret-" + unique()
    upstream.on(f"/api/{name}", lambda r: r.reply(200, {}))
    service = make_service(secret)
    path = agentd.execute(make_agent(inside.COMMAND, kind="command", services=[service]), inside.PRELUDE + f"""
ids = []
for i in range(20):
    status, headers, _ = bridge("GET", "/v1/services/{service}/{name}?q=the-query", headers={{"X-H": "the-header"}})
    ids.append(headers["agent-request-id"])
bridge("GET", "/v1/nothing")
bridge("GET", "/v1/services/{service}/%2e%2e/x")
bridge("GET", "/v1/run", headers={{"Authorization": "Bearer x" + token()}}, auth=False)
bridge("GET", "/v1/run", auth=False)
s = connect()
s.connect()
s.sock.sendall(b"GET / HTTP/1.1\\nHost: x\\n\\n")
s.sock.recv(4096)
say(ids)
""")
    assert agentd.finish(path)[0] == "success"
    ids = agentd.result(path)["output"]
    seen = records(agentd.run_id(path))
    own = [r for r in seen if r.get("AGENT_ROUTE") == "service" and r.get("AGENT_PATH") == f"/{name}"]
    assert [r["AGENT_REQUEST_ID"] for r in own] == ids and len(set(ids)) == 20
    assert {r["AGENT_STATUS"] for r in own} == {"200"} and {r["AGENT_USER"] for r in own} == {"root"}
    refused = [r["AGENT_STATUS"] for r in seen if r["AGENT_STATUS"].startswith("4")]
    assert sorted(refused) == ["400", "400", "401", "401", "404"]
    everything = json.dumps(seen)
    for word in ("the-query", "the-header", secret, "eyJ"):
        assert word not in everything
    # Nor anywhere else: not in the journal, not in the receipt.
    assert secret not in run("journalctl", "--no-pager", "-b", "-o", "export").stdout
    assert "the-query" not in json.dumps(agentd.receipt(path))
    assert [c["path"] for c in agentd.receipt(path)["calls"] if c["path"] == f"/{name}"] == [f"/{name}"] * 20


def test_records_outlive_a_restart_of_the_journal(agentd, make_agent, make_service, upstream, unique):
    """The bridge keeps a connection with journald; no record is lost when that goes and comes back, none is there twice."""
    name, calls = unique(), []

    def answer(r):
        calls.append(r)
        if len(calls) in (5, 10):
            systemctl("restart", "systemd-journald.service")
        r.reply(200, {})

    upstream.on(f"/api/{name}", answer)
    service = make_service()
    path = agentd.execute(make_agent(inside.COMMAND, kind="command", services=[service]), inside.PRELUDE + f"""
say([bridge("GET", "/v1/services/{service}/{name}")[1]["agent-request-id"] for i in range(15)])
""")
    assert agentd.finish(path)[0] == "success", agentd.log(path)
    own = [r["AGENT_REQUEST_ID"] for r in records(agentd.run_id(path)) if r.get("AGENT_PATH") == f"/{name}"]
    assert own == agentd.result(path)["output"] and len(set(own)) == 15


def test_counters(probe):
    before = metrics()
    probe('[bridge("GET", "/v1/run") for _ in range(5)]; bridge("GET", "/v1/run", auth=False); say(1)')
    after = metrics()
    grown = lambda key: float(after[key]) - float(before.get(key, 0))
    assert grown('agent_bridge_route_requests_total{route="run"}') >= 5
    assert grown("agent_bridge_denied_total") >= 1 and grown("agent_bridge_accepted_total") >= 6
    assert grown('agent_bridge_answers_total{class="4"}') >= 1


def test_key_rotation_under_live_runs(agentd, make_agent, make_service, upstream, unique):
    """Tokens of before stay good, here and in the strong room; new ones are signed anew."""
    name = unique()
    gate = upstream.gate(name)
    upstream.on(f"/api/{name}", lambda r: r.reply(200, {}))
    service = make_service("the-real-one")
    code = inside.PRELUDE + f"""
def kid():
    head = token().split(".")[0]
    return json.loads(base64.urlsafe_b64decode(head + "=" * (-len(head) % 4)))["kid"]
a = bridge("GET", "/v1/services/{service}/{name}")[0]
bridge("GET", "/v1/services/{service}/gate/{name}")
say([kid(), a, bridge("GET", "/v1/run")[0], bridge("GET", "/v1/services/{service}/{name}")[0]])
"""
    agent = make_agent(inside.COMMAND, kind="command", services=[service])
    old = agentd.execute(agent, code)
    gate.arrived(1)
    kid = agentctl("key", "rotate").stdout.strip()
    new = agentd.execute(agent, code)
    gate.arrived(2)
    again = agentctl("key", "rotate").stdout.strip()
    systemctl("restart", "agent-credentiald.service")
    gate.open()
    for path in (old, new):
        assert agentd.finish(path)[0] == "success", agentd.log(path)
    first, second = (agentd.result(p)["output"] for p in (old, new))
    assert first[1:] == second[1:] == [200, 200, 200]
    assert second[0] == kid != first[0] and again not in (kid, first[0])
    assert {f"{first[0]}.pem", f"{kid}.pem", f"{again}.pem"} <= set(os.listdir(f"{RUNTIME}/keys"))
    systemctl("restart", "agentd.service")
    assert agentd.finish(agentd.execute(agent, code))[0] == "success"
    denied, = call_as("nobody", ["RotateKey"])
    assert "AccessDenied" in denied["error"]


# --- sandbox hosts elsewhere ---

def test_remote_listener(agentd, make_agent):
    """From an address that is listed: a live run's token is heard. From another: the kernel drops it, unseen."""
    path = agentd.execute(make_agent("sleep 1000"))
    agentd.wait_state(path, "running")
    token = open(f"{RUNTIME}/runs/{agentd.run_id(path)}/token").read()
    drop_in = "/run/systemd/system/agent-bridged-remote.socket.d"
    os.makedirs(drop_in, exist_ok=True)
    with open(f"{drop_in}/test.conf", "w") as f:
        f.write("[Socket]\nIPAddressAllow=10.98.0.2/32\n")
    for name, net in (("near", 0), ("far", 1)):
        run("ip", "netns", "add", f"t-{name}")
        run("ip", "link", "add", f"v-{name}", "type", "veth", "peer", "name", "eth0", "netns", f"t-{name}")
        run("ip", "addr", "add", f"10.98.{net}.1/24", "dev", f"v-{name}")
        run("ip", "link", "set", f"v-{name}", "up")
        run("ip", "-n", f"t-{name}", "addr", "add", f"10.98.{net}.2/24", "dev", "eth0")
        run("ip", "-n", f"t-{name}", "link", "set", "eth0", "up")
    try:
        assert "disabled" in run("systemctl", "is-enabled", "agent-bridged-remote.socket", check=False).stdout
        systemctl("daemon-reload")
        systemctl("stop", "agent-bridged.service")
        systemctl("start", "agent-bridged-remote.socket")
        systemctl("start", "agent-bridged.service")

        def ask(name, net, auth=token, patience="600"):
            done = run("ip", "netns", "exec", f"t-{name}", "curl", "-sS", "-o", "/dev/null", "-w", "%{http_code}", "--connect-timeout", patience,
                       "-H", f"Authorization: Bearer {auth}", f"http://10.98.{net}.1:8377/v1/run", check=False)
            return done.stdout

        assert ask("near", 0) == "200"
        assert ask("near", 0, "x") == "401"
        seen = metrics()["agent_bridge_remote_accepted_total"]
        assert seen == "2"
        got = ask("far", 1, patience="3")
        if got == "200" and not os.environ.get("AGENTD_VM"):
            pytest.skip("address lists of units have no effect in this machine")
        assert got == "000" and metrics()["agent_bridge_remote_accepted_total"] == seen
        agentd.call("CancelRun", agentd.run_id(path))
        agentd.finish(path)
        assert ask("near", 0) == "401"
    finally:
        systemctl("stop", "agent-bridged-remote.socket", "agent-bridged.service")
        for name in ("near", "far"):
            run("ip", "netns", "del", f"t-{name}", check=False)
        os.unlink(f"{drop_in}/test.conf")
        systemctl("daemon-reload")
        systemctl("start", "agent-bridged.service")
