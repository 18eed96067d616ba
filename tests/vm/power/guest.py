# SPDX-License-Identifier: LGPL-2.1-or-later
"""The part of host.py that runs in the machine: prepares, works, and looks at what a power cut has left.

For each kind of work there is a class. prepare() brings about the state before and returns what must be known to judge
the state afterwards; work() may call mark() when something was told to be done, and returns when all is; check() gets
all that, after the power came back, and says which state it found.
"""

import hashlib
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tarfile
import termios
import time
import traceback

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "system"))

from tiny import write_tiny_image, write_tiny_runner  # noqa: E402

STATE = pathlib.Path("/var/lib/agentd")
DISK = pathlib.Path("/mnt/power")  # on the same disk, and not agentd's
IMAGE = DISK / "image.tar"
TALL = DISK / "tall.oci"
DEADLINE = 600


class Wrong(Exception):
    pass


def ensure(what, text):
    if not what:
        raise Wrong(text)


def run(*argv, check=True, stdin=None):
    done = subprocess.run([str(a) for a in argv], input=stdin, capture_output=True, text=True, timeout=DEADLINE)
    if check and done.returncode != 0:
        raise Wrong(f"{argv} ended with {done.returncode}: {done.stdout} {done.stderr}")
    return done


def agentctl(*argv, **kw):
    return run("agentctl", *argv, **kw)


def as_json(*argv):
    return json.loads(agentctl(*argv, "--json=short").stdout)


def wait_until(predicate, what):
    end = time.monotonic() + DEADLINE
    while not (value := predicate()):
        ensure(time.monotonic() < end, f"{what} did not come")
        time.sleep(0.1)
    return value


def edit(agent, script, check=True):
    return agentctl("env", "edit", agent, "--", "/bin/sh", "-euc", script, check=check)


def freeze(agent):
    agentctl("env", "freeze", agent)


def log(agent):
    return as_json("env", "log", agent)


def head(agent):
    return next(g["digest"] for g in log(agent) if g["head"])


def edits():
    return [e["agent"] for e in as_json("env", "edits")]


def agents():
    return [a["name"] for a in as_json("agent", "list")]


def make_agent(name, image="small", **keys):
    agentctl("agent", "create", "-", stdin=json.dumps({
        "name": name, "image": image, "kind": "exec", "command": ["/bin/sh", "-c", ". $AGENT_INPUT_FILE"], **keys}))


def in_run(agent, script, what):
    """A run whose script fails says that something is not as it should be."""
    done = agentctl("run", "--wait", agent, "--input", "set -eu\n" + script, check=False)
    ensure(done.returncode == 0, f"{what}: {done.stdout} {done.stderr}")


def current_runner():
    return next(r["digest"] for r in as_json("runner", "list") if r["state"] == "current")


def fresh():
    return hashlib.sha256(random.randbytes(16)).hexdigest()[:12]


# --- the kinds of work ---------------------------------------------------------------------------------------------


class Edit:
    """The first session of an edit, and a second one."""

    def prepare(self):
        if "edited" in agents():
            agentctl("env", "discard", "edited", check=False)
            agentctl("agent", "remove", "edited")
        make_agent("edited")
        return {"one": fresh(), "two": fresh(), "head": head("edited")}

    def work(self, e, mark):
        big = "head -c 300000 /dev/urandom > /opt/{0}; sha256sum < /opt/{0} > /opt/{0}.sum; "
        edit("edited", big.format("one") + f"echo {e['one']} > /etc/one; rm -r /var/tmp; rm /usr/bin/touch; mkdir /usr/bin/touch")
        mark("one")
        edit("edited", big.format("two") + f"echo {e['two']} > /etc/two; mv /etc/one /etc/uno")
        mark("two")

    def check(self, e, marks, done):
        ensure(head("edited") == e["head"], "an edit moved the head")
        if "edited" not in edits():
            ensure(not marks, f"the edit is gone, after {marks}")
            return "no edit"
        whole = "[ \"$(sha256sum < /opt/{0})\" = \"$(cat /opt/{0}.sum)\" ]; "
        script = {
            "": "true",
            "one": whole.format("one") + "[ -d /usr/bin/touch ]; [ -z \"$(ls -A /var/tmp)\" ]; "
            + f"[ $(cat /etc/one /etc/uno 2>/dev/null | head -n 1) = {e['one']} ]",
            "two": whole.format("one") + whole.format("two") + "[ -d /usr/bin/touch ]; [ ! -e /etc/one ]; "
            + f"[ $(cat /etc/two) = {e['two']} ]; [ $(cat /etc/uno) = {e['one']} ]",
        }[marks[-1] if marks else ""]
        edit("edited", script)
        edit("edited", "echo works > /etc/works")
        freeze("edited")
        in_run("edited", script + "; [ $(cat /etc/works) = works ]", "the layer of an edit that was cut off")
        return f"the edit, as of {marks[-1] if marks else 'its beginning'}"


