# SPDX-License-Identifier: LGPL-2.1-or-later
"""Real clients, unmodified, inside a run, against a recording HTTPS upstream outside: curl with many flags, git over
http-backend, npm from a registry, gh over the socket. None of them ever holds the credential, no upstream sees a token.
"""

import base64
import gzip
import hashlib
import io
import json
import os
import subprocess
import tarfile

import pytest

import inside
from client import run


@pytest.fixture
def client(agentd, clients_image, unique):
    """Runs shell text as an agent that may call SERVICES; returns status and output of it all."""
    made = []

    def go(text, *services, **keys):
        name = unique()
        agentd.call("CreateAgent", json.dumps({"name": name, "image": clients_image, "kind": "command",
                                               "command": ["/bin/bash", "-c", "set -e\nTOKEN=$(cat $AGENT_TOKEN_FILE)\n" + text],
                                               "services": list(services), "limits": {"memory": "1G", "timeout": 7200}, **keys}))
        made.append(name)
        path = agentd.execute(name)
        result, message = agentd.finish(path)
        assert result == "success", f"{message}\n" + "\n".join(agentd.log(path)[-30:])
        return "\n".join(agentd.log(path))

    yield go
    for name in made:
        agentd.call("RemoveAgent", name)


def no_token(upstream, prefix):
    with upstream.lock:
        seen = [r for r in upstream.requests if r[1].startswith(prefix)]
    assert seen and not any("eyJ" in str(r[1:3]) for r in seen)
    return seen


