# SPDX-License-Identifier: LGPL-2.1-or-later
"""Package managers in an edit: apt, pip, npm and git fetch through the bridge's proxy from small servers of this test, and
what they installed is there in the next run, with owners, modes and capabilities, without what they cached.
"""

import base64
import hashlib
import io
import json
import re
import subprocess
import tarfile
import zipfile

import pytest

import inside
from client import agentctl, run
from test_env_generations import said

CONTROL = """Package: {name}
Version: 1.2-3
Architecture: all
Maintainer: Nobody <nobody@example.org>
Depends: {depends}
Description: of a test
"""
POSTINST = """#!/bin/sh
set -e
useradd --system --home-dir /nonexistent --no-create-home greet
mkdir -p /var/lib/greet
echo hello > /var/lib/greet/text
chown -R greet:greet /var/lib/greet
chmod 2750 /var/lib/greet
setcap cap_net_bind_service,cap_dac_read_search+ep /usr/bin/greet-cap
chgrp greet /usr/bin/greet-setgid
chmod 2755 /usr/bin/greet-setgid
"""


def build_deb(tmp_path, name, depends, files, postinst=None):
    root = tmp_path / name
    for path, (text, mode) in {**files, "DEBIAN/control": (CONTROL.format(name=name, depends=depends), 0o644),
                               **({"DEBIAN/postinst": (postinst, 0o755)} if postinst else {})}.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
        (root / path).chmod(mode)
    for d in [root, *root.rglob("*")]:
        if d.is_dir():
            d.chmod(0o755)
    run("dpkg-deb", "--root-owner-group", "--build", root, tmp_path / f"{name}.deb")
    return (tmp_path / f"{name}.deb").read_bytes()


def apt_repository(mirror, tmp_path):
    """A flat one: packages and an index of them."""
    index = ""
    program = ("#!/bin/sh\nexec cat /usr/share/libgreet/text\n", 0o755)
    for name, deb in (
        ("libgreet", build_deb(tmp_path, "libgreet", "", {"usr/share/libgreet/text": ("greetings\n", 0o644)})),
        ("greet", build_deb(tmp_path, "greet", "libgreet, libcap2-bin", {"usr/bin/greet": program, "usr/bin/greet-cap": program,
                                                                         "usr/bin/greet-setgid": program}, POSTINST)),
    ):
        mirror.put(f"apt/{name}.deb", deb)
        control = run("dpkg-deb", "--field", tmp_path / f"{name}.deb").stdout
        index += f"{control}Filename: {name}.deb\nSize: {len(deb)}\nSHA256: {hashlib.sha256(deb).hexdigest()}\n\n"
    mirror.put("apt/Packages", index)
    return f"deb [trusted=yes] {mirror.url}/apt ./"


def build_wheel(name, text, requires=()):
    data = io.BytesIO()
    info = f"{name}-1.0.dist-info"
    files = {f"{name}/__init__.py": text,
             f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n" +
                                 "".join(f"Requires-Dist: {r}\n" for r in requires),
             f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
             f"{info}/entry_points.txt": f"[console_scripts]\n{name}-run = {name}:main\n"}
    record = ""
    for path, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content.encode()).digest()).rstrip(b"=").decode()
        record += f"{path},sha256={digest},{len(content)}\n"
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n"
    with zipfile.ZipFile(data, "w") as z:
        for path, content in files.items():
            z.writestr(path, content)
    return data.getvalue()


def index_page(files):
    links = "".join(f'<a href="{name}#sha256={hashlib.sha256(data).hexdigest()}">{name}</a>' for name, data in files.items())
    return f"<!DOCTYPE html><html><body>{links}</body></html>"


@pytest.fixture
def packages_agent(agentd, clients_image, unique):
    """An agent on an image with npm; its input is Python."""
    name = unique()
    agentd.call("CreateAgent", json.dumps({"name": name, "image": clients_image, "kind": "command", "command": inside.COMMAND,
                                           "limits": {"memory": "1G", "timeout": 7200}}))
    yield name
    agentctl("env", "discard", name, check=False)
    agentd.call("RemoveAgent", name)


def in_run(agentd, name, script):
    path = agentd.execute(name, f"import subprocess; print(subprocess.run(['/bin/sh', '-c', {script!r}], stdout=-1, "
                                "stderr=subprocess.STDOUT, text=True).stdout)")
    result, message = agentd.finish(path)
    assert result == "success", (message, agentd.log(path))
    return said(agentd, path).strip()


