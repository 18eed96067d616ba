# SPDX-License-Identifier: LGPL-2.1-or-later
"""The bridge as a run meets it: who is heard, and what may be called; results, artifacts and logs. (What becomes of
calls: test_bridge_calls.py.)
"""

import json
import uuid

import inside
from client import STATE, agentctl, run, systemctl

# --- who is heard ---


def test_only_the_runs_own_token(probe):
    code = """
import zlib
t = token()
head, body, signature = t.split(".")
def b64(v): return base64.urlsafe_b64encode(v if isinstance(v, bytes) else json.dumps(v).encode()).rstrip(b"=").decode()
claims = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
kid = json.loads(base64.urlsafe_b64decode(head + "=" * (-len(head) % 4)))["kid"]
flipped = ("A" if signature[0] != "A" else "B") + signature[1:]
tokens = {"none": None, "empty": "", "garbage": "x", "cut": t[:-5], "flipped": head + "." + body + "." + flipped,
    "alg none": b64({"alg": "none", "kid": kid, "typ": "JWT"}) + "." + body + ".",
    "alg None": b64({"alg": "None", "kid": kid, "typ": "JWT"}) + "." + body + "." + signature,
    "alg HS256": b64({"alg": "HS256", "kid": kid, "typ": "JWT"}) + "." + body + "." + signature,
    "other run": head + "." + b64({**claims, "run": "0" * 32}) + "." + signature,
    "later": head + "." + b64({**claims, "exp": claims["exp"] + 9999}) + "." + signature,
    "padded": t + "=", "four parts": t + ".x", "long": t + "A" * 100000, "newline": t + " x"}
seen = {}
for name, x in tokens.items():
    try:
        headers = {} if x is None else {"Authorization": "Bearer " + x}
        seen[name] = bridge("GET", "/v1/run", headers=headers, auth=False)[0]
    except (OSError, http.client.HTTPException):
        seen[name] = 0
say([bridge("GET", "/v1/run")[0], seen])
"""
    good, seen = probe(code)
    assert good == 200
    assert {k: v for k, v in seen.items() if v not in (401, 431)} == {}, seen


def test_every_slot_that_clients_use(caller, make_service, upstream, unique):
    """The token is taken from where a client puts it, and is on no request that goes out."""
    name = unique()
    upstream.on(f"/api/{name}", lambda r: r.reply(200, {}))
    service = make_service("the-real-one")
    seen = caller(
        f"""
t = token()
basic = base64.b64encode(("x:" + t).encode()).decode()
slots = [("Authorization", "Bearer " + t), ("Authorization", "bearer " + t), ("Authorization", "token " + t),
         ("Authorization", "Basic " + basic), ("x-api-key", t), ("x-goog-api-key", t), ("api-key", t),
         ("X-Amz-Security-Token", t), ("X-API-Key", t)]
say([bridge("GET", "/v1/services/{service}/{name}", headers=dict([s]), auth=False)[0] for s in slots])
""",
        service,
    )
    assert seen == [200] * 9
    for _, _, headers, _ in upstream.asked(f"/api/{name}"):
        assert ("authorization", "Bearer the-real-one") in [(k.lower(), v) for k, v in headers]
        assert "eyJ" not in str(headers)


def test_nothing_is_served_without_a_token(probe):
    seen = probe(
        """
say([bridge(m, p, auth=False)[0] for m, p in (
    ("GET", "/"), ("GET", "/healthz"), ("GET", "/v1/run"), ("POST", "/v1/run/result"), ("POST", "/v1/logs"),
    ("PUT", "/v1/artifacts/x"), ("GET", "/v1/services/x/y"), ("HEAD", "/"), ("OPTIONS", "/v1/run"))])
"""
    )
    assert set(seen) == {401}


# --- what may be called ---


def test_method_and_path_policy(caller, make_service, upstream, unique):
    name = unique()
    upstream.on(f"/api/{name}/", lambda r: r.reply(200, {}))
    service = make_service(
        "s",
        allow=[
            {"methods": ["GET"], "paths": [f"/{name}/open/*", f"/{name}/one"]},
            {"methods": ["POST"], "paths": [f"/{name}/*/post"]},
        ],
    )
    seen = caller(
        f"""
tries = [("GET", "open/a"), ("GET", "open/a/b"), ("GET", "one"), ("POST", "x/post"), ("GET", "one?a=b"),
         ("GET", "open/a%20b"), ("POST", "open/a"), ("DELETE", "open/a"), ("GET", "other"), ("GET", "one/two"),
         ("GET", "open"), ("POST", "x/y/post"),
         ("GET", "open/../other"), ("GET", "open/%2e%2e/other"), ("GET", "open/..%2fother"), ("GET", "open//x"),
         ("GET", "open/..;/other"), ("GET", "OPEN/a"), ("GET", "open/%00"), ("GET", "open/a%0d%0aX:y"),
         ("get", "open/a")]
out = []
for m, p in tries:
    try:
        out.append(bridge(m, "/v1/services/{service}/{name}/" + p)[0])
    except (OSError, http.client.HTTPException):
        out.append(0)
say(out + [bridge("GET", "/v1/services/no-such/x")[0], bridge("GET", "/v1/services/{service}")[0]])
""",
        service,
    )
    assert seen[:6] == [200] * 6
    assert not [s for s in seen[6:] if s not in (0, 400, 403, 404, 405, 501)], seen
    asked = {p for m, p, _, _ in upstream.requests if p.startswith(f"/api/{name}")}
    assert asked == {f"/api/{name}/{x}" for x in ("open/a", "open/a/b", "one", "x/post", "one?a=b", "open/a%20b")}


