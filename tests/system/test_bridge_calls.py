# SPDX-License-Identifier: LGPL-2.1-or-later
"""What becomes of calls of services: credentials, headers, redirects, access tokens, streams, sizes and faults of
upstreams.
"""

import base64
import hashlib
import json
import threading
import urllib.parse
import uuid

import pytest

import inside
from client import DEADLINE, agentctl

# --- credentials ---


def test_credential_is_set_changed_and_removed_under_a_run(agentd, caller, make_service, upstream, unique):
    """Used from the next request on; after its removal requests fail, and never go out bare."""
    name = unique()
    upstream.on(
        f"/api/{name}/",
        lambda r: r.reply(200, {"got": r.headers["Authorization"] == "Bearer " + r.path.rsplit("/", 1)[1]}),
    )
    service = make_service("first")
    gates = {}

    def change(request):
        step = request.path.rsplit("/", 1)[1]
        gates[step] = True
        if step == "second":
            agentctl("credential", "set", service, stdin="second")
        else:
            agentctl("credential", "remove", service)
        request.reply(200, {})

    upstream.on("/api/change/", change)
    free = make_service()
    code = f"""
def ask(x):
    s, h, b = bridge("GET", "/v1/services/{service}/{name}/" + x)
    return json.loads(b).get("got", s)
out = [ask("first")]
for step in ("second", "none"):
    bridge("GET", "/v1/services/{free}/change/" + step)
    out.append(ask(step))
say(out)
"""
    assert caller(code, service, free) == [True, True, 403]
    assert set(gates) == {"second", "none"}
    assert len(upstream.asked(f"/api/{name}/none")) == 0


def test_echo_is_taken_out(caller, make_service, upstream, unique):
    """An answer that repeats the credential does so in vain, in headers and body, across pieces, and in other
    spellings."""
    secret, name = "s3cret-" + uuid.uuid4().hex, unique()

    def echo(request):
        forms = [secret, base64.b64encode(secret.encode()).decode(), urllib.parse.quote(f"Bearer {secret}")]
        body = json.dumps(
            {"echo": request.headers["Authorization"], "forms": forms, "deep": "x" * 70000 + secret}
        ).encode()
        request.send_response(200)
        request.send_header("X-Echo", f"<{secret}>")
        request.send_header("Content-Type", "text/plain")
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        for i in range(0, len(body), 7 if len(body) < 1000 else 4093):
            request.wfile.write(body[i : i + (7 if len(body) < 1000 else 4093)])
            request.wfile.flush()

    upstream.on(f"/api/{name}", echo)
    service = make_service(secret)
    status, headers, body = caller(
        f"""
s, h, b = bridge("GET", "/v1/services/{service}/{name}")
say([s, h, b.decode()])
""",
        service,
    )
    assert status == 200 and "forms" in body and len(body) > 70000
    assert secret not in json.dumps(headers) and secret not in body
    assert base64.b64encode(secret.encode()).decode() not in body


def test_headers_are_the_bridges_own(caller, make_service, upstream, unique):
    """What a sandbox says of hosts, forwarding, cookies and credentials does not get out; what it may say does.
    Cookies of the upstream do not get in."""
    name = unique()
    upstream.on(
        f"/api/{name}", lambda r: r.reply(200, {}, [("Set-Cookie", "a=b"), ("X-Fine", "yes"), ("Set-Cookie", "c=d")])
    )
    service = make_service("real")
    status, headers, _ = caller(
        f"""
s, h, b = bridge("GET", "/v1/services/{service}/{name}?q=%2Fx&y=%20", headers={{"Host": "evil.example", "Cookie": "a=b",
    "X-Forwarded-For": "1.2.3.4", "Forwarded": "for=1.2.3.4", "Proxy-Authorization": "Basic eA==", "X-Custom": "kept",
    "Connection": "X-Hop", "X-Hop": "gone", "Accept": "text/x-mine", "User-Agent": "mine/1"}})
say([s, h, b.decode()])
""",
        service,
    )
    assert status == 200 and "set-cookie" not in headers and headers["x-fine"] == "yes"
    method, path, sent, _ = upstream.asked(f"/api/{name}")[0]
    sent = {k.lower(): v for k, v in sent}
    assert path == f"/api/{name}?q=%2Fx&y=%20" and sent["host"] == f"localhost:{upstream.port}"
    assert not {"cookie", "x-forwarded-for", "forwarded", "proxy-authorization", "x-hop"} & set(sent)
    assert sent["x-custom"] == "kept" and sent["accept"] == "text/x-mine" and sent["authorization"] == "Bearer real"