def no_trace(agentd, name):
    """Of the session's network in what was frozen: the token, the proxy, and what was fetched on the way."""
    return in_run(agentd, name, """
        grep -rsl -e '127.0.0.1:8378' -e 'eyJhbGciOiJFUzI1NiIs' /etc /root /home /usr/local /var /opt 2>/dev/null
        find /var/lib/apt/lists /var/cache/apt /root/.cache /root/.npm /home/agent/.cache /home/agent/.npm /tmp /var/tmp \
             -type f 2>/dev/null | grep -v '^/tmp/agent-' """)


def test_apt(agentd, shell, make_agent, mirror, tmp_path):
    source = apt_repository(mirror, tmp_path)
    s = shell("--allow-host", mirror.host)
    s(f"rm -rf /etc/apt/sources.list /etc/apt/sources.list.d/*; echo '{source}' > /etc/apt/sources.list.d/test.list")
    mirror.seen.clear()
    out = s("apt-get update")
    assert not re.search(r"^[EW]:", out, re.M), out
    assert "uid=42(_apt)" in s("id _apt") and "_apt" in s("stat -c %U /var/lib/apt/lists/partial")
    out = s("DEBIAN_FRONTEND=noninteractive apt-get install -y greet")
    assert not re.search(r"^[EW]:", out, re.M) and "Setting up greet (1.2-3)" in out, out
    # Fetched by the sandboxed user of apt, through the bridge: the token is not passed on.
    assert [p for _, p, status, _ in mirror.seen if status == 200 and p.endswith(".deb")] == ["/apt/libgreet.deb", "/apt/greet.deb"]
    assert not any("proxy" in k.lower() or "eyJ" in v for _, _, _, h in mirror.seen for k, v in h.items())
    assert s("greet; ls /var/cache/apt/archives/*.deb | wc -l").split() == ["greetings", "2"]
    assert s.end()[0] == 0
    agentctl("env", "freeze", s.agent)
    lines = in_run(agentd, s.agent, r"""
        greet; getcap /usr/bin/greet-cap; stat -c '%a' /var/lib/greet /usr/bin/greet-setgid /usr/bin/greet-cap
        dpkg -s greet | grep ^Status; id -un greet""").splitlines()
    assert lines == ["greetings", "/usr/bin/greet-cap cap_dac_read_search,cap_net_bind_service=ep", "2750", "2755", "755",
                     "Status: install ok installed", "greet"]
    assert no_trace(agentd, s.agent) == ""
    assert "+ dpkg: greet 1.2-3" in agentctl("env", "diff", s.agent, "1").stdout
    # The next edit goes on from there: removing works as well, and purges what the package made.
    again = shell("--allow-host", mirror.host, name=s.agent)
    assert again("stat -c '%U %G' /var/lib/greet /usr/bin/greet-setgid /usr/bin/greet-cap").split("\n") == [
        "greet greet", "root greet", "root root"]
    again("apt-get update && apt-get install -y --reinstall libgreet && apt-get purge -y greet && apt-get autoremove -y")
    assert again.end()[0] == 0
    agentctl("env", "freeze", s.agent)
    assert in_run(agentd, s.agent, "ls /usr/bin/greet /usr/share/libgreet 2>&1 | grep -c 'No such'") == "2"


def test_apt_where_nothing_is_allowed(shell):
    """It says why, and installs nothing."""
    s = shell("--allow-host=elsewhere.example")
    s("rm -rf /etc/apt/sources.list /etc/apt/sources.list.d/*; "
      "echo 'deb [trusted=yes] http://mirror.agentd.test/apt ./' > /etc/apt/sources.list.d/test.list")
    assert "403" in s("apt-get update 2>&1; true")


