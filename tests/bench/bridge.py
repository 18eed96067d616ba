# SPDX-License-Identifier: LGPL-2.1-or-later
"""The bridge beside nginx as an injecting reverse proxy: the same upstream over TLS, the same client, turn and turn about.

The client stands in the network namespace of a live run for ours, and on the host for nginx. The upstream is another
nginx; streams of events come from a small server behind it, which writes into each event when it was sent.

nginx is asked twice: as it is, without any log, and with a record of each request in the journal (its access log, by
syslog), as the bridge writes one. What it does in neither case is to verify a token, to ask another process for the
credential, or to search the answer for it.
"""
import json
import os
import pathlib
import statistics
import subprocess
import time

HELPERS = "/usr/lib/agentd/tests"
UPSTREAM, PROXY, EVENTS, LOGGING = 9443, 9080, 9081, 9082
WHERE = pathlib.Path("/run/bench-bridge")
BRIDGE, COMPARATOR = "agent-bridged.service", "bench-nginx.service"
CA = pathlib.Path("/etc/agentd/bench-ca.pem")  # where the bridge sees it
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
  server {{ listen 127.0.0.1:{proxy} backlog=4096; {forward} }}
  server {{ listen 127.0.0.1:{logging} backlog=4096; access_log syslog:server=unix:/dev/log,tag=bench,nohostname; {forward} }}
"""
FORWARD = """
    location / {{ proxy_pass https://far; proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_set_header Authorization "Bearer the-credential"; proxy_set_header Host localhost; proxy_ssl_server_name on;
      proxy_ssl_name localhost; proxy_ssl_verify on; proxy_ssl_trusted_certificate {where}/cert.pem; proxy_ssl_session_reuse on;
      proxy_request_buffering off; proxy_buffering off; proxy_read_timeout 600s; }}
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
        CA.write_text((WHERE / "cert.pem").read_text())
        DROPIN.parent.mkdir(parents=True, exist_ok=True)
        DROPIN.write_text(f"[Upstream]\nAllowAddresses=127.0.0.0/8 ::1\nCAFile={CA}\n[Bridge]\nConnectionsMax=4096\n"
                          "[Limits]\nRunRequestsPerSecond=0\n")
        names = dict(where=WHERE, upstream=UPSTREAM, proxy=PROXY, logging=LOGGING, events=EVENTS, answer="x" * 2048)
        names["forward"] = FORWARD.format(**names)
        for name, body in (("upstream", UPSTREAM_BODY), ("proxy", PROXY_BODY)):
            (WHERE / f"{name}.conf").write_text(NGINX.format(name=name, where=WHERE, body=body.format(**names)))
        self.children = [subprocess.Popen(["nginx", "-c", f"{WHERE}/upstream.conf"], stderr=subprocess.DEVNULL),
                         subprocess.Popen([f"{HELPERS}/bench-http", "events", str(EVENTS), "100", "100"])]
        # The journal takes all records of the bridge, so it has to take all of nginx, too.
        sh("systemd-run", "--quiet", "--collect", f"--unit={COMPARATOR}", "--property=LogRateLimitIntervalSec=0",
           "--property=LimitNOFILE=20000", "nginx", "-c", f"{WHERE}/proxy.conf")
        self.proxy_pid = main_pid(COMPARATOR)
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
        sh("systemctl", "stop", COMPARATOR)
        DROPIN.unlink()
        CA.unlink()
        sh("systemctl", "restart", "agent-bridged.service")

    def client(self, ours, mode, path, count, parallel, body=b"", port=PROXY):
        """One go of bench-http, through ours or nginx at PORT."""
        head = f"{'POST' if body else 'GET'} {'/v1/services/bench-far' if ours else '/api'}{path} HTTP/1.1\r\nHost: localhost\r\n"
        if ours:
            head += f"Authorization: Bearer {self.token}\r\n"
        if body:
            head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        argv = [f"{HELPERS}/bench-http", mode, "127.0.0.1", "8377" if ours else str(port), str(count), str(parallel)]
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


def main_pid(unit):
    return int(sh("systemctl", "show", "-P", "MainPID", unit))


BODY = b'{"m":"' + b"x" * 2039 + b'"}'
SIDES = {"ours": dict(ours=True), "nginx": dict(ours=False), "logging": dict(ours=False, port=LOGGING)}


def cpu_usec(pid):
    """Time on a CPU so far; unlike the time of a request it says little of what else the machine does."""
    return int(pathlib.Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1000


def turns(world, rounds, count, parallel):
    """For each side: what bench-http said of each of its goes, and the CPU time that a request took in each."""
    pids = {"ours": main_pid(BRIDGE), "nginx": workers(world.proxy_pid)[0]}
    pids["logging"] = pids["nginx"]
    answers, cpu = {s: [] for s in SIDES}, {s: [] for s in SIDES}
    for side in SIDES.values():
        world.client(mode="load", path="/echo", count=count // 5, parallel=parallel, body=BODY, **side)
    for _ in range(rounds):
        for name, side in SIDES.items():
            before = cpu_usec(pids[name])
            answers[name].append(world.client(mode="load", path="/echo", count=count, parallel=parallel, body=BODY, **side))
            cpu[name].append((cpu_usec(pids[name]) - before) / count)
    return answers, cpu


def latency(world, row):
    answers, cpu = turns(world, 8, 250, 1)
    usec = {s: [u for a in answers[s] for u in a["usec"]] for s in SIDES}
    yield row("bridge-latency", "2 KB POST, one connection", "nginx, injecting", usec["ours"], usec["nginx"], 1.5)
    yield row("bridge-latency", "the same, nginx with records", "nginx, records in the journal", usec["ours"], usec["logging"], None)
    yield row("bridge-latency", "CPU time of a request", "nginx, injecting", cpu["ours"], cpu["nginx"], None)


def throughput(world, row):
    answers, cpu = turns(world, 5, 5000, 64)
    speed = {s: [5000 / a["seconds"] for a in answers[s]] for s in SIDES}
    for side, reference, target in (("nginx", "nginx, one worker", 0.8), ("logging", "nginx, records in the journal", None)):
        case = "64 connections" if side == "nginx" else "the same, nginx with records"
        r = row("bridge-throughput", case, reference, speed["ours"], speed[side], target, at_most=False)
        r["unit"] = "requests/s"
        yield r
    yield row("bridge-throughput", "CPU time of a request", "nginx, one worker", cpu["ours"], cpu["nginx"], None)


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
    before = resident(main_pid(BRIDGE))
    ask = lambda side: world.client(side, "streams", "/events", n, 100)["delay_usec"]
    ref, ref_peak = peak(workers(world.proxy_pid)[0], lambda: ask(False))
    ours, our_peak = peak(main_pid(BRIDGE), lambda: ask(True))
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