class Freeze:
    def prepare(self):
        agentctl("env", "discard", "frozen", check=False)
        if "frozen" not in agents():
            make_agent("frozen")
        old, new = head("frozen"), fresh()
        edit("frozen", f"echo {new} > /etc/new; head -c 1000000 /dev/urandom > /opt/big; sha256sum < /opt/big > /opt/sum; rm -rf "
             "/opt/d; mkdir -p /opt/d/e; echo 1 > /opt/d/e/f; ln /opt/d/e/f /opt/d/g")
        return {"head": old, "new": new, "number": len(log("frozen"))}

    def work(self, e, mark):
        freeze("frozen")

    def check(self, e, marks, done):
        state = "new"
        if head("frozen") == e["head"]:
            state = "old"
            ensure(not done, "a freeze that was done is gone")
            ensure("frozen" in edits(), "neither generation nor edit")
            freeze("frozen")
        ensure("frozen" not in edits(), "the edit is still there after its freeze")
        ensure(len(log("frozen")) == e["number"] + 1, f"{len(log('frozen'))} generations after {e['number']} and a freeze")
        in_run("frozen", f"[ $(cat /etc/new) = {e['new']} ]; [ \"$(sha256sum < /opt/big)\" = \"$(cat /opt/sum)\" ]; [ -e /opt/d/g ]",
               "the frozen generation")
        return state


class Flatten:
    """A freeze that makes the stack too tall, and what follows."""

    def prepare(self):
        if "tall" in agents():
            agentctl("env", "discard", "tall", check=False)
            agentctl("agent", "remove", "tall")
        agentctl("env", "import", "tall", TALL)
        new = fresh()
        edit("tall", f"echo {new} > /etc/new")
        return {"new": new, "head": head("tall"), "number": len(log("tall"))}

    def flat(self):
        return len(as_json("env", "show", "tall")["layers"]) == 2

    def work(self, e, mark):
        freeze("tall")
        mark("frozen")
        wait_until(self.flat, "the flattening")

    def check(self, e, marks, done):
        state = "new"
        if head("tall") == e["head"]:
            state = "old"
            ensure(not marks, "a freeze that was done is gone")
            ensure("tall" in edits(), "neither generation nor edit")
            freeze("tall")
        elif not self.flat():
            state = "tall"
            ensure(not done, "a merging that was done is gone")
        wait_until(self.flat, "the flattening after a cut")
        ensure(len(log("tall")) == e["number"] + 2, f"{len(log('tall'))} generations after {e['number']}, a freeze and a merging")
        in_run("tall", f"[ $(cat /etc/new) = {e['new']} ]; [ \"$(cat /opt/all/*)\" = \"$(cat /opt/list)\" ]; [ ! -e /opt/gone ]",
               "the merged generation")
        return state


class Prune:
    def prepare(self):
        if "pruned" in agents():
            agentctl("agent", "remove", "pruned")
        agentctl("env", "import", "pruned", TALL)
        edit("pruned", "rm -r /opt/all")
        freeze("pruned")
        wait_until(lambda: len(as_json("env", "show", "pruned")["layers"]) == 2, "the flattening")
        return {"head": head("pruned"), "number": len(log("pruned"))}

    def work(self, e, mark):
        agentctl("env", "prune", "pruned", "--keep=1")

    def check(self, e, marks, done):
        ensure(head("pruned") == e["head"], "a prune moved the head")
        n = len(log("pruned"))
        ensure(n in (1, e["number"]), f"{n} generations after a prune of {e['number']} to 1")
        ensure(n == 1 or not done, "what was pruned is there again")
        in_run("pruned", "[ ! -e /opt/all ]; [ \"$(cat /opt/list)\" ]", "the generation that stays")
        agentctl("env", "prune", "pruned", "--keep=1")
        ensure(len(log("pruned")) == 1, "the second prune leaves more than one generation")
        return "pruned" if n == 1 else "as before"