def test_a_service_that_is_not_the_agents(caller, make_service):
    """Its owner has it, but the agent's definition does not name it."""
    mine, other = make_service(), make_service()
    assert caller(f'say([bridge("GET", "/v1/services/{other}/x")[0]])', mine) == [404]


def test_empty_allow_is_nothing(caller, make_service):
    service = make_service(allow=[])
    assert caller(f'say(bridge("GET", "/v1/services/{service}/x")[0])', service) == 403


def test_service_edited_meanwhile(agentd, make_agent, make_service, upstream, unique):
    """A live run keeps the policy it began with, and its receipt tells which; the next run has the new one."""
    name = unique()
    upstream.on(f"/api/{name}/", lambda r: r.reply(200, {}))
    gate = upstream.gate(name)
    service = make_service(allow=[{"methods": ["GET"], "paths": [f"/{name}/*", "/gate/*"]}])
    code = (
        inside.PRELUDE
        + f"""
first = bridge("GET", "/v1/services/{service}/{name}/a")[0]
bridge("GET", "/v1/services/{service}/gate/{name}")
say([first, bridge("GET", "/v1/services/{service}/{name}/a")[0], bridge("GET", "/v1/services/{service}/new")[0]])
"""
    )
    agent = make_agent(inside.COMMAND, kind="command", services=[service])
    path = agentd.execute(agent, code)
    gate.arrived(1)
    agentd.call(
        "UpdateService",
        json.dumps(
            {
                **json.loads(agentd.call("GetService", service)),
                "allow": [{"methods": ["GET"], "paths": ["/gate/*", "/new"]}],
            }
        ),
    )
    gate.open()
    agentd.finish(path)
    upstream.on("/api/new", lambda r: r.reply(200, {}))
    assert agentd.result(path)["output"] == [200, 200, 403]
    second = agentd.execute(agent, code)
    agentd.finish(second)
    assert agentd.result(second)["output"] == [403, 403, 200]
    assert agentd.receipt(path)["policy"] != agentd.receipt(second)["policy"]


# --- result, artifacts, logs ---


def test_first_result_counts(agentd, make_agent):
    path = agentd.execute(
        make_agent(inside.COMMAND, kind="command"),
        inside.PRELUDE
        + """
out = [bridge("POST", "/v1/run/result", json.dumps(x))[0] for x in (
    {"status": "success", "output": 1}, {"status": "failed", "output": 2}, {"status": "success", "output": 1})]
sys.stderr.write(json.dumps(out))
say(3)
""",
    )
    assert agentd.finish(path)[0] == "success"
    assert agentd.result(path)["output"] == 1


def test_results_that_are_none(probe):
    seen = probe(
        """
say([bridge("POST", "/v1/run/result", x)[0] for x in (
     b"", b"{}", b"[]", b"no", b'{"status": "great"}', b'{"status": 1}', b'{"status": "success"', b"\\xff",
     b'{"status": "success", "output": "' + b"x" * (1 << 20) + b'"}')])
"""
    )
    assert not [s for s in seen if s not in (400, 413, 422)], seen


