# SPDX-License-Identifier: LGPL-2.1-or-later
"""Whose a request is: tokens of other runs, of runs that are over, in the middle of a stream, made by other keys or
with other words in them. Whatever is wrong with a token, the answer is the same to the byte, nothing goes out, and
there is one record for each, which says why.
"""

import base64
import json
import os
import threading

import pytest
from cryptography.hazmat.primitives import hashes, hmac, serialization
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

import inside
from client import DEADLINE, RUNTIME, agentctl, call_as, run
from test_bridge_state import ASK_SOCKET, records

SEALED = "/etc/credstore.encrypted"


def b64(value):
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def parts(token):
    head, body, signature = token.split(".")
    decode = lambda s: base64.urlsafe_b64decode(s + "=" * (-len(s) % 4))
    return json.loads(decode(head)), json.loads(decode(body)), decode(signature)


def live_token(agentd, path):
    with open(f"{RUNTIME}/runs/{agentd.run_id(path)}/token", encoding="ascii") as f:
        return f.read().strip()


# Asks with each token of TOKENS, by each listener; what is told, without what is each answer's own.
ASK = ASK_SOCKET + """
def ask(t, path="/v1/run", service=None):
    out = []
    for slot in ("Authorization", "x-api-key"):
        value = t if slot == "x-api-key" else "Bearer " + t
        try:
            s, h, b = bridge("GET", path, headers={slot: value}, auth=False)
        except ValueError:
            continue  # no such header can be sent
        b = re.sub(r'"request_id":"[0-9a-f]{32}"', "", b.decode())
        h.pop("agent-request-id"), h.pop("date", None)
        out.append([s, sorted(h.items()), b])
    return out
"""


def probe_path(agentd, agent, code):
    path = agentd.execute(agent, inside.PRELUDE + code)
    assert agentd.finish(path)[0] == "success", agentd.log(path)
    return path, agentd.result(path)["output"]


def test_token_of_another_run(agentd, make_agent, make_service, upstream, unique):
    """Stolen, it is worthless in the next sandbox, by each of its doors: of the same user and agent, alive or not."""
    name = unique()
    upstream.on(f"/api/{name}", lambda r: r.reply(200, {}))
    service = make_service("the-real-one")
    victim = agentd.execute(make_agent("sleep 1000", services=[service]))
    agentd.wait_state(victim, "running")
    stolen = live_token(agentd, victim)
    thief = make_agent(inside.COMMAND, kind="command", services=[service], proxy=["localhost:443"])
    code = ASK + f"""
stolen, path = "{stolen}", "/v1/services/{service}/{name}"
def by_proxy(t):
    s = socket.create_connection(("127.0.0.1", 8378), 3600)
    head = f"CONNECT localhost:443 HTTP/1.1\\r\\nHost: x\\r\\nProxy-Authorization: Bearer {{t}}\\r\\n\\r\\n"
    s.sendall(head.encode())
    return int(s.recv(4096).split()[1])
mine = bridge("GET", path)[0]
say([mine, ask(stolen) + ask(stolen, path) + ask("x") + ask("x", path),
     [request("/v1/run", "agent-bridge", "Authorization: Bearer " + t) for t in (stolen, "x")],
     [by_proxy(stolen), by_proxy("x")]])
"""
    path, (mine, answers, by_socket, by_proxy) = probe_path(agentd, thief, code)
    assert mine == 200 and len(upstream.asked(f"/api/{name}")) == 1
    assert len(answers) == 8 and answers[0][0] == 401 and all(a == answers[0] for a in answers)
    assert by_socket == [401, 401] and by_proxy == [407, 407]
    mine = records(agentd.run_id(path))
    assert sum(r.get("AGENT_REASON") == "token of another run" for r in mine) == 4 + 1 + 1
    assert sum(r.get("AGENT_REASON") == "malformed token" for r in mine) == 4 + 1 + 1
    assert not any("eyJ" in json.dumps(r) for r in mine)
    # Its owner has lost nothing by it.
    assert records(agentd.run_id(victim)) == []

    agentd.call("CancelRun", agentd.run_id(victim))
    agentd.finish(victim)
    path, (mine, answers, by_socket, by_proxy) = probe_path(agentd, thief, code)
    assert mine == 200 and len(upstream.asked(f"/api/{name}")) == 2
    assert answers[0][0] == 401 and all(a == answers[0] for a in answers)
    assert by_socket == [401, 401] and by_proxy == [407, 407]


