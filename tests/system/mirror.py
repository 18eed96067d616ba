# SPDX-License-Identifier: LGPL-2.1-or-later
"""What sessions in edits go to, and a session that a test speaks to line by line."""

import functools
import http.server
import os
import subprocess
import tempfile
import threading

HOST = "mirror.agentd.test"
HOSTS = "/etc/hosts"


class _Handler(http.server.SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_request(self, code="-", size="-"):
        self.server.seen.append((self.command, self.path, int(code), dict(self.headers.items())))

    def log_message(self, *_):
        pass


class Mirror:
    """Serves the files of a folder."""

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory()
        self.root = self.folder.name
        os.chmod(self.root, 0o755)
        self.server = http.server.ThreadingHTTPServer(
            ("127.0.0.1", 0), functools.partial(_Handler, directory=self.root))
        self.server.daemon_threads = True
        self.server.seen = self.seen = []
        self.port = self.server.server_address[1]
        self.host = f"{HOST}:{self.port}"
        self.url = f"http://{self.host}"
        with open(HOSTS) as f:
            self.hosts = f.read()
        self.name(HOST, "127.0.0.1")
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @staticmethod
    def name(host, address):
        """Makes HOST lead to ADDRESS, for the host's side."""
        with open(HOSTS, "a") as f:
            f.write(f"{address} {host}\n")

    def put(self, path, data):
        full = os.path.join(self.root, path)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        with open(full, "wb") as f:
            f.write(data.encode() if isinstance(data, str) else data)
        return f"{self.url}/{path}"

    def close(self):
        self.server.shutdown()
        with open(HOSTS, "w") as f:
            f.write(self.hosts)
        self.folder.cleanup()


class Shell:
    """A session whose shell reads what the test writes."""

    def __init__(self, agent, *options):
        self.agent = agent
        self.process = subprocess.Popen(["agentctl", "env", "edit", agent, *options, "--", "/bin/sh"],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self("true")

    def __call__(self, text, check=True):
        """What it puts out on both streams."""
        self.process.stdin.write(f"{{ {text}\n}} </dev/null 2>&1; printf '\\n=END= %d\\n' $?\n")
        self.process.stdin.flush()
        lines = []
        for line in self.process.stdout:
            if line.startswith("=END= "):
                out = "".join(lines)[:-1].removesuffix("\n")
                assert not check or line == "=END= 0\n", f"{text}\n{line}{out}"
                return out
            lines.append(line)
        raise EOFError(f"the session is over: {''.join(lines)} {self.process.stderr.read()}")

    def end(self):
        """The session's own end; agentctl's exit status and what it said."""
        if self.process.stdin and not self.process.stdin.closed:
            self.process.stdin.close()
        out = self.process.stderr.read() if not self.process.stderr.closed else ""
        status = self.process.wait()
        self.process.stdout.close()
        self.process.stderr.close()
        return status, out
