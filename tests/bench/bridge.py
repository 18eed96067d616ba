# SPDX-License-Identifier: LGPL-2.1-or-later
"""The bridge beside nginx as an injecting reverse proxy: the same upstream over TLS, the same client, turn and turn about.

The client stands in the network namespace of a live run for ours, and on the host for nginx. The upstream is another
nginx; streams of events come from a small server behind it, which writes into each event when it was sent.
"""
import json
import os
import pathlib
import statistics
import subprocess
import time

HELPERS = "/usr/lib/agentd/tests"
UPSTREAM, PROXY, EVENTS = 9443, 9080, 9081
WHERE = pathlib.Path("/run/bench-bridge")
DROPIN = pathlib.Path("/etc/agentd/bridge.conf.d/80-bench.conf")

NGINX = """
daemon off; pid {where}/{name}.pid; worker_processes 1; error_log {where}/{name}.log; worker_rlimit_nofile 20000;
events {{ worker_connections 8192; }}
http {{ access_log off; client_body_temp_path {where}/{name}-body; proxy_temp_path {where}/{name}-proxy;
  fastcgi_temp_path {where}/{name}-f; uwsgi_temp_path {where}/{name}-u; scgi_temp_path {where}/{name}-s;
  keepalive_requests 1000000; keepalive_timeout 600s; client_max_body_size 2g; {body} }}
"""
UPSTREAM_BODY = """
  server {{ listen 127.0.0.1:{upstream} ssl backlog=4096; ssl_certificate {where}/cert.pem; ssl_certificate_key {where}/key.pem;
    location /api/echo {{ default_type application/json; return 200 '{answer}'; }}
    location /api/events {{ proxy_pass http://127.0.0.1:{events}; proxy_buffering off; proxy_read_timeout 600s; }} }}
"""
PROXY_BODY = """
  upstream far {{ server localhost:{upstream}; keepalive 128; keepalive_requests 1000000; }}
  server {{ listen 127.0.0.1:{proxy} backlog=4096;
    location / {{ proxy_pass https://far; proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_set_header Authorization "Bearer the-credential"; proxy_set_header Host localhost; proxy_ssl_server_name on;
      proxy_ssl_name localhost; proxy_ssl_verify on; proxy_ssl_trusted_certificate {where}/cert.pem; proxy_ssl_session_reuse on;
      proxy_request_buffering off; proxy_buffering off; proxy_read_timeout 600s; }} }}
"""


def sh(*argv, stdin=None):
    return subprocess.run(argv, input=stdin, check=True, text=True, capture_output=True).stdout


class World:
    """Upstream, comparator, service, and a live run whose namespace the client enters."""

    def __init__(self, live_run):
        self.live_run = live_run

    def __enter__(self):
        WHERE.mkdir(mode=0o755, exist_ok=True)
        sh("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
           "-keyout", f"{WHERE}/key.pem", "-out", f"{WHERE}/cert.pem", "-subj", "/CN=localhost",
           "-addext", "subjectAltName=DNS:localhost")
        DROPIN.parent.mkdir(parents=True, exist_ok=True)
        DROPIN.write_text(f"[Upstream]\nAllowAddresses=127.0.0.0/8 ::1\nCAFile={WHERE}/cert.pem\n[Bridge]\nConnectionsMax=4096\n"
                          "[Limits]\nRunRequestsPerSecond=0\n")
        names = dict(where=WHERE, upstream=UPSTREAM, proxy=PROXY, events=EVENTS, answer="x" * 2048)
        self.children = []
        for name, body in (("upstream", UPSTREAM_BODY), ("proxy", PROXY_BODY)):
            conf = WHERE / f"{name}.conf"
            conf.write_text(NGINX.format(name=name, where=WHERE, body=body.format(**names)))
            self.children.append(subprocess.Popen(["nginx", "-c", str(conf)], stderr=subprocess.DEVNULL))
        self.children.append(subprocess.Popen([f"{HELPERS}/bench-http", "events", str(EVENTS), "100", "100"]))
        self.proxy_pid = self.children[1].pid
        sh("systemctl", "restart", "agent-bridged.service", "agent-credentiald.service")
        definition = json.dumps({"name": "bench-far", "base_url": f"https://localhost:{UPSTREAM}/api", "auth": {"kind": "bearer"},
                                 "allow": [{"methods": ["GET", "POST"], "paths": ["/*"]}]})
        have = '"bench-far"' in sh("agentctl", "service", "list", "--json=short")
        sh("agentctl", "service", "update" if have else "add", "-", stdin=definition)
        sh("agentctl", "credential", "set", "bench-far", stdin="the-credential")
        self.live = self.live_run(services=["bench-far"])
        self.live.__enter__()
        self.token = pathlib.Path(f"/run/agentd/runs/{self.live.id}/token").read_text()
        return self

    def __exit__(self, *_):
        self.live.__exit__()
        for c in self.children:
            c.terminate()
            c.wait()
        DROPIN.unlink()
        sh("systemctl", "restart", "agent-bridged.service")

    def client(self, ours, mode, path, count, parallel, body=b""):
        """One go of bench-http, through ours or nginx."""
        head = f"{'POST' if body else 'GET'} {'/v1/services/bench-far' if ours else '/api'}{path} HTTP/1.1\r\nHost: localhost\r\n"
        if ours:
            head += f"Authorization: Bearer {self.token}\r\n"
        if body:
            head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        argv = [f"{HELPERS}/bench-http", mode, "127.0.0.1", "8377" if ours else str(PROXY), str(count), str(parallel)]
        if ours:
            argv = ["nsenter", f"--net=/run/agentd/runs/{self.live.id}/netns", *argv]
        done = subprocess.run(argv, input=(head + "\r\n").encode() + body, check=True, capture_output=True)
        out = json.loads(done.stdout)
        if out["bad"]:
            raise RuntimeError(f"{out['bad']} bad answers from {'the bridge' if ours else 'nginx'}")
        return out