def test_redirects_are_not_followed(caller, make_service, upstream, unique):
    name = unique()
    upstream.on(f"/api/{name}/away", lambda r: r.reply(302, b"", [("Location", f"{upstream.origin}/elsewhere/{name}")]))
    upstream.on(f"/api/{name}/near", lambda r: r.reply(307, b"", [("Location", f"{upstream.url}/{name}/target")]))
    upstream.on(f"/elsewhere/{name}", lambda r: r.reply(200, {}))
    service = make_service("real")
    seen = caller(
        f"""
say([list(bridge("GET", "/v1/services/{service}/{name}/" + x)[:2]) for x in ("away", "near")])
""",
        service,
    )
    assert [s for s, _ in seen] == [302, 307]
    assert upstream.asked(f"/elsewhere/{name}") == [] and upstream.asked(f"/api/{name}/target") == []
    near = seen[1][1]["location"]
    assert near.endswith(f"/v1/services/{service}/{name}/target"), "inside the service it leads back to the bridge"


# --- OAuth ---


class Authority:
    """A token endpoint: every access token is good once it was issued, until it is revoked."""

    def __init__(self, upstream, unique):
        self.secret, self.issued, self.good, self.lock = unique("client-secret"), 0, set(), threading.Lock()
        self.name = unique("o")
        upstream.on(f"/api/{self.name}/token", self.token)
        upstream.on(f"/api/{self.name}/data", self.data)

    def token(self, r):
        expected = "Basic " + base64.b64encode(f"client:{self.secret}".encode()).decode()
        if r.headers["Authorization"] != expected or b"grant_type=client_credentials" not in r.body:
            return r.reply(401, {"error": "invalid_client"})
        with self.lock:
            self.issued += 1
            token = f"access-{self.issued}-{uuid.uuid4().hex}"
            self.good.add(token)
        r.reply(200, {"access_token": token, "token_type": "Bearer", "expires_in": 3600})

    def data(self, r):
        ok = r.headers["Authorization"].removeprefix("Bearer ") in self.good
        r.reply(200 if ok else 401, {"ok": ok})

    def service(self, make_service, upstream):
        return make_service(
            self.secret,
            auth={
                "kind": "oauth2-client-credentials",
                "client_id": "client",
                "token_url": f"{upstream.url}/{self.name}/token",
            },
        )


FIFTY = """
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(25) as pool:
    say([a[0] for a in pool.map(lambda _: bridge("GET", "/v1/services/%s/%s/data"), range(50))])
"""


def test_one_token_for_fifty_calls(caller, make_service, upstream, unique):
    """However many wait for an access token, one is fetched; where the upstream refuses it, one more, for all."""
    authority = Authority(upstream, unique)
    service = authority.service(make_service, upstream)
    assert caller(FIFTY % (service, authority.name), service) == [200] * 50
    assert authority.issued == 1
    authority.good.clear()
    assert caller(FIFTY % (service, authority.name), service) == [200] * 50
    assert authority.issued == 2


def test_authority_that_refuses(caller, make_service, upstream, unique):
    """Then nothing goes out, and the agent is told whose fault it is, without a word of the secret."""
    authority = Authority(upstream, unique)
    service = authority.service(make_service, upstream)
    agentctl("credential", "set", service, stdin="wrong-secret")
    status, body = caller(
        f"""
s, h, b = bridge("GET", "/v1/services/{service}/{authority.name}/data")
say([s, b.decode()])
""",
        service,
    )
    assert status in (502, 503) and "wrong-secret" not in body and json.loads(body)
    assert upstream.asked(f"/api/{authority.name}/data") == []


# --- streams and sizes ---