def test_end_in_the_midst_of_a_stream(agentd, make_agent, make_service, upstream, unique, probe):
    """A run that is cancelled while it reads a stream: the stream is cut, at the upstream too, and the token is dead
    from then on, wherever it is shown."""
    name, cut, begun = unique(), threading.Event(), threading.Event()

    def endless(r):
        r.send_response(200)
        r.send_header("Transfer-Encoding", "chunked")
        r.end_headers()
        begun.set()
        try:
            while not cut.wait(0.05):
                r.wfile.write(b"7\r\ndata: 1\r\n")
        except OSError:
            cut.set()
            raise

    upstream.on_stream(f"/api/{name}", endless)
    service = make_service("the-real-one")
    path = agentd.execute(
        make_agent(inside.COMMAND, kind="command", services=[service]),
        inside.PRELUDE
        + f"""
c = connect()
c.request("GET", "/v1/services/{service}/{name}", headers={{"Authorization": "Bearer " + token()}})
r = c.getresponse()
while r.read(7):
    pass
""",
    )
    assert begun.wait(DEADLINE)
    token = live_token(agentd, path)
    netns = os.open(f"{RUNTIME}/runs/{agentd.run_id(path)}/netns", os.O_RDONLY)
    try:
        def at_its_own_door():
            curl = ["curl", "-sS", "-o", "/dev/null", "-w", "%{http_code}", "-m", "600",
                    "-H", f"Authorization: Bearer {token}"]
            where = f"--net=/proc/{os.getpid()}/fd/{netns}"
            return run("nsenter", where, *curl, "http://127.0.0.1:8377/v1/run", check=False).stdout

        assert at_its_own_door() == "200"
        agentd.call("CancelRun", agentd.run_id(path))
        assert agentd.finish(path)[0] == "canceled"
        assert cut.wait(DEADLINE)
        assert at_its_own_door() in ("000", "401")
    finally:
        os.close(netns)
    assert probe(ASK + f'say([a[0] for a in ask("{token}")])') == [401, 401]
    assert agentd.receipt(path)["calls"][0]["outcome"] in ("client_closed", "interrupted")  # whoever is faster


def forgeries(token, public_pem):
    """Tokens that have something wrong, and what the record is to say of it. All are of the run that shows them."""
    head, claims, signature = parts(token)
    own, rsa_key = ec.generate_private_key(ec.SECP256R1()), rsa.generate_private_key(65537, 2048)

    def raw(der):
        r, s = decode_dss_signature(der)
        return r.to_bytes(32, "big") + s.to_bytes(32, "big")

    def made(h, c, sign):
        text = f"{b64(h)}.{b64(c)}"
        return f"{text}.{b64(sign(text.encode()))}"

    def by_hmac(key, kind=hashes.SHA256):
        def sign(data):
            h = hmac.HMAC(key, kind())
            h.update(data)
            return h.finalize()

        return sign

    def by_ec(data):
        return raw(own.sign(data, ec.ECDSA(hashes.SHA256())))

    def by_rsa(data):
        return rsa_key.sign(data, padding.PKCS1v15(), hashes.SHA256())

    point = own.public_key().public_numbers()
    jwk = {"kty": "EC", "crv": "P-256", "x": b64(point.x.to_bytes(32, "big")), "y": b64(point.y.to_bytes(32, "big"))}
    public = public_pem.encode()
    der = serialization.load_pem_public_key(public).public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    out = {}
    # Case 1: our public key, or nothing, as the key of an HMAC.
    secrets = {"pem": public, "pem without end": public.rstrip(), "der": der, "empty": b"", "zero": b"\0"}
    for name, key in secrets.items():
        for alg, kind in {"HS256": hashes.SHA256, "HS384": hashes.SHA384, "HS512": hashes.SHA512}.items():
            out[f"{alg} by {name}"] = made({**head, "alg": alg}, claims, by_hmac(key, kind))
    # Cases 2 and 3: no algorithm, others of the family, odd types.
    for alg in ("none", "None", "NONE", "nOnE", "", "BOGUS", "ES384", "ES512", "ES256K", "RS256", "PS256", "EdDSA",
                "es256", "ES256 ", 256, None, ["ES256"], {"a": 1}, True):
        out[f"alg {alg!r} with the signature"] = f"{b64({**head, 'alg': alg})}.{token.split('.')[1]}.{b64(signature)}"
        out[f"alg {alg!r} without"] = f"{b64({**head, 'alg': alg})}.{token.split('.')[1]}."
    # Somebody's own key, named by all means that a header has.
    out["own key"] = made(head, claims, by_ec)
    out["own key, jwk"] = made({**head, "jwk": jwk}, claims, by_ec)
    out["own key, jku"] = made({**head, "jku": "http://127.0.0.1:8377/x"}, claims, by_ec)
    out["own key, x5u"] = made({**head, "x5u": "file:///tmp/x"}, claims, by_ec)
    out["own key, x5c"] = made({**head, "x5c": [b64(der)]}, claims, by_ec)
    out["own key, other kid"] = made({**head, "kid": "other"}, claims, by_ec)
    out["own RSA key"] = made({**head, "alg": "RS256"}, claims, by_rsa)
    for kid in ("", "../../../../tmp/x", "/dev/null", "x' OR 1=1 --", "\0", head["kid"] + "\0", head["kid"].upper(), 7,
                None, [head["kid"]]):
        out[f"kid {kid!r}"] = f"{b64({**head, 'kid': kid})}.{token.split('.')[1]}.{b64(signature)}"
    for key in head:
        out[f"no {key}"] = f"{b64({k: v for k, v in head.items() if k != key})}.{token.split('.')[1]}.{b64(signature)}"
    # The claims of others under our signature.
    for key, value in {"run": "0" * 32, "jti": "0" * 32, "sub": "nobody", "app": "other", "exp": claims["exp"] + 9999,
                       "scope": "*", "aud": "other", "iss": "other", "iat": 0, "nbf": 0,
                       "session": "other", "extra": 1}.items():
        out[f"claim {key}"] = f"{token.split('.')[0]}.{b64({**claims, key: value})}.{b64(signature)}"
    # Signatures of other shapes: case 2's empty ones, zeros, the curve's order, too long.
    order = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
    stem = token.rpartition(".")[0]
    for name, sig in {"empty": b"", "zeros": bytes(64), "ones": b"\xff" * 64, "r only": signature[:32],
                      "doubled": signature * 2, "0 and s": bytes(32) + signature[32:],
                      "r and 0": signature[:32] + bytes(32),
                      "n and n": order.to_bytes(32, "big") * 2, "with a byte more": signature + b"\0"}.items():
        out[f"signature {name}"] = f"{stem}.{b64(sig)}"
    # Spellings of the same.
    for name, text in {"padded": token + "=", "blank in it": token.replace(".", ". "),
                       "plus": token.replace("-", "+").replace("_", "/"), "a part more": token + ".x",
                       "a part less": stem,
                       "a dot before": "." + token, "quoted": f'"{token}"', "twice": f"{token}, {token}",
                       "JSON": json.dumps({"payload": token.split(".")[1], "signatures": []}),
                       "in five parts": f"{token}.x.y", "upper": token.upper()}.items():
        if text != token:
            out[f"spelled {name}"] = text
    return out


