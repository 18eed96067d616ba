# SPDX-License-Identifier: LGPL-2.1-or-later
"""The benchmark `history`: what a million finished runs cost those who start and list runs. The store is exchanged for a copy of
itself with the runs put in by SQL, turn and turn about; retention is told to leave them.
"""
import os
import pathlib
import sqlite3
import subprocess
import time

import dbus

STORE = pathlib.Path("/var/lib/agentd/store.db")
FULL = pathlib.Path("/var/lib/agentd/store-full.db")
CONF = pathlib.Path("/etc/agentd/agentd.conf.d/bench-history.conf")
RUNS, FEW = 1_000_000, 200
TURNS = 4
CALLS = 60
AGENT = "bench-true"

# As a run of a small agent leaves it: an input, a result, a receipt and two calls.
SEED = """
INSERT INTO runs (id, user_id, lane_id, uid, trigger, input_digest, priority, keep, timeout_usec, state, attempt, fence,
                  result, exit_code, unit, generation, environment, runner, size, created_usec, queued_usec, finished_usec)
SELECT printf('%032x', i), l.user_id, l.id, 0, 'dbus', 'sha256:' || printf('%064x', i), 0, 0, 600000000, 3, 1, 1, i % 7 = 0, 0,
       'agent-run-' || i, 'sha256:' || printf('%064x', 1), 'sha256:' || printf('%064x', 2), 'sha256:' || printf('%064x', 3),
       3000, 1700000000000000 + i, 1700000000000000 + i, 1700000000000000 + i
FROM (WITH RECURSIVE n(i) AS (SELECT ? UNION ALL SELECT i + 1 FROM n WHERE i < ?) SELECT i FROM n)
JOIN lanes l ON l.agent = ?
"""
DOCUMENTS = """
INSERT INTO run_inputs (seq, text) SELECT seq, printf('%.100c', 'x') FROM runs WHERE seq BETWEEN ?1 AND ?2 AND size = 3000;
INSERT INTO run_results (seq, attempt, text) SELECT seq, 1, printf('%.300c', 'x') FROM runs WHERE seq BETWEEN ?1 AND ?2 AND size = 3000;
INSERT INTO run_receipts (seq, text) SELECT seq, printf('%.1500c', 'x') FROM runs WHERE seq BETWEEN ?1 AND ?2 AND size = 3000;
INSERT INTO calls (seq, attempt, call_id, text) SELECT seq, 1, 'a', printf('%.250c', 'x') FROM runs WHERE seq BETWEEN ?1 AND ?2
    AND size = 3000;
"""


def systemctl(*argv):
    subprocess.run(["systemctl", *argv], check=True)


def fill(db, first, last):
    step = 20000
    db.execute("PRAGMA synchronous = OFF")
    for begin in range(first, last + 1, step):
        with db:
            before = db.execute("SELECT COALESCE(MAX(seq), 0) FROM runs").fetchone()[0]
            db.execute(SEED, (begin, min(begin + step - 1, last), AGENT))
            after = db.execute("SELECT MAX(seq) FROM runs").fetchone()[0]
            for statement in DOCUMENTS.split(";")[:-1]:
                db.execute(statement, (before + 1, after))


def seed():
    systemctl("stop", "agentd.service")
    small, large = sqlite3.connect(STORE), sqlite3.connect(FULL)
    fill(small, 1, FEW)  # as many as a list shows, so that both have the same to show
    small.backup(large)
    small.close()
    fill(large, FEW + 1, RUNS)
    large.close()
    systemctl("start", "agentd.service")


def exchange():
    systemctl("stop", "agentd.service")
    for suffix in ("-wal", "-shm"):  # closed cleanly, the log is empty
        for path in (STORE, FULL):
            pathlib.Path(str(path) + suffix).unlink(missing_ok=True)
    spare = STORE.with_name("store-spare.db")
    os.rename(STORE, spare)
    os.rename(FULL, STORE)
    os.rename(spare, FULL)
    begin = time.monotonic()
    systemctl("start", "agentd.service")
    return (time.monotonic() - begin) * 1e6


def memory():
    pid = subprocess.run(["systemctl", "show", "-P", "MainPID", "agentd.service"], capture_output=True, text=True).stdout.strip()
    with open(f"/proc/{pid}/status", encoding="ascii") as f:
        return next(int(line.split()[1]) * 1024 for line in f if line.startswith("VmRSS:"))