def resident(pid):
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * 1024
    return 0


def workers(pid):
    out = subprocess.run(["pgrep", "-P", str(pid)], text=True, capture_output=True).stdout.split()
    return [int(p) for p in out] or [pid]


def bridge_pid():
    return int(sh("systemctl", "show", "-P", "MainPID", "agent-bridged.service"))


def latency(world, row):
    body = b'{"m":"' + b"x" * 2039 + b'"}'
    for side in (True, False):
        world.client(side, "load", "/echo", 50, 1, body)
    ours, ref = [], []
    for _ in range(8):
        ref += world.client(False, "load", "/echo", 250, 1, body)["usec"]
        ours += world.client(True, "load", "/echo", 250, 1, body)["usec"]
    yield row("bridge-latency", "2 KB POST, one connection", "nginx, injecting", ours, ref, 1.5)


def throughput(world, row):
    body = b'{"m":"' + b"x" * 2039 + b'"}'
    for side in (True, False):
        world.client(side, "load", "/echo", 1000, 64, body)
    ours, ref = [], []
    for _ in range(5):
        ref.append(5000 / world.client(False, "load", "/echo", 5000, 64, body)["seconds"])
        ours.append(5000 / world.client(True, "load", "/echo", 5000, 64, body)["seconds"])
    r = row("bridge-throughput", "64 connections", "nginx, one worker", ours, ref, 0.8, at_most=False)
    r["unit"] = "requests/s"
    yield r


def peak(pid, action):
    """What ACTION returns, and the most that the process held meanwhile."""
    watch = subprocess.Popen(["sh", "-c", f"while grep VmRSS /proc/{pid}/status; do sleep 0.1; done"],
                             stdout=subprocess.PIPE, text=True)
    try:
        out = action()
    finally:
        watch.terminate()
    return out, max(int(line.split()[1]) * 1024 for line in watch.communicate()[0].splitlines() if line.endswith("kB"))


def stream(world, row, n=1000):
    before = resident(bridge_pid())
    ask = lambda side: world.client(side, "streams", "/events", n, 100)["delay_usec"]
    ref, ref_peak = peak(workers(world.proxy_pid)[0], lambda: ask(False))
    ours, our_peak = peak(bridge_pid(), lambda: ask(True))
    p99 = lambda v: sorted(v)[int(len(v) * 0.99)]
    r = row("bridge-stream", f"{n} streams, delay of an event", "nginx, buffering off", ours, ref, None)
    added = p99(ours) - p99(ref)
    r.update(p99_added_usec=added, target=1000, met=added <= 1000)
    print(f"bridge-stream: p99 {p99(ours)} µs, nginx {p99(ref)} µs, added {added} µs (to reach: 1000)", flush=True)
    yield r
    print(f"bridge-stream: resident {our_peak / 1e6:.1f} MB with {n} streams, {before / 1e6:.1f} MB before; "
          f"nginx {ref_peak / 1e6:.1f} MB (to reach: 20 MB)", flush=True)
    yield {"name": "bridge-stream", "case": "resident memory", "reference": "nginx, its worker", "unit": "bytes",
           "ours": {"median": our_peak, "p95": our_peak, "n": 1}, "ref": {"median": ref_peak, "p95": ref_peak, "n": 1},
           "ratio": our_peak / ref_peak, "target": 20e6, "met": our_peak <= 20e6}


def start(row):
    """The first request to an inactive bridge, by way of its control socket, against the second."""
    first, second = [], []
    ask = ["curl", "-sS", "--fail", "--unix-socket", "/run/agent-bridged/control", "http://x/healthz"]
    for _ in range(8):
        sh("systemctl", "stop", "agent-bridged.service")
        for times in (first, second):
            begin = time.monotonic()
            sh(*ask)
            times.append((time.monotonic() - begin) * 1e6)
    r = row("bridge-start", "first request to an inactive bridge", "the second one", first, second, None)
    more = statistics.median(first) - statistics.median(second)
    r.update(more_usec=more, target=50000, met=more <= 50000)
    print(f"bridge-start: {more / 1000:.1f} ms more (to reach: 50 ms)", flush=True)
    yield r