def test_every_trick(agentd, make_agent, make_service, upstream, unique):
    """Algorithms, keys, claims, signatures and spellings: one answer for all, each is on record (those beyond a hundred
    in a second by their number), and nothing goes out."""
    name = unique()
    gate = upstream.gate(name)
    upstream.on(f"/api/{name}", lambda r: r.reply(200, {}))
    forged = {}
    upstream.on(f"/api/{name}/list", lambda r: r.reply(200, forged))
    service = make_service("the-real-one")
    path = agentd.execute(make_agent(inside.COMMAND, kind="command", services=[service]), inside.PRELUDE + ASK + f"""
bridge("GET", "/v1/services/{service}/gate/{name}")
forged = json.loads(bridge("GET", "/v1/services/{service}/{name}/list")[2])
say([{{n: ask(t, "/v1/services/{service}/{name}") for n, t in forged.items()}}, ask(token())[0][0], ask("x")[0]])
""")
    gate.arrived(1)
    token = live_token(agentd, path)
    with open(f"{RUNTIME}/keys/{parts(token)[0]['kid']}.pem", encoding="ascii") as f:
        forged.update(forgeries(token, f.read()))
    assert token not in forged.values() and len(forged) > 90
    gate.open()
    assert agentd.finish(path)[0] == "success", agentd.log(path)
    seen, good, plain = agentd.result(path)["output"]
    assert good == 200
    assert {n: a for n, answers in seen.items() for a in answers if a[0] != 401} == {}
    assert all(a == plain for answers in seen.values() for a in answers)
    assert upstream.asked(f"/api/{name}") == []
    mine = records(agentd.run_id(path))
    asked = sum(len(a) for a in seen.values()) + 2
    omitted = sum(int(r.get("AGENT_OMITTED", 0)) for r in mine)
    assert sum(r.get("AGENT_STATUS") == "401" for r in mine) + omitted == asked
    assert {r["AGENT_REASON"] for r in mine if r.get("AGENT_STATUS") == "401"} <= {
        "malformed token", "unknown key", "wrong signature", "no token"}
    assert not any(f[:20] in json.dumps(mine) for f in forged.values() if len(f) > 20)


