# SPDX-License-Identifier: LGPL-2.1-or-later
"""Cuts the power of a virtual machine at random points of what agentd does with environments and runners.

    host.py FOLDER --cuts N --seed S --report FILE

Serves the machine's disk (disk.py) and its serial line as sockets in FOLDER; whoever started this boots the machine on
them, again and again, and kills qemu when the file FOLDER/kill appears, until FOLDER/over does (tests/machine/power.sh). The
first boot does each kind of work once, without a cut, and so tells how many requests to the disk each takes. In each
later one the guest looks at what the cut before has left, prepares, and does some work, and the disk goes dead at a random one of
its requests, with a random part of what was not flushed. What a guest was told to be done before the cut must be there after it.

Lines on the serial line are JSON: {"event": …} from the guest, {"do": …} to it.
"""

import argparse
import json
import os
import pathlib
import random
import socket
import sys
import threading
import time
import xml.sax.saxutils

from disk import Disk

KINDS = ("edit", "freeze", "flatten", "prune", "import-image", "import-environment", "deploy", "run")
BOOT_SECONDS = 3600  # of silence; the machine is emulated and its host may be busy


class Failed(Exception):
    pass


class Guest:
    """One boot of the machine, seen through its serial line."""

    def __init__(self, listener, folder, disk):
        disk.arm(None, None)  # there is power again
        disk.lost = None
        self.folder = folder
        self.cut = threading.Event()
        listener.settimeout(BOOT_SECONDS)
        self.line, _ = listener.accept()
        self.line.settimeout(1)
        self.data = b""
        self.log = open(folder / "console.log", "ab")

    def read(self):
        """The guest's next event; None after the cut."""
        silent = time.monotonic()
        while True:
            while b"\n" in self.data:
                line, self.data = self.data.split(b"\n", 1)
                start = line.find(b'{"event"')
                if start >= 0:
                    event = json.loads(line[start:])
                    if event["event"] == "failed":
                        raise Failed(event["why"])
                    return event
            if self.cut.is_set():
                return None
            try:
                chunk = self.line.recv(65536)
            except TimeoutError:
                if time.monotonic() - silent > BOOT_SECONDS:
                    raise Failed("the machine says nothing") from None
                continue
            if not chunk:
                raise Failed("the machine ended by itself")
            silent = time.monotonic()
            self.log.write(chunk)
            self.log.flush()
            self.data += chunk

    def expect(self, name):
        event = self.read()
        if event is None or event["event"] != name:
            raise Failed(f"{name} was expected, not {event}")
        return event

    def send(self, **what):
        self.line.sendall(json.dumps(what).encode() + b"\n")

    def kill(self):
        """Has qemu killed, and waits for that."""
        (self.folder / "kill").touch()
        self.line.settimeout(600)
        try:
            while self.line.recv(65536):
                pass
        except OSError:
            pass
        self.line.close()


def do_work(guest, kind, disk, limit):
    """Until the work is done or cut off. What must be true afterwards, as the guest said it before and meanwhile."""
    guest.send(do="prepare", kind=kind)
    expect = guest.expect("ready")["expect"]
    disk.arm(limit, guest.cut.set)
    guest.send(do="work")
    marks = []
    while (event := guest.read()) and event["event"] == "mark":
        marks.append(event["what"])
    return {"kind": kind, "expect": expect, "marks": marks, "done": bool(event)}


def calibrate(guest, disk):
    """Everything once, and looked at; how much of the disk each kind of work needs."""
    print(f"power: up after {guest.expect('hello')['uptime']:.0f} s", flush=True)
    counts = {}
    for kind in KINDS:
        left = do_work(guest, kind, disk, None)
        counts[kind] = disk.count
        guest.send(do="check", left=left)
        guest.expect("checked")
    return counts, None


def main():
    p = argparse.ArgumentParser()
    p.add_argument("folder", type=pathlib.Path)
    p.add_argument("--cuts", type=int, required=True)
    p.add_argument("--seed", type=int, required=True)
    p.add_argument("--report", type=pathlib.Path, required=True)
    a = p.parse_args()
    rng = random.Random(a.seed)
    disk = Disk(a.folder / "state.img", str(a.folder / "disk.sock"), a.seed)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(a.folder / "serial.sock"))
    listener.listen(1)
    (a.folder / "listening").touch()

    order = []
    while len(order) < a.cuts:
        order += rng.sample(KINDS, len(KINDS))
    cases, left, counts = [], None, {}
    for n in range(a.cuts + 1):
        started = time.monotonic()
        kind = order[n - 1] if n else "all"
        limit = rng.randint(1, counts[kind]) if n else None
        name = f"test_power_cut[{n}-{kind}-{limit}]" if n else "test_without_a_cut"
        error, guest = None, None
        try:
            guest = Guest(listener, a.folder, disk)
            if n == 0:
                counts, left = calibrate(guest, disk)
                print(f"power: changes to the disk by each kind of work: {counts}", flush=True)
            else:
                up = guest.expect("hello")["uptime"]
                print(f"power:   up after {up:.0f} s", flush=True)
                if left:
                    guest.send(do="check", left=left)
                    print(f"power:   after it: {guest.expect('checked')['state']}", flush=True)
                left = do_work(guest, kind, disk, limit)
        except (Failed, OSError, AssertionError) as e:
            error = str(e) or repr(e)
        if guest:
            guest.kill()
            disk.wait_for_the_end()
        if n and not error:
            lost = disk.wait_for_the_end()
            when = "after the work was done" if left["done"] else f"at change {limit} of {counts[kind]}"
            print(f"power: {n}: {kind}, cut {when}, {lost[0]} of {lost[1]} unflushed blocks lost"
                  f"{', after ' + left['marks'][-1] if left['marks'] else ''}", flush=True)
        cases.append((name, time.monotonic() - started, error))
        if error:
            print(f"power: {name}: {error}", flush=True)
            break
    else:
        # What the last cut has left.
        error = None
        try:
            guest = Guest(listener, a.folder, disk)
            guest.expect("hello")
            guest.send(do="check", left=left)
            print(f"power:   after it: {guest.expect('checked')['state']}", flush=True)
        except (Failed, OSError) as e:
            error = str(e)
            print(f"power: {error}", flush=True)
        if guest:
            guest.kill()
        cases.append(("test_after_the_last_cut", 0, error))
    failed = sum(1 for c in cases if c[2])
    with open(a.report, "w", encoding="utf-8") as f:
        f.write(f'<testsuites><testsuite name="power" tests="{len(cases)}" failures="{failed}">\n')
        for name, seconds, error in cases:
            f.write(f'<testcase classname="power" name="{name}" time="{seconds:.1f}">')
            if error:
                f.write(f"<failure message={xml.sax.saxutils.quoteattr(error)}/>")
            f.write("</testcase>\n")
        f.write("</testsuite></testsuites>\n")
    os.close(os.open(a.folder / "over", os.O_CREAT, 0o644))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