def test_curl(client, make_service, upstream, unique):
    name = unique()

    def echo(r):
        body = json.dumps({"method": r.command, "path": r.path, "size": len(r.body),
                           "sha": hashlib.sha256(r.body).hexdigest()}).encode()
        if r.path.endswith("/moved"):
            r.reply(302, b"", [("Location", f"{upstream.origin}/api/{name}/there")])
        elif r.path.endswith("/sideways"):
            r.reply(307, b"", [("Location", "/v1/run/result")])
        elif r.path.endswith("/home"):
            r.reply(307, b"", [("Location", "http://127.0.0.1:8377/v1/run/result")])
        elif r.path.endswith("/zip"):
            r.reply(200, gzip.compress(body), [("Content-Encoding", "gzip")])
        elif r.path.endswith("/range"):
            assert r.headers["Range"] == "bytes=5-"
            r.reply(206, b"56789", [("Content-Range", "bytes 5-9/10")])
        elif r.path.endswith("/empty"):
            r.send_response(204)
            r.end_headers()
        else:
            r.reply(200, b"" if r.command == "HEAD" else body)

    upstream.on(f"/api/{name}/", echo)
    upstream.on(f"/proxied/{name}", lambda r: r.reply(200, b"through"))
    allow = [{"methods": ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH"], "paths": ["/*"]}]
    service = make_service("the-real-one", allow=allow)
    bare = make_service(allow=allow, base_url=f"{upstream.url}/{name}/bare")
    out = client(f"""
B=$AGENT_BRIDGE/v1/services/{service}/{name}
head -c 3000000 /dev/urandom >/tmp/big
sha256sum </tmp/big | cut -c-64 >/tmp/sha
c() {{ curl -sS --fail -m 3600 "$@"; }}
A="Authorization: Bearer $TOKEN"
ok() {{ echo "ok $*"; }}
c -H "$A" $B/plain >/dev/null; ok plain
c --http2 -H "$A" $B/h2c >/dev/null; ok h2c
! c --http2-prior-knowledge -H "$A" $B/h2 2>/dev/null; ok preface
c --http1.0 -H "$A" $B/old >/dev/null; ok http1.0
c -I -H "$A" $B/head | grep -q "^HTTP/1.1 200"; ok head
c -u "x:$TOKEN" $B/basic >/dev/null; ok basic
c -H "x-api-key: $TOKEN" $B/key >/dev/null; ok key
c --oauth2-bearer "$TOKEN" $B/oauth >/dev/null; ok oauth2
c --compressed -H "$A" $AGENT_BRIDGE/v1/services/{bare}/zip | grep -q '"size": 0'; ok compressed
c -H "$A" -d a=b $B/form >/dev/null; ok form
c -H "$A" -F f=@/tmp/big $B/multipart | grep -q '"size": 3000'; ok multipart
c -H "$A" --json '{{}}' $B/json >/dev/null; ok json
c -H "$A" --data-binary @/tmp/big $B/expect | grep -q $(cat /tmp/sha); ok expect
c -H "$A" -T /tmp/big $B/put | grep -q $(cat /tmp/sha); ok put
cat /tmp/big | c -H "$A" -T - $B/chunked | grep -q $(cat /tmp/sha); ok chunked
c -H "$A" -X DELETE $B/x >/dev/null; ok delete
c -H "$A" -X PATCH -d x $B/x >/dev/null; ok patch
c -H "$A" -H Expect: --data-binary @/tmp/big $B/unexpected | grep -q $(cat /tmp/sha); ok no expect
c -H "$A" --http1.0 --data-binary @/tmp/big $B/old | grep -q $(cat /tmp/sha); ok post by 1.0
c -H "$A" -T /dev/null $B/nothing | grep -q '"size": 0'; ok empty upload
: | c -H "$A" -T - $B/nothing | grep -q '"size": 0'; ok empty chunks
c -H "$A" -X GET --data-binary @/tmp/big $B/odd | grep -q $(cat /tmp/sha); ok body of a GET
c -H "$A" --limit-rate 3M --data-binary @/tmp/big $B/slow | grep -q $(cat /tmp/sha); ok limited rate
printf 01234 >/tmp/part; c -H "$A" -C - -o /tmp/part $B/range; test $(cat /tmp/part) = 0123456789; ok range
c -H "$A" -b c=1 -e http://x/ -A mine $B/who >/dev/null; ok cookie, referer, agent
c -H "$A" --retry 3 --keepalive-time 1 $B/x $B/y >/dev/null; ok two
# Where an upstream sends it, it goes with its token; so no upstream can send it to the bridge's own routes.
! c -H "$A" -L --data '{{"status":"failed"}}' $B/sideways 2>/dev/null; ok sideways
test -z "$(c -H "$A" -L --data '{{"status":"failed"}}' $B/home)"; ok home
c -k --noproxy "" -x http://run:$TOKEN@127.0.0.1:8378 {upstream.origin}/proxied/{name} | grep -q through; ok by proxy
! c -k --noproxy "" -x http://run:x@127.0.0.1:8378 {upstream.origin}/proxied/{name} 2>/dev/null; ok no proxy
c -H "$A" -L $B/moved | grep -q /there; ok location
c -H "$A" $B/empty; ok empty
! c -H "$A" --path-as-is $B/../x 2>/dev/null; ok dots
c -H "$A" -G -d q=1 --data-urlencode "u=ä /&" $B/query >/dev/null; ok query
c -H "$A" $B/{{a,b,c}} >/dev/null; ok reuse
c -H "$A" -Z $B/[1-20] >/dev/null 2>&1; ok parallel
! c $B/none 2>/dev/null; ok refused
c --unix-socket /run/agent-bridge.sock -H "$A" http://agent-bridge/v1/run >/dev/null; ok socket
c --unix-socket /run/agent-bridge.sock -H "$A" http://{upstream.origin[8:]}/api/{name}/host >/dev/null; ok host
! c -H "$A" -H "Connection: Upgrade" -H "Upgrade: websocket" $B/ws 2>/dev/null; ok websocket
""", service, bare, proxy=[upstream.origin[8:]])
    assert out.count("ok ") == 40, out
    assert [r[0] for r in upstream.asked(f"/proxied/{name}")] == ["GET"]
    seen = no_token(upstream, f"/api/{name}/")
    keys = {dict((k.lower(), v) for k, v in r[2]).get("authorization") for r in seen if "/bare/" not in r[1]}
    assert keys == {"Bearer the-real-one"}
    assert not any(k.lower() in ("cookie", "expect") for r in seen for k, _ in r[2])


def git_backend(root):
    """git's own CGI program behind the recording server."""

    def handle(r):
        path, _, query = r.path.partition("?")
        if dict((k.lower(), v) for k, v in r.headers.items()).get("authorization", "") != \
                "Basic " + base64.b64encode(b"git:the-real-one").decode():
            r.reply(403, {"error": "credential"})
            return
        env = {"PATH": os.environ["PATH"], "GIT_PROJECT_ROOT": str(root), "GIT_HTTP_EXPORT_ALL": "1", "REMOTE_USER": "agent",
               "PATH_INFO": path.split("/git", 1)[1], "QUERY_STRING": query, "REQUEST_METHOD": r.command,
               "CONTENT_TYPE": r.headers.get("Content-Type", ""), "CONTENT_LENGTH": str(len(r.body)),
               "GIT_PROTOCOL": r.headers.get("Git-Protocol", ""), "HTTP_CONTENT_ENCODING": r.headers.get("Content-Encoding", "")}
        done = subprocess.run(["git", "http-backend"], input=r.body, env=env, capture_output=True)
        head, _, body = done.stdout.partition(b"\r\n\r\n")
        status, headers = 200, []
        for line in head.decode().split("\r\n"):
            key, _, value = line.partition(": ")
            if key == "Status":
                status = int(value.split()[0])
            elif key:
                headers.append((key, value))
        r.reply(status, body, headers)

    return handle


def test_git(client, make_service, upstream, unique, tmp_path):
    """A clone, and a push of more than 1 MiB, which git sends in chunks after a probe."""
    name = unique()
    repo = tmp_path / "repo.git"
    work = tmp_path / "work"
    run("git", "init", "-q", "--bare", "-b", "main", repo)
    run("git", "-C", repo, "config", "http.receivepack", "true")
    run("git", "clone", "-q", repo, work)
    (work / "file").write_text("hello\n")
    for argv in (["add", "."], ["-c", "user.name=t", "-c", "user.email=t@localhost", "commit", "-qm", "first"],
                 ["push", "-q", "origin", "HEAD:main"]):
        run("git", "-C", work, *argv)
    upstream.on(f"/api/{name}/git/", git_backend(tmp_path))
    service = make_service("the-real-one", auth={"kind": "basic", "username": "git"},
                           allow=[{"methods": ["GET", "POST"], "paths": [f"/{name}/git/*"]}])
    out = client(f"""
cd /tmp
export GIT_CONFIG_GLOBAL=/tmp/gitconfig GIT_TERMINAL_PROMPT=0
git config --global user.name a; git config --global user.email a@localhost
git config --global url."http://x:$TOKEN@127.0.0.1:8377/v1/services/{service}/".insteadOf https://git.example/
git clone -q https://git.example/{name}/git/repo.git here
cd here
test "$(cat file)" = hello
head -c 3000000 /dev/urandom >big
git add big; git commit -qm second; git push -q origin HEAD:main
git ls-remote -q origin main
# Sixty commits that the other side does not know: what is asked for is then larger than git likes, and compressed. They
# are newer than those that it knows, or git would begin with what both have, and be done.
git clone -q https://git.example/{name}/git/repo.git /tmp/there
now=$(date +%s)
for i in $(seq 60); do GIT_COMMITTER_DATE="@$((now + i)) +0000" git commit -q --allow-empty -m $i; done
cd /tmp/there; echo more >more; git add more; git commit -qm third; git push -q origin HEAD:main; cd -
git fetch -q origin; test "$(git show origin/main:more)" = more
! git ls-remote -q https://git.example/{name}/git/none.git 2>/dev/null
! git -c url."http://x:wrong@127.0.0.1:8377/v1/services/{service}/".insteadOf=https://git.example/ ls-remote origin 2>/dev/null
echo all done
""", service)
    assert "all done" in out
    assert len(run("git", "-C", repo, "cat-file", "-s", "main:big").stdout.strip()) == 7
    seen = no_token(upstream, f"/api/{name}/")
    posts = [({k.lower(): v for k, v in r[2]}, r[3]) for r in seen if r[0] == "POST"]
    assert any(h.get("transfer-encoding") == "chunked" and len(body) > 1 << 20 for h, body in posts)
    assert any(h.get("content-encoding") == "gzip" and gzip.decompress(body) for h, body in posts)


def test_npm(client, make_service, upstream, unique):
    """Packuments and tarballs from a registry that wants a token of its own; a package's dependency has a scope, whose slash
    npm escapes. And one is published."""
    name = unique()
    service = make_service("the-real-one", encoded_slash=True,
                           allow=[{"methods": ["GET", "PUT"], "paths": [f"/{name}/*"]}])
    public = f"http://127.0.0.1:8377/v1/services/{service}/{name}"
    packages, published = {}, []

    def package(name, code, **more):
        manifest = {"name": name, "version": "1.0.0", "main": "i.js", **more}
        data = io.BytesIO()
        with tarfile.open(fileobj=data, mode="w:gz") as tar:
            for path, text in (("package/package.json", json.dumps(manifest)), ("package/i.js", code)):
                info = tarfile.TarInfo(path)
                info.size = len(text)
                tar.addfile(info, io.BytesIO(text.encode()))
        tarball = data.getvalue()
        integrity = "sha512-" + base64.b64encode(hashlib.sha512(tarball).digest()).decode()
        dist = {"tarball": f"{public}/{name}/-/x-1.0.0.tgz", "integrity": integrity}
        packages[name] = tarball, {"name": name, "dist-tags": {"latest": "1.0.0"},
                                   "versions": {"1.0.0": {**manifest, "dist": dist}}}

    package("left", "module.exports = 40 + require('@scope/right');\n" + "// x" * 100000, dependencies={"@scope/right": "^1"})
    package("@scope/right", "module.exports = 2;")

    def registry(r):
        path = r.path.split(f"/{name}/", 1)[1]
        if dict((k.lower(), v) for k, v in r.headers.items()).get("authorization") != "Bearer the-real-one":
            r.reply(401, {"error": "token"})
        elif r.command == "PUT":
            published.append(json.loads(r.body))
            r.reply(201, {"ok": True})
        elif path.endswith(".tgz"):
            r.reply(200, packages[path.split("/-/")[0]][0], [("Content-Type", "application/octet-stream")])
        elif path.replace("%2F", "/").replace("%2f", "/") in packages:
            r.reply(200, packages[path.replace("%2F", "/").replace("%2f", "/")][1])
        else:
            r.reply(404, {})

    upstream.on(f"/api/{name}/", registry)
    out = client(f"""
cd /tmp; mkdir p; cd p; echo '{{"name":"p","version":"1.0.0"}}' >package.json
printf 'registry={public}/\\n//127.0.0.1:8377/v1/services/{service}/{name}/:_authToken=%s\\naudit=false\\nfund=false\\n' $TOKEN >.npmrc
npm() {{ node /opt/npm/bin/npm-cli.js "$@" --no-update-notifier --loglevel=error; }}
npm install left
echo "says $(node -p 'require("left")')"
! npm install none 2>/dev/null
head -c 2000000 /dev/urandom >data; npm publish
""", service)
    assert "says 42" in out
    assert len(published) == 1 and published[0]["name"] == "p" and published[0]["_attachments"]
    seen = no_token(upstream, f"/api/{name}/")
    assert any(r[0] == "PUT" and len(r[3]) > 2 << 20 for r in seen)
    assert any("%2F" in r[1] or "%2f" in r[1] for r in seen)


def test_gh(client, make_service, upstream, unique):
    """gh insists on https, but over a Unix socket it speaks plain HTTP with the API's own host name."""
    seen = []

    def api(r):
        seen.append(dict((k.lower(), v) for k, v in r.headers.items()).get("authorization"))
        link = f'<{upstream.origin}/api/v3/things?page=2>; rel="next"'
        if "page=2" in r.path:
            r.reply(200, [{"n": 2}])
        elif "/things" in r.path:
            r.reply(200, [{"n": 1}], [("Link", link)])
        else:
            r.reply(200, {"login": "octo"})

    upstream.on("/api/v3/", api)
    service = make_service("the-real-one", allow=[{"methods": ["GET"], "paths": ["/v3/*"]}])
    out = client(f"""
command -v gh >/dev/null || {{ echo no gh; exit 0; }}
export GH_CONFIG_DIR=/tmp/gh GH_ENTERPRISE_TOKEN=$TOKEN GH_HOST={upstream.origin[8:]} GH_NO_UPDATE_NOTIFIER=1
gh config set http_unix_socket /run/agent-bridge.sock
gh api user --jq .login
gh api things --paginate --jq '.[].n'
""", service)
    if "no gh" in out:
        pytest.skip("gh is not in the image")
    assert "octo" in out and out.count("1") >= 1 and "2" in out
    assert set(seen) == {"Bearer the-real-one"} and len(seen) == 3