# --- users ---


@pytest.fixture
def as_user(agentd, users, image, unique):
    """Runs a program in a sandbox of USER's own agent; returns its run id and what it printed."""
    made = []

    def go(user, code, wait=True, **options):
        name = unique()
        definition = {"name": name, "image": image, "kind": "command", "command": inside.COMMAND}
        answer = call_as(user, ("CreateAgent", json.dumps(definition)))[0]
        assert "value" in answer, answer
        made.append((user, name))
        answer = call_as(user, ("ExecuteAgent", name, inside.PRELUDE + code, {"options": options}))[0]
        path = str(answer["value"])
        if not wait:
            return path
        assert agentd.finish(path)[0] == "success", agentd.log(path)
        return agentd.run_id(path), agentd.result(path)["output"]

    yield go
    for user, name in made:
        call_as(user, ("RemoveAgent", name))


def test_users_do_not_meet(as_user, users):
    """Sessions and keys of deductions of the same name, and runs: each user's are his own."""
    alice, bob = users
    put = """
a = bridge("PUT", "/v1/session", b"of %s")[0]
u = bridge("POST", "/v1/usage", json.dumps({"key": "the-key", "amount": %d, "description": "x"}))[0]
say([a, u, bridge("GET", "/v1/session")[2].decode()])
"""
    run_a, first = as_user(alice, put % ("alice", 5), session="shared-name")
    run_b, second = as_user(bob, put % ("bob", 7), session="shared-name")
    assert first[1] == second[1] and first[1] in (200, 201), (first, second)
    assert (first[0], second[0]) in ((200, 200), (201, 201), (204, 204)), (first, second)
    assert first[2] == "of alice" and second[2] == "of bob"
    seen = as_user(bob, f'say([bridge("GET", "/v1/runs/" + r)[0] for r in ("{run_a}", "{run_b}", "0" * 32)])')[1]
    assert seen[0] == seen[2] == 404, "a stranger's run is as good as none"
    for member in ("GetReceipt", "GetResult", "GetRun"):
        assert "error" in call_as(bob, (member, run_a))[0], member


# --- keys ---


def test_keys_lie_sealed(agentd, probe):
    """Made on the first start; what signs and what seals are on the disk only as systemd-creds keeps them, and the bridge's
    side has nothing but what verifies. Rotating leaves no trace of the old one's private half."""
    probe("say(1)")
    sealed = sorted(os.listdir(SEALED))
    assert len(sealed) == 2 and os.stat(SEALED).st_mode & 0o777 == 0o700, sealed
    signing = next(name for name in sealed if "signing" in name)

    def secret(name):
        with open(f"{SEALED}/{name}", "rb") as f:
            data = f.read()
        assert os.stat(f"{SEALED}/{name}").st_mode & 0o077 == 0
        assert b"PRIVATE" not in data
        return run("systemd-creds", "decrypt", f"--name={name}", f"{SEALED}/{name}", "-").stdout

    before = secret(signing)
    assert "PRIVATE KEY" in before
    line = before.splitlines()[1]
    kid = agentctl("key", "rotate").stdout.strip()
    after = secret(signing)
    assert after != before and line not in after
    with open(f"{RUNTIME}/keys/{kid}.pem", encoding="ascii") as f:
        assert "PUBLIC KEY" in f.read()
    assert probe("say(bridge('GET', '/v1/run')[0])") == 200
    # Neither half of a private key is anywhere else, by its own bytes.
    others = [f"--exclude-dir={name}" for name in ("layers", "edits", "runners", "root", "mnt")]  # what images bring
    found = run("grep", "-rlaF", *others, "-e", "PRIVATE KEY", "-e", line[:40], RUNTIME, "/var/lib/agentd",
                "/var/lib/agent-credential", SEALED, "/etc/agentd", "/run/agent-bridged", check=False)
    assert found.stdout == "", found.stdout


def test_many_may_knock_at_once(agentd, make_agent):
    """Who finds the backlog full is not told so: the kernel drops its packet, and it tries again after a second."""
    path = agentd.execute(make_agent(inside.COMMAND, kind="command"), inside.PRELUDE + "import time; time.sleep(600)")
    agentd.wait_state(path, "running")
    shown = run("nsenter", f"--net={RUNTIME}/runs/{agentd.run_id(path)}/netns", "ss", "-Hltn", "sport = :8377").stdout
    agentd.call("CancelRun", agentd.run_id(path))
    assert int(shown.split()[2]) >= 1000, shown