def test_artifacts(agentd, make_agent, tmp_path):
    """Any bytes, odd names, sent twice; the last whole one counts, and what is no name is refused."""
    path = agentd.execute(
        make_agent(inside.COMMAND, kind="command", limits={"artifact_size": "1M", "artifacts": 6}),
        inside.PRELUDE
        + """
from urllib.parse import quote
def put(name, data, **h):
    try:
        return bridge("PUT", "/v1/artifacts/" + name, data, h)[0]
    except (OSError, http.client.HTTPException):
        return 0
good = [put("a.bin", bytes(range(256))), put("a.bin", b"second"), put(quote("odd \\u00fc 'name'; $x.txt"), b"odd"),
        put("empty", b""), put("big", b"x" * (1 << 20)), put("n" * 255, b"long")]
bad = [put("too-big", b"x" * ((1 << 20) + 1)), put(".hidden", b"x"), put("a%2Fb", b"x"), put("..%2F..%2Fx", b"x"),
       put("%00", b"x"), put("a%0Ab", b"x"), put("n" * 256, b"x"), put("", b"x"), put("a/b", b"x"), put("..", b"x")]
more = [put("sixth", b"6"), put("seventh", b"7")]
say([good, bad, more])
""",
    )
    assert agentd.finish(path)[0] == "success"
    good, bad, more = agentd.result(path)["output"]
    assert not [s for s in good if s // 100 != 2] and not [s for s in bad if 200 <= s < 300], (good, bad)
    assert more[0] // 100 == 2 and more[1] // 100 != 2, more
    listed = {str(n): int(size) for n, size, _ in agentd.call("ListArtifacts", agentd.run_id(path))}
    assert listed == {"a.bin": 6, "odd ü 'name'; $x.txt": 3, "empty": 0, "big": 1 << 20, "n" * 255: 4, "sixth": 1}
    assert {a["name"]: a["size"] for a in agentd.receipt(path)["artifacts"]} == listed
    agentctl("artifact", agentd.run_id(path), "a.bin", f"--output={tmp_path}/a")
    assert (tmp_path / "a").read_bytes() == b"second"
    assert run("find", f"{STATE}/artifacts/{agentd.run_id(path)}", "-name", ".*", "-type", "f").stdout == ""


def test_artifact_that_breaks_off(agentd, make_agent):
    path = agentd.execute(
        make_agent(inside.COMMAND, kind="command"),
        inside.PRELUDE
        + """
s = socket.create_connection(("127.0.0.1", 8377))
head = ["PUT /v1/artifacts/half HTTP/1.1", "Host: x", "Content-Length: 1000", "Authorization: Bearer " + token()]
s.sendall(("\\r\\n".join(head) + "\\r\\n\\r\\nabc").encode())
s.close()
say(1)
""",
    )
    assert agentd.finish(path)[0] == "success"
    assert list(agentd.call("ListArtifacts", agentd.run_id(path))) == []


def test_logs_in_the_journal(agentd, make_agent):
    """With whose they are in fields that the sandbox cannot choose, whatever its lines say."""
    mark = uuid.uuid4().hex
    agent = make_agent(inside.COMMAND, kind="command")
    path = agentd.execute(
        agent,
        inside.PRELUDE
        + f"""
lines = [{{"message": "one {mark}", "level": "error", "AGENT_RUN": "forged", "AGENT_USER": "forged"}},
         {{"message": "two {mark}\\\\nAGENT_RUN=forged\\\\nPRIORITY=0"}}, {{"message": "three {mark} \\\\u001b[31m"}}]
s = bridge("POST", "/v1/logs", "\\n".join(json.dumps(x) for x in lines), {{"Content-Type": "application/x-ndjson"}})[0]
t = bridge("POST", "/v1/logs", "four {mark}\\nfive {mark}\\n", {{"Content-Type": "text/plain"}})[0]
say([s, t])
""",
    )
    assert agentd.finish(path)[0] == "success" and agentd.result(path)["output"] == [200, 200]
    run("journalctl", "--sync")
    entries = [
        json.loads(x)
        for x in run(
            "journalctl", "--no-pager", "-o", "json", f"AGENT_RUN={agentd.run_id(path)}", "-g", mark
        ).stdout.splitlines()
    ]
    assert len(entries) == 5
    for e in entries:
        assert (e["AGENT_RUN"], e["AGENT_NAME"], e["AGENT_USER"]) == (agentd.run_id(path), agent, "root")
        assert e["_SYSTEMD_UNIT"] == "agent-bridged.service"
    assert [e["PRIORITY"] for e in entries][0] == "3"
    assert run("journalctl", "--no-pager", "AGENT_RUN=forged", check=False).stdout.strip() in ("", "-- No entries --")
    assert [m for m in agentd.log(path) if mark in m][0] == f"one {mark}"
    assert "\x1b" not in agentctl("logs", agentd.run_id(path)).stdout


def test_log_limit(agentd, make_agent):
    path = agentd.execute(
        make_agent(inside.COMMAND, kind="command", limits={"log": 10000}),
        inside.PRELUDE
        + """
say([bridge("POST", "/v1/logs", "x" * 4000 + "\\n", {"Content-Type": "text/plain"})[0] for _ in range(4)])
""",
    )
    assert agentd.finish(path)[0] == "success"
    assert agentd.result(path)["output"] == [200, 200, 413, 413]
    assert any("limit" in m for m in agentd.log(path))


def test_health_for_root(probe):
    probe("say(1)")
    done = run("curl", "-sS", "--unix-socket", "/run/agent-bridged/control", "http://x/healthz")
    assert json.loads(done.stdout)["status"] == "ok"
    assert systemctl("is-active", "agent-bridged.service").stdout.strip() == "active"