def test_events_arrive_one_by_one(caller, make_service, upstream, unique):
    """The upstream sends an event only when the agent has told it that the one before arrived: a bridge that held
    back any would wait for ever."""
    name = unique()
    acknowledged = [threading.Event() for _ in range(10)]

    def events(r):
        r.send_response(200)
        r.send_header("Content-Type", "text/event-stream")
        r.send_header("Transfer-Encoding", "chunked")
        r.end_headers()
        for i, event in enumerate(acknowledged):
            data = f"data: {i}\n\n".encode()
            r.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
            r.wfile.flush()
            assert event.wait(DEADLINE)
        r.wfile.write(b"0\r\n\r\n")

    upstream.on(f"/api/{name}/events", events)
    upstream.on(f"/api/{name}/ack/", lambda r: (acknowledged[int(r.path.rsplit("/", 1)[1])].set(), r.reply(200, {})))
    service = make_service("x")
    seen = caller(
        f"""
c = connect()
c.request("GET", "/v1/services/{service}/{name}/events", headers={{"Authorization": "Bearer " + token()}})
r = c.getresponse()
out = []
while line := r.readline():
    if line.startswith(b"data:"):
        n = int(line[5:])
        out.append(n)
        bridge("GET", "/v1/services/{service}/{name}/ack/%d" % n)
say(out)
""",
        service,
    )
    assert seen == list(range(10))