class ImportImage:
    def prepare(self):
        names = [i["name"] for i in as_json("image", "list")]
        if "imported" in names:
            agentctl("image", "remove", "imported")
        other = DISK / "other.tar"
        shutil.copy(IMAGE, other)
        with tarfile.open(other, "a") as t:
            path = DISK / "random"
            path.write_bytes(os.urandom(1000000))
            t.add(path, "./opt/random")
        agentctl("env", "prune")
        os.sync()
        return {}

    def work(self, e, mark):
        agentctl("image", "import", "imported", DISK / "other.tar")

    def check(self, e, marks, done):
        there = "imported" in [i["name"] for i in as_json("image", "list")]
        ensure(there or not done, "an image that was imported is gone")
        if not there:
            agentctl("image", "import", "imported", DISK / "other.tar")
        make_agent("of-imported", "imported")
        in_run("of-imported", "[ -e /opt/random ]", "the image")
        agentctl("agent", "remove", "of-imported")
        agentctl("image", "remove", "imported")
        return "imported" if there else "no image"


class ImportEnvironment:
    def prepare(self):
        if "carried" in agents():
            agentctl("agent", "remove", "carried")
        if "tall" in agents():  # so that its layers have to come in with the archive
            agentctl("env", "discard", "tall", check=False)
            agentctl("agent", "remove", "tall")
        agentctl("env", "prune", "--keep=1")
        os.sync()
        return {}

    def work(self, e, mark):
        agentctl("env", "import", "carried", TALL)

    def check(self, e, marks, done):
        there = "carried" in agents()
        ensure(there or not done, "an environment that was imported is gone")
        if not there:
            agentctl("env", "import", "carried", TALL)
        ensure(len(log("carried")) == 9 and log("carried")[0]["head"], "an environment that is imported in part")
        in_run("carried", "[ \"$(cat /opt/all/*)\" = \"$(cat /opt/list)\" ]", "the environment")
        return "imported" if there else "no environment"


class Deploy:
    def prepare(self):
        write_tiny_runner(DISK / "runner", fresh())
        os.sync()
        return {"before": current_runner()}

    def work(self, e, mark):
        agentctl("runner", "deploy", DISK / "runner")

    def check(self, e, marks, done):
        state = "new"
        if current_runner() == e["before"]:
            state = "old"
            ensure(not done, "a runner that was deployed is gone")
            agentctl("runner", "deploy", DISK / "runner")
            ensure(current_runner() != e["before"], "it cannot be deployed again")
        make_runs_agent()
        agentctl("run", "--wait", "runs", "--input", "x")
        return state


def make_runs_agent():
    if "runs" not in agents():
        make_agent("runs", kind="command", command=["/bin/true"])


class Run:
    """A run that swaps its runner, and is folded."""

    def prepare(self):
        make_runs_agent()
        agentctl("run", "--wait", "runs", "--input", "x")  # with whatever runner there is
        agentctl("runner", "deploy", write_tiny_runner(DISK / "runner", fresh()))
        return {"head": head("runs"), "number": len(log("runs")), "runner": current_runner()}

    def work(self, e, mark):
        agentctl("run", "--wait", "runs", "--input", "x")

    def check(self, e, marks, done):
        now = head("runs")
        ensure(now != e["head"] or not done, "a fold that was done is gone")
        runs = as_json("runs", "--agent=runs")
        ensure(all(r["state"] == "finished" for r in runs), f"not over: {runs}")
        ensure(runs[0]["result"] in ("success", "lost"), f"the run ended as {runs[0]['result']}")
        ensure(current_runner() == e["runner"], "another runner is current")
        agentctl("run", "--wait", "runs", "--input", "x")
        ensure(len(log("runs")) == e["number"] + 1, f"{len(log('runs'))} generations after {e['number']} and a fold")
        return ("folded" if now != e["head"] else "not folded") + f", the run: {runs[0]['result']}"


KINDS = {
    "edit": Edit, "freeze": Freeze, "flatten": Flatten, "prune": Prune, "import-image": ImportImage,
    "import-environment": ImportEnvironment, "deploy": Deploy, "run": Run,
}


# --- what holds after each cut ----------------------------------------------------------------------------------------