def test_pip(agentd, packages_agent, shell, mirror, upstream):
    plain = {"greet_py-1.0-py3-none-any.whl": build_wheel("greet_py", "def main():\n    import greet_dep\n    print(greet_dep.x)\n",
                                                          ["greet_dep"])}
    other = {"greet_dep-1.0-py3-none-any.whl": build_wheel("greet_dep", "x = 'from pip'\ndef main():\n    pass\n")}
    for project, files in (("greet-py", plain), ("greet-dep", other)):
        mirror.put(f"simple/{project}/index.html", index_page(files))
        for name, data in files.items():
            mirror.put(f"simple/{project}/{name}", data)
    s = shell("--allow-host", mirror.host, f"--allow-host=mirror.agentd.test:{upstream.port}", name=packages_agent)
    out = s(f"pip install --break-system-packages --index-url {mirror.url}/simple --trusted-host mirror.agentd.test greet-py")
    assert "Successfully installed greet-py-1.0 greet_dep-1.0" in out, out
    assert s("greet_py-run; mkdir -p /root/.cache/pip; touch /root/.cache/pip/x") == "from pip"
    # The same by TLS, which goes through a tunnel.
    tls = {"greet_tls-1.0-py3-none-any.whl": build_wheel("greet_tls", "def main():\n    print('by tls')\n")}
    page = index_page(tls).encode()
    upstream.on("/simple/greet-tls/", lambda r: r.reply(200, tls.get(r.path.rsplit("/", 1)[1], page), [
        ("Content-Type", "application/octet-stream" if r.path.endswith(".whl") else "text/html")]))
    out = s(f"pip install --break-system-packages --index-url https://mirror.agentd.test:{upstream.port}/simple "
            "--trusted-host mirror.agentd.test greet-tls")
    assert "Successfully installed greet" in out, out
    # And into an environment of its own.
    s(f"python3 -m venv --without-pip --system-site-packages /opt/venv && /opt/venv/bin/python -m pip install --ignore-installed "
      f"--index-url {mirror.url}/simple --trusted-host mirror.agentd.test greet-dep && chown -R agent: /opt/venv")
    assert s.end()[0] == 0
    agentctl("env", "freeze", packages_agent)
    out = in_run(agentd, packages_agent, "greet_py-run; greet_tls-run; /opt/venv/bin/python -c 'import greet_dep; print(greet_dep."
                                         "__file__)'; stat -c %u /opt/venv/bin; id -u")
    lines = out.splitlines()
    assert lines[:2] == ["from pip", "by tls"] and lines[2].startswith("/opt/venv/lib/") and lines[3] == lines[4]
    assert no_trace(agentd, packages_agent) == ""
    assert "+ pip: greet-py 1.0" in agentctl("env", "diff", packages_agent, "1").stdout.replace("greet_py", "greet-py")


def build_npm(name, manifest, files):
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as tar:
        for path, text in {"package.json": json.dumps({"name": name, "version": "1.0.0", **manifest}), **files}.items():
            info = tarfile.TarInfo(f"package/{path}")
            info.size, info.mode = len(text), 0o755
            tar.addfile(info, io.BytesIO(text.encode()))
    return data.getvalue()


def test_npm(agentd, packages_agent, shell, mirror):
    for name, manifest, files in (
        ("greet-dep", {"main": "i.js"}, {"i.js": "module.exports = 'from npm';\n"}),
        ("greet-js", {"bin": {"greet-js": "cli.js"}, "dependencies": {"greet-dep": "^1.0.0"},
                      "scripts": {"postinstall": "id -u > made-by"}},
         {"cli.js": "#!/usr/bin/env node\nconsole.log(require('greet-dep'));\n"}),
    ):
        tarball = build_npm(name, manifest, files)
        integrity = "sha512-" + base64.b64encode(hashlib.sha512(tarball).digest()).decode()
        url = mirror.put(f"npm/{name}/-/{name}-1.0.0.tgz", tarball)
        mirror.put(f"npm/{name}/index.html", json.dumps({"name": name, "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": {
            "name": name, "version": "1.0.0", **manifest, "dist": {"tarball": url, "integrity": integrity}}}}))
    s = shell("--allow-host", mirror.host, name=packages_agent)
    out = s(f"cd /root && node /opt/npm/bin/npm-cli.js install -g greet-js --prefix /usr/local --registry {mirror.url}/npm "
            "--no-audit --no-fund --no-update-notifier")
    assert "added 2 packages" in out, out
    assert s("greet-js; cat /usr/local/lib/node_modules/greet-js/made-by; ls -d /root/.npm/_cacache").split("\n") == [
        "from npm", "0", "/root/.npm/_cacache"]
    assert s.end()[0] == 0
    agentctl("env", "freeze", packages_agent)
    assert in_run(agentd, packages_agent, "greet-js; stat -c '%U %G' /usr/local/lib/node_modules/greet-js") == "from npm\nroot root"
    assert no_trace(agentd, packages_agent) == ""
    assert "+ npm: greet-js 1.0.0" in agentctl("env", "diff", packages_agent, "1").stdout


def test_git(shell, mirror, tmp_path):
    work, bare = tmp_path / "work", f"{mirror.root}/repo.git"
    run("git", "init", "-q", "-b", "main", work)
    (work / "file").write_text("from git\n")
    for argv in (["add", "."], ["-c", "user.name=t", "-c", "user.email=t@localhost", "commit", "-qm", "x"]):
        run("git", "-C", work, *argv)
    subprocess.run(["git", "clone", "-q", "--bare", work, bare], check=True)
    run("git", "-C", bare, "update-server-info")
    s = shell("--allow-host", mirror.host)
    assert s(f"git clone -q {mirror.url}/repo.git /opt/repo && cat /opt/repo/file && cat /opt/repo/.git/config") .startswith("from git")
    assert "403" in s("git clone -q http://elsewhere.agentd.test/repo.git /opt/no 2>&1; true")