def timed(f, n):
    times = []
    for _ in range(n):
        begin = time.monotonic()
        f()
        times.append((time.monotonic() - begin) * 1e6)
    return times


def turn(calls):
    """The times of one turn with the store that is in place."""
    bus = dbus.bus.BusConnection(dbus.bus.BusConnection.TYPE_SYSTEM)
    proxy = bus.get_object("org.agentd1", "/org/agentd1", introspect=False)
    manager = dbus.Interface(proxy, "org.agentd1.Manager")
    nothing = dbus.Dictionary({}, signature="sv")
    calls(AGENT, 3)
    # An agent that may not run anything now: what is measured is the call, not the runs that it would start.
    found = {
        "ExecuteAgent, call to reply": timed(lambda: manager.ExecuteAgent("bench-queued", "x", nothing), CALLS),
        "call to finished": [c["usec"] for c in calls(AGENT, CALLS // 3)],
        "ListRuns, newest 100": timed(lambda: manager.ListRuns(nothing), CALLS),
        "ListRuns of an agent": timed(lambda: manager.ListRuns(dbus.Dictionary({"agent": AGENT}, signature="sv")), CALLS),
        "agentctl runs": timed(lambda: subprocess.run(["agentctl", "runs"], check=True, capture_output=True), CALLS // 3),
        "agentd's memory (bytes)": [memory()],
    }
    for row in manager.ListRuns(dbus.Dictionary({"agent": "bench-queued", "state": "queued"}, signature="sv")):
        manager.CancelRun(row[0])
    bus.close()
    return found


def while_removed():
    """ListRuns with the full store: at rest, and while half of its runs are removed."""
    bus = dbus.bus.BusConnection(dbus.bus.BusConnection.TYPE_SYSTEM)
    manager = dbus.Interface(bus.get_object("org.agentd1", "/org/agentd1", introspect=False), "org.agentd1.Manager")
    nothing = dbus.Dictionary({}, signature="sv")
    timed(lambda: manager.ListRuns(nothing), CALLS)
    quiet = timed(lambda: manager.ListRuns(nothing), 5 * CALLS)
    removal = subprocess.Popen(["agentctl", "prune-runs", AGENT, f"--keep={RUNS // 2}"])
    begin, busy = time.monotonic(), []
    while removal.poll() is None and time.monotonic() - begin < 20:
        busy += timed(lambda: manager.ListRuns(nothing), 10)
    removal.terminate()  # agentd goes on
    removal.wait()
    bus.close()
    return quiet, busy


def measure(row, calls, ensure_agent):
    ensure_agent(AGENT, kind="exec", command=["/bin/true"])
    ensure_agent("bench-queued", kind="exec", command=["/bin/sleep", "infinity"], concurrency=1)
    calls(AGENT, 3)
    CONF.parent.mkdir(parents=True, exist_ok=True)
    CONF.write_text("[Retention]\nMaxAge=infinity\nMaxRunsPerUser=100000000\nMaxSizePerUser=1T\n")
    holder = subprocess.run(["agentctl", "run", "bench-queued"], check=True, capture_output=True, text=True).stdout.split()[-1]
    try:
        seed()
        ours, ref, starts, starts_ref = {}, {}, [], []
        turn(calls)
        for _ in range(TURNS):
            starts.append(exchange())
            for case, times in turn(calls).items():
                ours.setdefault(case, []).extend(times)
            starts_ref.append(exchange())
            for case, times in turn(calls).items():
                ref.setdefault(case, []).extend(times)
        exchange()
        quiet, busy = while_removed()
        yield row("history", "ListRuns while runs are removed", "the same store at rest", busy, quiet, None)
        reference = f"the same with {FEW} runs in the store"
        for case, times in ours.items():
            yield row("history", case, reference, times, ref[case], 1.1)
        yield row("history", "agentd's start", reference, starts, starts_ref, None)
    finally:
        CONF.unlink()
        systemctl("stop", "agentd.service")
        FULL.unlink(missing_ok=True)
        systemctl("start", "agentd.service")
        subprocess.run(["agentctl", "cancel", holder], check=False, capture_output=True)