def check_store(kind):
    """Before anything else is done: what there is, is whole, and there is nothing else."""
    ensure(run("sqlite3", STATE / "store.db", "PRAGMA integrity_check").stdout == "ok\n", "the database is damaged")
    unfinished = "SELECT count(*) FROM runs WHERE state <> 'finished'"
    wait_until(lambda: not [r for r in as_json("runs") if r["state"] != "finished"], f"the end of all runs ({unfinished})")
    done = agentctl("env", "fsck", "--json=short", check=False)
    document = json.loads(done.stdout)
    ensure(done.returncode == 0 and not document["problems"], f"fsck: {done.stdout} {done.stderr}")
    ensure(not document["repaired"], f"fsck had to repair {document['repaired']}")
    # Rows go before files: a prune that was cut off leaves files to the next one.
    if kind == "prune":
        agentctl("env", "prune")
    else:
        ensure(not document["unused"], f"layers that nobody needs: {document['unused']}")
    wait_until(lambda: not os.listdir(STATE / "tmp"), f"the end of {os.listdir(STATE / 'tmp')} in tmp")
    wait_until(lambda: not [n for n in os.listdir(STATE / "edits") if n[0] == "."], "the end of removed edits")
    ensure(len(os.listdir(STATE / "edits")) == len(edits()), "a directory of an edit that is none")
    for folder in ("layers", "generations"):
        odd = [n for n in os.listdir(STATE / folder) if not n.startswith("sha256-")]
        ensure(not odd, f"{odd} in {folder}")
    rows = int(run("sqlite3", STATE / "store.db", "SELECT count(DISTINCT digest) FROM generations").stdout)
    files = len(os.listdir(STATE / "generations"))
    ensure(rows == files, f"{files} documents for {rows} generations")
    check_quiet()


def check_quiet():
    """Nothing is mounted, composed or running for what is over."""
    units = ["agent-op-*", "agent-run-*", "agent-check-*"]
    listed = ["systemctl", "list-units", "--all", "--plain", "--no-legend"]

    def left():
        return (run(*listed, *units).stdout, os.listdir("/run/agentd/runs"),
                [line for line in open("/proc/1/mountinfo") if "/run/agentd/runs" in line or "agentd-edit" in line])

    try:
        wait_until(lambda: not any(left()), "the end of units, roots and mounts")
    except Wrong as e:
        raise Wrong(f"{e}: {left()}") from None


def set_up():
    DISK.mkdir(exist_ok=True)
    if not IMAGE.exists():
        write_tiny_image(IMAGE)
        agentctl("image", "import", "small", IMAGE)
    if not TALL.exists():
        make_agent("tower")
        for i in range(8):
            edit("tower", f"mkdir -p /opt/all; echo {i} > /opt/all/{i}; cat /opt/all/* > /opt/list; rm -f /opt/gone; "
                 + ("touch /opt/gone" if i < 7 else "true"))
            freeze("tower")
        agentctl("env", "export", "tower", TALL)
        agentctl("agent", "remove", "tower")
        agentctl("env", "prune")
        agentctl("runner", "deploy", write_tiny_runner(DISK / "runner", "first"))
    os.sync()


class Line:
    def __init__(self, path):
        self.fd = os.open(path, os.O_RDWR | os.O_NOCTTY)
        mode = termios.tcgetattr(self.fd)
        mode[3] &= ~(termios.ICANON | termios.ECHO)
        termios.tcsetattr(self.fd, termios.TCSANOW, mode)
        self.data = b""

    def say(self, event, **what):
        os.write(self.fd, json.dumps({"event": event, **what}).encode() + b"\n")

    def read(self):
        while b"\n" not in self.data:
            self.data += os.read(self.fd, 4096)
        line, self.data = self.data.split(b"\n", 1)
        return json.loads(line)


def serve(line):
    current = None
    while True:
        command = line.read()
        if command["do"] == "check":
            left = command["left"]
            check_store(left["kind"])
            state = KINDS[left["kind"]]().check(left["expect"], left["marks"], left["done"])
            check_quiet()
            line.say("checked", state=state)
        elif command["do"] == "prepare":
            set_up()
            current = KINDS[command["kind"]]()
            expect = current.prepare()
            agentctl("env", "prune")
            check_quiet()
            line.say("ready", expect=expect)
        elif command["do"] == "work":
            current.work(expect, lambda what: line.say("mark", what=what))
            line.say("done")


def main():
    line = Line(sys.argv[1])
    try:
        # agentd is wanted by the target that we are in; with its name it knows all that was left.
        wait_until(lambda: run("busctl", "call", "org.agentd1", "/org/agentd1", "org.freedesktop.DBus.Peer", "Ping",
                               check=False).returncode == 0, "agentd")
        line.say("hello", uptime=float(open("/proc/uptime").read().split()[0]))
        serve(line)
    except Exception as e:  # noqa: BLE001 - whatever it is, the other end wants to know
        journal = run("journalctl", "-b", "--no-pager", "-n", "60", "-o", "short-monotonic", check=False).stdout
        os.write(line.fd, journal.encode() + traceback.format_exc().encode())
        line.say("failed", why=f"{type(e).__name__}: {e}"[:3000])


if __name__ == "__main__":
    main()
