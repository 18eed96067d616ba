#!/usr/bin/python3
# SPDX-License-Identifier: LGPL-2.1-or-later
"""Searches a live run's sandbox, from outside and as root, for secrets that must not be in it.

    scan.py UNIT RUN SECRET=FILE… --control NAME=FILE

Each FILE has one secret a line. Looked through are, of every process in the unit: environment, command line, what
else /proc tells of it, and all memory that can be read; and all files of the run that are not part of its frozen,
read-only layers. The control is something that must be found in memory and in a file: it shows that the search works.
Exits with 0 if no secret was found and the control was, with 1 otherwise.
"""

import os
import re
import stat
import sys

CHUNK = 4 << 20
WRITABLE = ("home", "tmp", "var", "run", "etc", "dev/shm", "root", "opt/agentd")


def needles(path):
    """The secrets, and of those with dots (JWTs) the signature too: enough to rebuild the rest."""
    for line in open(path, encoding="ascii"):
        secret = line.strip()
        if secret:
            yield secret.encode()
            if secret.count(".") == 2:
                yield secret.rsplit(".", 1)[1].encode()


class Search:
    def __init__(self, wanted):
        self.wanted = {name: sorted(set(needles(path))) for name, path in wanted}
        for name, secrets in self.wanted.items():
            if not secrets:
                raise SystemExit(f"scan: there is no {name} to look for")
        self.overlap = max(len(s) for secrets in self.wanted.values() for s in secrets) - 1
        self.found = {name: {} for name in self.wanted}  # name → {place: kind}
        self.memory = self.files = self.entries = 0

    def look(self, data, kind, place):
        for name, secrets in self.wanted.items():
            if place not in self.found[name] and any(s in data for s in secrets):
                self.found[name][place] = kind

    def stream(self, f, length, kind, place):
        tail = b""
        while length > 0:
            data = f.read(min(CHUNK, length))
            if not data:
                break
            self.look(tail + data, kind, place)
            tail = data[-self.overlap:]
            length -= len(data)
            if kind == "memory":
                self.memory += len(data)

    def process(self, pid):
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as f:
            who = f"{f.read().strip()} ({pid})"
        with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as maps, \
                open(f"/proc/{pid}/mem", "rb", buffering=0) as mem:
            for line in maps:
                match = re.match(r"([0-9a-f]+)-([0-9a-f]+) r", line)
                if not match or line.rstrip().endswith(("[vvar]", "[vvar_vclock]", "[vsyscall]")):
                    continue
                start, end = (int(x, 16) for x in match.groups())
                try:
                    mem.seek(start)
                    self.stream(mem, end - start, "memory", f"memory of {who}")
                except OSError:
                    continue  # such as a mapping beyond the end of its file
        for name in os.listdir(f"/proc/{pid}"):
            self.proc_entry(f"/proc/{pid}/{name}", f"{name} of {who}")

    def proc_entry(self, path, place):
        """Entries of /proc that tell something and do nothing."""
        if os.path.basename(path) in ("mem", "pagemap", "kmsg", "kcore", "clear_refs", "kpagecount", "kpageflags"):
            return
        try:
            if stat.S_ISREG(os.lstat(path).st_mode):
                with open(path, "rb") as f:
                    self.stream(f, CHUNK, "proc", place)
                self.entries += 1
        except OSError:
            pass

    def tree(self, top, shown):
        for folder, _, names in os.walk(top):
            for name in names:
                path = os.path.join(folder, name)
                try:
                    if not stat.S_ISREG(os.lstat(path).st_mode):
                        continue
                    with open(path, "rb") as f:
                        self.stream(f, 1 << 40, "file", shown + path[len(top):])
                    self.files += 1
                except OSError as error:
                    raise SystemExit(f"scan: {path}: {error}") from None


def main():
    unit, run, *rest = sys.argv[1:]
    control = rest[rest.index("--control") + 1].split("=", 1)
    secrets = [a.split("=", 1) for a in rest[:rest.index("--control")]]
    search = Search([*secrets, control])

    group = os.popen(f"systemctl show -P ControlGroup {unit}").read().strip()
    pids = []
    for folder, _, _ in os.walk("/sys/fs/cgroup" + group):
        with open(os.path.join(folder, "cgroup.procs"), encoding="ascii") as f:
            pids += f.read().split()
    if not group or not pids:
        raise SystemExit(f"scan: {unit} has no process")

    for pid in pids:
        search.process(pid)
    inside = f"/proc/{pids[0]}/root"
    for name in WRITABLE:
        search.tree(f"{inside}/{name}", "/" + name)
    for name in os.listdir(f"{inside}/proc"):
        search.proc_entry(f"{inside}/proc/{name}", f"/proc/{name}")
    # What the run has written, as it lies on the host.
    search.tree(f"/run/agentd/runs/{run}/rw", "writable layer")

    print(f"looked at {len(pids)} processes, {search.memory >> 20} MiB of memory, "
          f"{search.files} files, {search.entries} entries of /proc")
    good = True
    for name, _ in secrets:
        places = search.found[name]
        print(f"{name}: " + ("found nowhere" if not places else "FOUND in " + ", ".join(places)))
        good = good and not places
    places = search.found[control[0]]
    good = good and {"memory", "file"} <= set(places.values())
    print(f"control, {control[0]}: " + ("found in " + ", ".join(places) if places else "NOT FOUND: the search does not work"))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