def test_large_bodies_both_ways(caller, make_service, upstream, unique):
    """Whole and unchanged, with a length and without, more than fits into any buffer."""
    name, size = unique(), 20 << 20
    upstream.on(f"/api/{name}", lambda r: r.reply(200, r.body))
    service = make_service("x")
    digest = hashlib.sha256(bytes(range(256)) * (size // 256)).hexdigest()
    seen = caller(
        f"""
data = bytes(range(256)) * ({size} // 256)
s, h, b = bridge("POST", "/v1/services/{service}/{name}", data)
c = connect()
c.request("POST", "/v1/services/{service}/{name}", iter([data[i:i + 65536] for i in range(0, len(data), 65536)]),
          {{"Authorization": "Bearer " + token()}}, encode_chunked=True)
r = c.getresponse()
say([s, hashlib.sha256(b).hexdigest(), r.status, hashlib.sha256(r.read()).hexdigest()])
""",
        service,
    )
    assert seen == [200, digest, 200, digest]


def test_body_over_the_services_limit(caller, make_service, upstream, unique):
    name = unique()
    upstream.on(f"/api/{name}", lambda r: r.reply(200, {}))
    service = make_service(limits={"body": 1000})
    assert (
        caller(
            f"""
say([bridge("POST", "/v1/services/{service}/{name}", b"x" * n)[0] for n in (1000, 1001)])
""",
            service,
        )
        == [200, 413]
    )
    assert len(upstream.asked(f"/api/{name}")) == 1


def test_upstream_that_is_not_there(caller, make_service):
    service = make_service(base_url="https://localhost:1/api")
    status, headers, body = caller(
        f"""
s, h, b = bridge("GET", "/v1/services/{service}/x")
say([s, h, b.decode()])
""",
        service,
    )
    assert status == 502 and headers["content-type"] == "application/problem+json" and json.loads(body)["status"] == 502


def test_certificate_of_nobody(caller, make_service, upstream):
    """A name that the upstream's certificate does not have."""
    service = make_service("never-sent", base_url=f"https://127.0.0.2:{upstream.port}/api")
    before = len(upstream.requests)
    assert caller(f'say(bridge("GET", "/v1/services/{service}/x")[0])', service) == 502
    assert len(upstream.requests) == before


@pytest.mark.parametrize("fault", ["authority", "name", "age"])
def test_identity_of_each_connection(caller, make_service, upstream, fault):
    """A server that shows one connection what it should, and the next one not: that one is sent nothing. Neither the
    one that is open meanwhile nor those that come later suffer."""
    good, bad = upstream.identity(), {
        "authority": lambda: upstream.identity(authority=upstream.stranger()),
        "name": lambda: upstream.identity(hosts=("127.0.0.2", "elsewhere.test")),
        "age": lambda: upstream.identity(age=40),
    }[fault]()
    server = upstream.changing_server(good, bad, good, bad, good)
    service = make_service("never-sent-to-strangers", base_url=server.url)
    seen = caller(
        f"""
def begin():
    c = connect()
    c.request("GET", "/v1/services/{service}/long", headers={{"Authorization": "Bearer " + token()}})
    return c, c.getresponse()
opened = [begin() for _ in range(4)]
say([r.status for _, r in opened] + [r.read(2).decode() for _, r in opened[::2]]
    + [bridge("GET", "/v1/services/{service}/short")[0]])
""",
        service,
    )
    assert seen == [200, 502, 200, 502, "{}", "{}", 200]
    assert server.asked == ["/api/long", "/api/long", "/api/short"]


def test_private_addresses_are_refused_by_default(caller, make_service, upstream, unique):
    name = unique()
    upstream.on(f"/api/{name}", lambda r: r.reply(200, {}))
    service = make_service("x")
    code = f'say(bridge("GET", "/v1/services/{service}/{name}")[0])'
    assert caller(code, service) == 200
    upstream.allow(None)
    try:
        assert caller(code, service) in (403, 502)
    finally:
        upstream.allow("127.0.0.0/8 ::1")
    assert len(upstream.asked(f"/api/{name}")) == 1


INSIDE = {
    "lan": "10.1.2.3", "cgnat": "100.64.0.1", "ula": "fd12::1", "mapped-lan": "::ffff:192.168.1.1",
    "meta": "169.254.169.254", "mapped": "::ffff:169.254.169.254", "link": "fe80::1", "any": "0.0.0.0", "any6": "::",
    "many": "224.0.0.1", "many6": "ff02::1", "nat64": "64:ff9b::a9fe:a9fe", "six4": "2002:a9fe:a9fe::1", "ec2": "fd00:ec2::254",
}


def test_names_that_lead_inside(caller, make_service, upstream, unique):
    """Names are anybody's to point where he likes: each address is judged when it is dialled, for services and through the
    forward proxy, with whatever an administrator allows."""
    suffix = unique("x") + ".test"
    names = {f"{name}.{suffix}": address for name, address in INSIDE.items()}
    with open("/etc/hosts", encoding="ascii") as f:
        before = f.read()
    with open("/etc/hosts", "w", encoding="ascii") as f:
        f.write(before + "".join(f"{address} {name}\n" for name, address in names.items()))
    try:
        services = {make_service(base_url=f"https://{name}/api"): name for name in names}
        code = f"""
out = {{}}
for service, name in {services!r}.items():
    s, _, b = bridge("GET", "/v1/services/" + service + "/x")
    c = socket.create_connection(("127.0.0.1", 8378), 3600)
    c.sendall(("CONNECT " + name + ":443 HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\nProxy-Authorization: Bearer " +
               token() + "\\r\\n\\r\\n").encode())
    data = b""
    while piece := c.recv(4096):
        data += piece
    p = json.loads(data.partition(b"\\r\\n\\r\\n")[2] or b"{{}}")
    out[name.split(".")[0]] = [s, json.loads(b).get("type"), p.get("status"), p.get("type")]
say(out)
"""
        refused = [502, "urn:agentd:problem:upstream-address-refused"] * 2
        assert caller(code, *services, proxy=[f"{n}:443" for n in names]) == {name: refused for name in INSIDE}
        upstream.allow("0.0.0.0/0 ::/0")
        seen = caller(code, *services, proxy=[f"{n}:443" for n in names])
        open_now = {name for name, answer in seen.items() if answer != refused}
        assert open_now == {"lan", "cgnat", "ula", "mapped-lan"}, seen
    finally:
        upstream.allow("127.0.0.0/8 ::1")
        with open("/etc/hosts", "w", encoding="ascii") as f:
            f.write(before)


def test_client_that_goes_away(agentd, make_agent, make_service, upstream, unique):
    """Is told in the receipt as such, not as the upstream's fault."""
    name = unique()
    gate = upstream.gate(name)
    upstream.on(f"/api/{name}/wait", lambda r: (gate.arrived(1), r.reply(200, {})))
    service = make_service("x")
    path = agentd.execute(
        make_agent(inside.COMMAND, kind="command", services=[service]),
        inside.PRELUDE
        + f"""
s = socket.create_connection(("127.0.0.1", 8377))
head = ["GET /v1/services/{service}/gate/{name} HTTP/1.1", "Host: x", "Authorization: Bearer " + token()]
s.sendall(("\\r\\n".join(head) + "\\r\\n\\r\\n").encode())
bridge("GET", "/v1/services/{service}/{name}/wait")
s.close()
say(1)
""",
    )
    assert agentd.finish(path)[0] == "success"
    gate.open()
    outcomes = {c["path"]: c["outcome"] for c in agentd.receipt(path)["calls"]}
    assert outcomes == {f"/gate/{name}": "client_closed", f"/{name}/wait": "complete"}
